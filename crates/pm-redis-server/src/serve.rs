//! Starts a node, and serves it until it is stopped.

use crate::error::ServeError;
use crate::node::{self, Limits, Member};
use crate::peer::{Identity, Network};
use crate::program::Map;
use openraft::{Config, Raft, SnapshotPolicy};
use pm_btree::{Store, StoreOptions};
use pm_openraft::Storage;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, lookup_host};
use tokio::signal::unix::{SignalKind, signal};

/// The time between two heartbeats of the leader, in milliseconds.
const HEARTBEAT_MS: u64 = 200;

/// The time without a leader after which the first node stands for election, and that by which each further one waits longer, in milliseconds. openraft
/// draws a timeout once a process, so that two nodes with equal ones could tie for ever.
const ELECTION_MS: u64 = 900;
const RANK_MS: u64 = 200;

/// The first rank of nodes that join, and the number of their ranks: after it, those of two nodes can be the same.
const JOINED_RANK: u64 = 3;
const JOINED_RANKS: u64 = 5;

/// How often the space of the store is measured.
const MEASURE: Duration = Duration::from_millis(200);

/// A node and its cluster.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The file with the store.
    pub path: PathBuf,
    /// The id of this node.
    pub id: u64,
    /// The addresses of the nodes by their ids.
    pub cluster: BTreeMap<u64, String>,
    /// Whether the node waits until a cluster adds it. Otherwise it begins one with all nodes of `cluster`, if it has never been a member of any.
    pub joins: bool,
    /// The name of the cluster.
    pub name: String,
    /// The address for Prometheus, which reads `/metrics` there.
    pub metrics: Option<String>,
    /// The password of clients and nodes.
    pub password: Option<Vec<u8>>,
    /// The number of clients.
    pub clients: usize,
    /// The entries of the log that are kept for nodes that lag behind, in at most an eighth of the store. A node that lags further receives the whole state.
    pub log_entries: u64,
}

/// Serves a node until SIGINT or SIGTERM. `ready` is called with its address when it accepts connections.
///
/// # Errors
/// When the node cannot start. When it stops by itself: the store is full, or a fence fails.
///
/// # Durability
/// A write is durable on a majority of the nodes when its client has the answer.
pub fn serve(options: &ServeOptions, ready: impl FnOnce(&str)) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(run(options, ready))
}

async fn run(options: &ServeOptions, ready: impl FnOnce(&str)) -> Result<(), ServeError> {
    let ServeOptions { path, id, cluster, joins, name, metrics, password, clients, log_entries } = options;
    let known = || cluster.keys().copied().collect();
    let address = cluster.get(id).ok_or_else(|| ServeError::NoAddress { id: *id, known: known() })?;
    let listener = listen(address, password.is_some()).await?;
    let metrics = match metrics {
        // They tell no contents, and need no password.
        Some(address) => Some(listen(address, true).await?),
        None => None,
    };
    let failed = |error| ServeError::Storage { path: path.clone(), error };
    let store = Store::open(path, &StoreOptions::new())
        .map_err(|error| ServeError::Open { path: path.clone(), error: Box::new(error) })?;
    let storage = Arc::new(Storage::<Map>::open(store).map_err(failed)?);
    let identity = Arc::new(Identity::open(path, Arc::clone(&storage), name, *id, password.clone())?);
    // One that joins knows no other node. The numbers of those that do follow one another, usually.
    let rank = if *joins { JOINED_RANK + id % JOINED_RANKS } else { rank_among(cluster, *id) };
    let config = Arc::new(
        config(name, rank, *log_entries).validate().map_err(|error| ServeError::Config(Box::new(error)))?,
    );
    let network = Network::new(Arc::clone(&identity));
    let raft = Raft::new(*id, config, network, storage.log(), storage.state_machine())
        .await
        .map_err(|error| ServeError::Stopped(error.to_string()))?;
    let is_described = identity.is_described().map_err(failed)?;
    let is_initialized = raft.is_initialized().await;
    let is_initialized = is_initialized.map_err(|error| ServeError::Stopped(error.to_string()))?;
    if is_described && !is_initialized {
        eprintln!(
            "node {id} waits until the cluster that was told of this file adds it; for a new cluster take a new store"
        );
    }
    let member = Member::start(
        raft.clone(),
        storage,
        identity,
        cluster,
        Limits { clients: *clients, log_entries: *log_entries },
    );
    if !joins && !is_described && !is_initialized {
        member.begin(cluster).await.map_err(ServeError::Stopped)?;
    }
    let measured = Arc::clone(&member);
    tokio::spawn(async move {
        loop {
            let member = Arc::clone(&measured);
            // The first measurement visits all leaves of the store.
            if tokio::task::spawn_blocking(move || member.measure()).await.is_err() {
                break;
            }
            tokio::time::sleep(MEASURE).await;
        }
    });
    let bounded = Arc::clone(&member);
    tokio::spawn(async move {
        let mut sent = None;
        while bounded.bound_log(&mut sent).await.is_ok() {
            tokio::time::sleep(MEASURE).await;
        }
    });
    if let Some(listener) = metrics {
        // The port may be one that the kernel has chosen.
        eprintln!("metrics at http://{}/metrics", listener.local_addr()?);
        tokio::spawn(node::serve_metrics(Arc::clone(&member), listener));
    }
    let (mut terminated, mut interrupted) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    ready(address);
    let stopped = stopped(&raft);
    tokio::select! {
        () = node::serve(member, listener) => Ok(()),
        _ = terminated.recv() => shut_down(&raft).await,
        _ = interrupted.recv() => shut_down(&raft).await,
        reason = stopped => Err(ServeError::Stopped(reason)),
    }
}

async fn shut_down(raft: &Raft<Map>) -> Result<(), ServeError> {
    raft.shutdown().await.map_err(|error| ServeError::Stopped(error.to_string()))
}

/// Waits until the node stops by itself, and returns why. The metrics of the server change with its role; the others change with each entry.
async fn stopped(raft: &Raft<Map>) -> String {
    let mut role = raft.server_metrics();
    while role.changed().await.is_ok() {}
    match &raft.metrics().borrow().running_state {
        Err(fatal) => fatal.to_string(),
        Ok(()) => "its task has ended".to_owned(),
    }
}

async fn listen(address: &str, has_password: bool) -> Result<TcpListener, ServeError> {
    let failed = |error| ServeError::Listen { address: address.to_owned(), error };
    let found: Vec<_> = lookup_host(address).await.map_err(failed)?.collect();
    if let Some(open) = found.iter().find(|address| !address.ip().is_loopback())
        && !has_password
    {
        return Err(ServeError::NoPassword { address: *open });
    }
    TcpListener::bind(found.as_slice()).await.map_err(failed)
}

/// The place of a node among the first ones.
fn rank_among(cluster: &BTreeMap<u64, String>, id: u64) -> u64 {
    cluster.keys().take_while(|other| **other < id).map(|_| 1).sum()
}

fn config(name: &str, rank: u64, log_entries: u64) -> Config {
    let election_timeout_min = ELECTION_MS + rank * RANK_MS;
    Config {
        cluster_name: name.to_owned(),
        heartbeat_interval: HEARTBEAT_MS,
        election_timeout_min,
        election_timeout_max: election_timeout_min + RANK_MS / 2,
        install_snapshot_timeout: 60_000,
        max_payload_entries: 1000,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(log_entries.max(1)),
        // The member purges the log, by its length, too. openraft's own policy goes back behind a purge that waits for a replication, which it calls a defect.
        max_in_snapshot_log_to_keep: u64::MAX,
        ..Config::default()
    }
}
