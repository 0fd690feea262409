//! CRC-32C: the checksums of block headers, of log entries, and of records of any length.

use crate::insn::{CarrylessMultiply, Crc32c};

/// The polynomial, without its highest power: the highest bit is the coefficient of `x^0`.
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// The most words in one of the three parts of [`interleaved`].
const PART_WORDS: usize = 170;

/// From this many words on, [`interleaved`] is faster than one word after the other.
const INTERLEAVED_WORDS: usize = 12;

/// `SHIFTS[n]` is `x^(64 n - 33)` modulo the polynomial. The carry-less product of a CRC and of `SHIFTS[n]` is a word whose CRC is that CRC followed
/// by `n` zero words.
const SHIFTS: [u32; 2 * PART_WORDS + 2] = {
    let mut shifts = [0; 2 * PART_WORDS + 2];
    let (mut power, mut exponent) = (1_u32 << 31, 0);
    let mut words = 1;
    while words < shifts.len() {
        while exponent < 64 * words - 33 {
            power = (power >> 1) ^ (if power & 1 == 1 { POLYNOMIAL } else { 0 });
            exponent += 1;
        }
        shifts[words] = power;
        words += 1;
    }
    shifts
};

/// The CRC-32C (Castagnoli) of the little-endian bytes of these words.
///
/// For the three words that the checksum of a block header covers (seed, offset, low half of the header), the crate `crc32c` and
/// [`crc32c_bytes`] would spend most of their time on checking the length of the input.
///
/// ```
/// assert_eq!(pm_core::crc32c_words(&[u64::from_le_bytes(*b"12345678")]), 0x6087_809A);
/// ```
///
/// # Source
/// RFC 3720, 12.1; Intel SDM vol. 2, CRC32; Arm ARM, CRC32CX.
#[must_use]
#[inline]
pub fn crc32c_words(words: &[u64]) -> u32 {
    crc32c_append(0, words)
}

/// The CRC-32C of earlier words, whose CRC-32C is `crc`, followed by `words`. The CRC-32C of no words is 0.
#[must_use]
#[inline]
pub fn crc32c_append(crc: u32, words: &[u64]) -> u32 {
    let Some(cpu) = Crc32c::detect() else {
        return crc32c::crc32c_append(crc, crate::bytes_of_slice(words));
    };
    finish(words.iter().fold(start(crc), |state, word| cpu.word(state, *word)))
}

/// The CRC-32C of earlier bytes, whose CRC-32C is `crc`, followed by `bytes`. The CRC-32C of no bytes is 0.
///
/// Faster than the crate `crc32c`, by a factor of two from 200 to 700 bytes. The instruction's result is the input of the next
/// one, so that one sequence of instructions waits most of the time. Long inputs are therefore computed as three independent parts.
///
/// ```
/// assert_eq!(pm_core::crc32c_bytes(0, b"123456789"), 0xE306_9283);
/// let start = pm_core::crc32c_bytes(0, b"1234");
/// assert_eq!(pm_core::crc32c_bytes(start, b"56789"), 0xE306_9283);
/// ```
///
/// # Source
/// RFC 3720, 12.1; Gopal et al., "Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction" (Intel, 2011).
#[must_use]
#[inline]
pub fn crc32c_bytes(crc: u32, bytes: &[u8]) -> u32 {
    let Some(cpu) = Crc32c::detect() else { return crc32c::crc32c_append(crc, bytes) };
    let (mut words, mut rest) = bytes.as_chunks();
    let mut state = start(crc);
    if words.len() >= INTERLEAVED_WORDS
        && let Some(multiplier) = CarrylessMultiply::detect()
    {
        (state, words) = interleaved(cpu, multiplier, state, words);
    }
    state = words.iter().fold(state, |state, word| cpu.word(state, u64::from_le_bytes(*word)));
    if let Some((half, after)) = rest.split_first_chunk() {
        state = cpu.half(state, u32::from_le_bytes(*half));
        rest = after;
    }
    finish(rest.iter().fold(state, |state, byte| cpu.byte(state, *byte)))
}

/// The state after most of `words`, and the words that are left, fewer than [`INTERLEAVED_WORDS`].
///
/// CRCs are linear: the CRC of three parts is the sum of the CRCs of each part followed by as many zeroes as there are bytes after it. The
/// products that append the zeroes are added to the word after the three parts.
#[inline]
fn interleaved(
    cpu: Crc32c,
    multiplier: CarrylessMultiply,
    mut state: u64,
    mut words: &[[u8; 8]],
) -> (u64, &[[u8; 8]]) {
    while words.len() >= INTERLEAVED_WORDS {
        let count = ((words.len() - 1) / 3).min(PART_WORDS);
        let (first, after) = words.split_at(count);
        let (second, after) = after.split_at(count);
        let (third, after) = after.split_at(count);
        let (next, after) = after.split_first().expect("a word is left after the three parts");
        let (mut second_state, mut third_state) = (0, 0);
        for ((first, second), third) in first.iter().zip(second).zip(third) {
            state = cpu.word(state, u64::from_le_bytes(*first));
            second_state = cpu.word(second_state, u64::from_le_bytes(*second));
            third_state = cpu.word(third_state, u64::from_le_bytes(*third));
        }
        let first = multiplier.multiply(state, SHIFTS[2 * count + 1].into());
        let second = multiplier.multiply(second_state, SHIFTS[count + 1].into());
        state = cpu.word(third_state, u64::from_le_bytes(*next) ^ first ^ second);
        words = after;
    }
    (state, words)
}

/// The state of a computation that continues from `crc`.
#[inline(always)]
fn start(crc: u32) -> u64 {
    u64::from(!crc)
}

/// The CRC of a state.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the high half of a state is zero")]
const fn finish(state: u64) -> u32 {
    !(state as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn crc_of_words_equals_crc_of_bytes(words in proptest::collection::vec(any::<u64>(), 0..40)) {
            let crc = crc32c::crc32c(crate::bytes_of_slice(&words));
            prop_assert_eq!(crc32c_words(&words), crc);
            let (front, back) = words.split_at(words.len() / 3);
            prop_assert_eq!(crc32c_append(crc32c_words(front), back), crc);
        }

        #[test]
        fn crc_of_bytes_equals_that_of_the_crate(
            bytes in proptest::collection::vec(any::<u8>(), 0..600),
            before: u32,
            skipped in 0..8_usize,
        ) {
            let bytes = &bytes[skipped.min(bytes.len())..];
            prop_assert_eq!(crc32c_bytes(before, bytes), crc32c::crc32c_append(before, bytes));
        }
    }

    #[test]
    fn crc_of_bytes_is_correct_for_every_length() {
        let bytes: Vec<u8> = (0..10_000_u32).map(|i| i.wrapping_mul(0x9E37_79B1).to_le_bytes()[2]).collect();
        for len in 0..bytes.len() {
            let (bytes, before) = (&bytes[..len], 0xDEAD_BEEF);
            assert_eq!(crc32c_bytes(before, bytes), crc32c::crc32c_append(before, bytes), "{len} bytes");
        }
    }
}
