//! LMDB, by heed: a copy-on-write B-tree. Each change is a transaction, whose commit syncs the file: no flag changes the default.

use crate::records::Records;
use crate::store::{OrderedStore, Scanned};
use crate::workload::{Rates, Workload};
use heed::byteorder::BigEndian;
use heed::types::{Bytes, U64};
use heed::{Database, Env, EnvOpenOptions};
use miette::{IntoDiagnostic as _, Result, ensure};
use std::ops::Range;
use std::path::Path;

/// The size of the mapping, and the most that the file can grow to.
const MAP_BYTES: usize = 16 << 30;

/// Measures an empty database. Its keys are big-endian, because LMDB compares bytes.
#[expect(unsafe_code, reason = "no other process changes the file under the mapping")]
pub(crate) fn measure(directory: &Path, workload: Workload<'_>) -> Result<Rates> {
    // SAFETY: the directory is new and this process's own, so that nothing else changes the mapped file, and it is opened once.
    let env = unsafe { EnvOpenOptions::new().map_size(MAP_BYTES).open(directory) }.into_diagnostic()?;
    let mut transaction = env.write_txn().into_diagnostic()?;
    let records = env.create_database(&mut transaction, None).into_diagnostic()?;
    transaction.commit().into_diagnostic()?;
    workload.run(&mut Lmdb { env, records })
}

struct Lmdb {
    env: Env,
    records: Database<U64<BigEndian>, Bytes>,
}

impl OrderedStore for Lmdb {
    fn load(&mut self, records: &Records, numbers: Range<u64>) -> Result<()> {
        let mut transaction = self.env.write_txn().into_diagnostic()?;
        let mut value = Vec::new();
        for key in numbers.map(Records::key) {
            records.value_into(key, &mut value);
            self.records.put(&mut transaction, &key, &value).into_diagnostic()?;
        }
        transaction.commit().into_diagnostic()
    }

    fn put(&mut self, key: u64, value: &[u8]) -> Result<()> {
        let mut transaction = self.env.write_txn().into_diagnostic()?;
        self.records.put(&mut transaction, &key, value).into_diagnostic()?;
        transaction.commit().into_diagnostic()
    }

    fn get(&self, key: u64, out: &mut Vec<u8>) -> Result<bool> {
        let transaction = self.env.read_txn().into_diagnostic()?;
        let value = self.records.get(&transaction, &key).into_diagnostic()?;
        out.extend_from_slice(value.unwrap_or_default());
        Ok(value.is_some())
    }

    fn scan(&self, from: u64, count: usize) -> Result<Scanned> {
        let transaction = self.env.read_txn().into_diagnostic()?;
        let range = from..;
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
            self.records.delete(&mut transaction, &key).into_diagnostic()?,
            "nothing to remove at {key:#x}"
        );
        transaction.commit().into_diagnostic()
    }
}
