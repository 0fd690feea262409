//! The floor: the LSN up to which all entries of all rings are dead. Its distance from the end of its generation encodes the state of the log. The
//! floor is a sealed word with a copy, as is the retired LSN of a lane.

use super::error::RecoverError;
use crate::format::{Lsn, seal, unseal};
use crate::layout::Layout;
use pm_core::{FenceError, Pmem};

/// The number of generations after which recovery erases the rings and begins again with the first generation. LSNs have room for twice as many: the
/// other half is for a log that allocates, between two recoveries, more LSNs than one generation has.
const GENERATION_COUNT: u64 = 1 << 14;

/// The floor of a new log: closed, before the first generation.
pub(super) const FIRST: Lsn = closed(Lsn::ZERO);

/// The state of a log, which its floor encodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Entries above the floor may be live.
    Open,
    /// No entry is live. Blocks are changed without the log; after a kill their headers may be visible but not durable.
    Bypassed,
    /// No entry is live. Corrupted lines are being rewritten; after a kill their new contents may be visible but not durable.
    Restoring,
    /// No entry is live.
    Closed,
    /// No entry is live, and the rings may be partly erased.
    Erasing,
}

impl State {
    pub(super) const fn of(floor: Lsn) -> Self {
        if floor.bits() == closed(floor).bits() {
            if is_in_last_generation(floor) { Self::Erasing } else { Self::Closed }
        } else if floor.bits() == restoring(floor).bits() {
            Self::Restoring
        } else if floor.bits() == bypassed(floor).bits() {
            Self::Bypassed
        } else {
            Self::Open
        }
    }
}

/// The floor of a closed log whose highest LSN is `highest`: the end of its generation.
pub(super) const fn closed(highest: Lsn) -> Lsn {
    highest.end_of_generation()
}

/// The floor of a log with highest LSN `highest` while corrupted lines are rewritten: one LSN below [`closed`].
pub(super) const fn restoring(highest: Lsn) -> Lsn {
    highest.next().end_of_generation().before()
}

/// The floor of a log with highest LSN `highest` while blocks change without the log: two LSNs below [`closed`].
pub(super) const fn bypassed(highest: Lsn) -> Lsn {
    highest.next().next().end_of_generation().before().before()
}

/// Whether this LSN is in the last generation before the rings are erased.
pub(super) const fn is_in_last_generation(lsn: Lsn) -> bool {
    lsn.generation() + 1 >= GENERATION_COUNT
}

/// Reads the floor. If both copies are valid and differ, the higher one is right: a floor is stored only when all entries up to it are dead.
pub(super) fn read<P: Pmem>(pmem: &P, layout: &Layout) -> Result<(Lsn, SealedWord), RecoverError> {
    let offsets = layout.floor_offsets();
    let word = SealedWord::read(pmem, layout.seed, offsets);
    let [found, copy] = offsets.map(|offset| pmem.load_u64(offset));
    let corrupted = RecoverError::Floor { offset: offsets[0], found, copy };
    word.highest().map(|floor| (floor, word)).ok_or(corrupted)
}

/// Raises the floor to `floor`: all entries up to it are dead.
///
/// # Durability
/// One fence. After a crash before it completes, the log has the old floor or the new one.
pub(super) fn raise<P: Pmem>(pmem: &P, layout: &Layout, floor: Lsn) -> Result<(), FenceError> {
    SealedWord::write(pmem, layout.seed, layout.floor_offsets(), floor);
    // DURABILITY POINT
    pmem.fence()
}

/// An LSN on the medium, sealed by a checksum, and its copy elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SealedWord {
    /// The LSN of each copy; `None` if the copy is corrupted.
    copies: [Option<Lsn>; 2],
}

impl SealedWord {
    pub(super) fn read<P: Pmem>(pmem: &P, seed: u64, offsets: [u64; 2]) -> Self {
        let copy = |offset| unseal(pmem.load_u64(offset), seed, offset, &[]);
        Self { copies: offsets.map(copy) }
    }

    /// Stores both copies, and flushes them. After a crash before the fence, each copy has the old LSN or the new one.
    pub(super) fn write<P: Pmem>(pmem: &P, seed: u64, offsets: [u64; 2], lsn: Lsn) {
        for offset in offsets {
            pmem.store_u64(offset, seal(lsn, seed, offset, &[]));
            pmem.flush(offset, 8);
        }
    }

    /// The higher LSN of the two copies. `None` if both are corrupted.
    pub(super) fn highest(&self) -> Option<Lsn> {
        self.copies.into_iter().flatten().max()
    }

    /// The number of corrupted copies.
    pub(super) fn corrupted_count(&self) -> u32 {
        self.copies.iter().map(|copy| u32::from(copy.is_none())).sum()
    }
}
