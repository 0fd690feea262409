//! Windows in the page table that are closed in batches, by a thread.

use super::late::LateUnits;
use super::page_table::PageTable;
use super::windows::Access;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use rustix::io::Errno;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Closed windows at which the thread that closes one closes the pages of all: each may be a mapping of its own, and a process has 65,530 by default.
const PENDING_MAX: usize = 16_384;

/// The pages of a mapping, and the thread that closes them, which ends when this value is dropped.
#[derive(Debug)]
pub(super) struct LateTable {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    table: PageTable,
    units: LateUnits,
    is_ending: AtomicBool,
}

impl Shared {
    fn settle(&self) {
        self.units.settle(|units| self.table.set(&units, None));
    }

    /// Closes the pages of closed windows, each time at least `batch` after the first of them has closed.
    fn run(&self, batch: Duration) {
        while !self.is_ending.load(Ordering::Acquire) {
            // A window that closes now wakes this thread.
            if self.units.pending() == 0 {
                std::thread::park();
            } else {
                std::thread::sleep(batch);
                self.settle();
            }
        }
    }
}

impl LateTable {
    /// Starts the thread.
    pub(super) fn new(table: PageTable, batch: Duration) -> std::io::Result<Self> {
        let units = LateUnits::new(table.unit_count());
        let shared = Arc::new(Shared { table, units, is_ending: AtomicBool::new(false) });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("pm-protect".to_owned());
        let thread = thread.spawn(move || of_thread.run(batch))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Opens the units of `range`, offsets in the mapping.
    pub(super) fn open(&self, range: &Range<usize>) -> Result<(), Errno> {
        let Shared { table, units, .. } = &*self.shared;
        let open = || units.open(table.unit_numbers(range), |units| table.set(&units, Some(Access::Write)));
        open().or_else(|_| {
            // The process has too many mappings.
            self.shared.settle();
            open()
        })
    }

    /// Closes the pages of closed windows now.
    pub(super) fn settle(&self) {
        self.shared.settle();
    }

    /// Closes the window; its pages are closed later.
    pub(super) fn close(&self, range: &Range<usize>) {
        let Shared { table, units, .. } = &*self.shared;
        units.close(table.unit_numbers(range));
        match units.pending() {
            0..PENDING_MAX => {
                if let Some(thread) = &self.thread {
                    thread.thread().unpark();
                }
            }
            _ => self.shared.settle(),
        }
    }
}

impl Drop for LateTable {
    fn drop(&mut self) {
        self.shared.is_ending.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It does not panic; if it did, it would have reported so.
            thread.join().ok();
        }
    }
}
