//! Inserting and updating: an entry is stored into a free slot of its leaf, and shown to readers when it is durable.

use super::change::{Content, Expected, NewEntry, Outcome};
use super::split::split;
use crate::error::WriteError;
use crate::format::ENTRY_BYTES;
use crate::node::{
    Entry, FrameLock, RecordRef, SearchKey, empty_slot, entry_offset, flush_owed, held_entry, line_mate,
};
use crate::session::{Session, Supply};
use crate::tree::Tree;
use core::sync::atomic::Ordering;
use pm_core::Pmem;

/// Inserts or updates a key, if its value is the expected one.
///
/// # Durability
/// Durable when this returns, with the fence of [`put_in_place`] or of a [`split`]; a crash before that leaves the old value or the new one. Costs
/// the lines of the record and one line, and one fence; one line more if an earlier update of the leaf left a line to be flushed; if the leaf is
/// split, the lines of half a leaf and one fence more.
pub(crate) fn put<P: Pmem>(
    session: &Session<P>,
    tree: &Tree,
    key: &SearchKey<'_>,
    value: &[u8],
    expected: Expected<'_>,
) -> Result<Outcome, WriteError> {
    let _active = session.begin_change()?;
    let mut buffer = Vec::new();
    let content = Content::reserve(&Supply::of(session), tree.is_word(), key, value, &mut buffer)?;
    let leaf = loop {
        let leaf = tree.lock_leaf(session, key)?;
        if leaf.taken() != session.all_slots() {
            break leaf;
        }
        match leaf.held.load(Ordering::Relaxed) {
            0 => (),
            held => return Err(held_entry(leaf.node(), held).into()),
        }
        // A crash lost the link to the right half of a split, but kept the entry that took the last slot.
        split(session, tree, leaf, None)?;
    };
    let old = tree.find_in(session, &leaf, key)?;
    if let Some(refused) = expected.refusal(session, tree.is_word(), &leaf, old.as_ref())? {
        return Ok(refused);
    }
    let success = expected.success(session, tree.is_word(), old.as_ref())?;
    if let Some(record) = &content.record {
        session.pmem().store_nt(record.offset(), if tree.is_word() { value } else { &buffer });
    }
    let new =
        NewEntry { key, payload: content.payload, low: content.low, is_inline: content.record.is_none() };
    let has_record = content.record.is_some();
    // From here on the record may be durable and referred to, even if a fence fails.
    if let Some(record) = content.record {
        record.keep();
    }
    let is_last = (session.all_slots() & !leaf.taken()).is_power_of_two();
    let is_split = old.is_none() && is_last;
    let payload = new.payload;
    let is_counted = leaf.is_swept.load(Ordering::Relaxed);
    let written = match is_split {
        true => split(session, tree, leaf, Some(new)),
        false => put_in_place(session, tree, &leaf, &new, old.as_ref()),
    };
    if matches!(written, Err(WriteError::Full)) && has_record {
        // There is no room for the right sibling, and nothing was changed.
        let record = RecordRef::from_payload(payload);
        session.space.release_record(record.offset, record.len);
    }
    written?;
    if old.is_none() && is_counted {
        tree.len.fetch_add(1, Ordering::Relaxed);
    }
    Ok(success)
}

/// Writes the entry into a free slot, and publishes it in place of the entry in slot `old`.
fn put_in_place<P: Pmem>(
    session: &Session<P>,
    tree: &Tree,
    leaf: &FrameLock<'_>,
    new: &NewEntry<'_>,
    old: Option<&(usize, Entry)>,
) -> Result<(), WriteError> {
    let pmem = &session.pmem();
    let live = leaf.live.load(Ordering::Relaxed);
    let owed = leaf.owed.load(Ordering::Relaxed);
    let free = session.all_slots() & !leaf.taken();
    // A slot whose line must be flushed anyway, if there is one.
    let slot = if owed == 0 { free } else { owed }.trailing_zeros() as usize;
    let place = entry_offset(leaf.node(), slot);
    let entry = new.entry(session, leaf)?;
    leaf.begin();
    entry.store(pmem, place, leaf.seed(), leaf.is_first_use(slot));
    pmem.flush(place, ENTRY_BYTES);
    flush_owed(pmem, leaf, owed & !line_mate(slot));
    // DURABILITY POINT
    let fenced = session.fence();
    if fenced.is_ok() {
        session.settle_owed(leaf);
        leaf.use_slot(slot);
        if live == 0 {
            tree.ends.widen(session, leaf, new.key);
        }
        leaf.set_fingerprint(slot, new.key.fingerprint());
        let replaced = old.map_or(0, |(old, _)| 1 << old);
        leaf.live.store(live & !replaced | 1 << slot, Ordering::Release);
        if let Some((old, entry)) = old {
            empty_slot(pmem, entry_offset(leaf.node(), *old), leaf.seed());
            leaf.owed.store(1 << old, Ordering::Relaxed);
            leaf.owed_payload.store(entry.record().map_or(0, RecordRef::payload), Ordering::Relaxed);
        }
    }
    leaf.end();
    Ok(fenced?)
}
