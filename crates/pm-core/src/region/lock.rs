//! Locks of the files under regions: one writer, or any number of readers.

use super::OpenError;
use super::process::ProcessId;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// An open file, locked for this process until it is dropped.
///
/// The lock belongs to the open file description, which a child of fork(2) shares. It is released explicitly, because otherwise it would be
/// held until all these children have ended.
#[derive(Debug)]
pub(super) struct LockedFile {
    file: OwnedFd,
    /// For a device-dax, holds the lock that all its device nodes in a network namespace share.
    device: Option<OwnedFd>,
    /// The process that holds the lock. Dropping this value in a child does not release the lock.
    process: ProcessId,
}

impl LockedFile {
    /// Takes the lock: exclusive for a writer, shared for readers.
    pub(super) fn new(file: OwnedFd, path: &Path, writable: bool) -> Result<Self, OpenError> {
        lock(&file, path, writable)?;
        Ok(Self { file, device: None, process: ProcessId::current() })
    }

    /// Also takes the lock of a device-dax, on the device's directory in sysfs. A file lock belongs to one device node, and a device may have
    /// several nodes. Each network namespace has its own sysfs with its own locks, so a process that uses another node in another network namespace
    /// is not excluded. Linux cannot lock the device itself.
    pub(super) fn with_device(mut self, dir: &Path, path: &Path, writable: bool) -> Result<Self, OpenError> {
        let failed = |operation| OpenError::from_errno(path, operation);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let device = rustix::fs::open(dir, flags, Mode::empty()).map_err(failed("open in sysfs"))?;
        let kind = if writable {
            FlockOperation::NonBlockingLockExclusive
        } else {
            FlockOperation::NonBlockingLockShared
        };
        match rustix::fs::flock(&device, kind) {
            Ok(()) => self.device = Some(device),
            Err(Errno::WOULDBLOCK) => return Err(OpenError::Busy { path: path.to_path_buf() }),
            Err(errno) => return Err(failed("flock in sysfs")(errno)),
        }
        Ok(self)
    }

    pub(super) const fn fd(&self) -> &OwnedFd {
        &self.file
    }

    /// The file, for calls that only the holder of the lock may make. A child of fork(2), which the lock cannot exclude, gets an error.
    pub(super) fn locked_fd(&self, path: &Path) -> Result<&OwnedFd, OpenError> {
        if self.is_own() { Ok(&self.file) } else { Err(OpenError::Busy { path: path.to_path_buf() }) }
    }

    /// Whether this process, and not an ancestor, holds the lock.
    pub(super) fn is_own(&self) -> bool {
        self.process.is_current()
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        if !self.is_own() {
            return;
        }
        // If one of these calls fails, for example on a network file system, the kernel releases the lock when the last descriptor is closed.
        let _unlocked = set_lock(&self.file, libc::F_UNLCK);
        if let Some(device) = &self.device {
            let _unlocked = rustix::fs::flock(device, FlockOperation::Unlock);
        }
    }
}

/// Takes the whole-file lock of the open file description, which also excludes a second open in the same process.
///
/// # Source
/// fcntl(2), "Open file description locks (non-POSIX)".
pub(super) fn lock(file: &OwnedFd, path: &Path, writable: bool) -> Result<(), OpenError> {
    let kind = if writable { libc::F_WRLCK } else { libc::F_RDLCK };
    set_lock(file, kind).map_err(|errno| match errno {
        Errno::ACCESS | Errno::AGAIN => OpenError::Busy { path: path.to_path_buf() },
        errno => OpenError::Io { path: path.to_path_buf(), operation: "lock", errno },
    })
}

fn set_lock(file: &OwnedFd, kind: libc::c_int) -> Result<(), Errno> {
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
        Ok(())
    } else {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_lock_excludes_all_nodes() {
        let dir = tempfile::tempdir().unwrap();
        let (device, path) = (dir.path(), Path::new("/dev/dax0.0"));
        let open = |node: &str, writable| {
            let node = dir.path().join(node);
            let file =
                std::fs::OpenOptions::new().create(true).truncate(false).write(true).read(true).open(&node);
            LockedFile::new(file.unwrap().into(), path, writable)?.with_device(device, path, writable)
        };
        let writer = open("a", true).unwrap();
        for writable in [false, true] {
            assert!(matches!(open("b", writable), Err(OpenError::Busy { .. })));
        }
        drop(writer);
        let readers = (open("a", false).unwrap(), open("b", false).unwrap());
        assert!(matches!(open("c", true), Err(OpenError::Busy { .. })));
        drop(readers);
        open("c", true).unwrap();
    }

    /// A child of fork(2) has a descriptor of the same open file description.
    #[test]
    fn lock_ends_with_region_while_child_has_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.pm");
        let options = crate::RegionOptions::new();
        let region = options.create(&path, 1 << 20).unwrap();
        let child = region.locked_file().fd().try_clone().unwrap();
        assert!(matches!(options.open(&path), Err(OpenError::Busy { .. })));
        drop(region);
        options.open(&path).unwrap();
        drop(child);
    }
}
