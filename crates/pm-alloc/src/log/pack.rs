//! Writes packed into as few entries as can be.
//!
//! Recovery may need to know which headers of blocks a group wrote, and must not take bytes of a user for one. So a header
//! is always a pair, and bytes of a user that are a header at their place never are. Such bytes occur when a program
//! writes back what an unfilled block holds of a former one.

use super::entry::{self, PAIRS};
use super::writes::{Range, Writes};
use crate::format::{BLOCK_HEADER_BYTES, BlockHeader, ENTRY_DATA_BYTES, LINE_BYTES, LogEntry};

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
    /// Runs `each` with the start and the end of each header, and of each run of other bytes without a gap; and with
    /// whether it is a header.
    fn for_each_run(&self, mut each: impl FnMut(u64, u64, bool)) {
        let same_run = |before: &Range, range: &Range| {
            before.end == range.start && !before.is_header() && !range.is_header()
        };
        for run in self.ranges.chunk_by(same_run) {
            if let [first, ..] = run
                && let [.., last] = run
            {
                each(first.start, last.end, first.is_header());
            }
        }
    }
}

impl Packer {
    /// The entries of a group that stores these writes into a heap with this `seed`; the last one commits it. A group of
    /// no writes has an entry too.
    pub(super) fn pack(&mut self, seed: u64, writes: &Writes) {
        self.entries.clear();
        self.pairs.clear();
        writes.for_each_run(|start, end, is_header| {
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
                if !is_header && is_header_at(u64::from_le_bytes(word), seed, at) {
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

/// Whether this word is a header at `offset`.
fn is_header_at(word: u64, seed: u64, offset: u64) -> bool {
    let is_place = offset % LINE_BYTES == LINE_BYTES - BLOCK_HEADER_BYTES;
    is_place && BlockHeader::from_word(word, seed, offset).is_some()
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

    /// The offsets of all pairs.
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
    fn header_is_a_pair_whatever_is_beside_it() {
        for len in 0..200 {
            let mut writes = Writes::default();
            writes.bytes(64, &vec![1; len]);
            writes.hidden_bytes(192, &vec![1; len]);
            writes.header_ahead(184, header(184));
            writes.header(120, header(120));
            writes.header(56, header(56));
            let pairs = pairs(&packed(&writes));
            assert!([56, 120, 184].iter().all(|header| pairs.contains(header)), "{len} bytes: {pairs:?}");
        }
    }

    #[test]
    fn bytes_of_a_user_that_are_a_header_are_no_pair() {
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
            let words: u64 = entries.iter().map(|entry| entry.target >> 56).sum();
            assert_eq!(words - 8 * pairs(&entries).len() as u64, len as u64, "all are stored");
        }
        let mut one = Writes::default();
        one.word(56, header(56));
        assert_eq!((packed(&one).len(), pairs(&packed(&one))), (1, vec![]));
        // The header of another place is none.
        one.word(56, header(120));
        assert_eq!(pairs(&packed(&one)), [56]);
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
