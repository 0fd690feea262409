//! Committing a batch: all its changes become durable by one store of one word.
//!
//! The leaves of a batch are locked in the order of tables and keys. Each without room is split into as many as its entries need. Then the batch takes
//! an epoch of its own, writes its entries into free slots, and fences; stores the epoch into its batch slot, and fences again; and publishes leaf by
//! leaf. A removal changes the commit word of the entry in place: it is a value until the batch is committed, and then a tombstone. So removals need
//! no space. Filling the frame of a leaf turns those of a batch that was not committed back into values.

use super::change::Content;
use super::split::{Posting, link, store_sibling};
use super::split_point::{batch_split_point, sorted_entries};
use crate::error::WriteError;
use crate::node::{
    Commit, Entry, FrameLock, Kind, RecordRef, SearchKey, Stamp, empty_slot, entry_offset, flush_owed,
    held_entry, slots_of,
};
use crate::session::{BatchSlot, Reserved, Session, Supply};
use crate::tree::Tree;
use core::sync::atomic::Ordering;
use pm_core::Pmem;

/// An operation of a batch on a key.
#[derive(Debug)]
pub(crate) struct Op<'b> {
    pub(crate) key: SearchKey<'b>,
    /// The new value; `None` removes the key.
    pub(crate) value: Option<&'b [u8]>,
}

/// An entry to be written.
struct Write<'b> {
    key: SearchKey<'b>,
    /// The payload and the low half of the check word of a new value, and whether it has a record; `None` for a removal.
    value: Option<(u64, u32, bool)>,
    /// The entry of the key, and its slot.
    old: Option<(usize, Entry)>,
}

impl Write<'_> {
    /// Writes the entry of a new value into the first of the free slots, or that of a removed key in place. Returns the slot; the caller flushes it.
    fn write<P: Pmem>(
        &self,
        pmem: &P,
        leaf: &FrameLock<'_>,
        free: &mut impl Iterator<Item = usize>,
        stamp: Stamp,
    ) -> usize {
        let commit = |kind, is_inline| Commit::new(kind, is_inline, stamp);
        match (self.value, &self.old) {
            (Some((payload, low, has_record)), _) => {
                let slot = free.next().expect("room was made");
                let commit = commit(Kind::BatchValue, !has_record);
                let entry = Entry { key: self.key.head(), payload, low, commit };
                let is_first_use = leaf.is_first_use(slot);
                entry.store(pmem, entry_offset(leaf.node(), slot), leaf.seed(), is_first_use);
                slot
            }
            (None, Some((slot, old))) => {
                let commit = commit(Kind::BatchRemoval, old.commit.is_inline());
                Entry { commit, ..*old }.store_commit(pmem, entry_offset(leaf.node(), *slot), leaf.seed());
                *slot
            }
            (None, None) => unreachable!("the removal of an absent key writes nothing"),
        }
    }
}

/// A locked leaf of a batch, with its changes in the order of their keys.
struct Part<'c, 'b> {
    tree: &'c Tree,
    leaf: FrameLock<'c>,
    writes: Vec<Write<'b>>,
}

/// What a batch has locked, and the leaves that it has added.
struct Locked<'c, 'b> {
    parts: Vec<Part<'c, 'b>>,
    postings: Vec<(&'c Tree, Posting)>,
}

/// A batch in progress. If it panics, it may leave entries that are not committed: the store is poisoned before its slot and its place in the grace
/// period are given back, so that no later batch and no later durable epoch commits them.
struct Unfinished<'c, P: Pmem> {
    session: &'c Session<P>,
}

impl<P: Pmem> Drop for Unfinished<'_, P> {
    fn drop(&mut self) {
        self.session.poison();
    }
}

/// Commits a batch: for each table its operations, in ascending order of the tables' numbers and of the keys, one for each key. Returns the number of
/// keys that were removed.
///
/// # Durability
/// All changes are durable when this returns, with the second fence of [`commit_in`]; a crash before that leaves all of them or none. Costs the lines
/// of the records and entries, one line for the batch slot, and two fences, and nothing if only absent keys are removed. Leaves without room are
/// split before, each with the two or three fences of [`link`]; after an error they stay split, and those without entries are listed to be unlinked.
pub(crate) fn commit<'c, P: Pmem>(
    supply: &Supply<'c, P>,
    tables: &[(&'c Tree, Vec<Op<'c>>)],
) -> Result<u64, WriteError> {
    let session = supply.session;
    let _active = session.begin_change()?;
    let slot = session.batches.acquire(session.epochs.batch_slots()?);
    // The batch that had the slot before may have failed.
    session.check_not_poisoned()?;
    let mut locked = Locked { parts: Vec::new(), postings: Vec::new() };
    let unfinished = Unfinished { session };
    let result = commit_in(supply, &slot, tables, &mut locked);
    core::mem::forget(unfinished);
    let Locked { parts, postings } = locked;
    if result.is_err() {
        // Leaves that were split off for entries which they do not get now.
        let is_empty =
            |leaf: &FrameLock<'_>| leaf.live.load(Ordering::Relaxed) | leaf.held.load(Ordering::Relaxed) == 0;
        let empty = parts.iter().filter(|part| is_empty(&part.leaf));
        empty.for_each(|part| part.tree.note_empty(session, &part.leaf));
    }
    drop(parts);
    postings.iter().for_each(|(tree, posting)| posting.post(session, tree));
    result
}

fn commit_in<'c, P: Pmem>(
    supply: &Supply<'c, P>,
    slot: &BatchSlot<'_>,
    tables: &[(&'c Tree, Vec<Op<'c>>)],
    locked: &mut Locked<'c, 'c>,
) -> Result<u64, WriteError> {
    let session = supply.session;
    // Before any lock: this may allocate extents.
    let mut records = Vec::new();
    let mut writes_of_tables = Vec::with_capacity(tables.len());
    for (tree, ops) in tables {
        let mut writes = Vec::with_capacity(ops.len());
        for op in ops {
            let content = op.value.map(|value| store_content(supply, tree, &op.key, value)).transpose()?;
            let value = content.map(|content| {
                let value = (content.payload, content.low, content.record.is_some());
                records.extend(content.record);
                value
            });
            writes.push(Write { key: op.key, value, old: None });
        }
        writes_of_tables.push((*tree, writes));
    }
    for (tree, writes) in &writes_of_tables {
        prefetch_leaves(session, tree, writes);
    }
    for (tree, writes) in writes_of_tables {
        locked.lock_leaves(supply, tree, writes)?;
    }
    // The locks of leaves from which only absent keys are removed are kept, too: the keys stay absent.
    let mut writes = locked.parts.iter().flat_map(|part| &part.writes);
    if writes.next().is_none() {
        return Ok(0);
    }
    let removed =
        locked.parts.iter().flat_map(|part| &part.writes).filter(|write| write.value.is_none()).count();
    let epoch = session.batch_epoch()?;
    // From here on the records may be durable and referred to, even if a fence fails.
    records.into_iter().for_each(Reserved::keep);
    let written: Vec<Vec<usize>> =
        locked.parts.iter().map(|part| part.write(session, Stamp { epoch, order: slot.number() })).collect();
    let fenced = session.fence().and_then(|()| {
        slot.store(&session.pmem(), epoch);
        // DURABILITY POINT
        session.fence()
    });
    for (part, slots) in locked.parts.iter().zip(&written).filter(|(_, slots)| !slots.is_empty()) {
        let removed = if fenced.is_ok() { part.publish(session, slots) } else { Vec::new() };
        part.leaf.end();
        removed.into_iter().for_each(|record| session.release_record(record));
    }
    fenced?;
    Ok(removed as u64)
}

/// Takes space for a value, and stores its record, which the caller fences.
fn store_content<'c, P: Pmem>(
    supply: &Supply<'c, P>,
    tree: &Tree,
    key: &SearchKey<'_>,
    value: &[u8],
) -> Result<Content<'c>, WriteError> {
    let mut buffer = Vec::new();
    let content = Content::reserve(supply, tree.is_word(), key, value, &mut buffer)?;
    if let Some(record) = &content.record {
        supply.session.pmem().store_nt(record.offset(), if tree.is_word() { value } else { &buffer });
    }
    Ok(content)
}

impl<'c, 'b> Locked<'c, 'b> {
    /// Locks the leaves of these changes of a tree, and makes room in them. Leaves of the tree that are locked already are to the left.
    fn lock_leaves<P: Pmem>(
        &mut self,
        supply: &Supply<'c, P>,
        tree: &'c Tree,
        writes: Vec<Write<'b>>,
    ) -> Result<(), WriteError> {
        let session = supply.session;
        let pmem = &session.pmem();
        let mut writes = writes.into_iter().peekable();
        while let Some(first) = writes.peek() {
            let leaf = tree.lock_leaf_rightwards(session, &first.key)?;
            let is_inside =
                |write: &Write<'_>| leaf.next().is_none() || !leaf.high().is_at_or_below(pmem, &write.key);
            let mut inside = Vec::new();
            while let Some(mut write) = writes.next_if(is_inside) {
                write.old = tree.find_in(session, &leaf, &write.key)?;
                if write.value.is_some() || write.old.is_some() {
                    inside.push(write);
                }
            }
            self.make_room(supply, tree, leaf, inside)?;
        }
        Ok(())
    }

    /// Splits a leaf into as many as its changes need, and keeps all locks.
    fn make_room<P: Pmem>(
        &mut self,
        supply: &Supply<'c, P>,
        tree: &'c Tree,
        leaf: FrameLock<'c>,
        mut writes: Vec<Write<'b>>,
    ) -> Result<(), WriteError> {
        let session = supply.session;
        if has_room((session.all_slots() & !leaf.taken()).count_ones() as usize, &writes) {
            self.parts.push(Part { tree, leaf, writes });
            return Ok(());
        }
        match leaf.held.load(Ordering::Relaxed) {
            0 => (),
            held => return Err(held_entry(leaf.node(), held).into()),
        }
        let entries = sorted_entries(&session.pmem(), tree.is_word(), &leaf);
        let mut kept = entries.len();
        let mut next = leaf.next().map_or(0, |next| session.space.node_offset(next));
        let was_last = next == 0;
        let (mut siblings, mut writes_of_siblings) = (Vec::new(), Vec::new());
        // From right to left: each entry is moved once, and each change looked at once.
        while siblings.is_empty() || !has_room(session.slots - kept, &writes) {
            let keys = writes.iter().map(|write| &write.key);
            let cut = batch_split_point(tree.is_word(), &entries[..kept], keys, session.slots, was_last);
            let moving = &entries[cut.entries..kept];
            let sibling = store_sibling(supply, tree, &leaf, moving, cut.separator, next, None)?;
            next = sibling.node();
            siblings.push(sibling);
            writes_of_siblings.push(writes.split_off(cut.changes));
            kept = cut.entries;
        }
        let linked = link(session, tree, &leaf, siblings, &entries[kept..], None)?;
        self.parts.push(Part { tree, leaf, writes });
        for ((leaf, posting), mut writes) in linked.into_iter().zip(writes_of_siblings).rev() {
            self.postings.push((tree, posting));
            for write in writes.iter_mut().filter(|write| write.old.is_some()) {
                write.old = tree.find_in(session, &leaf, &write.key)?;
            }
            self.parts.push(Part { tree, leaf, writes });
        }
        Ok(())
    }
}

/// Whether so many free slots are enough for the changes of a leaf, and one is left when they are published.
fn has_room(free: usize, writes: &[Write<'_>]) -> bool {
    let new = writes.iter().filter(|write| write.value.is_some()).count();
    let frees_slot = || writes.iter().any(|write| write.old.is_some());
    new == 0 || new < free || (new == free && frees_slot())
}

impl Part<'_, '_> {
    /// Writes the entries of new values into free slots, first into those whose lines must be flushed anyway, and removals in place, and flushes them.
    /// Returns the slots. Unless there are none, the leaf is being changed afterwards.
    fn write<P: Pmem>(&self, session: &Session<P>, stamp: Stamp) -> Vec<usize> {
        let (pmem, leaf) = (&session.pmem(), &self.leaf);
        if self.writes.is_empty() {
            return Vec::new();
        }
        let owed = leaf.owed.load(Ordering::Relaxed);
        let free = session.all_slots() & !leaf.taken();
        leaf.begin();
        let mut free = slots_of(owed).chain(slots_of(free & !owed));
        let slots: Vec<usize> =
            self.writes.iter().map(|write| write.write(pmem, leaf, &mut free, stamp)).collect();
        flush_owed(pmem, leaf, slots.iter().fold(owed, |lines, slot| lines | 1 << slot));
        slots
    }

    /// Shows the changes in these slots to readers, and empties the slots of entries that were replaced. Returns the records of removed keys, which can
    /// be released when the change of the leaf has ended.
    fn publish<P: Pmem>(&self, session: &Session<P>, slots: &[usize]) -> Vec<RecordRef> {
        let (pmem, leaf) = (&session.pmem(), &self.leaf);
        session.settle_owed(leaf);
        let mut live = leaf.live.load(Ordering::Relaxed);
        if live == 0 {
            self.tree.ends.widen(session, leaf, &self.writes[0].key);
        }
        let (mut owed, mut records) = (0, Vec::new());
        let (mut inserted, mut removed, mut of_removed) = (0, 0, Vec::new());
        for (write, slot) in self.writes.iter().zip(slots) {
            if let Some((old, _)) = &write.old {
                live &= !(1 << old);
            }
            match (&write.value, &write.old) {
                (Some(_), old) => {
                    leaf.use_slot(*slot);
                    leaf.set_fingerprint(*slot, write.key.fingerprint());
                    live |= 1 << slot;
                    match old {
                        None => inserted += 1,
                        Some((old, entry)) => {
                            owed |= 1 << old;
                            records.extend(entry.record());
                        }
                    }
                }
                (None, old) => {
                    removed += 1;
                    of_removed.extend(old.as_ref().and_then(|(_, entry)| entry.record()));
                }
            }
        }
        leaf.live.store(live, Ordering::Release);
        if live == 0 {
            self.tree.note_empty(session, leaf);
        }
        for old in slots_of(owed) {
            empty_slot(pmem, entry_offset(leaf.node(), old), leaf.seed());
        }
        leaf.owed.store(owed, Ordering::Relaxed);
        let payload = match records.as_slice() {
            [] => 0,
            [record] => record.payload(),
            _ => {
                session.batches.put_replaced(leaf.node(), records);
                RecordRef::LIST_PAYLOAD
            }
        };
        leaf.owed_payload.store(payload, Ordering::Relaxed);
        if leaf.is_swept.load(Ordering::Relaxed) {
            self.tree.len.fetch_add(inserted, Ordering::Relaxed);
            self.tree.len.fetch_sub(removed, Ordering::Relaxed);
        }
        of_removed
    }
}

/// Prefetches the frames of the leaves of these changes, and then the lines that the changes store to or compare, so that the cache misses of
/// different leaves overlap. Another thread may change the leaves before they are locked, which costs speed only.
fn prefetch_leaves<P: Pmem>(session: &Session<P>, tree: &Tree, writes: &[Write<'_>]) {
    let mut frames = Vec::with_capacity(writes.len());
    for write in writes {
        // The lookup under the lock reports an error.
        let Ok(followed) = tree.index.find(session, &write.key) else { return };
        let frame = session.frames.get(followed.leaf());
        frame.prefetch();
        frames.push(frame);
    }
    let pmem = &session.pmem();
    for (write, frame) in writes.iter().zip(frames).filter(|(_, frame)| frame.is_filled()) {
        let free = session.all_slots() & !frame.taken();
        let owed = frame.owed.load(Ordering::Relaxed);
        let next = if owed == 0 { free } else { owed };
        let next = next & next.wrapping_neg();
        let live = frame.live.load(Ordering::Relaxed);
        for slot in slots_of(next | frame.matches(write.key.fingerprint(), live)) {
            pmem.prefetch(entry_offset(frame.node(), slot));
        }
    }
}
