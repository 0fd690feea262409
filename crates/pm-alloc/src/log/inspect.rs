//! Looking at a log without changing it.

use super::error::RecoverError;
use super::recover::read_floor;
use super::rings::LaneFound;
use super::shared::Log;
use crate::format::Stamp;
use crate::layout::Layout;
use pm_core::Pmem;

/// What is in a log. A recovery would act on it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// Entries up to here are dead.
    pub floor: Stamp,
    /// Damaged copies of the floor: 0 or 1.
    pub floor_damaged: u32,
    /// The lanes, in order.
    pub lanes: Vec<LaneInspection>,
}

/// What is in a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneInspection {
    /// Up to here everything of it is in place. `None`: this is damaged, in both copies.
    pub retired: Option<Stamp>,
    /// Damaged copies of that word: 0 to 2.
    pub retired_damaged: u32,
    /// Whole groups above the floor.
    pub groups: usize,
    /// The highest of their stamps.
    pub last: Option<Stamp>,
    /// Whether the last of them, or the last two, may be missing in place.
    pub is_live: bool,
    /// Undo entries of a transaction that did not commit.
    pub open_undo: usize,
    /// Entries above the floor that are damaged.
    pub damaged: u64,
}

impl Log {
    /// What is in the log.
    ///
    /// # Errors
    /// When the floor is damaged in both copies.
    pub(crate) fn inspect<P: Pmem>(pmem: &P, layout: &Layout) -> Result<Inspection, RecoverError> {
        let (floor, word) = read_floor(pmem, layout)?;
        let lanes = (0..layout.lane_count).map(|lane| {
            let found = LaneFound::read(pmem, layout, lane, floor);
            LaneInspection {
                retired: found.header.first(),
                retired_damaged: found.header.damaged(),
                groups: found.groups.len(),
                last: found.last().map(|last| last.stamp),
                is_live: found.lowest_live().is_some(),
                open_undo: found.open().count(),
                damaged: found.damaged,
            }
        });
        Ok(Inspection { floor, floor_damaged: word.damaged(), lanes: lanes.collect() })
    }
}
