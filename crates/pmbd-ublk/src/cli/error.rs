//! Errors with their path, and with help.

use miette::Diagnostic;
use pm_core::{OpenError, PoolError};
use pmbd::{BufferError, DiskError, WriteBackError};
use std::fmt;
use std::path::{Path, PathBuf};

/// An error of the disk at a path.
#[derive(Debug)]
pub(crate) struct AtPath {
    path: PathBuf,
    error: DiskError,
}

impl std::error::Error for AtPath {}

impl fmt::Display for AtPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Errors of the region name the path already.
        let (path, error) = (self.path.display().to_string(), self.error.to_string());
        if error.starts_with(&path) { f.write_str(&error) } else { write!(f, "{path}: {error}") }
    }
}

impl AtPath {
    /// For `map_err`.
    pub(crate) fn new(path: &Path) -> impl FnOnce(DiskError) -> Self {
        let path = path.to_path_buf();
        move |error| Self { path, error }
    }

    /// Whether the path does not exist.
    pub(crate) const fn is_not_found(&self) -> bool {
        matches!(self.error, DiskError::Pool(PoolError::Region(OpenError::NotFound { .. })))
    }

    /// Whether the path's directory exists.
    fn has_parent(&self) -> bool {
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        parent.unwrap_or_else(|| Path::new(".")).is_dir()
    }

    /// Whether another process has it open.
    pub(crate) const fn is_busy(&self) -> bool {
        matches!(self.error, DiskError::Pool(PoolError::Region(OpenError::Busy { .. })))
    }
}

impl Diagnostic for AtPath {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        let path = self.path.display();
        let help: String = match &self.error {
            DiskError::Pool(PoolError::Region(error)) => match error {
                OpenError::NotFound { .. } if !self.has_parent() => "its directory does not exist".into(),
                OpenError::NotFound { .. } => format!("`pmbd create {path} --size 1G` makes one"),
                OpenError::Exists { .. } => {
                    format!("`pmbd create {path} --format` makes a disk of it, and destroys its contents")
                }
                OpenError::Busy { .. } => {
                    "`pmbd list` shows the running servers, and `pmbd stop` ends one".into()
                }
                OpenError::SizeNotMultiple { .. } => {
                    "no disk has such a size: is this the right file?".into()
                }
                OpenError::ReadOnly { .. } | OpenError::Permission { .. } => {
                    format!("`pmbd serve {path} --read-only` needs permission to read only")
                }
                OpenError::NoSpace { .. } => "choose a smaller --size, or another file system".into(),
                _ => return None,
            },
            DiskError::Pool(PoolError::NotAPool) => format!(
                "`pmbd serve {path} --raw` serves the bytes as they are; `pmbd create {path} --format` makes a disk of \
                 the file, and destroys its contents"
            ),
            DiskError::Pool(PoolError::HeadersCorrupted { .. } | PoolError::Truncated { .. }) => {
                "nothing was changed; restore the file from a copy".into()
            }
            DiskError::Pool(PoolError::OldVersion { .. }) => {
                "the pmbd of the version that made it can open it".into()
            }
            DiskError::Pool(PoolError::ReadOnly) => {
                "nothing was changed; this needs permission to write it".into()
            }
            DiskError::ReadOnly => "without --read-only the disk is created; it reads as zeroes".into(),
            DiskError::Pool(PoolError::AlreadyAPool) => "--overwrite destroys it".into(),
            DiskError::Pool(PoolError::FutureVersion { .. } | PoolError::UnknownFeatures { .. }) => {
                "a newer pmbd can open it".into()
            }
            DiskError::WriteBack(WriteBackError::Buffer(error)) | DiskError::NewBuffers(error) => match error {
                BufferError::Missing { .. } => {
                    "name the --buffer-dir of that server; without the file, --discard-buffered loses those writes".into()
                }
                BufferError::NoSlots | BufferError::Checksum { .. } | BufferError::OutOfRange { .. } => {
                    "nothing was changed; --discard-buffered loses those writes".into()
                }
                BufferError::Foreign { .. } => {
                    "nothing was changed; make sure that the file is that server's, and give it to the owner of the disk".into()
                }
                BufferError::OlderCopy { .. } => {
                    "nothing was changed; put the disk back that was served last, or serve this copy as it is with --discard-buffered"
                        .into()
                }
                BufferError::NotInMemory { .. } | BufferError::Directory { .. } => {
                    "choose a --buffer-dir on a tmpfs".into()
                }
                _ => return None,
            },
            _ => return None,
        };
        Some(Box::new(help))
    }
}
