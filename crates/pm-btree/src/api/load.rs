//! Loading sorted entries.

use super::batch::WriteBatch;
use super::table::Table;
use crate::error::WriteError;
use crate::node::OwnedKey;
use crate::types::{Key, Value};
use pm_core::Pmem;

/// The entries of one batch of a load, and the bytes of keys and values at which a batch ends.
const BATCH_LEN: usize = 4096;
const BATCH_BYTES: usize = 1 << 20;

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

impl<K: Key, V: Value, P: Pmem> Table<'_, K, V, P> {
    /// Inserts entries in ascending order of their keys, and returns their number. Values of keys that exist are replaced.
    ///
    /// # Errors
    /// When a key is not above the one before it, or as for [`insert`](Self::insert). The error has the number of the entries that are durable.
    ///
    /// # Durability
    /// The entries are committed in [batches](WriteBatch) of some thousands. A crash leaves the first ones, in whole batches. Behind the last key of
    /// the table, leaves are filled to the end; so it costs the lines of the entries and records, three lines and two fences for each leaf, which
    /// has some 60 entries, and two fences for each batch.
    pub fn extend_sorted<'i>(
        &self,
        entries: impl IntoIterator<Item = (K::View<'i>, V::View<'i>)>,
    ) -> Result<u64, LoadError> {
        let mut durable = 0;
        let mut batch = WriteBatch::new(self.session(), self.sweep(), self.group());
        let mut last: Option<OwnedKey> = None;
        for (key, value) in entries {
            let added = self.add(&mut batch, &mut last, key, value);
            if added.is_err() || batch.len() >= BATCH_LEN || batch.len_bytes() >= BATCH_BYTES {
                let full = core::mem::replace(
                    &mut batch,
                    WriteBatch::new(self.session(), self.sweep(), self.group()),
                );
                durable += commit(full).map_err(|failure| LoadError { durable, failure })?;
            }
            added.map_err(|failure| LoadError { durable, failure })?;
        }
        durable += commit(batch).map_err(|failure| LoadError { durable, failure })?;
        Ok(durable)
    }

    /// Adds an insertion, if its key is above the last one.
    fn add(
        &self,
        batch: &mut WriteBatch<'_, P>,
        last: &mut Option<OwnedKey>,
        key: K::View<'_>,
        value: V::View<'_>,
    ) -> Result<(), LoadFailure> {
        let mut buffer = Vec::new();
        let encoded = self.encode(key, &mut buffer).map_err(WriteError::from)?;
        if last.as_ref().is_some_and(|last| encoded.order(&last.as_key()).is_le()) {
            return Err(LoadFailure::OutOfOrder);
        }
        batch.insert(self, key, value)?;
        *last = Some(OwnedKey::of(&encoded));
        Ok(())
    }
}

fn commit<P: Pmem>(batch: WriteBatch<'_, P>) -> Result<u64, LoadFailure> {
    let len = batch.len() as u64;
    batch.commit()?;
    Ok(len)
}
