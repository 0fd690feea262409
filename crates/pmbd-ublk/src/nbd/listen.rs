//! Listening sockets: they replace only the socket of a dead server, and remove only their own.

use super::error::NbdError;
use rustix::fs::{AtFlags, CWD, FileType, Mode, Stat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// A Unix socket that listens, and its name in the file system, which goes when this is dropped.
#[derive(Debug)]
pub(super) struct UnixSocket {
    pub(super) listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the name, so that no other socket is removed.
    identity: (u64, u64),
}

impl UnixSocket {
    /// Listens at `path`, for this user only. The socket of a dead server is replaced.
    pub(super) fn bind(path: &Path) -> Result<Self, NbdError> {
        make_way(path)?;
        let failed = |errno: Errno| refused(path, errno.into());
        let listener = bound(path).map_err(failed)?.into();
        let found = stat(path).inspect_err(|_| {
            if let Err(error) = std::fs::remove_file(path) {
                tracing::warn!(path = %path.display(), %error, "cannot remove the socket");
            }
        });
        let identity = identity(&found.map_err(failed)?);
        // From here on an error removes the name, if it is still this socket's: until it listens, another server may take it.
        let socket = Self { listener, path: path.to_path_buf(), identity };
        rustix::net::listen(&socket.listener, 128).map_err(failed)?;
        Ok(socket)
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        if stat(&self.path).is_ok_and(|now| identity(&now) == self.identity)
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket");
        }
    }
}

/// Removes a socket without a listener; any other file at `path` is an error.
fn make_way(path: &Path) -> Result<(), NbdError> {
    match stat(path) {
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(refused(path, errno.into())),
        Ok(found) if FileType::from_raw_mode(found.st_mode) != FileType::Socket => {
            return Err(NbdError::NotASocket { path: path.to_path_buf() });
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!(path = %path.display(), "replacing the socket of a dead server");
            std::fs::remove_file(path).map_err(|error| refused(path, error))
        }
        // Removed in between.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // A server that is too busy to answer is alive, too.
        Ok(_) => Err(NbdError::SocketInUse { path: path.to_path_buf() }),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(NbdError::SocketInUse { path: path.to_path_buf() })
        }
        Err(error) => Err(refused(path, error)),
    }
}

/// A socket that is bound to `path`, with permissions for this user only. It does not listen yet.
fn bound(path: &Path) -> rustix::io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Linux gives the name the socket's own mode, less the umask, so there is no moment at which others may connect.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}

/// Listens on TCP.
pub(super) fn tcp(addr: SocketAddr, allow_remote: bool) -> Result<(TcpListener, SocketAddr), NbdError> {
    if !allow_remote && !addr.ip().is_loopback() {
        return Err(NbdError::NotLoopback { addr });
    }
    let failed = |source| NbdError::BindTcp { addr, source };
    let listener = TcpListener::bind(addr).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

fn stat(path: &Path) -> rustix::io::Result<Stat> {
    rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

fn refused(path: &Path, source: io::Error) -> NbdError {
    let path = path.to_path_buf();
    match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            NbdError::Permission { path, source }
        }
        io::ErrorKind::AddrInUse => NbdError::SocketInUse { path },
        _ => NbdError::BindUnix { path, source },
    }
}
