//! CRC-32C of a few words: the checksums of block headers and of log entries.

/// The CRC-32C (Castagnoli) of the little-endian bytes of these words.
///
/// The crate `crc32c` computes it from bytes, and is faster above a few hundred bytes. For the three words that the checksum of a block header
/// covers (seed, offset, low half of the header), it would spend most of its time on checking the length of the input.
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
    let by_instruction = crate::insn::crc32c_append(crc, words);
    by_instruction.unwrap_or_else(|| crc32c::crc32c_append(crc, crate::bytes_of_slice(words)))
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
    }
}
