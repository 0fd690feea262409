//! Filling frames from nodes when they are first used after an open: what readers may see is computed from the entries, and what a crash left is
//! cleaned up.
//!
//! After a session that was not closed, a node may hold entries that are visible but not durable, because a process was killed; torn entries, whose seal
//! or record is wrong; and replaced entries, whose commit word was not cleared durably. Filling a frame first flushes all that it relies on, and fences.
//! Only then does it clear torn and replaced entries, and fences again. Clearing them before would be wrong: the cleared word could survive without
//! the newer entry.
//!
//! An entry with a wrong seal or record whose epoch is below the durable epoch was durable, so it is corrupted and not torn. Its slot is *held*:
//! it is not reused, and a key that is not found in this leaf is reported as corruption.

use crate::core::Core;
use crate::ends::Ends;
use crate::entry::{Entry, Kind, RecordRef, entry_offset, node_seed};
use crate::error::{Corruption, CorruptionKind, LeafError};
use crate::format::{
    ENTRY_BYTES, KIND_BYTES, KIND_WORD, NODE_HEADER_BYTES, NODE_MAGIC, NodeHeader, STATE_LIVE, unchecked,
};
use crate::frame::{Frame, FrameId};
use crate::index::{Fence, Index, TreeId};
use crate::key::{SearchKey, head_of};
use crate::leaf::Tree;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering};
use pm_core::{FenceError, Pmem, crc32c_bytes, from_bytes};
use std::sync::OnceLock;

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
            && unchecked(header.state, state) == Some(STATE_LIVE);
        let verified = Self { offset, header };
        let is_right = is_right && verified.is_fence_right(pmem);
        if is_right { Ok(verified) } else { Err(corrupted) }
    }

    fn is_fence_right<P: Pmem>(&self, pmem: &P) -> bool {
        let fence = self.low();
        fence.record == 0 || {
            let bytes = fence.load(pmem);
            bytes.len() == fence.len as usize
                && head_of(&bytes) == fence.head
                && crc32c_bytes(0, &bytes) == self.header.low_record_crc
        }
    }

    pub(crate) const fn offset(&self) -> u64 {
        self.offset
    }

    /// 0 for a leaf.
    pub(crate) const fn level(&self) -> u8 {
        self.header.level
    }

    pub(crate) const fn low(&self) -> Fence {
        let NodeHeader { low, low_record, low_record_len, .. } = self.header;
        Fence { head: low, record: low_record, len: low_record_len }
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

/// An entry that may be the newest of its key.
struct Candidate {
    slot: usize,
    entry: Entry,
    /// The whole key, in a table of byte keys.
    bytes: Vec<u8>,
}

/// What the slots of a node hold.
#[derive(Default)]
struct Slots {
    live: u64,
    held: u64,
    /// Torn and replaced entries.
    to_clear: u64,
    candidates: Vec<Candidate>,
}

impl Tree {
    /// Opens the tree whose first leaf is at `first`, and whose anchor is at `anchor`. Fills no frame.
    pub(crate) fn open<P: Pmem>(
        core: &Core<P>,
        table: u16,
        key_width: Option<usize>,
        first: u64,
        anchor: u64,
    ) -> Result<Self, Corruption> {
        let id = TreeId { table, is_word: key_width.is_some() };
        let node = Verified::load(&core.pmem(), first, id)?;
        let frame = core.space.frame_of(first).filter(|_| node.low() == Fence::LOWEST);
        let frame = frame.ok_or(Corruption::new(first, CorruptionKind::NodeHeader))?;
        let index = Index::open(core, id, frame, anchor)?;
        let (len, unreadable) = (AtomicU64::new(0), OnceLock::new());
        let ends = Ends::new(frame);
        Ok(Self { id, key_width, first: frame, index, ends, len, unreadable })
    }

    /// The frame of a leaf. If it is not filled, fills it.
    #[inline]
    pub(crate) fn leaf<'c, P: Pmem>(&self, core: &'c Core<P>, id: FrameId) -> Result<&'c Frame, LeafError> {
        let frame = core.frames.get(id);
        if !frame.is_filled() {
            self.fill(core, id)?;
        }
        Ok(frame)
    }

    /// Fills the frame of a leaf.
    ///
    /// # Durability
    /// After a clean close changes nothing. Otherwise costs one fence, or two if there are entries to be cleared; a crash at any point leaves the same
    /// contents.
    #[cold]
    fn fill<P: Pmem>(&self, core: &Core<P>, id: FrameId) -> Result<(), LeafError> {
        let pmem = &core.pmem();
        let frame = core.frames.get(id).lock();
        // Another thread may have filled it.
        if frame.is_filled() {
            return Ok(());
        }
        let node = Verified::load(pmem, core.space.node_offset(id), self.id)?;
        let next = match node.next()? {
            0 => None,
            next => Some(Verified::load(pmem, next, self.id)?),
        };
        let right = next.map(|next| {
            let id = core.space.frame_of(next.offset).filter(|_| node.is_left_of(pmem, &next));
            id.ok_or(Corruption::new(node.offset, CorruptionKind::Sibling))
        });
        let right = right.transpose()?;
        let slots = read_slots(core, &node, next.map(|next| next.low()), self.is_word());
        if core.session.is_unclean {
            clean_up(core, &node, &slots)?;
        }
        frame.node.store(node.offset, Ordering::Relaxed);
        frame.seed.store(node.seed(), Ordering::Relaxed);
        let high = next.map_or(Fence::LOWEST, |next| next.low());
        frame.set_next(right.unwrap_or(FrameId::NONE), high);
        let is_live = |candidate: &&Candidate| slots.live >> candidate.slot & 1 == 1;
        for Candidate { slot, entry, bytes } in slots.candidates.iter().filter(is_live) {
            let key = if self.is_word() { SearchKey::word(entry.key) } else { SearchKey::bytes_key(bytes) };
            frame.set_fingerprint(*slot, key.fingerprint());
        }
        frame.held.store(slots.held, Ordering::Relaxed);
        frame.live.store(slots.live, Ordering::Release);
        frame.publish();
        Ok(())
    }
}

/// Makes what a frame relies on durable, and then clears torn and replaced entries.
fn clean_up<P: Pmem>(core: &Core<P>, node: &Verified, slots: &Slots) -> Result<(), FenceError> {
    let pmem = &core.pmem();
    pmem.flush(node.offset, core.node_bytes());
    let records = slots.candidates.iter().filter(|candidate| !is_durable(core, &candidate.entry));
    for RecordRef { offset, len } in records.filter_map(|candidate| candidate.entry.record()) {
        pmem.flush(offset, len);
    }
    core.fence()?;
    for slot in crate::leaf::slots_of(slots.to_clear) {
        let place = entry_offset(node.offset, slot);
        pmem.store_u64(place + 24, 0);
        pmem.flush(place, ENTRY_BYTES);
    }
    if slots.to_clear != 0 {
        core.fence()?;
    }
    Ok(())
}

/// Whether the entry was durable before the session that was not closed.
fn is_durable<P: Pmem>(core: &Core<P>, entry: &Entry) -> bool {
    entry.commit.stamp().epoch < core.session.durable_epoch
}

/// Sorts the slots of a node into live, free, held, and to be cleared.
fn read_slots<P: Pmem>(core: &Core<P>, node: &Verified, high: Option<Fence>, is_word: bool) -> Slots {
    let pmem = &core.pmem();
    let mut slots = Slots::default();
    let may_be_torn = |entry: &Entry| {
        let epoch = entry.commit.stamp().epoch;
        core.session.is_unclean && !is_durable(core, entry) && epoch < core.session.limit()
    };
    for slot in 0..core.slots {
        let (entry, seal) = Entry::load(pmem, entry_offset(node.offset, slot));
        if entry.commit.0 == 0 {
            continue;
        }
        let bad = if may_be_torn(&entry) { &mut slots.to_clear } else { &mut slots.held };
        let Some(kind) = entry.commit.kind().filter(|_| entry.seal(node.seed()) == seal) else {
            *bad |= 1 << slot;
            continue;
        };
        if !core.batches.is_committed(entry.commit, core.session.durable_epoch) {
            slots.to_clear |= 1 << slot;
            continue;
        }
        // The entries of a committed batch are durable.
        let bad = if kind.is_batch() { &mut slots.held } else { bad };
        // Entries above the high fence were moved to the right sibling: their slots are free.
        let low = node.low();
        let is_outside = |head: u64| head < low.head || high.is_some_and(|high| head > high.head);
        if is_outside(entry.key) {
            continue;
        }
        let is_tombstone = !kind.is_value();
        // The record of a tombstone may have been reused. In a table of byte keys, its key is then unknown.
        let is_checked = !is_word || (core.session.is_unclean && !is_durable(core, &entry));
        let is_intact = if is_checked && !(is_tombstone && is_word) {
            entry.is_record_intact(pmem, is_word)
        } else {
            is_tombstone || entry.record().is_none_or(|record| record.is_inside(pmem))
        };
        if !is_intact {
            if !is_tombstone {
                *bad |= 1 << slot;
            }
            continue;
        }
        let mut bytes = Vec::new();
        if !is_word {
            entry.push_key(pmem, &mut bytes);
        }
        let key = if is_word { SearchKey::word(entry.key) } else { SearchKey::bytes_key(&bytes) };
        let is_inside =
            low.is_at_or_below(pmem, &key) && high.is_none_or(|high| !high.is_at_or_below(pmem, &key));
        if is_inside {
            slots.candidates.push(Candidate { slot, entry, bytes });
        } else if core.session.is_unclean {
            // It was moved to the right sibling. Once a change of the sibling has released the record, nothing would show that any more.
            slots.to_clear |= 1 << slot;
        }
    }
    slots.candidates.sort_unstable_by(|a, b| {
        let newest_first = || b.entry.commit.stamp().cmp(&a.entry.commit.stamp());
        a.entry.key.cmp(&b.entry.key).then_with(|| a.bytes.cmp(&b.bytes)).then_with(newest_first)
    });
    for (index, candidate) in slots.candidates.iter().enumerate() {
        let newer = index.checked_sub(1).map(|index| &slots.candidates[index]);
        let is_replaced = newer
            .is_some_and(|newer| (newer.entry.key, &newer.bytes) == (candidate.entry.key, &candidate.bytes));
        if is_replaced {
            slots.to_clear |= 1 << candidate.slot;
        } else if candidate.entry.commit.kind().is_some_and(Kind::is_value) {
            slots.live |= 1 << candidate.slot;
        }
    }
    slots
}
