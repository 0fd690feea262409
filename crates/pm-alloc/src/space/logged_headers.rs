//! Restoring the chains of headers after log entries were discarded.
//!
//! # Invariant
//! Let T be the discarded transactions; the entries of all others are intact. After [`LoggedHeaders::restore_chains`]
//!
//! 1. every block that is live by the intact transactions is allocated, by its own header, which a chain reaches or which is listed in an
//!    unreachable extent; no free block of a chain covers one of its lines;
//! 2. a block that an intact transaction freed is not allocated, unless it is in an unreachable extent;
//! 3. only blocks that T allocated or freed may be either.
//!
//! # Why the headers in place are not enough
//! T splits a free block in two: its block and the rest. Other transactions use the rest at once, in other lanes. When T is discarded, the
//! header of the whole free block is in place, and the chain passes over all that happened in the rest: blocks that were allocated there
//! (1), and a free header that is the rest coalesced with a freed block behind it (2), whose own header still says that it is allocated. A
//! header in place may be that of a former block, so no header is trusted because it is in place.
//!
//! # Why the log is enough
//! The log shows which words were headers, and when. A header is logged as a pair, and bytes of a user that are a valid header at their
//! place never are ([`pack`](crate::log)). Let K be the headers of all intact groups from an LSN `k` on, from which
//! `Replayed::for_each_pair` reports: no group above `k` was overwritten, and no discarded entry that was live is below `k`. A header of K
//! was right when its group committed, so of two that overlap the earlier one was changed since: a header removes those that start on its
//! lines, and the allocated block that it lies inside of. A header that is left, and is in place, is *standing*. In particular no header
//! of K overlaps a standing allocated block that is later than it.
//!
//! The walk through a chain visits only headers that were part of the chain at some moment after `k`:
//!
//! - The first header of a chunk was: T changes the first header of its blocks last, so this place contains either T's header or the one
//!   right before it.
//! - A standing header was, when it was logged.
//! - So was the header behind a visited one. At the moment when the visited one was part of the chain, a block started behind it, whose
//!   header is durable before the visited one leads there: in a commit by [`Reservation::inner_and_front`], in recovery by the words that
//!   replay stores first, without the log by a fence between the two. A later word at that place is a header again; or, where a block was
//!   laid over it that was T's or was never committed, contents. If those are no header, the chain is broken there, and nothing behind is
//!   allocated.
//!
//! A block that is live by the intact transactions, and lies inside of the lines of a visited header, was allocated after that moment, as
//! those lines were free or another block's then. So its header is in K; it stands, as nothing overlaps a live block; and the visited
//! block is cut at the first allocated header that stands inside of it, or before. So no remaining free block has a line of a live one,
//! and the walk does not pass over a live block (1). This does not depend on how many entries were discarded, nor on whether they were
//! live.
//!
//! Where a block is cut depends on T:
//!
//! - T is live, and not in place. A chain leads over the rest of the block that T allocated from, where others may have allocated (1), or
//!   freed the block behind it together with the rest. So a free block is cut at a standing free one that ends behind it, too (2). Free
//!   ones inside are free as a part of it.
//! - T is dead, and in place: the chain is right. But T is missing in K: a block that T freed, or covered, may stand, and is cut out of a
//!   free block. That costs free lines (3), and may lead to older headers that T covered. An allocated one that is not in K is such a
//!   header if another one stands inside of it, and is cut there, too.
//! - Headers that are stored without the log (a trim, a join, the chunks of a free huge block that is split) are in free blocks, or where
//!   no live entry aims: T is dead then.
//! - A free huge block that T's block was split from is split into chunks again, if headers stand inside of it. An allocated one is at the
//!   first header of a chunk, and is part of the chain.
//! - An uninitialized block of T may cover several free blocks, and be filled by the program after T: then the chain is broken at the
//!   first header that is overwritten. Free lines behind it stay unused.
//!
//! One case is not excluded: that such contents are a header which is older than `k`, and which the program copied from the very same
//! place before another block's header was stored there.
//!
//! [`Reservation::inner_and_front`]: super::Reservation::inner_and_front

use super::headers::{
    block_end, chunk_lines, header_offset, header_word, read, split_inner, split_off_first,
};
use super::scanner::{ChunkCursor, Content, Scanner, Start};
use crate::format::{BLOCK_HEADER_BYTES, BlockHeader, BlockState, LINE_BYTES};
use crate::layout::Layout;
use core::ops::Range;
use pm_core::{FenceError, Pmem};
use std::collections::BTreeMap;

/// A header that a group wrote. Lines are counted from the start of the first chunk, as huge blocks are longer than a chunk.
#[derive(Clone, Copy, Debug)]
struct Logged {
    line: u64,
    header: BlockHeader,
}

impl Logged {
    /// From this word, if it is a header that a free or allocated block can have there.
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

/// The headers that the intact transactions wrote.
#[derive(Debug)]
pub(crate) struct LoggedHeaders<'l> {
    layout: &'l Layout,
    chunk_count: u64,
    /// Those that no later one overlaps, except free ones that a later one lies inside of, by line.
    standing: BTreeMap<u64, Logged>,
}

impl<'l> LoggedHeaders<'l> {
    /// No headers, of a heap with so many chunks.
    pub(crate) const fn new(layout: &'l Layout, chunk_count: u64) -> Self {
        Self { layout, chunk_count, standing: BTreeMap::new() }
    }

    /// Adds a pair that a group wrote, if it is a header. Pairs come in the order of their LSNs.
    pub(crate) fn note(&mut self, offset: u64, word: u64) {
        let Some(logged) = Logged::of(self.layout, self.chunk_count, offset, word) else { return };
        // The group that freed the block before is missing.
        if let Some((&line, before)) = self.standing.range(..logged.line).next_back()
            && before.is_allocated()
            && logged.line < before.end()
        {
            self.standing.remove(&line);
        }
        self.standing.extract_if(logged.line..logged.end(), |_, _| true).for_each(drop);
        self.standing.insert(logged.line, logged);
    }

    /// Restores the chains that the intact transactions left; see the module's documentation.
    ///
    /// # Durability
    /// One fence, and two more for each free huge block that is split. A crash inside leaves each free block as it was, cut or split; the
    /// next recovery, which finds the same entries, completes it.
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

    /// The line of the first standing header at which a block in this state is to be cut.
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
            // Nothing behind a broken chain is free.
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
            // Also where nothing is cut: a recovery that was killed may have done so, visibly and not durably.
            pmem.flush(header_offset(self.layout, chunk, line), BLOCK_HEADER_BYTES);
            line = next;
        }
    }
}
