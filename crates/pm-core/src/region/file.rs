//! Files under regions: appearing whole or not at all, opened by one at a time, with all their blocks allocated.

use super::OpenError;
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
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
    path: PathBuf,
    /// Where the file system cannot make nameless files, the name that it has meanwhile.
    temporary: Option<PathBuf>,
}

impl UnbornFile {
    /// Makes a locked, nameless file of `len_bytes` zero bytes, all allocated, that is to appear at `path`.
    pub(super) fn new(path: &Path, len_bytes: u64, mode: u32) -> Result<Self, OpenError> {
        if rustix::fs::lstat(path).is_ok() {
            return Err(OpenError::Exists { path: path.to_path_buf() });
        }
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode);
        let (file, temporary) = match rustix::fs::open(parent(path), flags | OFlags::TMPFILE, mode) {
            Ok(file) => (file, None),
            // File systems without nameless files answer one of these (open(2), O_TMPFILE).
            Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
                let temporary = temporary_name(path);
                let file = rustix::fs::open(&temporary, flags | OFlags::CREATE | OFlags::EXCL, mode)
                    .map_err(OpenError::from_errno(&temporary, "open"))?;
                (file, Some(temporary))
            }
            Err(errno) => return Err(OpenError::from_errno(path, "open")(errno)),
        };
        let unborn = Self { file, path: path.to_path_buf(), temporary };
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
        let path = &self.path;
        rustix::fs::fsync(&self.file).map_err(OpenError::from_errno(path, "fsync"))?;
        match self.temporary.take() {
            Some(temporary) => {
                rustix::fs::renameat_with(CWD, &temporary, CWD, path, RenameFlags::NOREPLACE).map_err(
                    |errno| {
                        self.temporary = Some(temporary);
                        OpenError::from_errno(path, "rename")(errno)
                    },
                )?;
            }
            None => {
                let nameless = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                rustix::fs::linkat(CWD, nameless, CWD, path, AtFlags::SYMLINK_FOLLOW)
                    .map_err(OpenError::from_errno(path, "link"))?;
            }
        }
        let dir = rustix::fs::open(parent(path), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(OpenError::from_errno(path, "open of the directory"))?;
        // DURABILITY POINT
        rustix::fs::fsync(dir).map_err(OpenError::from_errno(path, "fsync of the directory"))
    }
}

impl Drop for UnbornFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary
            && let Err(errno) = rustix::fs::unlink(temporary)
        {
            // Not published, so the caller has an error already; this is only the litter.
            eprintln!("pm-core: could not remove {}: {errno}", temporary.display());
        }
    }
}

/// Allocates every block of `from..to`, so that a later store cannot fault for lack of space.
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

fn temporary_name(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".creating-{}", std::process::id()));
    path.with_file_name(name)
}
