//! Why a transaction cannot commit, and why a log cannot be recovered.

use pm_core::FenceError;

/// Why a transaction cannot commit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// The transaction needs more log entries than a transaction may use. Nothing was changed.
    #[error("the transaction needs {entries} log entries and may use at most {capacity}, half of its lane")]
    TooLarge {
        /// The number of entries that it needs.
        entries: u64,
        /// The number of entries that a transaction may use.
        capacity: u64,
    },
    /// A fence of this transaction or of an earlier one failed. Recovery on the next open decides whether the transaction is durable.
    #[error("a fence failed, so nothing more is stored: open the heap again")]
    Fence(#[from] FenceError),
    /// An earlier transaction changed data in place and neither committed nor rolled back, or its commit panicked. Recovery on the next open rolls
    /// it back, or finds it committed.
    #[error("an earlier transaction was abandoned: open the heap again")]
    Abandoned,
    /// A live log entry is corrupted. Recovery on the next open decides which transactions are durable.
    #[error("the log entry at offset {offset} is corrupted: open the heap again")]
    Corrupted {
        /// The offset of the entry.
        offset: u64,
    },
    /// The heap belongs to an [`UnloggedHeap`](crate::UnloggedHeap), whose blocks change without the log.
    #[error("the heap is in use as an unlogged heap, which has no transactions")]
    Bypassed,
    /// The heap is being closed.
    #[error("the log is closed")]
    Closed,
    /// All LSNs are allocated: at least 2^46 of them since the last recovery.
    #[error("the log has no LSN left: open the heap again")]
    LsnsExhausted,
}

/// Why a log cannot be recovered. Unless a fence failed, the heap was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecoverError {
    /// Both copies of the floor, the LSN up to which all entries are dead, are corrupted.
    #[error(
        "the floor of the log is corrupted at offset {offset}, and so is its copy: {found:#x} and {copy:#x}"
    )]
    Floor {
        /// The offset of the first copy.
        offset: u64,
        /// Its contents.
        found: u64,
        /// The contents of the second copy.
        copy: u64,
    },
    /// The log was not closed, and a corrupted line may hold a live entry, whose changes are unknown. Or both copies of a lane's retired LSN are
    /// corrupted, so it is unknown which of the lane's groups are live.
    #[error(
        "lane {lane} of the log is corrupted at offset {offset}, so changes of a transaction may be lost; \
         to open the heap without them, set `discard_corrupted_records`"
    )]
    Corrupted {
        /// The lane.
        lane: u32,
        /// The offset of the line, or of the first copy of the retired LSN.
        offset: u64,
    },
    /// A fence failed. Recovery can be tried again.
    #[error("a fence failed, so recovery is not durable")]
    Fence(#[from] FenceError),
}
