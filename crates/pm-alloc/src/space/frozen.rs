//! A frozen space: no block is allocated, freed or resized while the allocated blocks are copied.

use super::arena::Arena;
use super::chunk_map::ChunkMap;
use super::chunk_table::{ChunkOwner, ChunkTable, LockedChunks};
use super::headers::{chunk_lines, end_of, header_offset, header_word};
use crate::format::{BLOCK_HEADER_BYTES, BlockState, LINE_BYTES};
use crate::locks::SpinGuard;
use crate::sync;
use core::ops::Range;
use pm_core::{FenceError, Pmem};
use std::collections::BTreeMap;

/// A part of a copy of a heap.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Piece {
    /// The copy has the heap's bytes in this range of offsets.
    Bytes(Range<u64>),
    /// The copy has `word` at `offset`.
    Word {
        /// The offset of the word.
        offset: u64,
        /// The word.
        word: u64,
    },
}

/// How the chain of a chunk ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChainEnd {
    /// The chain ends with the header at the chunk's end.
    Intact,
    /// The chain is broken: the rest of the chunk is an unreachable extent.
    Unreachable,
}

/// All locks of a space. Until this is dropped, no block is allocated, freed or resized.
#[derive(Debug)]
pub(crate) struct Frozen<'s> {
    chunks: LockedChunks<'s>,
    arenas: Vec<SpinGuard<'s, Arena>>,
    /// The maps of unscanned chunks.
    unscanned: BTreeMap<u64, ChunkMap>,
}

impl<'s> Frozen<'s> {
    /// Acquires all locks: the lock of the shared chunks, then those of the arenas. No other code holds the locks of several arenas, and this code
    /// holds the lock of the shared chunks while it acquires them, so no deadlock is possible.
    ///
    /// If `is_log_healthy`, that is, if the log is not poisoned, the headers that are read are made durable. Otherwise nothing is flushed.
    pub(super) fn new<P: Pmem>(table: &'s ChunkTable, pmem: &P, is_log_healthy: bool) -> Self {
        let mut chunks = table.lock();
        while chunks.read_next_first_header(pmem) {}
        Self::without_reading(chunks, pmem, is_log_healthy)
    }

    /// Does the work of [`Space::persist_headers`](super::Space::persist_headers).
    ///
    /// # Errors
    /// When the fence fails, or an earlier fence has failed.
    pub(super) fn persist_headers<P: Pmem>(table: &'s ChunkTable, pmem: &P) -> Result<(), FenceError> {
        let chunks = table.lock();
        let known = chunks.shared.cursor.next;
        if known == 0 {
            return Ok(());
        }
        // This process has changed blocks only in the chunks whose first headers it has read.
        let mut frozen = Self::without_reading(chunks, pmem, true);
        sync::order_observed_stores_before_flushes();
        for chunk in 0..known {
            pmem.flush(header_offset(&table.layout, chunk, 1), BLOCK_HEADER_BYTES);
        }
        let maps = frozen.arenas.iter().flat_map(|arena| arena.slots.iter().flatten()).map(|map| &**map);
        maps.chain(frozen.unscanned.values()).for_each(|map| map.flush_headers(pmem, &table.layout));
        frozen.chunks.shared.fence(pmem)
    }

    /// Freezes the space without reading further first headers: the chunks after the cursor stay unread.
    fn without_reading<P: Pmem>(mut chunks: LockedChunks<'s>, pmem: &P, is_log_healthy: bool) -> Self {
        if is_log_healthy {
            // This thread makes durable the headers that it has read: a fence waits only for the flushes of its own thread, and another thread may
            // allocate next. If the fence fails, the next allocation returns its error. A copy needs only visible contents.
            chunks.persist_first_headers(pmem).unwrap_or_default();
        }
        let table = chunks.table;
        let arenas = (0..table.arenas.len()).map(|arena| table.arena(arena)).collect();
        // Corrupted headers in an unscanned chunk are reported when the chunk is assigned to an arena.
        let scan = |(&chunk, &start)| (chunk, ChunkMap::scan(table.scanner(pmem), chunk, start).0);
        let unscanned = chunks.shared.unscanned.iter().map(scan).collect();
        Self { chunks, arenas, unscanned }
    }
}

impl Drop for Frozen<'_> {
    /// Nothing was changed, so a panic of this thread does not poison the locks.
    fn drop(&mut self) {
        self.arenas.iter_mut().for_each(SpinGuard::ignore_panics);
        self.chunks.shared.ignore_panics();
    }
}

impl Frozen<'_> {
    /// Passes to `visit` the pieces that make up the chunks of a copy of the heap with the same allocated blocks. A block whose header is corrupted
    /// is copied with its contents, and is lost in the copy. An unreachable extent is copied unchanged. All other lines are free in the copy, and the
    /// contents of free blocks are not read.
    pub(crate) fn live_pieces(&self, mut visit: impl FnMut(Piece)) {
        let (table, layout) = (self.chunks.table, &self.chunks.table.layout);
        let (mut chunk, mut first) = (0, 1);
        while chunk < table.chunk_count() {
            let huge = self.chunks.shared.huge.get(&chunk).filter(|block| block.is_live || block.is_lost);
            if let Some(block) = huge.filter(|_| first == 1) {
                let start = header_offset(layout, chunk, 1);
                let end = start + u64::from(block.lines) * LINE_BYTES;
                if block.is_lost {
                    visit(self.header(chunk, BlockState::Lost, 1..1 + block.lines));
                    visit(Piece::Bytes(start + BLOCK_HEADER_BYTES..end));
                } else {
                    visit(Piece::Bytes(start..end));
                }
                (chunk, first) = end_of(layout, chunk, block.lines);
                if first < chunk_lines(layout) {
                    continue;
                }
            } else {
                let map = match table.owner(chunk) {
                    ChunkOwner::Arena(at) => {
                        let arena = &self.arenas[at.arena as usize];
                        arena.slots.get(at.slot as usize).and_then(Option::as_ref).map(|map| &**map)
                    }
                    ChunkOwner::Shared | ChunkOwner::Covered | ChunkOwner::Huge => self.unscanned.get(&chunk),
                };
                if self.visit_chunk(chunk, first, map, &mut visit) == ChainEnd::Unreachable {
                    (chunk, first) = (chunk + 1, 1);
                    continue;
                }
            }
            let end = chunk_lines(layout);
            visit(self.header(chunk, BlockState::End, end..end));
            (chunk, first) = (chunk + 1, 1);
        }
    }

    /// Passes to `visit` the pieces of one chunk from line `first` on, and returns how its chain ends. If the chain is intact, the caller adds the
    /// chunk's end header; an unreachable extent includes it.
    fn visit_chunk(
        &self,
        chunk: u64,
        first: u32,
        map: Option<&ChunkMap>,
        visit: &mut impl FnMut(Piece),
    ) -> ChainEnd {
        let layout = &self.chunks.table.layout;
        let end = chunk_lines(layout);
        let mut line = first;
        while line < end {
            let kept = map.map_or(end, |map| map.next_copied(line));
            if kept > line {
                visit(self.header(chunk, BlockState::Free, line..kept));
            }
            let Some(map) = map.filter(|_| kept < end) else { break };
            let header = header_offset(layout, chunk, kept);
            if kept >= map.unreachable_from {
                // It is unknown which of these lines are in use, so all are copied, with the header before them. If the whole chunk is unreachable,
                // its first line is also copied, because a block may cover it.
                let start = if map.unreachable_from == 0 { layout.chunk_offset(chunk) } else { header };
                visit(Piece::Bytes(start..header_offset(layout, chunk, end) + BLOCK_HEADER_BYTES));
                return ChainEnd::Unreachable;
            }
            if let Some(lost) = map.lost.iter().find(|lost| lost.start == kept) {
                visit(self.header(chunk, BlockState::Lost, kept..lost.end));
                visit(Piece::Bytes(header + BLOCK_HEADER_BYTES..header_offset(layout, chunk, lost.end)));
                line = lost.end;
                continue;
            }
            line = map.next_start(kept);
            while line < map.unreachable_from && map.live.get(line) && map.lost_at(line).is_none() {
                line = map.next_start(line);
            }
            // From the header of the first block to the start of the next header.
            visit(Piece::Bytes(header..header_offset(layout, chunk, line)));
        }
        ChainEnd::Intact
    }

    fn header(&self, chunk: u64, state: BlockState, lines: Range<u32>) -> Piece {
        let (offset, word) = header_word(&self.chunks.table.layout, chunk, state, lines);
        debug_assert!(offset.is_multiple_of(BLOCK_HEADER_BYTES), "headers are words");
        Piece::Word { offset, word }
    }
}
