//! The first and the last entry of a tree, under the lock of their leaf.

use crate::error::{Corruption, LeafError};
use crate::node::{Entry, FrameId, FrameLock, Separator, entry_offset, held_entry, slots_of};
use crate::session::Session;
use crate::tree::{Tree, low_of, verify_slots};
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
    pub(crate) leaf: FrameLock<'c>,
    pub(crate) slot: usize,
    pub(crate) entry: Entry,
    pub(crate) key: Vec<u8>,
}

impl Tree {
    /// The entry at an end of the tree, with the lock of its leaf. `None` if the tree is empty.
    ///
    /// The entry is the first or the last one at the moment when this returns. Afterwards, another thread may insert a key beyond it in another leaf.
    pub(crate) fn lock_end<'c, P: Pmem>(
        &self,
        session: &'c Session<P>,
        end: End,
    ) -> Result<Option<EndEntry<'c>>, LeafError> {
        loop {
            let (id, leaf) = match end {
                End::First => self.lock_first(session)?,
                End::Last => self.lock_last(session)?,
            };
            match leaf.held.load(Ordering::Relaxed) {
                0 => (),
                held => return Err(held_entry(leaf.node(), held).into()),
            }
            if leaf.live.load(Ordering::Relaxed) != 0 {
                return Ok(Some(self.end_of_leaf(session, leaf, end)?));
            }
            let is_moved = match end {
                End::First => self.step_right(&leaf, id),
                End::Last => {
                    let low = low_of(&session.pmem(), leaf.node());
                    drop(leaf);
                    id != self.first && self.step_left(session, id, low)?
                }
            };
            if !is_moved {
                return Ok(None);
            }
        }
    }

    /// Locks the leaf at the first end.
    fn lock_first<'c, P: Pmem>(
        &self,
        session: &'c Session<P>,
    ) -> Result<(FrameId, FrameLock<'c>), LeafError> {
        loop {
            let id = self.ends.first();
            let leaf = self.leaf(session, id)?.lock();
            // An insertion may have moved the end meanwhile.
            if self.ends.first() == id {
                return Ok((id, leaf));
            }
        }
    }

    /// Locks the leaf at the last end.
    fn lock_last<'c, P: Pmem>(&self, session: &'c Session<P>) -> Result<(FrameId, FrameLock<'c>), LeafError> {
        loop {
            let id = self.ends.last();
            if id != FrameId::NONE {
                let leaf = self.leaf(session, id)?.lock();
                if self.ends.last() == id {
                    return Ok((id, leaf));
                }
                continue;
            }
            let followed = self.index.find_below(session, None)?;
            let Some((frame, _)) = self.move_right(session, &followed, |_| true)? else { continue };
            let mut leaf = frame.lock();
            while let Some(next) = leaf.next() {
                leaf = self.leaf(session, next)?.lock();
            }
            if let Some(id) = session.space.frame_of(leaf.node()) {
                self.ends.move_last(FrameId::NONE, id);
            }
        }
    }

    /// Moves the first end from an empty leaf to its right sibling. False if there is none, or the end is elsewhere meanwhile and there is an entry.
    fn step_right(&self, leaf: &FrameLock<'_>, id: FrameId) -> bool {
        let Some(next) = leaf.next() else { return false };
        self.ends.move_first(id, next);
        true
    }

    /// Moves the last end from an empty leaf, which is not the first one, to its left sibling. Leaves are locked from left to right: so the caller has
    /// unlocked it, and whether it is still empty and the end is checked here.
    fn step_left<P: Pmem>(
        &self,
        session: &Session<P>,
        id: FrameId,
        low: Separator,
    ) -> Result<bool, LeafError> {
        let pmem = &session.pmem();
        let low = low.to_key(pmem, self.is_word());
        let low = low.as_key();
        let left = loop {
            let followed = self.index.find_below(session, Some(&low))?;
            if let Some(found) = self.move_right(session, &followed, |high| high.is_below(pmem, &low))? {
                break found.0;
            }
        };
        let mut left = left.lock();
        while let Some(next) = left.next().filter(|next| *next != id) {
            left = self.leaf(session, next)?.lock();
        }
        let leaf = self.leaf(session, id)?.lock();
        if leaf.live.load(Ordering::Relaxed) == 0
            && let Some(left) = session.space.frame_of(left.node())
        {
            self.ends.move_last(id, left);
        }
        Ok(true)
    }

    /// The first or last entry of a locked leaf that has entries.
    fn end_of_leaf<'c, P: Pmem>(
        &self,
        session: &Session<P>,
        leaf: FrameLock<'c>,
        end: End,
    ) -> Result<EndEntry<'c>, Corruption> {
        let pmem = &session.pmem();
        if session.verifies_reads {
            // Which entry is at the end, depends on all of them.
            verify_slots(pmem, self.is_word(), &leaf, leaf.live.load(Ordering::Relaxed))?;
        }
        let mut found: Option<(usize, Entry, Vec<u8>)> = None;
        for slot in slots_of(leaf.live.load(Ordering::Relaxed)) {
            let (entry, _) = Entry::load(pmem, entry_offset(leaf.node(), slot));
            let mut key = Vec::new();
            match self.key_width {
                Some(width) => key.extend_from_slice(&entry.key.to_be_bytes()[..width]),
                None => entry.push_key(pmem, &mut key),
            }
            let is_beyond = found.as_ref().is_none_or(|(_, _, other)| (key < *other) == (end == End::First));
            if is_beyond {
                found = Some((slot, entry, key));
            }
        }
        let (slot, entry, key) = found.expect("the leaf has entries");
        Ok(EndEntry { leaf, slot, entry, key })
    }
}
