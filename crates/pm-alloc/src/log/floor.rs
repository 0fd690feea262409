//! The floor: a sealed word with the stamp up to which all entries are dead. Where it lies within its generation says what state
//! the log is in.

use super::error::RecoverError;
use crate::format::Stamp;
use crate::layout::Layout;
use crate::sealed::{self, Sealed};
use pm_core::{FenceError, Pmem};

/// From this generation on, recovery erases the rings and begins with the first one again. It leaves as many stamps for a program
/// that runs on and on.
const LAST_GENERATION: u64 = 1 << 14;

/// The floor of a new log: closed, with no generation yet.
pub(super) const FIRST: Stamp = closed(Stamp::ZERO);

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
    pub(super) const fn of(floor: Stamp) -> Self {
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

/// The floor of a closed log in which nothing has a higher stamp than `highest`: the end of its generation.
pub(super) const fn closed(highest: Stamp) -> Stamp {
    highest.end_of_generation()
}

/// The floor while lines are written anew of a log in which nothing has a higher stamp than `highest`: one stamp before that of a closed log.
pub(super) const fn being_restored(highest: Stamp) -> Stamp {
    highest.next().end_of_generation().before()
}

/// The floor while blocks change without a log in which nothing has a higher stamp than `highest`: two stamps before that of a closed log.
pub(super) const fn bypassed(highest: Stamp) -> Stamp {
    highest.next().next().end_of_generation().before().before()
}

/// Whether no generation follows that of this stamp but the first.
pub(super) const fn is_last(stamp: Stamp) -> bool {
    stamp.generation() + 1 >= LAST_GENERATION
}

/// The floor. Of two that differ and are both sound the higher one counts: it is written only when everything below it is dead.
pub(super) fn read<P: Pmem>(pmem: &P, layout: &Layout) -> Result<(Stamp, Sealed), RecoverError> {
    let offsets = layout.floor_offsets();
    let word = Sealed::read(pmem, layout.seed, offsets);
    let [found, copy] = offsets.map(|offset| pmem.load_u64(offset));
    let damaged = RecoverError::Floor { offset: offsets[0], found, copy };
    word.copies.into_iter().flatten().max().map(|floor| (floor, word)).ok_or(damaged)
}

/// Makes everything dead up to `floor`.
///
/// # Durability
/// One fence. A crash before it leaves the old floor or this one.
pub(super) fn raise<P: Pmem>(pmem: &P, layout: &Layout, floor: Stamp) -> Result<(), FenceError> {
    sealed::write(pmem, layout.seed, layout.floor_offsets(), floor);
    // DURABILITY POINT
    pmem.fence()
}
