//! Space that is reserved for a transaction until it ends.

use super::headers::{HeaderWord, align, header_offset, header_word, huge_lines, line_offset, store_flushed};
use crate::format::{BLOCK_HEADER_BYTES, BlockState, LINE_BYTES, Lsn};
use crate::layout::Layout;
use core::ops::Range;
use pm_core::Pmem;

/// The number of blocks and gaps that a reservation stores inline, without a heap allocation in DRAM.
const CARVED_INLINE: usize = 4;

/// The place of a chunk's map: the number of an arena, and a slot in that arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ArenaSlot {
    pub(super) arena: u32,
    pub(super) slot: u32,
}

/// Reserved free lines: one or more whole free blocks. If `trim_line` is set, the reservation keeps only the lines before it. The lines lie in one
/// chunk, or, if they are for a huge block, start in it.
#[derive(Clone, Debug)]
pub(super) struct Extent {
    /// `None` for a huge block, whose first chunk is `chunk`.
    pub(super) slot: Option<ArenaSlot>,
    pub(super) chunk: u64,
    pub(super) lines: Range<u32>,
    /// Whether the lines are several free blocks of the chain.
    pub(super) spans_several_blocks: bool,
    /// The lines from this line on are returned, once they and the front are two separate free blocks. Set only if no other long extent is free.
    pub(super) trim_line: Option<u32>,
}

/// A block or a gap that was carved from a reservation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Carved {
    pub(super) line: u32,
    pub(super) lines: u32,
    /// [`BlockState::Free`] for a gap before an aligned block.
    pub(super) state: BlockState,
}

/// A free extent from which only its owner allocates, until [`Space::settle`] or [`Space::return_unused`].
///
/// The extent consists of whole free blocks of the chain, so its headers describe no other lines. Usually it is one free block. A transaction that
/// reserves the last long free extent keeps only the front, and first makes the front a separate free block. Other threads may reserve the free lines
/// before and after the extent at the same time. The caller stores the [`join_headers`](Self::join_headers), then [carves](Self::carve) blocks, fills
/// them, and commits their [`headers`](Self::headers).
///
/// [`Space::settle`]: super::Space::settle
/// [`Space::return_unused`]: super::Space::return_unused
#[derive(Debug)]
#[must_use = "the lines stay in use until the reservation is settled or returned"]
pub(crate) struct Reservation {
    pub(super) layout: Layout,
    pub(super) extent: Extent,
    /// The first line that was not carved yet.
    pub(super) cursor: u32,
    /// The LSN of the [`join_headers`](Self::join_headers), once they have made the extent one free block. Zero if they were stored without the log;
    /// only tests log them.
    pub(super) joined_lsn: Option<Lsn>,
    /// The first blocks and gaps that were carved, in ascending order of lines.
    first: [Carved; CARVED_INLINE],
    count: usize,
    more: Vec<Carved>,
}

impl Reservation {
    #[inline]
    pub(super) const fn new(layout: &Layout, extent: Extent) -> Self {
        let none = Carved { line: 0, lines: 0, state: BlockState::Free };
        let (cursor, first) = (extent.lines.start, [none; CARVED_INLINE]);
        Self { layout: *layout, extent, cursor, joined_lsn: None, first, count: 0, more: Vec::new() }
    }

    /// Whether the reservation is one free block that need not be trimmed, so that blocks can be [carved](Self::carve) from it.
    #[inline]
    pub(crate) const fn is_one_block(&self) -> bool {
        self.joined_lsn.is_some() || !self.extent.spans_several_blocks && self.extent.trim_line.is_none()
    }

    /// The headers that make the reservation [one free block](Self::is_one_block). Before the caller writes into the reservation, it stores these
    /// headers in this order, makes each durable before it stores the next, and calls [`Space::finish_join`].
    ///
    /// These headers are needed because a new block's contents overwrite the headers of former blocks inside it, and may become durable at any time.
    /// If the machine crashes before the block's own header is durable, the chain must not lead to an overwritten header.
    ///
    /// If the reservation must be trimmed, the header of the rest is stored first: it lies inside the last free block, where no chain leads to it
    /// yet. The header that is stored last covers only the front. So a crash at any point leaves an intact chain.
    ///
    /// [`Space::finish_join`]: super::Space::finish_join
    #[inline]
    pub(crate) fn join_headers(&self) -> impl Iterator<Item = HeaderWord> + use<> {
        let Extent { chunk, trim_line: trim, lines: Range { start, end }, .. } = self.extent.clone();
        let layout = self.layout;
        let (rest, front) = (trim.map(|trim| trim..end), start..trim.unwrap_or(end));
        rest.into_iter().chain([front]).map(move |lines| header_word(&layout, chunk, BlockState::Free, lines))
    }

    /// Records that the reservation is one free block, after its [headers](Self::join_headers) were stored. For a [huge block](Self::is_huge), also
    /// stores and flushes zeroes over the first headers of all its chunks but the first; the caller fences before it stores or logs the block's
    /// header. Without the zeroes, these chunks could be read as separate chunks if the block's header became corrupted.
    pub(super) fn finish_join<P: Pmem>(&mut self, pmem: &P, lsn: Lsn) {
        self.joined_lsn = Some(lsn);
        let chunk = self.extent.chunk;
        let last = chunk + (u64::from(self.extent.lines.end) - 1) / self.layout.chunk_lines();
        for covered in chunk + 1..=last {
            store_flushed(pmem, (header_offset(&self.layout, covered, 1), 0));
        }
    }

    /// Records that the free blocks need not be joined, because the caller stores all [`headers`](Self::headers) in order, before any contents. So no
    /// chain leads to a former header that contents have overwritten. Must not be called for a [huge block](Self::is_huge).
    pub(super) const fn mark_join_unneeded(&mut self) {
        self.joined_lsn = Some(Lsn::ZERO);
    }

    /// Carves a block, and returns the range of its payload, which ends at the next block's header. `None` if there is no room. There is always room
    /// for a first block with the requested length and alignment.
    ///
    /// # Panics
    /// When `lines` is zero, `align_bytes` is not a power of two, or the reservation is not [one free block](Self::is_one_block).
    #[must_use = "the block is allocated when the reservation is settled"]
    #[inline]
    pub(crate) fn carve(&mut self, lines: u64, align_bytes: u64) -> Option<Range<u64>> {
        assert!(lines > 0, "a block has at least one line");
        assert!(
            self.is_one_block() && self.extent.trim_line.is_none(),
            "a reservation is one free block before it is carved"
        );
        let lines = if self.is_huge() { huge_lines(&self.layout, lines) } else { lines };
        let lines = u32::try_from(lines).ok()?;
        let (chunk, end) = (self.extent.chunk, self.extent.lines.end);
        let at = align(&self.layout, chunk, self.cursor, align_bytes)?;
        let next = at.checked_add(lines).filter(|next| *next <= end)?;
        let gap = at - self.cursor;
        // A reservation of several chunks is for one huge block, which ends in the last chunk.
        let is_other = gap > 0 || self.count > 0 || u64::from(end - next) >= self.layout.chunk_lines();
        if self.is_huge() && is_other {
            return None;
        }
        if gap > 0 {
            self.push(Carved { line: self.cursor, lines: gap, state: BlockState::Free });
        }
        self.push(Carved { line: at, lines, state: BlockState::Allocated });
        self.cursor = next;
        let payload = line_offset(&self.layout, chunk, at);
        Some(payload..payload + Layout::usable_bytes(lines))
    }

    /// The length of the first block for a request of `lines` lines: the whole reservation, if it is only a little longer. Otherwise a short rest
    /// would remain, which needs a header and is too short for most requests.
    pub(super) fn first_block_lines(&self, lines: u64, align_bytes: u64) -> u64 {
        let all = u64::from(self.extent.lines.end - self.extent.lines.start);
        let is_close = u32::try_from(lines).is_ok_and(|lines| all <= u64::from(max_allocated_lines(lines)));
        if is_close && !self.is_huge() && align_bytes <= LINE_BYTES { all } else { lines }
    }

    /// The range of the region to which the allocation of a first block of `lines` lines may store: the block, its header, and the next header.
    pub(super) fn stored_range(&self, lines: u64, align_bytes: u64) -> Range<u64> {
        let offset = |line| line_offset(&self.layout, self.extent.chunk, line);
        let at = align(&self.layout, self.extent.chunk, self.cursor, align_bytes).unwrap_or(self.cursor);
        let end = offset(at) + lines.saturating_add(1) * LINE_BYTES;
        offset(self.cursor) - BLOCK_HEADER_BYTES..end.min(offset(self.extent.lines.end))
    }

    /// Marks the carved block with this payload as free, like a gap. Returns false if no carved block has this payload.
    pub(crate) fn uncarve(&mut self, payload: u64) -> bool {
        let (layout, chunk) = (self.layout, self.extent.chunk);
        let carved = self.first[..self.count.min(CARVED_INLINE)].iter_mut().chain(&mut self.more);
        let mut blocks = carved.filter(|carved| carved.state == BlockState::Allocated);
        let found = blocks.find(|block| line_offset(&layout, chunk, block.line) == payload);
        found.map(|block| block.state = BlockState::Free).is_some()
    }

    /// Whether no block was carved, or [`uncarve`](Self::uncarve) was called for all carved blocks.
    pub(crate) fn is_unused(&self) -> bool {
        self.carved().all(|carved| carved.state == BlockState::Free)
    }

    /// The headers to store when the transaction commits. Empty if nothing was carved.
    ///
    /// A log stores them together; without a log they are stored in this order. Until the last header is stored, all others lie inside one free
    /// block, so no chain leads to them.
    #[inline]
    pub(crate) fn headers(&self) -> impl Iterator<Item = HeaderWord> + '_ {
        let word = |state, lines| header_word(&self.layout, self.extent.chunk, state, lines);
        let rest = self.rest().map(|rest| word(BlockState::Free, rest));
        let carved = self.carved().rev();
        rest.into_iter()
            .chain(carved.map(move |carved| word(carved.state, carved.line..carved.line + carved.lines)))
    }

    /// The [headers](Self::headers) in two parts. The inner headers lie inside the reserved free block. The front header replaces the header of the
    /// free block, and is stored last. If the inner headers are durable before the front header is stored, every crash leaves an intact chain, even
    /// if the log entry with these headers is corrupted.
    #[inline]
    pub(crate) fn inner_and_front(&self) -> (impl Iterator<Item = HeaderWord> + '_, Option<HeaderWord>) {
        let count = usize::from(self.rest().is_some()) + self.count;
        (self.headers().take(count.saturating_sub(1)), self.headers().last())
    }

    /// Whether the reservation is for a huge block, that is, a block longer than a chunk.
    #[inline]
    pub(crate) const fn is_huge(&self) -> bool {
        self.extent.slot.is_none()
    }

    pub(crate) const fn is_carved(&self) -> bool {
        self.count > 0
    }

    pub(super) fn carved(&self) -> impl DoubleEndedIterator<Item = &Carved> {
        self.first[..self.count.min(CARVED_INLINE)].iter().chain(&self.more)
    }

    /// The lines after the last carved block, if there are any.
    fn rest(&self) -> Option<Range<u32>> {
        (self.is_carved() && self.cursor < self.extent.lines.end)
            .then_some(self.cursor..self.extent.lines.end)
    }

    #[inline]
    fn push(&mut self, carved: Carved) {
        match self.first.get_mut(self.count) {
            Some(free) => *free = carved,
            None => self.more.push(carved),
        }
        self.count += 1;
    }
}

/// The maximum number of lines that are allocated for a request of `lines` lines: 3/64 more (5 %), but at most three more, to avoid short rests.
pub(super) const fn max_allocated_lines(lines: u32) -> u32 {
    let counted = if lines < 64 { lines } else { 64 };
    lines.saturating_add(counted * 3 / 64)
}
