//! What a store shares with the handles that were made from it.

use super::catalogue::Catalogue;
use super::group::{Group, Lost, Settled};
use crate::error::{LostChange, OpenError, ReadError, WriteError};
use crate::maintenance::{Sweep, unlink_all, unlink_due};
use crate::node::SearchKey;
use crate::ops::{Expected, Outcome, put, remove};
use crate::session::{Session, StoreOptions};
use crate::tree::Tree;
use core::fmt;
use pm_alloc::{Heap, HeapError};
use pm_core::{FenceError, Pmem, PoolError, ProcessId};
use std::sync::{Arc, PoisonError, RwLock};

/// An open store. The [`Store`](crate::Store) and each table, iterator and batch have a reference to it; the last of them that is dropped closes it.
pub(crate) struct Shared<P: Pmem> {
    /// The process that opened the store. A child of fork(2) does not own it.
    process: ProcessId,
    pub(super) session: Session<P>,
    pub(super) sweep: Sweep,
    /// Changes that wait to be committed together.
    pub(super) group: Group,
    pub(super) catalogue: RwLock<Catalogue>,
    /// The most keys of a range that are removed in one batch.
    pub(super) removal_batch_keys: usize,
    /// Whether all changes are refused.
    is_read_only: bool,
    /// Whether the session has ended, or cannot be.
    is_closed: bool,
}

impl<P: Pmem> fmt::Debug for Shared<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("process", &self.process).finish_non_exhaustive()
    }
}

impl<P: Pmem> Shared<P> {
    /// Starts a session on the store in a heap.
    pub(super) fn open(heap: Heap<P>, options: &StoreOptions, is_read_only: bool) -> Result<Self, OpenError> {
        let session = Session::open(heap, options)?;
        let catalogue = Catalogue::open(&session)?;
        let sweep = catalogue.sweep(session.space.lost_row().is_none());
        sweep.visit(&session, options.leaves_swept_at_open())?;
        Ok(Self {
            process: ProcessId::current(),
            session,
            sweep,
            group: Group::new(options.group_changes()),
            catalogue: RwLock::new(catalogue),
            removal_batch_keys: options.removal_batch_keys(),
            is_read_only,
            is_closed: false,
        })
    }

    /// Whether the store belongs to this process, and not to one that this process was forked from.
    pub(super) fn is_of_this_process(&self) -> bool {
        self.process.is_current()
    }

    /// Checks that the store was opened for changes, by this process: the memory of its pool may be missing in a child of fork(2).
    #[inline]
    pub(super) fn check_writable(&self) -> Result<(), WriteError> {
        if self.is_read_only {
            return Err(WriteError::ReadOnly);
        }
        self.check_own()
    }

    #[inline]
    pub(super) fn check_own(&self) -> Result<(), WriteError> {
        if self.is_of_this_process() { Ok(()) } else { Err(FenceError::Inherited.into()) }
    }

    /// Begins a change that does not wait: makes all waiting changes durable, and keeps others out while the result lives.
    #[inline]
    pub(super) fn begin(&self) -> Result<Option<Settled<'_>>, WriteError> {
        self.check_writable()?;
        self.settle()
    }

    /// Makes all waiting changes durable, and keeps others out while the result lives.
    #[inline]
    pub(super) fn settle(&self) -> Result<Option<Settled<'_>>, WriteError> {
        self.check_own()?;
        self.group.settle(&self.session, &self.sweep)
    }

    /// Makes all waiting changes durable, and reports those that are lost since the last call.
    pub(super) fn sync(&self) -> Result<(), WriteError> {
        self.settle()?;
        self.report_lost()
    }

    /// The error of the changes that are lost since the last call, if there are any.
    pub(super) fn report_lost(&self) -> Result<(), WriteError> {
        if !self.group.is_enabled() {
            return Ok(());
        }
        let lost = self.group.take_lost();
        if lost.is_empty() {
            return Ok(());
        }
        let catalogue = self.catalogue.read().unwrap_or_else(PoisonError::into_inner);
        let describe = |Lost { table, key, reason }| LostChange {
            table: catalogue.name_of(table).unwrap_or_default().to_owned(),
            key,
            reason: WriteError::to_string(&reason),
        };
        Err(WriteError::Lost(lost.into_iter().map(describe).collect()))
    }

    /// Makes the changes of the group durable, so that the leaves have them: for reads that do not look at the group.
    #[inline]
    pub(super) fn settle_reads(&self) -> Result<(), ReadError> {
        match self.group.len() {
            0 => Ok(()),
            _ => self.settle().map(drop).map_err(ReadError::of_group),
        }
    }

    /// Gives a key a new value, or removes it, if its value is the expected one. If there is no room, makes some, and tries again.
    ///
    /// Inlined, because each caller knows whether there is a new value: an outcome is not moved, and a branch is left out.
    #[inline(always)]
    pub(super) fn change(
        &self,
        tree: &Tree,
        key: &SearchKey<'_>,
        new: Option<&[u8]>,
        expected: Expected<'_>,
    ) -> Result<Outcome, WriteError> {
        let _settled = self.begin()?;
        let mut room = self.sweep.room();
        loop {
            let changed = match new {
                Some(new) => put(&self.session, tree, key, new, expected),
                None => remove(&self.session, tree, key, expected),
            };
            if let Err(error) = &changed
                && room.make(&self.session, error)?
            {
                continue;
            }
            self.sweep.take_due_steps(&self.session)?;
            unlink_due(&self.session, &self.sweep, tree)?;
            return changed;
        }
    }

    /// As [`change`](Self::change), in a group if there are groups.
    pub(super) fn change_grouped(
        &self,
        tree: &Arc<Tree>,
        key: &SearchKey<'_>,
        value: Option<&[u8]>,
    ) -> Result<(), WriteError> {
        if self.group.is_enabled() {
            self.check_writable()?;
            if self.group.push(&self.session, &self.sweep, tree, key, value)? {
                return Ok(());
            }
        }
        self.change(tree, key, value, Expected::Any).map(drop)
    }

    /// Ends the session, unless it has ended, or nothing of it is in the file.
    pub(super) fn end(&mut self) -> Result<(), OpenError> {
        // The store of a child of fork(2) belongs to the parent, whose session goes on.
        if !self.is_of_this_process() {
            return Err(HeapError::from(PoolError::InUse).into());
        }
        if core::mem::replace(&mut self.is_closed, true) || self.is_read_only {
            return Ok(());
        }
        // After a failed fence or a panic the state is that of a killed process.
        if self.session.check_not_poisoned().is_err() {
            return Err(FenceError::Poisoned.into());
        }
        if std::thread::panicking() {
            return Ok(());
        }
        let synced = self.sync();
        if let Err(WriteError::Fence(error)) = synced {
            return Err(error.into());
        }
        // So that the next session finds few of them.
        let catalogue = self.catalogue.get_mut().unwrap_or_else(PoisonError::into_inner);
        for tree in catalogue.tables.values().filter_map(|opened| opened.tree.as_ref().ok()) {
            unlink_all(&self.session, &self.sweep, tree)?;
        }
        self.session.flush_leaves();
        // No search looks at a node any more.
        let returned = self.session.return_unused_nodes();
        if let Err(WriteError::Fence(error)) = returned {
            return Err(error.into());
        }
        self.session.end_session(!self.session.epochs.is_unclean || self.sweep.is_done())?;
        Ok(synced.and(returned)?)
    }
}

impl<P: Pmem> Drop for Shared<P> {
    /// Ends the session. The heap closes after it.
    fn drop(&mut self) {
        // After an error the next open verifies the store. `Store::close` reports such errors.
        drop(self.end());
    }
}
