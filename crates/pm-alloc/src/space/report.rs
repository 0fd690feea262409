//! Reports about the space of a heap: statistics, blocks, and corrupted headers.

use super::error::Corruption;
use super::headers::{chunk_lines, line_offset};
use super::quarantine::Quarantine;
use super::scanner::{ChunkCursor, Content, Scanner, Start, Step};
use crate::format::{BlockState, LINE_BYTES};
use crate::layout::Layout;
use core::ops::Range;
use pm_core::Pmem;

/// Statistics of a heap's space. They are collected arena by arena, while other threads may change the heap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpaceStats {
    /// The number of chunks of the heap.
    pub chunks: u64,
    /// Chunks that have not been scanned since the heap was opened. The fields below do not count them.
    pub unscanned_chunks: u64,
    /// Chunks that a huge block covers completely, or in which a huge block starts.
    pub covered_chunks: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// Bytes in use: allocated, reserved, quarantined, lost or unreachable.
    pub used_bytes: u64,
    /// Quarantined blocks: freed but not yet reusable.
    pub quarantined_blocks: u64,
    /// Bytes of quarantined blocks.
    pub quarantined_bytes: u64,
    /// Reservations of transactions in progress.
    pub reservations: u64,
    /// Bytes of blocks whose headers are corrupted, or that a repair has marked lost.
    pub lost_bytes: u64,
}

impl SpaceStats {
    pub(super) fn add_quarantine(&mut self, quarantine: &Quarantine) {
        self.quarantined_blocks += quarantine.len() as u64;
        self.quarantined_bytes += quarantine.bytes();
    }
}

/// A block, according to its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Block {
    /// The offset of its payload in the region.
    pub payload: u64,
    /// Its length in lines of 64 bytes. The last word of the last line is the header of the next block.
    pub lines: u32,
    /// Its state.
    pub state: BlockState,
}

/// The result of a check of all headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckReport {
    /// Allocated blocks.
    pub allocated_blocks: u64,
    /// Bytes of allocated blocks, headers included.
    pub allocated_bytes: u64,
    /// Free blocks. Adjacent free blocks are counted separately.
    pub free_blocks: u64,
    /// Bytes of free blocks.
    pub free_bytes: u64,
    /// Lost blocks, and unreachable extents that a repair has marked.
    pub lost_blocks: u64,
    /// Bytes of lost blocks and of unreachable extents, without the allocated blocks found there.
    pub lost_bytes: u64,
    /// Corrupted headers.
    pub corruptions: Vec<Corruption>,
    /// The chunks, one by one.
    pub chunks: Vec<ChunkReport>,
}

/// The statistics of one chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChunkReport {
    /// Bytes of allocated blocks, or of the parts of them that lie in this chunk.
    pub allocated_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// Bytes of lost blocks and of unreachable extents in this chunk, without the allocated blocks found there.
    pub lost_bytes: u64,
}

impl CheckReport {
    /// Whether no header is corrupted.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.corruptions.is_empty()
    }

    /// Checks all headers of a heap, and calls `each` with every block. The caller ensures that no thread changes the heap during the call.
    pub(crate) fn of<P: Pmem>(
        pmem: &P,
        layout: &Layout,
        chunk_count: u64,
        mut each: impl FnMut(Block),
    ) -> Self {
        let chunks =
            vec![ChunkReport::default(); usize::try_from(chunk_count).expect("fewer than 2^32 chunks")];
        let mut report = Self { chunks, ..Self::default() };
        let scanner = Scanner { pmem, layout, chunk_count };
        let mut cursor = ChunkCursor::default();
        while let Some((chunk, content)) = cursor.next(scanner) {
            let start = match content {
                Content::Huge(header, ..) => {
                    let payload = layout.first_payload(chunk);
                    each(Block { payload, lines: header.lines, state: header.state });
                    report.count(layout, chunk, header.state, 1..1 + header.lines);
                    continue;
                }
                Content::Free => Start::Chain(1),
                Content::Headers(start) => start,
            };
            report.check_chunk(scanner, chunk, start, &mut each);
        }
        report
    }

    fn check_chunk<P: Pmem>(
        &mut self,
        scanner: Scanner<'_, P>,
        chunk: u64,
        start: Start,
        each: &mut impl FnMut(Block),
    ) {
        let layout = scanner.layout;
        let block = |lines: Range<u32>, state| {
            let payload = line_offset(layout, chunk, lines.start);
            Block { payload, lines: lines.end - lines.start, state }
        };
        // In an unreachable extent, a former block whose header is intact may overlap other blocks. Each line counts once.
        let mut counted = chunk_lines(layout);
        for step in scanner.walk(chunk, start) {
            match step {
                Step::Intact(state, lines) => {
                    each(block(lines.clone(), state));
                    self.count(layout, chunk, state, lines);
                }
                Step::Unreachable(corruption, lines) => {
                    self.lost_blocks += u64::from(corruption.is_none() && start != Start::Unreachable);
                    self.corruptions.extend(corruption);
                    self.lost_bytes += u64::from(lines.end - lines.start) * LINE_BYTES;
                    self.spread(layout, chunk, &lines, |chunk| &mut chunk.lost_bytes);
                    counted = lines.start;
                }
                Step::Resynchronized(lines) => {
                    if counted < lines.start {
                        each(block(counted..lines.start, BlockState::Unreachable));
                    }
                    self.allocated_blocks += 1;
                    self.recount_lost_as_allocated(chunk, lines.end.saturating_sub(lines.start.max(counted)));
                    counted = counted.max(lines.end);
                    each(block(lines, BlockState::Allocated));
                }
                Step::End(corruption) => self.corruptions.push(corruption),
            }
        }
        if counted < chunk_lines(layout) {
            each(block(counted..chunk_lines(layout), BlockState::Unreachable));
        }
    }

    /// Counts as allocated some lines of a chunk that were first counted as lost.
    fn recount_lost_as_allocated(&mut self, chunk: u64, lines: u32) {
        let bytes = u64::from(lines) * LINE_BYTES;
        self.lost_bytes -= bytes;
        self.allocated_bytes += bytes;
        let chunk = &mut self.chunks[usize::try_from(chunk).expect("fewer than 2^32 chunks")];
        chunk.lost_bytes -= bytes;
        chunk.allocated_bytes += bytes;
    }

    fn count(&mut self, layout: &Layout, chunk: u64, state: BlockState, lines: Range<u32>) {
        let bytes = u64::from(lines.end - lines.start) * LINE_BYTES;
        match state {
            BlockState::Free => {
                self.free_blocks += 1;
                self.free_bytes += bytes;
                self.spread(layout, chunk, &lines, |chunk| &mut chunk.free_bytes);
            }
            BlockState::Allocated => {
                self.allocated_blocks += 1;
                self.allocated_bytes += bytes;
                self.spread(layout, chunk, &lines, |chunk| &mut chunk.allocated_bytes);
            }
            BlockState::Lost | BlockState::End | BlockState::Unreachable => {
                self.lost_blocks += 1;
                self.lost_bytes += bytes;
                self.spread(layout, chunk, &lines, |chunk| &mut chunk.lost_bytes);
            }
        }
    }

    /// Adds the bytes of these lines to a field of each chunk that contains some of them.
    fn spread(
        &mut self,
        layout: &Layout,
        chunk: u64,
        lines: &Range<u32>,
        field: impl Fn(&mut ChunkReport) -> &mut u64,
    ) {
        let in_chunk = chunk_lines(layout);
        let mut line = lines.start;
        while line < lines.end {
            let at = chunk + u64::from(line / in_chunk);
            let next = lines.end.min((line / in_chunk + 1) * in_chunk);
            let index = usize::try_from(at).expect("fewer than 2^32 chunks");
            *field(&mut self.chunks[index]) += u64::from(next - line) * LINE_BYTES;
            line = next;
        }
    }
}
