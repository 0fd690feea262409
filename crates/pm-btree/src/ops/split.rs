//! Splitting: the upper half of a full leaf moves to a new right sibling.
//!
//! The sibling is durable before the leaf is linked to it. The link and the entry for which the leaf is split become durable under one fence. The
//! sibling is posted to the index when the leaves are unlocked; until then it is found through the leaf.

use super::change::NewEntry;
use super::split_point::{Moving, SplitPoint, sorted_entries, split_point};
use crate::error::WriteError;
use crate::format::{ENTRY_BYTES, NODE_HEADER_BYTES, NodeHeader, checked};
use crate::node::{
    Frame, FrameId, FrameLock, INLINE_BYTES, SearchKey, Separator, clear_slot, entry_offset, flush_owed,
    head_of, node_seed, store_header,
};
use crate::session::{Reserved, Session};
use crate::tree::Tree;
use core::mem::offset_of;
use core::sync::atomic::Ordering;
use pm_core::{Pmem, crc32c_bytes};

/// A new leaf, whose separator is posted to the index after the leaves are unlocked.
pub(super) struct Posting {
    id: FrameId,
    pub(super) low: Separator,
    separator_bytes: Vec<u8>,
}

impl Posting {
    /// Posts the leaf to the index of its tree.
    pub(super) fn post<P: Pmem>(&self, session: &Session<P>, tree: &Tree) {
        let key = match tree.is_word() {
            true => SearchKey::word(head_of(&self.separator_bytes)),
            false => SearchKey::bytes_key(&self.separator_bytes),
        };
        tree.index.post(session, self.low, self.id, &key);
    }
}

/// Moves the upper half of the leaf's entries to a new right sibling. `new` is an entry to be written by the way, into either half.
///
/// # Durability
/// Two fences, of which [`link_sibling`] has the second, and the lines of the new node. A crash before the second one leaves the leaf whole, with or
/// without the new entry; a crash after it finds both halves and the new entry.
pub(super) fn split<P: Pmem>(
    session: &Session<P>,
    tree: &Tree,
    leaf: FrameLock<'_>,
    new: Option<NewEntry<'_>>,
) -> Result<(), WriteError> {
    let moving = sorted_entries(&session.pmem(), tree.is_word(), &leaf);
    let key = new.as_ref().map(|new| new.key).filter(|_| leaf.next().is_none());
    let point = split_point(tree.is_word(), &moving, key);
    let (right, posting) = split_at(session, tree, &leaf, &moving, point, new)?;
    drop((leaf, right));
    posting.post(session, tree);
    Ok(())
}

/// [Splits](split) a leaf behind so many of its sorted entries, and returns the lock of the right sibling with this low separator.
pub(super) fn split_at<'c, P: Pmem>(
    session: &'c Session<P>,
    tree: &Tree,
    leaf: &FrameLock<'_>,
    moving: &[Moving],
    (kept, separator_bytes): SplitPoint,
    new: Option<NewEntry<'_>>,
) -> Result<(FrameLock<'c>, Posting), WriteError> {
    // Under the lock, as for a stamp.
    session.check_not_poisoned()?;
    let pmem = &session.pmem();
    let right = session.space.reserve_node(&session.heap)?;
    let (low, low_record) = store_separator(session, tree, &separator_bytes)?;
    let goes_right = |new: &&NewEntry<'_>| low.is_at_or_below(pmem, new.key);
    let new_in_right = new.as_ref().filter(goes_right);
    let new_in_left = new.as_ref().filter(|new| !goes_right(new));

    let birth = session.epochs.next_birth();
    let frame = session.frames.get(right.frame());
    let seed = node_seed(tree.id.table, right.offset(), birth);
    let mut filled = 0;
    for moving in &moving[kept..] {
        moving.entry.store(pmem, entry_offset(right.offset(), filled), seed);
        frame.set_fingerprint(filled, leaf.fingerprint(moving.slot));
        filled += 1;
    }
    if let Some(new) = new_in_right {
        new.entry(session, leaf)?.store(pmem, entry_offset(right.offset(), filled), seed);
        frame.set_fingerprint(filled, new.key.fingerprint());
        filled += 1;
    }
    let next = leaf.next().map_or(0, |next| session.space.node_offset(next));
    let low_record_crc = low_record.as_ref().map_or(0, |_| crc32c_bytes(0, &separator_bytes));
    store_header(pmem, right.offset(), tree.id, birth, (&low, low_record_crc), next);
    pmem.flush(right.offset(), NODE_HEADER_BYTES + filled as u64 * ENTRY_BYTES);
    session.fence()?;
    // Nothing refers to the sibling yet, so until here a failure has given both units back.
    let (id, right_node) = (right.frame(), right.offset());
    right.keep();
    if let Some(record) = low_record {
        record.keep();
    }

    init_frame(session, id, right_node, seed, (1 << filled) - 1, leaf);
    let right = frame.lock();
    right.publish();
    link_sibling(session, tree, leaf, id, low, new_in_left, &moving[kept..])?;
    Ok((right, Posting { id, low, separator_bytes }))
}

/// Links the right sibling, and writes an entry into the left half if there is one.
fn link_sibling<P: Pmem>(
    session: &Session<P>,
    tree: &Tree,
    leaf: &FrameLock<'_>,
    right: FrameId,
    low: Separator,
    new: Option<&NewEntry<'_>>,
    moved: &[Moving],
) -> Result<(), WriteError> {
    let pmem = &session.pmem();
    let owed = leaf.owed.load(Ordering::Relaxed);
    let live = leaf.live.load(Ordering::Relaxed);
    let mut remaining = moved.iter().fold(live, |live, moved| live & !(1 << moved.slot));
    // The moved entries are still in their slots, and the link to the sibling may be lost: so only a slot that was free before may be written.
    let free = session.all_slots() & !leaf.taken();
    let slot = if owed == 0 { free } else { owed }.trailing_zeros() as usize;
    let entry = new.map(|new| new.entry(session, leaf)).transpose()?;
    let next = leaf.node() + offset_of!(NodeHeader, next) as u64;
    leaf.begin();
    pmem.store_u64(next, checked(session.space.node_offset(right), next));
    pmem.flush(next, 8);
    if let Some(entry) = entry {
        entry.store(pmem, entry_offset(leaf.node(), slot), leaf.seed());
        pmem.flush(entry_offset(leaf.node(), slot), ENTRY_BYTES);
    }
    flush_owed(pmem, leaf, owed);
    // DURABILITY POINT
    let fenced = session.fence();
    if fenced.is_ok() {
        session.settle_owed(leaf);
        if let Some(new) = new {
            leaf.set_fingerprint(slot, new.key.fingerprint());
            remaining |= 1 << slot;
        }
        if let Some(id) = session.space.frame_of(leaf.node()) {
            tree.ends.move_last(id, right);
        }
        leaf.set_next(right, low);
        leaf.live.store(remaining, Ordering::Release);
    }
    leaf.end();
    fenced?;
    if !tree.is_word() && !moved.is_empty() {
        clear_moved(session, leaf, moved)?;
    }
    Ok(())
}

/// Empties the slots of entries that were moved to the right sibling, whose lock the caller has too, and fences.
///
/// Only its record shows that an entry of a byte key was moved, if the first eight bytes of the key are those of the separator. So the slot is
/// durably empty before a later change of the sibling releases the record.
fn clear_moved<P: Pmem>(
    session: &Session<P>,
    leaf: &FrameLock<'_>,
    moved: &[Moving],
) -> Result<(), WriteError> {
    let mut slots = 0;
    for moved in moved {
        clear_slot(&session.pmem(), entry_offset(leaf.node(), moved.slot));
        slots |= 1 << moved.slot;
    }
    // The slot of the new entry may be in one of these lines, and is durable already.
    flush_owed(&session.pmem(), leaf, slots);
    Ok(session.fence()?)
}

/// The separator with these bytes. If they do not fit in a word, stores them in a record, which the caller fences.
fn store_separator<'c, P: Pmem>(
    session: &'c Session<P>,
    tree: &Tree,
    bytes: &[u8],
) -> Result<(Separator, Option<Reserved<'c>>), WriteError> {
    let head = head_of(bytes);
    if tree.is_word() || (bytes.len() <= INLINE_BYTES && bytes.last() != Some(&0)) {
        return Ok((Separator { head, record: 0, len: 0 }, None));
    }
    let record = session.space.reserve_record(&session.heap, bytes.len() as u64)?;
    session.pmem().store_nt(record.offset(), bytes);
    let len = u32::try_from(bytes.len()).expect("a key is shorter than a record");
    Ok((Separator { head, record: record.offset(), len }, Some(record)))
}

/// Initializes the frame of a new node, which no reader finds yet.
fn init_frame<P: Pmem>(session: &Session<P>, id: FrameId, node: u64, seed: u32, live: u64, left: &Frame) {
    let frame = session.frames.get(id);
    frame.node.store(node, Ordering::Relaxed);
    frame.seed.store(seed, Ordering::Relaxed);
    frame.owed.store(0, Ordering::Relaxed);
    frame.held.store(0, Ordering::Relaxed);
    frame.tombstones.store(0, Ordering::Relaxed);
    // The stamps of the moved entries are in the left node's order, and later ones must be greater.
    frame.order.store(left.order.load(Ordering::Relaxed), Ordering::Relaxed);
    frame.set_next(left.next().unwrap_or(FrameId::NONE), left.high());
    frame.is_swept.store(left.is_swept.load(Ordering::Relaxed), Ordering::Relaxed);
    frame.live.store(live, Ordering::Release);
}
