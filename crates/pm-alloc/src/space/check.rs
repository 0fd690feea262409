//! Looking at every header of a heap, and making chains whole again.

use super::arena::Arena;
use super::chunk::ChunkMap;
use super::corruption::Corruption;
use super::heap_space::Space;
use super::pool::{Home, Pool};
use super::scan::{Chunks, Content, Start, Step, chunk_lines, end_of, severed_extent, walk};
use crate::format::{BLOCK_HEADER_BYTES, BlockHeader, BlockState, LINE_BYTES};
use crate::layout::Layout;
use crate::sync::atomic::Ordering;
use core::ops::Range;
use pm_core::{FenceError, Pmem};

/// The header that ends a chunk.
const END: BlockHeader = BlockHeader::new(BlockState::End, 0);

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
    /// Headers that are corrupted.
    pub corruptions: Vec<Corruption>,
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
    /// Bytes that are lost: below corrupted headers, or made nobody's by a repair.
    pub lost_bytes: u64,
}

impl CheckReport {
    /// Whether no header is corrupted.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.corruptions.is_empty()
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
        let mut chunks = Chunks::default();
        while let Some((chunk, content)) = chunks.next(pmem, layout, chunk_count) {
            let start = match content {
                Content::Huge(header, ..) => {
                    let payload = layout.first_payload(chunk);
                    each(Block { payload, lines: header.lines, state: header.state });
                    report.count(layout, chunk, header.state, 1..1 + header.lines);
                    continue;
                }
                Content::Fresh => Start::Chain(1),
                Content::Headers(start) => start,
            };
            let block = |lines: Range<u32>, state| {
                let payload = layout.chunk_offset(chunk) + u64::from(lines.start) * LINE_BYTES;
                Block { payload, lines: lines.end - lines.start, state }
            };
            // Where the chain is cut, headers of former blocks may lie over others: each line counts once.
            let mut counted = chunk_lines(layout);
            walk(pmem, layout, chunk_count, chunk, start, |step| match step {
                Step::Intact(state, lines) => {
                    each(block(lines.clone(), state));
                    report.count(layout, chunk, state, lines);
                }
                Step::Severed(corruption, lines) => {
                    report.lost_blocks += u64::from(corruption.is_none() && start != Start::Severed);
                    report.corruptions.extend(corruption);
                    report.lost_bytes += u64::from(lines.end - lines.start) * LINE_BYTES;
                    report.spread(layout, chunk, &lines, |chunk| &mut chunk.lost_bytes);
                    counted = lines.start;
                }
                Step::Inside(lines) => {
                    if counted < lines.start {
                        each(block(counted..lines.start, BlockState::Severed));
                    }
                    report.allocated_blocks += 1;
                    report.find_in_lost(chunk, lines.end.saturating_sub(lines.start.max(counted)));
                    counted = counted.max(lines.end);
                    each(block(lines, BlockState::Allocated));
                }
                Step::End(corruption) => report.corruptions.push(corruption),
            });
            if counted < chunk_lines(layout) {
                each(block(counted..chunk_lines(layout), BlockState::Severed));
            }
        }
        report
    }

    /// So many lines of a chunk are allocated that were counted as lost.
    fn find_in_lost(&mut self, chunk: u64, lines: u32) {
        let bytes = u64::from(lines) * LINE_BYTES;
        self.lost_bytes -= bytes;
        self.allocated_bytes += bytes;
        let chunk = &mut self.chunks[usize::try_from(chunk).expect("chunks have an index")];
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
            BlockState::Lost | BlockState::End | BlockState::Severed => {
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

    /// The header that repairs the chain at a corruption, and where to store it. The lines below it are never handed out again. The
    /// caller checkpoints the log, then stores the header durably without the log before anything else: a logged header could be
    /// replayed over the contents of a later block.
    ///
    /// `None` if this corruption is not there any more, or is not of a header.
    ///
    /// # Errors
    /// When a fence fails, of what has to be learned of the chunk.
    pub(crate) fn repair<P: Pmem>(
        &self,
        pmem: &P,
        corruption: &Corruption,
    ) -> Result<Option<(u64, u64)>, FenceError> {
        let offset = corruption.header_offset;
        let chunk = self.layout.chunk_of(offset).filter(|chunk| *chunk < self.chunk_count());
        let Some(chunk) = chunk.filter(|_| offset % LINE_BYTES == LINE_BYTES - BLOCK_HEADER_BYTES) else {
            return Ok(None);
        };
        if pmem.load_u64(offset) != corruption.found {
            return Ok(None);
        }
        let line = u32::try_from((offset - self.layout.chunk_offset(chunk)) / LINE_BYTES + 1);
        let line = line.expect("lines of a chunk");
        let mut pool = self.pool.lock();
        self.learn_through(&mut pool, pmem, chunk)?;
        self.adopt_unscanned(&mut pool, self.own_arena(), pmem, chunk)?;
        if pool.fresh.remove(&chunk) {
            self.has_fresh.store(!pool.fresh.is_empty(), Ordering::Release);
            self.adopt(&pool, self.own_arena(), ChunkMap::whole(chunk, chunk_lines(&self.layout)));
        }
        let found = BlockHeader::from_word(corruption.found, self.layout.seed, offset);
        let header = match self.home(chunk) {
            Home::Arena { arena, slot } => {
                let chunks = if line == 1 { self.severed_with(&mut pool, pmem, chunk)? } else { 1 };
                self.arena(arena as usize).give_up(slot, line, chunks, found)
            }
            Home::Huge if line == 1 => {
                let block = pool.huge.get_mut(&chunk);
                let block = block.filter(|block| found.is_none_or(|found| found.lines != block.lines));
                let header = block.map(|block| {
                    (block.is_live, block.is_lost) = (false, true);
                    BlockHeader::new(BlockState::Lost, block.lines)
                });
                if header.is_some() {
                    // One that was freed is not made chunks again.
                    pool.waiting.retain(|freed| u64::from(freed.at) != chunk);
                }
                header
            }
            // A block longer than a chunk may end where the last of its chunks does.
            Home::Covered if line == chunk_lines(&self.layout) => {
                let block = pool.huge.range(..chunk).next_back();
                let block = block.filter(|(first, block)| {
                    end_of(&self.layout, **first, block.lines) == (chunk, line) && found != Some(END)
                });
                block.map(|_| END)
            }
            Home::Huge | Home::Covered | Home::Pool => None,
        };
        Ok(header.map(|header| (offset, header.to_word(self.layout.seed, offset))))
    }

    /// How many chunks are out of reach with this one, whose first header is corrupted: it, and those behind it that have none either,
    /// and are not known from before theirs was hit.
    fn severed_with<P: Pmem>(&self, pool: &mut Pool, pmem: &P, chunk: u64) -> Result<u64, FenceError> {
        let told = severed_extent(pmem, &self.layout, self.chunk_count(), chunk, 1);
        let most = (told.end - self.layout.chunk_offset(chunk)) / self.layout.chunk_bytes;
        for behind in 1..most {
            self.learn_through(pool, pmem, chunk + behind)?;
            let is_severed = match self.home(chunk + behind) {
                Home::Arena { arena, slot } => self.arena(arena as usize).map(slot).severed_from == 0,
                Home::Pool => pool.unscanned.get(&(chunk + behind)) == Some(&Start::Severed),
                Home::Huge | Home::Covered => false,
            };
            if !is_severed {
                return Ok(behind);
            }
        }
        Ok(most)
    }
}

impl Arena {
    /// Takes what a corrupted header at a line belongs to out of use for good, and says which header shows it. `found` is what the
    /// header says now, if it is one: where that is right, there is nothing to give up. Where the chain is cut there, so many `chunks` are
    /// out of reach.
    fn give_up(
        &mut self,
        slot: u32,
        line: u32,
        chunks: u64,
        found: Option<BlockHeader>,
    ) -> Option<BlockHeader> {
        let map = self.map(slot);
        if line == map.lines {
            // Behind a cut nothing shows that the chunk ends here: it may be inside of a block.
            return (map.severed_from == line && found != Some(END)).then_some(END);
        }
        if line == map.severed_from {
            let lines = u32::try_from(chunks * u64::from(map.lines) - u64::from(line)).ok()?;
            let header = BlockHeader::new(BlockState::Severed, lines);
            return found.is_none_or(|found| found.state != BlockState::Severed).then_some(header);
        }
        if line > map.severed_from || !map.starts.get(line) {
            return None;
        }
        let lines = line..map.next_start(line);
        let header = BlockHeader::new(BlockState::Lost, lines.end - lines.start);
        if found.is_some_and(|found| found.lines == header.lines) {
            return None;
        }
        let free = (!map.used.get(line)).then(|| map.extent_around(line));
        self.withdraw(slot, lines.clone());
        if let Some(free) = free {
            self.hint(slot, free.start..lines.start);
            self.hint(slot, lines.end..free.end);
        }
        Some(header)
    }
}
