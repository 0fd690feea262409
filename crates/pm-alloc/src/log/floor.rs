//! The floor: a sealed word with the LSN up to which all entries are dead. Where it lies within its generation says what state
//! the log is in.

use super::error::RecoverError;
use crate::format::Lsn;
use crate::layout::Layout;
use crate::sealed::{self, Sealed};
use pm_core::{FenceError, Pmem};

/// From this generation on, recovery erases the rings and begins with the first one again. It leaves as many LSNs for a program
/// that runs on and on.
const LAST_GENERATION: u64 = 1 << 14;

/// The floor of a new log: closed, with no generation yet.
pub(super) const FIRST: Lsn = closed(Lsn::ZERO);

/// What a floor says of its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Entries above the floor may be live.
    Open,
    /// No entry is live. Blocks change without the log, and after a kill their headers may be visible and not durable.
    Bypassed,
    /// No entry is live. Lines are being written anew, and after a kill may be visible and not durable.
    BeingRestored,
    /// No entry is live.
    Closed,
    /// No entry is live, and the rings may be half erased.
    BeingErased,
}

impl State {
    pub(super) const fn of(floor: Lsn) -> Self {
        if floor.bits() == closed(floor).bits() {
            if is_last(floor) { Self::BeingErased } else { Self::Closed }
        } else if floor.bits() == being_restored(floor).bits() {
            Self::BeingRestored
        } else if floor.bits() == bypassed(floor).bits() {
            Self::Bypassed
        } else {
            Self::Open
        }
    }
}

/// The floor of a closed log in which nothing has a higher LSN than `highest`: the end of its generation.
pub(super) const fn closed(highest: Lsn) -> Lsn {
    highest.end_of_generation()
}

/// The floor while lines are written anew of a log in which nothing has a higher LSN than `highest`: one LSN before that of a closed log.
pub(super) const fn being_restored(highest: Lsn) -> Lsn {
    highest.next().end_of_generation().before()
}

/// The floor while blocks change without a log in which nothing has a higher LSN than `highest`: two LSNs before that of a closed log.
pub(super) const fn bypassed(highest: Lsn) -> Lsn {
    highest.next().next().end_of_generation().before().before()
}

/// Whether no generation follows that of this LSN but the first.
pub(super) const fn is_last(lsn: Lsn) -> bool {
    lsn.generation() + 1 >= LAST_GENERATION
}

/// The floor. Of two that differ and are both sound the higher one counts: it is written only when everything below it is dead.
pub(super) fn read<P: Pmem>(pmem: &P, layout: &Layout) -> Result<(Lsn, Sealed), RecoverError> {
    let offsets = layout.floor_offsets();
    let word = Sealed::read(pmem, layout.seed, offsets);
    let [found, copy] = offsets.map(|offset| pmem.load_u64(offset));
    let corrupted = RecoverError::Floor { offset: offsets[0], found, copy };
    word.copies.into_iter().flatten().max().map(|floor| (floor, word)).ok_or(corrupted)
}

/// Makes everything dead up to `floor`.
///
/// # Durability
/// One fence. A crash before it leaves the old floor or this one.
pub(super) fn raise<P: Pmem>(pmem: &P, layout: &Layout, floor: Lsn) -> Result<(), FenceError> {
    sealed::write(pmem, layout.seed, layout.floor_offsets(), floor);
    // DURABILITY POINT
    pmem.fence()
}
