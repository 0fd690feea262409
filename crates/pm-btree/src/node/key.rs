//! Keys as the tree compares them: encoded bytes and their first eight as a word.

use core::cmp::Ordering;
use pm_core::crc32c_words;

/// The first eight bytes, padded with zeros, as a big-endian number. Numbers of different heads are ordered like the bytes.
#[inline]
pub(crate) fn head_of(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<8>() {
        Some(first) => u64::from_be_bytes(*first),
        None => {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            u64::from_be_bytes(padded)
        }
    }
}

/// An encoded key, prepared for comparisons.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchKey<'a> {
    head: u64,
    /// The whole key. Not used if `is_word`.
    bytes: &'a [u8],
    is_word: bool,
    fingerprint: u8,
}

impl<'a> SearchKey<'a> {
    /// A key of a table whose keys have a fixed width of up to eight bytes: the head is the key.
    #[inline]
    pub(crate) fn word(head: u64) -> SearchKey<'static> {
        let fingerprint = (head.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8;
        SearchKey { head, bytes: &[], is_word: true, fingerprint }
    }

    /// A key of any other table.
    pub(crate) fn bytes_key(bytes: &'a [u8]) -> Self {
        Self { head: head_of(bytes), bytes, is_word: false, fingerprint: fingerprint_of(bytes) }
    }

    /// A key for comparisons only: its fingerprint is not computed.
    pub(crate) fn unhashed(bytes: &'a [u8]) -> Self {
        Self { head: head_of(bytes), bytes, is_word: false, fingerprint: 0 }
    }

    #[inline]
    pub(crate) const fn head(&self) -> u64 {
        self.head
    }

    #[inline]
    pub(crate) const fn is_word(&self) -> bool {
        self.is_word
    }

    /// The whole key; empty for a word key.
    pub(crate) const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    #[inline]
    pub(crate) const fn fingerprint(&self) -> u8 {
        self.fingerprint
    }

    pub(crate) fn order(&self, other: &SearchKey<'_>) -> Ordering {
        self.head.cmp(&other.head).then_with(|| self.bytes.cmp(other.bytes))
    }
}

fn fingerprint_of(bytes: &[u8]) -> u8 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut hash = bytes.len() as u64;
    for word in words {
        hash = u64::from(crc32c_words(&[hash, u64::from_le_bytes(*word)]));
    }
    (crc32c_words(&[hash, head_of(rest)]) >> 24) as u8
}

/// A key that owns its bytes: a bound of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnedKey {
    pub(crate) head: u64,
    /// Empty for a word key.
    pub(crate) bytes: Vec<u8>,
    pub(crate) is_word: bool,
}

impl OwnedKey {
    pub(crate) fn of(key: &SearchKey<'_>) -> Self {
        Self { head: key.head, bytes: key.bytes.to_vec(), is_word: key.is_word }
    }

    /// For comparisons only.
    pub(crate) fn as_key(&self) -> SearchKey<'_> {
        if self.is_word { SearchKey::word(self.head) } else { SearchKey::unhashed(&self.bytes) }
    }
}

/// The shortest key that is greater than `left` and not greater than `right`, a prefix of `right`.
pub(crate) fn separator<'a>(left: &[u8], right: &'a [u8]) -> &'a [u8] {
    let common = left.iter().zip(right).take_while(|(left, right)| left == right).count();
    &right[..(common + 1).min(right.len())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn heads_are_padded() {
        assert_eq!(head_of(b""), 0);
        assert_eq!(head_of(b"a"), 0x61 << 56);
        assert_eq!(head_of(b"abcdefghij"), u64::from_be_bytes(*b"abcdefgh"));
    }

    proptest! {
        #[test]
        fn separator_lies_between(left in "[ab]{0,12}", right in "[ab]{0,12}") {
            prop_assume!(left < right);
            let separator = separator(left.as_bytes(), right.as_bytes());
            prop_assert!(left.as_bytes() < separator && separator <= right.as_bytes());
        }

        #[test]
        fn order_is_that_of_bytes(left: Vec<u8>, right: Vec<u8>) {
            let order = SearchKey::bytes_key(&left).order(&SearchKey::bytes_key(&right));
            prop_assert_eq!(order, left.cmp(&right));
        }
    }
}
