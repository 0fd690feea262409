//! The servers that run on this machine: one small file each, in a directory of run-time state.
//!
//! A server holds a lock on its file while it lives, so a file whose lock is free belongs to a dead server. A file gets its name only when it is
//! locked and complete, and no other process uses that name. Servers of several PID namespaces, such as containers, may share the directory.

use pmbd::NbdClients;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// A server's process. Its number alone does not identify it: each PID namespace has its own numbers, and reuses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    /// Its number in its PID namespace.
    pub(crate) pid: i32,
    /// The inode number of that namespace.
    pid_namespace: u64,
    /// When it started, in clock ticks since boot.
    start_ticks: u64,
}

impl Process {
    /// This process.
    pub(crate) fn current() -> io::Result<Self> {
        // proc_pid_stat(5): field 22. The second is in parentheses and may contain any characters.
        let stat = std::fs::read_to_string("/proc/self/stat")?;
        let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let start_ticks = after_name.split(' ').nth(22 - 3).and_then(|ticks| ticks.parse().ok());
        Ok(Self {
            pid: rustix::process::getpid().as_raw_nonzero().get(),
            pid_namespace: pid_namespace()?,
            start_ticks: start_ticks.ok_or(io::ErrorKind::InvalidData)?,
        })
    }

    /// Whether it is in this process's PID namespace, where its number identifies it.
    pub(crate) fn is_here(&self) -> io::Result<bool> {
        Ok(self.pid_namespace == pid_namespace()?)
    }

    /// The name of its file, without the extension.
    fn name(&self) -> String {
        format!("{}-{}-{}", self.pid_namespace, self.pid, self.start_ticks)
    }
}

/// Whether this has the form of a [`Process::name`]. `PMBD_RUN_DIR` may hold files that `pmbd` did not make.
fn is_name(stem: &OsStr) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    stem.to_str().is_some_and(|stem| stem.split('-').count() == 3 && stem.split('-').all(is_number))
}

/// The inode number of this process's PID namespace, unique while it lives: pid_namespaces(7).
fn pid_namespace() -> io::Result<u64> {
    Ok(std::fs::metadata("/proc/self/ns/pid")?.ino())
}

/// A server's record of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Its process.
    #[serde(flatten)]
    pub(crate) process: Process,
    /// Its disk.
    pub(crate) path: PathBuf,
    /// `nbd` or `ublk`.
    pub(crate) transport: String,
    /// `/dev/ublkbN`.
    pub(crate) device: Option<PathBuf>,
    /// The Unix socket.
    pub(crate) socket: Option<PathBuf>,
    /// Connected NBD clients. They change, and are in a file of their own.
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
    /// Whether `target` names this server: by path, device, socket, or process in the given PID namespace.
    fn is_named(&self, target: &str, pid_namespace: u64) -> bool {
        let path = Path::new(target);
        let absolute = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        (target.parse() == Ok(self.process.pid) && self.process.pid_namespace == pid_namespace)
            || self.path == absolute
            || self.device.as_deref() == Some(path)
            || self.socket.as_deref().is_some_and(|socket| {
                socket == path || std::fs::canonicalize(socket).is_ok_and(|socket| socket == absolute)
            })
    }
}

/// A server's file, which exists as long as this value.
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
        let path = dir.join(entry.process.name()).with_extension("json");
        let new = path.with_extension("new");
        let file = create(&new)?;
        // After a reboot a process may have the name of an earlier one.
        let entered = lock_and_write(&file, entry)
            .and_then(|()| remove_clients(&path))
            .and_then(|()| std::fs::rename(&new, &path));
        if let Err(error) = entered {
            std::fs::remove_file(&new)?;
            return Err(error);
        }
        Ok(Self { path, _file: file })
    }

    /// Records the connected clients.
    pub(crate) fn set_clients(&self, clients: &[String]) -> io::Result<()> {
        let (path, next) = (self.path.with_extension(CLIENTS), self.path.with_extension("next"));
        serde_json::to_writer(create(&next)?, clients)?;
        // A reader finds the old list or the new one.
        std::fs::rename(next, path)
    }
}

/// Never blocks: no other process opens the file before it has its name.
fn lock_and_write(file: &File, entry: &Entry) -> io::Result<()> {
    file.try_lock()?;
    Ok(serde_json::to_writer(file, entry)?)
}

/// The extension of the file with a server's clients.
const CLIENTS: &str = "clients";

/// The names of the clients in the list.
pub(crate) fn names_of(clients: &NbdClients) -> Vec<String> {
    clients.list().iter().map(|client| client.peer.to_string()).collect()
}

fn remove_clients(path: &Path) -> io::Result<()> {
    if_exists(std::fs::remove_file(path.with_extension(CLIENTS))).map(drop)
}

/// `None` if there is no such file.
fn if_exists<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Err(error) = remove_clients(&self.path).and_then(|()| std::fs::remove_file(&self.path)) {
            tracing::warn!(path = %self.path.display(), %error, "could not remove the server's file");
        }
    }
}

/// The live servers. Removes the files of dead ones.
pub(crate) fn list() -> io::Result<Vec<Entry>> {
    let dir = directory();
    if if_exists(check_owner(&dir))?.is_none() {
        return Ok(Vec::new());
    }
    let files = std::fs::read_dir(dir)?;
    let mut entries = Vec::new();
    for file in files {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "json")
            && path.file_stem().is_some_and(is_name)
            && let Some(entry) = read_live(&path)?
        {
            entries.push(entry);
        }
    }
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(entries)
}

/// The live server that `target` names, in this PID namespace if possible: in another one the path may lead to another disk.
pub(crate) fn find(target: &str) -> io::Result<Option<Entry>> {
    let here = pid_namespace()?;
    let named = list()?.into_iter().filter(|entry| entry.is_named(target, here));
    Ok(named.min_by_key(|entry| entry.process.pid_namespace != here))
}

/// The record in a server's file, or `None` if the server has died or is ending.
fn read_live(path: &Path) -> io::Result<Option<Entry>> {
    let Some(file) = open(path)? else { return Ok(None) };
    match file.try_lock_shared() {
        Ok(()) => {
            remove_clients(path)?;
            if_exists(std::fs::remove_file(path))?;
            Ok(None)
        }
        // A file whose contents do not match its name does not belong to a server.
        Err(TryLockError::WouldBlock) => {
            let entry: Option<Entry> = serde_json::from_reader(&file).ok();
            let own = |entry: &Entry| path.file_stem().is_some_and(|stem| *stem == *entry.process.name());
            let Some(mut entry) = entry.filter(own) else { return Ok(None) };
            entry.clients = clients_of(path)?;
            Ok(Some(entry))
        }
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// The clients of the server with this file.
fn clients_of(path: &Path) -> io::Result<Vec<String>> {
    // Without the file, no client has connected yet.
    let file = open(&path.with_extension(CLIENTS))?;
    Ok(file.map(serde_json::from_reader).transpose()?.unwrap_or_default())
}

/// Opens a file for reading. `None` if it does not exist.
fn open(path: &Path) -> io::Result<Option<File>> {
    if_exists(OpenOptions::new().read(true).custom_flags(SAFE_OPEN).open(path))
}

/// Creates a file, or empties it.
fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(SAFE_OPEN).open(path)
}

/// Follows no links, and does not wait for the other end of a pipe.
const SAFE_OPEN: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK;

/// Refuses a directory that another user can write to: `stop` sends signals according to its files.
fn check_owner(dir: &Path) -> io::Result<()> {
    let found = std::fs::symlink_metadata(dir)?;
    let user = rustix::process::geteuid().as_raw();
    if found.is_dir() && found.uid() == user && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    let message = format!("{} is not a directory that only this user can write to", dir.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
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
