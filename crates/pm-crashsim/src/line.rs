//! Lines, words and pairs of words: sizes, ranges cut at their ends, sets and maps of line numbers, and fingerprints.
//!
//! A fingerprint has 128 bits; the fingerprint of an image is the exclusive or of those of its lines. Each fingerprint is recovered from once, so a
//! collision would hide an image from the check. With 128 well-mixed bits its probability among a billion images is about one in 10^21.

use core::ops::Range;
use indexmap::IndexSet;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};
use twox_hash::XxHash3_128;

/// Bytes of one line, for arrays.
pub(crate) const LINE: usize = 64;
const _: () = assert!(LINE as u64 == pm_core::line::LINE_BYTES);

/// The contents of a line.
pub(crate) type Line = [u8; LINE];

/// Bytes of one word: the longest piece of a store, except for pairs.
pub(crate) const WORD: usize = 8;

/// Bytes of an aligned pair of words that one instruction can store in one piece.
pub(crate) const PAIR: usize = 2 * WORD;

/// Converts an offset that was checked against the length of a region into an index.
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

/// Cuts the `len` bytes at `offset` at every multiple of `unit_bytes`. No piece is empty.
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

pub(crate) type LineSet = FxHashSet<u64>;
pub(crate) type LineMap<V> = FxHashMap<u64, V>;
/// The contents of lines by number.
pub(crate) type Lines = LineMap<Line>;
/// Numbers of lines, each once, in insertion order.
pub(crate) type LineList = IndexSet<u64, FxBuildHasher>;
pub(crate) type PrintSet = FxHashSet<u128>;
pub(crate) type PrintMap<V> = FxHashMap<u128, V>;

/// The share of a line in the fingerprint of its image.
pub(crate) fn fingerprint(number: u64, line: &Line) -> u128 {
    XxHash3_128::oneshot_with_seed(number, line)
}

/// The fingerprint of a sequence of words.
pub(crate) fn fingerprint_of(words: impl Iterator<Item = u64>) -> u128 {
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    XxHash3_128::oneshot(&bytes)
}

/// A seeded generator with an independent stream for each number. The same seed explores the same images.
pub(crate) fn random(seed: u64, stream: u64) -> fastrand::Rng {
    let scrambled = fastrand::Rng::with_seed(seed).u64(..);
    fastrand::Rng::with_seed(scrambled ^ stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_bit_of_a_line_changes_about_half_of_the_fingerprint() {
        for line in [[0; 64], [0xFF; 64], core::array::from_fn(|byte| u8::try_from(byte * 3).unwrap_or(0))] {
            let before = fingerprint(7, &line);
            let mut counts = [0_u32; 128];
            for bit in 0..512 {
                let mut other = line;
                other[bit / 8] ^= 1 << (bit % 8);
                let changed = before ^ fingerprint(7, &other);
                assert!((28..=100).contains(&changed.count_ones()), "bit {bit} changes {changed:032x}");
                for (of, count) in counts.iter_mut().enumerate() {
                    *count += u32::from(changed >> of & 1 == 1);
                }
            }
            assert!(counts.iter().all(|count| (170..=342).contains(count)), "{counts:?}");
        }
    }

    #[test]
    fn sequences_of_words_differ_by_length_and_order() {
        let runs: [&[u64]; 7] = [&[], &[0], &[0, 0], &[1], &[1, 0], &[0, 1], &[1, 1]];
        let prints: HashSet<u128> = runs.iter().map(|run| fingerprint_of(run.iter().copied())).collect();
        assert_eq!(prints.len(), runs.len());
    }

    /// Typical contents, small numbers in some words: neither half collides, nor does any pair of lines.
    #[test]
    fn small_contents_differ_in_either_half() {
        let (mut low, mut high, mut all) = (HashSet::new(), HashSet::new(), Vec::new());
        for number in 0..32 {
            for word in 0..8 {
                for value in 1..=64 {
                    let mut line = [0; 64];
                    line[word * 8] = value;
                    all.push(fingerprint(number, &line));
                }
            }
        }
        for print in &all {
            assert!(low.insert(print % (1 << 64)) && high.insert(print >> 64));
        }
        let few = &all[..2048];
        let pairs: HashSet<u128> =
            (0..few.len()).flat_map(|a| (0..a).map(move |b| few[a] ^ few[b])).collect();
        assert_eq!(pairs.len(), few.len() * (few.len() - 1) / 2);
    }

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
