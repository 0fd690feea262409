//! Making a log, and finding out what a crash left of one.

use super::entry::Record;
use super::error::RecoverError;
use super::rings::LaneFound;
use super::shared::Log;
use crate::format::{LINE_BYTES, LogEntry, Stamp};
use crate::layout::Layout;
use crate::sealed::{self, Sealed};
use core::mem::size_of;
use pm_core::{FenceError, Pmem};

/// From this generation on, recovery zeroes the rings and begins with the first one again. It leaves as many stamps for a program
/// that runs on and on.
const LAST_GENERATION: u64 = 1 << 15;

/// The floor of a new log: the first generation has number 1.
const FIRST_FLOOR: Stamp = Stamp::new(1 << 32);

/// What a recovery found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovery {
    /// Committed transactions that were stored in place again, though they may have been there.
    pub stored_again: u64,
    /// Transactions that had not committed, and were taken back.
    pub rolled_back: u64,
    /// Entries that were written and are damaged. What they would have stored may be missing.
    pub damaged_entries: u64,
    /// Copies of the log's own words that are damaged. The other copy was used, if that is whole.
    pub damaged_words: u64,
    /// Lanes whose word is damaged in both copies. What they committed was stored again, maybe over something newer.
    pub damaged_lanes: Vec<u32>,
}

impl Log {
    /// Makes a new log, where no log was.
    ///
    /// # Durability
    /// Nothing before the caller fences; all that this writes is flushed.
    pub(crate) fn format<P: Pmem>(pmem: &P, layout: &Layout) {
        begin_again(pmem, layout);
        sealed::write(pmem, layout.seed, layout.floor_offset(), FIRST_FLOOR);
    }

    /// Opens a log: stores again what was committed and may not be in place, and takes back what was not committed.
    ///
    /// # Durability
    /// Two fences, or none if the log was not used since the last time. A crash inside changes nothing that the next recovery
    /// would need.
    ///
    /// # Errors
    /// When the floor is damaged in both copies, or a fence fails.
    pub(crate) fn recover<P: Pmem>(pmem: &P, layout: &Layout) -> Result<(Self, Recovery), RecoverError> {
        let restored = restore(pmem, layout)?;
        let log = Self::new(*layout, restored.floor, restored.retired.into_iter());
        Ok((log, restored.recovery))
    }
}

/// What a log begins with after a recovery.
#[derive(Debug)]
pub(super) struct Restored {
    /// All entries are dead up to here.
    floor: Stamp,
    /// What the headers of the lanes say.
    retired: Vec<Stamp>,
    pub(super) recovery: Recovery,
}

/// Recovers the region.
pub(super) fn restore<P: Pmem>(pmem: &P, layout: &Layout) -> Result<Restored, RecoverError> {
    let (floor, floor_word) = read_floor(pmem, layout)?;
    let lanes: Vec<LaneFound> =
        (0..layout.lane_count).map(|lane| LaneFound::read(pmem, layout, lane, floor)).collect();
    let mut recovery = Recovery { damaged_words: floor_word.damaged().into(), ..Recovery::default() };
    for (index, lane) in (0..).zip(&lanes) {
        recovery.damaged_words += u64::from(lane.header.damaged());
        recovery.damaged_entries += lane.damaged;
        if lane.header.first().is_none() {
            recovery.damaged_lanes.push(index);
        }
        if lane.header.damaged() > 0 {
            sealed::write(pmem, layout.seed, layout.lane_offset(index), lane.retired());
        }
    }
    store_again(pmem, &lanes, &mut recovery);
    roll_back(pmem, &lanes, &mut recovery);
    let highest = lanes.iter().filter_map(|lane| lane.highest).max();
    let mut floor = highest.map_or(floor, |highest| highest.next_generation().unwrap_or(Stamp::MAX));
    if highest.is_some() || recovery.damaged_words > 0 {
        raise_floor(pmem, layout, floor)?;
    }
    let mut retired: Vec<Stamp> = lanes.iter().map(LaneFound::retired).collect();
    if floor.generation() >= LAST_GENERATION {
        // All is dead, so nothing is lost if a crash leaves half of it. But no entry may come to life by the lower floor.
        begin_again(pmem, layout);
        floor = FIRST_FLOOR;
        raise_floor(pmem, layout, floor)?;
        retired.fill(Stamp::ZERO);
    }
    Ok(Restored { floor, retired, recovery })
}

pub(super) fn read_floor<P: Pmem>(pmem: &P, layout: &Layout) -> Result<(Stamp, Sealed), RecoverError> {
    let offset = layout.floor_offset();
    let word = Sealed::read(pmem, layout.seed, offset);
    let [found, copy] = [offset, offset + LINE_BYTES].map(|offset| pmem.load_u64(offset));
    word.first().map(|floor| (floor, word)).ok_or(RecoverError::Floor { offset, found, copy })
}

/// Stores again, in the order of their stamps, all groups above the horizon.
fn store_again<P: Pmem>(pmem: &P, lanes: &[LaneFound], recovery: &mut Recovery) {
    let Some(lowest) = lanes.iter().filter_map(LaneFound::lowest_live).min() else { return };
    let groups = lanes.iter().flat_map(|lane| &lane.groups);
    let mut groups: Vec<_> = groups.filter(|group| group.stamp >= lowest).collect();
    groups.sort_by_key(|group| group.stamp);
    for group in groups {
        group.records.iter().for_each(|record| store(pmem, record));
        recovery.stored_again += 1;
    }
}

/// Takes back, last first, what was written behind undo entries and not committed. The order is one over all lanes: a transaction may have
/// begun with what another one, committed lazily, had left.
fn roll_back<P: Pmem>(pmem: &P, lanes: &[LaneFound], recovery: &mut Recovery) {
    let mut open: Vec<_> = lanes.iter().flat_map(LaneFound::open).collect();
    open.sort_by_key(|record| core::cmp::Reverse(record.stamp));
    open.into_iter().for_each(|record| store(pmem, record));
    recovery.rolled_back = lanes.iter().filter(|lane| lane.open().next().is_some()).count() as u64;
}

fn store<P: Pmem>(pmem: &P, record: &Record) {
    record.restore(pmem);
    record.for_each_home(|offset, bytes| pmem.flush(offset, bytes.len() as u64));
}

/// Makes everything dead up to `floor`, after what was stored again or taken back is durable.
fn raise_floor<P: Pmem>(pmem: &P, layout: &Layout, floor: Stamp) -> Result<(), FenceError> {
    pmem.fence()?;
    sealed::write(pmem, layout.seed, layout.floor_offset(), floor);
    // DURABILITY POINT
    pmem.fence()
}

/// Zeroes all rings, and has no lane retired. Flushes, and leaves the fence to the caller.
fn begin_again<P: Pmem>(pmem: &P, layout: &Layout) {
    for lane in 0..layout.lane_count {
        sealed::write(pmem, layout.seed, layout.lane_offset(lane), Stamp::ZERO);
        let ring = vec![[0; size_of::<LogEntry>()]; layout.lane_entries as usize];
        pmem.store_nt(layout.entry_offset(lane, 0), ring.as_flattened());
    }
}
