//! Popping: the first or the last entry of a tree is found under the lock of its leaf, and removed under it.

use super::remove::remove_from;
use crate::error::{Corruption, LeafError, WriteError};
use crate::node::{Bytes, Entry, FrameId, FrameLock, Separator, entry_offset, held_entry, low_of, slots_of};
use crate::session::{Active, Session};
use crate::tree::{Tree, verify_slots};
use core::sync::atomic::Ordering;
use pm_core::Pmem;

/// An end of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    First,
    Last,
}

/// The first or the last entry of a tree, and the lock of its leaf: so it remains that.
#[derive(Debug)]
pub(crate) struct EndEntry<'c> {
    leaf: FrameLock<'c>,
    slot: usize,
    entry: Entry,
    key: Vec<u8>,
    _change: Active<'c>,
}

impl EndEntry<'_> {
    /// The key, encoded.
    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    /// The value, encoded.
    pub(crate) fn value<P: Pmem>(&self, session: &Session<P>, tree: &Tree) -> Bytes {
        self.entry.value(&session.pmem(), tree.is_word())
    }

    /// Removes the entry.
    ///
    /// # Durability
    /// As for a [removal](super::remove()).
    pub(crate) fn remove<P: Pmem>(self, session: &Session<P>, tree: &Tree) -> Result<(), WriteError> {
        remove_from(session, tree, &self.leaf, self.slot, &self.entry)
    }
}

/// Begins a change, and finds the entry at an end of the tree, with the lock of its leaf. `None` if the tree is empty.
///
/// The entry is the first or the last one at the moment when this returns. Afterwards, another thread may insert a key beyond it in another leaf.
pub(crate) fn lock_end<'c, P: Pmem>(
    session: &'c Session<P>,
    tree: &Tree,
    end: End,
) -> Result<Option<EndEntry<'c>>, WriteError> {
    let change = session.begin_change()?;
    loop {
        let (id, leaf) = match end {
            End::First => lock_first(session, tree)?,
            End::Last => lock_last(session, tree)?,
        };
        match leaf.held.load(Ordering::Relaxed) {
            0 => (),
            held => return Err(held_entry(leaf.node(), held).into()),
        }
        if leaf.live.load(Ordering::Relaxed) != 0 {
            let (slot, entry, key) = end_of_leaf(session, tree, &leaf, end)?;
            return Ok(Some(EndEntry { leaf, slot, entry, key, _change: change }));
        }
        let is_moved = match end {
            End::First => step_right(tree, &leaf, id),
            End::Last => {
                let low = low_of(&session.pmem(), leaf.node());
                drop(leaf);
                id != tree.first && step_left(session, tree, id, low)?
            }
        };
        if !is_moved {
            return Ok(None);
        }
    }
}

/// Locks the leaf at the first end.
fn lock_first<'c, P: Pmem>(
    session: &'c Session<P>,
    tree: &Tree,
) -> Result<(FrameId, FrameLock<'c>), LeafError> {
    loop {
        let id = tree.ends.first();
        let leaf = tree.leaf(session, id)?.lock();
        // An insertion may have moved the end meanwhile.
        if tree.ends.first() == id {
            return Ok((id, leaf));
        }
    }
}

/// Locks the leaf at the last end.
fn lock_last<'c, P: Pmem>(
    session: &'c Session<P>,
    tree: &Tree,
) -> Result<(FrameId, FrameLock<'c>), LeafError> {
    loop {
        let id = tree.ends.last();
        if id != FrameId::NONE {
            let leaf = tree.leaf(session, id)?.lock();
            if tree.ends.last() == id {
                return Ok((id, leaf));
            }
            continue;
        }
        let mut leaf = tree.locate_below(session, None)?.1.lock();
        while let Some(next) = leaf.next() {
            leaf = tree.leaf(session, next)?.lock();
        }
        if let Some(id) = session.space.frame_of(leaf.node()) {
            tree.ends.move_last(FrameId::NONE, id);
        }
    }
}

/// Moves the first end from an empty leaf to its right sibling. False if there is none, or the end is elsewhere meanwhile and there is an entry.
fn step_right(tree: &Tree, leaf: &FrameLock<'_>, id: FrameId) -> bool {
    let Some(next) = leaf.next() else { return false };
    tree.ends.move_first(id, next);
    true
}

/// Moves the last end from an empty leaf, which is not the first one, to its left sibling. Leaves are locked from left to right: so the caller has
/// unlocked it, and whether it is still empty and the end is checked here.
fn step_left<P: Pmem>(
    session: &Session<P>,
    tree: &Tree,
    id: FrameId,
    low: Separator,
) -> Result<bool, LeafError> {
    let pmem = &session.pmem();
    let low = low.to_key(pmem, tree.is_word());
    let low = low.as_key();
    let mut left = tree.locate_below(session, Some(&low))?.1.lock();
    while let Some(next) = left.next().filter(|next| *next != id) {
        left = tree.leaf(session, next)?.lock();
    }
    let leaf = tree.leaf(session, id)?.lock();
    if leaf.live.load(Ordering::Relaxed) == 0
        && let Some(left) = session.space.frame_of(left.node())
    {
        tree.ends.move_last(id, left);
    }
    Ok(true)
}

/// The first or last entry of a locked leaf that has entries: its slot, itself, and its key.
fn end_of_leaf<P: Pmem>(
    session: &Session<P>,
    tree: &Tree,
    leaf: &FrameLock<'_>,
    end: End,
) -> Result<(usize, Entry, Vec<u8>), Corruption> {
    let pmem = &session.pmem();
    if session.verifies_reads {
        // Which entry is at the end, depends on all of them.
        verify_slots(pmem, tree.is_word(), leaf, leaf.live.load(Ordering::Relaxed))?;
    }
    let mut found: Option<(usize, Entry, Vec<u8>)> = None;
    for slot in slots_of(leaf.live.load(Ordering::Relaxed)) {
        let (entry, _) = Entry::load(pmem, entry_offset(leaf.node(), slot));
        let mut key = Vec::new();
        match tree.key_width {
            Some(width) => key.extend_from_slice(&entry.key.to_be_bytes()[..width]),
            None => entry.push_key(pmem, &mut key),
        }
        let is_beyond = found.as_ref().is_none_or(|(_, _, other)| (key < *other) == (end == End::First));
        if is_beyond {
            found = Some((slot, entry, key));
        }
    }
    Ok(found.expect("the leaf has entries"))
}
