//! The empty leaves of a tree, until they are unlinked.

use crate::node::{Frame, FrameId, Frames};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Leaves that have become empty. Some may have entries again.
#[derive(Debug, Default)]
pub(crate) struct Emptied {
    len: AtomicUsize,
    /// The number of leaves up to which none is unlinked, because that was not possible.
    deferred: AtomicUsize,
    leaves: Mutex<Vec<FrameId>>,
}

impl Emptied {
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
        if !frame.is_listed.swap(true, Ordering::Relaxed) {
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
            if frames.get(id).is_listed.swap(false, Ordering::Relaxed) {
                taken.push(id);
            }
        }
        self.len.store(leaves.len(), Ordering::Relaxed);
        self.deferred.store(0, Ordering::Relaxed);
        taken.reverse();
        taken
    }
}
