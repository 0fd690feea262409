//! One transaction for a thread and a heap at a time, and what threads keep from one to the next.
//!
//! An inner one would commit on its own, without seeing what the outer one has not stored yet, and stay when the outer one
//! is given up. Nobody means that.

use super::work::Work;
use crate::error::TxError;
use core::ops::Range;
use std::cell::RefCell;

thread_local! {
    static THREAD: RefCell<Thread> = const { RefCell::new(Thread { within: Vec::new(), in_place: Vec::new(), spare: None }) };
}

struct Thread {
    /// The heaps on which this thread is in a transaction. Seldom more than one.
    within: Vec<usize>,
    /// What these transactions have written in place, each with its heap: it is rolled back if they do not commit.
    in_place: Vec<(usize, Range<u64>)>,
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
            thread.in_place.retain(|(heap, _)| *heap != self.heap);
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

/// This thread's transaction on the heap that is known by this address has written these bytes in place.
pub(super) fn note_in_place(heap: usize, written: Range<u64>) {
    with_thread(|thread| thread.in_place.push((heap, written))).unwrap_or_default();
}

/// Nothing, if this thread's transaction on the heap that is known by this address has written none of the `len` bytes at `offset` in place.
#[inline]
pub(super) fn outside_in_place(heap: usize, offset: u64, len: u64) -> Result<(), TxError> {
    let is_inside = |(written_to, written): &(usize, Range<u64>)| {
        *written_to == heap && offset < written.end && written.start < offset + len
    };
    let is_written = with_thread(|thread| thread.in_place.iter().any(is_inside)).unwrap_or_default();
    if is_written { Err(TxError::WrittenInPlace { offset }) } else { Ok(()) }
}

/// Runs `f` with what this thread keeps. `None` when the thread ends and has given that back: destructors of its other
/// thread-locals may still use a heap. A transaction within another, and a word stored into what is written in place, are not
/// detected then.
#[inline]
fn with_thread<R>(f: impl FnOnce(&mut Thread) -> R) -> Option<R> {
    THREAD.try_with(|thread| f(&mut thread.borrow_mut())).ok()
}
