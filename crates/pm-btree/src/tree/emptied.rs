//! The empty leaves of a tree, until they are unlinked.

use crate::node::{Frame, FrameId, Frames};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Leaves that have become empty. Some may have entries again. One that has left the tree stays here until it is [taken](Self::take), and may be a leaf of
/// another tree by then.
#[derive(Debug)]
pub(crate) struct Emptied {
    /// The number of the table, which is not the catalogue.
    table: u16,
    len: AtomicUsize,
    /// The number of leaves up to which none is unlinked, because that was not possible.
    deferred: AtomicUsize,
    leaves: Mutex<Vec<FrameId>>,
}

impl Emptied {
    pub(crate) const fn new(table: u16) -> Self {
        let (len, deferred) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { table, len, deferred, leaves: Mutex::new(Vec::new()) }
    }

    /// Whether there are so many leaves that they are to be unlinked.
    #[inline]
    pub(crate) fn is_due(&self, count: usize) -> bool {
        let len = self.len.load(Ordering::Relaxed);
        len >= count && len > self.deferred.load(Ordering::Relaxed)
    }

    /// Lets the leaves wait until there are `count` more.
    #[cold]
    pub(crate) fn defer(&self, count: usize) {
        let len = self.len.load(Ordering::Relaxed);
        self.deferred.store(len.saturating_add(count), Ordering::Relaxed);
    }

    /// Adds a leaf, unless it is in the list. The caller has its lock, or holds off all changes.
    #[cold]
    pub(crate) fn add(&self, id: FrameId, frame: &Frame) {
        if frame.listed_by.swap(self.table, Ordering::Relaxed) != self.table {
            let mut leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
            leaves.push(id);
            self.len.store(leaves.len(), Ordering::Relaxed);
        }
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Relaxed) == 0
    }

    /// Takes up to `count` leaves out of the list, and passes over those that have left the tree together with others.
    pub(crate) fn take(&self, frames: &Frames, count: usize) -> Vec<FrameId> {
        let mut leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = Vec::new();
        while taken.len() < count
            && let Some(id) = leaves.pop()
        {
            let listed_by = &frames.get(id).listed_by;
            if listed_by.compare_exchange(self.table, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                taken.push(id);
            }
        }
        self.len.store(leaves.len(), Ordering::Relaxed);
        self.deferred.store(0, Ordering::Relaxed);
        taken.reverse();
        taken
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A leaf that has left its tree together with others, and serves another one, is taken out of the list of that one only.
    #[test]
    fn leaf_of_another_tree_is_not_taken() {
        let frames = Frames::new(1, 2);
        let (stays, moves) = (FrameId::new(0, 0), FrameId::new(0, 1));
        let (old, new) = (Emptied::new(1), Emptied::new(2));
        [stays, moves].into_iter().for_each(|id| old.add(id, frames.get(id)));
        frames.get(moves).listed_by.store(0, Ordering::Relaxed);
        new.add(moves, frames.get(moves));
        assert_eq!(old.take(&frames, 10), [stays]);
        assert_eq!(new.take(&frames, 10), [moves]);
        // In the list of the same tree it may be twice.
        new.add(moves, frames.get(moves));
        frames.get(moves).listed_by.store(0, Ordering::Relaxed);
        new.add(moves, frames.get(moves));
        assert_eq!(new.take(&frames, 10), [moves]);
        assert!(new.is_empty());
    }
}
