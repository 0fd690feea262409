//! Windows in the page table that are closed in batches, by a thread.

use super::late::LateUnits;
use super::page_table::PageTable;
use super::windows::Access;
use core::num::NonZeroU64;
use core::ops::Range;
use core::time::Duration;
use rustix::io::Errno;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Units at which the thread that closes a window closes the pages of all: each may be a mapping of its own, and a process has 65,530 by default.
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
    /// What windows open pages to: a read-only mapping cannot be opened for stores.
    opens_to: Access,
    is_ending: Mutex<bool>,
    ended: Condvar,
}

impl Shared {
    fn settle(&self) {
        self.units.settle(|units| self.table.set(&units, None));
    }

    /// Waits for the end of the thread, for at most `wait`. Returns whether it has come.
    fn is_ending_within(&self, wait: Duration) -> bool {
        let is_ending = self.is_ending.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.ended.wait_timeout_while(is_ending, wait, |is_ending| !*is_ending);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Closes the pages of closed windows, each time at least `batch` after the first of them has closed.
    fn run(&self, batch: Duration) {
        if batch < Duration::from_millis(1) {
            // The kernel's default would add 50 us. On a failure, the pages are closed later by so much.
            rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).ok();
        }
        while !self.is_ending_within(Duration::ZERO) {
            // A window that closes now wakes this thread.
            if self.units.pending() == 0 {
                std::thread::park();
            } else if !self.is_ending_within(batch) {
                self.settle();
            }
        }
    }
}

impl LateTable {
    /// Starts the thread.
    pub(super) fn new(table: PageTable, opens_to: Access, batch: Duration) -> std::io::Result<Self> {
        let units = LateUnits::new(table.unit_count());
        let (is_ending, ended) = (Mutex::new(false), Condvar::new());
        let shared = Arc::new(Shared { table, units, opens_to, is_ending, ended });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("pm-protect".to_owned());
        let thread = thread.spawn(move || of_thread.run(batch))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Opens the units of `range`, offsets in the mapping.
    pub(super) fn open(&self, range: &Range<usize>) -> Result<(), Errno> {
        let Shared { table, units, opens_to, .. } = &*self.shared;
        let open = || units.open(table.unit_numbers(range), |units| table.set(&units, Some(*opens_to)));
        open().or_else(|_| {
            // The process has too many mappings.
            self.shared.settle();
            open()
        })
    }

    /// The calls of mprotect(2) so far.
    pub(super) fn change_count(&self) -> u64 {
        self.shared.table.change_count()
    }

    /// Closes the pages of closed windows now.
    pub(super) fn settle(&self) {
        self.shared.settle();
    }

    /// Closes the window; its pages are closed later.
    pub(super) fn close(&self, range: &Range<usize>) {
        let Shared { table, units, .. } = &*self.shared;
        if !units.close(table.unit_numbers(range)) {
            return;
        }
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
        *self.shared.is_ending.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.ended.notify_one();
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It does not panic; if it did, it would have reported so.
            thread.join().ok();
        }
    }
}
