//! Splitmix64: a seeded generator of random choices, and the fingerprints of images and runs.
//!
//! A fingerprint has 128 bits; that of an image is the exclusive or of those of its lines. Each fingerprint is recovered from once,
//! so that a collision would hide an image from the check. With 128 bits that mix well, its probability among a billion images is
//! about one in 10^21.

use crate::line::Line;

/// 2^64 divided by the golden ratio: the increment of splitmix64, and a multiplier that spreads small numbers over all bits.
const GOLDEN_RATIO: u64 = 0x9E37_79B9_7F4A_7C15;

/// A seeded generator of random numbers: the same seed explores the same images, on every machine.
///
/// # Source
/// Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA'14), figure 17.
pub(crate) struct Random {
    state: u64,
}

impl Random {
    /// A stream of its own for every pair.
    pub(crate) const fn new(seed: u64, stream: u64) -> Self {
        let scrambled = Self { state: seed }.next();
        Self { state: scrambled ^ stream }
    }

    const fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN_RATIO);
        mix(self.state)
    }

    /// A number below `bound`, which is not zero. The bias is below `bound / 2^64`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let wide = u128::from(self.next()) * bound as u128;
        usize::try_from(wide >> 64).expect("less than the bound")
    }
}

/// One secret for each word of a line, and one more for the line's number. All that matters is that nothing relates them:
/// these are the first outputs of splitmix64 from two seeds.
const SECRETS: [[u64; 9]; 2] = [secrets(0x243F_6A88_85A3_08D3), secrets(0x1319_8A2E_0370_7344)];

/// A line's share of an image's fingerprint: two hashes with secrets of their own.
pub(crate) fn fingerprint(number: u64, line: &Line) -> u128 {
    let words: [u64; 8] = core::array::from_fn(|word| {
        u64::from_le_bytes(*line[word * 8..].first_chunk().expect("a line has eight words"))
    });
    let [low, high] = SECRETS.map(|secrets| u128::from(hash(number, &words, &secrets)));
    high << 64 | low
}

/// Two words at a time, each product folded upon itself and carried into the next, as wyhash does; then once more over
/// all bits, as exclusive or with the shares of other lines mixes nothing.
fn hash(number: u64, words: &[u64; 8], secrets: &[u64; 9]) -> u64 {
    let mut state = fold(number ^ secrets[8], GOLDEN_RATIO);
    for pair in 0..4 {
        let [first, second] =
            [words[2 * pair] ^ secrets[2 * pair], words[2 * pair + 1] ^ secrets[2 * pair + 1]];
        state = fold(first ^ state, second ^ state.rotate_left(32));
    }
    mix(state)
}

/// The same for any number of words.
pub(crate) fn fingerprint_of(words: impl Iterator<Item = u64>) -> u128 {
    let secret = |half: usize, at: usize| SECRETS[half][at];
    let mut states = [secret(0, 8), secret(1, 8)];
    let mut count = 0_u64;
    for word in words {
        count += 1;
        for (half, state) in states.iter_mut().enumerate() {
            *state = fold(word ^ secret(half, 0) ^ *state, secret(half, 1) ^ state.rotate_left(32));
        }
    }
    let [low, high] = states.map(|state| u128::from(mix(state ^ count)));
    high << 64 | low
}

/// The halves of the product, combined.
#[expect(clippy::cast_possible_truncation, reason = "each half is wanted")]
const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

/// The output function of splitmix64: each bit of the outcome depends on each bit of `z`.
const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The first outputs of splitmix64 from that seed.
const fn secrets(seed: u64) -> [u64; 9] {
    let mut secrets = [0; 9];
    let (mut index, mut random) = (0, Random { state: seed });
    while index < secrets.len() {
        secrets[index] = random.next();
        index += 1;
    }
    secrets
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const fn halves(print: u128) -> [u128; 2] {
        [print % (1 << 64), print >> 64]
    }

    #[test]
    fn each_bit_of_a_line_changes_about_half_of_all_bits() {
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
    fn runs_of_words_are_told_apart_by_length_and_order() {
        let runs: [&[u64]; 7] = [&[], &[0], &[0, 0], &[1], &[1, 0], &[0, 1], &[1, 1]];
        let prints: HashSet<u128> = runs.iter().map(|run| fingerprint_of(run.iter().copied())).collect();
        assert_eq!(prints.len(), runs.len());
    }

    /// Contents as they occur: small numbers in some words. Neither half may meet, and no two pairs of lines.
    #[test]
    fn small_contents_are_told_apart_by_either_half() {
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
        for [of_low, of_high] in all.iter().copied().map(halves) {
            assert!(low.insert(of_low) && high.insert(of_high));
        }
        let few = &all[..2048];
        let pairs: HashSet<u128> =
            (0..few.len()).flat_map(|a| (0..a).map(move |b| few[a] ^ few[b])).collect();
        assert_eq!(pairs.len(), few.len() * (few.len() - 1) / 2);
    }
}
