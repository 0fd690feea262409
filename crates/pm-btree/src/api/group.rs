//! Group commit: changes that return before they are durable, and are committed as one batch.
//!
//! A group is a list in DRAM. Its changes are visible to all readers, and are durable when the group is committed: when the next change would make it
//! longer than its limit, before any change that does not wait, and by [`Store::sync`](crate::Store::sync). A group is a batch, which a crash leaves
//! whole or not at all, and groups are committed one after the other. So what survives a crash is a prefix of all changes, of all threads.
//!
//! # Locks
//! `order` is held by each change while it is added, and by the thread that commits. A change that does not wait holds it from the commit of the
//! group until it is durable itself: else it could survive a change that a reader has seen before it. `changes` is locked for reading by readers and
//! during a commit, and for writing under `order` only.

use super::op_list::OpList;
use crate::error::WriteError;
use crate::maintenance::Sweep;
use crate::node::SearchKey;
use crate::ops::record_bytes;
use crate::session::Session;
use crate::tree::Tree;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use pm_core::Pmem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

/// Keeps changes out until it is dropped.
#[derive(Debug)]
pub(crate) struct Settled<'g> {
    _order: MutexGuard<'g, Order>,
}

/// What the thread with the lock of the order knows.
#[derive(Debug, Default)]
struct Order {
    /// When the oldest change was added.
    since: Option<Instant>,
}

/// The changes that wait.
#[derive(Debug)]
pub(crate) struct Group {
    /// The most changes that wait; zero if none may.
    limit: usize,
    order: Mutex<Order>,
    changes: RwLock<OpList>,
    /// The number of `changes`.
    len: AtomicUsize,
}

impl Group {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            order: Mutex::default(),
            changes: RwLock::new(OpList::indexed()),
            len: AtomicUsize::new(0),
        }
    }

    /// Whether changes may wait.
    #[inline]
    pub(crate) const fn is_enabled(&self) -> bool {
        self.limit != 0
    }

    /// The number of changes that wait.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Adds a change. If there is no room, the group is committed first.
    pub(crate) fn push<P: Pmem>(
        &self,
        session: &Session<P>,
        sweep: &Sweep,
        tree: &Arc<Tree>,
        key: &SearchKey<'_>,
        value: Option<&[u8]>,
    ) -> Result<(), WriteError> {
        session.check_not_poisoned()?;
        let len_bytes = record_bytes(tree.is_word(), key, value.map_or(0, <[u8]>::len));
        let max_bytes = session.space.record_bytes_max();
        if len_bytes > max_bytes {
            return Err(WriteError::TooLong { len_bytes, max_bytes });
        }
        let mut order = self.order();
        if self.len() >= self.limit {
            self.commit(session, sweep, &mut order)?;
        }
        let mut changes = self.changes.write().unwrap_or_else(PoisonError::into_inner);
        if changes.len() == 0 {
            order.since = Some(Instant::now());
        }
        changes.push(tree, key, value);
        self.len.store(changes.len(), Ordering::Release);
        Ok(())
    }

    /// The value that a waiting change gives a key, `Some(None)` if it removes the key; `None` if none waits.
    #[inline]
    pub(crate) fn find(&self, tree: &Arc<Tree>, key: &SearchKey<'_>) -> Option<Option<Vec<u8>>> {
        if self.len() == 0 {
            return None;
        }
        let changes = self.changes.read().unwrap_or_else(PoisonError::into_inner);
        changes.find(tree, key).map(|value| value.map(<[u8]>::to_vec))
    }

    /// Makes all waiting changes durable, and keeps others out while the result lives.
    #[inline]
    pub(crate) fn settle<P: Pmem>(
        &self,
        session: &Session<P>,
        sweep: &Sweep,
    ) -> Result<Option<Settled<'_>>, WriteError> {
        if !self.is_enabled() {
            return Ok(None);
        }
        let mut order = self.order();
        self.commit(session, sweep, &mut order)?;
        Ok(Some(Settled { _order: order }))
    }

    /// As [`settle`](Self::settle), if the oldest change has waited for so long. Returns whether it had.
    pub(crate) fn settle_older<P: Pmem>(
        &self,
        session: &Session<P>,
        sweep: &Sweep,
        age: Duration,
    ) -> Result<bool, WriteError> {
        if self.len() == 0 {
            return Ok(false);
        }
        let mut order = self.order();
        let is_due = order.since.is_some_and(|since| since.elapsed() >= age);
        if is_due {
            self.commit(session, sweep, &mut order)?;
        }
        Ok(is_due)
    }

    /// Commits the group. If that fails, its changes go on waiting.
    fn commit<P: Pmem>(
        &self,
        session: &Session<P>,
        sweep: &Sweep,
        order: &mut Order,
    ) -> Result<(), WriteError> {
        if self.len() == 0 {
            return Ok(());
        }
        {
            // Readers find the changes here until they are in the leaves.
            let changes = self.changes.read().unwrap_or_else(PoisonError::into_inner);
            changes.commit(session, sweep)?;
        }
        self.changes.write().unwrap_or_else(PoisonError::into_inner).clear();
        self.len.store(0, Ordering::Release);
        order.since = None;
        Ok(())
    }

    /// A panic under the lock leaves the changes as they were.
    fn order(&self) -> MutexGuard<'_, Order> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
