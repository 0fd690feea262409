//! The sweep: after an open it visits every leaf once, counts its entries, and marks the space that it uses.
//!
//! An open does not wait for it. Until it has ended, changes take space from new extents, and entries of leaves that it has not visited are not
//! counted. It goes on in steps: an open takes one, and changes take others after an extent was added. What needs the result completes it: the length
//! of a table, statistics, and a change that finds the pool full.
//!
//! If a leaf cannot be read, or has a corrupted entry, the sweep never ends: the space that existed at the open is not reused, so that a repair can
//! find the entries in it, and the next open verifies all leaves again.

use crate::error::{LeafError, ReadError, WriteError};
use crate::node::{Entry, FrameId, RecordRef, Verified, entry_offset, slots_of};
use crate::session::Session;
use crate::tree::{Tree, owed_records};
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

    /// Makes a change. If that needs the end of the sweep, because the pool is full or the batch slots are in use, completes it and tries again.
    #[inline]
    pub(crate) fn change<P: Pmem, R>(
        &self,
        session: &Session<P>,
        change: impl Fn() -> Result<R, WriteError>,
    ) -> Result<R, WriteError> {
        let was_done = self.is_done();
        let mut changed = change();
        if matches!(changed, Err(WriteError::Full)) && session.release_waiting() {
            changed = change();
        }
        if matches!(changed, Err(WriteError::Full | WriteError::Unverified { .. }))
            && !was_done
            && self.complete(session)?
        {
            changed = change();
        }
        self.take_due_steps(session)?;
        changed
    }

    /// Takes the steps that are due because extents were added, unless another thread does.
    #[inline]
    fn take_due_steps<P: Pmem>(&self, session: &Session<P>) -> Result<(), FenceError> {
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
            match tree.visit(session, rest.leaf.unwrap_or(tree.first)) {
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

/// What a visit of a leaf has found.
struct Visited {
    next: Option<FrameId>,
    /// Whether an entry is corrupted: then a record that is in use may not be marked.
    has_corrupted: bool,
}

impl Tree {
    /// Counts the entries of a leaf, marks the space that it uses, and adds it to the index if it is missing there.
    fn visit<P: Pmem>(&self, session: &Session<P>, id: FrameId) -> Result<Visited, LeafError> {
        let pmem = &session.pmem();
        let leaf = self.leaf(session, id)?.lock();
        let next = leaf.next();
        if leaf.is_swept.load(Ordering::Relaxed) {
            return Ok(Visited { next, has_corrupted: false });
        }
        let low = Verified::load(pmem, leaf.node(), self.id)?.low();
        session.space.mark_node(leaf.node());
        if low.record != 0 {
            session.space.mark_record(low.record, low.len.into());
        }
        for RecordRef { offset, len } in owed_records(session, &leaf) {
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
        let has_corrupted = held | shared != 0;
        self.len.fetch_add((live & !shared).count_ones().into(), Ordering::Relaxed);
        leaf.is_swept.store(true, Ordering::Relaxed);
        drop(leaf);
        // This also builds the inner nodes that lead to the leaf, which marks their hint nodes.
        self.index.post_missing(session, low, id)?;
        Ok(Visited { next, has_corrupted })
    }
}
