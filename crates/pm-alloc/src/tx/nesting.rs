//! One transaction for a thread and a heap at a time.
//!
//! An inner one would commit on its own, without seeing what the outer one has not stored yet, and stay when the outer one
//! is given up. Nobody means that.

use crate::error::TxError;
use std::cell::RefCell;

thread_local! {
    /// The heaps on which this thread is in a transaction. Seldom more than one.
    static WITHIN: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// A thread's stay in a transaction on one heap.
pub(super) struct Stay {
    heap: usize,
}

impl Stay {
    /// Begins one, on the heap that is known by this address.
    pub(super) fn begin(heap: usize) -> Result<Self, TxError> {
        WITHIN.with_borrow_mut(|within| {
            if within.contains(&heap) {
                return Err(TxError::Nested);
            }
            within.push(heap);
            Ok(Self { heap })
        })
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        WITHIN.with_borrow_mut(|within| within.retain(|&heap| heap != self.heap));
    }
}
