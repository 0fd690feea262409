//! fjall: a log-structured merge tree. After each change the journal is synced with `PersistMode::SyncAll`.

use crate::records::Records;
use crate::store::{OrderedStore, Scanned};
use crate::workload::{Rates, Workload};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use miette::{IntoDiagnostic as _, Result};
use std::ops::Range;
use std::path::Path;

/// As much as redb has by default, and more than the records need.
const CACHE_BYTES: u64 = 1 << 30;

/// Measures an empty keyspace, without compression, which these values do not profit from.
pub(crate) fn measure(directory: &Path, workload: Workload<'_>) -> Result<Rates> {
    let database = Database::builder(directory).cache_size(CACHE_BYTES).open().into_diagnostic()?;
    let records = database.keyspace("records", KeyspaceCreateOptions::default).into_diagnostic()?;
    workload.run(&mut Fjall { database, records })
}

struct Fjall {
    database: Database,
    records: Keyspace,
}

impl Fjall {
    fn sync(&self) -> Result<()> {
        self.database.persist(PersistMode::SyncAll).into_diagnostic()
    }
}

impl OrderedStore for Fjall {
    fn load(&mut self, records: &Records, numbers: Range<u64>) -> Result<()> {
        let mut value = Vec::new();
        for key in numbers.map(Records::key) {
            records.value_into(key, &mut value);
            self.records.insert(key.to_be_bytes(), value.as_slice()).into_diagnostic()?;
        }
        self.sync()
    }

    fn put(&mut self, key: u64, value: &[u8]) -> Result<()> {
        self.records.insert(key.to_be_bytes(), value).into_diagnostic()?;
        self.sync()
    }

    fn get(&self, key: u64, with: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.records.get(key.to_be_bytes()).into_diagnostic()?;
        value.as_deref().into_iter().for_each(&mut *with);
        Ok(value.is_some())
    }

    fn scan(&self, from: u64, count: usize) -> Result<Scanned> {
        let mut scanned = Scanned::default();
        for record in self.records.range(from.to_be_bytes()..).take(count) {
            scanned = scanned.with(&record.value().into_diagnostic()?);
        }
        Ok(scanned)
    }

    /// A removal is a record of its own, so that fjall does not notice if there is nothing to remove.
    fn remove(&mut self, key: u64) -> Result<()> {
        self.records.remove(key.to_be_bytes()).into_diagnostic()?;
        self.sync()
    }
}
