//! Filling frames from nodes when they are first used after an open: what readers may see is computed from the entries, and what a crash left is
//! cleaned up.
//!
//! After a session that was not closed, a node may hold entries that are visible but not durable, because a process was killed; torn entries, whose
//! seal or record is wrong; and replaced entries, whose commit word was not cleared durably. Filling a frame first flushes all that it relies on, and
//! fences. Only then does it clear torn and replaced entries, and fences again. Clearing them before would be wrong: the cleared word could survive
//! without the newer entry.
//!
//! An entry with a wrong seal or record whose epoch is below the durable epoch was durable, so it is corrupted and not torn. Its slot is *held*:
//! it is not reused, and a key that is not found in this leaf is reported as corruption.

use crate::error::{Corruption, CorruptionKind, LeafError};
use crate::format::ENTRY_BYTES;
use crate::node::{
    Entry, FrameId, Kind, RecordRef, SearchKey, Separator, TreeId, Verified, clear_slot, entry_offset,
    slots_of,
};
use crate::session::Session;
use core::sync::atomic::Ordering;
use pm_core::{FenceError, Pmem};

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

/// Fills the frame of a leaf.
///
/// # Durability
/// After a clean close changes nothing. Otherwise costs one fence, or two if there are entries to be cleared; a crash at any point leaves the same
/// contents.
#[cold]
pub(super) fn fill<P: Pmem>(session: &Session<P>, tree: TreeId, id: FrameId) -> Result<(), LeafError> {
    let pmem = &session.pmem();
    let frame = session.frames.get(id).lock();
    // Another thread may have filled it.
    if frame.is_filled() {
        return Ok(());
    }
    let node = Verified::load(pmem, session.space.node_offset(id), tree)?;
    let next = match node.next()? {
        0 => None,
        next => Some(Verified::load(pmem, next, tree)?),
    };
    let right = next.map(|next| {
        let id = session.space.frame_of(next.offset()).filter(|_| node.is_left_of(pmem, &next));
        id.ok_or(Corruption::new(node.offset(), CorruptionKind::Sibling))
    });
    let right = right.transpose()?;
    let slots = read_slots(session, &node, next.map(|next| next.low()), tree.is_word);
    if session.epochs.is_unclean {
        clean_up(session, &node, &slots)?;
    }
    frame.node.store(node.offset(), Ordering::Relaxed);
    frame.seed.store(node.seed(), Ordering::Relaxed);
    let high = next.map_or(Separator::LOWEST, |next| next.low());
    frame.set_next(right.unwrap_or(FrameId::NONE), high);
    let is_live = |candidate: &&Candidate| slots.live >> candidate.slot & 1 == 1;
    for Candidate { slot, entry, bytes } in slots.candidates.iter().filter(is_live) {
        let key = if tree.is_word { SearchKey::word(entry.key) } else { SearchKey::bytes_key(bytes) };
        frame.set_fingerprint(*slot, key.fingerprint());
    }
    frame.held.store(slots.held, Ordering::Relaxed);
    frame.live.store(slots.live, Ordering::Release);
    frame.publish();
    Ok(())
}

/// Makes what a frame relies on durable, and then clears torn and replaced entries.
fn clean_up<P: Pmem>(session: &Session<P>, node: &Verified, slots: &Slots) -> Result<(), FenceError> {
    let pmem = &session.pmem();
    pmem.flush(node.offset(), session.node_bytes());
    let records = slots.candidates.iter().filter(|candidate| !is_durable(session, &candidate.entry));
    for RecordRef { offset, len } in records.filter_map(|candidate| candidate.entry.record()) {
        pmem.flush(offset, len);
    }
    session.fence()?;
    for slot in slots_of(slots.to_clear) {
        let place = entry_offset(node.offset(), slot);
        clear_slot(pmem, place);
        pmem.flush(place, ENTRY_BYTES);
    }
    if slots.to_clear != 0 {
        session.fence()?;
    }
    Ok(())
}

/// Whether the entry was durable before the session that was not closed.
fn is_durable<P: Pmem>(session: &Session<P>, entry: &Entry) -> bool {
    entry.commit.stamp().epoch < session.epochs.durable_epoch
}

/// Sorts the slots of a node into live, free, held, and to be cleared.
fn read_slots<P: Pmem>(
    session: &Session<P>,
    node: &Verified,
    high: Option<Separator>,
    is_word: bool,
) -> Slots {
    let pmem = &session.pmem();
    let mut slots = Slots::default();
    let may_be_torn = |entry: &Entry| {
        let epoch = entry.commit.stamp().epoch;
        session.epochs.is_unclean && !is_durable(session, entry) && epoch < session.epochs.limit()
    };
    for slot in 0..session.slots {
        let (entry, seal) = Entry::load(pmem, entry_offset(node.offset(), slot));
        if entry.commit.0 == 0 {
            continue;
        }
        let bad = if may_be_torn(&entry) { &mut slots.to_clear } else { &mut slots.held };
        let Some(kind) = entry.commit.kind().filter(|_| entry.seal(node.seed()) == seal) else {
            *bad |= 1 << slot;
            continue;
        };
        if !session.batches.is_committed(entry.commit, session.epochs.durable_epoch) {
            slots.to_clear |= 1 << slot;
            continue;
        }
        // The entries of a committed batch are durable.
        let bad = if kind.is_batch() { &mut slots.held } else { bad };
        // Entries from the high separator on were moved to the right sibling: their slots are free. Changes of the sibling may have released their records, so
        // these are not looked at.
        let low = node.low();
        let head = entry.key;
        if head < low.head || high.is_some_and(|high| high.is_at_or_below_all_of(head)) {
            continue;
        }
        let is_tombstone = !kind.is_value();
        // The record of a tombstone may have been reused. In a table of byte keys, its key is then unknown.
        let is_checked = !is_word || (session.epochs.is_unclean && !is_durable(session, &entry));
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
        } else if session.epochs.is_unclean {
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
