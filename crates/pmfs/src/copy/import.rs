//! Copies from the host into the file system.

use super::tally::Tally;
use crate::inspect::described;
use crate::pool::{BUFFER_BYTES, PoolPath, at};
use miette::{IntoDiagnostic as _, Result, WrapErr as _, bail};
use pm_fs::{FileKind, FsError, Handle, NewFile, SetAttributes};
use rustix::fs::{OFlags, SeekFrom, seek};
use rustix::io::Errno;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Permissions without the set-user-ID and set-group-ID bits, which are for the owner that a file had.
pub(super) const MODE_OF_OTHERS: u32 = 0o1777;

/// A copy into the file system.
pub(super) struct Import<'a> {
    /// The device and the inode of the file with the file system, which must not be read while it is changed.
    pool: (u64, u64),
    is_recursive: bool,
    /// The owner of the copies, if it is not that of the originals.
    owner: Option<(u32, u32)>,
    tally: &'a mut Tally,
    buffer: Vec<u8>,
}

impl<'a> Import<'a> {
    pub(super) fn new(pool: &Path, is_recursive: bool, tally: &'a mut Tally) -> Result<Self> {
        let pool = fs::metadata(pool).into_diagnostic().wrap_err_with(|| at(pool))?;
        let user = rustix::process::geteuid();
        let owner = (!user.is_root()).then(|| (user.as_raw(), rustix::process::getegid().as_raw()));
        let buffer = vec![0; BUFFER_BYTES];
        Ok(Self { pool: (pool.dev(), pool.ino()), is_recursive, owner, tally, buffer })
    }

    /// Copies a file to a path in a directory, with everything that is below it. Recursion is as deep as the longest path of the host: some 2,000 calls.
    pub(super) fn copy(&mut self, source: &Path, directory: &Handle, to: &PoolPath) -> Result<()> {
        let metadata = fs::symlink_metadata(source).into_diagnostic().wrap_err_with(|| at(source))?;
        let kind = metadata.file_type();
        if kind.is_dir() {
            self.ensure_recursive(source)?;
            let target = self.make_directory(directory, to, &metadata)?;
            self.copy_entries(source, &target, to)?;
            // At last: the entries have changed the time.
            self.set_attributes(&target, &metadata).map_err(|error| to.error(error))?;
            self.tally.directories += 1;
        } else if kind.is_symlink() {
            let target = fs::read_link(source).into_diagnostic().wrap_err_with(|| at(source))?;
            self.make_link(directory, to, target.as_os_str().as_bytes(), &metadata)
                .map_err(|error| to.error(error))?;
            self.tally.links += 1;
        } else if kind.is_file() && (metadata.dev(), metadata.ino()) == self.pool {
            self.tally.refuse(source.display(), "the file with this file system");
        } else if kind.is_file() {
            self.copy_file(source, directory, to)?;
            self.tally.files += 1;
        } else {
            let kind = match (kind.is_fifo(), kind.is_socket(), kind.is_char_device()) {
                (true, ..) => FileKind::Pipe,
                (_, true, _) => FileKind::Socket,
                (.., true) => FileKind::CharDevice,
                _ => FileKind::BlockDevice,
            };
            self.tally.refuse(source.display(), described(kind));
        }
        self.tally.show();
        Ok(())
    }

    /// Copies what is in a directory, whose own attributes are not copied.
    pub(super) fn copy_contents(&mut self, source: &Path, directory: &Handle, to: &PoolPath) -> Result<()> {
        self.ensure_recursive(source)?;
        self.copy_entries(source, directory, to)
    }

    fn ensure_recursive(&self, source: &Path) -> Result<()> {
        if !self.is_recursive {
            bail!(help = "with -r it is copied", "{} is a directory", source.display());
        }
        Ok(())
    }

    fn copy_entries(&mut self, source: &Path, directory: &Handle, to: &PoolPath) -> Result<()> {
        let entries = fs::read_dir(source).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut entries = entries.into_diagnostic().wrap_err_with(|| at(source))?;
        // In an order that does not depend on the host, so that two copies are alike.
        entries.sort_unstable_by_key(fs::DirEntry::file_name);
        for entry in entries {
            self.copy(&entry.path(), directory, &to.join(entry.file_name().as_bytes()))?;
        }
        Ok(())
    }

    /// The directory at a path. One that exists gets further entries.
    fn make_directory(&self, directory: &Handle, to: &PoolPath, metadata: &Metadata) -> Result<Handle> {
        let name = to.name().unwrap_or_default();
        let made = match directory.lookup(name) {
            Err(FsError::NotFound) => directory.mkdir(name, self.new_file(metadata)),
            Ok(found) if found.kind() != FileKind::Directory => Err(FsError::NotADirectory),
            found => found,
        };
        made.map_err(|error| to.error(error))
    }

    fn make_link(
        &self,
        directory: &Handle,
        to: &PoolPath,
        target: &[u8],
        metadata: &Metadata,
    ) -> Result<(), FsError> {
        let name = to.name().unwrap_or_default();
        match directory.lookup(name) {
            Err(FsError::NotFound) => {}
            Err(error) => return Err(error),
            // Refuses a directory.
            Ok(_) => directory.unlink(name)?,
        }
        let link = directory.symlink(name, target, self.new_file(metadata))?;
        let mtime_ns = Some(mtime_ns(metadata));
        link.set_attributes(&SetAttributes { mtime_ns, ..SetAttributes::default() })
    }

    fn copy_file(&mut self, source: &Path, directory: &Handle, to: &PoolPath) -> Result<()> {
        let from = || at(source);
        let flags = OFlags::NOFOLLOW.bits().cast_signed();
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(source);
        let file = opened.into_diagnostic().wrap_err_with(from)?;
        // Of the file that was opened.
        let metadata = file.metadata().into_diagnostic().wrap_err_with(from)?;
        let target = self.make_file(directory, to, &metadata).map_err(|error| to.error(error))?;
        let size = metadata.len();
        let mut end = 0;
        while let Some(range) = next_data(&file, end, size).into_diagnostic().wrap_err_with(from)? {
            let mut offset = range.start;
            while offset < range.end {
                let most = usize::try_from(range.end - offset).unwrap_or(BUFFER_BYTES).min(BUFFER_BYTES);
                let len =
                    file.read_at(&mut self.buffer[..most], offset).into_diagnostic().wrap_err_with(from)?;
                if len == 0 {
                    bail!("{} has become shorter while it was copied", source.display());
                }
                write_all(&target, offset, &self.buffer[..len]).map_err(|error| to.error(error))?;
                offset += len as u64;
                self.tally.bytes += len as u64;
                self.tally.show();
            }
            end = range.end;
        }
        let set = || {
            // A hole at the end.
            target.truncate(size)?;
            self.set_attributes(&target, &metadata)
        };
        set().map_err(|error| to.error(error))
    }

    /// The file at a path, without contents. One that exists loses its own; a file that has none is replaced.
    fn make_file(&self, directory: &Handle, to: &PoolPath, metadata: &Metadata) -> Result<Handle, FsError> {
        let name = to.name().unwrap_or_default();
        match directory.lookup(name) {
            Ok(found) if found.kind() == FileKind::File => {
                found.truncate(0)?;
                return Ok(found);
            }
            // Refuses a directory.
            Ok(_) => directory.unlink(name)?,
            Err(FsError::NotFound) => {}
            Err(error) => return Err(error),
        }
        directory.create(name, self.new_file(metadata))
    }

    fn new_file(&self, metadata: &Metadata) -> NewFile {
        let mode = metadata.mode() & 0o7777;
        match self.owner {
            Some((uid, gid)) => NewFile { mode: mode & MODE_OF_OTHERS, uid, gid, umask: 0 },
            None => NewFile { mode, uid: metadata.uid(), gid: metadata.gid(), umask: 0 },
        }
    }

    fn set_attributes(&self, file: &Handle, metadata: &Metadata) -> Result<(), FsError> {
        let NewFile { mode, uid, gid, .. } = self.new_file(metadata);
        file.set_attributes(&SetAttributes {
            mode: Some(mode),
            uid: Some(uid),
            gid: Some(gid),
            mtime_ns: Some(mtime_ns(metadata)),
            atime_ns: None,
        })
    }
}

fn mtime_ns(metadata: &Metadata) -> i64 {
    metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec())
}

/// The first range with data at an offset or behind it, in a file of this size.
fn next_data(file: &File, offset: u64, size: u64) -> io::Result<Option<Range<u64>>> {
    if offset >= size {
        return Ok(None);
    }
    match seek(file, SeekFrom::Data(offset)) {
        Ok(start) if start >= size => Ok(None),
        Ok(start) => Ok(Some(start..seek(file, SeekFrom::Hole(start))?.min(size))),
        Err(Errno::NXIO) => Ok(None),
        // The host's file system does not know where its holes are.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(offset..size)),
        Err(error) => Err(error.into()),
    }
}

/// Writes all bytes; a single write may find room for some of them only.
fn write_all(file: &Handle, mut offset: u64, mut bytes: &[u8]) -> Result<(), FsError> {
    while !bytes.is_empty() {
        let len = file.write_at(offset, bytes)?;
        (offset, bytes) = (offset + len as u64, &bytes[len..]);
    }
    Ok(())
}
