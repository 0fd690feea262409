//! Block headers: computing their offsets and words, and reading and storing them.
//!
//! Lines are counted from the start of a chunk. A block starts at the line of its payload, so its header is the last word of the previous line.

use super::error::{Corruption, CorruptionKind};
use crate::format::{BLOCK_HEADER_BYTES, BlockHeader, BlockState, LINE_BYTES};
use crate::layout::Layout;
use core::ops::Range;
use pm_core::Pmem;

/// The offset of a header in the region, and the word to store there.
pub(super) type HeaderWord = (u64, u64);

/// The number of lines in a chunk. A chunk has at most 16 GiB, that is, 2^28 lines.
#[expect(
    clippy::cast_possible_truncation,
    reason = "at most 2^28: plan() and the check of a heap's header refuse more"
)]
#[inline]
pub(super) const fn chunk_lines(layout: &Layout) -> u32 {
    layout.chunk_lines() as u32
}

#[inline]
pub(super) const fn line_offset(layout: &Layout, chunk: u64, line: u32) -> u64 {
    layout.chunk_offset(chunk) + line as u64 * LINE_BYTES
}

/// The offset of the header of the block that starts at `line` of a chunk, or of the end header if `line` is the chunk's end.
#[inline]
pub(super) const fn header_offset(layout: &Layout, chunk: u64, line: u32) -> u64 {
    Layout::header_offset_of(line_offset(layout, chunk, line))
}

/// The header of a block in this state on these lines of a chunk.
#[inline]
pub(super) fn header_word(layout: &Layout, chunk: u64, state: BlockState, lines: Range<u32>) -> HeaderWord {
    let offset = header_offset(layout, chunk, lines.start);
    (offset, BlockHeader::new(state, lines.end - lines.start).to_word(layout.seed, offset))
}

/// The end header of a chunk.
pub(super) fn end_word(layout: &Layout, chunk: u64) -> HeaderWord {
    let end = chunk_lines(layout);
    header_word(layout, chunk, BlockState::End, end..end)
}

/// Reads a header: the word, and the header that it encodes. The latter is `None` if the word is not a valid header.
#[inline]
pub(super) fn read<P: Pmem>(pmem: &P, layout: &Layout, chunk: u64, line: u32) -> (u64, Option<BlockHeader>) {
    let offset = header_offset(layout, chunk, line);
    let word = pmem.load_u64(offset);
    (word, BlockHeader::from_word(word, layout.seed, offset))
}

/// Stores and flushes a header. The caller's next fence makes it durable.
pub(super) fn store_flushed<P: Pmem>(pmem: &P, (offset, word): HeaderWord) {
    pmem.store_u64(offset, word);
    pmem.flush(offset, BLOCK_HEADER_BYTES);
}

/// The [`Corruption`] of the block on these lines. `found` is the word at the offset of the block's header.
pub(super) fn corruption(
    layout: &Layout,
    chunk: u64,
    lines: Range<u32>,
    found: u64,
    kind: CorruptionKind,
) -> Corruption {
    let extent = line_offset(layout, chunk, lines.start)..line_offset(layout, chunk, lines.end);
    Corruption { header_offset: header_offset(layout, chunk, lines.start), extent, found, kind }
}

/// The end of the block that starts at `line` and has this header. `None` if the block would extend beyond `end`, the chunk's end, or if the header
/// is an end header.
pub(super) fn block_end(header: BlockHeader, line: u32, end: u32) -> Option<u32> {
    let next = line.checked_add(header.lines)?;
    (header.state != BlockState::End && next <= end).then_some(next)
}

/// The first line at or after `line` whose offset in the region is a multiple of `align_bytes`. `None` on overflow.
#[inline]
pub(super) fn align(layout: &Layout, chunk: u64, line: u32, align_bytes: u64) -> Option<u32> {
    assert!(align_bytes.is_power_of_two(), "alignments are powers of two");
    if align_bytes <= LINE_BYTES {
        return Some(line);
    }
    let start = layout.chunk_offset(chunk);
    let offset = (start + u64::from(line) * LINE_BYTES).checked_next_multiple_of(align_bytes)?;
    u32::try_from((offset - start) / LINE_BYTES).ok()
}

/// The end of a huge block of `lines` lines that starts in `chunk`: the last chunk, and the line there, from 1 to the chunk's end.
pub(super) const fn end_of(layout: &Layout, chunk: u64, lines: u32) -> (u64, u32) {
    let in_chunk = chunk_lines(layout);
    (chunk + (lines / in_chunk) as u64, lines % in_chunk + 1)
}

/// The number of lines of a huge block for a request of `lines` lines: one line more if the block would end where a chunk's first block starts.
pub(super) const fn huge_lines(layout: &Layout, lines: u64) -> u64 {
    if lines.is_multiple_of(layout.chunk_lines()) { lines.saturating_add(1) } else { lines }
}

/// The first step of splitting a free huge block into chunks: stores and flushes the headers inside the block. Then the caller fences, and calls
/// [`split_off_first`].
pub(super) fn split_inner<P: Pmem>(pmem: &P, layout: &Layout, chunk: u64, lines: u32) {
    let (last, line) = end_of(layout, chunk, lines);
    for covered in chunk..last {
        store_flushed(pmem, end_word(layout, covered));
        if covered > chunk {
            store_flushed(pmem, header_word(layout, covered, BlockState::Free, 1..chunk_lines(layout)));
        }
    }
    if line > 1 {
        store_flushed(pmem, header_word(layout, last, BlockState::Free, 1..line));
    }
}

/// The second step of splitting: stores and flushes the first header of the first chunk. Then the caller fences. A crash leaves either the whole free
/// block or its chunks.
pub(super) fn split_off_first<P: Pmem>(pmem: &P, layout: &Layout, chunk: u64) {
    store_flushed(pmem, header_word(layout, chunk, BlockState::Free, 1..chunk_lines(layout)));
}
