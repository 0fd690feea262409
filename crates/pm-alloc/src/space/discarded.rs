//! The chains of headers after an entry of the log was discarded.
//!
//! # Invariant
//! Let T be the transactions that were discarded, and all others intact. After [`LoggedHeaders::restore_chains`]
//!
//! 1. every block that is live by the intact transactions is allocated, by its own header, which a chain reaches or a
//!    cut chain lists; no free block of a chain lies over one of its lines;
//! 2. what an intact transaction freed is not allocated, unless it lies behind the cut of a chain;
//! 3. only blocks that T allocated or freed may be either.
//!
//! # Why headers in place are not enough
//! T cuts a free block in two: its block and the rest. Others use the rest at once, in other lanes. When T is
//! discarded, the header in front is that of the whole free block, and the chain passes over all that happened in the
//! rest: blocks that were allocated there (1), and a free header that is the rest with a freed block behind it (2),
//! whose own header still says that it is allocated. A header in place may be that of a former block, so none is
//! trusted because it is there.
//!
//! # Why this is enough
//! T is discarded with effect only if its stamp is above the horizon. Then every later entry is in a ring still, and
//! lanes lose no entry above the stamps from which `Replayed::for_each_group` reports,
//! which T is above too. So the headers that groups wrote, in the order of their stamps, are known from before T on:
//! a header removes those that lie on its lines behind it. One that is left, and is in place, is *standing*.
//!
//! - Where T did not change the chain, the headers in place are right. T changed it only inside of the free blocks
//!   that it allocated from; what T allocated or freed is not used again while T is above the horizon, so all that
//!   happened there happened in T's rest.
//! - So a free block that a chain reaches is cut at the first standing header on its lines which is of an allocated
//!   block, or of a free one that goes on behind its end. Free ones inside are free as a part of it, too.
//! - The chain then goes on at a header in place that was stored with, or before, the standing one, and that no later
//!   one passed over. That of T's own rest is durable before T's first header is stored
//!   (`Reservation::inner_and_front`), so half of T is a chain as well.
//! - Headers that are stored past the log are in free blocks, or at starts that no live entry aims at: there was no T
//!   whose rest they are in the front of. They differ from the entry's then, which is not standing.
//! - A free block longer than a chunk that T's block was cut from is parted into chunks again, if headers stand
//!   inside of it.
//! - An unfilled block of T may lie over several free blocks, and be filled by the program after T: then the chain is
//!   cut at the first header that is overwritten. What is free behind it stays unused.
//!
//! Bytes of a user may look like a header, if what was left in an unfilled block is written again. They lie inside of
//! an allocated block, and do not count. Inside of a block of T there may be the headers of former free blocks, too,
//! which remove those of older blocks behind T's. They are from before T, and dead: T was allocated from them. So
//! what is inside of an allocated block is contents if its entry is live, or it was written with what is beside it;
//! and contents older than T lie in front of nothing that stands in T's rest.

use super::huge::part_into_chunks;
use super::scan::{Chunks, Content, Start, block_end, chunk_lines, header_offset, header_word, read};
use crate::format::{BLOCK_HEADER_BYTES, BlockHeader, BlockState, LINE_BYTES};
use crate::layout::Layout;
use core::ops::Range;
use pm_core::{FenceError, Pmem};
use std::collections::BTreeMap;

/// Where in a line the header lies of the block behind it.
const HEADER_AT: u64 = LINE_BYTES - BLOCK_HEADER_BYTES;

/// A header that a group wrote. Lines are counted from the start of the first chunk, as blocks may be longer than a
/// chunk.
#[derive(Clone, Copy, Debug)]
struct Logged {
    line: u64,
    header: BlockHeader,
    /// Inside of an allocated block it is contents: the group wrote bytes beside it, too, or is live.
    is_contents_inside: bool,
}

impl Logged {
    /// The header that this word is, if a block can have it there that is free or allocated.
    fn of(layout: &Layout, chunk_count: u64, offset: u64, word: Word, is_live: bool) -> Option<Self> {
        let header = BlockHeader::from_word(u64::from_le_bytes(word.bytes), layout.seed, offset)?;
        let bytes = (offset + BLOCK_HEADER_BYTES).checked_sub(layout.chunk_offset(0))?;
        let is_contents_inside = is_live || word.has_neighbours;
        let logged = Self { line: bytes / LINE_BYTES, header, is_contents_inside };
        let in_chunk = layout.chunk_lines();
        let (chunk, line) = (logged.line / in_chunk, logged.line % in_chunk);
        let is_block = matches!(header.state, BlockState::Free | BlockState::Allocated) && line > 0;
        let end = if line == 1 { chunk_count } else { chunk + 1 };
        (is_block && chunk < chunk_count && logged.end() <= end * in_chunk).then_some(logged)
    }

    fn end(&self) -> u64 {
        self.line + u64::from(self.header.lines)
    }
}

/// The last word of a line, as far as a group wrote it.
#[derive(Clone, Copy, Debug, Default)]
struct Word {
    bytes: [u8; 8],
    count: u32,
    has_neighbours: bool,
}

/// The headers that transactions wrote whose entries are intact.
#[derive(Debug)]
pub(crate) struct LoggedHeaders<'l> {
    layout: &'l Layout,
    chunk_count: u64,
    /// In the order of their stamps.
    logged: Vec<Logged>,
    /// Those that no later one passes over, by line.
    standing: BTreeMap<u64, Logged>,
}

impl<'l> LoggedHeaders<'l> {
    /// None, of a heap with so many chunks.
    pub(crate) const fn new(layout: &'l Layout, chunk_count: u64) -> Self {
        Self { layout, chunk_count, logged: Vec::new(), standing: BTreeMap::new() }
    }

    /// Notes the headers among these bytes, which one group wrote, in the order of places and each at its offset.
    /// Groups come in the order of their stamps. A group that `is_live` may be later than a discarded one.
    #[expect(clippy::cast_possible_truncation, reason = "inside of a word, and of a write")]
    pub(crate) fn note<'w>(&mut self, writes: impl Iterator<Item = (u64, &'w [u8])>, is_live: bool) {
        // Headers are the last words of lines. Two entries may have a part each.
        let mut words: BTreeMap<u64, Word> = BTreeMap::new();
        for (offset, bytes) in writes {
            let (first, end) = (offset.saturating_sub(LINE_BYTES), offset + bytes.len() as u64);
            for header in (first.next_multiple_of(LINE_BYTES)..=end).step_by(64).map(|line| line + HEADER_AT)
            {
                let behind = header + BLOCK_HEADER_BYTES;
                let word = words.entry(header).or_default();
                word.has_neighbours |=
                    (offset < header && header <= end) || (offset <= behind && behind < end);
                for at in header.max(offset)..behind.min(end) {
                    word.bytes[(at - header) as usize] = bytes[(at - offset) as usize];
                    word.count += 1;
                }
            }
        }
        let whole = words.into_iter().filter(|(_, word)| word.count == 8);
        let (layout, count) = (self.layout, self.chunk_count);
        self.logged
            .extend(whole.filter_map(|(offset, word)| Logged::of(layout, count, offset, word, is_live)));
    }

    /// Finds those that stand.
    fn settle(&mut self) {
        self.standing.clear();
        for &logged in &self.logged {
            let before = self.standing.range(..logged.line).next_back().map(|(_, before)| before);
            let is_contents = before.is_some_and(|before| {
                before.header.state == BlockState::Allocated && logged.line < before.end()
            });
            if is_contents {
                continue;
            }
            let passed: Vec<u64> =
                self.standing.range(logged.line..logged.end()).map(|(&line, _)| line).collect();
            for line in passed {
                self.standing.remove(&line);
            }
            self.standing.insert(logged.line, logged);
        }
    }

    /// What was noted inside of a block that is not free is contents, where it was written with what is beside it, or
    /// by a live entry. Otherwise it may be the header of a former free block, over which a block of T lies.
    fn pass(&mut self, block: &Range<u64>) {
        let count = self.logged.len();
        let is_inside = |logged: &Logged| block.start < logged.line && logged.line < block.end;
        self.logged.retain(|logged| !(logged.is_contents_inside && is_inside(logged)));
        if self.logged.len() < count {
            self.settle();
        }
    }

    /// Makes the chains those that the intact transactions left, as the module's documentation says.
    ///
    /// # Durability
    /// One fence, and two more for each free block longer than a chunk that is parted. A crash inside leaves each
    /// free block as it was, cut or parted; the next recovery, which finds the same entries, does the rest.
    ///
    /// # Errors
    /// When a fence fails.
    pub(crate) fn restore_chains<P: Pmem>(mut self, pmem: &P) -> Result<(), FenceError> {
        self.settle();
        if self.standing.is_empty() {
            return Ok(());
        }
        let in_chunk = self.layout.chunk_lines();
        let mut chunks = Chunks::default();
        while let Some((chunk, content)) = chunks.next(pmem, self.layout, self.chunk_count) {
            match content {
                Content::Fresh => self.restore_chain(pmem, chunk, 1),
                Content::Headers(Start::Chain(first)) => self.restore_chain(pmem, chunk, first),
                // Nothing is free behind the cut of a chain.
                Content::Headers(Start::Severed) => {}
                Content::Huge(header, last) => {
                    let start = chunk * in_chunk + 1;
                    let block = start..start + u64::from(header.lines);
                    if header.state != BlockState::Free {
                        self.pass(&block);
                    } else if self.first_standing(pmem, block).is_some() {
                        part_into_chunks(pmem, self.layout, chunk, header.lines, || pmem.fence())?;
                        (chunk..=last).for_each(|chunk| self.restore_chain(pmem, chunk, 1));
                    }
                }
            }
        }
        pmem.fence()
    }

    /// The first line on which a free block ends before its time.
    fn first_standing<P: Pmem>(&self, pmem: &P, free: Range<u64>) -> Option<u64> {
        let inside = self.standing.range(free.start + 1..free.end).map(|(_, logged)| logged);
        let mut inside =
            inside.filter(|logged| logged.header.state == BlockState::Allocated || logged.end() > free.end);
        let found = inside.find(|logged| {
            let in_chunk = self.layout.chunk_lines();
            #[expect(clippy::cast_possible_truncation, reason = "a chunk has at most 2^28 lines")]
            let line = (logged.line % in_chunk) as u32;
            read(pmem, self.layout, logged.line / in_chunk, line).1 == Some(logged.header)
        });
        found.map(|logged| logged.line)
    }

    fn restore_chain<P: Pmem>(&mut self, pmem: &P, chunk: u64, first: u32) {
        let (start, end) = (chunk * self.layout.chunk_lines(), chunk_lines(self.layout));
        if self.standing.range(start..start + u64::from(end)).next().is_none() {
            return;
        }
        let mut line = first;
        while line < end {
            let header = read(pmem, self.layout, chunk, line).1;
            let next = header.and_then(|header| block_end(header, line, end).map(|next| (header, next)));
            // Where the chain is cut, nothing behind is free.
            let next = next.filter(|(header, _)| header.state != BlockState::Severed);
            let Some((header, mut next)) = next else { return };
            let block = start + u64::from(line)..start + u64::from(next);
            if header.state != BlockState::Free {
                self.pass(&block);
            } else if let Some(at) = self.first_standing(pmem, block) {
                #[expect(clippy::cast_possible_truncation, reason = "a line of the chunk")]
                let at = (at - start) as u32;
                let free = BlockHeader::new(BlockState::Free, at - line);
                let (offset, word) = header_word(self.layout, chunk, line, free);
                pmem.store_u64(offset, word);
                next = at;
            }
            // Also where nothing was cut: a recovery that was killed may have done so, visibly and not durably.
            pmem.flush(header_offset(self.layout, chunk, line), BLOCK_HEADER_BYTES);
            line = next;
        }
    }
}
