//! The errors of creating, opening and growing a region.

use rustix::io::Errno;
use std::path::PathBuf;

/// An error of creating, opening or growing a region. Nothing has been changed, unless the documentation of the variant or function states otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no file at the path, or it has been removed.
    #[error("{path}: no such file", path = .path.display())]
    NotFound {
        /// The requested path.
        path: PathBuf,
    },
    /// The path already exists, and creation never overwrites a file.
    #[error("{path} already exists", path = .path.display())]
    Exists {
        /// The requested path.
        path: PathBuf,
    },
    /// The path is a directory, a socket or another file that cannot be mapped.
    #[error("{path} is a {kind}, not a regular file or a device-dax", path = .path.display())]
    NotMappable {
        /// The requested path.
        path: PathBuf,
        /// The kind of the file.
        kind: &'static str,
    },
    /// The process has no permission to open the path.
    #[error("{path}: no permission to open it for {wanted}", path = .path.display())]
    Permission {
        /// The requested path.
        path: PathBuf,
        /// "reading" or "reading and writing".
        wanted: &'static str,
    },
    /// The file system or the region is read-only, but must be writable.
    #[error("{path}: the file system or the region is read-only", path = .path.display())]
    ReadOnly {
        /// The requested path.
        path: PathBuf,
    },
    /// Another process, or this one, has the region open. A region has one writer, or any number of readers. A region that a child of fork(2) has
    /// inherited is open in its parent. Locks are not visible across an overlay: a file that is open through the overlay does not appear busy under
    /// its path in the upper layer. The Linux documentation forbids changes to a layer while the overlay is mounted.
    #[error("{path} is in use: it is open elsewhere, or belongs to the parent of this process", path = .path.display())]
    Busy {
        /// The requested path.
        path: PathBuf,
    },
    /// The path is a device-dax, which cannot be mapped privately.
    #[error("{path} is a device-dax, which cannot be opened as scratch", path = .path.display())]
    NoScratch {
        /// The requested path.
        path: PathBuf,
    },
    /// The region cannot grow: it is a device-dax, or it is in use and has no [reserved](crate::RegionOptions::reserve) addresses of that length.
    #[error("{path} cannot grow: it is a device-dax, or in use without reserved addresses", path = .path.display())]
    FixedSize {
        /// The requested path.
        path: PathBuf,
    },
    /// The size is zero.
    #[error("a region of zero bytes cannot be mapped")]
    ZeroSize,
    /// The size is not a multiple of the medium's page size.
    #[error("the size of {len_bytes} bytes is not a multiple of {multiple_bytes}")]
    SizeNotMultiple {
        /// The requested or current size.
        len_bytes: u64,
        /// The page size of the medium, or the alignment of a device-dax.
        multiple_bytes: u64,
    },
    /// The requested length is below that of the region or its file, and neither can shrink. Another program may have made the file longer.
    #[error("cannot shrink from {len_bytes} to {wanted_bytes} bytes")]
    Shrink {
        /// The current length of the region or of its file.
        len_bytes: u64,
        /// The requested length.
        wanted_bytes: u64,
    },
    /// The file system has no space. A file that was being created does not exist; a file that was being grown has its old length.
    #[error("{path}: no space for {len_bytes} bytes", path = .path.display())]
    NoSpace {
        /// The requested path.
        path: PathBuf,
        /// The requested number of bytes.
        len_bytes: u64,
    },
    /// A fence failed, or an earlier failure of a fence or sync has poisoned the region.
    #[error(transparent)]
    Fence(#[from] crate::FenceError),
    /// Another operation failed, usually a system call.
    #[error("{path}: {operation} failed: {errno}", path = .path.display())]
    Io {
        /// The requested path.
        path: PathBuf,
        /// The operation.
        operation: &'static str,
        /// Its error.
        errno: Errno,
    },
}

impl OpenError {
    /// Returns a closure for `map_err` that adds `path` and `operation` to an error number, and selects the specific variant if there is one.
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
