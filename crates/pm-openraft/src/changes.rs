//! The state as a command sees it: the table, and the changes of the commands before it in the batch.

use crate::error::StorageError;
use pm_btree::Table;
use pm_core::Pmem;
use std::collections::BTreeMap;
use std::fmt;

/// A table of the state.
pub(crate) type StateTable<P> = Table<&'static [u8], &'static [u8], P>;

/// Reads the state before all changes.
pub(crate) trait Base {
    /// The value of a key.
    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError>;
}

impl<P: Pmem> Base for StateTable<P> {
    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        Ok(self.get_with(key, <[u8]>::to_vec)?)
    }
}

/// The state, a map of bytes to bytes, and changes of it that are made durable together with the ids of the entries that they belong to.
pub struct Changes<'s> {
    base: &'s dyn Base,
    changed: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl fmt::Debug for Changes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").field("len", &self.changed.len()).finish_non_exhaustive()
    }
}

impl<'s> Changes<'s> {
    pub(crate) fn new(base: &'s dyn Base) -> Self {
        Self { base, changed: BTreeMap::new() }
    }

    /// The value of a key.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        match self.changed.get(key) {
            Some(value) => Ok(value.clone()),
            None => self.base.value(key),
        }
    }

    /// Gives a key a value.
    pub fn insert(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.changed.insert(key, Some(value));
    }

    /// Removes a key, and returns whether it had a value.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn remove(&mut self, key: &[u8]) -> Result<bool, StorageError> {
        let had_value = self.get(key)?.is_some();
        if had_value {
            self.changed.insert(key.to_vec(), None);
        }
        Ok(had_value)
    }

    /// The new values of the keys that were changed, `None` for those that were removed.
    pub(crate) fn into_changed(self) -> BTreeMap<Vec<u8>, Option<Vec<u8>>> {
        self.changed
    }
}
