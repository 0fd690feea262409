//! The members of the cluster: their state, and changes of them.

use super::member::{DEADLINE, Member, leader_in};
use crate::peer::{Body, Change, Description, Link, NodeStatus, Outcome, Request, Status};
use crate::program::{Answer, Command, Registry};
use openraft::error::{InitializeError, RaftError};
use openraft::{BasicNode, ChangeMembers};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

/// How long a node that is to be added may take to answer.
const DESCRIPTION: Duration = Duration::from_secs(5);

/// How long the leader may take to answer.
const STATUS: Duration = Duration::from_secs(2);

/// How long a change may take when the nodes have the log. Without a majority it takes until there is one.
const CHANGE: Duration = Duration::from_secs(20);

/// The time between two looks at a node that receives the log.
const LOOK: Duration = Duration::from_millis(50);

/// The entries of the log that a node may lack when it begins to vote.
const LAG: u64 = 1000;

/// How long the others may take to tell a new node of a leader.
const LED: Duration = Duration::from_millis(100);

impl Member {
    /// Begins a cluster of these nodes on one that has no log. If the others have begun it and have a leader, the log comes from there: openraft lets a node that
    /// begins a cluster stand for election at once, which would end that leader's term.
    pub(crate) async fn begin(&self, nodes: &BTreeMap<u64, String>) -> Result<(), String> {
        if self.is_led(nodes).await {
            eprintln!(
                "node {} waits for the log of the cluster, which the others have begun",
                self.identity.id()
            );
            return Ok(());
        }
        let members: BTreeMap<u64, BasicNode> =
            nodes.iter().map(|(id, address)| (*id, BasicNode::new(address))).collect();
        match self.raft.initialize(members).await {
            // All nodes propose the same members, and one that has any keeps them.
            Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Whether another node knows of a leader of exactly these nodes.
    async fn is_led(&self, nodes: &BTreeMap<u64, String>) -> bool {
        let mut calls = JoinSet::new();
        for (other, address) in nodes.iter().filter(|(other, _)| **other != self.identity.id()) {
            // Not one of the links that writes use, which pause after a failure: the others may be about to start.
            let link = Link::new(Arc::clone(&self.identity), *other, address.clone());
            calls.spawn(async move { timeout(LED, link.call(&Request::Status)).await });
        }
        calls.join_all().await.into_iter().any(|answer| {
            let Ok(Ok(Ok(Body::Status(status)))) = answer else { return false };
            status.leader.is_some() && status.nodes.iter().map(|node| node.id).eq(nodes.keys().copied())
        })
    }

    /// The state of the cluster as the leader sees it, or as this node does if no leader answers.
    pub(crate) async fn status(&self) -> Status {
        let leader = self.leader().filter(|leader| *leader != self.identity.id());
        if let Some(link) = leader.and_then(|leader| self.links.get(leader))
            && let Ok(Ok(Ok(Body::Status(status)))) = timeout(STATUS, link.call(&Request::Status)).await
        {
            return status;
        }
        self.status_here()
    }

    /// The state of the cluster as this node sees it.
    pub(super) fn status_here(&self) -> Status {
        let metrics = self.raft.metrics().borrow().clone();
        let membership = metrics.membership_config.membership();
        let voters: BTreeSet<u64> = membership.voter_ids().collect();
        let last_log_index = metrics.last_log_index.unwrap_or(0);
        let lag = |id: &u64| {
            if *id == metrics.id {
                return (leader_in(&metrics) == Some(metrics.id)).then_some(0);
            }
            let matched = (*metrics.replication.as_ref()?.get(id)?)?;
            Some(last_log_index.saturating_sub(matched.index))
        };
        let node = |(id, node): (&u64, &BasicNode)| NodeStatus {
            id: *id,
            address: node.addr.clone(),
            is_voter: voters.contains(id),
            lag: lag(id),
        };
        Status {
            node: metrics.id,
            leader: leader_in(&metrics),
            term: metrics.current_term,
            last_log_index,
            applied_index: metrics.last_applied.map_or(0, |id| id.index),
            is_changing: membership.get_joint_config().len() > 1,
            nodes: membership.nodes().map(node).collect(),
        }
    }

    /// Changes the members of the cluster, and returns when the change is complete.
    pub(crate) async fn change(&self, change: Change) -> Result<(), String> {
        let leader = self.await_leader(Instant::now() + DEADLINE).await?;
        if leader == self.identity.id() {
            return self.change_here(change).await;
        }
        let link = self.links.get(leader).ok_or("the address of the leader is not known")?;
        match link.call(&Request::Change(change)).await {
            Ok(Ok(Body::Changed)) => Ok(()),
            Ok(Ok(_)) => Err("the leader's answer is one to another request".to_owned()),
            Ok(Err(reason)) => Err(reason),
            Err(error) => Err(format!("the leader: {error}; the change may have been made")),
        }
    }

    /// Makes a change on this node, which must be the leader.
    pub(super) async fn change_here(&self, change: Change) -> Result<(), String> {
        match change {
            Change::Add { id, address } => self.add(id, address).await,
            Change::Remove { id } => self.remove(id).await,
        }
    }

    async fn add(&self, id: u64, address: String) -> Result<(), String> {
        let nodes = self.status_here().nodes;
        match nodes.iter().find(|node| node.id == id) {
            Some(node) if node.address != address => {
                return Err(format!("node {id} is a member at {}: remove it first", node.address));
            }
            Some(_) => {}
            None => self.register_new(id, &address).await?,
        }
        let node = ChangeMembers::AddNodes(BTreeMap::from([(id, BasicNode::new(address))]));
        self.change_membership(node, true).await?;
        self.await_log(id).await?;
        self.change_membership(ChangeMembers::AddVoterIds(BTreeSet::from([id])), true).await
    }

    /// Registers the file of a node that is to be added.
    async fn register_new(&self, id: u64, address: &str) -> Result<(), String> {
        let link = Link::new(Arc::clone(&self.identity), id, address.to_owned());
        let described = timeout(DESCRIPTION, link.call(&Request::Describe)).await;
        let Description { file, is_new } = match described {
            Ok(Ok(Ok(Body::Description(description)))) => description,
            Ok(Ok(Ok(_))) => return Err("the node's answer is one to another request".to_owned()),
            Ok(Ok(Err(reason))) => return Err(format!("node {id} at {address}: {reason}")),
            Ok(Err(error)) => return Err(format!("node {id} at {address}: {error}")),
            Err(_) => return Err(format!("node {id} at {address} does not answer")),
        };
        // A node that was a member, with its file, may come back: it has what it has promised.
        if !is_new && !self.registry()?.is_of(id, file) {
            return Err(format!(
                "node {id} has the log of another cluster: give it a new store, and serve it with --join"
            ));
        }
        self.register(id, Some(file)).await
    }

    /// Waits until a node has nearly all of the log.
    async fn await_log(&self, id: u64) -> Result<(), String> {
        loop {
            let status = self.status_here();
            if status.leader != Some(self.identity.id()) {
                return Err("the leader has changed".to_owned());
            }
            let Some(node) = status.nodes.iter().find(|node| node.id == id) else {
                return Err(format!("node {id} was removed"));
            };
            if node.lag.is_some_and(|lag| lag <= LAG) {
                return Ok(());
            }
            sleep(LOOK).await;
        }
    }

    async fn remove(&self, id: u64) -> Result<(), String> {
        let nodes = self.status_here().nodes;
        let Some(node) = nodes.iter().find(|node| node.id == id) else {
            return Err(format!("the cluster has no node {id}"));
        };
        if node.is_voter && !nodes.iter().any(|other| other.is_voter && other.id != id) {
            return Err(format!("node {id} is the last one"));
        }
        // It may come back with this file, and its number never with another one. A file that was never met does not come back.
        if !self.registry()?.has(id) {
            self.register(id, self.file_of(id, &nodes).await?).await?;
        }
        let removed = if node.is_voter {
            ChangeMembers::RemoveVoters(BTreeSet::from([id]))
        } else {
            ChangeMembers::RemoveNodes(BTreeSet::from([id]))
        };
        self.change_membership(removed, false).await
    }

    /// The file of a member, as this node knows it or another one that answers.
    async fn file_of(&self, id: u64, nodes: &[NodeStatus]) -> Result<Option<[u8; 16]>, String> {
        let known = self.identity.file_of(id).map_err(|error| error.to_string())?;
        if known.is_some() {
            return Ok(known);
        }
        for link in nodes.iter().filter(|node| node.id != id).filter_map(|node| self.links.get(node.id)) {
            if let Ok(Ok(Ok(Body::File(Some(file))))) = timeout(STATUS, link.call(&Request::FileOf(id))).await
            {
                return Ok(Some(file));
            }
        }
        Ok(None)
    }

    async fn change_membership(
        &self,
        change: ChangeMembers<u64, BasicNode>,
        retain: bool,
    ) -> Result<(), String> {
        match timeout(CHANGE, self.raft.change_membership(change, retain)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("no majority answers; the change may still be made".to_owned()),
        }
    }

    fn registry(&self) -> Result<Registry, String> {
        let found = self.reader.get_all([Registry::KEY], usize::MAX).map_err(|error| error.to_string())?;
        Registry::decode(found.into_iter().flatten().next().as_deref()).map_err(|error| error.to_string())
    }

    /// Gives a node its file for good.
    async fn register(&self, id: u64, file: Option<[u8; 16]>) -> Result<(), String> {
        let command = Command::Register { id, file };
        let permit = self.permit(&command, Instant::now() + DEADLINE).await?;
        match self.submit_here(command, permit).await.await {
            Outcome::Answer(Answer::Done) => Ok(()),
            Outcome::Answer(_) => Err(format!(
                "node {id} had another file: a number is never used twice, so take a new one for this file"
            )),
            Outcome::NotExecuted(reason) | Outcome::Unknown(reason) => Err(reason),
        }
    }

    /// What a cluster that is to add this node needs to know. After that a new node does not begin a cluster of its own.
    pub(super) async fn describe(&self) -> Result<Description, String> {
        self.identity.note_described().map_err(|error| error.to_string())?;
        let is_initialized = self.raft.is_initialized().await.map_err(|error| error.to_string())?;
        Ok(Description { file: self.identity.file(), is_new: !is_initialized })
    }
}
