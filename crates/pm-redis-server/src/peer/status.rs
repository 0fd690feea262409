//! The state of the cluster, as one node sees it.

use serde::{Deserialize, Serialize};

/// The state of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Status {
    /// The node that says so: the leader, unless there is none.
    pub(crate) node: u64,
    pub(crate) leader: Option<u64>,
    pub(crate) term: u64,
    pub(crate) last_log_index: u64,
    pub(crate) applied_index: u64,
    /// Whether a change of the voters has begun that is not complete.
    pub(crate) is_changing: bool,
    pub(crate) nodes: Vec<NodeStatus>,
}

/// The state of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeStatus {
    pub(crate) id: u64,
    pub(crate) address: String,
    /// Whether it votes, or only receives the log.
    pub(crate) is_voter: bool,
    /// The entries of the leader's log that it does not have. `None` if the leader has not heard of it.
    pub(crate) lag: Option<u64>,
}
