//! Space that one transaction has for itself until it is over, and a block that one transaction is freeing.

use super::scan::{header_offset, header_word};
use crate::format::{BLOCK_HEADER_BYTES, BlockHeader, BlockState, LINE_BYTES, Lsn};
use crate::layout::Layout;
use core::ops::Range;
use pm_core::Pmem;

/// Blocks and gaps of one reservation that take no room elsewhere in DRAM.
const PIECES: usize = 4;

/// Who keeps the map of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// An arena, at this place in it.
    Arena { arena: u32, slot: u32 },
    /// Nobody: it is a block longer than a chunk, that starts there.
    Huge,
}

/// Lines of one chunk that were taken out of use: one free block of the chain, or `is_several`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) place: Place,
    pub(super) chunk: u64,
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) is_several: bool,
    /// The reservation is to end here, once the free block is two: the lines behind are the last that are free.
    pub(super) cut: Option<u32>,
}

/// A part of a reservation that was carved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) line: u32,
    pub(super) lines: u32,
    /// [`BlockState::Free`] if it only lies in front of an aligned block.
    pub(super) state: BlockState,
}

/// A free extent of which no other thread takes anything, until it is given back by `Space::settle` or `Space::return_unused`.
///
/// It starts where a free block of the chain starts, and ends where one ends, so that all that its headers say is about
/// itself. Usually that is one whole free block; of the last long one a transaction gets a part, which is made a free block of its
/// own first. What is free before and behind it other threads may reserve at the same time. Store its [`joining_headers`](Self::joining_headers), then
/// [`carve`](Self::carve) blocks, fill them, and commit their [`headers`](Self::headers).
#[derive(Debug)]
#[must_use = "nobody else can have the space before it is settled or returned"]
pub(crate) struct Reservation {
    pub(super) layout: Layout,
    pub(super) place: Place,
    pub(super) chunk: u64,
    pub(super) start: u32,
    pub(super) end: u32,
    /// What is not carved yet starts here.
    pub(super) cursor: u32,
    /// Where it is to end, until the header there is durable and the lines behind are given back.
    pub(super) cut: Option<u32>,
    /// The LSN with which it became one free block, if it was several, or a part of one.
    pub(super) joined: Option<Lsn>,
    is_several: bool,
    /// What was carved, in the order of places: so many, and what is more than that.
    first: [Piece; PIECES],
    count: usize,
    more: Vec<Piece>,
}

impl Reservation {
    #[inline]
    pub(super) const fn new(layout: &Layout, held: Held) -> Self {
        let none = Piece { line: 0, lines: 0, state: BlockState::Free };
        let first = [none; PIECES];
        let Held { place, chunk, start, end, is_several, cut } = held;
        let cursor = start;
        Self {
            layout: *layout,
            place,
            chunk,
            start,
            end,
            cursor,
            cut,
            joined: None,
            is_several,
            first,
            count: 0,
            more: Vec::new(),
        }
    }

    /// Whether it is one free block, of which blocks can be [carved](Self::carve): not several, nor to be cut.
    #[inline]
    pub(crate) const fn is_one_block(&self) -> bool {
        self.joined.is_some() || !self.is_several && self.cut.is_none()
    }

    /// The headers that make it [one free block](Self::is_one_block): where to store each, and the word. The caller stores one
    /// after the other, each durable before the next, before anything is written into the reservation, and calls [`Space::joined`] then.
    ///
    /// For what is written into a block overwrites the headers of former blocks inside of it, and is durable at any
    /// time; a crash before the block's own header is durable must not find the chain leading there.
    ///
    /// Where the reservation is to be cut, the last header covers its front part only. The header of the rest comes before it, and lies inside
    /// of the last free block, where no chain leads, so the chain is sound after a crash at any point.
    ///
    /// [`Space::joined`]: super::Space::joined
    #[inline]
    pub(crate) fn joining_headers(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let rest = self.cut.map(|cut| cut..self.end);
        let front = self.start..self.cut.unwrap_or(self.end);
        let (layout, chunk) = (self.layout, self.chunk);
        rest.into_iter().chain([front]).map(move |Range { start, end }| {
            header_word(&layout, chunk, start, BlockHeader::new(BlockState::Free, end - start))
        })
    }

    /// The [headers](Self::joining_headers) that make it one free block are stored, with this LSN. Where the reservation
    /// [is over chunks](Self::is_over_chunks), the caller fences before it stores the blocks' headers, or entries of a log for them: chunks
    /// that a block will lie over must not be taken for chunks, even if its own header is corrupted some day.
    pub(super) fn joined<P: Pmem>(&mut self, pmem: &P, lsn: Lsn) {
        self.joined = Some(lsn);
        let end = self.chunk + (u64::from(self.end) - 1) / self.layout.chunk_lines();
        for covered in self.chunk + 1..=end {
            let offset = header_offset(&self.layout, covered, 1);
            pmem.store_u64(offset, 0);
            pmem.flush(offset, BLOCK_HEADER_BYTES);
        }
    }

    /// All headers of the blocks will be stored, in their order, before anything is written into one. Then the last of them leads past the
    /// former headers that lie inside of its block, and nothing need be joined before; but not where it [is over
    /// chunks](Self::is_over_chunks), for the headers of those are taken away first.
    pub(super) const fn needs_no_joining(&mut self) {
        self.joined = Some(Lsn::ZERO);
    }

    /// Cuts off a block, and says where its payload lies, up to the next block's header; `None` if there is no room for it. The first
    /// block is always there that has the length and the alignment that were reserved.
    ///
    /// # Panics
    /// When `lines` is zero, or `align_bytes` no power of two, or the reservation is not [one free block](Self::is_one_block).
    #[must_use = "the block is allocated when the reservation is settled"]
    #[inline]
    pub(crate) fn carve(&mut self, lines: u64, align_bytes: u64) -> Option<Range<u64>> {
        assert!(lines > 0, "a block has a line at least");
        assert!(self.is_one_block() && self.cut.is_none(), "a reservation is one block before it is carved");
        let is_huge = self.place == Place::Huge;
        let lines = if is_huge { huge_lines(&self.layout, lines) } else { lines };
        let lines = u32::try_from(lines).ok()?;
        let at = align(&self.layout, self.chunk, self.cursor, align_bytes)?;
        let next = at.checked_add(lines).filter(|next| *next <= self.end)?;
        let gap = at - self.cursor;
        // One huge block, which ends in the last chunk.
        let is_other = gap > 0 || self.count > 0 || u64::from(self.end - next) >= self.layout.chunk_lines();
        if is_huge && is_other {
            return None;
        }
        if gap > 0 {
            self.push(Piece { line: self.cursor, lines: gap, state: BlockState::Free });
        }
        self.push(Piece { line: at, lines, state: BlockState::Allocated });
        self.cursor = next;
        let payload = self.offset(at);
        Some(payload..payload + Layout::usable_bytes(lines))
    }

    /// How long a block of `lines` lines is made: as long as all that was reserved, if that is hardly more. What would be left
    /// over would want a header of its own, and hardly anybody would want it.
    pub(super) fn rather_all_than(&self, lines: u64, align_bytes: u64) -> u64 {
        let all = u64::from(self.end - self.start);
        let is_close = u32::try_from(lines).is_ok_and(|lines| all <= u64::from(whole_up_to(lines)));
        if is_close && self.place != Place::Huge && align_bytes <= LINE_BYTES { all } else { lines }
    }

    /// From where up to where, at most, a first block of so many lines is, with its header and the one behind it.
    pub(super) fn stored_to(&self, lines: u64, align_bytes: u64) -> (u64, u64) {
        let at = align(&self.layout, self.chunk, self.cursor, align_bytes).unwrap_or(self.cursor);
        let end = self.offset(at) + lines.saturating_add(1) * LINE_BYTES;
        (self.offset(self.cursor) - BLOCK_HEADER_BYTES, end.min(self.offset(self.end)))
    }

    /// Takes back a block that was carved: it will be free. Whether there is one with this payload.
    pub(crate) fn uncarve(&mut self, payload: u64) -> bool {
        let start = self.layout.chunk_offset(self.chunk);
        let pieces = self.first[..self.count.min(PIECES)].iter_mut().chain(&mut self.more);
        let mut carved = pieces.filter(|piece| piece.state == BlockState::Allocated);
        let found = carved.find(|piece| start + u64::from(piece.line) * LINE_BYTES == payload);
        found.map(|piece| piece.state = BlockState::Free).is_some()
    }

    /// Whether no block is carved, or all were taken back.
    pub(crate) fn is_unused(&self) -> bool {
        self.pieces().all(|piece| piece.state == BlockState::Free)
    }

    /// The words to store when the transaction commits, and where: none if nothing was carved.
    ///
    /// All at once, by way of a log, or one after the other as they come: each but the last lies inside of what is
    /// still one free block, so nobody sees it before the last one makes them a chain.
    #[inline]
    pub(crate) fn headers(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let word =
            |line, state, lines| header_word(&self.layout, self.chunk, line, BlockHeader::new(state, lines));
        let rest = self.rest().map(|lines| word(self.cursor, BlockState::Free, lines));
        let pieces = self.pieces().rev();
        rest.into_iter().chain(pieces.map(move |piece| word(piece.line, piece.state, piece.lines)))
    }

    /// Of [these](Self::headers) the ones inside of what is one free block until the last one is stored, and that
    /// one. With the inner ones durable before, any crash leaves a whole chain, even if the entry of the log that
    /// says the same is corrupted.
    #[inline]
    pub(crate) fn inner_and_front(&self) -> (impl Iterator<Item = (u64, u64)> + '_, Option<(u64, u64)>) {
        let count = usize::from(self.rest().is_some()) + self.count;
        (self.headers().take(count.saturating_sub(1)), self.headers().last())
    }

    /// Whether it is for a block longer than a chunk.
    pub(crate) fn is_over_chunks(&self) -> bool {
        self.place == Place::Huge
    }

    /// Whether a block was carved.
    pub(crate) const fn is_carved(&self) -> bool {
        self.count > 0
    }

    pub(super) fn pieces(&self) -> impl DoubleEndedIterator<Item = &Piece> {
        self.first[..self.count.min(PIECES)].iter().chain(&self.more)
    }

    /// How many lines were left over, if any, next to something carved.
    fn rest(&self) -> Option<u32> {
        (self.is_carved() && self.cursor < self.end).then(|| self.end - self.cursor)
    }

    #[inline]
    fn push(&mut self, piece: Piece) {
        match self.first.get_mut(self.count) {
            Some(free) => *free = piece,
            None => self.more.push(piece),
        }
        self.count += 1;
    }

    fn offset(&self, line: u32) -> u64 {
        self.layout.chunk_offset(self.chunk) + u64::from(line) * LINE_BYTES
    }
}

/// So many lines may be given to who wants `lines`: up to a twentieth more.
pub(super) const fn whole_up_to(lines: u32) -> u32 {
    let counted = if lines < 64 { lines } else { 64 };
    lines.saturating_add(counted * 3 / 64)
}

/// How many lines a block gets that is longer than a chunk: one more, if it would end where a chunk's first block
/// starts.
pub(super) const fn huge_lines(layout: &Layout, lines: u64) -> u64 {
    if lines.is_multiple_of(layout.chunk_lines()) { lines.saturating_add(1) } else { lines }
}

/// The first line from `line` on whose offset in the region is a multiple of `align_bytes`.
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

/// A block that a transaction is freeing, until `Space::finish_free` or `Space::cancel_free`.
#[derive(Debug)]
#[must_use = "nobody can free the block before this is finished or cancelled"]
pub(crate) struct Freeing {
    pub(super) place: Place,
    pub(super) chunk: u64,
    pub(super) block: Range<u32>,
    /// The block, and what was free around it, which become one free block.
    pub(super) around: Range<u32>,
    header: Option<(u64, u64)>,
}

impl Freeing {
    #[inline]
    pub(super) fn new(
        layout: &Layout,
        place: Place,
        chunk: u64,
        block: Range<u32>,
        around: Range<u32>,
    ) -> Self {
        let free = BlockHeader::new(BlockState::Free, around.end - around.start);
        let header = header_word(layout, chunk, around.start, free);
        Self { place, chunk, block, around, header: Some(header) }
    }

    /// Of a block behind the cut of a chain.
    pub(super) const fn severed(place: Place, chunk: u64, block: Range<u32>) -> Self {
        Self { place, chunk, around: block.start..block.end, block, header: None }
    }

    /// The word to store when the transaction commits, and where: the block's own header, or that of a free one in
    /// front, which passes over it then. None behind the cut of a chain, where the block's header may be that of a former block, inside
    /// of what another one holds.
    pub(crate) const fn header(&self) -> Option<(u64, u64)> {
        self.header
    }
}

/// A freed block that is not to be had yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    /// Its chunk's place in the arena, or the chunk of a huge block.
    pub(super) at: u32,
    pub(super) line: u32,
    pub(super) lines: u32,
    pub(super) lsn: Lsn,
    pub(super) due_ns: u64,
}
