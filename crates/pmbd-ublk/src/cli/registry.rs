//! Which servers run on this machine: one small file each, in a directory of run-time state.
//!
//! A server holds a lock on its file for as long as it lives, so that a file whose lock is free belongs to a dead one.

use pmbd::NbdClients;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What a server says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Its process, by the number that it has in its own PID namespace.
    pub(crate) pid: i32,
    /// The number of that namespace: servers in containers may share the directory.
    pub(crate) pid_namespace: u64,
    /// Its disk.
    pub(crate) path: PathBuf,
    /// `nbd` or `ublk`.
    pub(crate) transport: String,
    /// `/dev/ublkbN`.
    pub(crate) device: Option<PathBuf>,
    /// The Unix socket.
    pub(crate) socket: Option<PathBuf>,
    /// NBD clients that are connected. They come and go, and are in a file of their own.
    #[serde(default)]
    pub(crate) clients: Vec<String>,
    /// The disk's size.
    pub(crate) capacity_bytes: u64,
    /// Its sector.
    pub(crate) sector_bytes: u64,
    /// Its persistence domain.
    pub(crate) domain: String,
}

impl Entry {
    /// Whether `target` names this server: by path, device, socket or process.
    pub(crate) fn is_named(&self, target: &str) -> bool {
        let path = Path::new(target);
        let absolute = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        (target.parse() == Ok(self.pid) && self.is_in_own_namespace())
            || self.path == absolute
            || self.device.as_deref() == Some(path)
            || self.socket.as_deref().is_some_and(|socket| {
                socket == path || std::fs::canonicalize(socket).is_ok_and(|socket| socket == absolute)
            })
    }

    /// Whether the number of its process means that process here.
    pub(crate) fn is_in_own_namespace(&self) -> bool {
        pid_namespace().is_ok_and(|own| own == self.pid_namespace)
    }

    /// Whether it is of the same server.
    pub(crate) fn is_of_same_process(&self, other: &Self) -> bool {
        (self.pid, self.pid_namespace) == (other.pid, other.pid_namespace)
    }

    /// What its file is called, but for the extension.
    fn file_stem(&self) -> String {
        format!("{}-{}", self.pid_namespace, self.pid)
    }
}

/// The number of the PID namespace that this process is in.
///
/// # Source
/// namespaces(7), "The /proc/pid/ns/ directory".
pub(crate) fn pid_namespace() -> io::Result<u64> {
    Ok(std::fs::metadata("/proc/self/ns/pid")?.ino())
}

/// A server's file, there as long as this.
#[derive(Debug)]
pub(crate) struct Registration {
    path: PathBuf,
    /// Holds the lock.
    _file: File,
}

impl Registration {
    /// Registers this process.
    pub(crate) fn new(entry: &Entry) -> io::Result<Self> {
        let dir = directory();
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        check_owner(&dir)?;
        let path = dir.join(format!("{}.json", entry.file_stem()));
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600).custom_flags(NO_SURPRISES);
        let mut file = options.open(&path)?;
        lock(&file)?;
        while !std::fs::symlink_metadata(&path).is_ok_and(|now| is_same(&file, &now)) {
            // Somebody took it for a dead server's, between the opening and the lock.
            file = options.open(&path)?;
            lock(&file)?;
        }
        file.set_len(0)?;
        serde_json::to_writer(&file, entry)?;
        file.flush()?;
        // Of a dead server with this number.
        remove_clients(&path)?;
        Ok(Self { path, _file: file })
    }

    /// Enters the clients that are connected now.
    pub(crate) fn set_clients(&self, clients: &[String]) -> io::Result<()> {
        let (path, next) = (self.path.with_extension(CLIENTS), self.path.with_extension("next"));
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600).custom_flags(NO_SURPRISES);
        serde_json::to_writer(options.open(&next)?, clients)?;
        // A reader finds the old ones or the new ones.
        std::fs::rename(next, path)
    }
}

/// Takes the lock of a server's file. Whoever makes the list holds it for a moment; anything else that does must not keep the server from
/// serving.
fn lock(file: &File) -> io::Result<()> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            other => return Ok(other?),
        }
    }
}

/// How long a server waits for that lock.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// What the file with a server's clients is called, behind its number.
const CLIENTS: &str = "clients";

/// How clients stand in the list.
pub(crate) fn names_of(clients: &NbdClients) -> Vec<String> {
    clients.list().iter().map(|client| client.peer.to_string()).collect()
}

fn remove_clients(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path.with_extension(CLIENTS)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Err(error) = remove_clients(&self.path).and_then(|()| std::fs::remove_file(&self.path)) {
            tracing::warn!(path = %self.path.display(), %error, "could not remove the server's file");
        }
    }
}

/// The servers that live. Files of dead ones are removed on the way.
pub(crate) fn list() -> io::Result<Vec<Entry>> {
    let dir = directory();
    match check_owner(&dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    }
    let files = std::fs::read_dir(dir)?;
    let mut entries = Vec::new();
    for file in files {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "json")
            && let Some(entry) = read_live(&path)?
        {
            entries.push(entry);
        }
    }
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(entries)
}

/// What a server's file says, or `None` if it has died, or is just ending.
fn read_live(path: &Path) -> io::Result<Option<Entry>> {
    let file = match OpenOptions::new().read(true).custom_flags(NO_SURPRISES).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match file.try_lock_shared() {
        Ok(()) => match remove_clients(path).and_then(|()| std::fs::remove_file(path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(None),
        },
        // A file that is locked and not whole yet is a server that is just starting. One that names another process than
        // its own is nobody's.
        Err(TryLockError::WouldBlock) => {
            let entry: Option<Entry> = serde_json::from_reader(&file).ok();
            let own = |entry: &Entry| path.file_stem().is_some_and(|stem| *stem == *entry.file_stem());
            let Some(mut entry) = entry.filter(own) else { return Ok(None) };
            entry.clients = clients_of(path)?;
            Ok(Some(entry))
        }
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// The clients of the server with this file.
fn clients_of(path: &Path) -> io::Result<Vec<String>> {
    match OpenOptions::new().read(true).custom_flags(NO_SURPRISES).open(path.with_extension(CLIENTS)) {
        Ok(file) => Ok(serde_json::from_reader(&file)?),
        // No client has connected yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// No links, and no waiting for the other end of a pipe.
const NO_SURPRISES: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK;

/// Refuses a directory that somebody else could have put things into: `stop` sends signals by what it reads there.
fn check_owner(dir: &Path) -> io::Result<()> {
    let found = std::fs::symlink_metadata(dir)?;
    let user = rustix::process::geteuid().as_raw();
    if found.is_dir() && found.uid() == user && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    let message = format!("{} is not a directory that only this user can write to", dir.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

fn is_same(file: &File, other: &std::fs::Metadata) -> bool {
    file.metadata().is_ok_and(|file| (file.dev(), file.ino()) == (other.dev(), other.ino()))
}

/// `$PMBD_RUN_DIR`, or `/run/pmbd` for root, or the user's own run-time directory.
fn directory() -> PathBuf {
    if let Some(dir) = std::env::var_os("PMBD_RUN_DIR") {
        return dir.into();
    }
    let user = rustix::process::geteuid();
    if user.is_root() {
        return "/run/pmbd".into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) => Path::new(&dir).join("pmbd"),
        None => std::env::temp_dir().join(format!("pmbd-{}", user.as_raw())),
    }
}
