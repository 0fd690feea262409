//! Space that is reserved for one transaction until it ends.

use super::headers::{HeaderWord, align, header_offset, header_word, huge_lines, line_offset, store_flushed};
use crate::format::{BLOCK_HEADER_BYTES, BlockState, LINE_BYTES, Lsn};
use crate::layout::Layout;
use core::ops::Range;
use pm_core::Pmem;

/// The number of blocks and gaps of a reservation that are kept without an allocation in DRAM.
const CARVED_INLINE: usize = 4;

/// The place of a chunk's map: an arena, and a slot in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ArenaSlot {
    pub(super) arena: u32,
    pub(super) slot: u32,
}

/// Free lines of one chunk that were reserved: one or several whole free blocks, unless they are to be trimmed.
#[derive(Clone, Debug)]
pub(super) struct Extent {
    /// `None` for a huge block, which starts in the chunk.
    pub(super) slot: Option<ArenaSlot>,
    pub(super) chunk: u64,
    pub(super) lines: Range<u32>,
    /// Whether they are several free blocks of the chain.
    pub(super) is_several_blocks: bool,
    /// The line at which the extent is to be trimmed: without the lines from there on, no other long extent would be free.
    pub(super) trim: Option<u32>,
}

/// A block or a gap that was carved from a reservation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Carved {
    pub(super) line: u32,
    pub(super) lines: u32,
    /// [`BlockState::Free`] if it is a gap before an aligned block.
    pub(super) state: BlockState,
}

/// A free extent that no other thread allocates from, until [`Space::settle`] or [`Space::return_unused`].
///
/// It starts where a free block of the chain starts, and ends where one ends, so its headers describe no other lines. Usually it is one
/// whole free block. Of the last long one a transaction gets a part, which is first made a free block of its own. Other threads may reserve
/// the free space before and after it at the same time. The caller stores its [`joining_headers`](Self::joining_headers), then
/// [carves](Self::carve) blocks, fills them, and commits their [`headers`](Self::headers).
///
/// [`Space::settle`]: super::Space::settle
/// [`Space::return_unused`]: super::Space::return_unused
#[derive(Debug)]
#[must_use = "the lines stay in use until the reservation is settled or returned"]
pub(crate) struct Reservation {
    pub(super) layout: Layout,
    pub(super) extent: Extent,
    /// The first line that is not carved yet.
    pub(super) cursor: u32,
    /// If the extent was several free blocks, or a part of one: the LSN with which it became one free block; zero if that was not logged.
    pub(super) joined: Option<Lsn>,
    /// What was carved, in ascending order of lines: the first few, their number and that of all others, and those.
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

    /// Whether it is one free block, and is not to be trimmed, so that blocks can be [carved](Self::carve).
    #[inline]
    pub(crate) const fn is_one_block(&self) -> bool {
        self.joined.is_some() || !self.extent.is_several_blocks && self.extent.trim.is_none()
    }

    /// The headers that make it [one free block](Self::is_one_block), in the order in which the caller stores them, each durable before the
    /// next. The caller stores them before anything is written into the reservation, and then calls [`Space::joined`].
    ///
    /// The contents of a block overwrite the headers of former blocks inside it, and may become durable at any time. A crash before the
    /// block's own header is durable must not leave a chain that leads to them.
    ///
    /// If the reservation is to be trimmed, the last header covers only its front part. The header of the rest is stored before it, inside the
    /// last free block, where no chain leads. So the chain is intact after a crash at any point.
    ///
    /// [`Space::joined`]: super::Space::joined
    #[inline]
    pub(crate) fn joining_headers(&self) -> impl Iterator<Item = HeaderWord> + use<> {
        let Extent { chunk, trim, lines: Range { start, end }, .. } = self.extent.clone();
        let layout = self.layout;
        let (rest, front) = (trim.map(|trim| trim..end), start..trim.unwrap_or(end));
        rest.into_iter().chain([front]).map(move |lines| header_word(&layout, chunk, BlockState::Free, lines))
    }

    /// Notes that it is one free block: its [headers](Self::joining_headers) are stored, with this LSN. For a
    /// [huge block](Self::is_huge), stores zeroes over the first headers of the chunks that the block covers, and the caller fences before it
    /// stores or logs the block's header: those chunks must not be read as chunks, even if the block's header becomes corrupted.
    pub(super) fn joined<P: Pmem>(&mut self, pmem: &P, lsn: Lsn) {
        self.joined = Some(lsn);
        let chunk = self.extent.chunk;
        let last = chunk + (u64::from(self.extent.lines.end) - 1) / self.layout.chunk_lines();
        for covered in chunk + 1..=last {
            store_flushed(pmem, (header_offset(&self.layout, covered, 1), 0));
        }
    }

    /// Notes that it need not be made one free block, because all headers of its blocks will be stored, in their order, before anything is
    /// written into a block: then no chain leads to the former headers inside. Not for a [huge block](Self::is_huge).
    pub(super) const fn skip_joining(&mut self) {
        self.joined = Some(Lsn::ZERO);
    }

    /// Carves a block, and returns the range of its payload, up to the next block's header. `None` if there is no room for it; there is
    /// always room for a first block of the length and the alignment that were reserved.
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
        let lines = if self.is_huge() { huge_lines(&self.layout, lines) } else { lines };
        let lines = u32::try_from(lines).ok()?;
        let (chunk, end) = (self.extent.chunk, self.extent.lines.end);
        let at = align(&self.layout, chunk, self.cursor, align_bytes)?;
        let next = at.checked_add(lines).filter(|next| *next <= end)?;
        let gap = at - self.cursor;
        // A reservation of whole chunks is for one huge block, which ends in the last chunk.
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

    /// The length of a first block for a request of `lines`: the whole reservation, if that is little longer. A short rest would need a header,
    /// and would rarely be requested.
    pub(super) fn whole_or(&self, lines: u64, align_bytes: u64) -> u64 {
        let all = u64::from(self.extent.lines.end - self.extent.lines.start);
        let is_close = u32::try_from(lines).is_ok_and(|lines| all <= u64::from(lines_with_rest(lines)));
        if is_close && !self.is_huge() && align_bytes <= LINE_BYTES { all } else { lines }
    }

    /// An upper bound of the bytes to be stored to for a first block of `lines` lines: the block, its header and the next header.
    pub(super) fn stored_range(&self, lines: u64, align_bytes: u64) -> Range<u64> {
        let offset = |line| line_offset(&self.layout, self.extent.chunk, line);
        let at = align(&self.layout, self.extent.chunk, self.cursor, align_bytes).unwrap_or(self.cursor);
        let end = offset(at) + lines.saturating_add(1) * LINE_BYTES;
        offset(self.cursor) - BLOCK_HEADER_BYTES..end.min(offset(self.extent.lines.end))
    }

    /// Makes the carved block with this payload free. `false`: none was carved with it.
    pub(crate) fn uncarve(&mut self, payload: u64) -> bool {
        let (layout, chunk) = (self.layout, self.extent.chunk);
        let carved = self.first[..self.count.min(CARVED_INLINE)].iter_mut().chain(&mut self.more);
        let mut blocks = carved.filter(|carved| carved.state == BlockState::Allocated);
        let found = blocks.find(|block| line_offset(&layout, chunk, block.line) == payload);
        found.map(|block| block.state = BlockState::Free).is_some()
    }

    /// Whether no block is carved, or all were freed again.
    pub(crate) fn is_unused(&self) -> bool {
        self.carved().all(|carved| carved.state == BlockState::Free)
    }

    /// The headers to store when the transaction commits; none if nothing was carved.
    ///
    /// They are stored together by a log, or one after the other in this order. Each but the last lies inside what is one free block until
    /// the last one is stored, so no chain leads to it before.
    #[inline]
    pub(crate) fn headers(&self) -> impl Iterator<Item = HeaderWord> + '_ {
        let word = |state, lines| header_word(&self.layout, self.extent.chunk, state, lines);
        let rest = self.rest().map(|rest| word(BlockState::Free, rest));
        let carved = self.carved().rev();
        rest.into_iter()
            .chain(carved.map(move |carved| word(carved.state, carved.line..carved.line + carved.lines)))
    }

    /// The [headers](Self::headers) that lie inside one free block until the last one is stored, and the last one. If the inner ones are
    /// durable before the last one is stored, any crash leaves an intact chain, even if the log entry with these headers is corrupted.
    #[inline]
    pub(crate) fn inner_and_front(&self) -> (impl Iterator<Item = HeaderWord> + '_, Option<HeaderWord>) {
        let count = usize::from(self.rest().is_some()) + self.count;
        (self.headers().take(count.saturating_sub(1)), self.headers().last())
    }

    /// Whether it is for a huge block, which is one longer than a chunk.
    #[inline]
    pub(crate) const fn is_huge(&self) -> bool {
        self.extent.slot.is_none()
    }

    /// Whether a block was carved.
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

/// The most lines that are allocated for a request of `lines`: up to a twentieth more, so that no short rest is left.
pub(super) const fn lines_with_rest(lines: u32) -> u32 {
    let counted = if lines < 64 { lines } else { 64 };
    lines.saturating_add(counted * 3 / 64)
}
