//! Why a heap cannot be created, opened, grown or closed.

use crate::log::{CommitError, RecoverError};
use pm_core::{FenceError, OpenError, PoolError, RootError};

/// Why a heap cannot be created, opened, grown or closed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeapError {
    /// The underlying pool could not be created or opened.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The pool's root directory is corrupted, or full.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The pool holds no heap.
    #[error("the pool holds no heap: it has no root `pm-alloc.heap`")]
    NotAHeap,
    /// Both copies of the heap's header are corrupted.
    #[error("the heap's header at offset {offset} and its copy are both corrupted")]
    HeaderCorrupted {
        /// The offset of the header.
        offset: u64,
    },
    /// The checksum of the heap's header is right, but a field is invalid.
    #[error("the heap's header at offset {offset} has an invalid field: {field} is {found}")]
    HeaderField {
        /// The offset of the header.
        offset: u64,
        /// The field.
        field: &'static str,
        /// Its value.
        found: u64,
    },
    /// The region is mapped read-only, but opening a heap runs recovery, which writes.
    #[error("a heap cannot be opened read-only, because opening it runs recovery, which writes")]
    ReadOnly,
    /// Both copies of the number of chunks are corrupted.
    #[error("the heap's number of chunks at offset {offset} and its copy are both corrupted")]
    ChunkCountCorrupted {
        /// The offset of the number.
        offset: u64,
    },
    /// The heap was created by a newer version of this software.
    #[error("the heap has format version {found}, and this program knows versions up to {supported}")]
    FutureVersion {
        /// The heap's version.
        found: u32,
        /// The newest version that this program knows.
        supported: u32,
    },
    /// The heap was created by an older version of this software, whose log this version cannot replay.
    #[error("the heap has format version {found}, and this program opens only version {supported}")]
    OldVersion {
        /// The heap's version.
        found: u32,
        /// The only version that this program opens.
        supported: u32,
    },
    /// The heap uses features that this program does not know.
    #[error("the heap uses features {unknown:#x} that this program does not know")]
    UnknownFeatures {
        /// The bits of these features.
        unknown: u64,
    },
    /// The requested layout is impossible.
    #[error("cannot create a heap in {data_bytes} bytes: {reason}")]
    Layout {
        /// The length of the pool's data area.
        data_bytes: u64,
        /// The reason why it is impossible.
        reason: &'static str,
    },
    /// The log could not be closed, or the heap stores nothing more because a fence failed or a transaction was abandoned.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The log could not be recovered.
    #[error(transparent)]
    Recover(#[from] RecoverError),
    /// A fence failed.
    #[error(transparent)]
    Fence(#[from] FenceError),
}

impl From<OpenError> for HeapError {
    fn from(error: OpenError) -> Self {
        Self::Pool(error.into())
    }
}
