//! Repairing a chain of headers: a corrupted header is replaced, and its extent is marked lost or unreachable.

use super::arena::Arena;
use super::chunk_table::{ChunkOwner, LockedChunks};
use super::error::Corruption;
use super::headers::{chunk_lines, end_of};
use super::scanner::Start;
use crate::format::{BLOCK_HEADER_BYTES, BlockHeader, BlockState, LINE_BYTES};
use pm_core::{FenceError, Pmem};

pub(super) fn repair<P: Pmem>(
    chunks: &mut LockedChunks<'_>,
    pmem: &P,
    corruption: &Corruption,
) -> Result<Option<(u64, u64)>, FenceError> {
    let (table, layout) = (chunks.table, &chunks.table.layout);
    let offset = corruption.header_offset;
    let chunk = layout.chunk_of(offset).filter(|chunk| *chunk < table.chunk_count());
    let Some(chunk) = chunk.filter(|_| offset % LINE_BYTES == LINE_BYTES - BLOCK_HEADER_BYTES) else {
        return Ok(None);
    };
    if pmem.load_u64(offset) != corruption.found {
        return Ok(None);
    }
    let line = u32::try_from((offset - layout.chunk_offset(chunk)) / LINE_BYTES + 1);
    let line = line.expect("lines of a chunk");
    chunks.read_first_headers_through(pmem, chunk)?;
    chunks.scan_into(table.own_arena(), pmem, chunk)?;
    chunks.assign_if_free(table.own_arena(), chunk);
    let found = BlockHeader::from_word(corruption.found, layout.seed, offset);
    let header = match table.owner(chunk) {
        ChunkOwner::Arena(at) => {
            let unreachable = if line == 1 { unreachable_chunks(chunks, pmem, chunk)? } else { 1 };
            mark_lost(&mut table.arena(at.arena as usize), at.slot, line, unreachable, found)
        }
        ChunkOwner::Huge if line == 1 => mark_huge_lost(chunks, chunk, found),
        // If a huge block ends at the end of its last chunk, this is that chunk's end header.
        ChunkOwner::Covered if line == chunk_lines(layout) => {
            let end = BlockHeader::new(BlockState::End, 0);
            let block = chunks.shared.huge.range(..chunk).next_back();
            let block = block.filter(|(first, block)| {
                end_of(layout, **first, block.lines) == (chunk, line) && found != Some(end)
            });
            block.map(|_| end)
        }
        ChunkOwner::Huge | ChunkOwner::Covered | ChunkOwner::Shared => None,
    };
    Ok(header.map(|header| (offset, header.to_word(layout.seed, offset))))
}

/// Marks the extent of the corrupted header at `line` as lost, and returns the header that records the loss. `None` if there is nothing to repair.
/// `found` is the current header at `line`, if its checksum is right. If the chain is broken at `line`, `unreachable_count` chunks are unreachable.
fn mark_lost(
    arena: &mut Arena,
    slot: u32,
    line: u32,
    unreachable_count: u64,
    found: Option<BlockHeader>,
) -> Option<BlockHeader> {
    const END: BlockHeader = BlockHeader::new(BlockState::End, 0);
    let map = arena.map(slot);
    if line == map.lines {
        // In an unreachable extent this header may be inside a block, because it is unknown where the last block ends.
        return (map.unreachable_from == line && found != Some(END)).then_some(END);
    }
    if line == map.unreachable_from {
        let lines = u32::try_from(unreachable_count * u64::from(map.lines) - u64::from(line)).ok()?;
        let header = BlockHeader::new(BlockState::Unreachable, lines);
        return found.is_none_or(|found| found.state != BlockState::Unreachable).then_some(header);
    }
    if line > map.unreachable_from || !map.starts.get(line) {
        return None;
    }
    let lines = line..map.next_start(line);
    let header = BlockHeader::new(BlockState::Lost, lines.end - lines.start);
    if found.is_some_and(|found| found.lines == header.lines) {
        return None;
    }
    let free = (!map.used.get(line)).then(|| map.extent_around(line));
    arena.withdraw(slot, lines.clone());
    if let Some(free) = free {
        arena.list(slot, free.start..lines.start);
        arena.list(slot, lines.end..free.end);
    }
    Some(header)
}

/// Marks a huge block with a corrupted header as lost, and returns the header that records this.
fn mark_huge_lost(
    chunks: &mut LockedChunks<'_>,
    chunk: u64,
    found: Option<BlockHeader>,
) -> Option<BlockHeader> {
    let block = chunks.shared.huge.get_mut(&chunk);
    let block = block.filter(|block| found.is_none_or(|found| found.lines != block.lines))?;
    (block.is_live, block.is_lost) = (false, true);
    let header = BlockHeader::new(BlockState::Lost, block.lines);
    // A freed block must no longer be split into chunks.
    chunks.shared.quarantine.remove(chunk);
    Some(header)
}

/// The number of chunks that the corrupted first header of `chunk` makes unreachable: `chunk`, and the following chunks that have no valid first
/// header and were not scanned before the corruption.
fn unreachable_chunks<P: Pmem>(
    chunks: &mut LockedChunks<'_>,
    pmem: &P,
    chunk: u64,
) -> Result<u64, FenceError> {
    let (table, layout) = (chunks.table, &chunks.table.layout);
    let extent = table.scanner(pmem).unreachable_extent(chunk, 1);
    let most = (extent.end - layout.chunk_offset(chunk)) / layout.chunk_bytes;
    for distance in 1..most {
        chunks.read_first_headers_through(pmem, chunk + distance)?;
        let is_unreachable = match table.owner(chunk + distance) {
            ChunkOwner::Arena(at) => table.arena(at.arena as usize).map(at.slot).unreachable_from == 0,
            ChunkOwner::Shared => {
                chunks.shared.unscanned.get(&(chunk + distance)) == Some(&Start::Unreachable)
            }
            ChunkOwner::Huge | ChunkOwner::Covered => false,
        };
        if !is_unreachable {
            return Ok(distance);
        }
    }
    Ok(most)
}
