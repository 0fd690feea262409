//! Group commit: changes that return before they are durable, and are committed as one batch.
//!
//! A group is a list in DRAM. Its changes are visible to all readers, and are durable when the group is committed: when the next change would make it
//! longer than its limit, before any change that does not wait, and by [`Store::sync`](crate::Store::sync). A group is a batch, which a crash leaves
//! whole or not at all, and groups are committed one after the other. So what survives a crash is a prefix of all changes, of all threads.
//!
//! What a change needs at the commit is set aside when it joins: see `reservation.rs`. One for which there is not enough room does not wait. So a group
//! can be committed, unless corruption is found meanwhile: then the changes for which that is a reason are *lost*, and the others are made.
//!
//! # Locks
//! `order` is held by each change while it is added, and by the thread that commits. A change that does not wait holds it from the commit of the
//! group until it is durable itself: else it could survive a change that a reader has seen before it. `changes` is locked for reading by readers and
//! during a commit, and for writing under `order` only.

use super::op_list::OpList;
use super::reservation::{Reservation, Waiting};
use crate::error::WriteError;
use crate::maintenance::{Sweep, unlink_all_due};
use crate::node::{RECORD_BYTES_MAX, SearchKey};
use crate::ops::record_bytes;
use crate::session::{Session, Supply};
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
    reservation: Reservation,
    lost: Vec<Lost>,
}

/// A change that could not be made: the number of its table, and its key.
#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) table: u16,
    pub(crate) key: Vec<u8>,
    pub(crate) reason: WriteError,
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

    /// Adds a change. If the group is full, it is committed first. Returns false if the change cannot wait, because the store may have no room for it when
    /// the group is committed, or for a batch at all: then the group is committed, and the caller makes the change at once.
    pub(crate) fn push<P: Pmem>(
        &self,
        session: &Session<P>,
        sweep: &Sweep,
        tree: &Arc<Tree>,
        key: &SearchKey<'_>,
        value: Option<&[u8]>,
    ) -> Result<bool, WriteError> {
        session.check_may_fence()?;
        let len_bytes = record_bytes(tree.is_word(), key, value.map_or(0, <[u8]>::len));
        let max_bytes = RECORD_BYTES_MAX;
        if len_bytes > max_bytes {
            return Err(WriteError::TooLong { len_bytes, max_bytes });
        }
        if session.epochs.batch_slots().is_err() {
            return Ok(false);
        }
        let mut order = self.order();
        if self.len() >= self.limit {
            self.commit(session, sweep, &mut order)?;
        }
        let waiting = match self.find(tree, key) {
            Some(Some(value)) => Waiting::Value(value.len()),
            Some(None) => Waiting::Removal,
            None => Waiting::Nothing,
        };
        match order.reservation.add(session, tree, key, value, waiting) {
            Err(WriteError::Full) => {
                self.commit(session, sweep, &mut order)?;
                order.reservation.release(session);
                return Ok(false);
            }
            Err(error) => {
                if self.len() == 0 {
                    order.reservation.release(session);
                }
                return Err(error);
            }
            Ok(()) => (),
        }
        let mut changes = self.changes.write().unwrap_or_else(PoisonError::into_inner);
        if changes.len() == 0 {
            order.since = Some(Instant::now());
        }
        changes.push(tree, key, value);
        self.len.store(changes.len(), Ordering::Release);
        Ok(true)
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

    /// Takes the changes that are lost.
    pub(crate) fn take_lost(&self) -> Vec<Lost> {
        core::mem::take(&mut self.order().lost)
    }

    /// Commits the group. If a fence fails, its changes go on waiting.
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
            let Order { reservation, lost, .. } = order;
            commit_all(&changes, &reservation.supply(session), sweep, lost)?;
        }
        order.reservation.release(session);
        let mut changes = self.changes.write().unwrap_or_else(PoisonError::into_inner);
        let trees = changes.trees().to_vec();
        changes.clear();
        drop(changes);
        self.len.store(0, Ordering::Release);
        order.since = None;
        // No reservation counts on the leaves now.
        Ok(trees.iter().try_for_each(|tree| unlink_all_due(session, sweep, tree))?)
    }

    /// A panic under the lock leaves the changes as they were.
    fn order(&self) -> MutexGuard<'_, Order> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Commits operations as one batch. If some of them cannot be made, those before the first of these are a batch, this one is lost, and so on: what is
/// durable is a prefix of all operations, without those that are lost, at any time.
fn commit_all<P: Pmem>(
    changes: &OpList,
    supply: &Supply<'_, P>,
    sweep: &Sweep,
    lost: &mut Vec<Lost>,
) -> Result<(), WriteError> {
    let mut start = 0;
    while start < changes.len() {
        // The operations up to `end` cannot be made together.
        let (mut end, mut reason) = match changes.commit_some(start..changes.len(), supply, sweep) {
            Ok(_) => return Ok(()),
            Err(error) => (changes.len(), error),
        };
        loop {
            // Also by a fence of the heap, which is an error of its transaction.
            if supply.session.check_may_fence().is_err() {
                return Err(reason);
            }
            let half = start + (end - start) / 2;
            if half == start {
                break;
            }
            match changes.commit_some(start..half, supply, sweep) {
                Ok(_) => start = half,
                Err(error) => (end, reason) = (half, error),
            }
        }
        let (table, key) = changes.key(start);
        lost.push(Lost { table, key, reason });
        start += 1;
    }
    Ok(())
}
