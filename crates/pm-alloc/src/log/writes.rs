//! What a transaction is going to store: in DRAM, until it commits.

use pm_core::line::{LINE_BYTES, line_start, lines_spanned};

/// The writes of a transaction. Where they overlap, the later one counts.
///
/// Few and short ones are quick: they are kept sorted in one vector, and their bytes in another.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    /// Disjoint, not empty, in order.
    pub(super) ranges: Vec<Range>,
    /// The bytes of all ranges, and some that were written over.
    data: Vec<u8>,
    /// One bit of 64 for each line that holds a write, by hash. What has no bit here was not written.
    filter: u64,
    has_ahead: bool,
    has_hidden: bool,
}

/// Where some bytes belong, and where they are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) start: u64,
    pub(super) end: u64,
    at: usize,
    order: Order,
}

/// When a write is stored where it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Before the commit's fence, by which it is durable: a header to which nothing leads before a plain write of the
    /// transaction is stored.
    HeaderAhead,
    /// Before the plain ones: into a block that nothing links to yet.
    Hidden,
    /// After the fence.
    Plain,
    /// After the fence: a header.
    Header,
}

impl Order {
    const fn is_header(self) -> bool {
        matches!(self, Self::HeaderAhead | Self::Header)
    }
}

impl Range {
    /// Whether it is the header of a block, and not bytes of a user.
    pub(super) const fn is_header(&self) -> bool {
        self.order.is_header()
    }
}

impl Writes {
    /// Forgets all, and keeps the room for more.
    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
        self.data.clear();
        self.filter = 0;
        (self.has_ahead, self.has_hidden) = (false, false);
    }

    /// The bytes that there is room for.
    pub(crate) const fn capacity(&self) -> usize {
        self.data.capacity() + self.ranges.capacity() * size_of::<Range>()
    }

    /// Writes a word.
    ///
    /// # Panics
    /// When `offset` is no multiple of 8.
    pub(crate) fn word(&mut self, offset: u64, value: u64) {
        assert!(offset.is_multiple_of(8), "a word must be aligned, and offset {offset} is not");
        self.bytes(offset, &value.to_le_bytes());
    }

    /// Writes bytes.
    ///
    /// # Panics
    /// When they would end beyond 2^64.
    pub(crate) fn bytes(&mut self, offset: u64, bytes: &[u8]) {
        self.write(offset, bytes, Order::Plain);
    }

    /// Writes the header of a block.
    ///
    /// # Panics
    /// When `offset` is no multiple of 8.
    pub(crate) fn header(&mut self, offset: u64, word: u64) {
        assert!(offset.is_multiple_of(8), "a header must be aligned, and offset {offset} is not");
        self.write(offset, &word.to_le_bytes(), Order::Header);
    }

    /// Writes a header that is stored where it belongs, and durable there, before any other write of the transaction
    /// is. Nothing leads there before these, and no live entry aims there.
    ///
    /// # Panics
    /// When `offset` is no multiple of 8.
    pub(crate) fn header_ahead(&mut self, offset: u64, word: u64) {
        assert!(offset.is_multiple_of(8), "a header must be aligned, and offset {offset} is not");
        self.has_ahead = true;
        self.write(offset, &word.to_le_bytes(), Order::HeaderAhead);
    }

    /// Writes bytes into a block that nothing links to yet. They are [stored](Self::stores) before the others, so that a thread that
    /// finds a link to the block, without a lock, finds them.
    ///
    /// # Panics
    /// As [`bytes`](Self::bytes).
    pub(crate) fn hidden_bytes(&mut self, offset: u64, bytes: &[u8]) {
        self.has_hidden = true;
        self.write(offset, bytes, Order::Hidden);
    }

    fn write(&mut self, offset: u64, bytes: &[u8], order: Order) {
        let end = offset.checked_add(bytes.len() as u64).expect("the write must end inside 64 bits");
        if bytes.is_empty() {
            return;
        }
        let first = self.ranges.partition_point(|range| range.end <= offset);
        if let Some(range) = self.ranges.get(first)
            && range.start <= offset
            && end <= range.end
            && range.is_header() == order.is_header()
        {
            let at = range.at + index(offset - range.start);
            self.data[at..at + bytes.len()].copy_from_slice(bytes);
            return;
        }
        self.filter |= filter_of(offset, bytes.len());
        let new = Range { start: offset, end, at: self.data.len(), order };
        self.data.extend_from_slice(bytes);
        let behind = first + self.ranges[first..].partition_point(|range| range.start < end);
        if first == behind {
            self.ranges.insert(first, new);
            return;
        }
        // What sticks out at either side stays.
        let (left, right) = self.outside(first, behind, offset, end);
        self.ranges.splice(first..behind, [left, Some(new), right].into_iter().flatten());
    }

    /// Forgets what was written to these bytes.
    pub(crate) fn forget(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        let first = self.ranges.partition_point(|range| range.end <= offset);
        let behind = first + self.ranges[first..].partition_point(|range| range.start < end);
        if first == behind {
            return;
        }
        let (left, right) = self.outside(first, behind, offset, end);
        self.ranges.splice(first..behind, [left, right].into_iter().flatten());
    }

    /// What of the ranges from `first` to before `behind` sticks out at either side of these bytes.
    fn outside(&self, first: usize, behind: usize, start: u64, end: u64) -> (Option<Range>, Option<Range>) {
        let (left, right) = (self.ranges[first], self.ranges[behind - 1]);
        let left = (left.start < start).then_some(Range { end: start, ..left });
        let right =
            (right.end > end).then(|| Range { start: end, at: right.at + index(end - right.start), ..right });
        (left, right)
    }

    /// Puts what was written over `out`, which was just loaded from `offset`.
    pub(crate) fn overlay(&self, offset: u64, out: &mut [u8]) {
        if self.filter & filter_of(offset, out.len()) == 0 {
            return;
        }
        let end = offset + out.len() as u64;
        let first = self.ranges.partition_point(|range| range.end <= offset);
        for range in self.ranges[first..].iter().take_while(|range| range.start < end) {
            let (from, to) = (range.start.max(offset), range.end.min(end));
            let at = range.at + index(from - range.start);
            let bytes = &self.data[at..at + index(to - from)];
            out[index(from - offset)..index(to - offset)].copy_from_slice(bytes);
        }
    }

    /// Whether any of these bytes was written.
    pub(crate) fn overlaps(&self, offset: u64, len: usize) -> bool {
        let first = self.ranges.partition_point(|range| range.end <= offset);
        self.ranges.get(first).is_some_and(|range| range.start < offset + len as u64)
    }

    /// Whether there are none.
    pub(crate) const fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// What to store where, in order of places. Nothing overlaps.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> + Clone {
        self.ranges.iter().map(|range| (range.start, self.bytes_of(range)))
    }

    /// What to store before the fence, in order of places. Where there is any, what goes into blocks that nothing
    /// links to yet is stored with it, as both may share a line.
    pub(crate) fn ahead(&self) -> impl Iterator<Item = (u64, &[u8])> + Clone {
        let ranges = if self.has_ahead { self.ranges.as_slice() } else { &[] };
        ranges.iter().filter(|range| self.is_ahead(range)).map(|range| (range.start, self.bytes_of(range)))
    }

    /// What to store after the fence, in order of places.
    pub(crate) fn behind(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let behind = self.ranges.iter().filter(|range| !self.is_ahead(range));
        behind.map(|range| (range.start, self.bytes_of(range)))
    }

    /// The same in the order in which it is to be stored: what goes into blocks that nothing links to yet comes first.
    pub(crate) fn stores(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let hidden = if self.has_hidden && !self.has_ahead { self.ranges.as_slice() } else { &[] };
        let hidden = hidden.iter().filter(|range| range.order == Order::Hidden);
        let plain = self.ranges.iter().filter(|range| matches!(range.order, Order::Plain | Order::Header));
        hidden.chain(plain).map(|range| (range.start, self.bytes_of(range)))
    }

    fn is_ahead(&self, range: &Range) -> bool {
        self.has_ahead && matches!(range.order, Order::HeaderAhead | Order::Hidden)
    }

    fn bytes_of(&self, range: &Range) -> &[u8] {
        &self.data[range.at..range.at + index(range.end - range.start)]
    }
}

/// The bits of all lines that hold one of these bytes.
fn filter_of(offset: u64, len: usize) -> u64 {
    let lines = lines_spanned(offset, len as u64);
    if lines > 64 {
        return !0;
    }
    let lines = (0..lines).map(|line| line_start(offset) / LINE_BYTES + line);
    lines.fold(0, |filter, line| filter | 1 << (line.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58))
}

/// A length of something that is in memory.
#[expect(clippy::cast_possible_truncation, reason = "x86_64 and aarch64 have 64 bits")]
const fn index(length: u64) -> usize {
    length as usize
}
