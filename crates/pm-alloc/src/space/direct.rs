//! Allocating and freeing with no log, for a plain `malloc` over the heap.

use super::error::{FreeError, SpaceError};
use super::heap_space::Space;
use super::scan::{chunk_lines, read};
use crate::format::{BLOCK_HEADER_BYTES, BlockState, Stamp};
use crate::layout::Layout;
use pm_core::Pmem;

impl Space {
    /// Allocates a block, and says where its payload starts. Before anything is stored, `ensure` is asked whether so many bytes from
    /// an offset on can be stored to. If not, another free extent is tried; `None` if there is none, and nothing is allocated then.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve), and when a fence fails. Nothing is stored after that, the extent stays reserved, and whether
    /// the block is allocated the next opening knows.
    ///
    /// # Durability
    /// Whoever reads the memory after this process was killed inside of it finds a whole chain, with the block or without: the
    /// header behind the block is stored before the one that leads to it. If `durable`, the same holds after a crash of the
    /// machine, for each is made durable before the next is stored, at a fence each, and one for a block longer than a chunk; the
    /// last makes the block durable.
    pub(crate) fn allocate_direct_if<P: Pmem>(
        &self,
        pmem: &P,
        lines: u64,
        align_bytes: u64,
        durable: bool,
        ensure: impl Fn(u64, u64) -> bool,
    ) -> Result<Option<u64>, SpaceError> {
        // Kept until one is found, so that each is tried once.
        let mut refused = Vec::new();
        let found = loop {
            match self.reserve(pmem, lines, align_bytes, Stamp::MAX) {
                Ok(reservation) => {
                    let lines = reservation.rather_all_than(lines, align_bytes);
                    let (from, to) = reservation.stored_to(lines, align_bytes);
                    if ensure(from, to - from) {
                        break Ok(Some((reservation, lines)));
                    }
                    refused.push(reservation);
                }
                Err(SpaceError::Full { .. }) if !refused.is_empty() => break Ok(None),
                Err(error) => break Err(error),
            }
        };
        refused.into_iter().for_each(|reservation| self.return_unused(reservation));
        let Some((mut reservation, lines)) = found? else { return Ok(None) };
        let store = |(offset, word)| {
            pmem.store_u64(offset, word);
            if durable { pmem.persist(offset, BLOCK_HEADER_BYTES) } else { Ok(()) }
        };
        reservation.prepare_direct(pmem, |offset, word| store((offset, word)).map(|()| Stamp::ZERO))?;
        if durable && reservation.is_over_chunks() {
            pmem.fence()?;
        }
        let payload = reservation.carve(lines, align_bytes).expect("there is room for what was reserved");
        reservation.headers().try_for_each(store)?;
        self.settle(reservation, Stamp::ZERO);
        Ok(Some(payload))
    }

    /// As [`allocate_direct_if`](Self::allocate_direct_if), where everything can be stored to.
    #[cfg(test)]
    pub(crate) fn allocate_direct<P: Pmem>(
        &self,
        pmem: &P,
        lines: u64,
        align_bytes: u64,
        durable: bool,
    ) -> Result<u64, SpaceError> {
        let block = self.allocate_direct_if(pmem, lines, align_bytes, durable, |_, _| true)?;
        Ok(block.expect("nothing is refused"))
    }

    /// Frees a block that was allocated, this way or another.
    ///
    /// # Errors
    /// As [`begin_free`](Self::begin_free).
    ///
    /// # Durability
    /// One word is stored, and flushed if so wished: durable with the caller's next fence. Behind the cut of a chain nothing is.
    pub(crate) fn free_direct<P: Pmem>(&self, pmem: &P, payload: u64, flush: bool) -> Result<(), FreeError> {
        // Each block keeps its header: the more of them lie in a free extent, the more lengths can be had from it whole.
        let freeing = self.begin_free_alone(pmem, payload)?;
        if let Some((offset, word)) = freeing.header() {
            pmem.store_u64(offset, word);
            if flush {
                pmem.flush(offset, BLOCK_HEADER_BYTES);
            }
        }
        self.finish_free(freeing, Stamp::ZERO);
        Ok(())
    }

    /// How many bytes of payload the block has that starts at `payload`, by its header and nothing else. Takes no lock.
    ///
    /// # Errors
    /// As [`usable_bytes`](Self::usable_bytes).
    pub(crate) fn usable_by_header<P: Pmem>(&self, pmem: &P, payload: u64) -> Result<u64, FreeError> {
        let (chunk, line) = self.locate(payload)?;
        let header = read(pmem, &self.layout, chunk, line).1;
        let header_offset = Layout::header_of(payload);
        let header = header.ok_or(FreeError::Damaged { offset: payload, header_offset })?;
        let in_chunk = chunk_lines(&self.layout);
        let fits = line == 1 || u64::from(line) + u64::from(header.lines) <= u64::from(in_chunk);
        match header.state {
            BlockState::Allocated if fits => Ok(Layout::usable_bytes(header.lines)),
            BlockState::Free => Err(FreeError::AlreadyFree { offset: payload }),
            BlockState::Allocated | BlockState::Lost | BlockState::End | BlockState::Severed => {
                Err(FreeError::Damaged { offset: payload, header_offset })
            }
        }
    }
}
