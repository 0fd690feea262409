//! Closing a heap.

use super::Heap;
use crate::error::HeapError;
use crate::log::CommitError;
use pm_core::Pmem;

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
        self.log.raise_horizon(&self.pmem(), self.log.latest())
    }

    /// Closes the heap: afterwards nothing in its log is needed any more, and corruption of the log costs nothing. Dropping the heap
    /// does the same, and cannot tell of errors.
    ///
    /// What returned is durable without it.
    ///
    /// # Errors
    /// When a fence fails or failed before, or a transaction was left half done. The next opening recovers the heap.
    ///
    /// # Durability
    /// Two fences. A crash inside leaves the heap closed, or to be recovered.
    pub fn close(mut self) -> Result<(), HeapError> {
        self.close_log()
    }

    /// For a heap whose blocks change without the log from now on.
    pub(crate) fn bypass_log(&mut self) {
        let (pmem, log) = self.log_parts();
        log.bypass(pmem);
    }

    fn close_log(&mut self) -> Result<(), HeapError> {
        let (pmem, log) = self.log_parts();
        Ok(log.close(pmem)?)
    }
}

impl<P: Pmem> Drop for Heap<P> {
    /// As [`close`](Heap::close). A child of fork(2) that drops a heap it inherited changes nothing: the heap is its parent's, which may
    /// be using it, and the child may not have the mapping.
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        // After an error the log is as a killed process leaves it: the next open replays it. `close` is the call that reports it.
        drop(self.close_log());
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use crate::{Heap, HeapOptions, TxError};
    use pm_crashsim::SimPmem;
    use std::sync::Arc;

    /// Whether dropping a heap with a committed transaction stores anything, in the process with this number above the opener's.
    fn drop_stores(process_offset: u32) -> bool {
        let sim = Arc::new(SimPmem::new(1 << 16));
        let options = HeapOptions::new().lanes(1).lane_entries(16).chunk_bytes(4096);
        let mut heap = Heap::format(Arc::clone(&sim), &options).unwrap();
        heap.transaction(|tx| tx.alloc(&1_u64).map(drop)).map_err(|error: TxError| error).unwrap();
        let before = sim.to_image().to_bytes();
        heap.process += process_offset;
        drop(heap);
        sim.to_image().to_bytes() != before
    }

    #[test]
    fn heap_dropped_in_a_child_process_stores_nothing() {
        assert!(drop_stores(0), "the opener closes the log");
        assert!(!drop_stores(1), "a child does not");
    }
}
