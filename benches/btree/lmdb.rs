//! LMDB, by heed: a copy-on-write B-tree. Each change is a transaction, whose commit syncs the file: no flag changes the default.

use crate::records::Records;
use crate::store::{OrderedStore, Scanned};
use crate::workload::{Rates, Workload};
use heed::types::Bytes;
use heed::{Database, Env, EnvOpenOptions};
use miette::{IntoDiagnostic as _, Result, ensure};
use std::ops::{Bound, Range};
use std::path::Path;

/// The size of the mapping, and the most that the file can grow to.
const MAP_BYTES: usize = 16 << 30;

/// Measures an empty database. Its keys are big-endian, because LMDB compares bytes.
pub(crate) fn measure(directory: &Path, workload: Workload<'_>) -> Result<Rates> {
    let (env, records) = create(directory)?;
    workload.run(&mut Lmdb { env, records, encode: u64::to_be_bytes })
}

/// Measures an empty database with string keys.
pub(crate) fn measure_strings(directory: &Path, workload: Workload<'_>) -> Result<Rates> {
    let (env, records) = create(directory)?;
    workload.run(&mut Lmdb { env, records, encode: Records::string_key })
}

#[expect(unsafe_code, reason = "no other process changes the file under the mapping")]
fn create(directory: &Path) -> Result<(Env, Database<Bytes, Bytes>)> {
    // SAFETY: the directory is new and this process's own, so that nothing else changes the mapped file, and it is opened once.
    let env = unsafe { EnvOpenOptions::new().map_size(MAP_BYTES).open(directory) }.into_diagnostic()?;
    let mut transaction = env.write_txn().into_diagnostic()?;
    let records = env.create_database(&mut transaction, None).into_diagnostic()?;
    transaction.commit().into_diagnostic()?;
    Ok((env, records))
}

struct Lmdb<K> {
    env: Env,
    records: Database<Bytes, Bytes>,
    /// The bytes of a key, which are ordered like the numbers.
    encode: fn(u64) -> K,
}

impl<K: AsRef<[u8]>> OrderedStore for Lmdb<K> {
    fn load(&mut self, records: &Records, numbers: Range<u64>) -> Result<()> {
        let mut transaction = self.env.write_txn().into_diagnostic()?;
        let mut value = Vec::new();
        for key in numbers.map(Records::key) {
            records.value_into(key, &mut value);
            self.records.put(&mut transaction, (self.encode)(key).as_ref(), &value).into_diagnostic()?;
        }
        transaction.commit().into_diagnostic()
    }

    fn put(&mut self, key: u64, value: &[u8]) -> Result<()> {
        let mut transaction = self.env.write_txn().into_diagnostic()?;
        self.records.put(&mut transaction, (self.encode)(key).as_ref(), value).into_diagnostic()?;
        transaction.commit().into_diagnostic()
    }

    fn get(&self, key: u64, with: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let transaction = self.env.read_txn().into_diagnostic()?;
        let value = self.records.get(&transaction, (self.encode)(key).as_ref()).into_diagnostic()?;
        value.into_iter().for_each(&mut *with);
        Ok(value.is_some())
    }

    fn scan(&self, from: u64, count: usize) -> Result<Scanned> {
        let transaction = self.env.read_txn().into_diagnostic()?;
        let from = (self.encode)(from);
        let range = (Bound::Included(from.as_ref()), Bound::Unbounded);
        let records = self.records.range(&transaction, &range).into_diagnostic()?.take(count);
        let mut scanned = Scanned::default();
        for record in records {
            scanned = scanned.with(record.into_diagnostic()?.1);
        }
        Ok(scanned)
    }

    fn remove(&mut self, key: u64) -> Result<()> {
        let mut transaction = self.env.write_txn().into_diagnostic()?;
        ensure!(
            self.records.delete(&mut transaction, (self.encode)(key).as_ref()).into_diagnostic()?,
            "nothing to remove at {key:#x}"
        );
        transaction.commit().into_diagnostic()
    }
}
