//! The format of a store: its root block, the table of extents, nodes and their entries. `docs/format/store.md` describes it in prose.

use core::mem::{offset_of, size_of};
use pm_core::{Link, Persist, bytes_of, crc32c_words};

/// The name of the heap's root that points to the [`StoreBlock`].
pub const ROOT: &str = "pm-btree";

/// The first eight bytes of a [`StoreBlock`].
pub const MAGIC: [u8; 8] = *b"PMBTREE\n";

/// The format version. Stores with other versions are not opened.
pub const VERSION: u32 = 2;

/// The features that a program must support to open the store.
pub const KNOWN_INCOMPAT: u64 = FEATURE_RETURNED_SPACE;

/// The bit of a store whose table of extents may have free rows and long records.
pub const FEATURE_RETURNED_SPACE: u64 = 1;

/// The root block of a store: constants, state words, batch slots, and room for readers in other processes.
#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
pub struct StoreBlock<'p> {
    /// The constants of the store, which never change.
    pub header: StoreHeader,
    /// The state words, each a [checked word](checked): the session; the limit of the epochs; the durable epoch; the oldest session that did not end
    /// with a clean close, or 0; zeros.
    pub state: [u64; 8],
    /// A checked word with the offset of the catalogue's first leaf; that of 0 while the catalogue is empty.
    pub catalogue: u64,
    /// Zero.
    pub reserved: [u64; 6],
    /// The first block of the table of extents.
    pub extents: Link<'p, ExtentChunk<'p>>,
    /// Zero: for readers in other processes.
    pub readers: [u64; 488],
    /// The batch slots, eight words each. The first word of a slot is a [checked word](checked) with the epoch of the last batch that was committed
    /// in it, or that of 0; the others are zero.
    pub batches: [u64; 512],
}

const _: () = {
    assert!(size_of::<StoreBlock>() == 8192);
    assert!(offset_of!(StoreBlock, state) == 64);
    assert!(offset_of!(StoreBlock, catalogue) == 128);
    assert!(offset_of!(StoreBlock, batches) == 4096);
};

/// The indexes of the words in [`StoreBlock::state`].
pub mod state {
    /// The number of the current session: it is incremented by each open.
    pub const SESSION: u64 = 0;
    /// All epochs in use are below this limit.
    pub const EPOCH_LIMIT: u64 = 1;
    /// Everything that was written at an epoch below this one is durable.
    pub const DURABLE_EPOCH: u64 = 2;
    /// The oldest session since the last clean close, or 0 after a clean close.
    pub const UNCLEAN_SESSION: u64 = 3;
}

/// The number of batch slots.
pub const BATCH_SLOTS: u64 = 64;

/// The constants of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[repr(C)]
pub struct StoreHeader {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: u32,
    /// The number of entries in a node: even, 4 to 62.
    pub node_slots: u32,
    /// The features that a program must support to open the store.
    pub features_incompat: u64,
    /// The length of an extent.
    pub extent_bytes: u64,
    /// The identity of the pool in which the store was created.
    pub pool_uuid: [u8; 16],
    /// Zero.
    pub reserved: [u8; 12],
    /// CRC-32C of the header, with zero in this field.
    pub crc: u32,
}

const _: () = assert!(size_of::<StoreHeader>() == 64);

impl StoreHeader {
    /// The right checksum for these fields.
    #[must_use]
    pub fn expected_crc(&self) -> u32 {
        let (words, _) = bytes_of(self).as_chunks::<8>();
        let mut words: [u64; 8] = core::array::from_fn(|i| u64::from_le_bytes(words[i]));
        words[7] &= u64::from(u32::MAX);
        crc32c_words(&words)
    }
}

/// The number of rows in an [`ExtentChunk`].
pub const ROWS: usize = 252;

/// A block of the table of extents. The table is a list of such blocks, which are only appended.
#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
pub struct ExtentChunk<'p> {
    /// [`EXTENT_CHUNK_MAGIC`].
    pub magic: u64,
    /// The next block of the table, or null.
    pub next: Link<'p, ExtentChunk<'p>>,
    /// Zero.
    pub reserved: [u64; 6],
    /// The extents of the store; rows that were never used are zero.
    pub rows: [ExtentRow<'p>; ROWS],
}

const _: () = assert!(size_of::<ExtentChunk>() == 4096);

/// The first word of an [`ExtentChunk`].
pub const EXTENT_CHUNK_MAGIC: u64 = u64::from_le_bytes(*b"PMBTEXT\n");

/// One extent: a heap block that holds nodes, or records of one class, or one long record.
#[derive(Clone, Copy, Debug, Persist)]
#[repr(C)]
pub struct ExtentRow<'p> {
    /// The block; null in a free row.
    pub extent: Link<'p, u8>,
    /// A [checked word](checked), with the offset of the block as its place: one more than the class of its units, which is 0 for nodes; or
    /// [`LONG_RECORD`] and, from bit 8, the length of the block. In a free row that of 0, with the offset of the row as its place.
    pub class: u64,
}

/// The lowest 8 bits of [`ExtentRow::class`] of a block with a long record, before it is [checked].
pub const LONG_RECORD: u64 = 0xff;

/// The header of a node, one line. In a leaf entries of 32 bytes follow it; in a hint node or an anchor [checked words](checked), each with the
/// offset of a node, or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[repr(C)]
pub struct NodeHeader {
    /// [`NODE_MAGIC`].
    pub magic: u32,
    /// 0 for a leaf, the height above the leaves for a hint node, [`ANCHOR_LEVEL`] for an anchor.
    pub level: u8,
    /// The kind of the table's keys: [`KIND_WORD`] or [`KIND_BYTES`].
    pub kind: u8,
    /// The table to which the node belongs.
    pub table: u16,
    /// A [checked word](checked): in the lowest 8 bits [`STATE_LIVE`]; other values are reserved for nodes that were merged into their left sibling.
    /// From bit 8 the number of lines of entries that were in use when the leaf was made, or at the last clean close after it was changed.
    pub state: u64,
    /// The low separator: a key of up to eight bytes, big-endian, or the first eight bytes of a longer one.
    pub low: u64,
    /// A [checked word](checked): the offset of the right sibling, or 0.
    pub next: u64,
    /// The offset of the record with the whole low separator, or 0 if the key fits in `low`.
    pub low_record: u64,
    /// Unique for each creation of a node.
    pub birth: u64,
    /// CRC-32C of the header without `state` and `next`: see [`expected_crc`](Self::expected_crc).
    pub crc: u32,
    /// CRC-32C of the bytes of the low record, or 0.
    pub low_record_crc: u32,
    /// The length of the low record's key, or 0.
    pub low_record_len: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = {
    assert!(size_of::<NodeHeader>() == 64);
    assert!(offset_of!(NodeHeader, state) == 8 && offset_of!(NodeHeader, next) == 24);
};

/// The first four bytes of a node.
pub const NODE_MAGIC: u32 = u32::from_le_bytes(*b"PMBN");

/// Keys of a fixed width of up to eight bytes: the word in the entry is the whole key.
pub const KIND_WORD: u8 = 0;
/// All other keys.
pub const KIND_BYTES: u8 = 1;

/// [`NodeHeader::level`] of an anchor.
pub const ANCHOR_LEVEL: u8 = u8::MAX;

/// The number of the catalogue among the tables.
pub(crate) const CATALOGUE: u16 = 0;

/// The lowest 8 bits of [`NodeHeader::state`] of a live node, before it is [checked].
pub const STATE_LIVE: u64 = 1;

/// [`NodeHeader::state`] of a live node with so many lines of entries in use, before it is [checked].
#[must_use]
pub const fn live_state(lines: u8) -> u64 {
    STATE_LIVE | (lines as u64) << 8
}

/// The length of a node's header, and of an entry.
pub const NODE_HEADER_BYTES: u64 = 64;
/// The length of an entry.
pub const ENTRY_BYTES: u64 = 32;

impl NodeHeader {
    /// The right checksum for the node at `offset`.
    #[must_use]
    pub fn expected_crc(&self, offset: u64) -> u32 {
        let first = u64::from(self.magic)
            | u64::from(self.level) << 32
            | u64::from(self.kind) << 40
            | u64::from(self.table) << 48;
        let record = u64::from(self.low_record_crc) | u64::from(self.low_record_len) << 32;
        crc32c_words(&[
            offset,
            first,
            self.low,
            self.low_record,
            self.birth,
            record,
            u64::from(self.reserved),
        ])
    }
}

/// A word that detects corruption: 48 bits with a value, and 16 bits with a checksum of the value and of `place`, the offset of the word. It is never
/// 0: a zeroed word is corrupted.
///
/// # Panics
/// If the value has more than 48 bits.
#[must_use]
pub fn checked(value: u64, place: u64) -> u64 {
    assert!(value < 1 << 48, "{value} has more than 48 bits");
    value << 16 | check_of(value, place)
}

/// The value of a [checked] word at `place`; `None` if it is corrupted.
#[must_use]
pub fn unchecked(word: u64, place: u64) -> Option<u64> {
    let value = word >> 16;
    (checked(value, place) == word).then_some(value)
}

/// Never 0, so that no checked word is 0, and that of a value that is not 0 differs from 0 in both parts.
fn check_of(value: u64, place: u64) -> u64 {
    let crc = u64::from(crc32c_words(&[value, place]));
    ((crc ^ crc >> 16) & 0xffff).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_flipped_bit_of_checked_word_is_detected() {
        for value in [0, 1, 2, 0x1234_5678_9abc, (1 << 48) - 1, 1 << 47, 4096] {
            let word = checked(value, 640);
            assert_eq!(unchecked(word, 640), Some(value));
            for bit in 0..64 {
                assert_eq!(unchecked(word ^ 1 << bit, 640), None, "bit {bit} of {value:#x}");
            }
        }
        assert_eq!(unchecked(0, 64), None, "zero is no value");
        assert_ne!(checked(7, 64), checked(7, 128), "the checksum covers the place");
    }
}
