//! What is left of the chains of headers when an entry of the log is discarded.

use super::scan::{Chunks, Content, Start, block_end, chunk_lines, header_offset, header_word, read};
use crate::format::{BLOCK_HEADER_BYTES, BlockHeader, BlockState, LINE_BYTES};
use crate::layout::Layout;
use pm_core::{FenceError, Pmem};
use std::collections::{BTreeMap, BTreeSet};

/// Headers of allocated blocks that transactions wrote whose entries are intact.
///
/// A transaction that allocates cuts a free block in two: its block, and a rest, from which other transactions may allocate at once, in other
/// lanes. If its entry is discarded, the header in front is that of the whole free block again, and the chain passes over the headers
/// in the rest: blocks of transactions that are not lost would be handed out again.
#[derive(Debug)]
pub(crate) struct AllocatedHeaders<'l> {
    layout: &'l Layout,
    chunk_count: u64,
    /// The lines where such blocks start, by chunk.
    starts: BTreeMap<u64, BTreeSet<u32>>,
}

impl<'l> AllocatedHeaders<'l> {
    /// None, of a heap with so many chunks.
    pub(crate) const fn new(layout: &'l Layout, chunk_count: u64) -> Self {
        Self { layout, chunk_count, starts: BTreeMap::new() }
    }

    /// Notes the headers of allocated blocks among these bytes, which a transaction wrote. A later one may have freed the block, so it is
    /// the header in place that counts.
    pub(crate) fn note<P: Pmem>(&mut self, pmem: &P, offset: u64, len: u64) {
        let layout = self.layout;
        // Headers are the last words of lines, each in front of a payload.
        let first = (offset + BLOCK_HEADER_BYTES).next_multiple_of(LINE_BYTES).max(layout.first_payload(0));
        for payload in (first..=offset + len).step_by(64) {
            let Some(chunk) = layout.chunk_of(payload).filter(|&chunk| chunk < self.chunk_count) else {
                continue;
            };
            #[expect(clippy::cast_possible_truncation, reason = "a chunk has at most 2^28 lines")]
            let line = ((payload - layout.chunk_offset(chunk)) / LINE_BYTES) as u32;
            let header = if line == 0 { None } else { read(pmem, layout, chunk, line).1 };
            let header = header.filter(|header| header.state == BlockState::Allocated);
            if header.is_some_and(|header| block_end(header, line, chunk_lines(layout)).is_some()) {
                self.starts.entry(chunk).or_default().insert(line);
            }
        }
    }

    /// Makes every free block end where one of these headers lies on its lines.
    ///
    /// # Durability
    /// One fence, if there are any such headers. A crash inside leaves each free block as it was or cut.
    ///
    /// # Errors
    /// When the fence fails.
    pub(crate) fn cut_free_blocks<P: Pmem>(&self, pmem: &P) -> Result<(), FenceError> {
        if self.starts.is_empty() {
            return Ok(());
        }
        let mut chunks = Chunks::default();
        while let Some((chunk, content)) = chunks.next(pmem, self.layout, self.chunk_count) {
            let first = match content {
                Content::Fresh => 1,
                Content::Headers(Start::Chain(first)) => first,
                // Nothing is free behind the cut of a chain, and what is longer than a chunk is parted durably before it is cut.
                Content::Headers(Start::Severed) | Content::Huge(..) => continue,
            };
            if let Some(starts) = self.starts.get(&chunk) {
                self.cut_in_chunk(pmem, chunk, first, starts);
            }
        }
        pmem.fence()
    }

    fn cut_in_chunk<P: Pmem>(&self, pmem: &P, chunk: u64, first: u32, starts: &BTreeSet<u32>) {
        let end = chunk_lines(self.layout);
        let mut line = first;
        while line < end {
            let header = read(pmem, self.layout, chunk, line).1;
            let next =
                header.and_then(|header| block_end(header, line, end).map(|next| (header.state, next)));
            // Where the chain is cut, nothing behind is free.
            let Some((state, next)) = next.filter(|(state, _)| *state != BlockState::Severed) else { return };
            let inside = starts.range(line + 1..next).next().filter(|_| state == BlockState::Free);
            if let Some(&start) = inside {
                let free = BlockHeader::new(BlockState::Free, start - line);
                let (offset, word) = header_word(self.layout, chunk, line, free);
                pmem.store_u64(offset, word);
            }
            // Also where nothing was cut: a recovery that was killed may have done so, visibly and not durably.
            pmem.flush(header_offset(self.layout, chunk, line), BLOCK_HEADER_BYTES);
            line = inside.copied().unwrap_or(next);
        }
    }
}
