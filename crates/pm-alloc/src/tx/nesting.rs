//! One transaction for a thread and a heap at a time, and what threads keep from one to the next.
//!
//! An inner one would commit on its own, without seeing what the outer one has not stored yet, and stay when the outer one
//! is given up. Nobody means that.

use super::work::Work;
use crate::error::TxError;
use std::cell::RefCell;

thread_local! {
    static THREAD: RefCell<Thread> = const { RefCell::new(Thread { within: Vec::new(), spare: None }) };
}

struct Thread {
    /// The heaps on which this thread is in a transaction. Seldom more than one.
    within: Vec<usize>,
    /// Empty, with room from a transaction before.
    spare: Option<Box<Work>>,
}

/// A thread's stay in a transaction on one heap.
pub(super) struct Stay {
    heap: usize,
    /// There when it is asked for, until this is dropped.
    work: Option<Box<Work>>,
}

impl Stay {
    /// Begins one, on the heap that is known by this address.
    #[inline]
    pub(super) fn begin(heap: usize) -> Result<Self, TxError> {
        let begun = with_thread(|thread| {
            if thread.within.contains(&heap) {
                return Err(TxError::Nested);
            }
            thread.within.push(heap);
            Ok(Self { heap, work: Some(thread.spare.take().unwrap_or_default()) })
        });
        begun.unwrap_or_else(|| Ok(Self { heap, work: None }))
    }

    /// For what the transaction collects: empty.
    #[inline]
    pub(super) fn work(&mut self) -> &mut Work {
        self.work.get_or_insert_default()
    }
}

impl Drop for Stay {
    #[inline]
    fn drop(&mut self) {
        let work = self.work.take().filter(|work| work.is_kept()).map(Work::emptied);
        with_thread(|thread| {
            let at = thread.within.iter().rposition(|&heap| heap == self.heap);
            at.map(|at| thread.within.swap_remove(at));
            thread.spare = work;
        })
        .unwrap_or_default();
    }
}

/// Nothing, if this thread is in no transaction on the heap that is known by this address.
#[inline]
pub(super) fn outside(heap: usize) -> Result<(), TxError> {
    let is_within = with_thread(|thread| thread.within.contains(&heap)).unwrap_or_default();
    if is_within { Err(TxError::Nested) } else { Ok(()) }
}

/// Runs `f` with what this thread keeps. `None` when the thread ends and has given that back: destructors of its other
/// thread-locals may still use a heap. Nobody notices then if one of their transactions is within another.
#[inline]
fn with_thread<R>(f: impl FnOnce(&mut Thread) -> R) -> Option<R> {
    THREAD.try_with(|thread| f(&mut thread.borrow_mut())).ok()
}
