//! redb: a copy-on-write B-tree. Each change is a transaction that is committed with `Durability::Immediate`, the default.

use crate::records::Records;
use crate::store::{OrderedStore, Scanned};
use crate::workload::{Rates, Workload};
use miette::{IntoDiagnostic as _, Result, ensure};
use redb::{Database, Durability, ReadableDatabase as _, TableDefinition, WriteTransaction};
use std::ops::Range;
use std::path::Path;

const TABLE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("records");

/// Measures an empty table, with the default cache of 1 GiB.
pub(crate) fn measure(directory: &Path, workload: Workload<'_>) -> Result<Rates> {
    workload.run(&mut Redb(Database::create(directory.join("redb")).into_diagnostic()?))
}

struct Redb(Database);

impl Redb {
    fn begin_write(&self) -> Result<WriteTransaction> {
        let mut transaction = self.0.begin_write().into_diagnostic()?;
        transaction.set_durability(Durability::Immediate).into_diagnostic()?;
        Ok(transaction)
    }
}

impl OrderedStore for Redb {
    fn load(&mut self, records: &Records, numbers: Range<u64>) -> Result<()> {
        let transaction = self.begin_write()?;
        let mut table = transaction.open_table(TABLE).into_diagnostic()?;
        let mut value = Vec::new();
        for key in numbers.map(Records::key) {
            records.value_into(key, &mut value);
            table.insert(key, value.as_slice()).into_diagnostic()?;
        }
        drop(table);
        transaction.commit().into_diagnostic()
    }

    fn put(&mut self, key: u64, value: &[u8]) -> Result<()> {
        let transaction = self.begin_write()?;
        let mut table = transaction.open_table(TABLE).into_diagnostic()?;
        table.insert(key, value).into_diagnostic()?;
        drop(table);
        transaction.commit().into_diagnostic()
    }

    fn get(&self, key: u64, with: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let table = self.0.begin_read().into_diagnostic()?.open_table(TABLE).into_diagnostic()?;
        let value = table.get(key).into_diagnostic()?;
        value.as_ref().into_iter().for_each(|value| with(value.value()));
        Ok(value.is_some())
    }

    fn scan(&self, from: u64, count: usize) -> Result<Scanned> {
        let table = self.0.begin_read().into_diagnostic()?.open_table(TABLE).into_diagnostic()?;
        let records = table.range(from..).into_diagnostic()?.take(count);
        let mut scanned = Scanned::default();
        for record in records {
            let (_, value) = record.into_diagnostic()?;
            scanned = scanned.with(value.value());
        }
        Ok(scanned)
    }

    fn remove(&mut self, key: u64) -> Result<()> {
        let transaction = self.begin_write()?;
        let mut table = transaction.open_table(TABLE).into_diagnostic()?;
        let is_removed = table.remove(key).into_diagnostic()?.is_some();
        drop(table);
        ensure!(is_removed, "nothing to remove at {key:#x}");
        transaction.commit().into_diagnostic()
    }
}
