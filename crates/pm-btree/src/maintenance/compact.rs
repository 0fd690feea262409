//! Compaction: leaves that became empty are unlinked, and their space is released.
//!
//! It has the store for itself: no other thread reads or changes it. A tree is compacted in three steps, and each is durable before the next begins:
//!
//! 1. The anchor names the first leaf, from which every leaf is reached. So no hint node is in use. In each leaf to the left of an empty one, slots
//!    that are free are emptied: they may hold entries that a split has moved, whose keys will be in the range of the leaf again.
//! 2. Each of these leaves is linked to the next leaf that has entries: one word.
//! 3. Nodes, low records and hint nodes that nothing refers to any more are released, and a new index is made.
//!
//! A crash leaves some of the empty leaves linked, and perhaps an index that later operations complete. After a kill, what a step has stored may be
//! visible and not durable. Filling a frame makes its leaf durable before the [sweep](super::sweep) lets free space be taken. The anchor
//! may name the old root again, whose space is another hint node's by then; hint nodes that name one another and linked leaves only are right,
//! whichever they are: see `tree/hints.rs`.

use crate::error::{LeafError, ReadError};
use crate::format::{ENTRY_BYTES, NodeHeader, checked};
use crate::node::{Frame, FrameId, Separator, Verified, empty_slot, entry_offset, is_slot_empty, slots_of};
use crate::session::Session;
use crate::tree::Tree;
use core::mem::offset_of;
use core::sync::atomic::Ordering;
use pm_core::{FenceError, Pmem};

/// A leaf whose right siblings are empty.
struct Run {
    leaf: FrameId,
    /// The empty leaves with their low separators, read before anything changes: a header that cannot be read is an error only until then.
    empty: Vec<(FrameId, Separator)>,
    /// The first leaf beyond them that has entries.
    next: Option<FrameId>,
}

/// Compacts all these trees, of which every leaf is filled and swept.
///
/// # Durability
/// Two fences for each tree that has empty leaves, of which [`unlink`] has the second, and one for each new hint node; nothing if no leaf is empty. A
/// crash leaves all entries.
pub(crate) fn compact<P: Pmem>(session: &mut Session<P>, trees: &[&Tree]) -> Result<(), ReadError> {
    for tree in trees {
        let runs = runs(session, tree)?;
        if !runs.is_empty() {
            unlink(session, tree, &runs)?;
            release(session, tree, &runs);
            tree.index.renew(session)?;
        }
    }
    Ok(())
}

fn is_empty(frame: &Frame) -> bool {
    frame.live.load(Ordering::Relaxed) | frame.held.load(Ordering::Relaxed) == 0
}

/// The leaves whose right siblings are empty. The first leaf stays, even if it is empty.
fn runs<P: Pmem>(session: &Session<P>, tree: &Tree) -> Result<Vec<Run>, LeafError> {
    let mut runs = Vec::new();
    let mut at = Some(tree.first);
    while let Some(leaf) = at {
        let (mut empty, mut next) = (Vec::new(), tree.leaf(session, leaf)?.next());
        while let Some(right) = next {
            let frame = tree.leaf(session, right)?;
            if !is_empty(frame) {
                break;
            }
            let low = Verified::load(&session.pmem(), frame.node(), tree.id)?.low();
            empty.push((right, low));
            next = frame.next();
        }
        if !empty.is_empty() {
            runs.push(Run { leaf, empty, next });
        }
        at = next;
    }
    Ok(runs)
}

/// The first two steps.
fn unlink<P: Pmem>(session: &Session<P>, tree: &Tree, runs: &[Run]) -> Result<(), FenceError> {
    let pmem = &session.pmem();
    tree.index.forget_hints(session);
    for run in runs {
        let leaf = session.frames.get(run.leaf);
        for slot in slots_of(session.all_slots() & !leaf.taken()) {
            let place = entry_offset(leaf.node(), slot);
            if !is_slot_empty(pmem, place, leaf.seed()) {
                empty_slot(pmem, place, leaf.seed());
                pmem.flush(place, ENTRY_BYTES);
            }
        }
    }
    session.fence()?;
    for run in runs {
        let place = session.frames.get(run.leaf).node() + offset_of!(NodeHeader, next) as u64;
        let next = run.next.map_or(0, |next| session.space.node_offset(next));
        pmem.store_u64(place, checked(next, place));
        pmem.flush(place, 8);
    }
    // DURABILITY POINT
    session.fence()
}

/// Releases what the unlinked leaves have used, and makes the frames say what the leaves do.
fn release<P: Pmem>(session: &mut Session<P>, tree: &Tree, runs: &[Run]) {
    drop(tree.emptied.take(&session.frames, usize::MAX));
    for Run { leaf, empty, next } in runs {
        let (last, _) = empty.last().expect("a run has an empty leaf");
        let high = session.frames.get(*last).high();
        let frame = session.frames.get(*leaf).lock();
        frame.begin();
        frame.set_next(next.unwrap_or(FrameId::NONE), high);
        frame.end();
        drop(frame);
        for (id, low) in empty {
            if low.record != 0 {
                session.space.release_separator(low.record);
            }
            session.settle_owed(&session.frames.get(*id).lock());
            session.space.release_node(session.space.node_offset(*id));
            session.frames.reset(*id);
        }
    }
    tree.ends.reset(tree.first);
}
