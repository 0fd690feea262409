//! The file of slots.

use super::error::BufferError;
use super::session::Session;
use pm_core::{Medium, Region, RegionOptions};
use rustix::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};

/// The directory that servers use by default.
pub(crate) const DEFAULT_DIR: &str = "/dev/shm";

/// A file on a file system in memory. It gets its name when its slots begin to count, so a server that is killed before that leaves none.
#[derive(Debug)]
pub(super) struct SlotFile {
    path: PathBuf,
    /// Its device and inode numbers.
    identity: (u64, u64),
    /// Until it has a name.
    unnamed: Option<OwnedFd>,
}

impl SlotFile {
    /// A new file without a name, and its memory.
    ///
    /// # Errors
    /// When it cannot be created, or would outlive a power failure: the kernel would have written back some of its pages and not others.
    pub(super) fn create(
        dir: &Path,
        session: Session,
        len_bytes: u64,
    ) -> Result<(Self, Region), BufferError> {
        let path = dir.join(session.file_name());
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::open(dir, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode);
        let file =
            file.map_err(|errno| BufferError::Directory { path: dir.to_path_buf(), source: errno.into() })?;
        rustix::fs::ftruncate(&file, len_bytes).map_err(io::Error::from)?;
        let unnamed = file.try_clone()?;
        let identity = identity(&rustix::fs::fstat(&file).map_err(io::Error::from)?);
        let region = RegionOptions::new().populate(true).open_file(file, &path)?;
        if region.medium() != Medium::Tmpfs {
            return Err(BufferError::NotInMemory { path: dir.to_path_buf() });
        }
        Ok((Self { path, identity, unnamed: Some(unnamed) }, region))
    }

    /// A killed server's file, and its memory, as scratch if it is only to be read.
    ///
    /// # Errors
    /// [`BufferError::Missing`], [`BufferError::Foreign`], and those of opening it.
    pub(super) fn open(
        dir: &Path,
        session: Session,
        disk_owner: u32,
        is_scratch: bool,
    ) -> Result<(Self, Region), BufferError> {
        let path = dir.join(session.file_name());
        let (access, options) = match is_scratch {
            true => (OFlags::RDONLY, RegionOptions::new().scratch()),
            false => (OFlags::RDWR, RegionOptions::new()),
        };
        // Every user may make files in the default directory: what another user has put there must not reach the disk.
        let file = match rustix::fs::open(&path, access | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Err(BufferError::Missing { path }),
            Err(Errno::LOOP) => return Err(BufferError::Foreign { path, what: "is a symbolic link" }),
            Err(errno) => return Err(io::Error::from(errno).into()),
        };
        let found = rustix::fs::fstat(&file).map_err(io::Error::from)?;
        let owner = found.st_uid;
        let owners = [rustix::process::geteuid().as_raw(), disk_owner, 0];
        if !owners.contains(&owner) {
            let what = "belongs neither to this user nor to the owner of the disk";
            return Err(BufferError::Foreign { path, what });
        }
        let region = options.open_file(file, &path)?;
        Ok((Self { path, identity: identity(&found), unnamed: None }, region))
    }

    /// Gives it its name.
    ///
    /// # Source
    /// open(2), `O_TMPFILE`: the link through /proc.
    pub(super) fn publish(&mut self) -> io::Result<()> {
        if let Some(file) = &self.unnamed {
            let unnamed = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
            rustix::fs::linkat(CWD, unnamed, CWD, &self.path, AtFlags::SYMLINK_FOLLOW)?;
            self.unnamed = None;
        }
        Ok(())
    }

    /// Whether the next server would find it. A program that cleans up may have removed it, or another file system be mounted over its directory.
    pub(super) fn is_found(&self) -> bool {
        rustix::fs::lstat(&self.path).is_ok_and(|found| identity(&found) == self.identity)
    }

    /// Removes it.
    pub(super) fn remove(self) -> io::Result<()> {
        match self.unnamed {
            Some(_) => Ok(()),
            None => std::fs::remove_file(&self.path),
        }
    }
}

fn identity(found: &Stat) -> (u64, u64) {
    (found.st_dev, found.st_ino)
}
