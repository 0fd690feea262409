//! Batches: operations on several keys and tables that become durable together.

use super::op_list::OpList;
use super::shared::Shared;
use super::table::Table;
use crate::error::WriteError;
use crate::types::{Key, Value};
use core::fmt;
use pm_core::{Pmem, Region};
use std::sync::Arc;

/// Operations that become durable together, on any number of keys in any tables of one store. [`Store::batch`](crate::Store::batch) starts one.
///
/// A batch only collects operations until it is [committed](Self::commit). Of several operations on a key, the last one counts. Dropping a batch
/// changes nothing. It keeps the store open.
///
/// # Examples
/// ```
/// # use pm_btree::{Store, StoreOptions};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let store = Store::create(dir.path().join("users.pm"), 16 << 20, &StoreOptions::new())?;
/// let names = store.table::<u64, &str>("names")?;
/// let ids = store.table::<&str, u64>("ids")?;
/// let mut batch = store.batch();
/// batch.insert(&names, 1, "ada")?;
/// batch.insert(&ids, "ada", 1)?;
/// batch.commit()?; // both or, after a crash before this line, neither
/// assert_eq!(names.get(ids.get("ada")?.unwrap().value())?.unwrap().value(), "ada");
/// # Ok(())
/// # }
/// ```
#[must_use = "a batch changes nothing until it is committed"]
pub struct WriteBatch<P: Pmem = Region> {
    shared: Arc<Shared<P>>,
    ops: OpList,
}

impl<P: Pmem> fmt::Debug for WriteBatch<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteBatch").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<P: Pmem> WriteBatch<P> {
    pub(super) const fn new(shared: Arc<Shared<P>>) -> Self {
        Self { shared, ops: OpList::new() }
    }

    /// Adds an insertion of a key with its value, or a replacement of its value.
    ///
    /// # Errors
    /// When the key or the value has no encoding, or the table belongs to another store. Then nothing is added.
    pub fn insert<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V, P>,
        key: K::View<'_>,
        value: V::View<'_>,
    ) -> Result<(), WriteError> {
        let mut encoded = Vec::new();
        V::encode(value, &mut encoded)?;
        self.push(table, key, Some(&encoded))
    }

    /// Adds a removal of a key. It does nothing if there is no such key when the batch is committed.
    ///
    /// # Errors
    /// As for [`insert`](Self::insert).
    pub fn remove<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V, P>,
        key: K::View<'_>,
    ) -> Result<(), WriteError> {
        self.push(table, key, None)
    }

    /// The number of operations that were added.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether there is no operation.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn push<K: Key, V: Value>(
        &mut self,
        table: &Table<K, V, P>,
        key: K::View<'_>,
        value: Option<&[u8]>,
    ) -> Result<(), WriteError> {
        if !Arc::ptr_eq(table.shared(), &self.shared) {
            return Err(WriteError::OtherStore);
        }
        let mut buffer = Vec::new();
        self.ops.push(table.tree(), &table.encode(key, &mut buffer)?, value);
        Ok(())
    }

    /// Makes all operations durable, atomically with respect to crashes. Readers may see some of them before others; another batch or change that
    /// has a key in common comes entirely before or after it in that key's leaf.
    ///
    /// # Errors
    /// As for [`Table::insert`], of any operation: then nothing was changed. When a fence fails: then the next open decides whether all changes are
    /// durable, or none. When the store was opened eight times or more while a table of it was corrupted.
    ///
    /// # Durability
    /// All changes are durable when this returns; a crash before that leaves all of them or none. Costs two fences, the lines of the records and of
    /// the entries, and one line; and nothing if there is nothing to change. Leaves without room are split before: each into as many as its changes
    /// need, at two fences, or three with byte keys, and the lines of the new leaves; a crash leaves them split, with the same contents.
    pub fn commit(self) -> Result<(), WriteError> {
        let _settled = self.shared.begin()?;
        self.ops.commit(&self.shared.session, &self.shared.sweep).map(drop)
    }
}
