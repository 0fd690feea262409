//! Ours: `pm-btree` on a file of persistent memory, with the default domain of the directory.

use crate::records::Records;
use crate::store::{OrderedStore, Scanned};
use crate::workload::{Rates, Workload};
use miette::{IntoDiagnostic as _, Result, ensure};
use pm_btree::{Store, StoreOptions, Table};
use std::ops::Range;
use std::path::Path;

/// Enough for two million records of 256 bytes, or more than the largest run needs.
const POOL_BYTES: u64 = 4 << 30;

/// Measures a new store. Its table stays open, as in a program that uses it.
pub(crate) fn measure(directory: &Path, workload: Workload<'_>) -> Result<Rates> {
    let store = Store::create(directory.join("ours"), POOL_BYTES, &StoreOptions::new()).into_diagnostic()?;
    let rates = workload.run(&mut Ours(store.table("records").into_diagnostic()?))?;
    store.close().into_diagnostic()?;
    Ok(rates)
}

struct Ours<'s>(Table<'s, u64, &'static [u8]>);

impl OrderedStore for Ours<'_> {
    fn load(&mut self, records: &Records, numbers: Range<u64>) -> Result<()> {
        let mut value = Vec::new();
        for key in numbers.map(Records::key) {
            records.value_into(key, &mut value);
            self.put(key, &value)?;
        }
        Ok(())
    }

    fn put(&mut self, key: u64, value: &[u8]) -> Result<()> {
        self.0.insert(key, value).into_diagnostic()?;
        Ok(())
    }

    fn get(&self, key: u64, out: &mut Vec<u8>) -> Result<bool> {
        let value = self.0.get(key).into_diagnostic()?;
        out.extend_from_slice(value.as_ref().map_or(&[], |value| value.value()));
        Ok(value.is_some())
    }

    fn scan(&self, from: u64, count: usize) -> Result<Scanned> {
        let mut scanned = Scanned::default();
        for record in self.0.range(from..).take(count) {
            let (_, value) = record.into_diagnostic()?;
            scanned = scanned.with(value.value());
        }
        Ok(scanned)
    }

    fn remove(&mut self, key: u64) -> Result<()> {
        ensure!(self.0.remove(key).into_diagnostic()?, "nothing to remove at {key:#x}");
        Ok(())
    }
}
