//! Reading the chains of block headers of a heap, chunk by chunk, and finding allocated blocks after corrupted headers.

use super::error::{Corruption, CorruptionKind};
use super::headers::{block_end, chunk_lines, corruption, end_of, header_offset, line_offset, read};
use crate::format::{BLOCK_LINES_MAX, BlockHeader, BlockState};
use crate::layout::Layout;
use core::ops::Range;
use pm_core::Pmem;

/// Reads the headers of a heap. Stores nothing.
#[derive(Debug)]
pub(super) struct Scanner<'h, P> {
    pub(super) pmem: &'h P,
    pub(super) layout: &'h Layout,
    pub(super) chunk_count: u64,
}

impl<P> Clone for Scanner<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Scanner<'_, P> {}

/// How the headers of a chunk start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// A chain of headers starts at this line.
    Chain(u32),
    /// The whole chunk lies in the unreachable extent of an earlier chunk.
    Unreachable,
}

/// One step through the headers of a chunk.
pub(super) enum Step {
    /// A block of the chain, on these lines.
    Intact(BlockState, Range<u32>),
    /// The chain is broken at the first of these lines, which extend to the chunk's end. The corruption is `None` if a repair has stored the header
    /// at that line, or the whole chunk is unreachable.
    Unreachable(Option<Corruption>, Range<u32>),
    /// An intact header of an allocated block on these lines, in an unreachable extent.
    Resynchronized(Range<u32>),
    /// The header that ends the chunk is corrupted.
    End(Corruption),
}

impl<'h, P: Pmem> Scanner<'h, P> {
    /// Iterates over the chain of a chunk. At the chunk's end, it checks the end header. If the chain is broken, it continues from there over all
    /// intact headers of allocated blocks.
    pub(super) const fn walk(self, chunk: u64, start: Start) -> Walk<'h, P> {
        let (line, phase) = match start {
            Start::Chain(line) => (line, Phase::Chain),
            Start::Unreachable => (1, Phase::Unreachable),
        };
        Walk { scanner: self, chunk, line, phase }
    }

    /// The extent that a corrupted header at `line` makes unreachable, as offsets in the region: the rest of its chunk, because the length of its
    /// block is unknown. The first header of a chunk may be that of a huge block. The chunks that such a block covers have no first header, so the
    /// following chunks without a first header are unreachable, too.
    pub(super) fn unreachable_extent(&self, chunk: u64, line: u32) -> Range<u64> {
        // A huge block has at least one line fewer than its chunks.
        let longest = chunk + ((u64::from(BLOCK_LINES_MAX) + 1) / self.layout.chunk_lines()).max(1);
        let mut end = chunk + 1;
        if line == 1 {
            while end < self.chunk_count.min(longest) && self.first_header(end).is_none() {
                end += 1;
            }
        }
        line_offset(self.layout, chunk, line)..self.layout.chunk_offset(end)
    }

    /// The first header of a chunk, if it is valid and its block fits into the heap.
    fn first_header(&self, chunk: u64) -> Option<BlockHeader> {
        let header = read(self.pmem, self.layout, chunk, 1).1?;
        let is_possible = match header.state {
            BlockState::End => false,
            BlockState::Unreachable => self.is_repair_header(header, chunk, 1),
            BlockState::Free | BlockState::Allocated | BlockState::Lost => {
                header.lines < chunk_lines(self.layout)
                    || end_of(self.layout, chunk, header.lines).0 < self.chunk_count
            }
        };
        is_possible.then_some(header)
    }

    /// Whether this is the header of an unreachable extent that a repair has marked: such an extent ends where a chunk ends.
    fn is_repair_header(&self, header: BlockHeader, chunk: u64, line: u32) -> bool {
        let in_chunk = self.layout.chunk_lines();
        let end = u64::from(line) + u64::from(header.lines);
        header.state == BlockState::Unreachable
            && (end == in_chunk || line == 1)
            && end.is_multiple_of(in_chunk)
            && chunk + end / in_chunk <= self.chunk_count
    }
}

/// The iterator of [`Scanner::walk`].
#[derive(Debug)]
pub(super) struct Walk<'h, P> {
    scanner: Scanner<'h, P>,
    chunk: u64,
    line: u32,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Chain,
    /// The next step reports that the whole chunk is unreachable.
    Unreachable,
    Resynchronizing,
    Done,
}

impl<P: Pmem> Iterator for Walk<'_, P> {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let end = chunk_lines(self.scanner.layout);
        match self.phase {
            Phase::Chain if self.line < end => Some(self.next_of_chain(end)),
            Phase::Chain => {
                self.phase = Phase::Done;
                let (found, header) = read(self.scanner.pmem, self.scanner.layout, self.chunk, end);
                (header != Some(BlockHeader::new(BlockState::End, 0))).then(|| {
                    let layout = self.scanner.layout;
                    Step::End(corruption(layout, self.chunk, end..end, found, CorruptionKind::End))
                })
            }
            Phase::Unreachable => {
                self.phase = Phase::Resynchronizing;
                Some(Step::Unreachable(None, self.line..end))
            }
            Phase::Resynchronizing => self.next_allocated(end),
            Phase::Done => None,
        }
    }
}

impl<P: Pmem> Walk<'_, P> {
    fn next_of_chain(&mut self, end: u32) -> Step {
        let (Scanner { pmem, layout, .. }, chunk, line) = (self.scanner, self.chunk, self.line);
        let (found, header) = read(pmem, layout, chunk, line);
        let next = header.and_then(|header| block_end(header, line, end).map(|next| (header.state, next)));
        if let Some((state, next)) = next.filter(|(state, _)| *state != BlockState::Unreachable) {
            self.line = next;
            return Step::Intact(state, line..next);
        }
        (self.line, self.phase) = (line + 1, Phase::Resynchronizing);
        let is_repaired = header.is_some_and(|header| self.scanner.is_repair_header(header, chunk, line));
        let corruption = || Corruption {
            header_offset: header_offset(layout, chunk, line),
            extent: self.scanner.unreachable_extent(chunk, line),
            found,
            kind: CorruptionKind::LengthUnknown,
        };
        Step::Unreachable((!is_repaired).then(corruption), line..end)
    }

    /// The next intact header of an allocated block.
    fn next_allocated(&mut self, end: u32) -> Option<Step> {
        while self.line < end {
            let line = self.line;
            self.line += 1;
            let header = read(self.scanner.pmem, self.scanner.layout, self.chunk, line).1;
            let header = header.filter(|header| header.state == BlockState::Allocated);
            if let Some(next) = header.and_then(|header| block_end(header, line, end)) {
                return Some(Step::Resynchronized(line..next));
            }
        }
        self.phase = Phase::Done;
        None
    }
}

/// The content of a chunk, according to its first header.
#[derive(Clone, Copy, Debug)]
pub(super) enum Content {
    /// The chunk is one free block.
    Free,
    /// Several blocks, or a part of an unreachable extent.
    Headers(Start),
    /// A huge block with this header starts in the chunk, and ends in the chunk with this number.
    Huge(BlockHeader, u64),
}

/// Iterates over the chunks of a heap in ascending order, and reads the first header of each.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkCursor {
    pub(super) next: u64,
    /// The line where the next chunk's chain starts.
    first: u32,
    /// Chunks before this one belong to an unreachable extent that a repair has marked.
    unreachable_until: u64,
    /// Whether the first header of the previous chunk is corrupted.
    is_broken: bool,
}

impl Default for ChunkCursor {
    fn default() -> Self {
        Self { next: 0, first: 1, unreachable_until: 0, is_broken: false }
    }
}

impl ChunkCursor {
    /// The next chunk and its content. Skips chunks that a huge block covers completely.
    pub(super) fn next<P: Pmem>(&mut self, scanner: Scanner<'_, P>) -> Option<(u64, Content)> {
        if self.next >= scanner.chunk_count {
            return None;
        }
        let (chunk, in_chunk) = (self.next, chunk_lines(scanner.layout));
        let first = core::mem::replace(&mut self.first, 1);
        self.next += 1;
        if first > 1 {
            self.is_broken = false;
            return Some((chunk, Content::Headers(Start::Chain(first))));
        }
        if chunk < self.unreachable_until {
            return Some((chunk, Content::Headers(Start::Unreachable)));
        }
        let header = scanner.first_header(chunk);
        let is_after_broken = core::mem::replace(&mut self.is_broken, header.is_none());
        let Some(header) = header else {
            let start = if is_after_broken { Start::Unreachable } else { Start::Chain(1) };
            return Some((chunk, Content::Headers(start)));
        };
        if header == BlockHeader::new(BlockState::Free, in_chunk - 1) {
            return Some((chunk, Content::Free));
        }
        let (last, line) = end_of(scanner.layout, chunk, header.lines);
        if header.state == BlockState::Unreachable {
            self.unreachable_until = last + 1;
        } else if header.lines >= in_chunk {
            (self.next, self.first) = (last, line);
            return Some((chunk, Content::Huge(header, last)));
        }
        Some((chunk, Content::Headers(Start::Chain(1))))
    }
}
