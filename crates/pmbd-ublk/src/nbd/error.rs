//! Why a server could not be set up.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why a server could not listen. No action of a client causes one of these.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message names the fields")]
#[non_exhaustive]
pub enum NbdError {
    /// A server listens at the socket's path.
    #[error("a server is listening on {} already", path.display())]
    SocketInUse { path: PathBuf },
    /// The file at the socket's path is not a socket.
    #[error("{} exists and is not a socket; it was left alone", path.display())]
    NotASocket { path: PathBuf },
    /// The system does not allow a socket at this path.
    #[error("no permission for a socket at {}", path.display())]
    Permission { path: PathBuf, source: io::Error },
    /// The socket could not be made for another reason, such as a missing directory or a path of more than 107 bytes.
    #[error("cannot listen on {}", path.display())]
    BindUnix { path: PathBuf, source: io::Error },
    /// Other machines reach the address, and [`NbdOptions::allow_remote`](super::NbdOptions) is not set.
    #[error("{addr} is not a loopback address, and NBD has neither passwords nor encryption")]
    NotLoopback { addr: SocketAddr },
    /// The TCP socket could not be made.
    #[error("cannot listen on {addr}")]
    BindTcp { addr: SocketAddr, source: io::Error },
    /// The protocol allows 4,096 bytes for a name or a description.
    #[error("an export's {what} of {len_bytes} bytes is too long: the protocol allows 4096")]
    TextTooLong { what: &'static str, len_bytes: usize },
    /// A server for no clients.
    #[error("the limit of clients must be at least 1")]
    NoClients,
    /// The async runtime refused a listening socket.
    #[error("cannot accept clients")]
    Runtime { source: io::Error },
}
