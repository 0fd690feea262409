//! Errors of file systems.

use pm_alloc::{HeapError, SpaceError, TxError};
use pm_core::emulation::EmulationError;
use pm_core::protection::ProtectionError;
use pm_core::{FenceError, PlaceError, RootError};
use rustix::io::Errno;

/// A part of a file system is corrupted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at offset {offset} is corrupted")]
pub struct Corruption {
    /// The offset in the pool.
    pub offset: u64,
    /// What is corrupted.
    pub what: &'static str,
}

/// Why a call failed. Nothing was changed, unless the call says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FsError {
    /// There is no such file.
    #[error("no such file or directory")]
    NotFound,
    /// There is a file with this name.
    #[error("the file exists")]
    Exists,
    /// The call needs a directory.
    #[error("not a directory")]
    NotADirectory,
    /// The call needs a file that is no directory.
    #[error("is a directory")]
    IsADirectory,
    /// The directory has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// The name is longer than 255 bytes, or the target of a link longer than 4,095.
    #[error("the name is too long")]
    NameTooLong,
    /// The name is empty or has a slash or a zero byte; a directory would be its own ancestor; the file is no link; an access control list is
    /// invalid.
    #[error("invalid argument")]
    Invalid,
    /// A directory cannot have another name.
    #[error("not permitted")]
    NotPermitted,
    /// Only a directory has a default access control list.
    #[error("permission denied")]
    AccessDenied,
    /// The file would be too long.
    #[error("the file would be too long")]
    TooLong,
    /// The file has as many names as possible.
    #[error("too many links")]
    TooManyLinks,
    /// There is no data, or no hole, at the offset or behind it.
    #[error("no such offset")]
    NoData,
    /// The file has no such attribute.
    #[error("no such attribute")]
    NoAttribute,
    /// All attributes of a file would be longer than 64 KiB.
    #[error("the attributes would be too long")]
    AttributesTooLong,
    /// There is no room for data or metadata.
    #[error("no space left")]
    NoSpace,
    /// A part of the file system is corrupted.
    #[error(transparent)]
    Corrupted(#[from] Corruption),
    /// The file system was opened to be [read only](crate::FsOptions::read_only).
    #[error("the file system is read-only")]
    ReadOnly,
    /// A part that all changes need is corrupted: files can be read, and nothing can be changed.
    #[error("the file system accepts no changes: {0}")]
    NoChanges(Corruption),
    /// It is not known which blocks of the heap are in use, because of this corruption: a repair would free blocks that files need, so it stores nothing.
    #[error("a repair stores nothing, because it is not known which blocks are in use: {0}")]
    NoRepair(Corruption),
    /// The heap with the metadata holds no file system.
    #[error("the pool holds no file system")]
    NotAFileSystem,
    /// The file system has another version or unknown features.
    #[error(
        "the file system has format version {version} and features {features:#x}, which this program does not know"
    )]
    Unknown {
        /// Its version.
        version: u32,
        /// Its incompatible features.
        features: u64,
    },
    /// There is a handle to a file.
    #[error("a file is open")]
    InUse,
    /// The pool is too small for a file system: see [`POOL_BYTES_MIN`](crate::POOL_BYTES_MIN).
    #[error("the pool is too small for a file system: {0} bytes")]
    TooSmall(u64),
    /// The heap could not be created or opened.
    #[error(transparent)]
    Heap(#[from] HeapError),
    /// A transaction failed.
    #[error(transparent)]
    Tx(TxError),
    /// A root could not be found or set.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The region cannot be protected so.
    #[error(transparent)]
    Protection(#[from] ProtectionError),
    /// A file system that is opened to be [read only](crate::FsOptions::read_only) is to be protected.
    #[error(
        "a file system that is opened read-only is mapped privately: no store reaches its file, and there is nothing to protect"
    )]
    NothingToProtect,
    /// The memory to emulate is impossible, or faster than the machine's own.
    #[error(transparent)]
    Emulation(#[from] EmulationError),
    /// A fence failed. The file system accepts no more changes until it is opened again.
    #[error(transparent)]
    Fence(#[from] FenceError),
}

impl From<TxError> for FsError {
    fn from(error: TxError) -> Self {
        match error {
            TxError::Space(SpaceError::Full { .. }) => Self::NoSpace,
            other => Self::Tx(other),
        }
    }
}

impl From<PlaceError> for FsError {
    fn from(error: PlaceError) -> Self {
        Self::Tx(error.into())
    }
}

impl FsError {
    /// Something at `offset` is corrupted.
    pub(crate) const fn corrupted(offset: u64, what: &'static str) -> Self {
        Self::Corrupted(Corruption { offset, what })
    }

    /// The error number that a system call would return.
    ///
    /// # Source
    /// errno(3).
    #[must_use]
    pub const fn errno(&self) -> Errno {
        match self {
            Self::NotFound => Errno::NOENT,
            Self::Exists => Errno::EXIST,
            Self::NotADirectory => Errno::NOTDIR,
            Self::IsADirectory => Errno::ISDIR,
            Self::NotEmpty => Errno::NOTEMPTY,
            Self::NameTooLong => Errno::NAMETOOLONG,
            Self::Invalid => Errno::INVAL,
            Self::NotPermitted => Errno::PERM,
            Self::AccessDenied => Errno::ACCESS,
            Self::TooLong => Errno::FBIG,
            Self::TooManyLinks => Errno::MLINK,
            Self::NoData => Errno::NXIO,
            Self::NoAttribute => Errno::NODATA,
            Self::ReadOnly | Self::NoChanges(_) => Errno::ROFS,
            Self::NoSpace | Self::TooSmall(_) | Self::AttributesTooLong => Errno::NOSPC,
            _ => Errno::IO,
        }
    }
}
