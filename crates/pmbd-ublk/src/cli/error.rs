//! Errors as people read them: what failed, and what to do.

use miette::Diagnostic;
use pm_core::{OpenError, PoolError};
use pmbd::DiskError;
use std::path::{Path, PathBuf};

/// Something failed about the disk at a path.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", .path.display())]
pub(crate) struct AtPath {
    path: PathBuf,
    error: DiskError,
}

impl AtPath {
    /// For `map_err`.
    pub(crate) fn new(path: &Path) -> impl FnOnce(DiskError) -> Self {
        let path = path.to_path_buf();
        move |error| Self { path, error }
    }

    /// Whether there is nothing at the path.
    pub(crate) const fn is_not_found(&self) -> bool {
        matches!(self.error, DiskError::Pool(PoolError::Region(OpenError::NotFound { .. })))
    }

    /// Whether another process has it open.
    pub(crate) const fn is_busy(&self) -> bool {
        matches!(self.error, DiskError::Pool(PoolError::Region(OpenError::Busy { .. })))
    }
}

impl Diagnostic for AtPath {
    fn help<'a>(&'a self) -> Option<Box<dyn std::fmt::Display + 'a>> {
        let path = self.path.display();
        let help = match &self.error {
            DiskError::Pool(PoolError::Region(error)) => match error {
                OpenError::NotFound { .. } => format!("`pmbd create {path} --size 1G` makes one"),
                OpenError::Busy { .. } => "`pmbd list` shows the servers that run".to_owned(),
                OpenError::ReadOnly { .. } | OpenError::Permission { .. } => {
                    format!("`pmbd serve {path} --read-only` needs permission to read only")
                }
                OpenError::NoSpace { .. } => "choose a smaller --size, or another file system".to_owned(),
                _ => return None,
            },
            DiskError::Pool(PoolError::NotAPool) => format!(
                "`pmbd serve {path} --raw` serves the bytes as they are; `pmbd create {path} --format` makes a disk of \
                 the file, and destroys what it holds"
            ),
            DiskError::Pool(PoolError::HeadersDamaged { .. } | PoolError::Truncated { .. }) => {
                "nothing was changed; restore the file from a copy".to_owned()
            }
            DiskError::Pool(PoolError::AlreadyAPool) => "--overwrite destroys it".to_owned(),
            DiskError::Pool(PoolError::FutureVersion { .. } | PoolError::UnknownFeatures { .. }) => {
                "a newer pmbd can open it".to_owned()
            }
            _ => return None,
        };
        Some(Box::new(help))
    }
}
