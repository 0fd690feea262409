//! Looking at a log without changing it.

use super::error::RecoverError;
use super::floor::{self, State};
use super::recover::lowest_needed;
use super::rings::LaneFound;
use crate::format::Lsn;
use crate::layout::Layout;
use pm_core::Pmem;

/// What is in a log. A recovery would act on it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// Entries up to here are dead.
    pub floor: Lsn,
    /// Whether the log was closed, or a recovery was stopped that had done all but open it: nothing in the lanes is needed any more.
    pub is_closed: bool,
    /// Corrupted copies of the floor: 0 or 1.
    pub floor_corrupted: u32,
    /// The lanes, in order.
    pub lanes: Vec<LaneInspection>,
}

/// What is in a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneInspection {
    /// Up to here everything of it is in place. `None`: this is corrupted, in both copies.
    pub retired: Option<Lsn>,
    /// Corrupted copies of that word: 0 to 2.
    pub retired_corrupted: u32,
    /// Whole groups above the floor.
    pub groups: usize,
    /// The highest of their LSNs.
    pub last: Option<Lsn>,
    /// Whether the last of them, or the last two, may be missing in place.
    pub is_live: bool,
    /// Undo entries of a transaction that did not commit.
    pub open_undo: usize,
    /// Lines of it that are corrupted.
    pub corrupted: u64,
    /// Whether one of them may hold a live entry, or both copies of the word are corrupted and there are groups: the heap is not opened
    /// then unless corrupted records [may be discarded](crate::HeapOptions::discard_corrupted_records).
    pub is_corruption_live: bool,
}

impl LaneInspection {
    const EMPTY: Self = Self {
        retired: Some(Lsn::ZERO),
        retired_corrupted: 0,
        groups: 0,
        last: None,
        is_live: false,
        open_undo: 0,
        corrupted: 0,
        is_corruption_live: false,
    };
}

impl Inspection {
    /// What is in a log.
    ///
    /// # Errors
    /// When the floor is corrupted in both copies.
    pub(crate) fn of<P: Pmem>(pmem: &P, layout: &Layout) -> Result<Self, RecoverError> {
        let (floor, word) = floor::read(pmem, layout)?;
        let state = State::of(floor);
        let is_closed = state != State::Open;
        let found = match state {
            // Half erased rings are no corruption.
            State::BeingErased => Vec::new(),
            _ => LaneFound::read_all(pmem, layout, floor),
        };
        let lowest = lowest_needed(&found);
        let mut lanes: Vec<_> = found
            .iter()
            .map(|found| LaneInspection {
                retired: found.header.copies.into_iter().flatten().max(),
                retired_corrupted: found.header.corrupted(),
                groups: found.groups.len(),
                last: found.last().map(|last| last.lsn),
                is_live: !is_closed && found.lowest_live().is_some(),
                open_undo: found.open().count(),
                corrupted: found.corrupted.len() as u64,
                is_corruption_live: !is_closed && found.has_live_corruption(lowest),
            })
            .collect();
        lanes.resize(layout.lane_count as usize, LaneInspection::EMPTY);
        Ok(Self { floor, is_closed, floor_corrupted: word.corrupted(), lanes })
    }
}
