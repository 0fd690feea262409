//! Lines, words and pairs of words: their sizes, byte ranges cut at their ends, and sets and maps of their numbers.

use core::ops::Range;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// Bytes of one line, for arrays.
pub(crate) const LINE: usize = 64;
const _: () = assert!(LINE as u64 == pm_core::line::LINE_BYTES);

/// The contents of a line.
pub(crate) type Line = [u8; LINE];

/// Bytes of one word: the longest piece of a store, but for pairs.
pub(crate) const WORD: usize = 8;

/// Bytes of an aligned pair of words, which one instruction stores in one piece.
pub(crate) const PAIR: usize = 2 * WORD;

/// Turns an offset that was checked against the length of a region into an index.
pub(crate) fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("a region is held in memory, so offsets inside it are indices")
}

/// The numbers of the lines that a range touches. None for no bytes.
pub(crate) fn lines(offset: u64, len_bytes: u64) -> Range<u64> {
    let first = offset / LINE as u64;
    first..if len_bytes == 0 { first } else { (offset + len_bytes - 1) / LINE as u64 + 1 }
}

/// The part of a range that lies in one unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The number of the unit.
    pub(crate) unit: u64,
    /// Where the piece lies inside the unit.
    pub(crate) within: Range<usize>,
    /// Where the piece lies inside the range.
    pub(crate) of_range: Range<usize>,
}

/// Cuts the `len` bytes at `offset` at every multiple of `unit_bytes`. None is empty.
pub(crate) fn pieces(offset: u64, len: usize, unit_bytes: usize) -> impl Iterator<Item = Piece> {
    let mut done = 0;
    core::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let start = index(at % unit_bytes as u64);
        let count = (unit_bytes - start).min(len - done);
        let piece = Piece {
            unit: at / unit_bytes as u64,
            within: start..start + count,
            of_range: done..done + count,
        };
        done += count;
        Some(piece)
    })
}

pub(crate) type LineSet = HashSet<u64, BuildHasherDefault<LineHasher>>;
pub(crate) type LineMap<V> = HashMap<u64, V, BuildHasherDefault<LineHasher>>;
/// The contents of lines by number.
pub(crate) type Lines = LineMap<Line>;
pub(crate) type PrintSet = HashSet<u128, BuildHasherDefault<LineHasher>>;
pub(crate) type PrintMap<V> = HashMap<u128, V, BuildHasherDefault<LineHasher>>;

/// Numbers of lines, each once, in the order in which they were added.
#[derive(Clone, Debug, Default)]
pub(crate) struct LineList {
    in_order: Vec<u64>,
    known: LineSet,
}

impl LineList {
    pub(crate) fn add(&mut self, line: u64) {
        if self.known.insert(line) {
            self.in_order.push(line);
        }
    }

    pub(crate) fn extend(&mut self, lines: impl IntoIterator<Item = u64>) {
        lines.into_iter().for_each(|line| self.add(line));
    }

    pub(crate) fn as_slice(&self) -> &[u64] {
        &self.in_order
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> {
        self.in_order.iter().copied()
    }

    /// As a set, without their order.
    pub(crate) fn into_set(self) -> LineSet {
        self.known
    }

    pub(crate) fn contains(&self, line: u64) -> bool {
        self.known.contains(&line)
    }
}

/// One multiplication: line numbers come from the program under test, not from an adversary.
#[derive(Default)]
pub(crate) struct LineHasher(u64);

impl Hasher for LineHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u64(&mut self, number: u64) {
        // The table looks at the highest bits and at the lowest; the golden ratio spreads over both.
        let product = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = product ^ (product >> 32);
    }

    #[expect(clippy::cast_possible_truncation, reason = "a fingerprint is as random in one half as in both")]
    fn write_u128(&mut self, number: u128) {
        self.write_u64(number as u64);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_straddling_range_once_and_in_order() {
        let cut: Vec<_> = pieces(13, 12, WORD).collect();
        assert_eq!(cut.len(), 3);
        assert_eq!(cut[0], Piece { unit: 1, within: 5..8, of_range: 0..3 });
        assert_eq!(cut[1], Piece { unit: 2, within: 0..8, of_range: 3..11 });
        assert_eq!(cut[2], Piece { unit: 3, within: 0..1, of_range: 11..12 });
        assert_eq!(pieces(64, 0, LINE).count(), 0);
    }
}
