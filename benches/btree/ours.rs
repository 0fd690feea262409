//! Ours: `pm-btree` on a file of persistent memory, with the default domain of the directory.

use crate::records::Records;
use crate::store::{OrderedStore, Scanned};
use crate::workload::{Rates, Workload};
use miette::{IntoDiagnostic as _, Result, ensure};
use pm_btree::{Key, Store, StoreOptions, Table};
use std::ops::{ControlFlow, Range};
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

struct Ours(Table<u64, &'static [u8]>);

impl OrderedStore for Ours {
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

    fn get(&self, key: u64, with: &mut dyn FnMut(&[u8])) -> Result<bool> {
        Ok(self.0.get_with(key, with).into_diagnostic()?.is_some())
    }

    fn scan(&self, from: u64, count: usize) -> Result<Scanned> {
        scan(&self.0, from, count)
    }

    fn remove(&mut self, key: u64) -> Result<()> {
        ensure!(self.0.remove(key).into_diagnostic()?, "nothing to remove at {key:#x}");
        Ok(())
    }
}

struct OursOfStrings(Table<&'static str, &'static [u8]>);

impl OrderedStore for OursOfStrings {
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

    fn get(&self, key: u64, with: &mut dyn FnMut(&[u8])) -> Result<bool> {
        Ok(self.0.get_with(&Records::string_key(key), with).into_diagnostic()?.is_some())
    }

    fn scan(&self, from: u64, count: usize) -> Result<Scanned> {
        scan(&self.0, Records::string_key(from).as_str(), count)
    }

    fn remove(&mut self, key: u64) -> Result<()> {
        let is_removed = self.0.remove(&Records::string_key(key)).into_diagnostic()?;
        ensure!(is_removed, "nothing to remove at {key:#x}");
        Ok(())
    }
}

fn scan<'k, K: Key>(table: &Table<K, &'static [u8]>, from: K::View<'k>, count: usize) -> Result<Scanned> {
    let mut scanned = Scanned::default();
    let flow = table.visit(from.., |record| match record {
        Ok((_, value)) => {
            scanned = scanned.with(value);
            if scanned.count < count as u64 { ControlFlow::Continue(()) } else { ControlFlow::Break(Ok(())) }
        }
        Err(error) => ControlFlow::Break(Err(error)),
    });
    match flow {
        ControlFlow::Break(Err(error)) => Err(error).into_diagnostic(),
        _ => Ok(scanned),
    }
}
