//! The standard library's map, which is volatile: the cost of a store without durability.

use crate::records::Records;
use crate::store::{OrderedStore, Scanned};
use crate::workload::{Rates, Workload};
use miette::{Result, ensure};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// Measures an empty map.
pub(crate) fn measure(_directory: &Path, workload: Workload<'_>) -> Result<Rates> {
    workload.run(&mut Map(BTreeMap::new()))
}

struct Map(BTreeMap<u64, Box<[u8]>>);

impl OrderedStore for Map {
    fn load(&mut self, records: &Records, numbers: Range<u64>) -> Result<()> {
        let mut value = Vec::new();
        for key in numbers.map(Records::key) {
            records.value_into(key, &mut value);
            self.put(key, &value)?;
        }
        Ok(())
    }

    fn put(&mut self, key: u64, value: &[u8]) -> Result<()> {
        self.0.insert(key, value.into());
        Ok(())
    }

    fn get(&self, key: u64, with: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let value = self.0.get(&key);
        value.into_iter().for_each(|value| with(value));
        Ok(value.is_some())
    }

    fn scan(&self, from: u64, count: usize) -> Result<Scanned> {
        let records = self.0.range(from..).take(count);
        Ok(records.fold(Scanned::default(), |scanned, (_, value)| scanned.with(value)))
    }

    fn remove(&mut self, key: u64) -> Result<()> {
        ensure!(self.0.remove(&key).is_some(), "nothing to remove at {key:#x}");
        Ok(())
    }
}
