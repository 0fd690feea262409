//! Windows in the page table: mprotect(2).
#![expect(unsafe_code, reason = "changes the protection of a region's pages")]

use super::windows::Access;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use rustix::io::Errno;
use rustix::mm::{Advice, MprotectFlags};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most windows that a mapping is split into in advance. The kernel allows a process 65,530 mappings by default.
const SPLITS_MAX: usize = 16_384;

/// The accesses that a page admits, in ascending order.
type Level = Option<Access>;

/// The pages of a mapping, closed except in windows.
#[derive(Debug)]
pub(super) struct PageTable {
    /// The addresses of the mapping, in whole pages.
    pages: Range<usize>,
    /// The length of a window is a multiple of it.
    unit: usize,
    closed: Level,
    /// The open windows, in whole units, at most one for each thread. The lock is held during the system call, which the kernel serialises too.
    open: Mutex<Vec<(Range<usize>, Access)>>,
    change_count: AtomicU64,
}

impl PageTable {
    /// Closes the mapping of `len` bytes at `base` to everything but `closed`. Windows are multiples of `unit` bytes.
    ///
    /// # Safety
    /// The mapping must live as long as this value, and its owner must use it by loads and stores in windows only.
    pub(super) unsafe fn new(base: usize, len: usize, closed: Level, unit: usize) -> Result<Self, Errno> {
        let page = rustix::param::page_size();
        let pages = base..base + len.next_multiple_of(page);
        let table = Self { pages, unit, closed, open: Mutex::default(), change_count: AtomicU64::new(0) };
        table.protect(table.pages.clone(), closed)?;
        if unit > page {
            table.split();
        }
        Ok(table)
    }

    /// Makes every unit a mapping of its own, so that no later call splits or merges any, which takes three times as long: neighbours differ in their
    /// advice, of which this one concerns read-ahead, and changes nothing for memory.
    fn split(&self) {
        let starts = || self.pages.clone().step_by(self.unit);
        if starts().len() > SPLITS_MAX {
            return;
        }
        for start in starts().skip(1).step_by(2) {
            let len = self.unit.min(self.pages.end - start);
            // SAFETY: the range is the mapping's own, and the advice changes no bytes.
            let advised = unsafe { rustix::mm::madvise(start as *mut _, len, Advice::Random) };
            // It costs speed only.
            debug_assert!(advised.is_ok(), "{advised:?}");
        }
    }

    /// Opens the units of `range`, offsets in the mapping.
    pub(super) fn open(&self, range: Range<usize>, access: Access) -> Result<(), Errno> {
        let units = self.units(range);
        let mut open = self.lock();
        let mut raised = Ok(());
        for (part, level) in levels(&open, units.clone(), self.closed) {
            if level < Some(access) && raised.is_ok() {
                raised = self.protect(part, Some(access));
            }
        }
        open.push((units.clone(), access));
        if raised.is_err() {
            self.close_locked(&mut open, units, access);
        }
        raised
    }

    /// Closes what [`open`](Self::open) opened, except parts of other windows.
    pub(super) fn close(&self, range: Range<usize>, access: Access) {
        self.close_locked(&mut self.lock(), self.units(range), access);
    }

    /// Closes the units of `range`, offsets in the mapping, that no window holds open: a stray access may have opened them.
    pub(super) fn close_again(&self, range: Range<usize>) {
        self.close_locked(&mut self.lock(), self.units(range), Access::Write);
    }

    fn close_locked(&self, open: &mut Vec<(Range<usize>, Access)>, units: Range<usize>, access: Access) {
        if let Some(index) = open.iter().rposition(|window| *window == (units.clone(), access)) {
            open.swap_remove(index);
        }
        for (part, level) in levels(open, units, self.closed) {
            // If the kernel has no room for another mapping, the pages stay open until a later window over them closes.
            if level < Some(access) {
                self.protect(part, level).ok();
            }
        }
    }

    /// The calls of mprotect(2) so far.
    pub(super) fn change_count(&self) -> u64 {
        self.change_count.load(Ordering::Relaxed)
    }

    /// The number of units.
    pub(super) fn unit_count(&self) -> usize {
        self.unit_index(self.pages.end - 1) + 1
    }

    /// The numbers of the units that hold `range`, offsets in the mapping.
    pub(super) fn unit_numbers(&self, range: &Range<usize>) -> Range<usize> {
        match range.is_empty() {
            true => 0..0,
            false => {
                self.unit_index(self.pages.start + range.start)
                    ..self.unit_index(self.pages.start + range.end - 1) + 1
            }
        }
    }

    /// Opens units to `access`, or closes them. Not together with [`open`](Self::open).
    pub(super) fn set(&self, units: &Range<usize>, access: Option<Access>) -> Result<(), Errno> {
        let address = |unit: usize| (self.pages.start / self.unit + unit) * self.unit;
        let start = address(units.start).max(self.pages.start);
        let end = address(units.end).min(self.pages.end);
        self.protect(start..end, access.or(self.closed))
    }

    /// The number of the unit of an address.
    const fn unit_index(&self, address: usize) -> usize {
        address / self.unit - self.pages.start / self.unit
    }

    /// The whole units that hold `range`, as addresses.
    fn units(&self, range: Range<usize>) -> Range<usize> {
        let start = (self.pages.start + range.start) / self.unit * self.unit;
        let end = (self.pages.start + range.end).next_multiple_of(self.unit);
        start.max(self.pages.start)..end.min(self.pages.end)
    }

    fn protect(&self, pages: Range<usize>, level: Level) -> Result<(), Errno> {
        debug_assert!(self.pages.start <= pages.start && pages.end <= self.pages.end, "{pages:x?}");
        self.change_count.fetch_add(1, Ordering::Relaxed);
        let flags = match level {
            None => MprotectFlags::empty(),
            Some(Access::Read) => MprotectFlags::READ,
            Some(Access::Write) => MprotectFlags::READ | MprotectFlags::WRITE,
        };
        // SAFETY: by the contract of `new` the range is the mapping's own, and only its owner accesses it.
        unsafe { rustix::mm::mprotect(pages.start as *mut _, pages.len(), flags) }
    }

    /// A panic under the lock is a bug of this module, and leaves pages open at worst.
    fn lock(&self) -> MutexGuard<'_, Vec<(Range<usize>, Access)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The parts of `range` with the accesses that the windows `open` admit, in ascending order; adjacent parts may have the same.
fn levels(open: &[(Range<usize>, Access)], range: Range<usize>, closed: Level) -> Vec<(Range<usize>, Level)> {
    let overlaps =
        |window: &&(Range<usize>, Access)| window.0.start < range.end && range.start < window.0.end;
    if !open.iter().any(|window| overlaps(&window)) {
        return if range.is_empty() { Vec::new() } else { vec![(range, closed)] };
    }
    let bounds = open.iter().filter(overlaps).flat_map(|(units, _)| [units.start, units.end]);
    let mut bounds: Vec<usize> = bounds.filter(|bound| range.contains(bound)).collect();
    bounds.extend([range.start, range.end]);
    bounds.sort_unstable();
    bounds.dedup();
    let level_at = |at: usize| {
        let levels = open.iter().filter(|(units, _)| units.contains(&at)).map(|(_, access)| Some(*access));
        levels.fold(closed, Level::max)
    };
    bounds.windows(2).map(|pair| (pair[0]..pair[1], level_at(pair[0]))).collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn levels_of_overlapping_windows() {
        let open = [(0..20, Access::Read), (10..30, Access::Write), (50..60, Access::Write)];
        let (read, write) = (Some(Access::Read), Some(Access::Write));
        assert_eq!(
            levels(&open, 5..40, None),
            [(5..10, read), (10..20, write), (20..30, write), (30..40, None)]
        );
        assert_eq!(levels(&open, 5..12, read), [(5..10, read), (10..12, write)]);
        assert_eq!(levels(&open, 30..50, read), [(30..50, read)]);
        assert_eq!(levels(&[], 3..3, read), []);
    }
}
