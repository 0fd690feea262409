//! Walking the chains of chunks, to learn what lies in them, and where corruption cuts one.

use super::chunk::ChunkMap;
use super::corruption::{Corruption, CorruptionKind};
use crate::format::{BLOCK_HEADER_BYTES, BLOCK_LINES_MAX, BlockHeader, BlockState, LINE_BYTES};
use crate::layout::Layout;
use crate::sync;
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

/// The corruption of the header of what lies on these lines.
pub(super) fn corruption(
    layout: &Layout,
    chunk: u64,
    lines: Range<u32>,
    found: u64,
    kind: CorruptionKind,
) -> Corruption {
    let offset = |line: u32| layout.chunk_offset(chunk) + u64::from(line) * LINE_BYTES;
    let header_offset = header_offset(layout, chunk, lines.start);
    Corruption { header_offset, extent: offset(lines.start)..offset(lines.end), found, kind }
}

/// What a header says, if it is one: the word, then its meaning.
#[inline]
pub(super) fn read<P: Pmem>(pmem: &P, layout: &Layout, chunk: u64, line: u32) -> (u64, Option<BlockHeader>) {
    let offset = header_offset(layout, chunk, line);
    let word = pmem.load_u64(offset);
    (word, BlockHeader::from_word(word, layout.seed, offset))
}

/// Where what is known of a chunk starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// A chain of headers, at this line.
    Chain(u32),
    /// Nothing: the chunk belongs to the severed extent of one before.
    Severed,
}

/// One step through a chunk.
pub(super) enum Step {
    /// A block of the chain, on these lines.
    Intact(BlockState, Range<u32>),
    /// The chain is cut here, up to the chunk's end: by a repaired header, or by a corrupted one, which is told.
    Severed(Option<Corruption>, Range<u32>),
    /// A header inside a severed extent says that these lines are allocated.
    Inside(Range<u32>),
    /// The header that ends the chunk is corrupted.
    End(Corruption),
}

/// Walks the chain of a chunk to its end, which is checked too, or to where it is cut. From there on it tells what has a header that
/// says that it is allocated, and nothing else.
pub(super) fn walk<P: Pmem>(
    pmem: &P,
    layout: &Layout,
    chunk_count: u64,
    chunk: u64,
    start: Start,
    mut visit: impl FnMut(Step),
) {
    let end = chunk_lines(layout);
    let Start::Chain(mut line) = start else {
        visit(Step::Severed(None, 1..end));
        return allocated_from(pmem, layout, chunk, 1, visit);
    };
    while line < end {
        let (found, header) = read(pmem, layout, chunk, line);
        let next = header.and_then(|header| block_end(header, line, end).map(|next| (header.state, next)));
        if let Some((state, next)) = next.filter(|(state, _)| *state != BlockState::Severed) {
            visit(Step::Intact(state, line..next));
            line = next;
            continue;
        }
        let is_repaired = header.is_some_and(|header| severs(header, layout, chunk_count, chunk, line));
        let told = || {
            let extent = severed_extent(pmem, layout, chunk_count, chunk, line);
            let header_offset = header_offset(layout, chunk, line);
            Corruption { header_offset, extent, found, kind: CorruptionKind::Resynchronized }
        };
        visit(Step::Severed((!is_repaired).then(told), line..end));
        return allocated_from(pmem, layout, chunk, line + 1, visit);
    }
    let (found, header) = read(pmem, layout, chunk, end);
    if header != Some(BlockHeader::new(BlockState::End, 0)) {
        visit(Step::End(corruption(layout, chunk, end..end, found, CorruptionKind::End)));
    }
}

/// Tells of every header from a line on that says that a block is allocated.
fn allocated_from<P: Pmem>(pmem: &P, layout: &Layout, chunk: u64, first: u32, mut visit: impl FnMut(Step)) {
    let end = chunk_lines(layout);
    for line in first..end {
        let header = read(pmem, layout, chunk, line).1;
        let header = header.filter(|header| header.state == BlockState::Allocated);
        if let Some(next) = header.and_then(|header| block_end(header, line, end)) {
            visit(Step::Inside(line..next));
        }
    }
}

/// Whether this is the header of a severed extent as a repair writes it: it ends where a chunk does.
fn severs(header: BlockHeader, layout: &Layout, chunk_count: u64, chunk: u64, line: u32) -> bool {
    let lines = u64::from(line) + u64::from(header.lines);
    let is_over_chunks = lines == layout.chunk_lines() || line == 1;
    let fits =
        lines.is_multiple_of(layout.chunk_lines()) && chunk + lines / layout.chunk_lines() <= chunk_count;
    header.state == BlockState::Severed && is_over_chunks && fits
}

/// What a corrupted header at a line cuts off, as offsets in the region: the rest of its chunk, as the length of its block is not
/// known. The first header of a chunk may be that of a block longer than a chunk, and the chunks below such a block have no first
/// header: so those that have none are cut off with it.
pub(super) fn severed_extent<P: Pmem>(
    pmem: &P,
    layout: &Layout,
    chunk_count: u64,
    chunk: u64,
    line: u32,
) -> Range<u64> {
    // It has one line less than its chunks.
    let longest = chunk + ((u64::from(BLOCK_LINES_MAX) + 1) / layout.chunk_lines()).max(1);
    let mut end = chunk + 1;
    if line == 1 {
        while end < chunk_count.min(longest) && first_header(pmem, layout, chunk_count, end).is_none() {
            end += 1;
        }
    }
    layout.chunk_offset(chunk) + u64::from(line) * LINE_BYTES..layout.chunk_offset(end)
}

/// The first header of a chunk, if it is one that can be there.
fn first_header<P: Pmem>(pmem: &P, layout: &Layout, chunk_count: u64, chunk: u64) -> Option<BlockHeader> {
    let header = read(pmem, layout, chunk, 1).1?;
    let in_chunk = chunk_lines(layout);
    let can_be = match header.state {
        BlockState::End => false,
        BlockState::Severed => severs(header, layout, chunk_count, chunk, 1),
        BlockState::Free | BlockState::Allocated | BlockState::Lost => {
            header.lines < in_chunk || end_of(layout, chunk, header.lines).0 < chunk_count
        }
    };
    can_be.then_some(header)
}

/// The chunk where a block of so many lines ends that starts in `chunk`, and the line there: from 1 to the chunk's
/// end.
pub(super) const fn end_of(layout: &Layout, chunk: u64, lines: u32) -> (u64, u32) {
    let in_chunk = chunk_lines(layout);
    (chunk + (lines / in_chunk) as u64, lines % in_chunk + 1)
}

/// What the first header of a chunk says.
#[derive(Clone, Copy, Debug)]
pub(super) enum Content {
    /// One free block is all of it.
    Fresh,
    /// Blocks, or the rest of a severed extent: to be walked through.
    Headers(Start),
    /// A block longer than a chunk starts here, and ends in this one.
    Huge(BlockHeader, u64),
}

/// Goes through the chunks of a heap in their order, from first header to first header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunks {
    /// The next chunk.
    pub(super) next: u64,
    /// The line where its chain starts.
    first: u32,
    /// Chunks below this one belong to a severed extent that was repaired.
    severed_until: u64,
    /// The chunk before has no first header.
    is_broken: bool,
}

impl Default for Chunks {
    fn default() -> Self {
        Self { next: 0, first: 1, severed_until: 0, is_broken: false }
    }
}

impl Chunks {
    /// The next chunk, and what it contains. Those that a block longer than a chunk covers as a whole are passed over.
    pub(super) fn next<P: Pmem>(&mut self, pmem: &P, layout: &Layout, count: u64) -> Option<(u64, Content)> {
        if self.next >= count {
            return None;
        }
        let (chunk, in_chunk) = (self.next, chunk_lines(layout));
        let first = core::mem::replace(&mut self.first, 1);
        self.next += 1;
        if first > 1 {
            self.is_broken = false;
            return Some((chunk, Content::Headers(Start::Chain(first))));
        }
        if chunk < self.severed_until {
            return Some((chunk, Content::Headers(Start::Severed)));
        }
        let header = first_header(pmem, layout, count, chunk);
        let is_behind_broken = core::mem::replace(&mut self.is_broken, header.is_none());
        let Some(header) = header else {
            let start = if is_behind_broken { Start::Severed } else { Start::Chain(1) };
            return Some((chunk, Content::Headers(start)));
        };
        if header == BlockHeader::new(BlockState::Free, in_chunk - 1) {
            return Some((chunk, Content::Fresh));
        }
        let (last, line) = end_of(layout, chunk, header.lines);
        if header.state == BlockState::Severed {
            self.severed_until = last + 1;
        } else if header.lines >= in_chunk {
            (self.next, self.first) = (last, line);
            return Some((chunk, Content::Huge(header, last)));
        }
        Some((chunk, Content::Headers(Start::Chain(1))))
    }
}

/// The map of a chunk, from its headers.
pub(super) fn scan<P: Pmem>(
    pmem: &P,
    layout: &Layout,
    chunk_count: u64,
    chunk: u64,
    start: Start,
    corruptions: &mut Vec<Corruption>,
) -> ChunkMap {
    let first = if let Start::Chain(first) = start { first } else { 1 };
    let end = chunk_lines(layout);
    let mut map = ChunkMap::unknown(chunk, end, first);
    walk(pmem, layout, chunk_count, chunk, start, |step| match step {
        Step::Intact(state, lines) => {
            map.starts.set(lines.start);
            match state {
                BlockState::Allocated => map.live.set(lines.start),
                BlockState::Free => drop(map.release(lines)),
                BlockState::Lost => map.lost.push(lines),
                BlockState::End | BlockState::Severed => {}
            }
        }
        Step::Severed(corruption, lines) => {
            map.starts.set(lines.start);
            // The first header of a chunk inside of the extent of another one is not where it is cut.
            map.severed_from = if start == Start::Severed { 0 } else { lines.start };
            corruptions.extend(corruption);
        }
        Step::Inside(lines) => {
            map.starts.set(lines.start);
            map.live.set(lines.start);
        }
        Step::End(corruption) => corruptions.push(corruption),
    });
    map
}

/// Flushes all headers that a map was made from, other threads' too. With the next fence all that it says is durable.
pub(super) fn flush_headers<P: Pmem>(pmem: &P, layout: &Layout, map: &ChunkMap) {
    sync::before_flushing_others_stores();
    let flush = |line| pmem.flush(header_offset(layout, map.chunk, line), BLOCK_HEADER_BYTES);
    let mut line = map.starts.next_set(0);
    while line < map.lines {
        flush(line);
        line = map.next_start(line);
    }
    flush(map.lines);
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
pub(super) fn block_end(header: BlockHeader, line: u32, end: u32) -> Option<u32> {
    let next = line.checked_add(header.lines)?;
    (header.state != BlockState::End && next <= end).then_some(next)
}
