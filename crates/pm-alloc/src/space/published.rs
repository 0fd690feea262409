//! Allocating and freeing where one commit is all that happens: the arena's lock is held over it, so that its map is looked up once
//! and changed once.

use super::arena::IN_PASSING;
use super::error::FreeError;
use super::free::Purpose;
use super::heap_space::Space;
use super::pool::Home;
use super::reservation::{Held, Place};
use super::scan::header_word;
use crate::format::{BlockHeader, BlockState, LINE_BYTES, Stamp};
use pm_core::Pmem;

/// A block that is about to be allocated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) payload: u64,
    /// Its header: where to store it, and the word.
    pub(crate) header: (u64, u64),
    /// The header of what is left over behind it, if anything is.
    pub(crate) rest: Option<(u64, u64)>,
}

impl Space {
    /// Allocates a block of `lines` lines of the calling thread's arena. `commit` makes its headers durable, and whatever publishes
    /// it, all at once, and says with which stamp. If it `is_filled`, something is written into the block before. `None`, and nothing
    /// done, when there is no room in that arena.
    ///
    /// Whoever calls this has a lane already: no thread waits for a lane with an arena's lock held.
    ///
    /// # Errors
    /// That of `commit`. Nothing is allocated then.
    #[inline]
    pub(crate) fn allocate_published<P: Pmem, E>(
        &self,
        pmem: &P,
        lines: u64,
        horizon: Stamp,
        is_filled: bool,
        commit: impl FnOnce(Found) -> Result<Stamp, E>,
    ) -> Option<Result<u64, E>> {
        if lines >= self.layout.chunk_lines() {
            return None;
        }
        let lines = u32::try_from(lines).ok()?;
        let mut arena = self.arena(self.own_arena());
        arena.advance(horizon, self.clock.now(), IN_PASSING);
        let Held { place, chunk, start, end, is_several, .. } = arena.reserve_block(pmem, lines)?;
        let Place::Arena { slot, .. } = place else { unreachable!("an arena reserves in its own chunks") };
        let block = start..start + lines;
        if is_several && is_filled {
            // It would have to be made one first: what is written into it overwrites former headers.
            arena.return_block(slot, block);
            return None;
        }
        let header =
            |line, state, lines| header_word(&self.layout, chunk, line, BlockHeader::new(state, lines));
        let own = header(start, BlockState::Allocated, lines);
        let rest = (block.end < end).then(|| header(block.end, BlockState::Free, end - block.end));
        let payload = self.layout.chunk_offset(chunk) + u64::from(start) * LINE_BYTES;
        match commit(Found { payload, header: own, rest }) {
            Ok(_) => arena.settle_block(slot, block, end, is_several),
            Err(error) => {
                arena.return_block(slot, block);
                return Some(Err(error));
            }
        }
        Some(Ok(payload))
    }

    /// Frees a block. `commit` makes its header durable, which it is given, and whatever else, and says with which stamp. `None`,
    /// and nothing done, when no arena has the block.
    ///
    /// # Errors
    /// As [`begin_free`](Self::begin_free), and that of `commit`. The block is allocated as before then.
    #[inline]
    pub(crate) fn free_published<P: Pmem, E: From<FreeError>>(
        &self,
        pmem: &P,
        payload: u64,
        commit: impl FnOnce((u64, u64)) -> Result<Stamp, E>,
    ) -> Option<Result<(), E>> {
        let now = self.clock.now();
        let (chunk, line) = match self.locate(payload) {
            Ok(found) => found,
            Err(error) => return Some(Err(error.into())),
        };
        let home = self.home(chunk);
        let Home::Arena { arena, slot } = home else { return None };
        let mut arena = self.arena(arena as usize);
        // Behind the cut of a chain there is no header to commit.
        if self.home(chunk) != home || arena.map(slot).severed_from <= line {
            return None;
        }
        let found = self.find_in(&mut arena, pmem, slot, line, Purpose::FreeWithAround);
        let (block, around) = match found {
            Ok(found) => found,
            Err(error) => return Some(Err(error.into())),
        };
        let free = BlockHeader::new(BlockState::Free, around.end - around.start);
        let committed = commit(header_word(&self.layout, chunk, around.start, free));
        match &committed {
            Ok(stamp) => arena.finish_free(slot, around, *stamp, now),
            Err(_) => arena.cancel_free(slot, block, around),
        }
        Some(committed.map(drop::<Stamp>))
    }
}
