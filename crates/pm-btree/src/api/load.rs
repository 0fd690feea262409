//! Loading sorted entries: they are committed in batches.

use super::op_list::{BATCH_BYTES, OpList};
use super::shared::Shared;
use crate::error::WriteError;
use crate::node::{OwnedKey, SearchKey};
use crate::tree::Tree;
use pm_core::Pmem;
use std::sync::Arc;

/// The entries of one batch of a load.
const BATCH_LEN: usize = 4096;

/// Why a load ended early, and what it has loaded.
#[derive(Debug, thiserror::Error)]
#[error("the first {durable} entries are durable: {failure}")]
#[non_exhaustive]
pub struct LoadError {
    /// The number of entries that are durable: the first ones.
    pub durable: u64,
    /// The reason.
    #[source]
    pub failure: LoadFailure,
}

/// The reason of a [`LoadError`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadFailure {
    /// The key of the next entry is not above that of the entry before it.
    #[error("the key of the next one is not above that of the last one")]
    OutOfOrder,
    /// A change failed.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// A load in progress: the entries of the next batch.
#[derive(Debug)]
pub(super) struct Load<'s, P: Pmem> {
    shared: &'s Shared<P>,
    ops: OpList,
    last: Option<OwnedKey>,
    durable: u64,
}

impl<'s, P: Pmem> Load<'s, P> {
    pub(super) const fn new(shared: &'s Shared<P>) -> Self {
        Self { shared, ops: OpList::new(), last: None, durable: 0 }
    }

    /// Checks that the key of the next entry is above that of the last one.
    pub(super) fn check_order(&self, key: &SearchKey<'_>) -> Result<(), LoadFailure> {
        let is_above = self.last.as_ref().is_none_or(|last| key.order(&last.as_key()).is_gt());
        if is_above { Ok(()) } else { Err(LoadFailure::OutOfOrder) }
    }

    /// Adds an entry, whose key was [checked](Self::check_order).
    pub(super) fn push(&mut self, tree: &Arc<Tree>, key: &SearchKey<'_>, value: &[u8]) {
        self.ops.push(tree, key, Some(value));
        self.last = Some(OwnedKey::of(key));
    }

    /// Commits the entries that were added, if they fill a batch.
    pub(super) fn commit_full(&mut self) -> Result<(), LoadError> {
        let is_full = self.ops.len() >= BATCH_LEN || self.ops.len_bytes() >= BATCH_BYTES;
        if is_full { self.commit().map(drop) } else { Ok(()) }
    }

    /// Commits the entries that were added, and returns the number of all that are durable.
    ///
    /// # Durability
    /// As that of a [batch](crate::WriteBatch::commit).
    pub(super) fn commit(&mut self) -> Result<u64, LoadError> {
        let committed = self
            .shared
            .begin()
            .and_then(|_settled| self.ops.commit(&self.shared.session, &self.shared.sweep));
        committed.map_err(|error| self.error(error.into()))?;
        self.durable += self.ops.len() as u64;
        self.ops.clear();
        Ok(self.durable)
    }

    /// The error of a load that ends for this reason.
    pub(super) const fn error(&self, failure: LoadFailure) -> LoadError {
        LoadError { durable: self.durable, failure }
    }
}
