//! Files under regions: appearing whole or not at all, opened by one at a time, with all their blocks allocated.

use super::OpenError;
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Opens an existing file and takes its lock: exclusive for a writer, shared for readers.
pub(super) fn open(path: &Path, writable: bool) -> Result<OwnedFd, OpenError> {
    let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
    // NONBLOCK: opening a pipe that somebody left at the path must not wait for a writer.
    let file = rustix::fs::open(path, access | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty()).map_err(
        |errno| match errno {
            Errno::ACCESS | Errno::PERM => OpenError::Permission {
                path: path.to_path_buf(),
                wanted: if writable { "reading and writing" } else { "reading" },
            },
            // What open(2) answers for a socket.
            Errno::NXIO => OpenError::NotMappable { path: path.to_path_buf(), kind: "socket" },
            errno => OpenError::from_errno(path, "open")(errno),
        },
    )?;
    lock(&file, path, writable)?;
    Ok(file)
}

/// A file that has no name yet: gone without a trace if the process dies before [`publish`](Self::publish).
#[derive(Debug)]
pub(super) struct UnbornFile {
    file: OwnedFd,
    /// Held open from the start, so that nothing about it can fail, or become another directory, once the file is there.
    dir: OwnedFd,
    path: PathBuf,
    name: OsString,
    /// Where the file system cannot make nameless files, the name that it has meanwhile.
    temporary: Option<OsString>,
}

impl UnbornFile {
    /// Makes a locked, nameless file of `len_bytes` zero bytes, all allocated, that is to appear at `path`.
    pub(super) fn new(path: &Path, len_bytes: u64, mode: u32) -> Result<Self, OpenError> {
        let Some(name) = path.file_name().map(OsStr::to_os_string) else {
            return Err(OpenError::NotMappable { path: path.to_path_buf(), kind: "directory" });
        };
        let failed = |operation| OpenError::from_errno(path, operation);
        let dir = rustix::fs::open(parent(path), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(failed("open of the directory"))?;
        if rustix::fs::statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            return Err(OpenError::Exists { path: path.to_path_buf() });
        }
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode);
        let (file, temporary) = match rustix::fs::openat(&dir, ".", flags | OFlags::TMPFILE, mode) {
            Ok(file) => (file, None),
            // File systems without nameless files answer one of these (open(2), O_TMPFILE).
            Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
                let temporary = temporary_name(&name);
                let file = rustix::fs::openat(&dir, &temporary, flags | OFlags::CREATE | OFlags::EXCL, mode)
                    .map_err(failed("open"))?;
                (file, Some(temporary))
            }
            Err(errno) => return Err(failed("open")(errno)),
        };
        let unborn = Self { file, dir, path: path.to_path_buf(), name, temporary };
        lock(&unborn.file, path, true)?;
        allocate(&unborn.file, path, 0, len_bytes)?;
        Ok(unborn)
    }

    pub(super) const fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Gives the file its name, and makes the name durable.
    ///
    /// # Durability
    /// Before the link, a crash leaves nothing; after it, the whole file, whose contents the caller has persisted
    /// and whose size and block map are synced here first.
    pub(super) fn publish(&mut self) -> Result<(), OpenError> {
        let failed = |operation| OpenError::from_errno(&self.path, operation);
        let (dir, name) = (&self.dir, &self.name);
        rustix::fs::fsync(&self.file).map_err(failed("fsync"))?;
        match &self.temporary {
            Some(temporary) => rustix::fs::renameat_with(dir, temporary, dir, name, RenameFlags::NOREPLACE)
                .map_err(failed("rename"))?,
            None => {
                let nameless = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                rustix::fs::linkat(CWD, &nameless, dir, name, AtFlags::SYMLINK_FOLLOW).map_err(|errno| {
                    // The one thing that can be missing here, as the directory is open, is /proc.
                    let operation = if errno == Errno::NOENT { "link by way of /proc" } else { "link" };
                    match errno {
                        Errno::NOENT => OpenError::Io { path: self.path.clone(), operation, errno },
                        errno => failed(operation)(errno),
                    }
                })?;
            }
        }
        // From here on the file would be left behind by its own name, until that is durable.
        self.temporary = Some(self.name.clone());
        // DURABILITY POINT
        rustix::fs::fsync(&self.dir).map_err(OpenError::from_errno(&self.path, "fsync of the directory"))?;
        self.temporary = None;
        Ok(())
    }
}

impl Drop for UnbornFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary
            && let Err(errno) = rustix::fs::unlinkat(&self.dir, temporary, AtFlags::empty())
        {
            // Not published, so the caller has an error already; this is only the litter.
            eprintln!("pm-core: could not remove {}: {errno}", temporary.display());
        }
    }
}

/// Allocates every block of `from..to`, so that a later store cannot fault for lack of space. The file must be that long, or
/// becomes so.
pub(super) fn allocate(file: impl AsFd, path: &Path, from: u64, to: u64) -> Result<(), OpenError> {
    let no_space = || OpenError::NoSpace { path: path.to_path_buf(), len_bytes: to - from };
    if i64::try_from(to).is_err() {
        // Longer than any file; the system would only say that the argument is wrong.
        return Err(no_space());
    }
    let allocate = || rustix::fs::fallocate(&file, FallocateFlags::empty(), from, to - from);
    // hugetlbfs stops between two pages for any signal, and for work that an io_uring of this thread has left.
    match rustix::io::retry_on_intr(allocate) {
        Ok(()) => Ok(()),
        Err(Errno::NOSPC | Errno::FBIG | Errno::DQUOT) => Err(no_space()),
        Err(errno) => Err(OpenError::from_errno(path, "fallocate")(errno)),
    }
}

/// Fills the holes of a file that is there, for a store to a hole of a full file system is a SIGBUS. File systems that cannot
/// be asked to are taken as they are.
pub(super) fn fill_holes(file: impl AsFd, path: &Path, len_bytes: u64) -> Result<(), OpenError> {
    match allocate(file, path, 0, len_bytes) {
        Err(OpenError::Io { errno: Errno::OPNOTSUPP | Errno::NOSYS, .. }) => Ok(()),
        other => other,
    }
}

/// Makes a file longer, with all blocks allocated. The length changes in one step, and back if there is no room, so that
/// neither a crash nor a full file system leaves a length in between.
pub(super) fn extend(file: impl AsFd, path: &Path, from: u64, to: u64) -> Result<(), OpenError> {
    let failed = || OpenError::from_errno(path, "ftruncate");
    if i64::try_from(to).is_err() {
        return Err(OpenError::NoSpace { path: path.to_path_buf(), len_bytes: to - from });
    }
    rustix::fs::ftruncate(&file, to).map_err(failed())?;
    allocate(&file, path, from, to).or_else(|error| {
        rustix::fs::ftruncate(&file, from).map_err(failed())?;
        Err(error)
    })
}

/// Takes the whole-file lock of the open file description: it ends with the last descriptor, at the latest when
/// the process dies, and it keeps out a second opener in the same process too.
///
/// # Source
/// fcntl(2), "Open file description locks (non-POSIX)".
fn lock(file: &OwnedFd, path: &Path, writable: bool) -> Result<(), OpenError> {
    let kind = if writable { libc::F_WRLCK } else { libc::F_RDLCK };
    let whole_file = libc::flock {
        l_type: libc::c_short::try_from(kind).expect("lock kinds are 0, 1 and 2"),
        l_whence: libc::c_short::try_from(libc::SEEK_SET).expect("SEEK_SET is 0"),
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open, and F_OFD_SETLK reads one `flock` whose fields are all set.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const whole_file) };
    if answer == 0 {
        return Ok(());
    }
    let errno = Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO);
    match errno {
        Errno::ACCESS | Errno::AGAIN => Err(OpenError::Busy { path: path.to_path_buf() }),
        errno => Err(OpenError::Io { path: path.to_path_buf(), operation: "lock", errno }),
    }
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn temporary_name(name: &OsStr) -> OsString {
    let mut temporary = name.to_os_string();
    temporary.push(format!(".creating-{}", std::process::id()));
    temporary
}
