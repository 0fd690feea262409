//! The layout of a heap: the offsets of its parts, computed from its header.

use crate::format::{
    BLOCK_HEADER_BYTES, HEADER_BYTES, HeapHeader, LANES_START, LINE_BYTES, STATE_COPY_DISTANCE, STATE_START,
};
use core::ops::RangeInclusive;

/// The length of the smallest chunk.
pub const CHUNK_BYTES_MIN: u64 = 4096;

pub(crate) const LANES: RangeInclusive<u32> = 1..=1024;

pub(crate) const LANE_ENTRIES: RangeInclusive<u32> = 4..=1 << 20;

/// Whether chunks can have this length: a power of two, from [`CHUNK_BYTES_MIN`] to 16 GiB.
pub(crate) const fn is_chunk_length(chunk_bytes: u64) -> bool {
    chunk_bytes.is_power_of_two() && CHUNK_BYTES_MIN <= chunk_bytes && chunk_bytes <= 1 << 34
}

/// The number of lines of a lane besides its ring: the line before the ring has the retired LSN, and the line after the ring has its copy.
pub const LANE_HEADER_LINES: u64 = 2;

/// The offsets of a heap's parts in its region.
///
/// ```text
/// heap_start                                            chunks_start
/// | header | state words | copy | lane 0 | lane 1 | ... | chunk 0 | chunk 1 | ... | (less than a chunk)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The heap's random seed, which all its checksums cover.
    pub seed: u64,
    /// The offset of the heap's header.
    pub heap_start: u64,
    /// The number of lanes.
    pub lane_count: u32,
    /// The number of entries in the ring of each lane.
    pub lane_entries: u32,
    /// The offset of chunk 0.
    pub chunks_start: u64,
    /// The length of a chunk, a power of two.
    pub chunk_bytes: u64,
}

impl Layout {
    /// The layout that a heap with this header has.
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

    /// The offsets of the floor and of its copy. All entries at or below the floor, an LSN, are dead, in all lanes.
    #[must_use]
    #[inline]
    pub const fn floor_offsets(&self) -> [u64; 2] {
        let word = self.heap_start + STATE_START;
        [word, word + STATE_COPY_DISTANCE]
    }

    /// The offsets of the number of chunks and of its copy.
    #[must_use]
    pub const fn chunk_count_offsets(&self) -> [u64; 2] {
        let word = self.heap_start + STATE_START + LINE_BYTES;
        [word, word + STATE_COPY_DISTANCE]
    }

    /// The offsets of a lane's retired LSN and of its copy. The lane's groups up to the retired LSN are durable in place. The word and its copy are
    /// before and after the ring, so that only a stray write over the whole ring hits both.
    #[must_use]
    pub const fn retired_offsets(&self, lane: u32) -> [u64; 2] {
        let start = self.lane_offset(lane);
        [start, start + Self::lane_bytes(self.lane_entries) - LINE_BYTES]
    }

    /// The offset of the LSN up to which the undo entries of a lane are dead. This word is in the line before the ring, so it shares no line with an
    /// entry.
    #[must_use]
    #[inline]
    pub const fn undo_end_offset(&self, lane: u32) -> u64 {
        self.lane_offset(lane) + 8
    }

    /// The offset of a lane, which consists of a line, its ring, and another line.
    #[must_use]
    #[inline]
    pub const fn lane_offset(&self, lane: u32) -> u64 {
        self.heap_start + LANES_START + lane as u64 * Self::lane_bytes(self.lane_entries)
    }

    /// The offset of an entry of a lane's ring.
    #[must_use]
    #[inline]
    pub const fn entry_offset(&self, lane: u32, index: u32) -> u64 {
        self.lane_offset(lane) + (1 + index as u64) * LINE_BYTES
    }

    /// The length of a lane with `lane_entries` entries.
    #[must_use]
    #[inline]
    pub const fn lane_bytes(lane_entries: u32) -> u64 {
        (LANE_HEADER_LINES + lane_entries as u64) * LINE_BYTES
    }

    /// The end of the lanes.
    #[must_use]
    #[inline]
    pub const fn lanes_end(&self) -> u64 {
        self.lane_offset(self.lane_count)
    }

    /// The number of whole chunks before `data_end`, the end of the pool's data area.
    #[must_use]
    pub const fn chunks_before(&self, data_end: u64) -> u64 {
        data_end.saturating_sub(self.chunks_start) / self.chunk_bytes
    }

    /// The offset of a chunk.
    #[must_use]
    #[inline]
    pub const fn chunk_offset(&self, chunk: u64) -> u64 {
        self.chunks_start + chunk * self.chunk_bytes
    }

    /// The chunk that contains an offset. `None` if the offset is before the first chunk.
    #[must_use]
    #[inline]
    pub const fn chunk_of(&self, offset: u64) -> Option<u64> {
        match offset.checked_sub(self.chunks_start) {
            // A shift instead of a division, because this is called on hot paths; the length is a power of two.
            Some(inside) => Some(inside >> self.chunk_bytes.trailing_zeros()),
            None => None,
        }
    }

    /// The number of lines in a chunk, including the first, whose last word is the header of the first block.
    #[must_use]
    #[inline]
    pub const fn chunk_lines(&self) -> u64 {
        self.chunk_bytes / LINE_BYTES
    }

    /// The offset of the payload of a chunk's first block: its second line.
    #[must_use]
    pub const fn first_payload(&self, chunk: u64) -> u64 {
        self.chunk_offset(chunk) + LINE_BYTES
    }

    /// The offset of the header of the block whose payload starts at `payload`.
    #[must_use]
    #[inline]
    pub const fn header_offset_of(payload: u64) -> u64 {
        payload - BLOCK_HEADER_BYTES
    }

    /// The payload capacity in bytes of a block of `lines` lines, whose last word is the next block's header.
    #[must_use]
    #[inline]
    pub const fn usable_bytes(lines: u32) -> u64 {
        lines as u64 * LINE_BYTES - BLOCK_HEADER_BYTES
    }

    /// The number of lines of a block for `bytes` bytes of payload: one or more. `None` if the number overflows.
    #[must_use]
    #[inline]
    pub const fn lines_for(bytes: u64) -> Option<u64> {
        match bytes.checked_add(BLOCK_HEADER_BYTES) {
            Some(whole) => Some(whole.div_ceil(LINE_BYTES)),
            None => None,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Parameters {
    pub(crate) lane_count: Option<u32>,
    pub(crate) lane_entries: Option<u32>,
    pub(crate) chunk_bytes: Option<u64>,
}

/// Plans a layout for a data area, or returns the reason why it is impossible.
///
/// By default the lanes take at most a sixteenth of the data area, or 4 KiB if that is more. Chunks have a 64th of the data area, rounded down to a
/// power of two, but 4 KiB to 1 MiB. They are longer, up to 64 MiB, if there would otherwise be 512 or more of them, and longer again if there would
/// be 32,768 or more. The lower number of chunks limits the time of the first transactions after an open: these read the first header of one chunk
/// after another, at one page fault each, until they find an empty chunk, and all headers of some chunks, at several page faults each.
pub(crate) fn plan(
    data_start: u64,
    data_end: u64,
    seed: u64,
    parameters: Parameters,
) -> Result<Layout, &'static str> {
    let data_bytes = data_end.saturating_sub(data_start);
    let lanes_bytes = data_bytes / 16;
    let lane_count = parameters.lane_count.unwrap_or((lanes_bytes >> 14).clamp(2, 64) as u32);
    if !LANES.contains(&lane_count) {
        return Err("a heap has 1 to 1,024 lanes");
    }
    let per_lane = (lanes_bytes / u64::from(lane_count) / LINE_BYTES).saturating_sub(LANE_HEADER_LINES);
    let lane_entries = parameters.lane_entries.unwrap_or(per_lane.clamp(30, 1022) as u32);
    if !LANE_ENTRIES.contains(&lane_entries) {
        return Err("a lane has 4 to 1,048,576 entries");
    }
    let one_of = |count: u64| (data_bytes / count).max(1).ilog2();
    let automatic = || one_of(64).clamp(12, 20).max(one_of(1 << 8).min(26)).max(one_of(1 << 14));
    let chunk_bytes = parameters.chunk_bytes.unwrap_or_else(|| 1 << automatic());
    if !is_chunk_length(chunk_bytes) {
        return Err("the length of a chunk is a power of two from 4 KiB to 16 GiB");
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
    fn chunks_take_most_of_the_data_area() {
        for data_bytes in [64 << 10, 1 << 20, 64 << 20, 4 << 30, 1 << 40_u64] {
            let layout = plan(8192, 8192 + data_bytes, 7, Parameters::default()).expect("large enough");
            let chunks = layout.chunks_before(8192 + data_bytes);
            assert!(layout.chunk_offset(chunks) <= 8192 + data_bytes);
            assert!(chunks <= 1 << 15, "{data_bytes}: {layout:?}");
            assert!(layout.lanes_end() <= layout.chunks_start);
            let least = if data_bytes < 1 << 20 { 1 } else { 80 };
            assert!(chunks * layout.chunk_bytes * 100 / data_bytes >= least, "{data_bytes}: {layout:?}");
        }
    }

    #[test]
    fn impossible_layouts_are_refused() {
        let refused = |parameters| plan(8192, 1 << 20, 7, parameters).expect_err("it is impossible");
        assert!(refused(Parameters { lane_count: Some(0), ..Parameters::default() }).contains("lanes"));
        assert!(refused(Parameters { lane_entries: Some(3), ..Parameters::default() }).contains("entries"));
        assert!(
            refused(Parameters { chunk_bytes: Some(5000), ..Parameters::default() }).contains("power of two")
        );
        assert!(
            refused(Parameters { chunk_bytes: Some(1 << 21), ..Parameters::default() }).contains("no room")
        );
    }

    #[test]
    fn blocks_have_room_for_the_requested_bytes() {
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
