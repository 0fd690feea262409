//! A heap's space, held still for as long as it takes to copy what is live in it.

use super::arena::Arena;
use super::chunk::ChunkMap;
use super::heap_space::Space;
use super::pool::{Home, Pool};
use super::scan::{chunk_lines, end_of, flush_headers, header_offset, header_word, scan};
use crate::format::{BLOCK_HEADER_BYTES, BlockHeader, BlockState, LINE_BYTES};
use crate::quiet_lock::{QuietGuard, QuietLock};
use crate::sync::{self, IntactGuard};
use core::ops::Range;
use pm_core::{FenceError, Pmem};
use std::collections::BTreeMap;

/// A part of a copy of a heap.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Piece {
    /// These bytes are as they are in the heap.
    Bytes(Range<u64>),
    /// At this offset is this word.
    Word(u64, u64),
}

/// How the chain of a chunk ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// With the header that is there in every chunk.
    Intact,
    /// It is cut before.
    Severed,
}

/// All locks of a space. No block is allocated, freed, or made longer before this is dropped.
#[derive(Debug)]
pub(crate) struct Frozen<'s> {
    space: &'s Space,
    pool: IntactGuard<'s, Pool>,
    arenas: Vec<QuietGuard<'s, Arena>>,
    /// Chunks that no arena has, and that are not one free block.
    others: BTreeMap<u64, ChunkMap>,
}

impl Space {
    /// Takes all locks: the pool's, then those of the arenas. That is the one place that has several of the latter; it has the
    /// pool's meanwhile, so there is no second such thread.
    ///
    /// If the log `is_sound`, what is learned is made durable. After a failed fence nothing is stored.
    pub(crate) fn freeze<P: Pmem>(&self, pmem: &P, is_sound: bool) -> Frozen<'_> {
        let mut pool = self.pool.lock();
        while self.learn_next(&mut pool, pmem) {}
        self.freeze_known(pool, pmem, is_sound)
    }

    /// As [`freeze`](Self::freeze), of the chunks that are known: they are all in which this process has changed something.
    fn freeze_known<'s, P: Pmem>(
        &'s self,
        mut pool: IntactGuard<'s, Pool>,
        pmem: &P,
        is_sound: bool,
    ) -> Frozen<'s> {
        if is_sound {
            // A fence waits only for what its own thread has flushed, so an allocating thread could not do this later. A copy needs
            // only what is visible. A fence that fails is kept in the pool, and the next allocation returns its error.
            self.fence_learned(&mut pool, pmem).unwrap_or_default();
        }
        let arenas = (0..self.arenas.len()).map(|arena| self.arena(arena)).collect();
        // What is corrupted there is told of when an arena gets the chunk.
        let count = self.chunk_count();
        let map = |(&chunk, &start)| (chunk, scan(pmem, &self.layout, count, chunk, start, &mut Vec::new()));
        let others = pool.unscanned.iter().map(map).collect();
        Frozen { space: self, pool, arenas, others }
    }

    /// Makes all headers durable that this process has stored without flushing them: a chain that reverts would lose what is
    /// durable behind it.
    ///
    /// # Errors
    /// When the fence fails, or one failed before.
    ///
    /// # Durability
    /// One fence, and a line for each header of the chunks that were looked at; nothing if none was.
    pub(crate) fn persist_headers<P: Pmem>(&self, pmem: &P) -> Result<(), FenceError> {
        let pool = self.pool.lock();
        let known = pool.unknown.next;
        if known == 0 {
            return Ok(());
        }
        let mut frozen = self.freeze_known(pool, pmem, true);
        sync::before_flushing_others_stores();
        for chunk in 0..known {
            pmem.flush(header_offset(&self.layout, chunk, 1), BLOCK_HEADER_BYTES);
        }
        let maps = frozen.arenas.iter().flat_map(|arena| arena.slots.iter().flatten()).map(|map| &**map);
        maps.chain(frozen.others.values()).for_each(|map| flush_headers(pmem, &self.layout, map));
        frozen.pool.fence(pmem)
    }

    /// Whether no lock is held or was broken by a panic. A guard may have been forgotten.
    pub(crate) fn is_intact(&mut self) -> bool {
        self.pool.is_intact() && self.arenas.iter().all(QuietLock::is_intact)
    }
}

impl Drop for Frozen<'_> {
    /// Nothing is half changed, though this thread may be panicking.
    fn drop(&mut self) {
        self.arenas.iter_mut().for_each(QuietGuard::keep_intact);
        self.pool.keep_intact();
    }
}

impl Frozen<'_> {
    /// Names the parts of the chunks of a copy in which the same blocks are allocated, by offset. A block whose header is corrupted is lost
    /// in the copy, with its contents; from where a chain is cut, all of the chunk is copied as it is. Everything else is free. Nothing
    /// else of the chunks means anything.
    pub(crate) fn live_pieces(&self, mut visit: impl FnMut(Piece)) {
        let (mut chunk, mut first) = (0, 1);
        while chunk < self.space.chunk_count() {
            let huge = self.pool.huge.get(&chunk).filter(|block| block.is_live || block.is_lost);
            if let Some(block) = huge.filter(|_| first == 1) {
                let start = header_offset(&self.space.layout, chunk, 1);
                let end = start + u64::from(block.lines) * LINE_BYTES;
                if block.is_lost {
                    visit(self.header(chunk, 1, BlockState::Lost, block.lines));
                    visit(Piece::Bytes(start + BLOCK_HEADER_BYTES..end));
                } else {
                    visit(Piece::Bytes(start..end));
                }
                (chunk, first) = end_of(&self.space.layout, chunk, block.lines);
                if first < chunk_lines(&self.space.layout) {
                    continue;
                }
            } else {
                let map = match self.space.home(chunk) {
                    Home::Arena { arena, slot } => {
                        let arena = &self.arenas[arena as usize];
                        arena.slots.get(slot as usize).and_then(Option::as_ref).map(|map| &**map)
                    }
                    Home::Pool | Home::Covered | Home::Huge => self.others.get(&chunk),
                };
                if self.chunk_pieces(chunk, first, map, &mut visit) == End::Severed {
                    (chunk, first) = (chunk + 1, 1);
                    continue;
                }
            }
            let end = chunk_lines(&self.space.layout);
            visit(self.header(chunk, end, BlockState::End, 0));
            (chunk, first) = (chunk + 1, 1);
        }
    }

    /// Those of one chunk, from a line on, but for the header that ends it; with that one where the chain is cut.
    fn chunk_pieces(
        &self,
        chunk: u64,
        first: u32,
        map: Option<&ChunkMap>,
        visit: &mut impl FnMut(Piece),
    ) -> End {
        let (layout, end) = (&self.space.layout, chunk_lines(&self.space.layout));
        let mut line = first;
        while line < end {
            let kept = map.map_or(end, |map| map.next_kept(line));
            if kept > line {
                visit(self.header(chunk, line, BlockState::Free, kept - line));
            }
            let Some(map) = map.filter(|_| kept < end) else { break };
            let header = header_offset(layout, chunk, kept);
            if kept >= map.severed_from {
                // Which of these lines are in use is not known, so all are kept, and the header that cuts the chain with them.
                // Inside of the extent of another chunk, a block may lie over the line of the first header.
                let start = if map.severed_from == 0 { layout.chunk_offset(chunk) } else { header };
                visit(Piece::Bytes(start..header_offset(layout, chunk, end) + BLOCK_HEADER_BYTES));
                return End::Severed;
            }
            if let Some(lost) = map.lost.iter().find(|lost| lost.start == kept) {
                visit(self.header(chunk, kept, BlockState::Lost, lost.end - kept));
                visit(Piece::Bytes(header + BLOCK_HEADER_BYTES..header_offset(layout, chunk, lost.end)));
                line = lost.end;
                continue;
            }
            line = map.next_start(kept);
            while line < map.severed_from && map.live.get(line) && map.lost_at(line).is_none() {
                line = map.next_start(line);
            }
            // From the header of the first one to where that of the next one begins.
            visit(Piece::Bytes(header..header_offset(layout, chunk, line)));
        }
        End::Intact
    }

    fn header(&self, chunk: u64, line: u32, state: BlockState, lines: u32) -> Piece {
        let (offset, word) = header_word(&self.space.layout, chunk, line, BlockHeader::new(state, lines));
        debug_assert!(offset.is_multiple_of(BLOCK_HEADER_BYTES), "headers are words");
        Piece::Word(offset, word)
    }
}
