//! Entries of nodes: their commit word, their seal, and their bytes.

use super::bytes::Bytes;
use super::key::{SearchKey, head_of};
use crate::error::{Corruption, CorruptionKind};
use crate::format::{ENTRY_BYTES, NODE_HEADER_BYTES};
use pm_core::{Pmem, crc32c_append, crc32c_words};

/// The granularity of records' offsets.
const RECORD_UNIT: u64 = 16;
const RECORD_OFFSET_BITS: u32 = 40;

/// The length of the longest record: what a payload can say, and a whole number of lines.
pub(crate) const RECORD_BYTES_MAX: u64 = (1 << (u64::BITS - RECORD_OFFSET_BITS)) - 64;

/// The longest key and the longest value that an entry holds without a record.
pub(crate) const INLINE_BYTES: usize = 8;

/// The offset of the commit word in an entry.
const COMMIT: u64 = 24;

/// The bytes before the key in a record that has lengths.
pub(crate) const RECORD_LENGTHS_BYTES: u64 = 8;

/// What an entry says about its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The key has a value.
    Value,
    /// The key was removed.
    Tombstone,
    /// The key has a value, if the batch is committed. The order in the commit word is the number of the batch slot, and the epoch is that of the
    /// batch.
    BatchValue,
    /// The key was removed, if the batch is committed, and otherwise still has the value.
    BatchRemoval,
}

impl Kind {
    /// Whether the key has a value.
    pub(crate) const fn is_value(self) -> bool {
        matches!(self, Self::Value | Self::BatchValue)
    }

    /// Whether the entry counts only if its batch is committed.
    pub(crate) const fn is_batch(self) -> bool {
        matches!(self, Self::BatchValue | Self::BatchRemoval)
    }
}

/// The last word of an entry: from the lowest bit, 3 bits with the kind, a bit for a value without a record, 12 bits with the order and 48 bits with
/// the epoch. 0 in a slot of a line that was never used, and [`emptied`](Self::emptied) in any other one without an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Commit(pub(crate) u64);

impl Commit {
    pub(crate) const ORDER_MAX: u16 = (1 << 12) - 1;
    const INLINE: u64 = 8;
    /// The kind of an emptied slot.
    const EMPTIED: u64 = 7;

    /// The word of an emptied slot at `offset`, in a node with this seed. It differs from 0, so that a zeroed line does not look like one of free slots.
    pub(crate) fn emptied(seed: u32, offset: u64) -> Self {
        Self(Self::EMPTIED | u64::from(crc32c_append(seed, &[offset])) << 16)
    }

    /// Whether this is the word of an emptied slot, of any node.
    pub(crate) const fn is_of_emptied(self) -> bool {
        self.0 & 7 == Self::EMPTIED
    }

    pub(crate) const fn new(kind: Kind, is_inline: bool, stamp: Stamp) -> Self {
        let kind = match kind {
            Kind::Value => 1,
            Kind::Tombstone => 2,
            Kind::BatchValue => 3,
            Kind::BatchRemoval => 4,
        };
        Self(kind | if is_inline { Self::INLINE } else { 0 } | (stamp.order as u64) << 4 | stamp.epoch << 16)
    }

    /// `None` if no entry has such a kind.
    pub(crate) const fn kind(self) -> Option<Kind> {
        match self.0 & 7 {
            1 => Some(Kind::Value),
            2 => Some(Kind::Tombstone),
            3 => Some(Kind::BatchValue),
            4 => Some(Kind::BatchRemoval),
            _ => None,
        }
    }

    pub(crate) const fn is_inline(self) -> bool {
        self.0 & Self::INLINE != 0
    }

    pub(crate) const fn stamp(self) -> Stamp {
        Stamp { epoch: self.0 >> 16, order: (self.0 >> 4 & 0xfff) as u16 }
    }
}

/// When an entry was written. Of two entries of one key, the one with the greater stamp is newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stamp {
    pub(crate) epoch: u64,
    pub(crate) order: u16,
}

/// The extent of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordRef {
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl RecordRef {
    pub(crate) const fn from_payload(payload: u64) -> Self {
        Self {
            offset: (payload & ((1 << RECORD_OFFSET_BITS) - 1)) * RECORD_UNIT,
            len: payload >> RECORD_OFFSET_BITS,
        }
    }

    /// No record has this payload: the records are listed elsewhere.
    pub(crate) const LIST_PAYLOAD: u64 = u64::MAX;

    pub(crate) const fn payload(self) -> u64 {
        (self.offset / RECORD_UNIT) | (self.len << RECORD_OFFSET_BITS)
    }

    /// Whether the record lies in the region. An entry that is read while it is overwritten can name any record.
    pub(crate) fn is_inside<P: Pmem>(self, pmem: &P) -> bool {
        self.offset != 0 && self.offset + self.len <= pmem.len_bytes()
    }
}

/// An entry, without its seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The key, or the first eight bytes of a longer one.
    pub(crate) key: u64,
    /// The value, or the record.
    pub(crate) payload: u64,
    /// The CRC-32C of the record; or, for an entry without a record, the length of the key and, from bit 8, that of the value.
    pub(crate) low: u32,
    pub(crate) commit: Commit,
}

/// Whether the slot at `offset` has no entry: it was emptied, or never used.
pub(crate) fn is_slot_empty<P: Pmem>(pmem: &P, offset: u64, seed: u32) -> bool {
    let word = pmem.load_u64(offset + COMMIT);
    word == 0 || word == Commit::emptied(seed, offset).0
}

/// Empties the slot at `offset`, which was used. The caller flushes it.
#[inline]
#[track_caller]
pub(crate) fn empty_slot<P: Pmem>(pmem: &P, offset: u64, seed: u32) {
    pmem.store_u64(offset + COMMIT, Commit::emptied(seed, offset).0);
}

/// The lengths of an inline key and value, as [`Entry::low`].
#[expect(clippy::cast_possible_truncation, reason = "both are at most 8")]
pub(crate) const fn inline_lengths(key: usize, value: usize) -> u32 {
    key as u32 | (value as u32) << 8
}

impl Entry {
    pub(crate) const fn record(&self) -> Option<RecordRef> {
        if self.commit.is_inline() { None } else { Some(RecordRef::from_payload(self.payload)) }
    }

    /// The lengths of the key and the value of an entry without a record.
    pub(crate) const fn inline_key_and_value(&self) -> (usize, usize) {
        let (key, value) = (self.low as usize & 0xff, self.low as usize >> 8 & 0xff);
        // An entry that is read while it is overwritten can hold any lengths.
        (
            if key > INLINE_BYTES { INLINE_BYTES } else { key },
            if value > INLINE_BYTES { INLINE_BYTES } else { value },
        )
    }

    /// The checksum of the entry in a node with this seed.
    #[inline]
    pub(crate) fn seal(&self, seed: u32) -> u32 {
        // A CRC is affine: without the multiplications, keys that differ by a multiple of its polynomial would have the same seal.
        const KEY: u64 = 0x9E37_79B9_7F4A_7C15;
        const PAYLOAD: u64 = 0xD1B5_4A32_D192_ED03;
        let (key, payload) = (self.key.wrapping_mul(KEY), self.payload.wrapping_mul(PAYLOAD));
        crc32c_append(seed, &[key, payload, u64::from(self.low), self.commit.0])
    }

    /// Loads the entry at `offset`, and its seal.
    #[inline]
    pub(crate) fn load<P: Pmem>(pmem: &P, offset: u64) -> (Self, u32) {
        let mut words = [0; 4];
        pmem.load_words(offset, &mut words);
        let [key, payload, check, commit] = words;
        #[expect(clippy::cast_possible_truncation, reason = "the low half")]
        let low = check as u32;
        (Self { key, payload, low, commit: Commit(commit) }, (check >> 32) as u32)
    }

    /// Stores the entry into a free slot, which is emptied first: so a crash never leaves the old commit word with a new key or payload. At the first use
    /// of a line, its other slot becomes an emptied one: so no commit word of a used line is 0, unless it is corrupted.
    #[track_caller]
    pub(crate) fn store<P: Pmem>(&self, pmem: &P, offset: u64, seed: u32, is_first_use: bool) {
        if !is_slot_empty(pmem, offset, seed) {
            empty_slot(pmem, offset, seed);
        }
        let other = offset ^ ENTRY_BYTES;
        if is_first_use && pmem.load_u64(other + COMMIT) == 0 {
            empty_slot(pmem, other, seed);
        }
        pmem.store_u64(offset, self.key);
        pmem.store_u64(offset + 8, self.payload);
        self.store_commit(pmem, offset, seed);
    }

    /// Stores the pair of words with the check and the commit word.
    pub(crate) fn store_commit<P: Pmem>(&self, pmem: &P, offset: u64, seed: u32) {
        let check = u64::from(self.low) | u64::from(self.seal(seed)) << 32;
        pmem.store_u128(offset + 16, u128::from(check) | u128::from(self.commit.0) << 64);
    }

    /// Compares the entry's key with `key`. Loads the record if the first eight bytes are equal and do not decide.
    pub(crate) fn has_key<P: Pmem>(&self, pmem: &P, key: &SearchKey<'_>) -> bool {
        if self.key != key.head() {
            return false;
        }
        if key.is_word() {
            return true;
        }
        match self.record() {
            None => self.inline_key_and_value().0 == key.bytes().len(),
            Some(record) => {
                key.bytes().len() as u64 == record_key_len(pmem, record) && {
                    let mut stored = Vec::new();
                    load_record_key(pmem, record, &mut stored);
                    stored == key.bytes()
                }
            }
        }
    }

    /// Starts to load the first lines of the entry's record.
    #[inline]
    pub(crate) fn prefetch_record<P: Pmem>(&self, pmem: &P) {
        /// More lines are loaded faster by the processor's own prefetching.
        const BYTES_MAX: u64 = 320;
        if let Some(record) = self.record() {
            for line in (record.offset..record.offset + record.len.min(BYTES_MAX)).step_by(64) {
                pmem.prefetch_read(line);
            }
        }
    }

    /// Starts to load the lines of the record with the lengths and a short key, in a table of byte keys.
    pub(crate) fn prefetch_key<P: Pmem>(&self, pmem: &P) {
        if let Some(record) = self.record() {
            pmem.prefetch_read(record.offset);
        }
    }

    /// Appends the entry's key, in a table of byte keys.
    pub(crate) fn push_key<P: Pmem>(&self, pmem: &P, out: &mut Vec<u8>) {
        match self.record() {
            None => out.extend_from_slice(&self.key.to_be_bytes()[..self.inline_key_and_value().0]),
            Some(record) => load_record_key(pmem, record, out),
        }
    }

    /// The lengths of the key and of the value. `is_word`: the table's records hold values only, and the key counts as empty.
    ///
    /// Of an entry that is read while it is overwritten, the lengths are those of bytes in the region.
    #[inline]
    pub(crate) fn body_lens<P: Pmem>(&self, pmem: &P, is_word: bool) -> (usize, usize) {
        let Some(record) = self.record() else {
            let (key, value) = self.inline_key_and_value();
            return (if is_word { 0 } else { key }, value);
        };
        if !record.is_inside(pmem) {
            return (0, 0);
        }
        let of_key = if is_word { 0 } else { record_key_len(pmem, record) };
        let of_lengths = if is_word { 0 } else { RECORD_LENGTHS_BYTES };
        let len = |len: u64| usize::try_from(len).unwrap_or_default();
        (len(of_key), len(record.len.saturating_sub(of_lengths + of_key)))
    }

    /// Loads the key and the value behind it, whose [lengths](Self::body_lens) are known.
    #[inline]
    pub(crate) fn load_body<P: Pmem>(&self, pmem: &P, is_word: bool, key_len: usize, out: &mut [u8]) {
        match self.record() {
            _ if out.is_empty() => (),
            None => {
                let (key, value) = out.split_at_mut(key_len);
                key.copy_from_slice(&self.key.to_be_bytes()[..key.len()]);
                value.copy_from_slice(&self.payload.to_le_bytes()[..value.len()]);
            }
            Some(record) => pmem.load(record.offset + if is_word { 0 } else { RECORD_LENGTHS_BYTES }, out),
        }
    }

    /// The value.
    #[inline]
    pub(crate) fn value<P: Pmem>(&self, pmem: &P, is_word: bool) -> Bytes {
        let (key_len, len) = self.body_lens(pmem, is_word);
        Bytes::load(len, |out| match self.record() {
            _ if out.is_empty() => (),
            None => out.copy_from_slice(&self.payload.to_le_bytes()[..len]),
            Some(record) if is_word => pmem.load(record.offset, out),
            Some(record) => pmem.load(record.offset + RECORD_LENGTHS_BYTES + key_len as u64, out),
        })
    }

    /// Calls `with` with the bytes of the key and of the value. The record is not copied if the region can lend it. `key_width`: that of word keys,
    /// whose records hold values only.
    ///
    /// The entry was in a leaf, and its seal right, after the caller had [announced](crate::session::Session::begin_lending) itself.
    #[inline]
    #[expect(unsafe_code, reason = "the bytes of records are immutable")]
    pub(crate) fn lend<P: Pmem>(
        &self,
        pmem: &P,
        key_width: Option<usize>,
        with: &mut dyn FnMut(&[u8], &[u8]),
    ) {
        let (key_len, len) = self.body_lens(pmem, key_width.is_some());
        let head = self.key.to_be_bytes();
        let Some(record) = self.record() else {
            let key = &head[..key_width.unwrap_or(key_len)];
            return with(key, &self.payload.to_le_bytes()[..len]);
        };
        let skipped = if key_width.is_some() { 0 } else { RECORD_LENGTHS_BYTES };
        pmem.lend(record.offset + skipped, key_len + len, &mut |bytes| {
            // SAFETY: a record is stored to before an entry names it, and then not until its space is released. That waits for the caller.
            let (key, value) = unsafe { bytes.as_ref() }.split_at(key_len);
            with(key_width.map_or(key, |width| &head[..width]), value);
        });
    }

    /// Whether the entry's record lies in the region and has the right bytes. True for an entry without a record.
    pub(crate) fn is_record_intact<P: Pmem>(&self, pmem: &P, is_word: bool) -> bool {
        let Some(record) = self.record() else { return true };
        if !record.is_inside(pmem) {
            return false;
        }
        let mut bytes = Vec::new();
        push_bytes(pmem, record.offset, record.len, &mut bytes);
        if pm_core::crc32c_bytes(0, &bytes) != self.low {
            return false;
        }
        is_word || {
            let lengths = bytes.first_chunk::<8>().map(|lengths| u64::from_le_bytes(*lengths));
            let sum = lengths.map(|lengths| RECORD_LENGTHS_BYTES + (lengths & 0xffff_ffff) + (lengths >> 32));
            sum == Some(record.len) && bytes.get(8..).is_some_and(|key| head_of(key) >= self.key)
        }
    }
}

/// The length of the key in a record, no longer than the record.
fn record_key_len<P: Pmem>(pmem: &P, record: RecordRef) -> u64 {
    if !record.is_inside(pmem) || record.len < RECORD_LENGTHS_BYTES {
        return 0;
    }
    let len = pmem.load_u64(record.offset) & 0xffff_ffff;
    len.min(record.len - RECORD_LENGTHS_BYTES)
}

fn load_record_key<P: Pmem>(pmem: &P, record: RecordRef, out: &mut Vec<u8>) {
    push_bytes(pmem, record.offset + RECORD_LENGTHS_BYTES, record_key_len(pmem, record), out);
}

/// Appends bytes of the region; nothing if the range is not in it.
pub(crate) fn push_bytes<P: Pmem>(pmem: &P, offset: u64, len: u64, out: &mut Vec<u8>) {
    if offset.checked_add(len).is_none_or(|end| end > pmem.len_bytes()) {
        return;
    }
    let start = out.len();
    out.resize(start + usize::try_from(len).unwrap_or_default(), 0);
    pmem.load(offset, &mut out[start..]);
}

/// The offset of an entry of the node at `node`.
#[inline]
pub(crate) const fn entry_offset(node: u64, slot: usize) -> u64 {
    node + NODE_HEADER_BYTES + slot as u64 * ENTRY_BYTES
}

/// The corruption of the first of these slots of a node.
pub(crate) fn held_entry(node: u64, held: u64) -> Corruption {
    Corruption::new(entry_offset(node, held.trailing_zeros() as usize), CorruptionKind::Entry)
}

/// The seed of the seals in a node.
pub(crate) fn node_seed(table: u16, node: u64, birth: u64) -> u32 {
    crc32c_words(&[u64::from(table), node, birth])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_word_has_all_its_parts() {
        let stamp = Stamp { epoch: (1 << 48) - 1, order: Commit::ORDER_MAX };
        let commit = Commit::new(Kind::Tombstone, true, stamp);
        assert_eq!((commit.kind(), commit.is_inline(), commit.stamp()), (Some(Kind::Tombstone), true, stamp));
        let zero = Stamp { epoch: 1, order: 0 };
        assert_eq!(Commit::new(Kind::Value, false, zero), Commit(1 << 16 | 1));
        assert!(zero < stamp && Commit(0).kind().is_none());
    }

    #[test]
    fn payload_has_offset_and_length() {
        let record = RecordRef { offset: 0x1234_5670, len: 4097 };
        assert_eq!(RecordRef::from_payload(record.payload()), record);
        let largest = RecordRef { offset: ((1 << 40) - 1) * 16, len: 256 << 10 };
        assert_eq!(RecordRef::from_payload(largest.payload()), largest);
    }

    #[test]
    fn seal_covers_node_and_birth() {
        let commit = Commit::new(Kind::Value, true, Stamp { epoch: 5, order: 6 });
        let entry = Entry { key: 1, payload: 2, low: 3, commit };
        let seal = entry.seal(node_seed(1, 4096, 77));
        assert_ne!(seal, entry.seal(node_seed(1, 4096, 78)), "birth");
        assert_ne!(seal, entry.seal(node_seed(1, 6144, 77)), "offset");
        assert_ne!(seal, entry.seal(node_seed(2, 4096, 77)), "table");
        for changed in [Entry { key: 9, ..entry }, Entry { payload: 9, ..entry }, Entry { low: 9, ..entry }] {
            assert_ne!(seal, changed.seal(node_seed(1, 4096, 77)));
        }
    }
}
