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

/// The bit of a unit's word that tells that its pages are open. The other bits count its windows.
const OPEN: u32 = 1 << 31;

/// The units of a mapping, and the windows that have closed and whose pages have not.
///
/// A window counts itself in each of its units before it looks whether the pages are open; [`settle`](Self::settle) takes the `OPEN` bit only from a unit
/// whose count is zero, in one exchange. So a unit that a window has found open stays open as long as the window does.
#[derive(Debug)]
pub(super) struct LateUnits {
    words: Box<[AtomicU32]>,
    /// Units of closed windows.
    closed: SegQueue<Range<usize>>,
    /// Held while pages are opened or closed.
    pages: Mutex<()>,
}

impl LateUnits {
    /// All units are closed.
    pub(super) fn new(count: usize) -> Self {
        let words = (0..count).map(|_| AtomicU32::new(0)).collect();
        Self { words, closed: SegQueue::new(), pages: Mutex::new(()) }
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

    /// Closes a window. Its pages stay open until [`settle`](Self::settle).
    pub(super) fn close(&self, units: Range<usize>) {
        for word in &self.words[units.clone()] {
            word.fetch_sub(1, Ordering::AcqRel);
        }
        self.closed.push(units);
    }

    /// The number of windows that have closed since the last [`settle`](Self::settle).
    pub(super) fn pending(&self) -> usize {
        self.closed.len()
    }

    /// Closes the pages of all windows that have closed, by calls of `close_pages` for adjacent units, unless another window is open on them. Pages
    /// that cannot be closed are tried again at the next call.
    pub(super) fn settle<E>(&self, mut close_pages: impl FnMut(Range<usize>) -> Result<(), E>) {
        let mut closed: Vec<Range<usize>> = core::iter::from_fn(|| self.closed.pop()).collect();
        if closed.is_empty() {
            return;
        }
        closed.sort_unstable_by_key(|units| units.start);
        let _pages = self.lock();
        let take = |unit: usize| {
            self.words[unit].compare_exchange(OPEN, 0, Ordering::AcqRel, Ordering::Acquire).is_ok()
        };
        let mut close = |run: Range<usize>| {
            if !run.is_empty() && close_pages(run.clone()).is_err() {
                self.mark_open(run.clone());
                self.closed.push(run);
            }
        };
        let mut run = 0..0;
        for unit in closed.into_iter().flatten().filter(|unit| take(*unit)) {
            if unit == run.end {
                run.end = unit + 1;
            } else {
                close(core::mem::replace(&mut run, unit..unit + 1));
            }
        }
        close(run);
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
        [5..8, 4..6, 0..2].into_iter().for_each(|run| units.close(run));
        assert_eq!(units.pending(), 3);
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
        units.close(0..1);
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
