//! Why a region could not be created, opened or grown.

use rustix::io::Errno;
use std::path::PathBuf;

/// Why a region could not be created, opened or grown. Nothing has been changed then, unless the variant's documentation states it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no file at the path, or it has been removed.
    #[error("{path}: no such file", path = .path.display())]
    NotFound {
        /// The path asked for.
        path: PathBuf,
    },
    /// The path exists already, and creation never overwrites.
    #[error("{path}: exists already", path = .path.display())]
    Exists {
        /// The path asked for.
        path: PathBuf,
    },
    /// The path is a directory, a socket or another file that cannot be mapped.
    #[error("{path}: is a {kind}, not a regular file or a device-dax", path = .path.display())]
    NotMappable {
        /// The path asked for.
        path: PathBuf,
        /// Its kind.
        kind: &'static str,
    },
    /// The process has no permission to open the path.
    #[error("{path}: no permission to open it for {wanted}", path = .path.display())]
    Permission {
        /// The path asked for.
        path: PathBuf,
        /// "reading" or "reading and writing".
        wanted: &'static str,
    },
    /// The file or its file system is read-only, but the region must be writable.
    #[error("{path}: is on a read-only file system; open it read-only", path = .path.display())]
    ReadOnly {
        /// The path asked for.
        path: PathBuf,
    },
    /// Another process, or this one, has the region open. A region has one writer, or any number of readers. A region that a child of
    /// fork(2) has inherited is open in its parent. An overlay hides locks: a file of its upper layer that is open through the overlay is not
    /// seen to be in use by its path in the layer, which Linux forbids to change meanwhile.
    #[error("{path}: is in use by another opener", path = .path.display())]
    Busy {
        /// The path asked for.
        path: PathBuf,
    },
    /// The path is a device-dax, of which there are no private pages to store to.
    #[error("{path}: is a device-dax, which cannot be opened as scratch", path = .path.display())]
    NoScratch {
        /// The path asked for.
        path: PathBuf,
    },
    /// The size is zero.
    #[error("a region of zero bytes cannot be mapped")]
    ZeroSize,
    /// The size is not a multiple of the medium's page.
    #[error("the size of {len_bytes} bytes is not a multiple of {multiple_bytes}")]
    SizeNotMultiple {
        /// The requested or present size.
        len_bytes: u64,
        /// The unit of the medium.
        multiple_bytes: u64,
    },
    /// A region and its file cannot shrink. Another program may have made the file longer.
    #[error("cannot shrink from {len_bytes} to {wanted_bytes} bytes")]
    Shrink {
        /// The present length of the region or of its file.
        len_bytes: u64,
        /// The requested length.
        wanted_bytes: u64,
    },
    /// The file system has no space. A file that was to be created does not exist; one that was to grow has its old length.
    #[error("{path}: no space for {len_bytes} bytes", path = .path.display())]
    NoSpace {
        /// The path asked for.
        path: PathBuf,
        /// The requested number of bytes.
        len_bytes: u64,
    },
    /// A fence failed while the region was being prepared.
    #[error(transparent)]
    Fence(#[from] crate::FenceError),
    /// Another system call failed.
    #[error("{path}: {operation} failed: {errno}", path = .path.display())]
    Io {
        /// The path asked for.
        path: PathBuf,
        /// The system call.
        operation: &'static str,
        /// Its error.
        errno: Errno,
    },
}

impl OpenError {
    /// Makes a closure for `map_err` that names `operation` on `path`, and selects the typed variant for errors that have one.
    pub(super) fn from_errno<'a>(
        path: &'a std::path::Path,
        operation: &'static str,
    ) -> impl Fn(Errno) -> Self + 'a {
        move |errno| {
            let path = path.to_path_buf();
            match errno {
                Errno::NOENT => Self::NotFound { path },
                Errno::EXIST => Self::Exists { path },
                Errno::ISDIR => Self::NotMappable { path, kind: "directory" },
                Errno::ACCESS | Errno::PERM => Self::Permission { path, wanted: "reading and writing" },
                Errno::ROFS => Self::ReadOnly { path },
                errno => Self::Io { path, operation, errno },
            }
        }
    }
}
