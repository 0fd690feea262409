//! Blocks that one commit allocates or frees, with nothing else in it: the arena's lock is held from the choice of the block to the end of
//! the commit, so that the arena's map is looked up once and changed once.

use super::arena::{Arena, IN_PASSING};
use super::clock::Moment;
use super::error::FreeError;
use super::free::Purpose;
use super::heap_space::Space;
use super::pool::Home;
use super::reservation::{Held, Place};
use super::scan::header_word;
use crate::format::{BlockHeader, BlockState, LINE_BYTES, Lsn};
use crate::log::LaneGuard;
use crate::quiet_lock::QuietGuard;
use core::ops::Range;
use pm_core::Pmem;

/// A free block that is about to be allocated. Dropped before it is [settled](Self::settle), it is free again.
#[derive(Debug)]
#[must_use = "the block is free again when this is dropped"]
pub(crate) struct HeldBlock<'s> {
    arena: QuietGuard<'s, Arena>,
    slot: u32,
    chunk: u64,
    block: Range<u32>,
    /// Where the free block ends of which this is a part.
    end: u32,
    is_several: bool,
    is_settled: bool,
}

/// An allocated block that is about to be freed. Dropped before it is [settled](Self::settle), it is allocated as before.
#[derive(Debug)]
#[must_use = "the block is allocated as before when this is dropped"]
pub(crate) struct HeldFreeing<'s> {
    arena: QuietGuard<'s, Arena>,
    slot: u32,
    chunk: u64,
    block: Range<u32>,
    /// The block, and what was free around it, which become one free block.
    around: Range<u32>,
    now: Moment,
    is_settled: bool,
}

impl Space {
    /// Takes a block of `lines` lines out of the calling thread's arena. If it `is_filled`, something is written into the block before its
    /// header is stored. `None` when there is no such block in that arena.
    ///
    /// The lane is the witness of the lock order: no thread waits for a lane with an arena's lock held.
    #[inline]
    pub(crate) fn hold_block<P: Pmem>(
        &self,
        _lane: &LaneGuard<'_>,
        pmem: &P,
        lines: u64,
        checkpoint_lsn: Lsn,
        is_filled: bool,
    ) -> Option<HeldBlock<'_>> {
        if lines >= self.layout.chunk_lines() {
            return None;
        }
        let lines = u32::try_from(lines).ok()?;
        let mut arena = self.arena(self.own_arena());
        arena.advance(checkpoint_lsn, self.clock.now(), IN_PASSING);
        let Held { place, chunk, start, end, is_several, .. } = arena.reserve_block(pmem, lines)?;
        let Place::Arena { slot, .. } = place else { unreachable!("an arena reserves in its own chunks") };
        let block = start..start + lines;
        let held = HeldBlock { arena, slot, chunk, block, end, is_several, is_settled: false };
        // Several free blocks would have to be made one first: what is written into the block overwrites their headers.
        if is_several && is_filled { None } else { Some(held) }
    }

    /// Takes an allocated block to free it. `None` when no arena has the block, or it has no header of its own to be stored.
    ///
    /// The lane is the witness of the lock order, as for [`hold_block`](Self::hold_block).
    ///
    /// # Errors
    /// As [`begin_free`](Self::begin_free).
    #[inline]
    pub(crate) fn hold_freeing<P: Pmem>(
        &self,
        _lane: &LaneGuard<'_>,
        pmem: &P,
        payload: u64,
    ) -> Result<Option<HeldFreeing<'_>>, FreeError> {
        let now = self.clock.now();
        let (chunk, line) = self.locate(payload)?;
        let home = self.home(chunk);
        let Home::Arena { arena, slot } = home else { return Ok(None) };
        let mut arena = self.arena(arena as usize);
        // Behind the cut of a chain there is no header to commit.
        if self.home(chunk) != home || arena.map(slot).severed_from <= line {
            return Ok(None);
        }
        let (block, around) = self.find_in(&mut arena, pmem, slot, line, Purpose::FreeWithAround)?;
        Ok(Some(HeldFreeing { arena, slot, chunk, block, around, now, is_settled: false }))
    }
}

impl HeldBlock<'_> {
    /// Where the block's payload starts.
    #[inline]
    pub(crate) fn payload(&self) -> u64 {
        self.arena.layout.chunk_offset(self.chunk) + u64::from(self.block.start) * LINE_BYTES
    }

    /// Its header: where to store it, and the word.
    #[inline]
    pub(crate) fn header(&self) -> (u64, u64) {
        self.header_of(self.block.start, BlockState::Allocated, self.block.end)
    }

    /// The header of what is left over behind it, if anything is.
    #[inline]
    pub(crate) fn rest(&self) -> Option<(u64, u64)> {
        (self.block.end < self.end).then(|| self.header_of(self.block.end, BlockState::Free, self.end))
    }

    #[inline]
    fn header_of(&self, start: u32, state: BlockState, end: u32) -> (u64, u64) {
        header_word(&self.arena.layout, self.chunk, start, BlockHeader::new(state, end - start))
    }

    /// The headers are durable: the block is allocated.
    #[inline]
    pub(crate) fn settle(mut self) {
        self.is_settled = true;
        self.arena.settle_block(self.slot, self.block.clone(), self.end, self.is_several);
    }
}

impl Drop for HeldBlock<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_settled {
            self.arena.return_block(self.slot, self.block.clone());
        }
    }
}

impl HeldFreeing<'_> {
    /// The header of the free block: where to store it, and the word.
    #[inline]
    pub(crate) fn header(&self) -> (u64, u64) {
        let Range { start, end } = self.around;
        header_word(&self.arena.layout, self.chunk, start, BlockHeader::new(BlockState::Free, end - start))
    }

    /// The header is durable, by a commit with this LSN: the block is free once the checkpoint LSN has reached it.
    #[inline]
    pub(crate) fn settle(mut self, lsn: Lsn) {
        self.is_settled = true;
        self.arena.finish_free(self.slot, self.around.clone(), lsn, self.now);
    }
}

impl Drop for HeldFreeing<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_settled {
            self.arena.cancel_free(self.slot, self.block.clone(), self.around.clone());
        }
    }
}
