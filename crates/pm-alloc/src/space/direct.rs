//! Allocating and freeing with no log, for a plain `malloc` over the heap.

use super::error::{FreeError, SpaceError};
use super::heap_space::Space;
use crate::format::{BLOCK_HEADER_BYTES, Stamp};
use core::convert::Infallible;
use pm_core::Pmem;

impl Space {
    /// Allocates a block, and says where its payload starts.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    ///
    /// # Durability
    /// None. But whoever reads the memory after this process was killed inside of it finds a whole chain, with the
    /// block or without: the headers behind the block are stored before the one that leads to them. With `flush`, they
    /// are also flushed in this order, which orders nothing.
    pub(crate) fn allocate_direct<P: Pmem>(
        &self,
        pmem: &P,
        lines: u64,
        align_bytes: u64,
        flush: bool,
    ) -> Result<u64, SpaceError> {
        let mut reservation = self.reserve(pmem, lines, align_bytes, Stamp::MAX)?;
        let joined: Result<(), Infallible> = reservation.prepare(pmem, |offset, word| {
            store(pmem, offset, word, flush);
            Ok(Stamp::ZERO)
        });
        let Ok(()) = joined;
        let payload = reservation.carve(lines, align_bytes).expect("there is room for what was reserved");
        for (offset, word) in reservation.headers() {
            store(pmem, offset, word, flush);
        }
        self.settle(reservation, Stamp::ZERO);
        Ok(payload)
    }

    /// Frees a block that was allocated, this way or another.
    ///
    /// # Errors
    /// As [`begin_free`](Self::begin_free).
    ///
    /// # Durability
    /// None; one word is stored, and flushed if so wished.
    pub(crate) fn free_direct<P: Pmem>(&self, pmem: &P, payload: u64, flush: bool) -> Result<(), FreeError> {
        let freeing = self.begin_free(pmem, payload)?;
        let (offset, word) = freeing.header();
        store(pmem, offset, word, flush);
        self.finish_free(freeing, Stamp::ZERO);
        Ok(())
    }
}

fn store<P: Pmem>(pmem: &P, offset: u64, word: u64, flush: bool) {
    pmem.store_u64(offset, word);
    if flush {
        pmem.flush(offset, BLOCK_HEADER_BYTES);
    }
}
