//! The sweep: after an open it visits every leaf once, counts its entries, and marks the space that it uses.
//!
//! An open does not wait for it. Until it has ended, changes take space from new extents, and entries of leaves that it has not visited are not
//! counted. It goes on in steps: an open takes one, and changes take others after an extent was added. What needs the result completes it: the length
//! of a table, statistics, and a change that finds the pool full. Only then does the pool grow, if it may.
//!
//! If a leaf cannot be read, or has a corrupted entry, the sweep never ends: the space that existed at the open is not reused, so that a repair can
//! find the entries in it, and the next open verifies all leaves again.

use crate::error::{LeafError, ReadError, WriteError};
use crate::node::{Entry, FrameId, RecordRef, Verified, entry_offset, held_entry, slots_of};
use crate::session::Session;
use crate::tree::Tree;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use pm_core::{FenceError, Pmem};
use std::sync::{Arc, Mutex, PoisonError};

/// The leaves that become due for each extent that is added. An extent has at most 512 nodes, so that the sweep ends before as many extents are
/// added as there were extents of nodes.
const LEAVES_PER_EXTENT: u64 = 512;

/// The due leaves that one change visits. After a kill, a visit of a leaf whose pages are not mapped takes up to 250 microseconds.
const LEAVES_PER_CHANGE: u64 = 1;

/// The sweep of a store.
#[derive(Debug)]
pub(crate) struct Sweep {
    is_done: AtomicBool,
    /// The leaves that are due to be visited by changes.
    due: AtomicU64,
    rest: Mutex<Rest>,
}

/// What is left to visit.
#[derive(Debug)]
struct Rest {
    trees: Vec<Arc<Tree>>,
    /// The next leaf of the last tree; `None` at its start.
    leaf: Option<FrameId>,
    /// Whether a leaf could not be read, or had a corrupted entry.
    has_failed: bool,
}

impl Rest {
    fn next_tree(&mut self) {
        self.trees.pop();
        self.leaf = None;
    }
}

impl Sweep {
    /// A sweep of these trees. `is_complete`: there are no others.
    pub(crate) const fn new(trees: Vec<Arc<Tree>>, is_complete: bool) -> Self {
        let rest = Rest { trees, leaf: None, has_failed: !is_complete };
        Self { is_done: AtomicBool::new(false), due: AtomicU64::new(0), rest: Mutex::new(rest) }
    }

    /// Whether every leaf was visited.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Acquire)
    }

    /// What a change that is about to be made can still wait for, if it fails for want of space.
    #[inline]
    pub(crate) fn room(&self) -> RoomMaker<'_> {
        RoomMaker { sweep: self, may_release: true, may_sweep: !self.is_done() }
    }

    /// Takes the steps that are due because extents were added, unless another thread does.
    #[inline]
    pub(crate) fn take_due_steps<P: Pmem>(&self, session: &Session<P>) -> Result<(), FenceError> {
        if self.is_done() {
            return Ok(());
        }
        let added = session.space.take_added();
        let due = self.due.load(Ordering::Relaxed) + added * LEAVES_PER_EXTENT;
        if due == 0 {
            return Ok(());
        }
        // Inexact if several threads make changes: then more leaves or fewer are visited, and the next extent makes others due.
        self.due.store(due.saturating_sub(LEAVES_PER_CHANGE), Ordering::Relaxed);
        self.visit(session, LEAVES_PER_CHANGE)
    }

    /// The length of a tree, after completing the sweep.
    pub(crate) fn len_of<P: Pmem>(&self, session: &Session<P>, tree: &Tree) -> Result<u64, ReadError> {
        self.complete(session)?;
        match tree.unreadable.get() {
            None => Ok(tree.len.load(Ordering::Relaxed)),
            Some(corruption) => Err(corruption.clone().into()),
        }
    }

    /// Visits all leaves that are left. Returns whether the sweep has ended: then there may be more space than before.
    pub(crate) fn complete<P: Pmem>(&self, session: &Session<P>) -> Result<bool, FenceError> {
        if self.is_done() {
            return Ok(true);
        }
        let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        self.visit_some(session, &mut rest, u64::MAX)?;
        Ok(self.is_done())
    }

    /// Visits up to `count` leaves, unless another thread is sweeping.
    pub(crate) fn visit<P: Pmem>(&self, session: &Session<P>, count: u64) -> Result<(), FenceError> {
        match self.rest.try_lock() {
            Ok(mut rest) => self.visit_some(session, &mut rest, count),
            Err(_) => Ok(()),
        }
    }

    fn visit_some<P: Pmem>(
        &self,
        session: &Session<P>,
        rest: &mut Rest,
        count: u64,
    ) -> Result<(), FenceError> {
        let mut left = count;
        while left > 0 && !self.is_done() {
            let Some(tree) = rest.trees.last() else {
                session.space.allow_growth();
                if !rest.has_failed {
                    session.epochs.end_verification(&session.pmem());
                    session.space.unseal();
                    self.is_done.store(true, Ordering::Release);
                }
                return Ok(());
            };
            if rest.leaf.is_none() && tree.index.anchor() != 0 {
                session.space.mark_node(tree.index.anchor());
            }
            match visit_leaf(session, tree, rest.leaf.unwrap_or(tree.first)) {
                Ok(Visited { next, has_corrupted }) => {
                    rest.has_failed |= has_corrupted;
                    match next {
                        Some(next) => rest.leaf = Some(next),
                        None => rest.next_tree(),
                    }
                }
                Err(LeafError::Corrupted(corruption)) => {
                    tree.unreadable.get_or_init(|| corruption);
                    rest.has_failed = true;
                    rest.next_tree();
                }
                Err(LeafError::Fence(error)) => return Err(error),
            }
            left -= 1;
        }
        Ok(())
    }
}

/// What a change can still wait for, if it fails for want of space or of a verified batch slot. The caller makes the change again as long as this
/// [makes](Self::make) room.
#[derive(Debug)]
pub(crate) struct RoomMaker<'s> {
    sweep: &'s Sweep,
    may_release: bool,
    may_sweep: bool,
}

impl RoomMaker<'_> {
    /// After a change that has failed with this error: releases records that wait for readers, and then completes the sweep, each at most once.
    /// Returns whether the change may succeed now.
    #[cold]
    pub(crate) fn make<P: Pmem>(
        &mut self,
        session: &Session<P>,
        error: &WriteError,
    ) -> Result<bool, FenceError> {
        let is_full = matches!(error, WriteError::Full);
        let may_release = core::mem::replace(&mut self.may_release, false);
        if is_full && may_release && session.release_waiting() {
            return Ok(true);
        }
        let is_waiting = is_full || matches!(error, WriteError::Unverified { .. });
        if !is_waiting || !core::mem::replace(&mut self.may_sweep, false) {
            return Ok(false);
        }
        // The heap may grow now, also if the sweep was stopped.
        let may_grow = session.heap.max_bytes() > session.pmem().len_bytes();
        Ok(self.sweep.complete(session)? || is_full && may_grow)
    }
}

/// What a visit of a leaf has found.
struct Visited {
    next: Option<FrameId>,
    /// Whether an entry is corrupted: then a record that is in use may not be marked.
    has_corrupted: bool,
}

/// Counts the entries of a leaf, marks the space that it uses, and adds it to the index if it is missing there.
fn visit_leaf<P: Pmem>(session: &Session<P>, tree: &Tree, id: FrameId) -> Result<Visited, LeafError> {
    let pmem = &session.pmem();
    let leaf = tree.leaf(session, id)?.lock();
    let next = leaf.next();
    if leaf.is_swept.load(Ordering::Relaxed) {
        return Ok(Visited { next, has_corrupted: false });
    }
    let low = Verified::load(pmem, leaf.node(), tree.id)?.low();
    session.space.mark_node(leaf.node());
    if low.record != 0 {
        session.space.mark_separator(low.record);
    }
    for RecordRef { offset, len } in session.owed_records(&leaf) {
        session.space.mark_record(offset, len);
    }
    let (live, held) = (leaf.live.load(Ordering::Relaxed), leaf.held.load(Ordering::Relaxed));
    let mut shared = 0;
    for slot in slots_of(live | held) {
        let (entry, seal) = Entry::load(pmem, entry_offset(leaf.node(), slot));
        // Which record a corrupted entry has, is unknown.
        if entry.seal(leaf.seed()) != seal {
            continue;
        }
        // A record that is not in an extent, or belongs to another entry too, is corrupted.
        if let Some(record) = entry.record()
            && !session.space.mark_record(record.offset, record.len)
        {
            shared |= 1 << slot & live;
        }
    }
    if shared != 0 {
        leaf.begin();
        leaf.held.store(held | shared, Ordering::Relaxed);
        leaf.live.store(live & !shared, Ordering::Release);
        leaf.end();
    }
    let corrupted = held | shared;
    if corrupted != 0 {
        // The entries cannot be counted.
        tree.unreadable.get_or_init(|| held_entry(leaf.node(), corrupted));
    }
    tree.len.fetch_add((live & !shared).count_ones().into(), Ordering::Relaxed);
    leaf.is_swept.store(true, Ordering::Relaxed);
    if live | held == 0 {
        tree.note_empty(session, &leaf);
    }
    drop(leaf);
    // This also builds the inner nodes that lead to the leaf, which marks their hint nodes.
    tree.index.post_missing(session, low, id)?;
    Ok(Visited { next, has_corrupted: corrupted != 0 })
}
