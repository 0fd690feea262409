//! Walking the chain of a chunk, to learn what lies in it, and around what is damaged.

use super::chunk::ChunkMap;
use super::damage::{Damage, DamageKind};
use crate::format::{BlockHeader, BlockState, LINE_BYTES};
use crate::layout::Layout;
use core::ops::Range;
use pm_core::Pmem;

/// Where the header lies of the block that starts at a line of a chunk. The line may be the chunk's end.
#[inline]
pub(super) const fn header_offset(layout: &Layout, chunk: u64, line: u32) -> u64 {
    Layout::header_of(layout.chunk_offset(chunk) + line as u64 * LINE_BYTES)
}

/// The word of a header, for the block that starts at a line of a chunk.
#[inline]
pub(super) fn header_word(layout: &Layout, chunk: u64, line: u32, header: BlockHeader) -> (u64, u64) {
    let offset = header_offset(layout, chunk, line);
    (offset, header.to_word(layout.seed, offset))
}

/// The damage of the header of what lies on these lines.
pub(super) fn damage(layout: &Layout, chunk: u64, lines: Range<u32>, found: u64, kind: DamageKind) -> Damage {
    let offset = |line: u32| layout.chunk_offset(chunk) + u64::from(line) * LINE_BYTES;
    let header_offset = header_offset(layout, chunk, lines.start);
    Damage { header_offset, extent: offset(lines.start)..offset(lines.end), found, kind }
}

/// What a header says, if it is one: the word, then its meaning.
#[inline]
pub(super) fn read<P: Pmem>(pmem: &P, layout: &Layout, chunk: u64, line: u32) -> (u64, Option<BlockHeader>) {
    let offset = header_offset(layout, chunk, line);
    let word = pmem.load_u64(offset);
    (word, BlockHeader::from_word(word, layout.seed, offset))
}

/// One step along a chain.
pub(super) enum Step {
    /// A block, on these lines.
    Intact(BlockState, Range<u32>),
    /// What is damaged; the chain goes on behind it.
    Damaged(Damage, Range<u32>),
}

/// Walks the chain of a chunk from the line `first` to its end, which is checked too.
pub(super) fn walk<P: Pmem>(pmem: &P, layout: &Layout, chunk: u64, first: u32, mut visit: impl FnMut(Step)) {
    let end = chunk_lines(layout);
    let mut line = first;
    while line < end {
        let (found, header) = read(pmem, layout, chunk, line);
        let next =
            match header.and_then(|header| block_end(header, line, end).map(|next| (header.state, next))) {
                Some((state, next)) => {
                    visit(Step::Intact(state, line..next));
                    next
                }
                None => {
                    let next = resynchronize(pmem, layout, chunk, line);
                    let damage = damage(layout, chunk, line..next, found, DamageKind::Resynchronized);
                    visit(Step::Damaged(damage, line..next));
                    next
                }
            };
        line = next;
    }
    let (found, header) = read(pmem, layout, chunk, end);
    if header != Some(BlockHeader::new(BlockState::End, 0)) {
        visit(Step::Damaged(damage(layout, chunk, end..end, found, DamageKind::End), end..end));
    }
}

/// The map of a chunk, from its chain.
pub(super) fn scan<P: Pmem>(
    pmem: &P,
    layout: &Layout,
    chunk: u64,
    first: u32,
    damages: &mut Vec<Damage>,
) -> ChunkMap {
    let mut map = ChunkMap::unknown(chunk, chunk_lines(layout), first);
    walk(pmem, layout, chunk, first, |step| match step {
        Step::Intact(state, lines) => {
            map.starts.set(lines.start);
            match state {
                BlockState::Allocated => map.live.set(lines.start),
                BlockState::Free if lines.start < map.quarantine => {
                    map.release(lines);
                }
                BlockState::Free | BlockState::Lost | BlockState::End => {}
            }
        }
        Step::Damaged(damage, lines) => {
            damages.push(damage);
            if !lines.is_empty() {
                map.starts.set(lines.start);
                map.quarantine = map.quarantine.min(lines.start);
                map.lost.push(lines);
            }
        }
    });
    map
}

/// Lines in a chunk. A chunk has at most 16 GiB, which are 2^28 lines.
#[expect(
    clippy::cast_possible_truncation,
    reason = "at most 2^28, as planned and checked by who opens the heap"
)]
#[inline]
pub(super) const fn chunk_lines(layout: &Layout) -> u32 {
    layout.chunk_lines() as u32
}

/// Where the block ends that starts at a line and has this header, if that can be.
fn block_end(header: BlockHeader, line: u32, end: u32) -> Option<u32> {
    let next = line.checked_add(header.lines)?;
    (header.state != BlockState::End && next <= end).then_some(next)
}

/// So many headers in a row, each where the one before says that it is, are a chain and no accident: each has a checksum over its
/// place. Fewer may be left between two that are damaged.
const CHAIN: usize = 3;

/// The first line behind `broken` from which a chain goes on, or the end.
fn resynchronize<P: Pmem>(pmem: &P, layout: &Layout, chunk: u64, broken: u32) -> u32 {
    let end = chunk_lines(layout);
    let is_chain = |mut line| {
        for _ in 0..CHAIN {
            match read(pmem, layout, chunk, line).1.and_then(|header| block_end(header, line, end)) {
                Some(next) if next == end => return true,
                Some(next) => line = next,
                None => return false,
            }
        }
        true
    };
    (broken + 1..end).find(|line| is_chain(*line)).unwrap_or(end)
}
