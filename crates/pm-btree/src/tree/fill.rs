//! Filling frames from nodes when they are first used after an open: what readers may see is computed from the entries, and what a crash left is
//! cleaned up.
//!
//! After a session that was not closed, a node may hold entries that are visible but not durable, because a process was killed; torn entries, whose
//! seal or record is wrong; replaced entries, whose slot was not emptied durably; and entries of batches that were not committed. Filling a frame
//! first flushes all that it relies on, and fences. Only then does it empty slots, and turns removals of batches that were not committed back into
//! values, and fences again. Doing that before would be wrong: the emptied slot could survive without the newer entry.
//!
//! # What is corrupted
//! The slot of a corrupted entry is *held*: it is not reused, and a key that is not found in this leaf is reported as corruption.
//!
//! An entry with a wrong record may be torn, if it was not durable before that session. But a change other than a batch writes one entry of a leaf
//! under a fence, and the next change of the leaf begins after that fence: so only the entry with the greatest stamp of the leaf may be torn, and any
//! other one is corrupted. An entry with a wrong seal is corrupted, because the stores of an entry become durable in their order, the commit word last.
//! In the page domain they do not; there any entry that was not durable may be torn.
//!
//! A commit word is 0 only in a slot of a line that was never used. Lines are used in ascending order, the next one when each slot before it has held
//! an entry that is durable; the other slot of its line is emptied before. So a zero in the lines up to the last one that holds an entry is corruption; and
//! also in one of those that the header counts, which is right after a clean close. In the page domain the last line does not count after a crash.

use crate::error::{Corruption, CorruptionKind, LeafError};
use crate::format::ENTRY_BYTES;
use crate::node::{
    Commit, Entry, FrameId, Kind, RecordRef, SearchKey, Separator, Stamp, TreeId, Verified, empty_slot,
    entry_offset, lines_of, slots_of,
};
use crate::session::Session;
use core::sync::atomic::Ordering;
use pm_core::{Domain, FenceError, Pmem};

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
    /// Torn and replaced entries, and those of batches that were not committed.
    to_empty: u64,
    /// Removals of batches that were not committed.
    to_turn_back: u64,
    /// The number of lines in use.
    used_lines: u8,
    candidates: Vec<Candidate>,
}

/// Fills the frame of a leaf.
///
/// # Durability
/// After a clean close changes nothing. Otherwise costs one fence, or two if there are slots to be emptied; a crash at any point leaves the same
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
    frame.used_lines.store(slots.used_lines, Ordering::Relaxed);
    frame.stored_lines.store(node.used_lines(), Ordering::Relaxed);
    frame.held.store(slots.held, Ordering::Relaxed);
    frame.live.store(slots.live, Ordering::Release);
    frame.publish();
    Ok(())
}

/// Makes what a frame relies on durable; then empties the slots of torn and replaced entries, and turns removals back.
fn clean_up<P: Pmem>(session: &Session<P>, node: &Verified, slots: &Slots) -> Result<(), FenceError> {
    let pmem = &session.pmem();
    pmem.flush(node.offset(), session.node_bytes());
    let records = slots.candidates.iter().filter(|candidate| !is_durable(session, &candidate.entry));
    for RecordRef { offset, len } in records.filter_map(|candidate| candidate.entry.record()) {
        pmem.flush(offset, len);
    }
    session.fence()?;
    let to_turn_back = slots.to_turn_back & slots.live;
    for Candidate { slot, entry, .. } in &slots.candidates {
        if to_turn_back >> slot & 1 == 1 {
            let place = entry_offset(node.offset(), *slot);
            entry.store_commit(pmem, place, node.seed());
            pmem.flush(place, ENTRY_BYTES);
        }
    }
    for slot in slots_of(slots.to_empty) {
        let place = entry_offset(node.offset(), slot);
        empty_slot(pmem, place, node.seed());
        pmem.flush(place, ENTRY_BYTES);
    }
    if slots.to_empty | to_turn_back != 0 {
        session.fence()?;
    }
    Ok(())
}

/// Whether the entry was durable before the session that was not closed.
fn is_durable<P: Pmem>(session: &Session<P>, entry: &Entry) -> bool {
    entry.commit.stamp().epoch < session.epochs.durable_epoch
}

/// The entries of a node with a right seal, by slot; the slots whose commit word is 0; and those with a wrong entry, which are torn or corrupted.
struct Loaded {
    entries: Vec<(usize, Entry, Kind)>,
    zero: u64,
    slots: Slots,
}

/// Loads the entries of a node, and sorts out those with a wrong seal.
fn load_slots<P: Pmem>(session: &Session<P>, node: &Verified) -> Loaded {
    let pmem = &session.pmem();
    let mut loaded = Loaded { entries: Vec::new(), zero: 0, slots: Slots::default() };
    for slot in 0..session.slots {
        let place = entry_offset(node.offset(), slot);
        let (entry, seal) = Entry::load(pmem, place);
        if entry.commit.0 == 0 {
            loaded.zero |= 1 << slot;
        } else if entry.commit.is_of_emptied() {
            // A word, which is never torn.
            if entry.commit != Commit::emptied(node.seed(), place) {
                loaded.slots.held |= 1 << slot;
            }
        } else {
            match entry.commit.kind().filter(|_| entry.seal(node.seed()) == seal) {
                Some(kind) => loaded.entries.push((slot, entry, kind)),
                None if pmem.domain() == Domain::Page && may_be_undurable(session, &entry) => {
                    loaded.slots.to_empty |= 1 << slot;
                }
                None => loaded.slots.held |= 1 << slot,
            }
        }
    }
    loaded
}

/// Whether an operation that was in progress at the end of an unclean session may have written the entry.
fn may_be_undurable<P: Pmem>(session: &Session<P>, entry: &Entry) -> bool {
    let epoch = entry.commit.stamp().epoch;
    session.epochs.is_unclean && !is_durable(session, entry) && epoch < session.epochs.limit()
}

/// Sorts the slots of a node into live, free, held, and to be emptied or turned back.
fn read_slots<P: Pmem>(
    session: &Session<P>,
    node: &Verified,
    high: Option<Separator>,
    is_word: bool,
) -> Slots {
    let pmem = &session.pmem();
    let Loaded { entries, zero, mut slots } = load_slots(session, node);
    let newest = entries.iter().map(|(_, entry, _)| entry.commit.stamp()).max();
    let may_be_torn = |entry: &Entry| {
        let is_newest = |newest: Stamp| entry.commit.stamp() == newest;
        let may_be_newest = pmem.domain() == Domain::Page || newest.is_some_and(is_newest);
        may_be_newest && may_be_undurable(session, entry)
    };
    // The lines up to the last one with an entry that counts.
    let mut lines = node.used_lines();
    for (slot, mut entry, kind) in entries {
        let is_committed = session.batches.is_committed(entry.commit, session.epochs.durable_epoch);
        if kind == Kind::BatchValue && !is_committed {
            slots.to_empty |= 1 << slot;
            continue;
        }
        lines = lines.max(lines_of(slot + 1));
        let is_tombstone = !kind.is_value() && is_committed;
        if kind == Kind::BatchRemoval && !is_committed {
            slots.to_turn_back |= 1 << slot;
            entry.commit = Commit::new(Kind::Value, entry.commit.is_inline(), entry.commit.stamp());
        }
        // Entries from the high separator on were moved to the right sibling: their slots are free. Changes of the sibling may have released their records, so
        // these are not looked at.
        let low = node.low();
        let head = entry.key;
        if head < low.head || high.is_some_and(|high| high.is_at_or_below_all_of(head)) {
            continue;
        }
        // The record of a tombstone may have been reused. In a table of byte keys, its key is then unknown.
        let is_checked = !is_word || (session.epochs.is_unclean && !is_durable(session, &entry));
        let is_intact = if is_checked && !(is_tombstone && is_word) {
            entry.is_record_intact(pmem, is_word)
        } else {
            is_tombstone || entry.record().is_none_or(|record| record.is_inside(pmem))
        };
        if !is_intact {
            // The entries of a batch that counts are durable, and those that it would have removed.
            match !kind.is_batch() && may_be_torn(&entry) {
                _ if is_tombstone => (),
                true => slots.to_empty |= 1 << slot,
                false => slots.held |= 1 << slot,
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
            slots.to_empty |= 1 << slot;
        }
    }
    slots.used_lines = lines;
    sort_zeroes(session, node, zero, &mut slots);
    keep_newest(&mut slots);
    slots
}

/// Sorts slots whose commit word is 0, of a node whose number of used lines is known, into free and held.
fn sort_zeroes<P: Pmem>(session: &Session<P>, node: &Verified, zero: u64, slots: &mut Slots) {
    // In the page domain, an entry can become durable without the emptied slot beside it.
    let may_lack_emptied = session.epochs.is_unclean && session.pmem().domain() == Domain::Page;
    for slot in slots_of(zero) {
        let line = lines_of(slot + 1);
        if may_lack_emptied && line == slots.used_lines && line > node.used_lines() {
            slots.to_empty |= 1 << slot;
        } else if line <= slots.used_lines {
            slots.held |= 1 << slot;
        }
    }
}

/// Finds the newest entry of each key. Older ones are emptied.
fn keep_newest(slots: &mut Slots) {
    slots.candidates.sort_unstable_by(|a, b| {
        let newest_first = || b.entry.commit.stamp().cmp(&a.entry.commit.stamp());
        a.entry.key.cmp(&b.entry.key).then_with(|| a.bytes.cmp(&b.bytes)).then_with(newest_first)
    });
    for (index, candidate) in slots.candidates.iter().enumerate() {
        let newer = index.checked_sub(1).map(|index| &slots.candidates[index]);
        let is_replaced = newer
            .is_some_and(|newer| (newer.entry.key, &newer.bytes) == (candidate.entry.key, &candidate.bytes));
        if is_replaced {
            slots.to_empty |= 1 << candidate.slot;
        } else if candidate.entry.commit.kind().is_some_and(Kind::is_value) {
            slots.live |= 1 << candidate.slot;
        }
    }
}
