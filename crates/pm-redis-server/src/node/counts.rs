//! What a node counts.

use crate::peer::Outcome;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of this open of the node.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(super) reads: AtomicU64,
    /// Writes that were executed; that were not; of which the client does not know.
    pub(super) writes: [AtomicU64; 3],
    /// The length of the store, what is in use of it, what entries of any length can take, and the length of the log.
    pub(super) store_bytes: AtomicU64,
    pub(super) used_bytes: AtomicU64,
    pub(super) available_bytes: AtomicU64,
    pub(super) log_bytes: AtomicU64,
}

impl Counts {
    pub(super) fn read(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn write(&self, outcome: &Outcome) {
        let kind = match outcome {
            Outcome::Answer(_) => 0,
            Outcome::NotExecuted(_) => 1,
            Outcome::Unknown(_) => 2,
        };
        self.writes[kind].fetch_add(1, Ordering::Relaxed);
    }
}
