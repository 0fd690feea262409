//! The interface that all stores are measured through.

use crate::records::Records;
use miette::Result;
use std::ops::Range;

/// An ordered map from words to values. Each call of a durable store is a transaction, as it is for a user of that store: a change is durable when
/// the call returns, and a read sees a consistent state.
pub(crate) trait OrderedStore {
    /// Inserts records with these numbers into the empty store, in the store's fastest way: the calls of the other methods are measured, this one is
    /// only reported.
    fn load(&mut self, records: &Records, numbers: Range<u64>) -> Result<()>;

    /// Inserts or replaces one record.
    fn put(&mut self, key: u64, value: &[u8]) -> Result<()>;

    /// Calls `with` with the value of this key, and returns whether there is one. A store that can lend the stored bytes copies nothing.
    fn get(&self, key: u64, with: &mut dyn FnMut(&[u8])) -> Result<bool>;

    /// Reads the first `count` records whose key is at least `from`. Returns their number, and the sum of the first bytes of their values.
    fn scan(&self, from: u64, count: usize) -> Result<Scanned>;

    /// Removes the record with this key, which exists.
    fn remove(&mut self, key: u64) -> Result<()>;
}

/// The result of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scanned {
    pub(crate) count: u64,
    pub(crate) sum: u64,
}

impl Scanned {
    /// With one more record.
    pub(crate) fn with(self, value: &[u8]) -> Self {
        let byte = value.first().copied().unwrap_or_default();
        Self { count: self.count + 1, sum: self.sum + u64::from(byte) }
    }
}
