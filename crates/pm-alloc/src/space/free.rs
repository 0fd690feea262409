//! Freeing: what is a block, and what becomes of it.

use super::arena::Arena;
use super::chunk::ChunkMap;
use super::corruption::CorruptionKind;
use super::error::FreeError;
use super::heap_space::Space;
use super::pool::{Home, Pool};
use super::reservation::{Freeing, Place};
use super::scan::{block_end, corruption, header_offset, read};
use crate::format::{BlockHeader, BlockState, LINE_BYTES, Lsn};
use crate::layout::Layout;
use core::ops::Range;
use pm_core::Pmem;

impl Space {
    /// Begins to free the block whose payload starts at `payload`, after a look at its header. Until this is finished
    /// or cancelled it is in nobody's hands, and freeing it again is an error.
    ///
    /// # Errors
    /// When it is no block, or none that is allocated; see [`FreeError`].
    pub(crate) fn begin_free<P: Pmem>(&self, pmem: &P, payload: u64) -> Result<Freeing, FreeError> {
        self.begin_free_with(pmem, payload, Purpose::FreeWithAround)
    }

    /// As [`begin_free`](Self::begin_free), of the block alone: what is free next to it stays as it is.
    ///
    /// # Errors
    /// As [`begin_free`](Self::begin_free).
    pub(super) fn begin_free_alone<P: Pmem>(&self, pmem: &P, payload: u64) -> Result<Freeing, FreeError> {
        self.begin_free_with(pmem, payload, Purpose::Free)
    }

    fn begin_free_with<P: Pmem>(
        &self,
        pmem: &P,
        payload: u64,
        purpose: Purpose,
    ) -> Result<Freeing, FreeError> {
        let Found { place, chunk, block, around, is_severed } = self.find(pmem, payload, purpose)?;
        Ok(match is_severed {
            true => Freeing::severed(place, chunk, block),
            false => Freeing::new(&self.layout, place, chunk, block, around),
        })
    }

    /// The transaction was given up: the block is allocated as before.
    pub(crate) fn cancel_free(&self, freeing: Freeing) {
        match freeing.place {
            Place::Arena { arena, slot } => {
                self.arena(arena as usize).cancel_free(slot, freeing.block, freeing.around);
            }
            Place::Huge => {
                if let Some(block) = self.pool.lock().huge.get_mut(&freeing.chunk) {
                    block.is_live = true;
                }
            }
        }
    }

    /// The transaction committed with this LSN, and the header is stored in place: the block is handed out again when
    /// the checkpoint LSN has reached the LSN, and its time is over.
    pub(crate) fn finish_free(&self, freeing: Freeing, lsn: Lsn) {
        let now = self.clock.now();
        match freeing.place {
            Place::Arena { arena, slot } => {
                self.arena(arena as usize).finish_free(slot, freeing.around, lsn, now);
            }
            Place::Huge => {
                let lines = freeing.block.end - freeing.block.start;
                self.wait_huge(&mut self.pool.lock(), freeing.chunk, lines, lsn);
            }
        }
    }

    /// How many bytes of payload the block has that starts at `payload`.
    ///
    /// # Errors
    /// When it is no block, or none that is allocated; see [`FreeError`].
    pub(crate) fn usable_bytes<P: Pmem>(&self, pmem: &P, payload: u64) -> Result<u64, FreeError> {
        let block = self.find(pmem, payload, Purpose::Look)?.block;
        Ok(Layout::usable_bytes(block.end - block.start))
    }

    /// The allocated block that starts at `offset`, which is not live any more if it is to be freed.
    fn find<P: Pmem>(&self, pmem: &P, offset: u64, purpose: Purpose) -> Result<Found, FreeError> {
        let (chunk, line) = self.locate(offset)?;
        let chunk_offset = self.layout.chunk_offset(chunk);
        loop {
            let home = self.home(chunk);
            match home {
                Home::Arena { arena, slot } => {
                    let mut guard = self.arena(arena as usize);
                    if self.home(chunk) == home {
                        let (block, around) = self.find_in(&mut guard, pmem, slot, line, purpose)?;
                        let is_severed = guard.map(slot).severed_from <= line;
                        return Ok(Found {
                            place: Place::Arena { arena, slot },
                            chunk,
                            block,
                            around,
                            is_severed,
                        });
                    }
                }
                Home::Huge if chunk_offset + LINE_BYTES == offset => {
                    let mut pool = self.pool.lock();
                    if self.home(chunk) == home {
                        let to_free = purpose != Purpose::Look;
                        let lines = find_huge(&mut pool, pmem, &self.layout, chunk, to_free);
                        let lines = lines.map_err(|no| no.about(offset, &self.layout, chunk))?;
                        let block = line..line + lines;
                        let around = block.clone();
                        return Ok(Found { place: Place::Huge, chunk, around, block, is_severed: false });
                    }
                }
                Home::Huge | Home::Covered => return Err(FreeError::NotABlock { offset }),
                Home::Pool => {
                    let mut pool = self.pool.lock();
                    self.learn_through(&mut pool, pmem, chunk)?;
                    if pool.fresh.contains(&chunk) {
                        return Err(FreeError::AlreadyFree { offset });
                    }
                    // It is not there if a block longer than a chunk turned out to lie over it.
                    self.adopt_unscanned(&mut pool, self.own_arena(), pmem, chunk)?;
                }
            }
        }
    }

    /// The allocated block that starts at a line of the chunk in this slot of an arena, and the lines around it that are to become
    /// one free block with it.
    #[inline]
    pub(super) fn find_in<P: Pmem>(
        &self,
        arena: &mut Arena,
        pmem: &P,
        slot: u32,
        line: u32,
        purpose: Purpose,
    ) -> Result<(Range<u32>, Range<u32>), FreeError> {
        // Where blocks wait for long, what is free next to them should not.
        let is_merged = purpose == Purpose::FreeWithAround && !self.clock.is_used();
        let sides = if is_merged { arena.sides(pmem, slot, line) } else { [line..line, line..line] };
        let found = arena.find(pmem, slot, line, purpose != Purpose::Look);
        let lines = found.map_err(|no| {
            let chunk = arena.map(slot).chunk;
            no.about(self.layout.chunk_offset(chunk) + u64::from(line) * LINE_BYTES, &self.layout, chunk)
        })?;
        let block = line..line + lines;
        let around = arena.hold_around(pmem, slot, block.clone(), sides);
        Ok((block, around))
    }

    /// How many lines the block has, longer than a chunk, that starts in this one.
    pub(super) fn find_huge_in<P: Pmem>(
        &self,
        pool: &mut Pool,
        pmem: &P,
        chunk: u64,
        offset: u64,
    ) -> Result<u32, FreeError> {
        let found = find_huge(pool, pmem, &self.layout, chunk, false);
        found.map_err(|no| no.about(offset, &self.layout, chunk))
    }

    /// The chunk and the line of an offset where a block could start.
    #[inline]
    pub(super) fn locate(&self, offset: u64) -> Result<(u64, u32), FreeError> {
        let chunk = self.layout.chunk_of(offset).filter(|chunk| *chunk < self.chunk_count());
        let chunk = chunk.ok_or(FreeError::OutsideHeap { offset })?;
        if !offset.is_multiple_of(LINE_BYTES) {
            return Err(FreeError::Misaligned { offset });
        }
        let line = (offset - self.layout.chunk_offset(chunk)) / LINE_BYTES;
        if line == 0 {
            return Err(FreeError::NotABlock { offset });
        }
        Ok((chunk, u32::try_from(line).expect("lines of a chunk")))
    }
}

/// What a block is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Look,
    Free,
    /// To be one free block with what is free around it.
    FreeWithAround,
}

/// A block, and who keeps it.
struct Found {
    place: Place,
    chunk: u64,
    block: Range<u32>,
    around: Range<u32>,
    /// It lies behind the cut of its chunk's chain.
    is_severed: bool,
}

/// Why a line is not where an allocated block starts.
enum No {
    Start,
    Free,
    /// Corrupted is the header of what starts at this line.
    Corrupted(u32),
}

impl No {
    const fn about(self, offset: u64, layout: &Layout, chunk: u64) -> FreeError {
        match self {
            Self::Start => FreeError::NotABlock { offset },
            Self::Free => FreeError::AlreadyFree { offset },
            Self::Corrupted(line) => {
                FreeError::Corrupted { offset, header_offset: header_offset(layout, chunk, line) }
            }
        }
    }
}

impl Arena {
    /// How long the block is that starts at this line.
    fn find<P: Pmem>(&mut self, pmem: &P, slot: u32, line: u32, to_free: bool) -> Result<u32, No> {
        let layout = self.layout;
        let map = self.map(slot);
        if let Some(start) = map.lost_at(line) {
            return Err(No::Corrupted(start));
        }
        if line >= map.severed_from {
            return map.find_severed(pmem, &layout, line, to_free);
        }
        if !map.starts.get(line) {
            let inside_live = map.starts.last_set(line).is_none_or(|start| map.live.get(start));
            return Err(if inside_live { No::Start } else { No::Free });
        }
        let next = map.next_start(line);
        let (found, header) = read(pmem, &layout, map.chunk, line);
        if !map.live.get(line) {
            // What a repair made nobody's is not free either.
            let lost = header.is_some_and(|header| header.state == BlockState::Lost);
            return Err(if lost { No::Corrupted(line) } else { No::Free });
        }
        if header != Some(BlockHeader::new(BlockState::Allocated, next - line)) {
            self.isolate(slot, line..next, found);
            return Err(No::Corrupted(line));
        }
        if to_free {
            map.live.clear(line);
        }
        Ok(next - line)
    }
}

impl ChunkMap {
    /// The same behind the cut of a chain. There is only the block's own header to say how long it is, and headers of former blocks may
    /// lie before it and over it.
    #[cold]
    fn find_severed<P: Pmem>(
        &mut self,
        pmem: &P,
        layout: &Layout,
        line: u32,
        to_free: bool,
    ) -> Result<u32, No> {
        let cut = self.severed_from.max(1);
        let header = read(pmem, layout, self.chunk, line)
            .1
            .filter(|_| self.starts.get(line))
            .ok_or(No::Corrupted(cut))?;
        match block_end(header, line, self.lines) {
            Some(next) if header.state == BlockState::Allocated && self.live.get(line) => {
                if to_free {
                    self.live.clear(line);
                }
                Ok(next - line)
            }
            Some(_) if matches!(header.state, BlockState::Free | BlockState::Allocated) => Err(No::Free),
            _ => Err(No::Corrupted(cut)),
        }
    }
}

/// The same of the block longer than a chunk that starts in this one.
fn find_huge<P: Pmem>(
    pool: &mut Pool,
    pmem: &P,
    layout: &Layout,
    chunk: u64,
    to_free: bool,
) -> Result<u32, No> {
    let Some(block) = pool.huge.get_mut(&chunk) else { return Err(No::Start) };
    let (found, header) = read(pmem, layout, chunk, 1);
    let is_sound = header == Some(BlockHeader::new(BlockState::Allocated, block.lines));
    match (block.is_live, is_sound) {
        (true, true) => {
            block.is_live = !to_free;
            Ok(block.lines)
        }
        (true, false) => {
            (block.is_live, block.is_lost) = (false, true);
            let lines = 1..1 + block.lines;
            pool.corruptions.push(corruption(layout, chunk, lines, found, CorruptionKind::Known));
            Err(No::Corrupted(1))
        }
        (false, _) if header.is_none() || block.is_lost => Err(No::Corrupted(1)),
        (false, _) => Err(No::Free),
    }
}
