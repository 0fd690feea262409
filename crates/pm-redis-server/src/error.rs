//! Errors of a node.

use pm_btree::OpenError;
use pm_openraft::StorageError;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why a node cannot start, or has stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The store cannot be opened.
    #[error("{}: {error}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: Box<OpenError>,
    },
    /// The tables of the log and the state cannot be opened.
    #[error("{}: {error}", path.display())]
    Storage {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: StorageError,
    },
    /// The store is that of another node.
    #[error(
        "{} belongs to node {found_id} of cluster {found_cluster:?}, not to node {id} of cluster {cluster:?}", path.display()
    )]
    OtherNode {
        /// The file.
        path: PathBuf,
        /// The id in the file.
        found_id: u64,
        /// The cluster in the file.
        found_cluster: String,
        /// The id of the options.
        id: u64,
        /// The cluster of the options.
        cluster: String,
    },
    /// The cluster has no address for the node.
    #[error("the cluster has no node {id}: it has {known:?}")]
    NoAddress {
        /// The id of the options.
        id: u64,
        /// The ids of the cluster.
        known: Vec<u64>,
    },
    /// An address is not a loopback address, and there is no password.
    #[error("{address} can be reached from other machines, and there is no password")]
    NoPassword {
        /// The address.
        address: SocketAddr,
    },
    /// An address cannot be served.
    #[error("{address}: {error}")]
    Listen {
        /// The address of the options.
        address: String,
        /// The reason.
        error: io::Error,
    },
    /// A system call fails.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// openraft refuses the options.
    #[error("the options of the cluster: {0}")]
    Config(Box<openraft::ConfigError>),
    /// The node has stopped.
    #[error("the node has stopped: {0}")]
    Stopped(String),
}
