//! A program for tests, its storage in memory, and a poll of futures by the thread that drains the queue.

use openraft::storage::{RaftLogStorage, RaftLogStorageExt as _};
use openraft::{CommittedLeaderId, Entry, EntryPayload, LogId, StorageError as RaftError};
use pm_alloc::HeapOptions;
use pm_btree::{Store, StoreOptions};
use pm_core::{Pmem, PoolOptions, Region, Uuid};
use pm_openraft::{Changes, LogStore, Program, SnapshotData, StateMachine, Storage, StorageError};
use pm_testkit::AnyPmem;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// A command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Gives a key a value.
    Put(Vec<u8>, Vec<u8>),
    Remove(Vec<u8>),
    /// Adds a byte to the value of a key.
    Push(Vec<u8>, u8),
    /// Adds a byte to the value of a key, and gives another one a value.
    Both(Vec<u8>, u8, Vec<u8>, Vec<u8>),
}

openraft::declare_raft_types!(
    /// The program.
    pub(crate) Bytes: D = Command, R = Option<Vec<u8>>, SnapshotData = SnapshotData
);

impl Program for Bytes {
    fn apply(command: Command, state: &mut Changes<'_>) -> Result<Option<Vec<u8>>, StorageError> {
        match command {
            Command::Put(key, value) => {
                let before = state.get(&key)?;
                state.insert(key, value);
                Ok(before)
            }
            Command::Remove(key) => {
                let before = state.get(&key)?;
                assert_eq!(state.remove(&key)?, before.is_some());
                Ok(before)
            }
            Command::Push(key, byte) => {
                let before = state.get(&key)?;
                let mut value = before.clone().unwrap_or_default();
                value.push(byte);
                state.insert(key, value);
                Ok(before)
            }
            Command::Both(key, byte, other, value) => {
                state.insert(other, value);
                Self::apply(Command::Push(key, byte), state)
            }
        }
    }

    fn nothing() -> Option<Vec<u8>> {
        None
    }
}

pub(crate) type TestStorage = Storage<Bytes, AnyPmem<'static>>;
pub(crate) type TestLog = LogStore<Bytes, AnyPmem<'static>>;
pub(crate) type TestMachine = StateMachine<Bytes, AnyPmem<'static>>;

/// Small nodes and extents, and fixed numbers, so that a crash has the same name in each run.
pub(crate) fn options() -> StoreOptions {
    let pool = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0);
    let heap = HeapOptions::new().seed(7).pool(pool).lanes(1);
    StoreOptions::new().heap(heap).node_slots(4).extent_bytes(4096).sweep_at_open(0)
}

/// A new store in memory.
pub(crate) fn new_store(len_bytes: u64) -> Store<AnyPmem<'static>> {
    Store::format(
        AnyPmem::other(Region::anonymous(len_bytes).unwrap()),
        &StoreOptions::new().extent_bytes(4096),
    )
    .unwrap()
}

/// A store with the visible contents of another one, which a kill of its process would leave.
pub(crate) fn killed(store: &Store<AnyPmem<'static>>) -> Store<AnyPmem<'static>> {
    let old = store.heap().pmem();
    let new = Region::anonymous(old.len_bytes()).unwrap();
    let mut bytes = vec![0; usize::try_from(old.len_bytes()).unwrap()];
    old.load(0, &mut bytes);
    new.store(0, &bytes);
    Store::attach(AnyPmem::other(new), &StoreOptions::new()).unwrap()
}

pub(crate) fn id(term: u64, index: u64) -> LogId<u64> {
    LogId::new(CommittedLeaderId::new(term, 1), index)
}

pub(crate) fn entry(term: u64, index: u64, command: Command) -> Entry<Bytes> {
    Entry { log_id: id(term, index), payload: EntryPayload::Normal(command) }
}

/// The result of a future of a storage without a writer: what waits is committed here.
pub(crate) fn run<T>(storage: &TestStorage, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return result;
        }
        assert!(storage.drain(), "it waits for what no one writes");
    }
}

/// Appends entries, and returns when they are durable.
pub(crate) async fn append(log: &mut TestLog, entries: Vec<Entry<Bytes>>) -> Result<(), RaftError<u64>> {
    log.blocking_append(entries).await
}

/// The entries of the log.
pub(crate) async fn log_entries(log: &mut TestLog) -> Vec<Entry<Bytes>> {
    use openraft::RaftLogReader as _;
    let last = log.get_log_state().await.unwrap().last_log_id.map_or(0, |id| id.index + 1);
    log.try_get_log_entries(0..last).await.unwrap()
}

/// All keys and values of the state.
pub(crate) fn contents(storage: &TestStorage) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let entries = storage.reader().range(&[], Bound::Unbounded, usize::MAX, usize::MAX).unwrap();
    entries.into_iter().collect()
}
