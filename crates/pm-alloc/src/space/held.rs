//! Blocks that are about to be allocated or freed by a commit.
//!
//! [`HeldBlock`] and [`HeldFreeing`] are for a commit of a single block: they keep the arena's lock, so that the arena's map is looked up
//! once and changed once.

use super::arena::Arena;
use super::headers::{HeaderWord, header_word, line_offset};
use super::quarantine::Moment;
use super::reservation::ArenaSlot;
use crate::format::{BlockState, Lsn};
use crate::layout::Layout;
use crate::quiet_lock::QuietGuard;
use core::ops::Range;

/// A block that a transaction is freeing, until `Space::finish_free` or `Space::cancel_free`.
#[derive(Debug)]
#[must_use = "the block is neither allocated nor free before this is finished or cancelled"]
pub(crate) struct Freeing {
    /// `None` for a huge block, which starts in the chunk.
    pub(super) slot: Option<ArenaSlot>,
    pub(super) chunk: u64,
    pub(super) block: Range<u32>,
    /// The block and its free neighbours, which become one free block.
    pub(super) coalesced: Range<u32>,
    header: Option<HeaderWord>,
}

impl Freeing {
    #[inline]
    pub(super) fn new(
        layout: &Layout,
        slot: Option<ArenaSlot>,
        chunk: u64,
        block: Range<u32>,
        coalesced: Range<u32>,
    ) -> Self {
        let header = Some(header_word(layout, chunk, BlockState::Free, coalesced.clone()));
        Self { slot, chunk, block, coalesced, header }
    }

    /// Of a block in an unreachable extent.
    pub(super) const fn unreachable(slot: ArenaSlot, chunk: u64, block: Range<u32>) -> Self {
        Self { slot: Some(slot), chunk, coalesced: block.start..block.end, block, header: None }
    }

    /// The header to store when the transaction commits: the block's own, or that of a free block before it, which covers it then. None
    /// in an unreachable extent, where the block's header may be that of a former block, inside of an allocated one.
    pub(crate) const fn header(&self) -> Option<HeaderWord> {
        self.header
    }
}

/// A free block that is about to be allocated. Dropped before it is [settled](Self::settle), it is free again.
#[derive(Debug)]
#[must_use = "the block is free again when this is dropped"]
pub(crate) struct HeldBlock<'s> {
    pub(super) arena: QuietGuard<'s, Arena>,
    pub(super) slot: u32,
    pub(super) chunk: u64,
    pub(super) block: Range<u32>,
    /// The end of the free block of which this is a part.
    pub(super) end: u32,
    pub(super) is_several: bool,
    pub(super) is_settled: bool,
}

impl HeldBlock<'_> {
    /// The offset of the block's payload.
    #[inline]
    pub(crate) fn payload(&self) -> u64 {
        line_offset(&self.arena.layout, self.chunk, self.block.start)
    }

    /// The block's header.
    #[inline]
    pub(crate) fn header(&self) -> HeaderWord {
        header_word(&self.arena.layout, self.chunk, BlockState::Allocated, self.block.clone())
    }

    /// The header of the rest behind the block, if there is one.
    #[inline]
    pub(crate) fn rest(&self) -> Option<HeaderWord> {
        let rest = self.block.end..self.end;
        (!rest.is_empty()).then(|| header_word(&self.arena.layout, self.chunk, BlockState::Free, rest))
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
            self.arena.release(self.slot, self.block.clone());
        }
    }
}

/// An allocated block that is about to be freed. Dropped before it is [settled](Self::settle), it is allocated as before.
#[derive(Debug)]
#[must_use = "the block is allocated as before when this is dropped"]
pub(crate) struct HeldFreeing<'s> {
    pub(super) arena: QuietGuard<'s, Arena>,
    pub(super) slot: u32,
    pub(super) chunk: u64,
    pub(super) block: Range<u32>,
    /// The block and its free neighbours, which become one free block.
    pub(super) coalesced: Range<u32>,
    pub(super) now: Moment,
    pub(super) is_settled: bool,
}

impl HeldFreeing<'_> {
    /// The header of the free block.
    #[inline]
    pub(crate) fn header(&self) -> HeaderWord {
        header_word(&self.arena.layout, self.chunk, BlockState::Free, self.coalesced.clone())
    }

    /// The header is durable, by a commit with this LSN: the block is quarantined until the checkpoint LSN has reached it.
    #[inline]
    pub(crate) fn settle(mut self, lsn: Lsn) {
        self.is_settled = true;
        self.arena.finish_free(self.slot, self.coalesced.clone(), lsn, self.now);
    }
}

impl Drop for HeldFreeing<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_settled {
            self.arena.cancel_free(self.slot, self.block.clone(), self.coalesced.clone());
        }
    }
}
