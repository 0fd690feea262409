//! openraft's state machine over the storage.

use super::log_store::{completion, wait};
use crate::error::StorageError;
use crate::program::Program;
use crate::snapshot::SnapshotData;
use crate::storage::{Applied, Core, Writer};
use openraft::storage::RaftStateMachine;
use openraft::{
    BasicNode, ErrorSubject, ErrorVerb, LogId, OptionalSend, RaftSnapshotBuilder, Snapshot, SnapshotMeta,
    StorageError as RaftError, StoredMembership,
};
use pm_core::{Pmem, Region};
use std::fmt;
use std::sync::Arc;

/// The state machine of a node. The state is durable after each apply, and is its own snapshot.
pub struct StateMachine<C: Program, P: Pmem + Send + Sync + 'static = Region> {
    core: Arc<Core<C, P>>,
    /// Commits the switch to a snapshot, as long as this exists.
    _writer: Arc<Writer<C, P>>,
}

impl<C: Program, P: Pmem + Send + Sync + 'static> fmt::Debug for StateMachine<C, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateMachine").finish_non_exhaustive()
    }
}

impl<C: Program, P: Pmem + Send + Sync + 'static> StateMachine<C, P> {
    pub(super) fn new(core: Arc<Core<C, P>>, writer: Arc<Writer<C, P>>) -> Self {
        core.pending().machine_starts();
        Self { core, _writer: writer }
    }

    async fn install(
        &self,
        meta: &SnapshotMeta<u64, BasicNode>,
        mut data: SnapshotData,
    ) -> Result<(), StorageError> {
        let set = self.core.state().received(&mut data)?;
        // A view of this state ends before its tables are emptied.
        drop(data);
        let applied = Applied { log_id: meta.last_log_id, membership: meta.last_membership.clone() };
        let (done, written) = completion();
        self.core.switch(set, applied, done);
        wait(written).await?;
        self.core.state().clear_spare()
    }
}

/// openraft's worker ends with its state machine: what was received is not installed then.
impl<C: Program, P: Pmem + Send + Sync + 'static> Drop for StateMachine<C, P> {
    fn drop(&mut self) {
        self.core.pending().machine_ends();
    }
}

/// Makes views of the state.
pub struct SnapshotBuilder<C: Program, P: Pmem + Send + Sync + 'static = Region> {
    core: Arc<Core<C, P>>,
}

impl<C: Program, P: Pmem + Send + Sync + 'static> fmt::Debug for SnapshotBuilder<C, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapshotBuilder").finish_non_exhaustive()
    }
}

/// The snapshot of a state. Its id is that of the last entry: two snapshots with the same one have the same contents.
fn snapshot<C: Program>(applied: Applied, data: SnapshotData) -> Snapshot<C> {
    let snapshot_id = match applied.log_id {
        Some(id) => format!("{}-{}-{}", id.leader_id.term, id.leader_id.node_id, id.index),
        None => "empty".to_owned(),
    };
    let meta = SnapshotMeta { last_log_id: applied.log_id, last_membership: applied.membership, snapshot_id };
    Snapshot { meta, snapshot: Box::new(data) }
}

impl<C: Program, P: Pmem + Send + Sync + 'static> RaftSnapshotBuilder<C> for SnapshotBuilder<C, P> {
    async fn build_snapshot(&mut self) -> Result<Snapshot<C>, RaftError<u64>> {
        let (applied, data) = self.core.state().view();
        Ok(snapshot(applied, data))
    }
}

impl<C: Program, P: Pmem + Send + Sync + 'static> RaftStateMachine<C> for StateMachine<C, P> {
    type SnapshotBuilder = SnapshotBuilder<C, P>;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogId<u64>>, StoredMembership<u64, BasicNode>), RaftError<u64>> {
        let Applied { log_id, membership } = self.core.state().applied();
        Ok((log_id, membership))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<C::R>, RaftError<u64>>
    where
        I: IntoIterator<Item = C::Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let applied = self.core.state().apply(entries);
        applied.map_err(|error| error.of(ErrorSubject::StateMachine, ErrorVerb::Write))
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder<C, P> {
        SnapshotBuilder { core: Arc::clone(&self.core) }
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<SnapshotData>, RaftError<u64>> {
        let data = self.core.state().receive();
        self.core.pending().start();
        data.map(Box::new).map_err(|error| error.of(ErrorSubject::Snapshot(None), ErrorVerb::Write))
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, BasicNode>,
        snapshot: Box<SnapshotData>,
    ) -> Result<(), RaftError<u64>> {
        // One that was not received by `begin_receiving_snapshot`, too.
        self.core.pending().start();
        let installed = self.install(meta, *snapshot).await;
        if let Err(error) = &installed {
            self.core.pending().fail(error);
        }
        installed.map_err(|error| error.of(ErrorSubject::Snapshot(Some(meta.signature())), ErrorVerb::Write))
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<C>>, RaftError<u64>> {
        let (applied, data) = self.core.state().view();
        Ok(applied.log_id.is_some().then(|| snapshot(applied, data)))
    }
}
