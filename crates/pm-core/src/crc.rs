//! CRC-32C of a few words: the checksums of headers and log entries.

/// The CRC-32C (Castagnoli) of these words as little-endian bytes.
///
/// The crate `crc32c` does the same for bytes, and is the faster one from some hundred of them on. For the three words of a block's
/// header most of its time goes into finding out that there is no long run.
///
/// ```
/// assert_eq!(pm_core::crc32c_words(&[u64::from_le_bytes(*b"12345678")]), 0x6087_809A);
/// ```
///
/// # Source
/// RFC 3720, 12.1; Intel SDM vol. 2, CRC32.
#[must_use]
#[inline]
pub fn crc32c_words(words: &[u64]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the CPU has the instruction, as was just asked.
        return unsafe { by_instruction(words) };
    }
    crc32c::crc32c(crate::bytes_of_slice(words))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn by_instruction(words: &[u64]) -> u32 {
    let crc =
        words.iter().fold(u64::from(u32::MAX), |crc, word| core::arch::x86_64::_mm_crc32_u64(crc, *word));
    #[expect(clippy::cast_possible_truncation, reason = "the instruction leaves 32 bits")]
    let crc = crc as u32;
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_the_same_as_of_bytes(words in proptest::collection::vec(any::<u64>(), 0..40)) {
            prop_assert_eq!(crc32c_words(&words), crc32c::crc32c(crate::bytes_of_slice(&words)));
        }
    }
}
