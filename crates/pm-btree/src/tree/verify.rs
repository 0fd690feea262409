//! Verification of what is read: whether corruption may have hidden a key that was not found, and the checksums of entries.
//!
//! Filling a frame verifies a leaf once after an open. This detects what flips later, and costs a read of all that an answer depends on; so only
//! stores with [`verify_reads`](crate::StoreOptions::verify_reads) do it.

use crate::error::{Corruption, CorruptionKind};
use crate::node::{Entry, Frame, SearchKey, Snapshot, TreeId, Verified, entry_offset, held_entry, slots_of};
use crate::session::Session;
use pm_core::Pmem;

/// Verifies that `key` is in the range of the leaf at `node`: a corrupted separator may have led to a wrong leaf.
#[cold]
pub(crate) fn verify_range<P: Pmem>(
    session: &Session<P>,
    tree: TreeId,
    node: u64,
    key: &SearchKey<'_>,
) -> Result<(), Corruption> {
    let pmem = &session.pmem();
    let leaf = Verified::load(pmem, node, tree)?;
    let right = match leaf.next()? {
        0 => None,
        next => Some(Verified::load(pmem, next, tree)?),
    };
    let is_above = right.is_some_and(|right| right.low().is_at_or_below(pmem, key));
    if leaf.low().is_at_or_below(pmem, key) && !is_above {
        Ok(())
    } else {
        Err(Corruption::new(node, CorruptionKind::NodeHeader))
    }
}

/// Whether a live entry of the leaf has a wrong seal: then a key that is not found may have been in it.
pub(crate) fn has_broken_seal<P: Pmem>(session: &Session<P>, frame: &Frame, snapshot: Snapshot) -> bool {
    slots_of(snapshot.live).any(|slot| {
        let (entry, seal) = Entry::load(&session.pmem(), entry_offset(frame.node(), slot));
        entry.seal(frame.seed()) != seal
    })
}

/// Verifies the checksums of entries of a locked leaf, and of their records.
pub(crate) fn verify_slots<P: Pmem>(
    pmem: &P,
    is_word: bool,
    leaf: &Frame,
    slots: u64,
) -> Result<(), Corruption> {
    for slot in slots_of(slots) {
        let place = entry_offset(leaf.node(), slot);
        let (entry, seal) = Entry::load(pmem, place);
        if entry.seal(leaf.seed()) != seal {
            return Err(held_entry(leaf.node(), 1 << slot));
        }
        if !entry.is_record_intact(pmem, is_word) {
            return Err(Corruption::new(place, CorruptionKind::Record));
        }
    }
    Ok(())
}
