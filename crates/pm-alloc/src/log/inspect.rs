//! Inspecting a log without changing it.

use super::error::RecoverError;
use super::floor::{self, State};
use super::recover::maybe_live_from;
use super::rings::ScannedLane;
use crate::format::Lsn;
use crate::layout::Layout;
use pm_core::Pmem;

/// The state of a log before its recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// The LSN up to which all entries are dead.
    pub floor: Lsn,
    /// Whether recovery needs no log entry: the log was closed, an unlogged heap was in use, or an interrupted recovery has replayed the entries.
    pub is_closed: bool,
    /// The number of corrupted copies of the floor: 0 or 1.
    pub floor_corrupted: u32,
    /// The lanes, in order.
    pub lanes: Vec<LaneInspection>,
}

/// The state of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneInspection {
    /// The LSN up to which the lane's groups are applied and durable in place. `None` if both copies of that LSN are corrupted.
    pub retired_lsn: Option<Lsn>,
    /// The number of corrupted copies of `retired_lsn`: 0 to 2.
    pub retired_corrupted: u32,
    /// The number of complete groups above the floor.
    pub group_count: usize,
    /// The highest LSN of a complete group above the floor.
    pub last_lsn: Option<Lsn>,
    /// Whether recovery replays the last one or two groups, which may not be durable in place.
    pub is_live: bool,
    /// The number of undo entries of a transaction that did not commit.
    pub open_undo_count: usize,
    /// The number of corrupted lines.
    pub corrupted_count: u64,
    /// Whether a corrupted line may hold a live entry, or the lane has groups and both copies of `retired_lsn` are corrupted. If so, the heap opens
    /// only if corrupted records [may be discarded](crate::HeapOptions::discard_corrupted_records).
    pub is_corruption_live: bool,
}

impl LaneInspection {
    const EMPTY: Self = Self {
        retired_lsn: Some(Lsn::ZERO),
        retired_corrupted: 0,
        group_count: 0,
        last_lsn: None,
        is_live: false,
        open_undo_count: 0,
        corrupted_count: 0,
        is_corruption_live: false,
    };
}

impl Inspection {
    /// Inspects a log.
    ///
    /// # Errors
    /// When both copies of the floor are corrupted.
    pub(crate) fn of<P: Pmem>(pmem: &P, layout: &Layout) -> Result<Self, RecoverError> {
        let (floor, word) = floor::read(pmem, layout)?;
        let state = State::of(floor);
        let is_closed = state != State::Open;
        let scanned = match state {
            // Partly erased rings are not corrupted.
            State::Erasing => Vec::new(),
            _ => ScannedLane::read_all(pmem, layout, floor),
        };
        let lowest = maybe_live_from(&scanned);
        let mut lanes: Vec<_> = scanned
            .iter()
            .map(|lane| LaneInspection {
                retired_lsn: lane.retired_word.highest(),
                retired_corrupted: lane.retired_word.corrupted_count(),
                group_count: lane.groups.len(),
                last_lsn: lane.last().map(|last| last.lsn),
                is_live: !is_closed && lane.replay_from().is_some(),
                open_undo_count: lane.open_undo().count(),
                corrupted_count: lane.corrupted.len() as u64,
                is_corruption_live: !is_closed && lane.has_live_corruption(lowest),
            })
            .collect();
        lanes.resize(layout.lane_count as usize, LaneInspection::EMPTY);
        Ok(Self { floor, is_closed, floor_corrupted: word.corrupted_count(), lanes })
    }
}
