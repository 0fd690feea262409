//! Making a log, and finding out what a crash left of one.

use super::entry::{self, Record};
use super::error::RecoverError;
use super::floor::{self, State};
use super::handle::Log;
use super::home;
use super::rings::{GroupFound, LaneFound, complete_from, lowest_live};
use crate::format::{BLOCK_HEADER_BYTES, BlockHeader, LINE_BYTES, LogEntry, Lsn};
use crate::layout::Layout;
use crate::sealed;
use pm_core::line::{line_start, piece_bytes};
use pm_core::{FenceError, Pmem, bytes_of_slice};
use std::collections::BTreeMap;

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
    pub replayed: u64,
    /// Transactions that had not committed, and were taken back.
    pub rolled_back: u64,
    /// Lines of the log that are corrupted. Unless corrupted records were to be discarded, none of them held anything that was
    /// still needed.
    pub corrupted_entries: u64,
    /// Copies of the log's own words that are corrupted. The other copy was used, if that is whole.
    pub corrupted_words: u64,
    /// Lanes whose word is corrupted in both copies. Where corrupted records were to be discarded, what they committed may have
    /// been stored again over something newer.
    pub corrupted_lanes: Vec<u32>,
    /// Lanes of which a corrupted record was discarded that may have been live: what a transaction changed may be lost, or
    /// some of it.
    pub discarded_in_lanes: Vec<u32>,
}

/// Makes a new log, where no log was.
///
/// # Durability
/// Nothing before the caller fences; all that this writes is flushed.
pub(crate) fn format<P: Pmem>(pmem: &P, layout: &Layout) {
    begin_again(pmem, layout);
    sealed::write(pmem, layout.seed, layout.floor_offsets(), floor::FIRST);
}

/// Both halves of opening a log.
#[cfg(test)]
pub(crate) fn recover<P: Pmem>(
    pmem: &P,
    layout: &Layout,
    on_corruption: OnCorruption,
) -> Result<(Log, Recovery), RecoverError> {
    Replayed::replay(pmem, layout, on_corruption)?.finish(pmem)
}

/// A log that was replayed, and whose entries are all as they were.
#[derive(Debug)]
pub(crate) struct Replayed {
    layout: Layout,
    floor: Lsn,
    lanes: Vec<LaneFound>,
    recovery: Recovery,
}

impl Replayed {
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
    /// When the floor is corrupted in both copies, an entry that may be live is corrupted, or a fence fails. Nothing was changed then, unless a fence
    /// failed.
    pub(crate) fn replay<P: Pmem>(
        pmem: &P,
        layout: &Layout,
        on_corruption: OnCorruption,
    ) -> Result<Self, RecoverError> {
        let (floor, floor_word) = floor::read(pmem, layout)?;
        let state = State::of(floor);
        let lanes: Vec<LaneFound> = match state {
            State::BeingErased => Vec::new(),
            _ => LaneFound::read_all(pmem, layout, floor),
        };
        let mut recovery = Recovery { corrupted_words: floor_word.corrupted().into(), ..Recovery::default() };
        for (index, lane) in (0..).zip(&lanes) {
            recovery.corrupted_words += u64::from(lane.header.corrupted());
            recovery.corrupted_entries += lane.corrupted.len() as u64;
            if lane.header.first().is_none() {
                recovery.corrupted_lanes.push(index);
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

    /// Runs `each` with the pairs of an offset and a word of the groups that are still in the log, in the order of LSNs,
    /// from an LSN on above which no group is missing but the corrupted ones. Headers of blocks are such pairs, and no
    /// other pair is a header at its place.
    pub(crate) fn for_each_pair(&self, mut each: impl FnMut(u64, u64)) {
        let from = complete_from(&self.lanes);
        let groups = self.lanes.iter().flat_map(|lane| &lane.groups);
        let mut groups: Vec<_> = groups.filter(|group| Some(group.lsn) >= from).collect();
        groups.sort_by_key(|group| group.lsn);
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
        let lsns = lanes.iter().flat_map(|lane| [lane.highest, Some(lane.retired()), Some(lane.undo_end)]);
        let mut highest = lsns.flatten().fold(floor, Lsn::max);
        let is_corrupted = recovery.corrupted_entries + recovery.corrupted_words > 0;
        if is_corrupted || State::of(floor) == State::BeingRestored {
            // From here on recovery needs neither the entries nor the words of the lanes, and they can be written over.
            highest = floor::being_restored(highest);
            floor::raise(pmem, &layout, highest)?;
            restore_lines(pmem, &layout, &lanes)?;
        }
        let mut retired: Vec<Lsn> = lanes.iter().map(LaneFound::retired).collect();
        let mut floor = highest.next_generation().unwrap_or(Lsn::MAX);
        if floor::is_last(highest) {
            // All is dead, so nothing is lost if a crash leaves half of it. But no entry may come to life by the lower floor.
            floor::raise(pmem, &layout, floor::closed(highest))?;
            begin_again(pmem, &layout);
            pmem.fence()?;
            floor = floor::FIRST.next_generation().unwrap_or(Lsn::MAX);
            retired = vec![Lsn::ZERO; layout.lane_count as usize];
        }
        floor::raise(pmem, &layout, floor)?;
        Ok((Log::new(layout, floor, retired.into_iter()), recovery))
    }
}

/// The LSN from which on an entry may be live that is corrupted.
pub(super) fn lowest_needed(lanes: &[LaneFound]) -> Option<Lsn> {
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
        if lane.header.corrupted() > 0 {
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
        sealed::write(pmem, layout.seed, layout.retired_offsets(lane), Lsn::ZERO);
        let offsets = (0..layout.lane_entries).map(|index| layout.entry_offset(lane, index));
        let ring: Vec<LogEntry> = offsets.map(|offset| LogEntry::erased(layout.seed, offset)).collect();
        pmem.store_nt(layout.entry_offset(lane, 0), bytes_of_slice(&ring));
    }
}

/// Stores in place what the live groups say, and takes back what no group committed, durably.
///
/// Of several groups that store to a byte only the last one is stored. What groups have stored never goes back to an older value,
/// not even until the fence: the next recovery may replay less, as an entry that is corrupted by then no longer counts, and
/// it finds in place what counts without it.
///
/// # Durability
/// As many fences as [`InnerHeaders::store`] needs, and one at the end; none if there is nothing to do. The entries must be durable.
pub(super) fn replay<P: Pmem>(
    pmem: &P,
    layout: &Layout,
    lanes: &[LaneFound],
    recovery: &mut Recovery,
) -> Result<(), FenceError> {
    let lowest = lowest_live(lanes);
    let groups = lanes.iter().flat_map(|lane| &lane.groups);
    let mut groups: Vec<_> =
        groups.filter(|group| lowest.is_some_and(|lowest| group.lsn >= lowest)).collect();
    groups.sort_by_key(|group| group.lsn);
    // The latest group first: a byte that is in the set already has its last value.
    let mut later = Stored::default();
    let mut inner = InnerHeaders::default();
    for group in groups.iter().rev() {
        inner.add(layout, group, &later);
        group.records.iter().rev().for_each(|record| later.add(record, |_, _| ()));
    }
    inner.store(pmem)?;
    let mut stored = Stored::default();
    for record in groups.iter().rev().flat_map(|group| group.records.iter().rev()) {
        stored.add(record, |offset, bytes| home::store(pmem, offset, bytes));
    }
    stored.lines.keys().for_each(|&line| pmem.flush(line, LINE_BYTES));
    recovery.replayed = groups.len() as u64;
    roll_back(pmem, lanes, recovery);
    if recovery.replayed + recovery.rolled_back > 0 { pmem.fence() } else { Ok(()) }
}

/// Bytes in place that records store to.
#[derive(Default)]
struct Stored {
    /// A bit for each byte of a line, by the line's offset.
    lines: BTreeMap<u64, u64>,
}

impl Stored {
    /// Adds the bytes of a record, and runs `each` with the offset and the contents of those that were not there.
    fn add(&mut self, record: &Record, mut each: impl FnMut(u64, &[u8])) {
        record.for_each_home(|offset, bytes| {
            let (mut offset, mut rest) = (offset, bytes);
            while !rest.is_empty() {
                #[expect(clippy::cast_possible_truncation, reason = "at most a line")]
                let (piece, behind) = rest.split_at(piece_bytes(offset, rest.len() as u64) as usize);
                self.add_piece(offset, piece, &mut each);
                (offset, rest) = (offset + piece.len() as u64, behind);
            }
        });
    }

    /// The same with bytes of one line.
    fn add_piece(&mut self, offset: u64, piece: &[u8], each: &mut impl FnMut(u64, &[u8])) {
        let (line, first) = place_in_line(offset);
        let there = self.lines.entry(line).or_default();
        let all = bits(first, piece.len());
        let mut new = all & !*there;
        *there |= all;
        while new != 0 {
            let start = new.trailing_zeros() as usize;
            let count = (new >> start).trailing_ones() as usize;
            each(line + start as u64, &piece[start - first..start - first + count]);
            new &= !bits(start, count);
        }
    }

    /// Whether the word at `offset` is there, or a part of it.
    fn has_word(&self, offset: u64) -> bool {
        let (line, first) = place_in_line(offset);
        self.lines.get(&line).is_some_and(|there| there & bits(first, 8) != 0)
    }
}

/// The line of a byte, and which of its bytes it is.
#[expect(clippy::cast_possible_truncation, reason = "less than a line")]
const fn place_in_line(offset: u64) -> (u64, usize) {
    (line_start(offset), (offset - line_start(offset)) as usize)
}

/// A mask of `count` bits from bit `first` on. `count` is at least 1, and `first + count` at most 64.
const fn bits(first: usize, count: usize) -> u64 {
    (u64::MAX >> (64 - count)) << first
}

/// The headers that other headers of their groups lead to. Each is stored durably before the one that leads to it, as a commit does. After
/// a crash in between, the group's entry may be corrupted, and discarded: a header that is in place must not lead to what a
/// former block left.
#[derive(Default)]
struct InnerHeaders {
    /// Offset and word, indexed by the number of headers that follow.
    by_following: Vec<Vec<(u64, u64)>>,
}

impl InnerHeaders {
    /// Adds the inner headers of a group, except those that a later group overwrites. Such a group began after this one had committed,
    /// so the place already holds a header of this group or a newer value.
    fn add(&mut self, layout: &Layout, group: &GroupFound, later: &Stored) {
        let headers = headers_of(layout, group);
        let mut following = BTreeMap::new();
        for (&offset, &(_, next)) in headers.iter().rev() {
            let Some(&(word, _)) = headers.get(&next).filter(|_| next > offset) else { continue };
            let number: usize = following.get(&next).copied().unwrap_or(0);
            following.insert(offset, number + 1);
            if !later.has_word(next) {
                self.by_following.resize_with(self.by_following.len().max(number + 1), Vec::new);
                self.by_following[number].push((next, word));
            }
        }
    }

    /// # Durability
    /// As many fences as the longest row of headers in a group, each leading to the next, has after its first one.
    fn store<P: Pmem>(&self, pmem: &P) -> Result<(), FenceError> {
        for headers in self.by_following.iter().filter(|headers| !headers.is_empty()) {
            for &(offset, word) in headers {
                pmem.store_u64(offset, word);
                pmem.flush(offset, BLOCK_HEADER_BYTES);
            }
            pmem.fence()?;
        }
        Ok(())
    }
}

/// The headers that a group stores, by offset: the word, and the offset of the header behind the block.
fn headers_of(layout: &Layout, group: &GroupFound) -> BTreeMap<u64, (u64, u64)> {
    let header = |(offset, word)| {
        let is_place = offset % LINE_BYTES == LINE_BYTES - BLOCK_HEADER_BYTES;
        let header = BlockHeader::from_word(word, layout.seed, offset).filter(|_| is_place)?;
        Some((offset, (word, offset + u64::from(header.lines) * LINE_BYTES)))
    };
    group.records.iter().flat_map(Record::pairs).filter_map(header).collect()
}

/// Takes back, last first, what was written behind undo entries and not committed. The order is one over all lanes: a transaction may have
/// begun with what another one, committed lazily, had left.
fn roll_back<P: Pmem>(pmem: &P, lanes: &[LaneFound], recovery: &mut Recovery) {
    let mut open: Vec<_> = lanes.iter().flat_map(LaneFound::open).collect();
    open.sort_by_key(|record| core::cmp::Reverse(record.lsn));
    open.into_iter().for_each(|record| store(pmem, record));
    recovery.rolled_back = lanes.iter().filter(|lane| lane.open().next().is_some()).count() as u64;
}

fn store<P: Pmem>(pmem: &P, record: &Record) {
    record.restore(pmem);
    record.for_each_home(|offset, bytes| pmem.flush(offset, bytes.len() as u64));
}
