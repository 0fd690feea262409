//! Unlinking: leaves that removals have left empty leave the tree while it is in use.
//!
//! The changes that leave leaves empty list them. When there are enough, the change that finds that holds off all changes, and unlinks them, with two
//! fences for all:
//!
//! 1. The words of hint nodes that name them become 0. In each leaf to the left of some, free slots become empty that hold entries of their keys: a
//!    split has moved these entries, and their keys are to be in the range of the left leaf again.
//! 2. The left leaf is linked to the leaf beyond them: one word.
//! 3. Readers, which go on, see the new links. The space of the leaves is used again.
//!
//! After a crash before the second fence, an empty leaf is linked or not, and both are right; one that the index lacks is found through its left
//! sibling. After a kill, the new link may be visible and not durable: the fill of the left leaf's frame makes it durable before the
//! [sweep](super::sweep) lets the space be used. Nothing else names the leaf by then. A leaf is either linked or free: there is no third state.
//!
//! A reader that has come to a leaf before it was unlinked finds that the version of its frame has changed, and starts again.

use super::sweep::Sweep;
use crate::error::{LeafError, ReadError};
use crate::format::{ENTRY_BYTES, NodeHeader, checked};
use crate::node::{
    Entry, Frame, FrameId, FrameLock, Separator, Verified, empty_slot, entry_offset, is_slot_empty, slots_of,
};
use crate::session::{HeldOff, Session};
use crate::tree::{Tree, Writers};
use core::mem::offset_of;
use core::sync::atomic::Ordering;
use pm_core::{FenceError, Pmem};
use rustc_hash::FxHashSet;

/// The most listed leaves that are looked at together, and the most adjacent ones: changes wait for some microseconds by leaf.
const LEAVES_MAX: usize = 128;

/// Adjacent leaves that are unlinked.
struct Segment<'c> {
    left: FrameLock<'c>,
    left_id: FrameId,
    /// From left to right, each with its low separator.
    empty: Vec<(FrameId, FrameLock<'c>, Separator)>,
    right: Option<FrameId>,
}

/// Unlinks up to [`LEAVES_MAX`] empty leaves of a tree, and those beside them, if there are enough, or the tree is empty. The calling thread has no
/// change in progress, and no change of a group waits.
///
/// # Durability
/// Two fences, if leaves are unlinked, of which [`link`] has the second. A crash leaves all entries.
#[inline]
pub(crate) fn unlink_due<P: Pmem>(
    session: &Session<P>,
    sweep: &Sweep,
    tree: &Tree,
) -> Result<(), FenceError> {
    if is_due(session, tree) { unlink_listed(session, sweep, tree).map(drop) } else { Ok(()) }
}

/// As [`unlink_due`], after a batch, which may have left many leaves empty: until there are not enough any more. Other changes go on in between.
pub(crate) fn unlink_all_due<P: Pmem>(
    session: &Session<P>,
    sweep: &Sweep,
    tree: &Tree,
) -> Result<(), FenceError> {
    while is_due(session, tree) && unlink_listed(session, sweep, tree)? {}
    Ok(())
}

/// As [`unlink_all_due`], however few empty leaves there are, and also if they were deferred.
pub(crate) fn unlink_all<P: Pmem>(
    session: &Session<P>,
    sweep: &Sweep,
    tree: &Tree,
) -> Result<(), FenceError> {
    while !tree.emptied.is_empty() && unlink_listed(session, sweep, tree)? {}
    Ok(())
}

#[inline]
fn is_due<P: Pmem>(session: &Session<P>, tree: &Tree) -> bool {
    // If the tree is empty, leaves that stay would be split in halves by ascending keys.
    let is_due = || tree.emptied.is_due(session.empty_leaves) || tree.len.load(Ordering::Relaxed) == 0;
    tree.emptied.is_due(1) && is_due()
}

/// Looks at some of the listed leaves. Returns false if that is not possible now; otherwise fewer are listed than before.
#[cold]
fn unlink_listed<P: Pmem>(session: &Session<P>, sweep: &Sweep, tree: &Tree) -> Result<bool, FenceError> {
    if !sweep.is_done() {
        return Ok(false);
    }
    let Some(held_off) = session.hold_off_changes() else {
        tree.emptied.defer(session.empty_leaves);
        return Ok(false);
    };
    if session.check_not_poisoned().is_err() {
        return Ok(false);
    }
    unlink_some(session, tree, &held_off)?;
    Ok(true)
}

fn unlink_some<P: Pmem>(session: &Session<P>, tree: &Tree, _: &HeldOff<'_>) -> Result<(), FenceError> {
    let candidates = tree.emptied.take(&session.frames, LEAVES_MAX);
    if candidates.is_empty() {
        return Ok(());
    }
    // `met`: the leaves that are in a run or skipped.
    let (mut met, mut skipped, mut runs) = (FxHashSet::default(), Vec::new(), Vec::new());
    for candidate in candidates {
        // It is in the run around one of its siblings.
        if met.contains(&candidate) {
            continue;
        }
        // Enough for one time.
        if met.len() >= LEAVES_MAX {
            skipped.push(candidate);
            continue;
        }
        match Run::around(session, tree, candidate, &met) {
            Ok(Around::Run(run)) => {
                met.extend(run.empty.iter().map(|(id, _)| *id));
                runs.push(run);
            }
            Ok(Around::Met) => {
                met.insert(candidate);
                skipped.push(candidate);
            }
            // What is corrupted stays linked.
            Ok(Around::Nothing) | Err(ReadError::Corrupted(_)) => (),
            Err(ReadError::Fence(error)) => return Err(error),
            Err(_) => (),
        }
    }
    // The first candidate is never one of them, so that fewer leaves are listed than before.
    skipped.into_iter().for_each(|id| tree.emptied.add(id, session.frames.get(id)));
    // After the searches, which may build inner nodes.
    let mut writers = tree.index.lock_to_remove();
    let (mut segments, mut hints) = (Vec::new(), Vec::new());
    for run in runs {
        run.split_up(session, tree, &mut writers, &mut segments, &mut hints);
    }
    if segments.is_empty() {
        // Words of moved children may have become zero, which no other thread makes durable any more.
        return session.fence();
    }
    let linked = link(session, &segments);
    if linked.is_ok() {
        segments.iter().for_each(|segment| segment.publish(tree));
    }
    // From left to right: a reader that comes to a leaf whose change has ended finds that its left one has changed. Only the end of the change, and not the use of its
    // frame by another leaf, has a new version.
    for Segment { left, empty, .. } in &segments {
        left.end();
        empty.iter().for_each(|(_, leaf, _)| leaf.end());
    }
    linked?;
    for (_, leaf, low) in segments.iter().flat_map(|segment| &segment.empty) {
        session.settle_owed(leaf);
        if low.record != 0 {
            session.space.release_separator(low.record);
        }
        session.space.release_node(leaf.node());
    }
    hints.into_iter().for_each(|hint| session.space.release_node(hint));
    Ok(())
}

fn is_empty(frame: &Frame) -> bool {
    frame.live.load(Ordering::Relaxed) | frame.held.load(Ordering::Relaxed) == 0
}

/// What there is around a listed leaf.
enum Around {
    Run(Run),
    /// One of its siblings is in another run, or skipped because of that: its turn comes when the leaves of that run have left the tree.
    Met,
    /// The leaf is not empty, or is the first one.
    Nothing,
}

/// Adjacent empty leaves.
struct Run {
    left: FrameId,
    /// From left to right, each with its low separator.
    empty: Vec<(FrameId, Separator)>,
    right: Option<FrameId>,
}

impl Run {
    /// The empty leaves around this one, besides the first leaf of the tree.
    fn around<P: Pmem>(
        session: &Session<P>,
        tree: &Tree,
        leaf: FrameId,
        met: &FxHashSet<FrameId>,
    ) -> Result<Around, ReadError> {
        let low = |id| {
            let node = session.frames.get(id).node();
            Ok::<_, LeafError>(Verified::load(&session.pmem(), node, tree.id)?.low())
        };
        if leaf == tree.first || !is_empty(tree.leaf(session, leaf)?) {
            return Ok(Around::Nothing);
        }
        let mut empty = vec![(leaf, low(leaf)?)];
        let left = loop {
            let (first, separator) = empty.last().expect("the leaf");
            let Some(left) = left_of(session, tree, *first, *separator)? else { return Ok(Around::Nothing) };
            if met.contains(&left) {
                return Ok(Around::Met);
            }
            if left == tree.first || !is_empty(tree.leaf(session, left)?) || empty.len() == LEAVES_MAX {
                break left;
            }
            empty.push((left, low(left)?));
        };
        empty.reverse();
        let mut right = session.frames.get(leaf).next();
        while let Some(next) = right {
            let frame = tree.leaf(session, next)?;
            if !is_empty(frame) {
                break;
            }
            if met.contains(&next) {
                return Ok(Around::Met);
            }
            if empty.len() >= LEAVES_MAX {
                break;
            }
            empty.push((next, low(next)?));
            right = frame.next();
        }
        Ok(Around::Run(Self { left, empty, right }))
    }

    /// Removes the leaves from the index, and adds those that can be removed to the segments. The first leaf stays if the one to its left is more than
    /// half full, so that the next insertions there do not split it.
    fn split_up<'c, P: Pmem>(
        mut self,
        session: &'c Session<P>,
        tree: &Tree,
        writers: &mut Writers<'_>,
        segments: &mut Vec<Segment<'c>>,
        hints: &mut Vec<u64>,
    ) {
        let left = session.frames.get(self.left);
        if left.taken().count_ones() as usize > session.slots / 2 {
            self.left = self.empty.remove(0).0;
        }
        let mut right = self.right;
        let mut removed: Vec<(FrameId, Separator)> = Vec::new();
        let mut add = |left: FrameId, removed: &mut Vec<(FrameId, Separator)>, right| {
            if removed.is_empty() {
                return;
            }
            let lock = |id: FrameId| {
                let leaf = session.frames.get(id).lock();
                leaf.begin();
                leaf
            };
            let left_lock = lock(left);
            let empty = removed.drain(..).rev().map(|(id, low)| (id, lock(id), low)).collect();
            segments.push(Segment { left: left_lock, left_id: left, empty, right });
        };
        // From right to left: the first child of an inner node can be removed as its last one.
        for (id, low) in self.empty.into_iter().rev() {
            let key = low.to_key(&session.pmem(), tree.is_word());
            match tree.index.remove(session, writers, &key.as_key(), id) {
                Some(released) => {
                    hints.extend(released);
                    removed.push((id, low));
                }
                None => {
                    add(id, &mut removed, right);
                    right = Some(id);
                }
            }
        }
        add(self.left, &mut removed, right);
    }
}

/// The left sibling of a leaf with this low separator.
fn left_of<P: Pmem>(
    session: &Session<P>,
    tree: &Tree,
    leaf: FrameId,
    low: Separator,
) -> Result<Option<FrameId>, LeafError> {
    let key = low.to_key(&session.pmem(), tree.is_word());
    let (mut id, mut frame, _) = tree.locate_below(session, Some(&key.as_key()))?;
    loop {
        match frame.next() {
            Some(next) if next == leaf => return Ok(Some(id)),
            Some(next) => (id, frame) = (next, tree.leaf(session, next)?),
            None => return Ok(None),
        }
    }
}

/// The first two steps.
fn link<P: Pmem>(session: &Session<P>, segments: &[Segment<'_>]) -> Result<(), FenceError> {
    let pmem = &session.pmem();
    for Segment { left, empty, .. } in segments {
        let (.., low) = empty.first().expect("a segment has a leaf");
        for slot in slots_of(session.all_slots() & !left.taken()) {
            let place = entry_offset(left.node(), slot);
            if !is_slot_empty(pmem, place, left.seed()) && Entry::load(pmem, place).0.key >= low.head {
                empty_slot(pmem, place, left.seed());
                pmem.flush(place, ENTRY_BYTES);
            }
        }
    }
    session.fence()?;
    for Segment { left, right, .. } in segments {
        let place = left.node() + offset_of!(NodeHeader, next) as u64;
        let next = right.map_or(0, |right| session.space.node_offset(right));
        pmem.store_u64(place, checked(next, place));
        pmem.flush(place, 8);
    }
    // DURABILITY POINT
    session.fence()
}

impl Segment<'_> {
    /// Makes the frames say what the leaves do.
    fn publish(&self, tree: &Tree) {
        let (_, last, _) = self.empty.last().expect("a segment has a leaf");
        self.left.set_next(self.right.unwrap_or(FrameId::NONE), last.high());
        let unlinked: Vec<FrameId> = self.empty.iter().map(|(id, ..)| *id).collect();
        tree.ends.leave(&unlinked, self.left_id, self.right);
        for (_, leaf, _) in &self.empty {
            // A close stores nothing to a node that is not a leaf any more.
            leaf.used_lines.store(0, Ordering::Relaxed);
            leaf.stored_lines.store(0, Ordering::Relaxed);
            leaf.listed_by.store(0, Ordering::Relaxed);
        }
    }
}
