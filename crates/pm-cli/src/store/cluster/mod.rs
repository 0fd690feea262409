//! `pm store serve` and `pm store cluster`: the nodes of a cluster that replicates a store.

mod connection;
mod members;
mod password;
mod serve;

pub(super) use members::run as run_cluster;
pub(super) use serve::run as run_serve;
