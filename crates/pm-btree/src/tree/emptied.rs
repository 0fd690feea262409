//! The empty leaves of a tree, until they are unlinked.

use crate::node::{Frame, FrameId};
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

    /// Adds a leaf, whose lock the caller has, unless it is in the list.
    #[cold]
    pub(crate) fn add(&self, id: FrameId, frame: &Frame) {
        if !frame.is_listed.swap(true, Ordering::Relaxed) {
            let mut leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
            leaves.push(id);
            self.len.store(leaves.len(), Ordering::Relaxed);
        }
    }

    /// Takes up to `count` leaves out of the list. The caller notes in their frames that they are not in it any more.
    pub(crate) fn take(&self, count: usize) -> Vec<FrameId> {
        let mut leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = leaves.len().saturating_sub(count);
        self.len.store(rest, Ordering::Relaxed);
        self.deferred.store(0, Ordering::Relaxed);
        leaves.split_off(rest)
    }
}
