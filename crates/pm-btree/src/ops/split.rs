//! Splitting: the upper entries of a leaf move to new right siblings, to one of them unless the leaf is split for a batch.
//!
//! The siblings are durable before the leaf is linked to the first of them. The link and the entry for which the leaf is split become durable under
//! one fence. The siblings are posted to the index when the leaves are unlocked; until then they are found through the leaf.

use super::change::NewEntry;
use super::split_point::{Moving, sorted_entries, split_point};
use crate::error::WriteError;
use crate::format::{ENTRY_BYTES, NODE_HEADER_BYTES, NodeHeader, checked};
use crate::node::{
    Frame, FrameId, FrameLock, INLINE_BYTES, SearchKey, Separator, empty_slot, entry_offset, flush_owed,
    head_of, lines_of, node_seed, store_header,
};
use crate::session::{Reserved, Session, Supply};
use crate::tree::Tree;
use core::mem::offset_of;
use core::sync::atomic::Ordering;
use pm_core::{Pmem, crc32c_bytes};

/// A new leaf, whose separator is posted to the index after the leaves are unlocked.
pub(super) struct Posting {
    id: FrameId,
    low: Separator,
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
/// The fences of [`link`], and the lines of the new node. A crash before the second one leaves the leaf whole, with or without the new entry; a crash
/// after it finds both halves and the new entry.
pub(super) fn split<P: Pmem>(
    session: &Session<P>,
    tree: &Tree,
    leaf: FrameLock<'_>,
    new: Option<NewEntry<'_>>,
) -> Result<(), WriteError> {
    let moving = sorted_entries(&session.pmem(), tree.is_word(), &leaf);
    let key = new.as_ref().map(|new| new.key).filter(|_| leaf.next().is_none());
    let (kept, separator_bytes) = split_point(tree.is_word(), &moving, key);
    let moved = &moving[kept..];
    let next = leaf.next().map_or(0, |next| session.space.node_offset(next));
    let sibling =
        store_sibling(&Supply::of(session), tree, &leaf, moved, separator_bytes, next, new.as_ref())?;
    let new_in_left = new.as_ref().filter(|new| !sibling.low.is_at_or_below(&session.pmem(), new.key));
    let linked = link(session, tree, &leaf, vec![sibling], moved, new_in_left)?;
    drop(leaf);
    linked.into_iter().for_each(|(right, posting)| {
        drop(right);
        posting.post(session, tree);
    });
    Ok(())
}

/// A right sibling that is stored, and to which nothing refers yet. If it is dropped, its space is free again.
pub(super) struct Sibling<'s> {
    node: Reserved<'s>,
    seed: u32,
    /// The number of its entries.
    filled: usize,
    low: Separator,
    low_record: Option<Reserved<'s>>,
    separator_bytes: Vec<u8>,
}

impl Sibling<'_> {
    /// The offset of the node.
    pub(super) const fn node(&self) -> u64 {
        self.node.offset()
    }
}

/// Stores and flushes a right sibling with these entries of a leaf and this low separator, left of the node at `next`. `new` is stored, too, if it
/// belongs there.
pub(super) fn store_sibling<'c, P: Pmem>(
    supply: &Supply<'c, P>,
    tree: &Tree,
    leaf: &FrameLock<'_>,
    moving: &[Moving],
    separator_bytes: Vec<u8>,
    next: u64,
    new: Option<&NewEntry<'_>>,
) -> Result<Sibling<'c>, WriteError> {
    let session = supply.session;
    // Under the lock, as for a stamp.
    session.check_not_poisoned()?;
    let pmem = &session.pmem();
    let node = supply.node()?;
    let (low, low_record) = store_separator(supply, tree, &separator_bytes)?;
    let birth = session.epochs.next_birth();
    let frame = session.frames.get(node.frame());
    let seed = node_seed(tree.id.table, node.offset(), birth);
    let mut filled = 0;
    for moving in moving {
        moving.entry.store(pmem, entry_offset(node.offset(), filled), seed, true);
        frame.set_fingerprint(filled, leaf.fingerprint(moving.slot));
        filled += 1;
    }
    if let Some(new) = new.filter(|new| low.is_at_or_below(pmem, new.key)) {
        new.entry(session, leaf)?.store(pmem, entry_offset(node.offset(), filled), seed, true);
        frame.set_fingerprint(filled, new.key.fingerprint());
        filled += 1;
    }
    let low_record_crc = low_record.as_ref().map_or(0, |_| crc32c_bytes(0, &separator_bytes));
    store_header(pmem, node.offset(), tree.id, (birth, lines_of(filled)), (&low, low_record_crc), next);
    pmem.flush(node.offset(), NODE_HEADER_BYTES + filled as u64 * ENTRY_BYTES);
    Ok(Sibling { node, seed, filled, low, low_record, separator_bytes })
}

/// A locked right sibling, and how it is posted to the index.
pub(super) type Linked<'c> = (FrameLock<'c>, Posting);

/// Makes the right siblings of a leaf durable, and links the leaf to them. `siblings`: from right to left, as they are returned; `moved`: the entries
/// of the leaf that they have. `new` is an entry to be written into the leaf by the way.
///
/// # Durability
/// Two fences, of which [`link_sibling`] has the second; one more if entries of byte keys were moved. A crash before the second one leaves the leaf
/// whole; a crash after it finds all siblings.
pub(super) fn link<'c, P: Pmem>(
    session: &'c Session<P>,
    tree: &Tree,
    leaf: &FrameLock<'_>,
    siblings: Vec<Sibling<'c>>,
    moved: &[Moving],
    new: Option<&NewEntry<'_>>,
) -> Result<Vec<Linked<'c>>, WriteError> {
    // Nothing refers to the siblings yet, so until here a failure gives their space back.
    session.fence()?;
    let mut next = (leaf.next().unwrap_or(FrameId::NONE), leaf.high());
    let mut linked = Vec::with_capacity(siblings.len());
    for sibling in siblings {
        let (id, low) = (sibling.node.frame(), sibling.low);
        init_frame(session, &sibling, leaf, next);
        sibling.node.keep();
        if let Some(record) = sibling.low_record {
            record.keep();
        }
        let right = session.frames.get(id).lock();
        right.publish();
        linked.push((right, Posting { id, low, separator_bytes: sibling.separator_bytes }));
        next = (id, low);
    }
    link_sibling(session, tree, leaf, &linked, new, moved)?;
    Ok(linked)
}

/// Links the first right sibling, and writes an entry into the leaf if there is one.
fn link_sibling<P: Pmem>(
    session: &Session<P>,
    tree: &Tree,
    leaf: &FrameLock<'_>,
    siblings: &[Linked<'_>],
    new: Option<&NewEntry<'_>>,
    moved: &[Moving],
) -> Result<(), WriteError> {
    let pmem = &session.pmem();
    let (Some((_, last)), Some((_, first))) = (siblings.first(), siblings.last()) else {
        unreachable!("a split makes a sibling")
    };
    let owed = leaf.owed.load(Ordering::Relaxed);
    let live = leaf.live.load(Ordering::Relaxed);
    let mut remaining = moved.iter().fold(live, |live, moved| live & !(1 << moved.slot));
    // The moved entries are still in their slots, and the link to the sibling may be lost: so only a slot that was free before may be written.
    let free = session.all_slots() & !leaf.taken();
    let slot = if owed == 0 { free } else { owed }.trailing_zeros() as usize;
    let entry = new.map(|new| new.entry(session, leaf)).transpose()?;
    let next = leaf.node() + offset_of!(NodeHeader, next) as u64;
    leaf.begin();
    pmem.store_u64(next, checked(session.space.node_offset(first.id), next));
    pmem.flush(next, 8);
    if let Some(entry) = entry {
        entry.store(pmem, entry_offset(leaf.node(), slot), leaf.seed(), leaf.is_first_use(slot));
        pmem.flush(entry_offset(leaf.node(), slot), ENTRY_BYTES);
    }
    flush_owed(pmem, leaf, owed);
    // DURABILITY POINT
    let fenced = session.fence();
    if fenced.is_ok() {
        session.settle_owed(leaf);
        if let Some(new) = new {
            leaf.use_slot(slot);
            leaf.set_fingerprint(slot, new.key.fingerprint());
            remaining |= 1 << slot;
        }
        if let Some(id) = session.space.frame_of(leaf.node()) {
            tree.ends.move_last(id, last.id);
        }
        leaf.set_next(first.id, first.low);
        leaf.live.store(remaining, Ordering::Release);
    }
    leaf.end();
    fenced?;
    if !tree.is_word() && !moved.is_empty() {
        clear_moved(session, leaf, moved)?;
    }
    Ok(())
}

/// Empties the slots of entries that were moved to right siblings, whose locks the caller has too, and fences.
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
        empty_slot(&session.pmem(), entry_offset(leaf.node(), moved.slot), leaf.seed());
        slots |= 1 << moved.slot;
    }
    // The slot of the new entry may be in one of these lines, and is durable already.
    flush_owed(&session.pmem(), leaf, slots);
    Ok(session.fence()?)
}

/// The separator with these bytes. If they do not fit in a word, stores them in a record, which the caller fences.
fn store_separator<'c, P: Pmem>(
    supply: &Supply<'c, P>,
    tree: &Tree,
    bytes: &[u8],
) -> Result<(Separator, Option<Reserved<'c>>), WriteError> {
    let head = head_of(bytes);
    if tree.is_word() || (bytes.len() <= INLINE_BYTES && bytes.last() != Some(&0)) {
        return Ok((Separator { head, record: 0, len: 0 }, None));
    }
    let record = supply.separator(bytes.len() as u64)?;
    supply.session.pmem().store_nt(record.offset(), bytes);
    let len = u32::try_from(bytes.len()).expect("a key is shorter than a record");
    Ok((Separator { head, record: record.offset(), len }, Some(record)))
}

/// Initializes the frame of a right sibling of a leaf, which no reader finds yet.
fn init_frame<P: Pmem>(
    session: &Session<P>,
    sibling: &Sibling<'_>,
    leaf: &Frame,
    (next, high): (FrameId, Separator),
) {
    let frame = session.frames.get(sibling.node.frame());
    frame.node.store(sibling.node(), Ordering::Relaxed);
    frame.seed.store(sibling.seed, Ordering::Relaxed);
    frame.owed.store(0, Ordering::Relaxed);
    frame.held.store(0, Ordering::Relaxed);
    frame.used_lines.store(lines_of(sibling.filled), Ordering::Relaxed);
    frame.stored_lines.store(lines_of(sibling.filled), Ordering::Relaxed);
    // The stamps of the moved entries are in the left node's order, and later ones must be greater.
    frame.order.store(leaf.order.load(Ordering::Relaxed), Ordering::Relaxed);
    frame.set_next(next, high);
    frame.is_swept.store(leaf.is_swept.load(Ordering::Relaxed), Ordering::Relaxed);
    frame.live.store((1 << sibling.filled) - 1, Ordering::Release);
}
