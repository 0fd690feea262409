//! Errors with their path, and with help.

use miette::Diagnostic;
use pm_alloc::{HeapError, RecoverError};
use pm_cli_common::holders;
use pm_core::{OpenError, PoolError, RootError};
use std::fmt;
use std::path::{Path, PathBuf};

/// An error of the pool or heap at a path.
#[derive(Debug)]
pub(crate) struct AtPath {
    path: PathBuf,
    error: HeapError,
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
    pub(crate) fn new<E: Into<HeapError>>(path: &Path) -> impl FnOnce(E) -> Self {
        let path = path.to_path_buf();
        move |error| Self { path, error: error.into() }
    }

    /// Whether there is no such file.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(&self.error, HeapError::Pool(PoolError::Region(OpenError::NotFound { .. })))
    }

    /// The message, if it is corruption that a check reports: the file cannot be read, as both copies of a structure are corrupted, or a part
    /// is missing.
    pub(crate) fn corruption(&self) -> Option<String> {
        let is_corruption = matches!(
            &self.error,
            HeapError::Pool(PoolError::HeadersCorrupted { .. } | PoolError::Truncated { .. })
                | HeapError::Root(RootError::Corrupted { .. } | RootError::Type { .. } | RootError::Place(_))
                | HeapError::HeaderCorrupted { .. }
                | HeapError::ChunkCountCorrupted { .. }
                | HeapError::Recover(RecoverError::Floor { .. })
        );
        is_corruption.then(|| self.error.to_string())
    }
}

impl Diagnostic for AtPath {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        let path = self.path.display();
        let help = match &self.error {
            HeapError::Pool(PoolError::Region(error)) => match error {
                OpenError::NotFound { .. } => match self.path.parent() {
                    Some(parent) if !parent.as_os_str().is_empty() && !parent.is_dir() => {
                        format!("there is no directory {}", parent.display())
                    }
                    _ => format!("`pm heap create {path} --size 64M` makes one"),
                },
                OpenError::Exists { .. } => {
                    "existing files are never overwritten: choose another path, or remove it".to_owned()
                }
                OpenError::Busy { .. } => match holders(&self.path) {
                    Some(holders) => format!("{holders} has it open: stop the program, or wait for its end"),
                    None => "stop the program that has it open, or wait for its end".to_owned(),
                },
                OpenError::SizeNotMultiple { .. } => {
                    "no pool has such a size: is this the right file?".to_owned()
                }
                OpenError::ReadOnly { .. } | OpenError::Permission { .. } => {
                    "`info` and `check` need permission to read only".to_owned()
                }
                OpenError::NoScratch { .. } => {
                    "`pm pool check` reads a device-dax directly; a copy of it in a file can be checked completely"
                        .to_owned()
                }
                OpenError::NoSpace { .. } => "choose a smaller --size, or another file system".to_owned(),
                _ => return None,
            },
            HeapError::Pool(PoolError::NotAPool) => "is this the right file?".to_owned(),
            HeapError::NotAHeap => format!("`pm pool info {path}` prints the contents of the pool"),
            HeapError::Pool(PoolError::FutureVersion { .. } | PoolError::UnknownFeatures { .. })
            | HeapError::FutureVersion { .. }
            | HeapError::UnknownFeatures { .. } => "a newer pm can open it".to_owned(),
            HeapError::Pool(PoolError::OldVersion { .. }) | HeapError::OldVersion { .. } => {
                "the pm of the version that made it can open it".to_owned()
            }
            HeapError::Layout { .. } | HeapError::Pool(PoolError::Layout { .. }) => {
                "choose another --size, or omit the other options".to_owned()
            }
            _ if self.corruption().is_some() => {
                "nothing was changed; restore the file from a copy".to_owned()
            }
            _ => return None,
        };
        Some(Box::new(help))
    }
}
