//! Closing a heap.

use super::Heap;
use crate::error::HeapError;
use crate::log::CommitError;
use pm_core::{Pmem, PoolError};

impl<P: Pmem> Heap<P> {
    /// Applies everything committed, durably: afterwards no recovery replays any of it, and what it wrote to may be stored to without
    /// the log, until a transaction writes there again. To be called while no transaction holds a lane for a long write: this waits for
    /// commits under way.
    ///
    /// # Errors
    /// When a fence fails or failed before, or an entry of a lane in use is corrupted.
    ///
    /// # Durability
    /// Two fences, or none if nothing was committed since the last time.
    pub fn checkpoint(&self) -> Result<(), CommitError> {
        self.log.raise_checkpoint(&self.pmem(), self.log.latest())
    }

    /// Closes the heap: afterwards nothing in its log is needed any more, and corruption of the log costs nothing. Dropping the heap
    /// does the same, and cannot tell of errors.
    ///
    /// What returned is durable without it.
    ///
    /// # Errors
    /// When a fence fails or failed before, or a transaction was left half done. The next opening recovers the heap.
    /// [`PoolError::InUse`] in a child of fork(2) that inherited the heap: nothing is stored then.
    ///
    /// # Durability
    /// Two fences. A crash inside leaves the heap closed, or to be recovered.
    pub fn close(mut self) -> Result<(), HeapError> {
        self.close_log()
    }

    /// Whether this process opened it. A child of fork(2) does not own it.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process.is_current()
    }

    /// For a heap whose blocks change without the log from now on.
    pub(crate) fn bypass_log(&mut self) {
        let (pmem, log) = self.log_parts();
        log.bypass(pmem);
    }

    /// In a child of fork(2) the heap is its parent's, which may go on committing to the log, and the child may not have the mapping.
    fn close_log(&mut self) -> Result<(), HeapError> {
        if !self.is_of_this_process() {
            return Err(PoolError::InUse.into());
        }
        let (pmem, log) = self.log_parts();
        Ok(log.close(pmem)?)
    }
}

impl<P: Pmem> Drop for Heap<P> {
    /// As [`close`](Heap::close): a child of fork(2) that drops a heap it inherited changes nothing.
    fn drop(&mut self) {
        // After an error the log is as a killed process leaves it: the next open replays it. `close` is the call that reports it.
        drop(self.close_log());
    }
}
