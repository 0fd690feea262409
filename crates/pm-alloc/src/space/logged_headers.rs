//! Restoring the chains of headers after log entries were discarded.
//!
//! Terms: a transaction is *discarded* if one of its entries was discarded, and *intact* otherwise. All entries of intact transactions can be read. A
//! block *survives* if the intact transactions leave it allocated.
//!
//! # Invariant
//! After [`LoggedHeaders::restore_chains`]
//!
//! 1. every surviving block has an intact header that says "allocated", which a chain reaches or which is found in an unreachable extent; and no free
//!    block of a chain covers a line of the surviving block;
//! 2. a block that an intact transaction freed is not allocated, unless it is in an unreachable extent;
//! 3. blocks that a discarded transaction allocated or freed may be allocated or free.
//!
//! # Why the headers in place do not suffice
//! A transaction T splits a free block into an allocated block and a rest. Other transactions, in other lanes, allocate from the rest once T has
//! committed. If T is discarded before it is applied, the header in place is still that of the whole free block, and the chain skips:
//!
//! - blocks that were allocated in the rest, which violates 1;
//! - a header that covers the rest together with a freed block after it, which violates 2: the freed block's own header still says "allocated".
//!
//! Moreover, a header in place may be that of a former block. So recovery does not rely on a header only because it is in place.
//!
//! # Why the log suffices
//! The log shows which words were headers, and the order of their commits: a header is logged as a pair, and user bytes that are a valid header at
//! their offset are never logged as a pair ([`Writes`](crate::log)). Let `k` be an LSN such that no group at or above `k` was overwritten, and no
//! discarded entry below `k` was live. Let K be the headers in the intact groups from `k` on; [`Replayed::pairs`] returns them.
//!
//! A header of K was right when its group committed. So if the blocks of two headers of K overlap, the earlier header was changed after it was
//! logged. A header h of K *supersedes* each earlier header whose block starts on a line of h's block, and the earlier header of an allocated block
//! that covers h. A header of K is *current* if it is in place and not superseded. So no later header's block overlaps a current allocated block.
//!
//! The walk along a chain visits only headers that were part of the chain at some time after `k`:
//!
//! - The first header of a chunk. A transaction stores the header of the first of several adjacent new blocks last. So if a discarded transaction was
//!   replacing the first header, the header in place is either its own or the one that it was about to replace.
//! - A current header. It was part of the chain when its group committed.
//! - The header after a visited header. While the visited header was part of the chain, another block started where the visited block ends. The
//!   header of that other block was durable before the visited header was stored: a commit stores it early ([`Reservation::inner_and_front`]),
//!   recovery replays it first, and without the log a fence separates the two stores. Later stores at this header's offset are headers, or contents
//!   of a block that covers the offset, allocated by a discarded or uncommitted transaction. If such contents are not a valid header, the chain is
//!   broken there, and no line after the break is allocated again.
//!
//! Let B be a surviving block with a line that another, visited block covers. When the visited header was part of the chain, that line was not in B.
//! So B was allocated later, and B's header is in K. B's header is current, because no later header overlaps a surviving block. The visited block is
//! cut at the first current header of an allocated block inside it: B's header, or a header before B's. So no remaining free block covers a line of a
//! surviving block, and the walk skips no surviving block (1). The argument does not depend on the number of discarded entries, or on whether these
//! entries were live.
//!
//! Cutting visited blocks in this way covers all cases of a discarded transaction T:
//!
//! - T's entry was live, and T's headers are not in place. The chain skips the rest of the free block F from which T allocated. Other transactions
//!   may have allocated in the rest (1), or freed the block after the rest and coalesced both. So F is also cut at a current free header inside F
//!   whose block ends after F (2). A current free header whose block ends inside F needs no cut.
//! - T's headers are in place. This is always so if T's entry was dead. The chain is right, but T's headers are missing from K. So the header of a
//!   block that T freed, or covered with a longer block, may count as current, and a free block is cut there. The cut costs free lines (3), and the
//!   walk may go on to older headers that T had covered. Such an older header is not in K. If it is that of an allocated block, and the current
//!   header of an allocated block lies inside that block, the outer block is cut at this header, too.
//! - Headers of a trim, a join, or the split of a free huge block are stored without the log. They lie inside free blocks, or at offsets that no live
//!   entry targets. If T's entry targets such an offset, the entry was dead.
//! - T allocated the front of a free huge block. The free block is split into its chunks if current headers lie inside it. An allocated huge block
//!   needs no split: its header is a first header, and part of the chain.
//! - T allocated an uninitialized block over several free blocks, and the program filled it after T had committed. The chain is broken at the first
//!   header that the contents overwrote, and the free lines after it stay unused.
//!
//! One case is not excluded: contents of a block that are a valid header older than `k`. This requires that the program copied that header from the
//! offset where the contents now lie, before another header was stored there.
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

/// A header that a group stores. Lines are counted from the start of chunk 0, because a huge block is longer than its first chunk.
#[derive(Clone, Copy, Debug)]
struct Logged {
    line: u64,
    header: BlockHeader,
}

impl Logged {
    /// Decodes a pair. `None` if it is not the header of a free or allocated block that fits at `offset`.
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
    /// The headers that no later header supersedes, by line. A header inside a free block does not supersede the earlier header of that free block.
    latest: BTreeMap<u64, Logged>,
}

impl<'l> LoggedHeaders<'l> {
    /// An empty collection, for a heap with `chunk_count` chunks.
    pub(crate) const fn new(layout: &'l Layout, chunk_count: u64) -> Self {
        Self { layout, chunk_count, latest: BTreeMap::new() }
    }

    /// Adds a pair that a group stores, if it is a header. The caller adds pairs in the order of their LSNs.
    pub(crate) fn note(&mut self, offset: u64, word: u64) {
        let Some(logged) = Logged::of(self.layout, self.chunk_count, offset, word) else { return };
        // If an earlier allocated block covers this header, the group that freed that block was discarded.
        if let Some((&line, before)) = self.latest.range(..logged.line).next_back()
            && before.is_allocated()
            && logged.line < before.end()
        {
            self.latest.remove(&line);
        }
        self.latest.extract_if(logged.line..logged.end(), |_, _| true).for_each(drop);
        self.latest.insert(logged.line, logged);
    }

    /// Restores the chains of the intact transactions; see the module's documentation.
    ///
    /// # Durability
    /// One fence, and two more for each free huge block that is split. If a crash interrupts the restoring, each block is unchanged, cut or split.
    /// The next recovery finds the same entries and completes the work.
    pub(crate) fn restore_chains<P: Pmem>(self, pmem: &P) -> Result<(), FenceError> {
        if self.latest.is_empty() {
            return Ok(());
        }
        let in_chunk = self.layout.chunk_lines();
        let scanner = Scanner { pmem, layout: self.layout, chunk_count: self.chunk_count };
        let mut cursor = ChunkCursor::default();
        while let Some((chunk, content)) = cursor.next(scanner) {
            match content {
                Content::Free => self.restore_chain(pmem, chunk, 1),
                Content::Headers(Start::Chain(first)) => self.restore_chain(pmem, chunk, first),
                // No line in an unreachable extent is free.
                Content::Headers(Start::Unreachable) => {}
                Content::Huge(header, last) => {
                    let start = chunk * in_chunk + 1;
                    let block = start..start + u64::from(header.lines);
                    if header.state == BlockState::Free && self.cut_line(pmem, header.state, block).is_some()
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
        // DURABILITY POINT
        pmem.fence()
    }

    /// The line at which a block in this state must be cut: that of the first current header inside the block that requires a cut.
    fn cut_line<P: Pmem>(&self, pmem: &P, state: BlockState, block: Range<u64>) -> Option<u64> {
        let inside = self.latest.range(block.start + 1..block.end).map(|(_, logged)| logged);
        // An allocated block is not cut at headers of free blocks: an uninitialized block of a discarded transaction may cover former free blocks.
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
        if self.latest.range(start..start + u64::from(end)).next().is_none() {
            return;
        }
        let mut line = first;
        while line < end {
            let header = read(pmem, self.layout, chunk, line).1;
            let next = header.and_then(|header| block_end(header, line, end).map(|next| (header, next)));
            // No line after a break in the chain is free.
            let next = next.filter(|(header, _)| header.state != BlockState::Unreachable);
            let Some((header, mut next)) = next else { return };
            let block = start + u64::from(line)..start + u64::from(next);
            if let Some(at) = self.cut_line(pmem, header.state, block) {
                #[expect(clippy::cast_possible_truncation, reason = "a line of the chunk")]
                let at = (at - start) as u32;
                let (offset, word) = header_word(self.layout, chunk, header.state, line..at);
                pmem.store_u64(offset, word);
                next = at;
            }
            // Flushes the header even if the block is not cut here: a killed recovery may have cut the block without making the cut durable.
            pmem.flush(header_offset(self.layout, chunk, line), BLOCK_HEADER_BYTES);
            line = next;
        }
    }
}
