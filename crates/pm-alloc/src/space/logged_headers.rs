//! Restoring the chains of headers after log entries were discarded.
//!
//! # Invariant
//! Let T be the discarded transactions. The entries of all others, the intact transactions, are readable. After
//! [`LoggedHeaders::restore_chains`]
//!
//! 1. every block that is live by the intact transactions is allocated, by its own header, which a chain reaches or which is listed in an
//!    unreachable extent; no free block of a chain covers one of its lines;
//! 2. a block that an intact transaction freed is not allocated, unless it is in an unreachable extent;
//! 3. blocks that T allocated or freed may be allocated or free.
//!
//! # Why the headers in place do not suffice
//! T splits a free block in two: its own block and the rest. Other transactions allocate from the rest at once, in other lanes. If T is
//! discarded, the header in place is that of the whole free block, and the chain skips all later changes in the rest: blocks that were
//! allocated there (violates 1), and a free header that covers the rest coalesced with a freed block after it (violates 2), whose own
//! header still has the state allocated. Moreover, a header in place may be that of a former block. So no header is trusted because it is
//! in place.
//!
//! # Why the log suffices
//! The log shows which words were headers, and in which order. A header is logged as a pair, and user bytes that are a valid header at
//! their offset never are ([`Writes`](crate::log)). Let K be the headers of all intact groups from an LSN `k` on, which
//! [`Replayed::pairs`] returns: no group above `k` was overwritten, and no discarded entry that was live is below `k`. A header of K was
//! right when its group committed. So if two headers of K overlap, the earlier one was changed since: a header removes the earlier ones
//! that start on its lines, and an earlier allocated block around it. A header that is not removed, and is in place, is *standing*. In
//! particular, no header of K is later than a standing allocated block and overlaps it.
//!
//! The walk along a chain visits only headers that were part of the chain at some time after `k`:
//!
//! - The first header of a chunk was: T stores the first header of its blocks last, so its offset contains either T's header or the one
//!   right before it.
//! - A standing header was, when it was logged.
//! - So was the header after a visited one. When the visited one was part of the chain, a block started after it, whose header was durable
//!   before the visited one led to it: in a commit by [`Reservation::inner_and_front`], in recovery by the headers that replay stores
//!   first, without the log by a fence between the two. A later word at that offset is a header again; or, if a block of T or one that was
//!   never committed covered it, contents. If those contents are no header, the chain is broken there, and nothing after it is allocated.
//!
//! Let B be a block that is live by the intact transactions and lies on lines of a visited header. B was allocated after the time of the
//! visited header, as those lines were free, or another block's, at that time. So B's header is in K. It is standing, because nothing
//! overlaps a live block. The visited block is cut at the first standing allocated header inside it, which is B's or an earlier one. So no
//! remaining free block covers a line of a live block, and the walk does not skip a live block (1). This depends neither on how many
//! entries were discarded, nor on whether they were live.
//!
//! Where a block is cut depends on T:
//!
//! - T is live, and not in place. A chain leads across the rest of the block that T allocated from. Other transactions may have allocated
//!   there (1), or freed the block after it together with the rest. So a free block is also cut at a standing free header whose block ends
//!   after it (2). Standing free headers that end inside it need no cut.
//! - T is dead, and in place: the chain is right. But T's headers are missing in K, so the header of a block that T freed, or covered, may
//!   be standing, and is cut out of a free block. That costs free lines (3), and may lead to older headers that T covered. An allocated
//!   header that is not in K is such an older one if another header is standing inside it, and it is cut there, too.
//! - Headers that are stored without the log (a trim, a join, the chunks of a free huge block that is split) are inside free blocks, or
//!   where no live entry targets them: T is dead then.
//! - A free huge block from which T's block was split off is split into chunks again, if headers are standing inside it. An allocated one
//!   has its header at the start of a chunk, and is part of the chain.
//! - An uninitialized block of T may cover several free blocks, and the program may have filled it after T: then the chain is broken at the
//!   first header that is overwritten. Free lines after it stay unused.
//!
//! One case is not excluded: contents that are a header older than `k`, which the program copied from the same offset before another
//! block's header was stored there.
//!
//! [`Reservation::inner_and_front`]: super::Reservation::inner_and_front
//! [`Replayed::pairs`]: crate::log::Replayed::pairs

use super::headers::{
    block_end, chunk_lines, header_offset, header_word, read, split_inner, split_off_first,
};
use super::scanner::{ChunkCursor, Content, Scanner, Start};
use crate::format::{BLOCK_HEADER_BYTES, BlockHeader, BlockState, LINE_BYTES};
use crate::layout::Layout;
use core::ops::Range;
use pm_core::{FenceError, Pmem};
use std::collections::BTreeMap;

/// A header that a group stores. Lines are counted from the start of chunk 0, as huge blocks are longer than a chunk.
#[derive(Clone, Copy, Debug)]
struct Logged {
    line: u64,
    header: BlockHeader,
}

impl Logged {
    /// Decodes this word, if it is a header that a free or allocated block can have at `offset`.
    fn of(layout: &Layout, chunk_count: u64, offset: u64, word: u64) -> Option<Self> {
        let header = BlockHeader::from_word(word, layout.seed, offset)?;
        let bytes = (offset + BLOCK_HEADER_BYTES).checked_sub(layout.chunk_offset(0))?;
        let logged = Self { line: bytes / LINE_BYTES, header };
        let in_chunk = layout.chunk_lines();
        let (chunk, line) = (logged.line / in_chunk, logged.line % in_chunk);
        let is_block = matches!(header.state, BlockState::Free | BlockState::Allocated)
            && line > 0
            && bytes.is_multiple_of(LINE_BYTES);
        let end = if line == 1 { chunk_count } else { chunk + 1 };
        (is_block && chunk < chunk_count && logged.end() <= end * in_chunk).then_some(logged)
    }

    fn end(&self) -> u64 {
        self.line + u64::from(self.header.lines)
    }

    fn is_allocated(&self) -> bool {
        self.header.state == BlockState::Allocated
    }
}

/// The headers that the intact transactions logged.
#[derive(Debug)]
pub(crate) struct LoggedHeaders<'l> {
    layout: &'l Layout,
    chunk_count: u64,
    /// By line, those that no later one overlaps; a free header stays although a later one lies inside its block.
    standing: BTreeMap<u64, Logged>,
}

impl<'l> LoggedHeaders<'l> {
    /// No headers yet, of a heap with `chunk_count` chunks.
    pub(crate) const fn new(layout: &'l Layout, chunk_count: u64) -> Self {
        Self { layout, chunk_count, standing: BTreeMap::new() }
    }

    /// Adds a pair that a group stores, if it is a header. To be called in the order of LSNs.
    pub(crate) fn note(&mut self, offset: u64, word: u64) {
        let Some(logged) = Logged::of(self.layout, self.chunk_count, offset, word) else { return };
        // The group that freed the block around it is missing.
        if let Some((&line, before)) = self.standing.range(..logged.line).next_back()
            && before.is_allocated()
            && logged.line < before.end()
        {
            self.standing.remove(&line);
        }
        self.standing.extract_if(logged.line..logged.end(), |_, _| true).for_each(drop);
        self.standing.insert(logged.line, logged);
    }

    /// Restores the chains of the intact transactions; see the module's documentation.
    ///
    /// # Durability
    /// One fence, and two more for each free huge block that is split. A crash before they complete leaves each free block unchanged, cut or
    /// split; the next recovery finds the same entries and completes the work.
    ///
    /// # Errors
    /// When a fence fails.
    pub(crate) fn restore_chains<P: Pmem>(self, pmem: &P) -> Result<(), FenceError> {
        if self.standing.is_empty() {
            return Ok(());
        }
        let in_chunk = self.layout.chunk_lines();
        let scanner = Scanner { pmem, layout: self.layout, chunk_count: self.chunk_count };
        let mut cursor = ChunkCursor::default();
        while let Some((chunk, content)) = cursor.next(scanner) {
            match content {
                Content::Free => self.restore_chain(pmem, chunk, 1),
                Content::Headers(Start::Chain(first)) => self.restore_chain(pmem, chunk, first),
                // Nothing in an unreachable extent is free.
                Content::Headers(Start::Unreachable) => {}
                Content::Huge(header, last) => {
                    let start = chunk * in_chunk + 1;
                    let block = start..start + u64::from(header.lines);
                    if header.state == BlockState::Free
                        && self.first_standing(pmem, header.state, block).is_some()
                    {
                        split_inner(pmem, self.layout, chunk, header.lines);
                        pmem.fence()?;
                        split_off_first(pmem, self.layout, chunk);
                        pmem.fence()?;
                        (chunk..=last).for_each(|chunk| self.restore_chain(pmem, chunk, 1));
                    }
                }
            }
        }
        pmem.fence()
    }

    /// The line of the first standing header inside a block in this state at which the block is to be cut.
    fn first_standing<P: Pmem>(&self, pmem: &P, state: BlockState, block: Range<u64>) -> Option<u64> {
        let inside = self.standing.range(block.start + 1..block.end).map(|(_, logged)| logged);
        // An uninitialized block of T may cover former free blocks.
        let is_cut =
            |logged: &&Logged| logged.is_allocated() || state == BlockState::Free && logged.end() > block.end;
        let mut inside = inside.filter(is_cut);
        let found = inside.find(|logged| {
            let in_chunk = self.layout.chunk_lines();
            #[expect(clippy::cast_possible_truncation, reason = "a chunk has at most 2^28 lines")]
            let line = (logged.line % in_chunk) as u32;
            read(pmem, self.layout, logged.line / in_chunk, line).1 == Some(logged.header)
        });
        found.map(|logged| logged.line)
    }

    fn restore_chain<P: Pmem>(&self, pmem: &P, chunk: u64, first: u32) {
        let (start, end) = (chunk * self.layout.chunk_lines(), chunk_lines(self.layout));
        if self.standing.range(start..start + u64::from(end)).next().is_none() {
            return;
        }
        let mut line = first;
        while line < end {
            let header = read(pmem, self.layout, chunk, line).1;
            let next = header.and_then(|header| block_end(header, line, end).map(|next| (header, next)));
            // Nothing after a broken chain is free.
            let next = next.filter(|(header, _)| header.state != BlockState::Unreachable);
            let Some((header, mut next)) = next else { return };
            let block = start + u64::from(line)..start + u64::from(next);
            if let Some(at) = self.first_standing(pmem, header.state, block) {
                #[expect(clippy::cast_possible_truncation, reason = "a line of the chunk")]
                let at = (at - start) as u32;
                let (offset, word) = header_word(self.layout, chunk, header.state, line..at);
                pmem.store_u64(offset, word);
                next = at;
            }
            // Flushed also if it is not cut here: a killed recovery may have cut it, visibly and not durably.
            pmem.flush(header_offset(self.layout, chunk, line), BLOCK_HEADER_BYTES);
            line = next;
        }
    }
}
