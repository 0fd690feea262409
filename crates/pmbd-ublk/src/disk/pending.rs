//! Completed writes that a disk does not have yet.

use std::path::PathBuf;

/// Completed writes of the last server, which was killed, that the disk's file may not have.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PendingWrites {
    /// There are none.
    None,
    /// They are in the caches of the CPU: the next server writes all of the disk back.
    Deferred,
    /// They are in the slots of its buffers: the next server stores them.
    Buffered {
        /// The file of the slots.
        path: PathBuf,
        /// The number of blocks of 4 KiB.
        block_count: u64,
    },
    /// They were in its buffers, and not flushed, when the system was restarted: they are lost, as with any write-back cache.
    Lost,
}
