//! Looking at every header of a heap, and making chains whole again.

use super::damage::{Damage, DamageKind};
use super::heap_space::Space;
use super::pool::Home;
use super::scan::{Step, chunk_lines, read, scan, walk};
use crate::format::{BlockHeader, BlockState, LINE_BYTES};
use crate::layout::Layout;
use crate::sync::lock_intact;
use core::ops::Range;
use pm_core::Pmem;

/// A block, as its header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Block {
    /// Where its payload starts in the region.
    pub payload: u64,
    /// How long it is, in lines of 64 bytes. The last word of the last line is the header of the next block.
    pub lines: u32,
    /// Its state.
    pub state: BlockState,
}

/// What a look at every header found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckReport {
    /// Allocated blocks.
    pub allocated_blocks: u64,
    /// Their bytes, headers included.
    pub allocated_bytes: u64,
    /// Free blocks. Neighbours count as several.
    pub free_blocks: u64,
    /// Their bytes.
    pub free_bytes: u64,
    /// Blocks that a repair made nobody's.
    pub lost_blocks: u64,
    /// Their bytes.
    pub lost_bytes: u64,
    /// Headers that are damaged.
    pub damages: Vec<Damage>,
    /// The chunks, one by one.
    pub chunks: Vec<ChunkReport>,
}

/// What lies in one chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChunkReport {
    /// Bytes of allocated blocks, or of the parts of them that lie here.
    pub allocated_bytes: u64,
    /// Bytes that are free.
    pub free_bytes: u64,
    /// Bytes that are lost: below damaged headers, or made nobody's by a repair.
    pub lost_bytes: u64,
}

impl CheckReport {
    /// Whether no header is damaged.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.damages.is_empty()
    }

    /// Looks at all headers of a heap. Sound while nobody changes it.
    /// `each` is told of every block.
    pub(crate) fn of<P: Pmem>(
        pmem: &P,
        layout: &Layout,
        chunk_count: u64,
        mut each: impl FnMut(Block),
    ) -> Self {
        let chunks =
            vec![ChunkReport::default(); usize::try_from(chunk_count).expect("chunks have an index")];
        let mut report = Self { chunks, ..Self::default() };
        let (in_chunk, mut chunk, mut first) = (chunk_lines(layout), 0, 1);
        while chunk < chunk_count {
            let huge = if first == 1 { read(pmem, layout, chunk, 1).1 } else { None };
            let huge = huge.filter(|header| {
                let end = chunk * u64::from(in_chunk) + 1 + u64::from(header.lines);
                header.lines >= in_chunk && end <= chunk_count * u64::from(in_chunk)
            });
            if let Some(header) = huge {
                let payload = layout.first_payload(chunk);
                each(Block { payload, lines: header.lines, state: header.state });
                report.count(layout, chunk, header.state, 1..1 + header.lines);
                chunk += u64::from(header.lines / in_chunk);
                first = header.lines % in_chunk + 1;
                continue;
            }
            walk(pmem, layout, chunk, first, |step| match step {
                Step::Intact(state, lines) => {
                    let payload = layout.chunk_offset(chunk) + u64::from(lines.start) * LINE_BYTES;
                    each(Block { payload, lines: lines.end - lines.start, state });
                    report.count(layout, chunk, state, lines);
                }
                Step::Damaged(damage, lines) => {
                    report.damages.push(damage);
                    report.spread(layout, chunk, &lines, |chunk| &mut chunk.lost_bytes);
                }
            });
            (chunk, first) = (chunk + 1, 1);
        }
        report
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
            BlockState::Lost | BlockState::End => {
                self.lost_blocks += 1;
                self.lost_bytes += bytes;
                self.spread(layout, chunk, &lines, |chunk| &mut chunk.lost_bytes);
            }
        }
    }

    /// Adds lines to the chunks over which they lie.
    fn spread(
        &mut self,
        layout: &Layout,
        chunk: u64,
        lines: &Range<u32>,
        figure: impl Fn(&mut ChunkReport) -> &mut u64,
    ) {
        let in_chunk = chunk_lines(layout);
        let mut line = lines.start;
        while line < lines.end {
            let at = chunk + u64::from(line / in_chunk);
            let next = lines.end.min((line / in_chunk + 1) * in_chunk);
            let index = usize::try_from(at).expect("chunks have an index");
            *figure(&mut self.chunks[index]) += u64::from(next - line) * LINE_BYTES;
            line = next;
        }
    }
}

impl Space {
    /// Looks at all headers, of what was not looked at yet too. Sound while nobody changes the heap.
    pub(crate) fn check<P: Pmem>(&self, pmem: &P) -> CheckReport {
        CheckReport::of(pmem, &self.layout, self.chunk_count(), |_| ())
    }

    /// The word that makes a chain whole again where it is damaged, and where to store it: what lies there becomes
    /// nobody's for good. To be stored through the log, and followed by [`repaired`](Self::repaired).
    ///
    /// A repair is for somebody to decide who knows that what the extent holds is not needed, or was saved: behind a
    /// damaged header may lie more than one block.
    ///
    /// `None` if what is there is not that damage any more.
    pub(crate) fn repair<P: Pmem>(&self, pmem: &P, damage: &Damage) -> Option<(u64, u64)> {
        let offset = damage.header_offset;
        if pmem.load_u64(offset) != damage.found {
            return None;
        }
        let lines = u32::try_from((damage.extent.end - damage.extent.start) / LINE_BYTES).ok()?;
        let header = match damage.kind {
            DamageKind::End => BlockHeader::new(BlockState::End, 0),
            DamageKind::Known | DamageKind::Resynchronized => BlockHeader::new(BlockState::Lost, lines),
        };
        Some((offset, header.to_word(self.layout.seed, offset)))
    }

    /// Looks at a chunk anew, after a repair. No transaction may be under way, and blocks that wait go on waiting.
    pub(crate) fn repaired<P: Pmem>(&mut self, pmem: &P, damage: &Damage) {
        // The header of what starts at line 1 lies in line 0, and that of the end in the last line.
        let Some(chunk) =
            self.layout.chunk_of(damage.header_offset).filter(|chunk| *chunk < self.chunk_count())
        else {
            return;
        };
        let Home::Arena { arena, slot } = self.home(chunk) else { return };
        let pool = lock_intact(&self.pool);
        let mut arena = self.arena(arena as usize);
        let first = arena.map(slot).first;
        let mut found = Vec::new();
        let mut map = scan(pmem, &self.layout, chunk, first, &mut found);
        for freed in arena.waiting.iter().filter(|freed| freed.at == slot) {
            if !map.used.get(freed.line) {
                map.hold(freed.line..freed.line + freed.lines);
            }
        }
        let mut line = first;
        while let Some(extent) = map.extent_behind(line) {
            line = extent.end;
            arena.hints.push(slot, extent.start, extent.end - extent.start);
        }
        *arena.map(slot) = map;
        drop(pool);
    }
}
