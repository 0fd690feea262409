//! Counters on three nodes of one process, which call each other directly: a program brings its own network in place of that.
//!
//! `cargo run -p pm-openraft --example counters -- DIRECTORY` keeps the counters in three files in a directory, and finds them there when it is run again.

use openraft::error::{
    ClientWriteError, Fatal, NetworkError, RPCError, RaftError, RemoteError, ReplicationClosed,
    StreamingError,
};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{BasicNode, Config, OptionalSend, Raft, Snapshot, Vote};
use pm_btree::{Store, StoreOptions};
use pm_openraft::{Changes, Program, SnapshotData, Storage, StorageError};
use std::collections::BTreeMap;
use std::error::Error;
use std::future::Future;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

openraft::declare_raft_types!(
    /// Counters, to which commands add.
    pub Counters: D = (String, u64), R = u64, SnapshotData = SnapshotData
);

impl Program for Counters {
    fn apply((name, count): (String, u64), state: &mut Changes<'_>) -> Result<u64, StorageError> {
        let bytes = state.get(name.as_bytes())?.and_then(|bytes| bytes.try_into().ok());
        let sum = bytes.map_or(0, u64::from_be_bytes).wrapping_add(count);
        state.insert(name.into_bytes(), sum.to_be_bytes().into());
        Ok(sum)
    }

    fn nothing() -> u64 {
        0
    }
}

/// All nodes, once they are there.
type Nodes = Arc<OnceLock<BTreeMap<u64, Raft<Counters>>>>;

struct Network(Nodes);

struct Target {
    nodes: Nodes,
    id: u64,
}

impl RaftNetworkFactory<Counters> for Network {
    type Network = Target;

    async fn new_client(&mut self, id: u64, _: &BasicNode) -> Target {
        Target { nodes: Arc::clone(&self.0), id }
    }
}

impl Target {
    fn raft(&self) -> Result<&Raft<Counters>, NetworkError> {
        let raft = self.nodes.get().and_then(|nodes| nodes.get(&self.id));
        raft.ok_or_else(|| NetworkError::new(&std::io::Error::from(std::io::ErrorKind::NotConnected)))
    }
}

impl RaftNetwork<Counters> for Target {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Counters>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, RPCError<u64, BasicNode, RaftError<u64>>> {
        let answer = self.raft()?.append_entries(request).await;
        answer.map_err(|error| RemoteError::new(self.id, error).into())
    }

    async fn vote(
        &mut self,
        request: VoteRequest<u64>,
        _: RPCOption,
    ) -> Result<VoteResponse<u64>, RPCError<u64, BasicNode, RaftError<u64>>> {
        let answer = self.raft()?.vote(request).await;
        answer.map_err(|error| RemoteError::new(self.id, error).into())
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote<u64>,
        snapshot: Snapshot<Counters>,
        _: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<u64>, StreamingError<Counters, Fatal<u64>>> {
        let answer = self.raft()?.install_full_snapshot(vote, snapshot).await;
        answer.map_err(|error| RemoteError::new(self.id, error).into())
    }
}

/// The store of a node, which is made at the first run.
fn store(path: &Path) -> Result<Store, Box<dyn Error>> {
    let options = StoreOptions::new();
    Ok(if path.exists() { Store::open(path, &options)? } else { Store::create(path, 16 << 20, &options)? })
}

/// Adds 1 to a counter, by the node that is the leader. When this returns, a majority of the nodes has it durably.
async fn count(rafts: &BTreeMap<u64, Raft<Counters>>, name: &str) -> Result<u64, Box<dyn Error>> {
    loop {
        for raft in rafts.values() {
            match raft.client_write((name.to_owned(), 1)).await {
                Ok(written) => return Ok(written.data),
                // Another node may be the leader. A leader that loses its office answers this, too: then what it was told may be done, and this adds once more.
                Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_))) => {}
                Err(error) => return Err(error.into()),
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args_os().nth(1).ok_or("usage: counters DIRECTORY")?;
    std::fs::create_dir_all(&directory)?;
    let nodes = Nodes::default();
    let mut rafts = BTreeMap::new();
    for id in 1..=3_u64 {
        // openraft draws a timeout once in a process: nodes with the same one could stand for election at the same time again and again.
        let patience = 300 * id;
        let config = Config {
            cluster_name: "counters".into(),
            election_timeout_min: patience,
            election_timeout_max: patience + 100,
            ..Config::default()
        };
        let config = Arc::new(config.validate()?);
        let storage = Storage::open(store(&Path::new(&directory).join(format!("{id}.pm")))?)?;
        let network = Network(Arc::clone(&nodes));
        let (log, machine) = (storage.log(), storage.state_machine());
        rafts.insert(id, Raft::new(id, config, network, log, machine).await?);
    }
    nodes.set(rafts.clone()).map_err(|_| "the nodes are there already")?;
    let raft = &rafts[&1];
    if !raft.is_initialized().await? {
        raft.initialize(BTreeMap::from([1, 2, 3].map(|id| (id, BasicNode::default())))).await?;
    }
    let run = count(&rafts, "runs").await?;
    println!("run {run}");
    for raft in rafts.values() {
        raft.shutdown().await?;
    }
    Ok(())
}
