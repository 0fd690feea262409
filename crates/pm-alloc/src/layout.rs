//! Where everything of a heap lies: arithmetic over its header, and nothing else.

use crate::format::{
    BLOCK_HEADER_BYTES, HEADER_BYTES, HeapHeader, LANES_START, LINE_BYTES, STATE_COPY_DISTANCE, STATE_START,
};

use core::ops::RangeInclusive;

/// The smallest chunk.
pub const CHUNK_BYTES_MIN: u64 = 4096;

/// How many lanes a heap can have.
pub(crate) const LANES: RangeInclusive<u32> = 1..=1024;

/// How many entries a lane can have.
pub(crate) const LANE_ENTRIES: RangeInclusive<u32> = 4..=1 << 20;

/// Whether chunks can be so long: a power of two, from [`CHUNK_BYTES_MIN`] to 16 GiB.
pub(crate) const fn is_chunk_length(chunk_bytes: u64) -> bool {
    chunk_bytes.is_power_of_two() && CHUNK_BYTES_MIN <= chunk_bytes && chunk_bytes <= 1 << 34
}

/// Lines of a lane besides its ring: one in front of it for the LSN up to which the lane is retired, one behind it for the copy.
pub const LANE_HEADER_LINES: u64 = 2;

/// Where the parts of one heap lie in its region.
///
/// ```text
/// heap_start                                            chunks_start
/// | header | state words | copy | lane 0 | lane 1 | ... | chunk 0 | chunk 1 | ... | (less than a chunk)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// What all checksums of the heap begin with.
    pub seed: u64,
    /// Where the heap's header lies.
    pub heap_start: u64,
    /// How many lanes there are.
    pub lane_count: u32,
    /// Entries in the ring of each.
    pub lane_entries: u32,
    /// Where chunk 0 starts.
    pub chunks_start: u64,
    /// How long a chunk is: a power of two.
    pub chunk_bytes: u64,
}

impl Layout {
    /// That of a heap with this header.
    #[must_use]
    pub const fn of(header: &HeapHeader) -> Self {
        Self {
            seed: header.seed,
            heap_start: header.heap_start,
            lane_count: header.lane_count,
            lane_entries: header.lane_entries,
            chunks_start: header.chunks_start,
            chunk_bytes: header.chunk_bytes,
        }
    }

    /// Where the word with the LSN lies up to which all entries of all logs are dead, and where its copy lies.
    #[must_use]
    #[inline]
    pub const fn floor_offsets(&self) -> [u64; 2] {
        let word = self.heap_start + STATE_START;
        [word, word + STATE_COPY_DISTANCE]
    }

    /// Where the word with the number of chunks lies, and where its copy lies.
    #[must_use]
    pub const fn chunk_count_offsets(&self) -> [u64; 2] {
        let word = self.heap_start + STATE_START + LINE_BYTES;
        [word, word + STATE_COPY_DISTANCE]
    }

    /// Where the word of a lane lies that says what of it is retired, and where its copy lies: before and behind the ring, so that
    /// no stray write hits both that does not take the whole lane.
    #[must_use]
    pub const fn retired_offsets(&self, lane: u32) -> [u64; 2] {
        let start = self.lane_offset(lane);
        [start, start + Self::lane_bytes(self.lane_entries) - LINE_BYTES]
    }

    /// Where the word of a lane lies that says up to which LSN its undo entries are dead: in the line before the ring, so that
    /// it and the entry that commits are not in one line.
    #[must_use]
    #[inline]
    pub const fn undo_end_offset(&self, lane: u32) -> u64 {
        self.lane_offset(lane) + 8
    }

    /// Where a lane lies: a line, its ring, and a line.
    #[must_use]
    #[inline]
    pub const fn lane_offset(&self, lane: u32) -> u64 {
        self.heap_start + LANES_START + lane as u64 * Self::lane_bytes(self.lane_entries)
    }

    /// Where an entry of a lane's ring lies.
    #[must_use]
    #[inline]
    pub const fn entry_offset(&self, lane: u32, index: u32) -> u64 {
        self.lane_offset(lane) + (1 + index as u64) * LINE_BYTES
    }

    /// How long a lane with so many entries is.
    #[must_use]
    #[inline]
    pub const fn lane_bytes(lane_entries: u32) -> u64 {
        (LANE_HEADER_LINES + lane_entries as u64) * LINE_BYTES
    }

    /// Where the lanes end.
    #[must_use]
    #[inline]
    pub const fn lanes_end(&self) -> u64 {
        self.lane_offset(self.lane_count)
    }

    /// How many whole chunks lie before `data_end`, where the pool's data area ends.
    #[must_use]
    pub const fn chunks_before(&self, data_end: u64) -> u64 {
        data_end.saturating_sub(self.chunks_start) / self.chunk_bytes
    }

    /// Where a chunk starts.
    #[must_use]
    #[inline]
    pub const fn chunk_offset(&self, chunk: u64) -> u64 {
        self.chunks_start + chunk * self.chunk_bytes
    }

    /// The chunk in which an offset lies. Offsets before the first chunk have none.
    #[must_use]
    #[inline]
    pub const fn chunk_of(&self, offset: u64) -> Option<u64> {
        match offset.checked_sub(self.chunks_start) {
            // A power of two; whoever calls this has no time for a division.
            Some(inside) => Some(inside >> self.chunk_bytes.trailing_zeros()),
            None => None,
        }
    }

    /// Lines in a chunk, the first included, whose last word is the header of the first block.
    #[must_use]
    #[inline]
    pub const fn chunk_lines(&self) -> u64 {
        self.chunk_bytes / LINE_BYTES
    }

    /// Where the payload of a chunk's first block starts: at its second line.
    #[must_use]
    pub const fn first_payload(&self, chunk: u64) -> u64 {
        self.chunk_offset(chunk) + LINE_BYTES
    }

    /// Where the header of the block with this payload lies.
    #[must_use]
    #[inline]
    pub const fn header_of(payload: u64) -> u64 {
        payload - BLOCK_HEADER_BYTES
    }

    /// How many bytes a block of so many lines has for its user: the last word belongs to the next block's header.
    #[must_use]
    #[inline]
    pub const fn usable_bytes(lines: u32) -> u64 {
        lines as u64 * LINE_BYTES - BLOCK_HEADER_BYTES
    }

    /// How many lines a block needs for `bytes` of its user, or `None` if that is no number. A block has one at least.
    #[must_use]
    #[inline]
    pub const fn lines_for(bytes: u64) -> Option<u64> {
        match bytes.checked_add(BLOCK_HEADER_BYTES) {
            Some(whole) => Some(whole.div_ceil(LINE_BYTES)),
            None => None,
        }
    }
}

/// What a maker of a heap wants to have.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wishes {
    pub(crate) lane_count: Option<u32>,
    pub(crate) lane_entries: Option<u32>,
    pub(crate) chunk_bytes: Option<u64>,
}

/// A layout for a data area, or why there is none.
///
/// Lanes take a sixteenth of it at most; chunks are as large as leaves 64 of them, from 4 KiB to 1 MiB, and larger only where
/// there would be more than 512 of them, or, from 64 MiB on, more than 16,384. For after a heap was opened, the first transactions
/// look at one word of each chunk until they know an empty one, at a page fault each, and at all of some chunks, at more.
pub(crate) fn plan(
    data_start: u64,
    data_end: u64,
    seed: u64,
    wishes: Wishes,
) -> Result<Layout, &'static str> {
    let data_bytes = data_end.saturating_sub(data_start);
    let lanes_bytes = data_bytes / 16;
    let lane_count = wishes.lane_count.unwrap_or((lanes_bytes >> 14).clamp(2, 64) as u32);
    if !LANES.contains(&lane_count) {
        return Err("there are 1 to 1,024 lanes");
    }
    let per_lane = (lanes_bytes / u64::from(lane_count) / LINE_BYTES).saturating_sub(LANE_HEADER_LINES);
    let lane_entries = wishes.lane_entries.unwrap_or(per_lane.clamp(30, 1022) as u32);
    if !LANE_ENTRIES.contains(&lane_entries) {
        return Err("a lane has 4 to 1,048,576 entries");
    }
    let one_of = |count: u64| (data_bytes / count).max(1).ilog2();
    let automatic = || one_of(64).clamp(12, 20).max(one_of(1 << 8).min(26)).max(one_of(1 << 14));
    let chunk_bytes = wishes.chunk_bytes.unwrap_or_else(|| 1 << automatic());
    if !is_chunk_length(chunk_bytes) {
        return Err("a chunk has a power of two bytes, 4 KiB to 16 GiB");
    }
    let layout =
        Layout { seed, heap_start: data_start, lane_count, lane_entries, chunks_start: 0, chunk_bytes };
    let chunks_start = layout.lanes_end().next_multiple_of(HEADER_BYTES);
    let layout = Layout { chunks_start, ..layout };
    if layout.chunks_before(data_end) == 0 {
        return Err("the lanes leave no room for a chunk");
    }
    Ok(layout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_leaves_nearly_all_to_chunks() {
        for data_bytes in [64 << 10, 1 << 20, 64 << 20, 4 << 30, 1 << 40_u64] {
            let layout = plan(8192, 8192 + data_bytes, 7, Wishes::default()).expect("large enough");
            let chunks = layout.chunks_before(8192 + data_bytes);
            assert!(layout.chunk_offset(chunks) <= 8192 + data_bytes);
            assert!(chunks <= 1 << 15, "{data_bytes}: {layout:?}");
            assert!(layout.lanes_end() <= layout.chunks_start);
            let least = if data_bytes < 1 << 20 { 1 } else { 80 };
            assert!(chunks * layout.chunk_bytes * 100 / data_bytes >= least, "{data_bytes}: {layout:?}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let wish = |wishes| plan(8192, 1 << 20, 7, wishes).expect_err("cannot be");
        assert!(wish(Wishes { lane_count: Some(0), ..Wishes::default() }).contains("lanes"));
        assert!(wish(Wishes { lane_entries: Some(3), ..Wishes::default() }).contains("entries"));
        assert!(wish(Wishes { chunk_bytes: Some(5000), ..Wishes::default() }).contains("power of two"));
        assert!(wish(Wishes { chunk_bytes: Some(1 << 21), ..Wishes::default() }).contains("no room"));
    }

    #[test]
    fn blocks_hold_what_they_were_made_for() {
        for bytes in 0..1000 {
            let lines = Layout::lines_for(bytes).expect("a number");
            assert!(lines >= 1);
            let lines = u32::try_from(lines).expect("few");
            assert!(Layout::usable_bytes(lines) >= bytes);
            assert!(lines == 1 || Layout::usable_bytes(lines - 1) < bytes);
        }
        assert_eq!(Layout::lines_for(u64::MAX), None);
    }
}
