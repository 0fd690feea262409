//! Chunks that no arena has, and who has the others. What changes hands does so under the pool's lock.

use super::corruption::Corruption;
use super::reservation::Waiting;
use super::scan::{Chunks, Start};
use pm_core::{FenceError, Pmem};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Who keeps a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// The pool.
    Pool,
    /// A block longer than a chunk lies over it, or a reservation for one.
    Covered,
    /// A block longer than a chunk starts in it.
    Huge,
    /// An arena, in this slot.
    Arena { arena: u32, slot: u32 },
}

impl Home {
    pub(super) fn to_word(self) -> u64 {
        match self {
            Self::Pool => 0,
            Self::Covered => 1,
            Self::Huge => 2,
            Self::Arena { arena, slot } => (u64::from(arena) + 1) << 32 | u64::from(slot),
        }
    }

    pub(super) fn from_word(word: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "the low half and the high half")]
        match word {
            0 => Self::Pool,
            1 => Self::Covered,
            2 => Self::Huge,
            _ => Self::Arena { arena: (word >> 32) as u32 - 1, slot: word as u32 },
        }
    }
}

/// A block longer than a chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct HugeBlock {
    pub(super) lines: u32,
    /// Allocated, and nobody is freeing it.
    pub(super) is_live: bool,
    /// Its header is corrupted, or a repair gave it up: it is neither live nor free.
    pub(super) is_lost: bool,
}

/// What no arena has.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// The chunks of which nothing is known yet. Their first headers were not read: in a large heap each costs a page fault.
    /// Until then their home is the pool.
    pub(super) unknown: Chunks,
    /// First headers were read and flushed, and not fenced since. Nothing may rely on them before.
    pub(super) is_unfenced: bool,
    /// First headers that a killed process left below a block longer than a chunk, as offsets and words, to be zeroed before that
    /// fence.
    pub(super) stale: Vec<(u64, u64)>,
    /// The fence that failed. Nothing is stored or fenced any more.
    fault: Option<FenceError>,
    /// Whose turn it is when an arena wants a chunk: one that was not looked at yet, or one that is free as a whole.
    pub(super) is_unscanned_next: bool,
    /// Chunks that are one free block each.
    pub(super) fresh: BTreeSet<u64>,
    /// Chunks that were not looked at yet, and where to start.
    pub(super) unscanned: BTreeMap<u64, Start>,
    /// Blocks longer than a chunk, by the chunk in which they start.
    pub(super) huge: BTreeMap<u64, HugeBlock>,
    /// Those of them that were freed, and are not parted into chunks yet.
    pub(super) waiting: VecDeque<Waiting>,
    /// Reservations for such blocks that are not over.
    pub(super) held: u32,
    pub(super) corruptions: Vec<Corruption>,
}

impl Pool {
    /// Whether all fences succeeded: asked before anything is stored.
    ///
    /// # Errors
    /// The first that failed.
    pub(super) fn check(&self) -> Result<(), FenceError> {
        self.fault.clone().map_or(Ok(()), Err)
    }

    /// Fences. A failed fence is not repeated: what it was for would have to be flushed again, and may be lost.
    ///
    /// # Errors
    /// When it fails, or one failed before.
    ///
    /// # Durability
    /// What this thread flushed before is durable when this returns.
    #[track_caller]
    pub(super) fn fence<P: Pmem>(&mut self, pmem: &P) -> Result<(), FenceError> {
        self.check()?;
        pmem.fence().inspect_err(|error| self.fault = Some(error.clone()))
    }
}
