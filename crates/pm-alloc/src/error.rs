//! Why a heap could not be made or opened, and why a transaction failed.

use crate::log::{CommitError, RecoverError};
use crate::space::{FreeError, SpaceError};
use pm_core::{FenceError, OpenError, PlaceError, PoolError, RootError};

/// Why a heap could not be made, opened or grown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeapError {
    /// The pool below could not be made or opened.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The pool's root directory is corrupted, or full.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The pool holds something else.
    #[error("the pool holds no heap: it has no root `pm-alloc.heap`")]
    NotAHeap,
    /// The header of the heap and its copy are both corrupted.
    #[error("the heap's header at offset {offset} and its copy are both corrupted")]
    HeaderCorrupted {
        /// Where the header lies.
        offset: u64,
    },
    /// The header of the heap has the right checksum, and says something that cannot be.
    #[error("the heap's header at offset {offset} says {found} for its {field}, which cannot be")]
    HeaderField {
        /// Where the header lies.
        offset: u64,
        /// Which field.
        field: &'static str,
        /// What it says.
        found: u64,
    },
    /// The region is mapped read-only, and opening a heap writes.
    #[error("a heap cannot be opened read-only: opening recovers it, which writes")]
    ReadOnly,
    /// The number of chunks and its copy are both corrupted.
    #[error("the heap's number of chunks at offset {offset} and its copy are both corrupted")]
    ChunkCountCorrupted {
        /// Where the number lies.
        offset: u64,
    },
    /// The heap was made by a newer version of this software.
    #[error("the heap has format version {found}, and this program knows versions up to {supported}")]
    FutureVersion {
        /// The heap's.
        found: u32,
        /// This program's.
        supported: u32,
    },
    /// The heap was made by an older version of this software, whose log this one cannot replay.
    #[error("the heap has format version {found}, and this program opens version {supported} only")]
    OldVersion {
        /// The heap's.
        found: u32,
        /// This program's.
        supported: u32,
    },
    /// The heap uses features that this program must know to open it.
    #[error("the heap uses features {unknown:#x} that this program does not know")]
    UnknownFeatures {
        /// Their bits.
        unknown: u64,
    },
    /// The layout asked for cannot be.
    #[error("a heap in {data_bytes} bytes cannot be: {reason}")]
    Layout {
        /// How long the pool's data area is.
        data_bytes: u64,
        /// Why not.
        reason: &'static str,
    },
    /// The log could not be closed.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The logs could not be recovered.
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

/// Why a transaction failed, or a change without one. The heap is as it was before, but for a failed fence: what is
/// durable then the next opening knows.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TxError {
    /// There is no room for a block, or never was.
    #[error(transparent)]
    Space(SpaceError),
    /// What was to be freed is no block that can be.
    #[error(transparent)]
    Free(FreeError),
    /// A link is null, or leads out of the heap.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A root could not be found or set.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The slot for the link to a new block holds one to another, which would be lost.
    #[error("the slot at offset {slot} links to {linked} already")]
    Occupied {
        /// Where the slot lies.
        slot: u64,
        /// What it links to.
        linked: u64,
    },
    /// This thread is in a transaction on this heap already: hand its `&mut Tx` on instead.
    #[error("this thread is in a transaction on this heap already; functions it calls can be given its `Tx`")]
    Nested,
    /// A word that is stored without a transaction lies in what this thread's transaction has written in place, and would be rolled back
    /// with it.
    #[error(
        "the word at offset {offset} lies in a long value that this thread's transaction has written: write it in the transaction"
    )]
    WrittenInPlace {
        /// Where the word lies, or the pair of words.
        offset: u64,
    },
    /// The transaction is too long for its lane, or a fence failed.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// A fence failed.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// The program gave up: what it said.
    #[error("the transaction was given up: {0}")]
    Abandoned(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// A fence that failed is [`TxError::Commit`], whichever part of the heap made it: the heap takes no transactions any more.
impl From<SpaceError> for TxError {
    fn from(error: SpaceError) -> Self {
        match error {
            SpaceError::Fence(error) => Self::Commit(error.into()),
            error => Self::Space(error),
        }
    }
}

/// As for a [`SpaceError`].
impl From<FreeError> for TxError {
    fn from(error: FreeError) -> Self {
        match error {
            FreeError::Fence(error) => Self::Commit(error.into()),
            error => Self::Free(error),
        }
    }
}
