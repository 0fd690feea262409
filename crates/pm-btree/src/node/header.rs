//! Headers of nodes: verified when they are loaded, and stored for a new leaf.

use super::entry::node_seed;
use super::key::head_of;
use super::separator::Separator;
use crate::error::{Corruption, CorruptionKind};
use crate::format::{
    KIND_BYTES, KIND_WORD, NODE_HEADER_BYTES, NODE_MAGIC, NodeHeader, STATE_LIVE, checked, live_state,
    unchecked,
};
use core::mem::offset_of;
use pm_core::{Pmem, bytes_of, crc32c_bytes, from_bytes};

/// What the header of each node of a tree says about the tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeId {
    pub(crate) table: u16,
    pub(crate) is_word: bool,
}

/// A verified header of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verified {
    offset: u64,
    header: NodeHeader,
}

impl Verified {
    /// The header of the leaf at `offset`, if it is one of this tree.
    pub(crate) fn load<P: Pmem>(pmem: &P, offset: u64, tree: TreeId) -> Result<Self, Corruption> {
        Self::load_at_level(pmem, offset, tree, 0)
    }

    /// The header of the node at `offset`, if it is one of this tree and this level.
    pub(crate) fn load_at_level<P: Pmem>(
        pmem: &P,
        offset: u64,
        tree: TreeId,
        level: u8,
    ) -> Result<Self, Corruption> {
        let loaded = Self::load_any(pmem, offset, tree)?;
        if loaded.level() == level {
            Ok(loaded)
        } else {
            Err(Corruption::new(offset, CorruptionKind::NodeHeader))
        }
    }

    /// The header of the node at `offset`, if it is one of this tree.
    pub(crate) fn load_any<P: Pmem>(pmem: &P, offset: u64, tree: TreeId) -> Result<Self, Corruption> {
        let corrupted = Corruption::new(offset, CorruptionKind::NodeHeader);
        if !offset.is_multiple_of(64) || offset.saturating_add(NODE_HEADER_BYTES) > pmem.len_bytes() {
            return Err(corrupted);
        }
        let header: NodeHeader = from_bytes(|bytes| pmem.load(offset, bytes));
        let kind = if tree.is_word { KIND_WORD } else { KIND_BYTES };
        let state = offset + offset_of!(NodeHeader, state) as u64;
        let is_right = header.magic == NODE_MAGIC
            && header.crc == header.expected_crc(offset)
            && (header.table, header.kind) == (tree.table, kind)
            && unchecked(header.state, state).is_some_and(|state| state & 0xff == STATE_LIVE);
        let verified = Self { offset, header };
        let is_right = is_right && verified.is_separator_right(pmem);
        if is_right { Ok(verified) } else { Err(corrupted) }
    }

    fn is_separator_right<P: Pmem>(&self, pmem: &P) -> bool {
        let separator = self.low();
        separator.record == 0 || {
            let bytes = separator.load(pmem);
            bytes.len() == separator.len as usize
                && head_of(&bytes) == separator.head
                && crc32c_bytes(0, &bytes) == self.header.low_record_crc
        }
    }

    pub(crate) const fn offset(&self) -> u64 {
        self.offset
    }

    /// The number of lines of entries that were in use at the last clean close, or when the leaf was made.
    pub(crate) const fn used_lines(&self) -> u8 {
        (self.header.state >> 24 & 0xff) as u8
    }

    /// 0 for a leaf.
    pub(crate) const fn level(&self) -> u8 {
        self.header.level
    }

    pub(crate) const fn low(&self) -> Separator {
        let NodeHeader { low, low_record, low_record_len, .. } = self.header;
        Separator { head: low, record: low_record, len: low_record_len }
    }

    /// The offset of the right sibling, or 0.
    pub(crate) fn next(&self) -> Result<u64, Corruption> {
        let place = self.offset + offset_of!(NodeHeader, next) as u64;
        unchecked(self.header.next, place).ok_or(Corruption::new(self.offset, CorruptionKind::Sibling))
    }

    /// Whether the keys of this leaf are below those of `right`.
    pub(crate) fn is_left_of<P: Pmem>(&self, pmem: &P, right: &Self) -> bool {
        let (left, right) = (self.low(), right.low());
        if self.header.kind == KIND_WORD {
            left.head < right.head
        } else {
            left.load(pmem) < right.load(pmem)
        }
    }

    pub(crate) fn seed(&self) -> u32 {
        node_seed(self.header.table, self.offset, self.header.birth)
    }
}

/// Stores the header of a leaf, which the caller flushes: a new one with this number, number of lines in use, low separator, checksum of the
/// separator's record, and right sibling.
pub(crate) fn store_header<P: Pmem>(
    pmem: &P,
    node: u64,
    tree: TreeId,
    (birth, lines): (u64, u8),
    (low, low_record_crc): (&Separator, u32),
    next: u64,
) {
    let place = |offset: usize| node + offset as u64;
    let header = NodeHeader {
        magic: NODE_MAGIC,
        level: 0,
        kind: if tree.is_word { KIND_WORD } else { KIND_BYTES },
        table: tree.table,
        state: checked(live_state(lines), place(offset_of!(NodeHeader, state))),
        low: low.head,
        next: checked(next, place(offset_of!(NodeHeader, next))),
        low_record: low.record,
        birth,
        crc: 0,
        low_record_crc,
        low_record_len: low.len,
        reserved: 0,
    };
    let header = NodeHeader { crc: header.expected_crc(node), ..header };
    pmem.store(node, bytes_of(&header));
}

/// Stores and flushes how many lines of entries of a leaf are in use, which are durable. The caller fences.
pub(crate) fn store_used_lines<P: Pmem>(pmem: &P, node: u64, lines: u8) {
    let place = node + offset_of!(NodeHeader, state) as u64;
    pmem.store_u64(place, checked(live_state(lines), place));
    pmem.flush(place, 8);
}

/// The low separator of the node at `node`, which never changes.
pub(crate) fn low_of<P: Pmem>(pmem: &P, node: u64) -> Separator {
    let header: NodeHeader = from_bytes(|bytes| pmem.load(node, bytes));
    Separator { head: header.low, record: header.low_record, len: header.low_record_len }
}
