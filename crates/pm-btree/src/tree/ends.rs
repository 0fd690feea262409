//! The ends of a tree: leaves beyond which all leaves are empty.
//!
//! Leaves that become empty stay until there are enough to be unlinked. So that popping all entries of a table does not walk over
//! all leaves that it has emptied before, a tree knows a leaf at each end beyond which all leaves are empty. An insertion into an empty leaf may lie
//! beyond, and moves the end there, under the leaf's lock and before readers see the entry. A thread moves an end inwards only while it has the lock
//! of the leaf at the end, which is empty.

use crate::node::{FrameId, FrameLock, SearchKey, low_of};
use crate::session::Session;
use core::sync::atomic::{AtomicU32, Ordering};
use pm_core::Pmem;

/// The leaves beyond which all leaves of a tree are empty.
#[derive(Debug)]
pub(crate) struct Ends {
    first: AtomicU32,
    /// [`FrameId::NONE`] until the last leaf was looked for.
    last: AtomicU32,
}

impl Ends {
    pub(crate) const fn new(first: FrameId) -> Self {
        Self { first: AtomicU32::new(first.0), last: AtomicU32::new(FrameId::NONE.0) }
    }

    /// Forgets the ends: the leaves between them may be unlinked. No other thread uses the tree.
    pub(crate) fn reset(&self, first: FrameId) {
        self.first.store(first.0, Ordering::Relaxed);
        self.last.store(FrameId::NONE.0, Ordering::Relaxed);
    }

    pub(crate) fn first(&self) -> FrameId {
        FrameId(self.first.load(Ordering::Acquire))
    }

    /// [`FrameId::NONE`] if it is unknown.
    pub(crate) fn last(&self) -> FrameId {
        FrameId(self.last.load(Ordering::Acquire))
    }

    /// Moves the first end, if it is at `from`, to its right sibling. The caller has the lock of `from`, which is empty.
    pub(crate) fn move_first(&self, from: FrameId, to: FrameId) {
        // If this fails, an insertion has moved the end.
        let _moved = self.first.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Moves the last end, if it is at `from`. The caller has the locks of both leaves, and those beyond `to` are empty.
    pub(crate) fn move_last(&self, from: FrameId, to: FrameId) {
        // If this fails, the end is elsewhere.
        let _moved = self.last.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Moves the ends off leaves that are unlinked, which lie between `left` and `right`. No change is in progress.
    pub(crate) fn leave(&self, unlinked: &[FrameId], left: FrameId, right: Option<FrameId>) {
        if unlinked.contains(&self.first()) {
            self.first.store(right.unwrap_or(left).0, Ordering::Release);
        }
        if unlinked.contains(&self.last()) {
            self.last.store(left.0, Ordering::Release);
        }
    }

    /// Moves the ends so that an empty leaf, into which `key` is inserted, lies between them. The caller has the lock of the leaf, and publishes the
    /// entry after this.
    pub(crate) fn widen<P: Pmem>(&self, session: &Session<P>, leaf: &FrameLock<'_>, key: &SearchKey<'_>) {
        let pmem = &session.pmem();
        let Some(id) = session.space.frame_of(leaf.node()) else { return };
        let move_to = |end: &AtomicU32, seen: FrameId| {
            end.compare_exchange(seen.0, id.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        loop {
            let first = self.first();
            let is_inside = || low_of(pmem, session.space.node_offset(first)).is_at_or_below(pmem, key);
            if first == id || is_inside() || move_to(&self.first, first) {
                break;
            }
        }
        loop {
            let last = self.last();
            let is_inside = || {
                let frame = session.frames.get(last);
                loop {
                    let snapshot = frame.snapshot();
                    let is_inside = frame.right().is_none_or(|(_, high)| !high.is_at_or_below(pmem, key));
                    if frame.is_current(snapshot) {
                        return is_inside;
                    }
                }
            };
            if last == FrameId::NONE || last == id || is_inside() || move_to(&self.last, last) {
                break;
            }
        }
    }
}
