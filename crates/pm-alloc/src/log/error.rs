//! What can go wrong with a log.

use pm_core::FenceError;

/// A transaction that was not committed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// The transaction needs more of the log than one may have. Nothing was changed.
    #[error("the transaction needs {entries} entries of the log, and may have {capacity}, half of its lane")]
    TooLarge {
        /// Entries that it needs, together with those that it has.
        entries: u64,
        /// Entries that a transaction may have.
        capacity: u64,
    },
    /// A fence failed, of this transaction or of an earlier one. Whether it is durable is known after the next recovery only.
    #[error("the log promises nothing any more")]
    Fence(#[from] FenceError),
    /// Somebody wrote in place behind undo entries, and neither committed nor took it back; or panicked in the middle of a commit. The
    /// next recovery takes it back, or finds that it is committed.
    #[error("an earlier transaction was left half done: open the heap again")]
    Abandoned,
    /// An entry of the log is corrupted that is still needed. What is durable then the next recovery knows.
    #[error("the log entry at offset {offset} is corrupted: open the heap again")]
    Corrupted {
        /// Where it lies.
        offset: u64,
    },
    /// The heap belongs to a [`UnloggedHeap`](crate::UnloggedHeap), whose blocks change without the log.
    #[error("the heap belongs to an unlogged heap, which has no transactions")]
    Bypassed,
    /// The heap is being closed.
    #[error("the log is closed")]
    Closed,
    /// All numbers for transactions are used up: there are 2^47 at least between two recoveries.
    #[error("the log has no LSN left: open the heap again")]
    LsnsExhausted,
}

/// A log that cannot be recovered, and was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecoverError {
    /// The word that says which entries are dead is corrupted, and so is its copy.
    #[error(
        "the floor of the log is corrupted at offset {offset}, and so is its copy: {found:#x} and {copy:#x}"
    )]
    Floor {
        /// Where it lies.
        offset: u64,
        /// What is there.
        found: u64,
        /// What its copy is.
        copy: u64,
    },
    /// A log that was not closed has a corrupted line that may hold a live entry: of a committed transaction that has not been applied
    /// for certain, or of one to be rolled back. Which words it was about is not known.
    #[error(
        "the log of lane {lane} is corrupted at offset {offset}, and what a transaction changed may be lost; \
         the heap can be opened without it if corrupted records are to be discarded"
    )]
    Corrupted {
        /// Which lane.
        lane: u32,
        /// Where the line lies.
        offset: u64,
    },
    /// A fence failed while what was found was stored again. Recovery can be tried again.
    #[error("recovery could not make its work durable")]
    Fence(#[from] FenceError),
}
