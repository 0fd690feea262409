//! Space reserved for one transaction until that ends.

use super::headers::{HeaderWord, align, header_offset, header_word, huge_lines, line_offset, store_flushed};
use crate::format::{BLOCK_HEADER_BYTES, BlockState, LINE_BYTES, Lsn};
use crate::layout::Layout;
use core::ops::Range;
use pm_core::Pmem;

/// Blocks and gaps of one reservation that need no allocation in DRAM.
const CARVED_INLINE: usize = 4;

/// The place of a chunk's map: an arena, and a slot in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ArenaSlot {
    pub(super) arena: u32,
    pub(super) slot: u32,
}

/// Lines of one chunk that were taken out of use: one free block of the chain, or `is_several`.
#[derive(Clone, Debug)]
pub(super) struct Extent {
    /// `None` for a huge block, which starts in the chunk.
    pub(super) slot: Option<ArenaSlot>,
    pub(super) chunk: u64,
    pub(super) lines: Range<u32>,
    pub(super) is_several: bool,
    /// The extent is to be trimmed to end here: the lines behind are the last that are free.
    pub(super) trim: Option<u32>,
}

/// A part of a reservation that was carved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Carved {
    pub(super) line: u32,
    pub(super) lines: u32,
    /// [`BlockState::Free`] if it is a gap before an aligned block.
    pub(super) state: BlockState,
}

/// A free extent that no other thread allocates from, until `Space::settle` or `Space::return_unused`.
///
/// It starts where a free block of the chain starts, and ends where one ends, so that all its headers are about itself. Usually it is
/// one whole free block; of the last long one a transaction gets a part, which is made a free block of its own first. Other threads
/// may reserve the free space before and behind it at the same time. The caller stores its
/// [`joining_headers`](Self::joining_headers), then [carves](Self::carve) blocks, fills them, and commits their
/// [`headers`](Self::headers).
#[derive(Debug)]
#[must_use = "the space stays out of use before it is settled or returned"]
pub(crate) struct Reservation {
    pub(super) layout: Layout,
    pub(super) extent: Extent,
    /// The first line that is not carved yet.
    pub(super) cursor: u32,
    /// The LSN with which the extent became one free block, if it was several, or a part of one.
    pub(super) joined: Option<Lsn>,
    /// What was carved, in ascending order: the first few, and more of them.
    first: [Carved; CARVED_INLINE],
    count: usize,
    more: Vec<Carved>,
}

impl Reservation {
    #[inline]
    pub(super) const fn new(layout: &Layout, extent: Extent) -> Self {
        let none = Carved { line: 0, lines: 0, state: BlockState::Free };
        let (cursor, first) = (extent.lines.start, [none; CARVED_INLINE]);
        Self { layout: *layout, extent, cursor, joined: None, first, count: 0, more: Vec::new() }
    }

    /// Whether it is one free block, of which blocks can be [carved](Self::carve): not several, and not to be trimmed.
    #[inline]
    pub(crate) const fn is_one_block(&self) -> bool {
        self.joined.is_some() || !self.extent.is_several && self.extent.trim.is_none()
    }

    /// The headers that make it [one free block](Self::is_one_block): the offset and the word of each. The caller stores one after the
    /// other, each durable before the next, before anything is written into the reservation, and then calls [`Space::joined`].
    ///
    /// The contents of a block overwrite the headers of former blocks inside of it, and may become durable at any time; a crash before
    /// the block's own header is durable must not leave a chain that leads there.
    ///
    /// Where the reservation is to be trimmed, the last header covers its front part only. The header of the rest comes before it, and lies
    /// inside of the last free block, where no chain leads, so the chain is intact after a crash at any point.
    ///
    /// [`Space::joined`]: super::Space::joined
    #[inline]
    pub(crate) fn joining_headers(&self) -> impl Iterator<Item = HeaderWord> + use<> {
        let Extent { chunk, trim, lines: Range { start, end }, .. } = self.extent.clone();
        let layout = self.layout;
        let (rest, front) = (trim.map(|trim| trim..end), start..trim.unwrap_or(end));
        rest.into_iter().chain([front]).map(move |lines| header_word(&layout, chunk, BlockState::Free, lines))
    }

    /// The [headers](Self::joining_headers) that make it one free block are stored, with this LSN. Where the reservation
    /// [is over chunks](Self::is_over_chunks), the caller fences before it stores the blocks' headers, or log entries for them: chunks
    /// below a block must not be read as chunks, even if its own header becomes corrupted.
    pub(super) fn joined<P: Pmem>(&mut self, pmem: &P, lsn: Lsn) {
        self.joined = Some(lsn);
        let chunk = self.extent.chunk;
        let last = chunk + (u64::from(self.extent.lines.end) - 1) / self.layout.chunk_lines();
        for covered in chunk + 1..=last {
            store_flushed(pmem, (header_offset(&self.layout, covered, 1), 0));
        }
    }

    /// All headers of the blocks will be stored, in their order, before anything is written into one. Then the last of them leads past the
    /// former headers inside of its block, and nothing is joined before. Not where it [is over chunks](Self::is_over_chunks), as the
    /// headers of those are erased first.
    pub(super) const fn needs_no_joining(&mut self) {
        self.joined = Some(Lsn::ZERO);
    }

    /// Carves a block, and returns the range of its payload, up to the next block's header; `None` if there is no room for it. There
    /// always is for a first block with the length and the alignment that were reserved.
    ///
    /// # Panics
    /// When `lines` is zero, or `align_bytes` no power of two, or the reservation is not [one free block](Self::is_one_block).
    #[must_use = "the block is allocated when the reservation is settled"]
    #[inline]
    pub(crate) fn carve(&mut self, lines: u64, align_bytes: u64) -> Option<Range<u64>> {
        assert!(lines > 0, "a block has at least one line");
        assert!(
            self.is_one_block() && self.extent.trim.is_none(),
            "a reservation is one free block before it is carved"
        );
        let is_huge = self.is_over_chunks();
        let lines = if is_huge { huge_lines(&self.layout, lines) } else { lines };
        let lines = u32::try_from(lines).ok()?;
        let (chunk, end) = (self.extent.chunk, self.extent.lines.end);
        let at = align(&self.layout, chunk, self.cursor, align_bytes)?;
        let next = at.checked_add(lines).filter(|next| *next <= end)?;
        let gap = at - self.cursor;
        // A reservation over chunks is for one huge block, which ends in the last chunk.
        let is_other = gap > 0 || self.count > 0 || u64::from(end - next) >= self.layout.chunk_lines();
        if is_huge && is_other {
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

    /// The length of a first block for which `lines` are wanted: the whole reservation, if that is hardly longer. A short rest would need
    /// a header, and would hardly ever be wanted.
    pub(super) fn whole_or(&self, lines: u64, align_bytes: u64) -> u64 {
        let all = u64::from(self.extent.lines.end - self.extent.lines.start);
        let is_close = u32::try_from(lines).is_ok_and(|lines| all <= u64::from(whole_up_to(lines)));
        if is_close && !self.is_over_chunks() && align_bytes <= LINE_BYTES { all } else { lines }
    }

    /// The range of a first block of so many lines, with its header and the one behind it, at most.
    pub(super) fn stored_range(&self, lines: u64, align_bytes: u64) -> Range<u64> {
        let offset = |line| line_offset(&self.layout, self.extent.chunk, line);
        let at = align(&self.layout, self.extent.chunk, self.cursor, align_bytes).unwrap_or(self.cursor);
        let end = offset(at) + lines.saturating_add(1) * LINE_BYTES;
        offset(self.cursor) - BLOCK_HEADER_BYTES..end.min(offset(self.extent.lines.end))
    }

    /// Makes a carved block a free one. Whether one with this payload was carved.
    pub(crate) fn uncarve(&mut self, payload: u64) -> bool {
        let (layout, chunk) = (self.layout, self.extent.chunk);
        let carved = self.first[..self.count.min(CARVED_INLINE)].iter_mut().chain(&mut self.more);
        let mut blocks = carved.filter(|carved| carved.state == BlockState::Allocated);
        let found = blocks.find(|block| line_offset(&layout, chunk, block.line) == payload);
        found.map(|block| block.state = BlockState::Free).is_some()
    }

    /// Whether no block is carved, or all were uncarved.
    pub(crate) fn is_unused(&self) -> bool {
        self.carved().all(|carved| carved.state == BlockState::Free)
    }

    /// The headers to store when the transaction commits: none if nothing was carved.
    ///
    /// They are stored together by a log, or one after the other in this order: each but the last lies inside of what is still one free
    /// block, where no chain leads before the last one is stored.
    #[inline]
    pub(crate) fn headers(&self) -> impl Iterator<Item = HeaderWord> + '_ {
        let word = |state, lines| header_word(&self.layout, self.extent.chunk, state, lines);
        let rest = self.rest().map(|rest| word(BlockState::Free, rest));
        let carved = self.carved().rev();
        rest.into_iter()
            .chain(carved.map(move |carved| word(carved.state, carved.line..carved.line + carved.lines)))
    }

    /// Of [these](Self::headers), those inside of what is one free block until the last one is stored, and the last one. If the inner
    /// ones are durable before, any crash leaves an intact chain, even if the log entry with the same words is corrupted.
    #[inline]
    pub(crate) fn inner_and_front(&self) -> (impl Iterator<Item = HeaderWord> + '_, Option<HeaderWord>) {
        let count = usize::from(self.rest().is_some()) + self.count;
        (self.headers().take(count.saturating_sub(1)), self.headers().last())
    }

    /// Whether it is for a huge block: one longer than a chunk.
    #[inline]
    pub(crate) const fn is_over_chunks(&self) -> bool {
        self.extent.slot.is_none()
    }

    /// Whether a block was carved.
    pub(crate) const fn is_carved(&self) -> bool {
        self.count > 0
    }

    pub(super) fn carved(&self) -> impl DoubleEndedIterator<Item = &Carved> {
        self.first[..self.count.min(CARVED_INLINE)].iter().chain(&self.more)
    }

    /// The lines that are left over, if any, behind something carved.
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

/// The most lines that are allocated where `lines` are wanted: up to a twentieth more.
pub(super) const fn whole_up_to(lines: u32) -> u32 {
    let counted = if lines < 64 { lines } else { 64 };
    lines.saturating_add(counted * 3 / 64)
}
