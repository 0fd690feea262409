//! Allocating and freeing where one commit is all that happens: the arena's lock is held over it, so that its map is looked up once
//! and changed once.

use super::arena::{IN_PASSING, Request};
use super::error::FreeError;
use super::free::Purpose;
use super::heap_space::Space;
use super::pool::Home;
use super::scan::header_word;
use crate::format::{BlockHeader, BlockState, Stamp};
use pm_core::Pmem;

/// A block that is about to be allocated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) payload: u64,
    /// The words to store, all at once, and where: its header, and that of what is left over behind it.
    pub(crate) headers: [(u64, u64); 2],
    /// How many of them there are.
    pub(crate) count: usize,
}

impl Space {
    /// Allocates a block of `lines` lines of the calling thread's arena. `commit` makes its headers durable, and whatever publishes
    /// it, and says with which stamp. `None`, and nothing done, when there is no room in that arena that is one free block.
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
        commit: impl FnOnce(&Found) -> Result<Stamp, E>,
    ) -> Option<Result<u64, E>> {
        if lines >= self.layout.chunk_lines() {
            return None;
        }
        let lines = u32::try_from(lines).ok()?;
        let now = self.clock.now();
        let mut arena = self.arena(self.own_arena());
        arena.advance(horizon, now, IN_PASSING);
        let request = Request { lines, align_bytes: 1, roomy: lines, whole_up_to: 0 };
        let mut reservation = arena.reserve(pmem, request, true)?;
        let slot = reservation.slot().expect("what an arena reserves is its own");
        if reservation.is_several() {
            arena.return_unused(slot, &reservation, now);
            return None;
        }
        let payload = reservation.carve(u64::from(lines), 1).expect("that is what it was reserved for");
        let mut found = Found { payload, headers: [(0, 0); 2], count: 0 };
        for header in reservation.headers() {
            found.headers[found.count] = header;
            found.count += 1;
        }
        let committed = commit(&found);
        match &committed {
            Ok(stamp) => arena.settle(slot, &reservation, *stamp, now),
            Err(_) => arena.return_unused(slot, &reservation, now),
        }
        Some(committed.map(|_| payload))
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
        if self.home(chunk) != home {
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
