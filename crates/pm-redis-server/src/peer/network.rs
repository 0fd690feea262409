//! openraft's network: a link to each node.

use super::identity::Identity;
use super::link::{CallError, Link};
use super::wire::{Body, Request};
use crate::program::Map;
use openraft::error::{
    Fatal, NetworkError, RPCError, RaftError, ReplicationClosed, StreamingError, Unreachable,
};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{BasicNode, OptionalSend, Snapshot, Vote};
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The time between two attempts to reach a node.
const BACKOFF: Duration = Duration::from_millis(200);

/// Makes a link to each node.
pub(crate) struct Network {
    identity: Arc<Identity>,
    /// The links that clients of nodes share, as long as there is such a client.
    links: BTreeMap<u64, Weak<Link>>,
}

impl Network {
    pub(crate) const fn new(identity: Arc<Identity>) -> Self {
        Self { identity, links: BTreeMap::new() }
    }
}

impl RaftNetworkFactory<Map> for Network {
    type Network = Target;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Target {
        let new = || Link::new(Arc::clone(&self.identity), target, node.addr.clone());
        // openraft wants a client for each confirmation of reads, for which a new connection would be slow.
        let known = self.links.get(&target).and_then(Weak::upgrade);
        let shared = known.filter(|link| link.address() == node.addr).unwrap_or_else(|| Arc::new(new()));
        self.links.insert(target, Arc::downgrade(&shared));
        Target { shared, own: new() }
    }
}

/// A node to which openraft sends.
pub(crate) struct Target {
    /// The link that all clients of the node use.
    shared: Arc<Link>,
    /// That of a snapshot, of which a connection has one at a time.
    own: Link,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("the node answers: {0}")]
    Refused(String),
    #[error("the node's answer is one to another request")]
    OtherAnswer,
}

impl Failure {
    fn into_rpc<E: std::error::Error>(self) -> RPCError<u64, BasicNode, E> {
        match self {
            Self::Call(CallError::NotSent(error)) => Unreachable::new(&error).into(),
            error => NetworkError::new(&error).into(),
        }
    }

    fn into_streaming(self) -> StreamingError<Map, Fatal<u64>> {
        match self {
            Self::Call(CallError::NotSent(error)) => Unreachable::new(&error).into(),
            // Such as that its store is full: the next attempt comes after a pause.
            error @ Self::Refused(_) => Unreachable::new(&error).into(),
            error => NetworkError::new(&error).into(),
        }
    }
}

impl Target {
    async fn call(link: &Link, request: &Request) -> Result<Body, Failure> {
        link.call(request).await?.map_err(Failure::Refused)
    }

    /// Sends a snapshot in parts, of which each waits for the answer to the one before it.
    async fn send(
        &self,
        vote: Vote<u64>,
        mut snapshot: Snapshot<Map>,
    ) -> Result<SnapshotResponse<u64>, Failure> {
        let received = |body| match body {
            Body::Received => Ok(()),
            _ => Err(Failure::OtherAnswer),
        };
        match Self::call(&self.own, &Request::SnapshotStart { vote, meta: snapshot.meta }).await? {
            Body::Received => {}
            // The node follows a later vote.
            Body::Installed(vote) => return Ok(SnapshotResponse::new(vote)),
            _ => return Err(Failure::OtherAnswer),
        }
        loop {
            // A snapshot that is outdated is built again for the next attempt.
            let entries = snapshot.snapshot.next_entries();
            let entries = entries.map_err(|error| CallError::NotSent(io::Error::other(error)))?;
            if entries.is_empty() {
                break;
            }
            received(Self::call(&self.own, &Request::SnapshotPart(entries)).await?)?;
        }
        match Self::call(&self.own, &Request::SnapshotEnd).await? {
            Body::Installed(vote) => Ok(SnapshotResponse::new(vote)),
            _ => Err(Failure::OtherAnswer),
        }
    }
}

impl RaftNetwork<Map> for Target {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Map>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, RPCError<u64, BasicNode, RaftError<u64>>> {
        match Self::call(&self.shared, &Request::Append(request)).await {
            Ok(Body::Append(response)) => Ok(response),
            Ok(_) => Err(Failure::OtherAnswer.into_rpc()),
            Err(failure) => Err(failure.into_rpc()),
        }
    }

    async fn vote(
        &mut self,
        request: VoteRequest<u64>,
        _: RPCOption,
    ) -> Result<VoteResponse<u64>, RPCError<u64, BasicNode, RaftError<u64>>> {
        match Self::call(&self.shared, &Request::Vote(request)).await {
            Ok(Body::Vote(response)) => Ok(response),
            Ok(_) => Err(Failure::OtherAnswer.into_rpc()),
            Err(failure) => Err(failure.into_rpc()),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote<u64>,
        snapshot: Snapshot<Map>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<u64>, StreamingError<Map, Fatal<u64>>> {
        let (sent, cancel) = (pin!(self.send(vote, snapshot)), pin!(cancel));
        tokio::select! {
            closed = cancel => Err(closed.into()),
            sent = sent => sent.map_err(Failure::into_streaming),
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(BACKOFF))
    }
}
