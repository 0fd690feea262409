//! The write set of a transaction. It is kept in DRAM until the transaction commits, and is then packed into few entries.
//!
//! Recovery may need to know which block headers a group stored, and must not mistake user data for a header. So a header is always logged as an
//! (offset, word) pair. User data that is a valid header at its offset is never logged as a pair. Such data occurs: an uninitialized block holds
//! headers of earlier blocks, which a program may read and write back.

use super::entry::{self, PAIRS};
use crate::format::{BlockHeader, ENTRY_DATA_BYTES, LogEntry};
use pm_core::line::{LINE_BYTES, line_start, lines_spanned};

const DATA: u64 = ENTRY_DATA_BYTES as u64;
const WORD: u64 = 8;

/// The write set of a transaction. Where writes overlap, the later one replaces the earlier one.
///
/// Optimized for a few short writes: one sorted vector holds the ranges, and another one their bytes.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    /// Disjoint, not empty, sorted.
    ranges: Vec<Range>,
    /// The bytes of all ranges, and bytes that later writes have replaced.
    data: Vec<u8>,
    /// A Bloom filter of the lines with writes: each line sets one of 64 bits.
    filter: u64,
    has_early: bool,
    has_hidden: bool,
}

/// The target of one write.
#[derive(Clone, Copy, Debug)]
struct Range {
    start: u64,
    end: u64,
    /// The index of its bytes in [`Writes::data`].
    data_index: usize,
    order: Order,
}

/// When a write is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Before the commit's fence, which makes it durable. For a header that no chain reaches until a write after the fence is applied.
    EarlyHeader,
    /// With the early headers, if there are any; otherwise after the fence, before all other writes. For bytes of a block that nothing links to yet.
    Hidden,
    /// After the fence. For user data.
    Plain,
    /// After the fence. For a block header.
    Header,
}

impl Order {
    const fn is_header(self) -> bool {
        matches!(self, Self::EarlyHeader | Self::Header)
    }
}

impl Range {
    /// Whether this is a block header.
    const fn is_header(&self) -> bool {
        self.order.is_header()
    }
}

impl Writes {
    /// Removes all writes, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
        self.data.clear();
        self.filter = 0;
        (self.has_early, self.has_hidden) = (false, false);
    }

    /// The size of the allocated DRAM in bytes.
    pub(crate) const fn capacity_bytes(&self) -> usize {
        self.data.capacity() + self.ranges.capacity() * size_of::<Range>()
    }

    /// Writes a word.
    ///
    /// # Panics
    /// When `offset` is not a multiple of 8.
    pub(crate) fn word(&mut self, offset: u64, value: u64) {
        assert!(offset.is_multiple_of(8), "a word must be aligned, and offset {offset} is not");
        self.bytes(offset, &value.to_le_bytes());
    }

    /// Writes bytes.
    ///
    /// # Panics
    /// When the end would be 2^64 or more.
    pub(crate) fn bytes(&mut self, offset: u64, bytes: &[u8]) {
        self.write(offset, bytes, Order::Plain);
    }

    /// Writes a block header.
    ///
    /// # Panics
    /// When `offset` is not a multiple of 8.
    pub(crate) fn header(&mut self, offset: u64, word: u64) {
        assert!(offset.is_multiple_of(8), "a header must be aligned, and offset {offset} is not");
        self.write(offset, &word.to_le_bytes(), Order::Header);
    }

    /// Writes a block header that is made durable before any [late](Self::late) write of the transaction is applied. The caller ensures that until
    /// then no chain of headers reaches it, and no live entry stores to it.
    ///
    /// # Panics
    /// When `offset` is not a multiple of 8.
    pub(crate) fn early_header(&mut self, offset: u64, word: u64) {
        assert!(offset.is_multiple_of(8), "a header must be aligned, and offset {offset} is not");
        self.has_early = true;
        self.write(offset, &word.to_le_bytes(), Order::EarlyHeader);
    }

    /// Writes bytes to a block that nothing links to yet. They are [applied first](Self::late_in_order), so that a thread that loads a link to the
    /// block, without a lock, also loads the new bytes.
    ///
    /// # Panics
    /// As for [`bytes`](Self::bytes).
    pub(crate) fn hidden_bytes(&mut self, offset: u64, bytes: &[u8]) {
        self.has_hidden = true;
        self.write(offset, bytes, Order::Hidden);
    }

    fn write(&mut self, offset: u64, bytes: &[u8], order: Order) {
        let end = offset.checked_add(bytes.len() as u64).expect("the write must end below 2^64");
        if bytes.is_empty() {
            return;
        }
        let first = self.ranges.partition_point(|range| range.end <= offset);
        if let Some(range) = self.ranges.get(first)
            && range.start <= offset
            && end <= range.end
            && range.is_header() == order.is_header()
        {
            let at = range.data_index + index(offset - range.start);
            self.data[at..at + bytes.len()].copy_from_slice(bytes);
            return;
        }
        self.filter |= filter_of(offset, bytes.len());
        let new = Range { start: offset, end, data_index: self.data.len(), order };
        self.data.extend_from_slice(bytes);
        let end_index = first + self.ranges[first..].partition_point(|range| range.start < end);
        if first == end_index {
            self.ranges.insert(first, new);
            return;
        }
        // The parts of old ranges outside the new one remain.
        let (left, right) = self.outside(first, end_index, offset, end);
        self.ranges.splice(first..end_index, [left, Some(new), right].into_iter().flatten());
    }

    /// Removes the writes to these bytes.
    pub(crate) fn remove(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        let first = self.ranges.partition_point(|range| range.end <= offset);
        let end_index = first + self.ranges[first..].partition_point(|range| range.start < end);
        if first == end_index {
            return;
        }
        let (left, right) = self.outside(first, end_index, offset, end);
        self.ranges.splice(first..end_index, [left, right].into_iter().flatten());
    }

    /// The parts of `ranges[first..end_index]` outside `start..end`: one before it and one after it.
    fn outside(
        &self,
        first: usize,
        end_index: usize,
        start: u64,
        end: u64,
    ) -> (Option<Range>, Option<Range>) {
        let (left, right) = (self.ranges[first], self.ranges[end_index - 1]);
        let left = (left.start < start).then_some(Range { end: start, ..left });
        let data_index = right.data_index + index(end.saturating_sub(right.start));
        let right = (right.end > end).then_some(Range { start: end, data_index, ..right });
        (left, right)
    }

    /// Overlays the writes on `out`, which was loaded from `offset`.
    pub(crate) fn overlay(&self, offset: u64, out: &mut [u8]) {
        if self.filter & filter_of(offset, out.len()) == 0 {
            return;
        }
        let end = offset + out.len() as u64;
        let first = self.ranges.partition_point(|range| range.end <= offset);
        for range in self.ranges[first..].iter().take_while(|range| range.start < end) {
            let (from, to) = (range.start.max(offset), range.end.min(end));
            let at = range.data_index + index(from - range.start);
            let bytes = &self.data[at..at + index(to - from)];
            out[index(from - offset)..index(to - offset)].copy_from_slice(bytes);
        }
    }

    /// Whether any of these bytes was written.
    pub(crate) fn overlaps(&self, offset: u64, len: usize) -> bool {
        let first = self.ranges.partition_point(|range| range.end <= offset);
        self.ranges.get(first).is_some_and(|range| range.start < offset + len as u64)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// All writes as offsets and bytes, disjoint and sorted.
    #[cfg(all(test, not(loom)))]
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.ranges.iter().map(|range| (range.start, self.bytes_of(range)))
    }

    /// The writes to apply before the fence, sorted. If there are early headers, hidden bytes are among them, because both may share a line.
    pub(crate) fn early(&self) -> impl Iterator<Item = (u64, &[u8])> + Clone {
        let ranges = if self.has_early { self.ranges.as_slice() } else { &[] };
        ranges.iter().filter(|range| self.is_early(range)).map(|range| (range.start, self.bytes_of(range)))
    }

    /// The writes to apply after the fence, sorted.
    pub(crate) fn late(&self) -> impl Iterator<Item = (u64, &[u8])> + Clone {
        let late = self.ranges.iter().filter(|range| !self.is_early(range));
        late.map(|range| (range.start, self.bytes_of(range)))
    }

    /// The writes of [`late`](Self::late) in the order in which they are applied: hidden bytes first.
    pub(crate) fn late_in_order(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let hidden = if self.has_hidden && !self.has_early { self.ranges.as_slice() } else { &[] };
        let hidden = hidden.iter().filter(|range| range.order == Order::Hidden);
        let plain = self.ranges.iter().filter(|range| matches!(range.order, Order::Plain | Order::Header));
        hidden.chain(plain).map(|range| (range.start, self.bytes_of(range)))
    }

    fn is_early(&self, range: &Range) -> bool {
        self.has_early && matches!(range.order, Order::EarlyHeader | Order::Hidden)
    }

    fn bytes_of(&self, range: &Range) -> &[u8] {
        &self.data[range.data_index..range.data_index + index(range.end - range.start)]
    }
}

/// Packs a write set into the entries of a group, without their LSNs. Its memory is reused for the next group.
#[derive(Debug, Default)]
pub(super) struct Packer {
    pub(super) entries: Vec<LogEntry>,
    pairs: Vec<(u64, u64)>,
}

/// How a run of adjacent bytes is split into entries: a few whole words at one end become pairs, and the rest becomes byte ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Split {
    /// The number of words that become pairs. An entry holds three pairs.
    pair_count: u64,
    /// Whether the pairs are the first words of the run, or the last.
    are_pairs_first: bool,
}

impl Split {
    /// A run takes entries of 48 bytes. The part for the last entry becomes pairs if it has at most three words. As a byte range it would take a
    /// whole entry; so do three pairs, but fewer leave room for other pairs. And the commit entry of a longer group holds pairs anyway.
    const fn of(start: u64, end: u64) -> Self {
        let len = end - start;
        let range_count = len.div_ceil(DATA);
        let pair_count = (len - (range_count - 1) * DATA).div_ceil(WORD);
        let (starts_aligned, ends_aligned) = (start.is_multiple_of(WORD), end.is_multiple_of(WORD));
        let is_aligned =
            if range_count == 1 { starts_aligned && ends_aligned } else { starts_aligned || ends_aligned };
        if is_aligned && pair_count <= PAIRS as u64 {
            Self { pair_count, are_pairs_first: !ends_aligned }
        } else {
            Self { pair_count: 0, are_pairs_first: false }
        }
    }
}

impl Writes {
    /// Calls `each(start, end, is_header)` for each header, and for each run of adjacent bytes that are not headers.
    fn for_each_run(&self, mut each: impl FnMut(u64, u64, bool)) {
        let is_same_run = |before: &Range, range: &Range| {
            before.end == range.start && !before.is_header() && !range.is_header()
        };
        for run in self.ranges.chunk_by(is_same_run) {
            if let (Some(first), Some(last)) = (run.first(), run.last()) {
                each(first.start, last.end, first.is_header());
            }
        }
    }
}

impl Packer {
    /// Packs these writes into the entries of a group, for a heap with this `seed`. The last entry is the commit entry; a group without writes has
    /// no other entry.
    pub(super) fn pack(&mut self, seed: u64, writes: &Writes) {
        self.entries.clear();
        self.pairs.clear();
        writes.for_each_run(|start, end, is_header| {
            let split = Split::of(start, end);
            let pair_bytes = split.pair_count * WORD;
            let (ranges, pairs) = if split.are_pairs_first {
                (start + pair_bytes..end, start..start + pair_bytes)
            } else {
                (start..end - pair_bytes, end - pair_bytes..end)
            };
            let mut at = ranges.start;
            while at < ranges.end {
                let len = (ranges.end - at).min(DATA);
                let mut data = [0; ENTRY_DATA_BYTES];
                let bytes = &mut data[..len as usize];
                writes.overlay(at, bytes);
                self.entries.push(entry::redo(at, bytes));
                at += len;
            }
            for at in pairs.step_by(8) {
                let mut word = [0; 8];
                writes.overlay(at, &mut word);
                if !is_header && BlockHeader::at(u64::from_le_bytes(word), seed, at).is_some() {
                    self.entries.push(entry::redo(at, &word));
                } else {
                    self.pairs.push((at, u64::from_le_bytes(word)));
                }
            }
        });
        self.entries.extend(self.pairs.chunks(PAIRS).map(entry::words));
        if self.pairs.is_empty() && self.entries.len() != 1 {
            self.entries.push(entry::words(&[]));
        }
        let count = self.entries.len() as u64;
        if let Some(last) = self.entries.last_mut() {
            entry::make_commit(last, count);
        }
    }
}

/// The bits of these bytes' lines in the Bloom filter.
fn filter_of(offset: u64, len: usize) -> u64 {
    let lines = lines_spanned(offset, len as u64);
    if lines > 64 {
        return !0;
    }
    let lines = (0..lines).map(|line| line_start(offset) / LINE_BYTES + line);
    lines.fold(0, |filter, line| filter | 1 << (line.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58))
}

/// A length as an index in DRAM.
#[expect(clippy::cast_possible_truncation, reason = "x86_64 and aarch64 have 64 bits")]
const fn index(length: u64) -> usize {
    length as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{BlockState, EntryKind};

    const SEED: u64 = 7;

    fn packed(writes: &Writes) -> Vec<LogEntry> {
        let mut packer = Packer::default();
        packer.pack(SEED, writes);
        packer.entries
    }

    fn count(writes: &[(u64, usize)]) -> u64 {
        let mut all = Writes::default();
        writes.iter().for_each(|&(offset, len)| all.bytes(offset, &vec![1; len]));
        packed(&all).len() as u64
    }

    /// The offsets of all pairs, sorted.
    fn pairs(entries: &[LogEntry]) -> Vec<u64> {
        let is_words = |entry: &&LogEntry| (entry.target >> 48) & 0x7f == EntryKind::Words as u64;
        let pairs = entries.iter().filter(is_words).flat_map(|entry| {
            let count = (entry.target >> 60) as usize;
            entry.data.chunks(2).take(count).map(|pair| pair[0])
        });
        let mut pairs: Vec<u64> = pairs.collect();
        pairs.sort_unstable();
        pairs
    }

    fn header(offset: u64) -> u64 {
        BlockHeader::new(BlockState::Free, 3).to_word(SEED, offset)
    }

    #[test]
    fn header_next_to_other_writes_is_a_pair() {
        for len in 0..200 {
            let mut writes = Writes::default();
            writes.bytes(64, &vec![1; len]);
            writes.hidden_bytes(192, &vec![1; len]);
            writes.early_header(184, header(184));
            writes.header(120, header(120));
            writes.header(56, header(56));
            let pairs = pairs(&packed(&writes));
            assert!([56, 120, 184].iter().all(|header| pairs.contains(header)), "{len} bytes: {pairs:?}");
        }
    }

    #[test]
    fn user_bytes_that_look_like_a_header_are_not_a_pair() {
        let headers = [56, 120, 184];
        for (start, len) in (0..=120).flat_map(|start| (1..=200).map(move |len| (start, len))) {
            let mut writes = Writes::default();
            let mut bytes = vec![1; 400];
            for (at, header_bytes) in
                headers.map(|at| (usize::try_from(at).unwrap(), header(at).to_le_bytes()))
            {
                bytes[at..at + 8].copy_from_slice(&header_bytes);
            }
            writes.bytes(start as u64, &bytes[start..start + len]);
            let entries = packed(&writes);
            assert!(!pairs(&entries).iter().any(|at| headers.contains(at)), "{len} bytes at {start}");
            let data_bytes: u64 = entries.iter().map(|entry| entry.target >> 56).sum();
            assert_eq!(data_bytes - 8 * pairs(&entries).len() as u64, len as u64, "all are stored");
        }
        let mut one = Writes::default();
        one.word(56, header(56));
        assert_eq!((packed(&one).len(), pairs(&packed(&one))), (1, vec![]));
        // A header of another offset is not a header here.
        one.word(56, header(120));
        assert_eq!(pairs(&packed(&one)), [56]);
    }

    #[test]
    fn one_range_or_three_words_take_one_entry() {
        assert_eq!(count(&[]), 1, "an empty commit");
        for start in 0..8 {
            (1..=48).for_each(|len| assert_eq!(count(&[(start, len)]), 1, "{len} bytes at {start}"));
        }
        assert_eq!(count(&[(0, 8), (128, 8), (64, 8)]), 1);
        assert_eq!(count(&[(0, 16), (128, 8)]), 1);
    }

    #[test]
    fn longer_groups_take_the_fewest_entries() {
        assert_eq!(count(&[(0, 8), (64, 8), (128, 8), (192, 8)]), 2);
        assert_eq!(count(&[(0, 72)]), 2, "48 bytes, and three words in the entry that commits");
        assert_eq!(count(&[(2, 62)]), 2, "46 bytes, and the last two words");
        assert_eq!(count(&[(0, 62)]), 2, "the first two words, and 46 bytes");
        assert_eq!(count(&[(2, 61)]), 3, "no word at either end, so an empty entry commits");
        assert_eq!(count(&[(0, 96)]), 3);
        assert_eq!(count(&[(0, 48), (64, 8)]), 2);
        assert_eq!(count(&[(0, 20), (64, 20)]), 3);
        assert_eq!(count(&[(0, 8), (8, 8), (16, 8), (24, 8), (32, 8), (40, 8)]), 1, "side by side");
    }
}
