//! Writes packed into as few entries as can be.

use super::entry::{self, PAIRS};
use super::writes::Writes;
use crate::format::{ENTRY_DATA_BYTES, LogEntry};

const DATA: u64 = ENTRY_DATA_BYTES as u64;
const WORD: u64 = 8;

/// The entries of a group, without their stamps. Keeps its room from one group to the next.
#[derive(Debug, Default)]
pub(super) struct Packer {
    pub(super) entries: Vec<LogEntry>,
    pairs: Vec<(u64, u64)>,
}

/// How a run of bytes without a gap is cut: so many whole words from one end as pairs, the rest as ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    /// Entries with up to 48 bytes.
    ranges: u64,
    /// Words that go into pairs, where three share an entry.
    words: u64,
    /// Whether these are the first words of the run, or the last.
    words_first: bool,
}

impl Cut {
    /// Of a remainder that would fill an entry to no more than half, pairs are made: three of them cost no more than the entry
    /// would, and fewer leave room in theirs for others; and a group of several entries ends with one of pairs anyway.
    const fn of(start: u64, end: u64) -> Self {
        let len = end - start;
        let ranges = len.div_ceil(DATA);
        let words = (len - (ranges - 1) * DATA).div_ceil(WORD);
        let (head, tail) = (start.is_multiple_of(WORD), end.is_multiple_of(WORD));
        let can = words <= PAIRS as u64 && if ranges == 1 { head && tail } else { head || tail };
        if can {
            Self { ranges: ranges - 1, words, words_first: !tail }
        } else {
            Self { ranges, words: 0, words_first: false }
        }
    }
}

impl Writes {
    /// Runs `each` with the first range, the start and the end of each run of bytes without a gap.
    fn for_each_run(&self, mut each: impl FnMut(usize, u64, u64)) {
        let mut first = 0;
        for (next, range) in self.ranges.iter().enumerate().skip(1) {
            let before = self.ranges[next - 1].end;
            if range.start != before {
                each(first, self.ranges[first].start, before);
                first = next;
            }
        }
        if let Some(last) = self.ranges.last() {
            each(first, self.ranges[first].start, last.end);
        }
    }
}

impl Packer {
    /// The entries of a group that stores these writes; the last one commits it. A group of no writes has an entry too.
    pub(super) fn pack(&mut self, writes: &Writes) {
        self.entries.clear();
        self.pairs.clear();
        writes.for_each_run(|_, start, end| {
            let cut = Cut::of(start, end);
            let words = cut.words * WORD;
            let (from, to, words_from) =
                if cut.words_first { (start + words, end, start) } else { (start, end - words, end - words) };
            let mut at = from;
            while at < to {
                let len = (to - at).min(DATA);
                let mut data = [0; ENTRY_DATA_BYTES];
                let bytes = &mut data[..len as usize];
                writes.overlay(at, bytes);
                self.entries.push(entry::redo(at, bytes));
                at += len;
            }
            for at in (words_from..words_from + words).step_by(8) {
                let mut word = [0; 8];
                writes.overlay(at, &mut word);
                self.pairs.push((at, u64::from_le_bytes(word)));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn count(writes: &[(u64, usize)]) -> u64 {
        let mut all = Writes::default();
        writes.iter().for_each(|&(offset, len)| all.bytes(offset, &vec![1; len]));
        let mut packer = Packer::default();
        packer.pack(&all);
        packer.entries.len() as u64
    }

    #[test]
    fn one_range_or_three_words_are_one_entry() {
        assert_eq!(count(&[]), 1, "a commit of nothing");
        for start in 0..8 {
            (1..=48).for_each(|len| assert_eq!(count(&[(start, len)]), 1, "{len} bytes at {start}"));
        }
        assert_eq!(count(&[(0, 8), (128, 8), (64, 8)]), 1);
        assert_eq!(count(&[(0, 16), (128, 8)]), 1);
    }

    #[test]
    fn longer_groups_take_as_few_as_can_be() {
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
