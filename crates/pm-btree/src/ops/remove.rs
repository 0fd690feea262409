//! Removing: an entry becomes a tombstone in place, and readers see no entry when that is durable.

use super::change::{Expected, Outcome};
use crate::error::WriteError;
use crate::format::ENTRY_BYTES;
use crate::node::{Commit, Entry, FrameLock, Kind, SearchKey, entry_offset, flush_owed, line_mate};
use crate::session::Session;
use crate::tree::Tree;
use core::sync::atomic::Ordering;
use pm_core::Pmem;

/// Removes a key, if its value is the expected one.
///
/// # Durability
/// Durable when this returns, with the fence of [`remove_from`]; a crash before that leaves the key or removes it. Costs one line and one fence, and
/// one line more if an earlier update of the leaf left a line to be flushed. If there is no such key, costs nothing.
pub(crate) fn remove<P: Pmem>(
    session: &Session<P>,
    tree: &Tree,
    key: &SearchKey<'_>,
    expected: Expected<'_>,
) -> Result<Outcome, WriteError> {
    let _active = session.begin_change()?;
    let leaf = tree.lock_leaf(session, key)?;
    let old = tree.find_in(session, &leaf, key)?;
    if let Some(refused) = expected.refusal(session, tree.is_word(), &leaf, old.as_ref())? {
        return Ok(refused);
    }
    let success = expected.success(session, tree.is_word(), old.as_ref())?;
    if let Some((slot, old)) = &old {
        remove_from(session, tree, &leaf, *slot, old)?;
    }
    Ok(success)
}

/// Makes the entry in a slot a tombstone, in place. No older entry of the key survives, because the lines of replaced entries have the same fence;
/// so the slot is free afterwards, and the record too.
pub(super) fn remove_from<P: Pmem>(
    session: &Session<P>,
    tree: &Tree,
    leaf: &FrameLock<'_>,
    slot: usize,
    old: &Entry,
) -> Result<(), WriteError> {
    let pmem = &session.pmem();
    let commit = Commit::new(Kind::Tombstone, old.commit.is_inline(), session.next_stamp(leaf)?);
    let place = entry_offset(leaf.node(), slot);
    leaf.begin();
    Entry { commit, ..*old }.store_commit(pmem, place, leaf.seed());
    pmem.flush(place, ENTRY_BYTES);
    flush_owed(pmem, leaf, leaf.owed.load(Ordering::Relaxed) & !line_mate(slot));
    // DURABILITY POINT
    let fenced = session.fence();
    if fenced.is_ok() {
        session.settle_owed(leaf);
        let live = leaf.live.fetch_and(!(1 << slot), Ordering::Release);
        if live == 1 << slot {
            tree.note_empty(session, leaf);
        }
    }
    leaf.end();
    fenced?;
    if let Some(record) = old.record() {
        session.release_record(record);
    }
    if leaf.is_swept.load(Ordering::Relaxed) {
        tree.len.fetch_sub(1, Ordering::Relaxed);
    }
    Ok(())
}
