//! Formatting and recovering a log. Recovery replays committed transactions, and rolls back all others.

use super::entry::{self, Entry};
use super::error::RecoverError;
use super::floor::{self, SealedWord, State};
use super::handle::Log;
use super::rings::{ScannedGroup, ScannedLane, complete_from_lsn, replay_from};
use crate::format::{BLOCK_HEADER_BYTES, BlockHeader, LINE_BYTES, LogEntry, Lsn};
use crate::layout::Layout;
use pm_core::line::{line_start, piece_bytes};
use pm_core::{FenceError, Pmem, bytes_of_slice};
use std::collections::BTreeMap;

/// How recovery handles a corrupted line that may hold a live entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OnCorruption {
    /// Fail with [`RecoverError::Corrupted`], and change nothing.
    #[default]
    Refuse,
    /// Recover as if the entry had never been written.
    Discard,
}

/// The result of a recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovery {
    /// The number of committed transactions that were replayed. Some of them may have been applied before the crash.
    pub replayed: u64,
    /// The number of transactions that had not committed and were rolled back.
    pub rolled_back: u64,
    /// The number of corrupted lines of the log. Unless corrupted records may be discarded, none of them held a live entry.
    pub corrupted_entries: u64,
    /// The number of corrupted copies of the floor and of the lanes' retired LSNs. The other copy was used if it was valid.
    pub corrupted_words: u64,
    /// The lanes whose retired LSN is corrupted in both copies. If corrupted records may be discarded, transactions of these lanes
    /// may have been replayed over newer data.
    pub corrupted_lanes: Vec<u32>,
    /// The lanes in which a corrupted entry that may have been live was discarded, or whose retired LSN was unknown: all or some changes of a
    /// transaction may be lost.
    pub discarded_in_lanes: Vec<u32>,
}

/// Formats a new log.
///
/// # Durability
/// Stores and flushes. The caller's next fence makes the log durable.
pub(crate) fn format<P: Pmem>(pmem: &P, layout: &Layout) {
    erase_lanes(pmem, layout);
    SealedWord::write(pmem, layout.seed, layout.floor_offsets(), floor::FIRST);
}

/// Recovers a log in one step, for tests.
#[cfg(test)]
pub(crate) fn recover<P: Pmem>(
    pmem: &P,
    layout: &Layout,
    on_corruption: OnCorruption,
) -> Result<(Log, Recovery), RecoverError> {
    Replayed::replay(pmem, layout, on_corruption)?.finish(pmem)
}

/// A log after its replay. Its entries are unchanged on the medium until [`finish`](Self::finish).
#[derive(Debug)]
pub(crate) struct Replayed {
    layout: Layout,
    floor: Lsn,
    lanes: Vec<ScannedLane>,
    recovery: Recovery,
}

impl Replayed {
    /// The first half of opening a log: replays committed transactions that may not be durable in place, and rolls back all others. The log stays
    /// unchanged, so another recovery would do the same. Before [`finish`](Replayed::finish) the caller may repair the chains of headers where
    /// entries were discarded.
    ///
    /// A killed process leaves lines that are visible but not durable. So all lines of a log that was not closed are made durable before the first
    /// store, and all stores are made durable before the floor is raised.
    ///
    /// # Durability
    /// One fence if the log was not closed; two if something is replayed or rolled back, and more if a replayed group has adjacent blocks. If a
    /// crash interrupts this, the next recovery still finds everything that it needs.
    ///
    /// # Errors
    /// When both copies of the floor are corrupted, or a line that may hold a live entry is corrupted: nothing was changed. When a fence fails.
    pub(crate) fn replay<P: Pmem>(
        pmem: &P,
        layout: &Layout,
        on_corruption: OnCorruption,
    ) -> Result<Self, RecoverError> {
        let (floor, floor_word) = floor::read(pmem, layout)?;
        let state = State::of(floor);
        let lanes: Vec<ScannedLane> = match state {
            State::Erasing => Vec::new(),
            _ => ScannedLane::read_all(pmem, layout, floor),
        };
        let mut recovery =
            Recovery { corrupted_words: floor_word.corrupted_count().into(), ..Recovery::default() };
        for (index, lane) in (0..).zip(&lanes) {
            recovery.corrupted_words += u64::from(lane.retired_word.corrupted_count());
            recovery.corrupted_entries += lane.corrupted.len() as u64;
            if lane.retired_word.highest().is_none() {
                recovery.corrupted_lanes.push(index);
            }
        }
        if state == State::Open {
            recovery.discarded_in_lanes = live_corruption(layout, &lanes, on_corruption)?;
            // Before the first replayed store, which may become durable at once, the entries must be durable. All other lines are flushed, too: a
            // killed process may have overwritten a corrupted line, and without the flush a power failure could restore the corruption.
            flush_lanes(pmem, layout);
            pmem.fence()?;
            replay(pmem, layout, &lanes, &mut recovery)?;
        }
        Ok(Self { layout: *layout, floor, lanes, recovery })
    }

    /// Whether corrupted entries that may have been live were discarded.
    pub(crate) const fn has_discarded(&self) -> bool {
        !self.recovery.discarded_in_lanes.is_empty()
    }

    /// Whether a process changed blocks without the log and was killed before the headers were durable.
    pub(crate) fn has_volatile_headers(&self) -> bool {
        State::of(self.floor) == State::Bypassed
    }

    /// The (offset, word) pairs of all groups from [some LSN](complete_from_lsn) on, in LSN order. No group at or above that LSN is missing, except
    /// corrupted groups. Block headers are logged as such pairs, and no other pair is a valid header at its offset.
    pub(crate) fn pairs(&self) -> Vec<(u64, u64)> {
        let from = complete_from_lsn(&self.lanes);
        let groups = self.lanes.iter().flat_map(|lane| &lane.groups);
        let mut groups: Vec<_> = groups.filter(|group| Some(group.lsn) >= from).collect();
        groups.sort_by_key(|group| group.lsn);
        groups.iter().flat_map(|group| &group.entries).flat_map(Entry::pairs).collect()
    }

    /// The second half of opening a log: makes all entries dead. Before the call, the caller has made its repairs durable.
    ///
    /// # Durability
    /// One fence, and two more if something is corrupted or was being rewritten by a killed process. Another two if the rings are erased. If a crash
    /// interrupts this, the next recovery still finds everything that it needs.
    pub(crate) fn finish<P: Pmem>(self, pmem: &P) -> Result<(Log, Recovery), RecoverError> {
        let Self { layout, floor, lanes, recovery } = self;
        // The LSNs in a lane's header may be above those of all readable entries, if the entries with these LSNs are corrupted.
        let lsns = lanes.iter().flat_map(|lane| [lane.highest, Some(lane.retired()), Some(lane.undo_end)]);
        let mut highest = lsns.flatten().fold(floor, Lsn::max);
        let is_corrupted = recovery.corrupted_entries + recovery.corrupted_words > 0;
        if is_corrupted || State::of(floor) == State::Restoring {
            // Under the floor that is stored here, recovery needs neither the lanes' entries nor their headers, so both can be overwritten.
            highest = floor::restoring(highest);
            floor::raise(pmem, &layout, highest)?;
            restore_lines(pmem, &layout, &lanes)?;
        }
        let mut retired: Vec<Lsn> = lanes.iter().map(ScannedLane::retired).collect();
        let mut floor = highest.next_generation().unwrap_or(Lsn::MAX);
        if floor::is_in_last_generation(highest) {
            // This floor records that the rings may be partly erased. The erasure is completed before the lower floor is stored: under that floor
            // old entries would be live.
            floor::raise(pmem, &layout, floor::closed(highest))?;
            erase_lanes(pmem, &layout);
            pmem.fence()?;
            floor = floor::FIRST.next_generation().unwrap_or(Lsn::MAX);
            retired = vec![Lsn::ZERO; layout.lane_count as usize];
        }
        floor::raise(pmem, &layout, floor)?;
        Ok((Log::new(layout, floor, retired.into_iter()), recovery))
    }
}

/// A corrupted entry of a group may be live if its LSN is at or above this one. `None` if no such entry may be live.
pub(super) fn maybe_live_from(lanes: &[ScannedLane]) -> Option<Lsn> {
    lanes.iter().flat_map(|lane| [lane.replay_from(), lane.maybe_live_from()]).flatten().min()
}

/// Returns the lanes with corruption that may affect recovery. If there are any, this is an error unless corrupted entries may be discarded.
fn live_corruption(
    layout: &Layout,
    lanes: &[ScannedLane],
    on_corruption: OnCorruption,
) -> Result<Vec<u32>, RecoverError> {
    let lowest = maybe_live_from(lanes);
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

/// Durably rewrites corrupted lines and corrupted copies of the retired LSNs. This also makes lines durable that a killed recovery has rewritten.
fn restore_lines<P: Pmem>(pmem: &P, layout: &Layout, lanes: &[ScannedLane]) -> Result<(), FenceError> {
    for (index, lane) in (0..).zip(lanes) {
        if lane.retired_word.corrupted_count() > 0 {
            SealedWord::write(pmem, layout.seed, layout.retired_offsets(index), lane.retired());
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

/// Erases all rings and the headers of the lanes. The caller's next fence makes this durable.
fn erase_lanes<P: Pmem>(pmem: &P, layout: &Layout) {
    for lane in 0..layout.lane_count {
        pmem.store_u64(layout.undo_end_offset(lane), 0);
        SealedWord::write(pmem, layout.seed, layout.retired_offsets(lane), Lsn::ZERO);
        let offsets = (0..layout.lane_entries).map(|index| layout.entry_offset(lane, index));
        let ring: Vec<LogEntry> = offsets.map(|offset| LogEntry::erased(layout.seed, offset)).collect();
        pmem.store_nt(layout.entry_offset(lane, 0), bytes_of_slice(&ring));
    }
}

/// Applies the live groups and rolls back uncommitted changes in place. Both are durable when this returns.
///
/// If several groups store to a byte, only the last group's value is stored, so that no byte returns to an older value. Otherwise a crash here could
/// leave an older value; if an entry were corrupted after that, the next recovery would replay fewer groups, and might keep that value.
///
/// # Durability
/// The fences of [`InnerHeaders::store`], and one at the end; no fence if there is nothing to do. The caller has made the entries durable.
pub(super) fn replay<P: Pmem>(
    pmem: &P,
    layout: &Layout,
    lanes: &[ScannedLane],
    recovery: &mut Recovery,
) -> Result<(), FenceError> {
    let lowest = replay_from(lanes);
    let groups = lanes.iter().flat_map(|lane| &lane.groups);
    let mut groups: Vec<_> =
        groups.filter(|group| lowest.is_some_and(|lowest| group.lsn >= lowest)).collect();
    groups.sort_by_key(|group| group.lsn);
    // From the last group to the first: bytes in this set are stored by a later group.
    let mut later = ByteSet::default();
    let mut inner = InnerHeaders::default();
    for group in groups.iter().rev() {
        inner.add(layout, group, &later);
        group.entries.iter().rev().for_each(|entry| later.add(entry, |_, _| ()));
    }
    inner.store(pmem)?;
    let mut stored = ByteSet::default();
    for entry in groups.iter().rev().flat_map(|group| group.entries.iter().rev()) {
        stored.add(entry, |offset, bytes| entry::store(pmem, offset, bytes));
    }
    stored.lines.keys().for_each(|&line| pmem.flush(line, LINE_BYTES));
    recovery.replayed = groups.len() as u64;
    roll_back(pmem, lanes, recovery);
    if recovery.replayed + recovery.rolled_back > 0 { pmem.fence() } else { Ok(()) }
}

#[derive(Default)]
struct ByteSet {
    /// Maps the offset of a line to a mask with one bit for each byte.
    lines: BTreeMap<u64, u64>,
}

impl ByteSet {
    /// Adds the bytes that an entry stores to. Calls `each` with the offset and the contents of each run of bytes that were not in the set before.
    fn add(&mut self, entry: &Entry, mut each: impl FnMut(u64, &[u8])) {
        for (mut offset, mut rest) in entry.targets() {
            while !rest.is_empty() {
                #[expect(clippy::cast_possible_truncation, reason = "at most a line")]
                let (piece, after) = rest.split_at(piece_bytes(offset, rest.len() as u64) as usize);
                self.add_piece(offset, piece, &mut each);
                (offset, rest) = (offset + piece.len() as u64, after);
            }
        }
    }

    /// [Adds](Self::add) bytes of one line.
    fn add_piece(&mut self, offset: u64, piece: &[u8], each: &mut impl FnMut(u64, &[u8])) {
        let (line, first) = split_at_line(offset);
        let present = self.lines.entry(line).or_default();
        let all = bits(first, piece.len());
        let mut new = all & !*present;
        *present |= all;
        while new != 0 {
            let start = new.trailing_zeros() as usize;
            let count = (new >> start).trailing_ones() as usize;
            each(line + start as u64, &piece[start - first..start - first + count]);
            new &= !bits(start, count);
        }
    }

    /// Whether the set contains any byte of the word at `offset`.
    fn has_word(&self, offset: u64) -> bool {
        let (line, first) = split_at_line(offset);
        self.lines.get(&line).is_some_and(|present| present & bits(first, 8) != 0)
    }
}

/// The line of a byte, and its index in the line.
#[expect(clippy::cast_possible_truncation, reason = "less than a line")]
const fn split_at_line(offset: u64) -> (u64, usize) {
    (line_start(offset), (offset - line_start(offset)) as usize)
}

/// A mask of `count` bits from bit `first` on. `count` is at least 1, and `first + count` at most 64.
const fn bits(first: usize, count: usize) -> u64 {
    (u64::MAX >> (64 - count)) << first
}

/// Inner headers: those whose block directly follows the block of another header of the same group. As in a commit, each is made durable before the
/// header that precedes it is stored. Otherwise, if recovery crashed and the group's entry were then corrupted and discarded, the preceding header
/// could lead to the remains of a former block.
#[derive(Default)]
struct InnerHeaders {
    /// The (offset, word) pairs of these headers, indexed by the number of headers of the group that follow without a gap.
    by_follower_count: Vec<Vec<(u64, u64)>>,
}

impl InnerHeaders {
    /// Adds the inner headers of a group, except those that a later group overwrites. The later group began after this one was applied, so
    /// the header in place is this group's or newer.
    fn add(&mut self, layout: &Layout, group: &ScannedGroup, later: &ByteSet) {
        let headers = headers_of(layout, group);
        // Maps the offset of a header to its follower count. Built from the last header to the first, so that the next header's count is known.
        let mut follower_counts = BTreeMap::new();
        for (&offset, &(_, next)) in headers.iter().rev() {
            let Some(&(word, _)) = headers.get(&next).filter(|_| next > offset) else { continue };
            let count: usize = follower_counts.get(&next).copied().unwrap_or(0);
            follower_counts.insert(offset, count + 1);
            if !later.has_word(next) {
                self.by_follower_count.resize_with(self.by_follower_count.len().max(count + 1), Vec::new);
                self.by_follower_count[count].push((next, word));
            }
        }
    }

    /// Stores the headers, each durably before the header that precedes it.
    ///
    /// # Durability
    /// One fence for each header after the first one in the longest run of adjacent blocks of one group.
    fn store<P: Pmem>(&self, pmem: &P) -> Result<(), FenceError> {
        for headers in self.by_follower_count.iter().filter(|headers| !headers.is_empty()) {
            for &(offset, word) in headers {
                pmem.store_u64(offset, word);
                pmem.flush(offset, BLOCK_HEADER_BYTES);
            }
            pmem.fence()?;
        }
        Ok(())
    }
}

/// Maps the offset of each header that a group stores to its word and the offset of the header after its block.
fn headers_of(layout: &Layout, group: &ScannedGroup) -> BTreeMap<u64, (u64, u64)> {
    let header = |(offset, word)| {
        let header = BlockHeader::at(word, layout.seed, offset)?;
        Some((offset, (word, offset + u64::from(header.lines) * LINE_BYTES)))
    };
    group.entries.iter().flat_map(Entry::pairs).filter_map(header).collect()
}

/// Rolls back the changes that were made with undo logging but not committed. Entries are applied in descending LSN order over all lanes, because a
/// transaction may have changed the same bytes as an earlier one whose commit was deferred.
fn roll_back<P: Pmem>(pmem: &P, lanes: &[ScannedLane], recovery: &mut Recovery) {
    let mut open: Vec<_> = lanes.iter().flat_map(ScannedLane::open_undo).collect();
    open.sort_by_key(|entry| core::cmp::Reverse(entry.lsn));
    for entry in open {
        entry.apply(pmem);
        entry.flush_targets(pmem);
    }
    recovery.rolled_back = lanes.iter().filter(|lane| lane.open_undo().next().is_some()).count() as u64;
}
