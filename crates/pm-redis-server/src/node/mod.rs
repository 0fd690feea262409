//! A node: writes and reads, connections of clients and of other nodes.

mod admission;
mod client;
mod cluster;
mod counts;
mod listen;
mod member;
mod metrics;
mod peer;
mod proposer;
mod rooms;

pub(crate) use listen::serve;
pub(crate) use member::{Limits, Member};
pub(crate) use metrics::serve_metrics;
