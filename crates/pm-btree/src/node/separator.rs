//! Separators: the lowest keys of leaves.

use super::entry::push_bytes;
use super::key::{OwnedKey, SearchKey};
use pm_core::Pmem;

/// The low separator of a leaf, which separates it from its left sibling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Separator {
    /// A key of up to eight bytes that does not end in 0, padded; or the first eight bytes of a longer one.
    pub(crate) head: u64,
    /// The record with the whole key, or 0.
    pub(crate) record: u64,
    /// The length of the record's key.
    pub(crate) len: u32,
}

impl Separator {
    /// The separator of the first leaf: no key is below it.
    pub(crate) const LOWEST: Self = Self { head: 0, record: 0, len: 0 };

    /// Whether `key` is at or above the separator.
    #[inline]
    pub(crate) fn is_at_or_below<P: Pmem>(&self, pmem: &P, key: &SearchKey<'_>) -> bool {
        if key.head() != self.head {
            return key.head() > self.head;
        }
        // A separator without a record is a prefix of every key with its head.
        self.record == 0 || *self.load(pmem) <= *key.bytes()
    }

    /// Whether every key with this head is at or above the separator.
    pub(crate) const fn is_at_or_below_all_of(&self, head: u64) -> bool {
        // As above: a separator with a record is above some of the keys with its head.
        head > self.head || (head == self.head && self.record == 0)
    }

    /// Whether `key` is above the separator.
    pub(crate) fn is_below<P: Pmem>(&self, pmem: &P, key: &SearchKey<'_>) -> bool {
        self.is_at_or_below(pmem, key) && !(key.head() == self.head && self.is_equal(pmem, key))
    }

    fn is_equal<P: Pmem>(&self, pmem: &P, key: &SearchKey<'_>) -> bool {
        key.is_word() || self.load(pmem) == key.bytes()
    }

    /// Whether both separators are the same key.
    pub(crate) fn has_key_of<P: Pmem>(&self, pmem: &P, other: &Self) -> bool {
        self.head == other.head
            && self.len == other.len
            && (self.record == other.record || self.load(pmem) == other.load(pmem))
    }

    /// The separator as a key.
    pub(crate) fn to_key<P: Pmem>(self, pmem: &P, is_word: bool) -> OwnedKey {
        let bytes = if is_word { Vec::new() } else { self.load(pmem) };
        OwnedKey { head: self.head, bytes, is_word }
    }

    /// The bytes of the separator, in a table of byte keys.
    pub(crate) fn load<P: Pmem>(&self, pmem: &P) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.record == 0 {
            bytes.extend_from_slice(&self.head.to_be_bytes());
            bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
        } else {
            push_bytes(pmem, self.record, u64::from(self.len), &mut bytes);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::head_of;
    use super::*;
    use pm_core::Region;

    /// A separator with these bytes, which are in a record if `has_record`.
    fn separator(pmem: &Region, bytes: &[u8], has_record: bool) -> Separator {
        pmem.store(64, bytes);
        let len = u32::try_from(bytes.len()).expect("short");
        let (record, len) = if has_record { (64, len) } else { (0, 0) };
        Separator { head: head_of(bytes), record, len }
    }

    /// Ranges are half-open: a key equal to a leaf's high separator is in the right sibling.
    #[test]
    fn key_equal_to_a_separator_is_at_or_above_it() {
        let pmem = Region::anonymous(4096).expect("memory");
        let word = Separator { head: 7, record: 0, len: 0 };
        for (key, is_at_or_above, is_above) in [(6, false, false), (7, true, false), (8, true, true)] {
            let search = SearchKey::word(key);
            assert_eq!(word.is_at_or_below(&pmem, &search), is_at_or_above, "{key}");
            assert_eq!(word.is_below(&pmem, &search), is_above, "{key}");
            assert_eq!(word.is_at_or_below_all_of(key), is_at_or_above, "{key}");
        }
        for (bytes, has_record) in [(&b"eight by"[..], false), (b"eight bytes", true), (b"eight b\0", true)] {
            let separator = separator(&pmem, bytes, has_record);
            let above = [bytes, b"\0"].concat();
            let below = &bytes[..bytes.len() - 1];
            for (key, is_at_or_above, is_above) in
                [(below, false, false), (bytes, true, false), (&above, true, true)]
            {
                let search = SearchKey::bytes_key(key);
                assert_eq!(separator.is_at_or_below(&pmem, &search), is_at_or_above, "{key:?}");
                assert_eq!(separator.is_below(&pmem, &search), is_above, "{key:?}");
            }
            // With a record, keys on both sides have its head.
            let head = separator.head;
            let of = [head - 1, head, head + 1].map(|head| separator.is_at_or_below_all_of(head));
            assert_eq!(of, [false, !has_record, true], "{bytes:?}");
        }
    }
}
