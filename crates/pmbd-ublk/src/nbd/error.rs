//! Why the server could not be set up, or had to end.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why a server could not listen. What a client does never ends in one of these.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NbdError {
    /// Somebody answers at the socket's path.
    #[error("a server is listening on {} already", path.display())]
    SocketInUse {
        /// The path.
        path: PathBuf,
    },
    /// There is something at the socket's path that a server did not leave behind.
    #[error("{} exists and is not a socket; it was left alone", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The system does not allow a socket at this path.
    #[error("no permission for a socket at {}", path.display())]
    Permission {
        /// The path.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// The socket could not be made for another reason, as a directory that is not there or a path of more than 107
    /// bytes.
    #[error("cannot listen on {}", path.display())]
    BindUnix {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The address is one that other machines reach, and [`NbdOptions::allow_remote`](super::NbdOptions) is not set.
    #[error("{addr} is not a loopback address, and NBD has neither passwords nor encryption")]
    NotLoopback {
        /// The address.
        addr: SocketAddr,
    },
    /// The TCP socket could not be made.
    #[error("cannot listen on {addr}")]
    BindTcp {
        /// The address.
        addr: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The protocol allows 4,096 bytes for a name or a description.
    #[error("an export's {what} of {len_bytes} bytes is too long: the protocol allows 4096")]
    TextTooLong {
        /// "name" or "description".
        what: &'static str,
        /// Its length.
        len_bytes: usize,
    },
    /// A server for no clients.
    #[error("the limit of clients must be at least 1")]
    NoClients,
    /// The async runtime refused a listening socket.
    #[error("cannot accept clients")]
    Runtime {
        /// What it said.
        source: io::Error,
    },
}
