//! Why a transaction, or a change by a view, failed.

use crate::log::CommitError;
use crate::space::{FreeError, SpaceError};
use pm_core::{FenceError, PlaceError, RootError};

/// Why a transaction, or a change by a [`View`](crate::View), failed. The heap is unchanged, unless a fence failed: then recovery on the next open
/// decides whether the change is durable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TxError {
    /// There is no room for a block.
    #[error(transparent)]
    Space(SpaceError),
    /// The block cannot be freed.
    #[error(transparent)]
    Free(FreeError),
    /// A link is null, or points outside the heap.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A root could not be found or set.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The slot for the link to a new block already links to a block; the link to that block would be lost.
    #[error("the slot at offset {slot} already links to {linked}")]
    Occupied {
        /// The offset of the slot.
        slot: u64,
        /// The block that it links to.
        linked: u64,
    },
    /// This thread is already in a transaction on this heap: pass its `&mut Tx` to the functions that need it.
    #[error(
        "this thread is already in a transaction on this heap: pass its `&mut Tx` to the functions that need it"
    )]
    Nested,
    /// The word to store without a transaction lies in bytes that this thread's transaction has changed in place. Rolling the transaction back would
    /// revert the store.
    #[error(
        "the word at offset {offset} lies in a long value that this thread's transaction has written: write it in the transaction"
    )]
    WrittenInPlace {
        /// The offset of the word, or of the pair of words.
        offset: u64,
    },
    /// The transaction could not commit.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// A fence failed in [`Heap::repair`](crate::Heap::repair).
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// The program rolled the transaction back, for this reason.
    #[error("the transaction was rolled back: {0}")]
    RolledBack(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// A fence that failed while space was reserved becomes [`TxError::Commit`], like one that failed in a commit: the heap accepts no more transactions.
impl From<SpaceError> for TxError {
    fn from(error: SpaceError) -> Self {
        match error {
            SpaceError::Fence(error) => Self::Commit(error.into()),
            error => Self::Space(error),
        }
    }
}

/// A failed fence becomes [`TxError::Commit`], as for a [`SpaceError`].
impl From<FreeError> for TxError {
    fn from(error: FreeError) -> Self {
        match error {
            FreeError::Fence(error) => Self::Commit(error.into()),
            error => Self::Free(error),
        }
    }
}
