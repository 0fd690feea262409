//! Making a log, and finding out what a crash left of one.

use super::entry::{self, Record};
use super::error::{CommitError, RecoverError};
use super::floor::{self, State};
use super::replay::replay;
use super::rings::{LaneFound, complete_from};
use super::shared::Log;
use crate::format::{LINE_BYTES, LogEntry, Stamp};
use crate::layout::Layout;
use crate::sealed;
use pm_core::{FenceError, Pmem, bytes_of_slice};

/// What to do about a corrupted line that may hold a live entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OnCorruption {
    /// Nothing is changed, and [`RecoverError::Corrupted`] says where.
    #[default]
    Refuse,
    /// Recovery goes on as if the entry had never been written.
    Discard,
}

/// What a recovery found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovery {
    /// Committed transactions that were stored in place again, though they may have been there.
    pub stored_again: u64,
    /// Transactions that had not committed, and were taken back.
    pub rolled_back: u64,
    /// Lines of the log that are corrupted. Unless corrupted records were to be discarded, none of them held anything that was
    /// still needed.
    pub damaged_entries: u64,
    /// Copies of the log's own words that are damaged. The other copy was used, if that is whole.
    pub damaged_words: u64,
    /// Lanes whose word is damaged in both copies. Where corrupted records were to be discarded, what they committed may have
    /// been stored again over something newer.
    pub damaged_lanes: Vec<u32>,
    /// Lanes of which a corrupted record was discarded that may have been live: what a transaction changed may be lost, or
    /// some of it.
    pub discarded_in_lanes: Vec<u32>,
}

impl Log {
    /// Makes a new log, where no log was.
    ///
    /// # Durability
    /// Nothing before the caller fences; all that this writes is flushed.
    pub(crate) fn format<P: Pmem>(pmem: &P, layout: &Layout) {
        begin_again(pmem, layout);
        sealed::write(pmem, layout.seed, layout.floor_offsets(), floor::FIRST);
    }

    /// The first half of opening a log: replays what was committed and may not have been applied, and rolls back what was not committed.
    /// The log is left as it is, so that the next recovery would do the same again. Before [`finish`](Replayed::finish) the
    /// caller may repair what discarded entries leave.
    ///
    /// A process that was killed leaves lines that are visible and not durable. So all lines of a log that was not closed are made durable
    /// before anything is stored, what is stored is made durable before the floor is raised, and the floor in any case.
    ///
    /// # Durability
    /// One fence if the log was not closed; two if something is to be replayed, and more if a group has blocks that lie one behind the
    /// other. A crash inside changes nothing that the next recovery would need.
    ///
    /// # Errors
    /// When the floor is damaged in both copies, an entry that may be live is corrupted, or a fence fails. Nothing was changed then, unless a fence
    /// failed.
    pub(crate) fn replay<P: Pmem>(
        pmem: &P,
        layout: &Layout,
        on_corruption: OnCorruption,
    ) -> Result<Replayed, RecoverError> {
        Replayed::replay(pmem, layout, on_corruption)
    }

    /// Both halves of opening a log.
    #[cfg(test)]
    pub(crate) fn recover<P: Pmem>(
        pmem: &P,
        layout: &Layout,
        on_corruption: OnCorruption,
    ) -> Result<(Self, Recovery), RecoverError> {
        Self::replay(pmem, layout, on_corruption)?.finish(pmem)
    }

    /// Closes a log that no transaction is using: everything committed is applied and durable, and recovery has nothing to
    /// replay, whatever becomes of the entries.
    ///
    /// # Durability
    /// Two fences, or one if nothing was committed. A crash inside leaves the log closed, or as one that was not.
    ///
    /// # Errors
    /// When a fence fails or failed before, or a transaction was left half done. Recovery knows what to do then.
    pub(crate) fn close<P: Pmem>(&mut self, pmem: &P) -> Result<(), CommitError> {
        self.store_closed(pmem)?;
        self.fail(CommitError::Closed);
        Ok(())
    }

    /// Makes the log one that is closed, on the medium.
    pub(super) fn store_closed<P: Pmem>(&mut self, pmem: &P) -> Result<(), CommitError> {
        self.check()?;
        let mut is_in_flight = false;
        for lane in &self.lanes {
            let mut own = lane.own.try_lock().ok_or(CommitError::Abandoned)?;
            if own.open > 0 || lane.published.is_under_way() {
                return Err(self.fail(CommitError::Abandoned));
            }
            is_in_flight |= !own.pending.is_empty();
            own.pending.drain(..).for_each(|line| pmem.flush(line, LINE_BYTES));
        }
        if is_in_flight {
            self.fence(pmem)?;
        }
        let now = self.clock.now();
        let floor = if self.has_volatile_headers { floor::bypassed(now) } else { floor::closed(now) };
        sealed::write(pmem, self.layout.seed, self.layout.floor_offsets(), floor);
        // DURABILITY POINT
        self.fence(pmem)
    }
}

/// A log that was replayed, and whose entries are all as they were.
#[derive(Debug)]
pub(crate) struct Replayed {
    layout: Layout,
    floor: Stamp,
    lanes: Vec<LaneFound>,
    recovery: Recovery,
}

impl Replayed {
    fn replay<P: Pmem>(pmem: &P, layout: &Layout, on_corruption: OnCorruption) -> Result<Self, RecoverError> {
        let (floor, floor_word) = floor::read(pmem, layout)?;
        let state = State::of(floor);
        let lanes: Vec<LaneFound> = match state {
            State::BeingErased => Vec::new(),
            _ => LaneFound::read_all(pmem, layout, floor),
        };
        let mut recovery = Recovery { damaged_words: floor_word.damaged().into(), ..Recovery::default() };
        for (index, lane) in (0..).zip(&lanes) {
            recovery.damaged_words += u64::from(lane.header.damaged());
            recovery.damaged_entries += lane.corrupted.len() as u64;
            if lane.header.first().is_none() {
                recovery.damaged_lanes.push(index);
            }
        }
        if state == State::Open {
            recovery.discarded_in_lanes = live_corruption(layout, &lanes, on_corruption)?;
            // What is stored in place may be durable at once, so the entries must be before. And a line that a killed process wrote over a
            // corrupted one is whole only until a power failure, if it is not durable.
            flush_lanes(pmem, layout);
            pmem.fence()?;
            replay(pmem, layout, &lanes, &mut recovery)?;
        }
        Ok(Self { layout: *layout, floor, lanes, recovery })
    }

    /// Whether entries were discarded that may have been live.
    pub(crate) const fn has_discarded(&self) -> bool {
        !self.recovery.discarded_in_lanes.is_empty()
    }

    /// Whether blocks were changed without the log, by a process that was killed before it had made their headers durable.
    pub(crate) fn has_volatile_headers(&self) -> bool {
        State::of(self.floor) == State::Bypassed
    }

    /// Runs `each` with the pairs of an offset and a word of the groups that are still in the log, in the order of stamps,
    /// from a stamp on above which no group is missing but the corrupted ones. Headers of blocks are such pairs, and no
    /// other pair is a header at its place.
    pub(crate) fn for_each_pair(&self, mut each: impl FnMut(u64, u64)) {
        let from = complete_from(&self.lanes);
        let groups = self.lanes.iter().flat_map(|lane| &lane.groups);
        let mut groups: Vec<_> = groups.filter(|group| Some(group.stamp) >= from).collect();
        groups.sort_by_key(|group| group.stamp);
        let pairs = groups.iter().flat_map(|group| &group.records).flat_map(Record::pairs);
        pairs.for_each(|(offset, word)| each(offset, word));
    }

    /// Makes all entries dead. What the caller has repaired must be durable.
    ///
    /// # Durability
    /// One fence, and two more if something is corrupted, or a process was killed that was writing it anew. A crash inside changes nothing
    /// that the next recovery would need.
    ///
    /// # Errors
    /// When a fence fails.
    pub(crate) fn finish<P: Pmem>(self, pmem: &P) -> Result<(Log, Recovery), RecoverError> {
        let Self { layout, floor, lanes, recovery } = self;
        // The words of a lane are above every entry that can be read, if those that they are about are corrupted.
        let stamps = lanes.iter().flat_map(|lane| [lane.highest, Some(lane.retired()), Some(lane.undo_end)]);
        let mut highest = stamps.flatten().fold(floor, Stamp::max);
        let is_damaged = recovery.damaged_entries + recovery.damaged_words > 0;
        if is_damaged || State::of(floor) == State::BeingRestored {
            // From here on recovery needs neither the entries nor the words of the lanes, and they can be written over.
            highest = floor::being_restored(highest);
            floor::raise(pmem, &layout, highest)?;
            restore_lines(pmem, &layout, &lanes)?;
        }
        let mut retired: Vec<Stamp> = lanes.iter().map(LaneFound::retired).collect();
        let mut floor = highest.next_generation().unwrap_or(Stamp::MAX);
        if floor::is_last(highest) {
            // All is dead, so nothing is lost if a crash leaves half of it. But no entry may come to life by the lower floor.
            floor::raise(pmem, &layout, floor::closed(highest))?;
            begin_again(pmem, &layout);
            pmem.fence()?;
            floor = floor::FIRST.next_generation().unwrap_or(Stamp::MAX);
            retired = vec![Stamp::ZERO; layout.lane_count as usize];
        }
        floor::raise(pmem, &layout, floor)?;
        Ok((Log::new(layout, floor, retired.into_iter()), recovery))
    }
}

/// The stamp from which on an entry may be live that is corrupted.
pub(super) fn lowest_needed(lanes: &[LaneFound]) -> Option<Stamp> {
    lanes.iter().flat_map(|lane| [lane.lowest_live(), lane.lowest_needed()]).flatten().min()
}

/// The lanes with corrupted lines that may hold live entries, if those are to be discarded.
fn live_corruption(
    layout: &Layout,
    lanes: &[LaneFound],
    on_corruption: OnCorruption,
) -> Result<Vec<u32>, RecoverError> {
    let lowest = lowest_needed(lanes);
    let mut found = Vec::new();
    for (index, lane) in (0..).zip(lanes) {
        let entry = lane.live_corruption(lowest).map(|entry| layout.entry_offset(index, entry));
        let header = lane.is_retired_unknown().then(|| layout.retired_offsets(index)[0]);
        if let Some(offset) = entry.or(header) {
            if on_corruption == OnCorruption::Refuse {
                return Err(RecoverError::Corrupted { lane: index, offset });
            }
            found.push(index);
        }
    }
    Ok(found)
}

/// Writes corrupted lines and words of lanes anew, durably, and makes durable what a killed recovery has written anew.
fn restore_lines<P: Pmem>(pmem: &P, layout: &Layout, lanes: &[LaneFound]) -> Result<(), FenceError> {
    for (index, lane) in (0..).zip(lanes) {
        if lane.header.damaged() > 0 {
            sealed::write(pmem, layout.seed, layout.retired_offsets(index), lane.retired());
        }
        for line in &lane.corrupted {
            entry::erase(pmem, layout.seed, layout.entry_offset(index, line.index));
        }
    }
    flush_lanes(pmem, layout);
    pmem.fence()
}

fn flush_lanes<P: Pmem>(pmem: &P, layout: &Layout) {
    let start = layout.lane_offset(0);
    pmem.flush(start, layout.lanes_end() - start);
}

/// Erases all rings, and has no lane retired. Flushes, and leaves the fence to the caller.
fn begin_again<P: Pmem>(pmem: &P, layout: &Layout) {
    for lane in 0..layout.lane_count {
        pmem.store_u64(layout.undo_end_offset(lane), 0);
        sealed::write(pmem, layout.seed, layout.retired_offsets(lane), Stamp::ZERO);
        let offsets = (0..layout.lane_entries).map(|index| layout.entry_offset(lane, index));
        let ring: Vec<LogEntry> = offsets.map(|offset| LogEntry::erased(layout.seed, offset)).collect();
        pmem.store_nt(layout.entry_offset(lane, 0), bytes_of_slice(&ring));
    }
}
