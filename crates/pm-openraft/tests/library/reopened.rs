//! openraft's traits over a store whose process is killed after each call.

use crate::program::{Bytes, TestStorage, killed};
use openraft::storage::{LogFlushed, RaftLogStorage, RaftStateMachine};
use openraft::{
    BasicNode, Entry, LogId, LogState, OptionalSend, RaftLogReader, RaftSnapshotBuilder, Snapshot,
    SnapshotMeta, StorageError, StoredMembership, Vote,
};
use pm_btree::Store;
use pm_openraft::SnapshotData;
use pm_testkit::AnyPmem;
use std::fmt::Debug;
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex};

type Outcome<T> = Result<T, StorageError<u64>>;

/// The storage, which calls replace.
#[derive(Clone)]
pub(crate) struct Reopened(Arc<Mutex<TestStorage>>);

impl Reopened {
    pub(crate) fn new(store: Store<AnyPmem<'static>>) -> Self {
        Self(Arc::new(Mutex::new(TestStorage::open(store).unwrap())))
    }

    /// Kills the process after all writes, and opens what it has left.
    async fn kill(&self) {
        let log = self.0.lock().unwrap().log();
        // The committed id, for which openraft does not wait.
        log.flush().await.unwrap();
        let mut storage = self.0.lock().unwrap();
        *storage = TestStorage::open(killed(storage.store())).unwrap();
    }
}

pub(crate) struct ReopenedLog(pub(crate) Reopened);

macro_rules! log {
    ($self:ident, $call:ident($($argument:expr),*)) => {{
        let mut log = $self.0.0.lock().unwrap().log();
        let result = log.$call($($argument),*).await;
        $self.0.kill().await;
        result
    }};
}

macro_rules! machine {
    ($self:ident, $call:ident($($argument:expr),*)) => {{
        let mut machine = $self.0.0.lock().unwrap().state_machine();
        let result = machine.$call($($argument),*).await;
        $self.0.kill().await;
        result
    }};
}

impl RaftLogReader<Bytes> for ReopenedLog {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Outcome<Vec<Entry<Bytes>>> {
        log!(self, try_get_log_entries(range))
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Outcome<Vec<Entry<Bytes>>> {
        log!(self, limited_get_log_entries(start, end))
    }
}

impl RaftLogStorage<Bytes> for ReopenedLog {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Outcome<LogState<Bytes>> {
        log!(self, get_log_state())
    }

    async fn get_log_reader(&mut self) -> Self {
        Self(self.0.clone())
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Outcome<()> {
        log!(self, save_vote(vote))
    }

    async fn read_vote(&mut self) -> Outcome<Option<Vote<u64>>> {
        log!(self, read_vote())
    }

    async fn save_committed(&mut self, committed: Option<LogId<u64>>) -> Outcome<()> {
        log!(self, save_committed(committed))
    }

    async fn read_committed(&mut self) -> Outcome<Option<LogId<u64>>> {
        log!(self, read_committed())
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<Bytes>) -> Outcome<()>
    where
        I: IntoIterator<Item = Entry<Bytes>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        log!(self, append(entries, callback))
    }

    async fn truncate(&mut self, log_id: LogId<u64>) -> Outcome<()> {
        log!(self, truncate(log_id))
    }

    async fn purge(&mut self, log_id: LogId<u64>) -> Outcome<()> {
        log!(self, purge(log_id))
    }
}

pub(crate) struct ReopenedMachine(pub(crate) Reopened);

impl RaftSnapshotBuilder<Bytes> for ReopenedMachine {
    async fn build_snapshot(&mut self) -> Outcome<Snapshot<Bytes>> {
        let mut machine = self.0.0.lock().unwrap().state_machine();
        let snapshot = machine.get_snapshot_builder().await.build_snapshot().await;
        self.0.kill().await;
        snapshot
    }
}

impl RaftStateMachine<Bytes> for ReopenedMachine {
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> Outcome<(Option<LogId<u64>>, StoredMembership<u64, BasicNode>)> {
        machine!(self, applied_state())
    }

    async fn apply<I>(&mut self, entries: I) -> Outcome<Vec<Option<Vec<u8>>>>
    where
        I: IntoIterator<Item = Entry<Bytes>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        machine!(self, apply(entries))
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        Self(self.0.clone())
    }

    /// A reception ends with its process.
    async fn begin_receiving_snapshot(&mut self) -> Outcome<Box<SnapshotData>> {
        let mut machine = self.0.0.lock().unwrap().state_machine();
        machine.begin_receiving_snapshot().await
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, BasicNode>,
        snapshot: Box<SnapshotData>,
    ) -> Outcome<()> {
        machine!(self, install_snapshot(meta, snapshot))
    }

    async fn get_current_snapshot(&mut self) -> Outcome<Option<Snapshot<Bytes>>> {
        machine!(self, get_current_snapshot())
    }
}
