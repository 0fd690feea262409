//! Copies out of the file system, to the host.

use super::import::MODE_OF_OTHERS;
use super::tally::Tally;
use crate::inspect::described;
use crate::pool::{BUFFER_BYTES, PoolPath, at};
use miette::{IntoDiagnostic as _, Result, WrapErr as _, bail, miette};
use pm_fs::{Attributes, FileKind, FsError, Handle};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT, utimensat};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, lchown,
    symlink,
};
use std::path::Path;

/// A copy out of the file system.
pub(super) struct Export<'a> {
    /// The device and the inode of the file with the file system, which must not be overwritten.
    pool: (u64, u64),
    is_recursive: bool,
    /// Whether this process may keep owners.
    is_root: bool,
    tally: &'a mut Tally,
    buffer: Vec<u8>,
}

impl<'a> Export<'a> {
    pub(super) fn new(pool: &Path, is_recursive: bool, tally: &'a mut Tally) -> Result<Self> {
        let pool = fs::metadata(pool).into_diagnostic().wrap_err_with(|| at(pool))?;
        let is_root = rustix::process::geteuid().is_root();
        let buffer = vec![0; BUFFER_BYTES];
        Ok(Self { pool: (pool.dev(), pool.ino()), is_recursive, is_root, tally, buffer })
    }

    /// Copies a file to a path of the host, with everything that is below it. Recursion is as deep as the longest path of the host: some 2,000 calls.
    pub(super) fn copy(&mut self, source: &PoolPath, file: &Handle, to: &Path) -> Result<()> {
        let attributes = file.attributes().map_err(|error| source.error(error))?;
        match file.kind() {
            FileKind::Directory => {
                self.ensure_recursive(source)?;
                make_directory(to).into_diagnostic().wrap_err_with(|| at(to))?;
                self.copy_entries(source, file, to)?;
                // At last: the entries need permissions, and have changed the time.
                self.set_attributes(&attributes, to).into_diagnostic().wrap_err_with(|| at(to))?;
                self.tally.directories += 1;
            }
            FileKind::Symlink => {
                let target = file.read_link().map_err(|error| source.error(error))?;
                let make = || {
                    self.remove(to)?;
                    symlink(OsStr::from_bytes(&target), to)?;
                    self.set_attributes(&attributes, to)
                };
                make().into_diagnostic().wrap_err_with(|| at(to))?;
                self.tally.links += 1;
            }
            FileKind::File => {
                self.copy_file(source, file, &attributes, to)?;
                self.tally.files += 1;
            }
            kind => self.tally.refuse(format_args!(":{source}"), described(kind)),
        }
        self.tally.show();
        Ok(())
    }

    /// Copies what is in a directory, whose own attributes are not copied.
    pub(super) fn copy_contents(&mut self, source: &PoolPath, directory: &Handle, to: &Path) -> Result<()> {
        self.ensure_recursive(source)?;
        self.copy_entries(source, directory, to)
    }

    fn ensure_recursive(&self, source: &PoolPath) -> Result<()> {
        if !self.is_recursive {
            bail!(help = "with -r it is copied", ":{source} is a directory");
        }
        Ok(())
    }

    fn copy_entries(&mut self, source: &PoolPath, directory: &Handle, to: &Path) -> Result<()> {
        for entry in directory.entries(0).map_err(|error| source.error(error))? {
            let from = source.join(&entry.name);
            let file = directory.lookup(&entry.name).map_err(|error| from.error(error))?;
            self.copy(&from, &file, &to.join(OsStr::from_bytes(&entry.name)))?;
        }
        Ok(())
    }

    fn copy_file(
        &mut self,
        source: &PoolPath,
        file: &Handle,
        attributes: &Attributes,
        to: &Path,
    ) -> Result<()> {
        let target = self.make_file(to).into_diagnostic().wrap_err_with(|| at(to))?;
        let mut end = 0;
        while let Some(range) = next_data(file, end, attributes.size).map_err(|error| source.error(error))? {
            let mut offset = range.start;
            while offset < range.end {
                let most = usize::try_from(range.end - offset).unwrap_or(BUFFER_BYTES).min(BUFFER_BYTES);
                let read = file.read_at(offset, &mut self.buffer[..most]);
                let len = read.map_err(|error| source.error(error))?;
                if len == 0 {
                    return Err(miette!(":{source} ends before its length"));
                }
                target
                    .write_all_at(&self.buffer[..len], offset)
                    .into_diagnostic()
                    .wrap_err_with(|| at(to))?;
                offset += len as u64;
                self.tally.bytes += len as u64;
                self.tally.show();
            }
            end = range.end;
        }
        // A hole at the end.
        let set = || {
            target.set_len(attributes.size)?;
            self.set_attributes(attributes, to)
        };
        set().into_diagnostic().wrap_err_with(|| at(to))
    }

    /// An empty file. One that exists loses its contents, and a link, which could lead to another directory, is replaced.
    fn make_file(&self, to: &Path) -> io::Result<File> {
        if fs::symlink_metadata(to).is_ok_and(|found| !found.is_file()) {
            self.remove(to)?;
        }
        // Other users cannot read it before it has its permissions.
        let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(to)?;
        let metadata = file.metadata()?;
        self.ensure_not_pool(&metadata)?;
        file.set_len(0)?;
        Ok(file)
    }

    /// Removes what has a name that is needed, if anything. Fails if it is a directory.
    fn remove(&self, path: &Path) -> io::Result<()> {
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            Ok(found) => {
                self.ensure_not_pool(&found)?;
                fs::remove_file(path)
            }
        }
    }

    fn ensure_not_pool(&self, found: &fs::Metadata) -> io::Result<()> {
        if (found.dev(), found.ino()) == self.pool {
            return Err(io::Error::other("it is the file with this file system"));
        }
        Ok(())
    }

    /// Sets owner, permissions and time. A link has no permissions.
    fn set_attributes(&self, attributes: &Attributes, to: &Path) -> io::Result<()> {
        let &Attributes { mode, uid, gid, mtime_ns, kind, .. } = attributes;
        if self.is_root {
            lchown(to, Some(uid), Some(gid))?;
        }
        if kind != FileKind::Symlink {
            let mode = if self.is_root { mode } else { mode & MODE_OF_OTHERS };
            fs::set_permissions(to, Permissions::from_mode(mode))?;
        }
        let last_modification = Timespec {
            tv_sec: mtime_ns.div_euclid(1_000_000_000),
            tv_nsec: mtime_ns.rem_euclid(1_000_000_000),
        };
        let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times = Timestamps { last_access, last_modification };
        Ok(utimensat(CWD, to, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }
}

/// Makes a directory, unless there is one. A link to one is none: it could lead to another directory.
fn make_directory(to: &Path) -> io::Result<()> {
    match fs::symlink_metadata(to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => DirBuilder::new().mode(0o700).create(to),
        Err(error) => Err(error),
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(io::ErrorKind::NotADirectory.into()),
    }
}

/// The first range with data at an offset or behind it, in a file of this size.
fn next_data(file: &Handle, offset: u64, size: u64) -> Result<Option<Range<u64>>, FsError> {
    if offset >= size {
        return Ok(None);
    }
    match file.seek_data(offset) {
        Ok(start) => Ok(Some(start..file.seek_hole(start)?.min(size))),
        Err(FsError::NoData) => Ok(None),
        Err(error) => Err(error),
    }
}
