//! Repairing a chain of headers at a corrupted one.

use super::chunk_table::{ChunkOwner, LockedChunks};
use super::error::Corruption;
use super::headers::{chunk_lines, end_of};
use super::scanner::Start;
use crate::format::{BLOCK_HEADER_BYTES, BlockHeader, BlockState, LINE_BYTES};
use pm_core::{FenceError, Pmem};

/// As [`Space::repair`](super::Space::repair).
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
    chunks.discover_through(pmem, chunk)?;
    chunks.scan_into(table.own_arena(), pmem, chunk)?;
    chunks.give_free(table.own_arena(), chunk);
    let found = BlockHeader::from_word(corruption.found, layout.seed, offset);
    let header = match table.owner(chunk) {
        ChunkOwner::Arena(at) => {
            let unreachable = if line == 1 { unreachable_chunks(chunks, pmem, chunk)? } else { 1 };
            table.arena(at.arena as usize).give_up(at.slot, line, unreachable, found)
        }
        ChunkOwner::Huge if line == 1 => give_up_huge(chunks, chunk, found),
        // A huge block may end where the last of its chunks does.
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

/// Gives up a huge block whose header is corrupted, and returns the header that records it.
fn give_up_huge(
    chunks: &mut LockedChunks<'_>,
    chunk: u64,
    found: Option<BlockHeader>,
) -> Option<BlockHeader> {
    let block = chunks.shared.huge.get_mut(&chunk);
    let block = block.filter(|block| found.is_none_or(|found| found.lines != block.lines))?;
    (block.is_live, block.is_lost) = (false, true);
    let header = BlockHeader::new(BlockState::Lost, block.lines);
    // A freed block is not split into chunks any more.
    chunks.shared.quarantine.remove(chunk);
    Some(header)
}

/// How many chunks are unreachable with this one, whose first header is corrupted: it, and those behind it that have no first header
/// either, and were not read before it was corrupted.
fn unreachable_chunks<P: Pmem>(
    chunks: &mut LockedChunks<'_>,
    pmem: &P,
    chunk: u64,
) -> Result<u64, FenceError> {
    let (table, layout) = (chunks.table, &chunks.table.layout);
    let extent = table.scanner(pmem).unreachable_extent(chunk, 1);
    let most = (extent.end - layout.chunk_offset(chunk)) / layout.chunk_bytes;
    for behind in 1..most {
        chunks.discover_through(pmem, chunk + behind)?;
        let is_unreachable = match table.owner(chunk + behind) {
            ChunkOwner::Arena(at) => table.arena(at.arena as usize).map(at.slot).unreachable_from == 0,
            ChunkOwner::Shared => chunks.shared.unscanned.get(&(chunk + behind)) == Some(&Start::Unreachable),
            ChunkOwner::Huge | ChunkOwner::Covered => false,
        };
        if !is_unreachable {
            return Ok(behind);
        }
    }
    Ok(most)
}
