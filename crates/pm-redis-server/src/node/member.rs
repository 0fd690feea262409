//! A member of the cluster: proposes writes to the leader, and confirms reads.

use super::admission::{Admission, LONGEST_ENTRY_BYTES, is_full, store_bytes};
use super::counts::Counts;
use super::proposer::{Proposal, propose};
use super::rooms::Others;
use crate::peer::{Body, CallError, Identity, Links, Outcome, Request};
use crate::program::{Command, Map};
use openraft::error::{Fatal, RaftError};
use openraft::{BasicNode, LogId, Raft, RaftMetrics};
use pm_openraft::{StateReader, Storage};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// How long a write waits for a leader and for memory, a read for its confirmation.
pub(super) const DEADLINE: Duration = Duration::from_secs(5);

/// How long a write waits for its answer.
const ANSWER: Duration = Duration::from_secs(10);

/// How long one confirmation of reads takes at most.
const CONFIRMATION: Duration = Duration::from_secs(1);

/// The time between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// The length of all writes without an answer.
const WRITES_BYTES: usize = 64 << 20;

/// What a write takes of that besides its strings.
const WRITE_BYTES: usize = 512;

/// The reads that share a confirmation.
const READS: usize = 64 << 10;

/// The part of the store from which the log is purged, however few entries it has. Half of it is kept for nodes that lag.
const LOG: u64 = 8;
const LOG_OF_FULL: u64 = 64;

/// The part of the store that the log may have while a node receives the state and then the entries after it, and how long that takes.
const LOG_OF_SENDER: u64 = 4;
const SENDING: Duration = Duration::from_secs(5);

/// The writes that wait for an entry of the log.
const PROPOSALS: usize = 64 << 10;

/// The outcome of a write that was submitted. The memory of one that was sent to another node is taken until this is awaited or dropped.
pub(crate) type Submitted = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// Bounds on clients and the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) clients: usize,
    /// The entries of the log that are kept for nodes that lag.
    pub(crate) log_entries: u64,
}

type Confirmation = oneshot::Sender<Result<(), String>>;

/// A member of the cluster.
pub(crate) struct Member {
    pub(crate) raft: Raft<Map>,
    pub(crate) reader: StateReader<Map>,
    pub(crate) identity: Arc<Identity>,
    pub(crate) limits: Limits,
    pub(crate) clients: AtomicU64,
    pub(super) counts: Counts,
    pub(super) storage: Arc<Storage<Map>>,
    pub(super) links: Arc<Links>,
    reads: mpsc::Sender<Confirmation>,
    proposals: mpsc::Sender<Proposal>,
    writes: Arc<Semaphore>,
    /// One reception of a snapshot begins, is installed or fails at a time. Has the reason of the last failure, which is told once.
    pub(super) reception: Mutex<Option<String>>,
    is_full: AtomicBool,
}

/// A share of the memory for writes.
pub(crate) type Permit = OwnedSemaphorePermit;

/// The leader, as a node knows it. openraft names a leader that was removed for as long as no other one calls it.
pub(super) fn leader_in(metrics: &RaftMetrics<u64, BasicNode>) -> Option<u64> {
    let is_removed = |id: u64| {
        let mut nodes = metrics.membership_config.nodes().peekable();
        id == metrics.id && nodes.peek().is_some() && nodes.all(|(other, _)| *other != id)
    };
    metrics.current_leader.filter(|leader| !is_removed(*leader))
}

/// The share of the memory for writes that a command takes.
fn share(command: &Command) -> u32 {
    u32::try_from((command.len_bytes() + WRITE_BYTES).min(WRITES_BYTES)).unwrap_or(u32::MAX)
}

/// An outcome that is known at once.
fn at_once(outcome: Outcome) -> Submitted {
    Box::pin(std::future::ready(outcome))
}

impl Member {
    /// A member with links to the other ones, and the task that confirms reads.
    pub(crate) fn start(
        raft: Raft<Map>,
        storage: Arc<Storage<Map>>,
        identity: Arc<Identity>,
        addresses: &BTreeMap<u64, String>,
        limits: Limits,
    ) -> Arc<Self> {
        let links = Arc::new(Links::new(Arc::clone(&identity)));
        links.set(addresses.iter().map(|(id, address)| (*id, address.as_str())));
        let (reads, waiting) = mpsc::channel(READS);
        let (proposals, proposed) = mpsc::channel(PROPOSALS);
        let member = Arc::new(Self {
            raft,
            reader: storage.reader(),
            identity,
            limits,
            clients: AtomicU64::new(0),
            counts: Counts::default(),
            storage,
            links,
            reads,
            proposals,
            writes: Arc::new(Semaphore::new(WRITES_BYTES)),
            reception: Mutex::default(),
            is_full: AtomicBool::new(false),
        });
        tokio::spawn(Arc::clone(&member).confirm_reads(waiting));
        let admission = Admission::new(Arc::clone(&member.storage));
        let (raft, others) = (member.raft.clone(), Others::new(Arc::clone(&member.links)));
        tokio::spawn(propose(raft, member.identity.id(), others, admission, proposed));
        tokio::spawn(Arc::clone(&member).follow_members());
        member
    }

    /// Keeps the links that the members of the cluster need. Before there are any, those of the start are kept.
    async fn follow_members(self: Arc<Self>) {
        let mut metrics = self.raft.metrics();
        let mut known = None;
        loop {
            let membership = Arc::clone(&metrics.borrow_and_update().membership_config);
            let mut nodes = membership.nodes().peekable();
            if known != *membership.log_id() && nodes.peek().is_some() {
                known = *membership.log_id();
                self.links.set(nodes.map(|(id, node)| (*id, node.addr.as_str())));
                if membership.membership().get_node(&self.identity.id()).is_none() {
                    eprintln!("node {} is no longer a member of the cluster", self.identity.id());
                }
            }
            if metrics.changed().await.is_err() {
                break;
            }
        }
    }

    pub(crate) fn leader(&self) -> Option<u64> {
        leader_in(&self.raft.metrics().borrow())
    }

    /// The leader, for which this waits.
    pub(super) async fn await_leader(&self, deadline: Instant) -> Result<u64, String> {
        let mut metrics = self.raft.metrics();
        loop {
            if let Some(leader) = leader_in(&metrics.borrow_and_update()) {
                return Ok(leader);
            }
            match timeout_at(deadline, metrics.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err("the node has stopped".to_owned()),
                Err(_) => return Err("the cluster has no leader".to_owned()),
            }
        }
    }

    /// Submits a write, after those of earlier calls that have returned. `permit` is its own. Until `deadline` it waits for a leader.
    pub(crate) async fn submit(&self, command: Command, permit: Permit, deadline: Instant) -> Submitted {
        let leader = match self.await_leader(deadline).await {
            Ok(leader) => leader,
            Err(reason) => return at_once(Outcome::NotExecuted(reason)),
        };
        if leader == self.identity.id() {
            return self.submit_here(command, permit).await;
        }
        let Some(link) = self.links.get(leader) else {
            return at_once(Outcome::NotExecuted(format!("the address of leader {leader} is not known")));
        };
        let deadline = Instant::now() + ANSWER;
        match link.send(&Request::Propose(command)).await {
            Err(error) => {
                at_once(Outcome::NotExecuted(format!("leader {leader} cannot be reached: {error}")))
            }
            Ok(answer) => Box::pin(async move {
                let answer = timeout_at(deadline, answer).await;
                drop(permit);
                match answer {
                    Ok(Ok(Ok(Body::Outcome(outcome)))) => outcome,
                    Ok(Ok(Ok(_))) => {
                        Outcome::Unknown("the leader's answer is one to another request".to_owned())
                    }
                    Ok(Ok(Err(reason))) => Outcome::Unknown(reason),
                    Ok(Err(_)) => Outcome::Unknown("the connection to the leader was lost".to_owned()),
                    Err(_) => Outcome::Unknown("the leader does not answer".to_owned()),
                }
            }),
        }
    }

    /// Proposes a write on this node. One that is not the leader does not execute it.
    pub(crate) async fn submit_here(&self, command: Command, permit: Permit) -> Submitted {
        if self.leader() != Some(self.identity.id()) {
            return at_once(Outcome::NotExecuted("the node is not the leader".to_owned()));
        }
        let deadline = Instant::now() + ANSWER;
        let (outcome, answer) = oneshot::channel();
        if self.proposals.send(Proposal { command, outcome, permit }).await.is_err() {
            return at_once(Outcome::NotExecuted("the node has stopped".to_owned()));
        }
        Box::pin(async move {
            match timeout_at(deadline, answer).await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(_)) => Outcome::Unknown("the node has stopped".to_owned()),
                Err(_) => Outcome::Unknown("no majority answers".to_owned()),
            }
        })
    }

    /// A share of the memory for a write, if it is there.
    pub(crate) fn try_permit(&self, command: &Command) -> Option<Permit> {
        Arc::clone(&self.writes).try_acquire_many_owned(share(command)).ok()
    }

    /// A share of the memory for a write, for which this waits. The caller has no writes whose outcome it does not await meanwhile: they may have the memory.
    pub(crate) async fn permit(&self, command: &Command, deadline: Instant) -> Result<Permit, String> {
        match timeout_at(deadline, Arc::clone(&self.writes).acquire_many_owned(share(command))).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) => Err("the node has stopped".to_owned()),
            Err(_) => Err("too many writes wait".to_owned()),
        }
    }

    /// Returns when this node's state has all writes that were answered before the call.
    pub(crate) async fn confirm(&self) -> Result<(), String> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let (sender, confirmed) = oneshot::channel();
            if self.reads.send(sender).await.is_err() {
                return Err("the node has stopped".to_owned());
            }
            let reason = match confirmed.await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(reason)) => reason,
                Err(_) => "the node has stopped".to_owned(),
            };
            if Instant::now() >= deadline {
                return Err(reason);
            }
            sleep(PAUSE).await;
        }
    }

    /// Confirms all reads that wait with one question to the cluster.
    async fn confirm_reads(self: Arc<Self>, mut waiting: mpsc::Receiver<Confirmation>) {
        let mut reads = Vec::new();
        while waiting.recv_many(&mut reads, READS).await != 0 {
            let confirmed = match timeout(CONFIRMATION, self.confirm_once()).await {
                Ok(confirmed) => confirmed,
                Err(_) => Err("no majority answers".to_owned()),
            };
            for read in reads.drain(..) {
                // A client that waits no more needs no confirmation.
                drop(read.send(confirmed.clone()));
            }
        }
    }

    async fn confirm_once(&self) -> Result<(), String> {
        let leader = self.await_leader(Instant::now() + DEADLINE).await?;
        if leader == self.identity.id() {
            return self.read_index().await.map(drop);
        }
        let link = self.links.get(leader).ok_or("the address of the leader is not known")?;
        let answer = link.call(&Request::ReadIndex).await.map_err(|error: CallError| error.to_string())?;
        let Body::ReadIndex(index) = answer? else {
            return Err("the leader's answer is one to another request".to_owned());
        };
        let applied = self.raft.wait(Some(CONFIRMATION)).applied_index_at_least(index, "a read").await;
        applied.map(drop).map_err(|error| error.to_string())
    }

    /// The entry that the state needs for a read that starts now: the question of another node, or of this one, which is the leader.
    pub(crate) async fn read_index(&self) -> Result<Option<u64>, String> {
        match self.raft.ensure_linearizable().await {
            Ok(id) => Ok(id.map(|id| id.index)),
            Err(RaftError::APIError(error)) => Err(error.to_string()),
            Err(RaftError::Fatal(error)) => Err(error.to_string()),
        }
    }

    /// Notes how much room there is, and returns space that is not in use any more to the heap.
    pub(crate) fn measure(&self) {
        let store = self.storage.store();
        let Ok(stats) = store.stats() else { return };
        let Ok(room) = self.storage.room(LONGEST_ENTRY_BYTES) else { return };
        self.is_full.store(is_full(&room, store_bytes(&self.storage)), Ordering::Relaxed);
        self.counts.store_bytes.store(stats.pool_bytes, Ordering::Relaxed);
        self.counts.used_bytes.store(stats.used_bytes, Ordering::Relaxed);
        self.counts.available_bytes.store(room.whole_bytes(), Ordering::Relaxed);
        self.counts.log_bytes.store(self.storage.log_bytes(), Ordering::Relaxed);
    }

    /// Lets openraft purge entries, if the log has too many, or takes too much of the store: less of a full one, in which removals need room for theirs. `sent` is when
    /// a node was last seen to send its state: then the receiver needs the entries after that.
    pub(crate) async fn bound_log(&self, sent: &mut Option<Instant>) -> Result<(), Fatal<u64>> {
        let next = |id: Option<LogId<u64>>| id.map_or(0, |id| id.index + 1);
        let (snapshot, purged) = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow();
            (next(metrics.snapshot), next(metrics.purged))
        };
        let now = Instant::now();
        if self.storage.is_sending(SENDING) {
            *sent = Some(now);
        }
        let is_sending = sent.is_some_and(|sent| now - sent < SENDING);
        let kept = self.limits.log_entries;
        let mut end = snapshot.saturating_sub(kept);
        if end < purged + (kept / 10).clamp(1, 1000) || is_sending {
            end = 0;
        }
        let part = match (self.is_full.load(Ordering::Relaxed), is_sending) {
            (true, _) => LOG_OF_FULL,
            (false, true) => LOG_OF_SENDER,
            (false, false) => LOG,
        };
        let limit_bytes = store_bytes(&self.storage) / part;
        let is_long = self.storage.log_bytes() > limit_bytes;
        if is_long && let Some(last) = self.storage.log_before_newest(limit_bytes / 2) {
            end = end.max(snapshot.min(last + 1));
        }
        if end > purged {
            self.raft.trigger().purge_log(end - 1).await?;
        }
        // The snapshot is a view of the state as it is, which takes no time.
        if is_long { self.raft.trigger().snapshot().await } else { Ok(()) }
    }

    /// The text of INFO.
    pub(crate) fn info(&self) -> String {
        let metrics = self.raft.metrics().borrow().clone();
        let index = |id: Option<openraft::LogId<u64>>| id.map_or(0, |id| id.index);
        let leader = leader_in(&metrics);
        let role = if leader == Some(metrics.id) { "master" } else { "slave" };
        let leader = leader.map_or_else(|| "none".to_owned(), |id| id.to_string());
        let clients = self.clients.load(Ordering::Relaxed);
        let lines = [
            "# Server".to_owned(),
            format!("pm_version:{}", env!("CARGO_PKG_VERSION")),
            "# Clients".to_owned(),
            format!("connected_clients:{clients}"),
            "# Replication".to_owned(),
            format!("role:{role}"),
            format!("node_id:{}", metrics.id),
            format!("leader_id:{leader}"),
            format!("term:{}", metrics.current_term),
            format!("last_log_index:{}", metrics.last_log_index.unwrap_or(0)),
            format!("applied_index:{}", index(metrics.last_applied)),
            format!("purged_index:{}", index(metrics.purged)),
            format!("store_full:{}", u8::from(self.is_full.load(Ordering::Relaxed))),
        ];
        lines.map(|line| line + "\r\n").concat()
    }
}
