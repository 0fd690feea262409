//! openraft's own tests of a storage: as they are, and with the store opened again after each call.

use crate::program::{Bytes, TestLog, TestMachine, TestStorage, new_store};
use crate::reopened::{Reopened, ReopenedLog, ReopenedMachine};
use openraft::StorageError;
use openraft::testing::{StoreBuilder, Suite};
use pm_btree::Store;
use pm_testkit::AnyPmem;

const LEN_BYTES: u64 = 1 << 20;

/// A storage that is not opened again.
struct Plain(fn(Store<AnyPmem<'static>>) -> Result<TestStorage, pm_openraft::StorageError>);

impl StoreBuilder<Bytes, TestLog, TestMachine, TestStorage> for Plain {
    async fn build(&self) -> Result<(TestStorage, TestLog, TestMachine), StorageError<u64>> {
        let storage = (self.0)(new_store(LEN_BYTES)).unwrap();
        let (log, machine) = (storage.log(), storage.state_machine());
        Ok((storage, log, machine))
    }
}

#[test]
fn suite_passes() {
    Suite::test_all(Plain(TestStorage::open)).unwrap();
}

#[test]
fn suite_passes_with_writer() {
    Suite::test_all(Plain(TestStorage::open_with_writer)).unwrap();
}

struct EachTime;

impl StoreBuilder<Bytes, ReopenedLog, ReopenedMachine> for EachTime {
    async fn build(&self) -> Result<((), ReopenedLog, ReopenedMachine), StorageError<u64>> {
        let reopened = Reopened::new(new_store(LEN_BYTES));
        Ok(((), ReopenedLog(reopened.clone()), ReopenedMachine(reopened)))
    }
}

#[test]
fn suite_passes_when_each_call_ends_with_a_kill() {
    Suite::test_all(EachTime).unwrap();
}
