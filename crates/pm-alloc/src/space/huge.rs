//! Huge blocks: those longer than a chunk.
//!
//! A huge block starts at line 1 of its first chunk. It covers the following chunks completely, except that it may end anywhere in the last one. The
//! chain of the last chunk starts at the block's end. Before the block is allocated, its chunks are joined into one free block, up to the end of the
//! last chunk ([`Reservation::join_headers`]). When a freed block is split into chunks, the headers inside it are stored first. Once they are
//! durable, the header of the first chunk is stored.
//!
//! These headers are stored without the log, so no live log entry may target their offsets:
//!
//! - The header of a block was logged when the block was allocated and when it was freed. Every block in the extent was freed, and the checkpoint LSN
//!   has reached the LSN of its freeing.
//! - The header of a free rest was logged with the block before it. That block has been freed since then, so the checkpoint LSN has reached its LSN.
//! - The first header of a chunk has no block before it in its chunk. It was logged with the block after it, or as the header of a gap; both are
//!   quarantined when they become free.
//! - No block may end where the first block of a chunk starts, because the first header of the chunk would be logged with the block that ends there.
//!   A huge block that would end there is made one line longer.

use super::chunk_table::{ChunkOwner, ChunkTable, HugeBlock, LockedChunks, chunk_as_u32};
use super::error::{CorruptionKind, FreeError, SpaceError};
use super::headers::{chunk_lines, corruption, end_of, header_offset, huge_lines, read};
use super::reservation::{Extent, Reservation};
use super::scanner::Start;
use crate::format::{BLOCK_LINES_MAX, BlockHeader, BlockState, LINE_BYTES, Lsn};
use crate::layout::Layout;
use pm_core::{FenceError, Pmem};
use std::collections::BTreeSet;

/// The number of chunks that a huge block for `lines` lines is carved from.
pub(super) fn chunk_count(layout: &Layout, lines: u64) -> u64 {
    huge_lines(layout, lines).saturating_add(1).div_ceil(u64::from(chunk_lines(layout)))
}

/// The number of huge blocks of `count` chunks each for which these chunks have room.
pub(super) fn room_in(free_chunks: &BTreeSet<u64>, count: u64) -> u64 {
    let (mut room, mut adjacent, mut next) = (0, 0, 0);
    for chunk in free_chunks {
        adjacent = if *chunk == next { adjacent + 1 } else { 1 };
        next = chunk + 1;
        if adjacent == count {
            (room, adjacent) = (room + 1, 0);
        }
    }
    room
}

/// [`Space::reserve_in`](super::Space::reserve_in) for a huge block.
#[cold]
pub(super) fn reserve<P: Pmem>(
    table: &ChunkTable,
    own: usize,
    pmem: &P,
    lines: u64,
    align_bytes: u64,
    checkpoint_lsn: Lsn,
) -> Result<Reservation, SpaceError> {
    let in_chunk = u64::from(chunk_lines(&table.layout));
    // The free block from which the huge block is carved consists of whole chunks.
    let count = chunk_count(&table.layout, lines);
    let longest = u64::from(BLOCK_LINES_MAX).min(table.chunk_count() * in_chunk - 1);
    let whole = count.saturating_mul(in_chunk) - 1;
    // However long the heap gets.
    if align_bytes > LINE_BYTES {
        return Err(SpaceError::Alignment { lines, align_bytes });
    }
    if whole > longest {
        return Err(SpaceError::TooLong { lines, max_lines: longest });
    }
    // Looked at before the search and after it: the search misses what is returned behind it.
    let mut held = false;
    for arena in 0..table.arenas.len() {
        let mut arena = table.arena(arena);
        arena.drain_quarantine(checkpoint_lsn, table.clock.now(), usize::MAX);
        held |= arena.reservation_count > 0;
    }
    let mut chunks = table.lock();
    chunks.read_first_headers_through(pmem, u64::MAX)?;
    split_quarantined(&mut chunks, pmem, checkpoint_lsn)?;
    let mut found = chunks.take_adjacent(count);
    if found.is_none() {
        while chunks.scan_next(own, pmem)? {}
        found = chunks.take_adjacent(count);
    }
    let Some(chunk) = found else {
        let mut quarantined = !chunks.shared.quarantine.is_empty();
        held |= chunks.shared.reservation_count > 0;
        for arena in &table.arenas {
            let arena = arena.lock_unpoisoned();
            quarantined |= !arena.quarantine.is_empty();
            held |= arena.reservation_count > 0;
        }
        return Err(SpaceError::Full { lines, quarantined, held });
    };
    let whole = u32::try_from(whole).expect("no more than a header can represent");
    chunks.shared.reservation_count += 1;
    let extent =
        Extent { slot: None, chunk, lines: 1..1 + whole, spans_several_blocks: true, trim_line: None };
    Ok(Reservation::new(&table.layout, extent))
}

/// [`Space::settle`](super::Space::settle) for a huge block.
pub(super) fn settle(chunks: &mut LockedChunks<'_>, reservation: &Reservation) {
    if !reservation.is_carved() {
        return return_unused(chunks, reservation);
    }
    chunks.shared.reservation_count -= 1;
    let chunk = reservation.extent.chunk;
    let block = HugeBlock { lines: reservation.cursor - 1, is_live: true, is_lost: false };
    chunks.shared.huge.insert(chunk, block);
    chunks.set_owner(chunk, ChunkOwner::Huge);
    if reservation.cursor < reservation.extent.lines.end {
        let (last, line) = end_of(&reservation.layout, chunk, block.lines);
        chunks.share(last, Start::Chain(line));
    }
}

/// [`Space::return_unused`](super::Space::return_unused) for a huge block. If its chunks were joined already, they stay one free block until one of
/// them is needed.
pub(super) fn return_unused(chunks: &mut LockedChunks<'_>, reservation: &Reservation) {
    chunks.shared.reservation_count -= 1;
    let (chunk, lines) = (reservation.extent.chunk, reservation.extent.lines.clone());
    let Some(lsn) = reservation.joined_lsn else {
        let count = u64::from(lines.end) / reservation.layout.chunk_lines();
        return chunks.return_chunks(chunk..chunk + count);
    };
    chunks.shared.huge.insert(chunk, HugeBlock { lines: lines.end - 1, is_live: false, is_lost: false });
    chunks.set_owner(chunk, ChunkOwner::Huge);
    chunks.shared.quarantine.push_due(chunk_as_u32(chunk), lines, lsn);
}

/// Splits into chunks the quarantined huge blocks that may be reused. Returns whether there were any.
///
/// # Errors
/// When a fence fails or has failed.
///
/// # Durability
/// Two fences for each block. A crash leaves either the whole free block or its chunks.
pub(super) fn split_quarantined<P: Pmem>(
    chunks: &mut LockedChunks<'_>,
    pmem: &P,
    checkpoint_lsn: Lsn,
) -> Result<bool, FenceError> {
    let now = chunks.table.clock.now();
    let mut has_split = false;
    while let Some(block) = chunks.shared.quarantine.pop_due(checkpoint_lsn, now) {
        if let Err(error) = chunks.split(pmem, u64::from(block.slot_or_chunk), block.lines) {
            chunks.shared.quarantine.put_back(block);
            return Err(error);
        }
        has_split = true;
    }
    Ok(has_split)
}

/// Looks up the allocated huge block that starts in `chunk`. Returns its length in lines. With `to_free`, the block counts as freed from then on. A
/// corrupted header is recorded.
///
/// # Errors
/// When no allocated block starts there, or its header is corrupted.
pub(super) fn look_up<P: Pmem>(
    chunks: &mut LockedChunks<'_>,
    pmem: &P,
    chunk: u64,
    to_free: bool,
) -> Result<u32, FreeError> {
    let layout = &chunks.table.layout;
    let shared = &mut *chunks.shared;
    let offset = layout.first_payload(chunk);
    let corrupted = FreeError::Corrupted { offset, header_offset: header_offset(layout, chunk, 1) };
    let Some(block) = shared.huge.get_mut(&chunk) else { return Err(FreeError::NotABlock { offset }) };
    let (found, header) = read(pmem, layout, chunk, 1);
    let is_intact = header == Some(BlockHeader::new(BlockState::Allocated, block.lines));
    match (block.is_live, is_intact) {
        (true, true) => {
            block.is_live = !to_free;
            Ok(block.lines)
        }
        (true, false) => {
            (block.is_live, block.is_lost) = (false, true);
            let lines = 1..1 + block.lines;
            shared.corruptions.push(corruption(layout, chunk, lines, found, CorruptionKind::LengthKnown));
            Err(corrupted)
        }
        (false, _) if header.is_none() || block.is_lost => Err(corrupted),
        (false, _) => Err(FreeError::AlreadyFree { offset }),
    }
}
