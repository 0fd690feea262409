//! The clients that are connected to a server.

use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{Shutdown, SocketAddrAny};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// A client in the transmission phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdClient {
    /// Its number, counted from the server's start.
    pub id: u64,
    /// The other end of its connection.
    pub peer: NbdPeer,
}

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NbdPeer {
    /// The process of this machine that connected to the Unix socket. It may have ended since: the kernel's NBD client keeps the connection
    /// of the process that made it.
    Process {
        /// Its number.
        pid: i32,
        /// Its name, if known.
        name: String,
    },
    /// A TCP client.
    Tcp(SocketAddr),
    /// Not reported by the system.
    Unknown,
}

impl fmt::Display for NbdPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, name } if name.is_empty() => write!(f, "process {pid}"),
            Self::Process { pid, name } => write!(f, "process {pid} ({name})"),
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unknown => write!(f, "unknown"),
        }
    }
}

impl NbdPeer {
    fn of(socket: impl AsFd) -> Self {
        if let Ok(process) = rustix::net::sockopt::socket_peercred(&socket)
            && process.pid.as_raw_nonzero().get() > 0
        {
            let pid = process.pid.as_raw_nonzero().get();
            // A process that has ended has no name.
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            return Self::Process { pid, name: name.trim_end().to_owned() };
        }
        let address = rustix::net::getpeername(&socket).ok().flatten();
        let address = address.and_then(|address: SocketAddrAny| SocketAddr::try_from(address).ok());
        address.map_or(Self::Unknown, Self::Tcp)
    }
}

/// A view of a server's clients. Cheap to clone; outlives the server.
#[derive(Clone, Debug, Default)]
pub struct NbdClients(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    clients: Mutex<BTreeMap<u64, (NbdPeer, Arc<OwnedFd>)>>,
    changes: watch::Sender<u64>,
}

impl NbdClients {
    /// The connected clients, in the order of connecting.
    #[must_use]
    pub fn list(&self) -> Vec<NbdClient> {
        self.lock().iter().map(|(id, (peer, _))| NbdClient { id: *id, peer: peer.clone() }).collect()
    }

    /// Changes with every client that connects or disconnects.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    pub(super) fn insert(&self, id: u64, socket: &Arc<OwnedFd>) {
        let peer = NbdPeer::of(socket);
        self.lock().insert(id, (peer, Arc::clone(socket)));
        self.0.changes.send_modify(|changes| *changes += 1);
    }

    pub(super) fn remove(&self, id: u64) {
        self.lock().remove(&id);
        self.0.changes.send_modify(|changes| *changes += 1);
    }

    /// Cuts every client's connection.
    pub(super) fn cut(&self) {
        for (_, socket) in self.lock().values() {
            // The client may have disconnected just now.
            if let Err(error) = rustix::net::shutdown(socket, Shutdown::Both) {
                tracing::debug!(%error, "a client had disconnected already");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, (NbdPeer, Arc<OwnedFd>)>> {
        self.0.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
