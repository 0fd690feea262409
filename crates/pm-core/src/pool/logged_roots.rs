//! Changes of a root directory past the log that changes it otherwise.

use super::{Pool, RootError};
use crate::{Pmem, Region};

/// The root directory of a pool [with logged roots](super::PoolOptions::with_logged_roots), for the owner of the log: changes that are not
/// transactions. They are for times when the log holds nothing that would be replayed over them: while the pool is made, after recovery,
/// after a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct LoggedRoots<'p, P: Pmem = Region> {
    pool: &'p Pool<P>,
}

impl<P: Pmem> Pool<P> {
    /// The root directory, for the owner of the log that changes it.
    #[must_use]
    pub const fn logged_roots(&self) -> LoggedRoots<'_, P> {
        LoggedRoots { pool: self }
    }
}

impl<P: Pmem> LoggedRoots<'_, P> {
    /// Clears what was left of replaced roots, so that each name has one slot. To be called once, after the log was replayed.
    ///
    /// # Errors
    /// When the pool is read-only, or a fence fails.
    ///
    /// # Durability
    /// The caller has made the directory durable. A crash leaves both slots or the younger one. Costs one fence for each slot to clear.
    pub fn settle(&self) -> Result<(), RootError> {
        Ok(self.pool.settle_roots(self.pool.begin_change()?)?)
    }

    /// Sets the root that names the owner of the log, which is not found: `target` is offset, length and layout of its value. The root
    /// takes a corrupted slot, which is what is left of it if it was there, or else a free one, which may be the last.
    ///
    /// # Errors
    /// When the name cannot be one, no slot is corrupted or free, the pool is read-only, or a fence fails.
    ///
    /// # Durability
    /// When it returns, the root is durable, and what this thread had in flight before; a crash before leaves it set, or its slot corrupted.
    /// Costs one fence.
    pub fn set_lost(&self, name: &str, target: (u64, u64, u64)) -> Result<(), RootError> {
        self.pool.put_lost_root(name, target)
    }

    /// As [`Pool::discard_corrupted_roots`].
    ///
    /// # Errors
    /// When the pool is read-only, or a fence fails.
    ///
    /// # Durability
    /// As [`Pool::discard_corrupted_roots`].
    pub fn discard_corrupted(&self) -> Result<usize, RootError> {
        self.pool.free_corrupted()
    }
}
