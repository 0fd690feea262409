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

/// A new store.
pub(crate) fn create(directory: &Path) -> Result<Store> {
    Store::create(directory.join("ours"), POOL_BYTES, &StoreOptions::new()).into_diagnostic()
}

/// Measures a new store. Its table stays open, as in a program that uses it.
pub(crate) fn measure(directory: &Path, workload: Workload<'_>) -> Result<Rates> {
    let store = create(directory)?;
    let rates = workload.run(&mut Ours(store.table("records").into_diagnostic()?))?;
    store.close().into_diagnostic()?;
    Ok(rates)
}

/// Measures a new store with string keys.
pub(crate) fn measure_strings(directory: &Path, workload: Workload<'_>) -> Result<Rates> {
    let store = create(directory)?;
    let rates = workload.run(&mut OursOfStrings(store.table("records").into_diagnostic()?))?;
    store.close().into_diagnostic()?;
    Ok(rates)
}

/// The memory that a new store needs for records with these keys.
pub(crate) fn memory(directory: &Path, records: &Records, count: u64, key: fn(u64) -> u64) -> Result<String> {
    let store = create(directory)?;
    let mut table = Ours(store.table("records").into_diagnostic()?);
    let (mut value, mut bytes) = (Vec::new(), 0);
    for key in (0..count).map(key) {
        records.value_into(key, &mut value);
        bytes += size_of_val(&key) + value.len();
        table.put(key, &value)?;
    }
    let count = count as f64;
    let stats = store.stats().into_diagnostic()?;
    let (dram, pool) = (stats.dram_bytes as f64 / count, stats.used_bytes as f64 / bytes as f64);
    Ok(format!("{dram:.2} B of DRAM an entry; pool in use {pool:.2} of keys and values"))
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

struct OursOfStrings<'s>(Table<'s, &'static str, &'static [u8]>);

impl OrderedStore for OursOfStrings<'_> {
    fn load(&mut self, records: &Records, numbers: Range<u64>) -> Result<()> {
        let mut value = Vec::new();
        for key in numbers.map(Records::key) {
            records.value_into(key, &mut value);
            self.put(key, &value)?;
        }
        Ok(())
    }

    fn put(&mut self, key: u64, value: &[u8]) -> Result<()> {
        self.0.insert(&Records::string_key(key), value).into_diagnostic()?;
        Ok(())
    }

    fn get(&self, key: u64, out: &mut Vec<u8>) -> Result<bool> {
        let value = self.0.get(&Records::string_key(key)).into_diagnostic()?;
        out.extend_from_slice(value.as_ref().map_or(&[], |value| value.value()));
        Ok(value.is_some())
    }

    fn scan(&self, from: u64, count: usize) -> Result<Scanned> {
        let mut scanned = Scanned::default();
        for record in self.0.range(Records::string_key(from).as_str()..).take(count) {
            let (_, value) = record.into_diagnostic()?;
            scanned = scanned.with(value.value());
        }
        Ok(scanned)
    }

    fn remove(&mut self, key: u64) -> Result<()> {
        let is_removed = self.0.remove(&Records::string_key(key)).into_diagnostic()?;
        ensure!(is_removed, "nothing to remove at {key:#x}");
        Ok(())
    }
}
