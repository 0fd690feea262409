//! Units that are closed some time after their last window: many windows share one change of the page table.

use core::ops::Range;
use crossbeam_queue::SegQueue;

#[cfg(all(loom, test))]
use loom::sync::{
    Mutex,
    atomic::{AtomicU32, Ordering},
};
#[cfg(not(all(loom, test)))]
use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU32, Ordering},
};

/// The bit of a unit's word that tells that its pages are open.
const OPEN: u32 = 1 << 31;

/// The bit that tells that the unit is in the queue. The other bits count its windows.
const QUEUED: u32 = 1 << 30;

/// The windows of a unit.
const COUNT: u32 = QUEUED - 1;

/// The units of a mapping, and those whose windows have closed and whose pages have not.
///
/// A window counts itself in each of its units before it looks whether the pages are open; [`settle`](Self::settle) takes the `OPEN` bit only from a unit
/// whose count is zero, in one exchange. So a unit that a window has found open stays open as long as the window does. A unit is in the queue once, however many
/// windows over it have closed: the first of them puts it there. `settle` takes it out in the same exchange, so a window that is open then puts it there again.
#[derive(Debug)]
pub(super) struct LateUnits {
    words: Box<[AtomicU32]>,
    queue: SegQueue<usize>,
    /// Held while pages are opened or closed.
    pages: Mutex<()>,
}

impl LateUnits {
    /// All units are closed.
    pub(super) fn new(count: usize) -> Self {
        let words = (0..count).map(|_| AtomicU32::new(0)).collect();
        Self { words, queue: SegQueue::new(), pages: Mutex::new(()) }
    }

    /// Opens a window over these units. `open_pages` makes pages accessible; it is called for units that are not.
    pub(super) fn open<E>(
        &self,
        units: Range<usize>,
        mut open_pages: impl FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        let words = &self.words[units.clone()];
        let is_open = words.iter().fold(true, |is_open, word| {
            let before = word.fetch_add(1, Ordering::AcqRel);
            is_open & (before & OPEN != 0)
        });
        if is_open {
            return Ok(());
        }
        let _pages = self.lock();
        let mut opened = Ok(());
        let is_closed = |unit: &usize| self.words[*unit].load(Ordering::Acquire) & OPEN == 0;
        let mut start = units.start;
        while let Some(first) = (start..units.end).find(is_closed) {
            let end = (first..units.end).find(|unit| !is_closed(unit)).unwrap_or(units.end);
            opened = open_pages(first..end);
            if opened.is_err() {
                break;
            }
            self.mark_open(first..end);
            start = end;
        }
        if opened.is_err() {
            self.close(units);
        }
        opened
    }

    /// Closes a window. Its pages stay open until [`settle`](Self::settle). Returns whether a unit was put into the queue.
    pub(super) fn close(&self, units: Range<usize>) -> bool {
        units.fold(false, |is_new, unit| {
            let before = self.words[unit].fetch_sub(1, Ordering::AcqRel);
            (before & QUEUED == 0 && self.enqueue(unit, 0)) | is_new
        })
    }

    /// Puts a unit into the queue, and sets bits of its word. Returns whether it was not in the queue.
    fn enqueue(&self, unit: usize, bits: u32) -> bool {
        let is_new = self.words[unit].fetch_or(QUEUED | bits, Ordering::AcqRel) & QUEUED == 0;
        if is_new {
            self.queue.push(unit);
        }
        is_new
    }

    /// The number of units with windows that have closed since the last [`settle`](Self::settle).
    pub(super) fn pending(&self) -> usize {
        self.queue.len()
    }

    /// Closes the pages of all windows that have closed, by calls of `close_pages` for adjacent units, unless another window is open on them. Pages
    /// that cannot be closed are tried again at the next call.
    pub(super) fn settle<E>(&self, mut close_pages: impl FnMut(Range<usize>) -> Result<(), E>) {
        // Units that are put there meanwhile wait for the next call.
        let count = self.queue.len();
        let mut queued: Vec<usize> = core::iter::from_fn(|| self.queue.pop()).take(count).collect();
        if queued.is_empty() {
            return;
        }
        queued.sort_unstable();
        let _pages = self.lock();
        let mut close = |run: Range<usize>| {
            if !run.is_empty() && close_pages(run.clone()).is_err() {
                for unit in run {
                    self.enqueue(unit, OPEN);
                }
            }
        };
        let mut run = 0..0;
        for unit in queued.into_iter().filter(|unit| self.take(*unit)) {
            if unit == run.end {
                run.end = unit + 1;
            } else {
                close(core::mem::replace(&mut run, unit..unit + 1));
            }
        }
        close(run);
    }

    /// Takes a unit out of the queue, and marks it closed unless a window is open on it. Returns whether its pages are to be closed.
    fn take(&self, unit: usize) -> bool {
        let word = &self.words[unit];
        let mut found = word.load(Ordering::Acquire);
        loop {
            let is_free = found & COUNT == 0;
            let left = if is_free { 0 } else { found & !QUEUED };
            match word.compare_exchange(found, left, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return is_free && found & OPEN != 0,
                Err(now) => found = now,
            }
        }
    }

    /// The lock is held.
    fn mark_open(&self, units: Range<usize>) {
        for word in &self.words[units] {
            word.fetch_or(OPEN, Ordering::AcqRel);
        }
    }

    #[cfg(not(all(loom, test)))]
    fn lock(&self) -> std::sync::MutexGuard<'_, ()> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(all(loom, test))]
    fn lock(&self) -> loom::sync::MutexGuard<'_, ()> {
        self.pages.lock().unwrap()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::convert::Infallible;
    use std::cell::RefCell;

    #[test]
    fn adjacent_units_are_closed_by_one_call() {
        let units = LateUnits::new(16);
        let calls = RefCell::new(Vec::new());
        let open = |run: Range<usize>| {
            let note = |run| {
                calls.borrow_mut().push(run);
                Ok::<(), Infallible>(())
            };
            units.open(run, note).unwrap();
        };
        open(4..6);
        open(5..8);
        open(0..2);
        open(0..1);
        assert_eq!(calls.take(), [4..6, 6..8, 0..2]);
        assert!(units.close(5..8) && units.close(4..6) && units.close(0..2));
        assert_eq!(units.pending(), 6);
        let settle = || {
            units.settle(|run| {
                calls.borrow_mut().push(run);
                Ok::<(), Infallible>(())
            });
            calls.take()
        };
        // The window 0..1 is open.
        assert_eq!(settle(), [1..2, 4..8]);
        assert!(settle().is_empty());
        assert!(units.close(0..1));
        units.settle(|_| Err(()));
        assert_eq!(settle(), vec![Range { start: 0, end: 1 }], "a second attempt");
    }

    #[test]
    fn refused_window_is_not_open() {
        let units = LateUnits::new(4);
        assert_eq!(units.open(0..4, |_| Err("refused")), Err("refused"));
        let mut calls = Vec::new();
        units
            .open(0..4, |run| {
                calls.push(run);
                Ok::<(), Infallible>(())
            })
            .unwrap();
        assert_eq!(calls, vec![Range { start: 0, end: 4 }]);
    }
}

/// Interleavings of windows with a settlement, with the orders of the C++ memory model. Run by `cargo xtask test loom`.
#[cfg(all(loom, test))]
mod interleaved {
    use super::*;
    use core::convert::Infallible;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    #[test]
    fn loom_pages_of_an_open_window_stay_open() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            // The units, and whether the page is accessible.
            let shared = Arc::new((LateUnits::new(1), AtomicBool::new(false)));
            let window = |shared: &(LateUnits, AtomicBool)| {
                let (units, page) = shared;
                let open = |_| {
                    page.store(true, Ordering::SeqCst);
                    Ok::<(), Infallible>(())
                };
                units.open(0..1, open).unwrap();
                assert!(page.load(Ordering::SeqCst), "the store faults");
                units.close(0..1);
            };
            let settle = |shared: &(LateUnits, AtomicBool)| {
                shared.0.settle(|_| {
                    shared.1.store(false, Ordering::SeqCst);
                    Ok::<(), Infallible>(())
                });
            };
            let (writer, settler) = (Arc::clone(&shared), Arc::clone(&shared));
            let writer = thread::spawn(move || window(&writer));
            let settler = thread::spawn(move || settle(&settler));
            window(&shared);
            writer.join().unwrap();
            settler.join().unwrap();
            settle(&shared);
            assert!(!shared.1.load(Ordering::SeqCst), "the page is closed in the end");
        });
    }
}
