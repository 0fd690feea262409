//! Scanning the rings for recovery: complete groups, undo entries, and corrupted lines with the range of LSNs that each may have had.

use super::entry::{Line, Record};
use super::floor::SealedWord;
use crate::format::{EntryKind, LogEntry, Lsn, unseal};
use crate::layout::Layout;
use core::mem::size_of;
use pm_core::Pmem;

const LINE: usize = size_of::<LogEntry>();

/// A lane on the medium.
#[derive(Debug)]
pub(super) struct ScannedLane {
    /// The LSN up to which the lane is retired.
    pub(super) header: SealedWord,
    /// A lower bound of the checkpoint LSN, for a lane whose two copies of the retired LSN are both corrupted; zero otherwise.
    reached: Lsn,
    /// Undo entries up to this LSN are dead, even if the entry that committed them is corrupted.
    pub(super) undo_end: Lsn,
    /// Complete groups above the floor, unordered.
    pub(super) groups: Vec<ScannedGroup>,
    /// Undo entries above the floor, unordered.
    pub(super) undo: Vec<Record>,
    /// Corrupted lines: the checksum is wrong, or a target is invalid.
    pub(super) corrupted: Vec<CorruptedLine>,
    /// The highest LSN above the floor.
    pub(super) highest: Option<Lsn>,
    /// The lowest LSN, if the ring has wrapped since the log was opened: entries with lower LSNs were overwritten.
    pub(super) oldest: Option<Lsn>,
    /// Whether the line before that entry is corrupted. It may have held an entry with a lower LSN.
    is_oldest_corrupted: bool,
}

/// A complete group.
#[derive(Debug)]
pub(super) struct ScannedGroup {
    pub(super) lsn: Lsn,
    pub(super) records: Vec<Record>,
}

/// A corrupted line, with bounds of its LSN. They follow from its neighbours, because LSNs increase along the ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct CorruptedLine {
    pub(super) index: u32,
    /// The lowest LSN that its entry can have had. `None`: it held no entry above the floor.
    from: Option<Lsn>,
    /// The highest LSN that its entry can have had; [`Lsn::MAX`] if unbounded.
    up_to: Lsn,
    /// If the line can only have held an undo entry: the highest LSN that this entry can have had.
    undo: Option<Lsn>,
}

impl ScannedLane {
    pub(super) fn read_all<P: Pmem>(pmem: &P, layout: &Layout, floor: Lsn) -> Vec<Self> {
        let lanes = 0..layout.lane_count;
        let mut lanes: Vec<Self> = lanes.map(|lane| Self::read(pmem, layout, lane, floor)).collect();
        // Entries below this LSN were overwritten, so the checkpoint LSN has reached it.
        let reached = highest_oldest(&lanes).unwrap_or(Lsn::ZERO);
        let unknown = lanes.iter_mut().filter(|lane| lane.header.highest().is_none());
        unknown.for_each(|lane| lane.reached = reached);
        lanes
    }

    pub(super) fn read<P: Pmem>(pmem: &P, layout: &Layout, index: u32, floor: Lsn) -> Self {
        let header = SealedWord::read(pmem, layout.seed, layout.retired_offsets(index));
        let end_offset = layout.undo_end_offset(index);
        let undo_end = unseal(pmem.load_u64(end_offset), layout.seed, end_offset, &[]);
        let mut lines = vec![[0; LINE]; layout.lane_entries as usize];
        pmem.load(layout.entry_offset(index, 0), lines.as_flattened_mut());
        let offsets = (0..).map(|entry| layout.entry_offset(index, entry));
        let ring: Vec<Line> = offsets
            .zip(&lines)
            .map(|(offset, line)| line_at(pmem.len_bytes(), layout, offset, line))
            .collect();
        let lsns = || ring.iter().filter_map(Line::lsn);
        let oldest = lsns().min().filter(|oldest| *oldest > floor);
        let before = |index: usize| &ring[(index + ring.len() - 1) % ring.len()];
        let mut lane = Self {
            header,
            reached: Lsn::ZERO,
            undo_end: undo_end.unwrap_or_default(),
            groups: Vec::new(),
            undo: Vec::new(),
            corrupted: Vec::new(),
            highest: lsns().filter(|lsn| *lsn > floor).max(),
            oldest,
            is_oldest_corrupted: (ring.iter().enumerate())
                .any(|(index, line)| line.lsn() == oldest && matches!(before(index), Line::Corrupted)),
        };
        let retired = lane.retired();
        for (index, line) in ring.iter().enumerate() {
            match line {
                Line::Complete(record) if record.lsn <= floor => {}
                Line::Complete(record) if record.kind == EntryKind::Undo => lane.undo.push(*record),
                Line::Complete(record) if record.commits.is_some() => {
                    lane.groups.extend(group(&ring, index, record))
                }
                Line::Corrupted => lane.corrupted.push(corrupted_line(&ring, index, floor, retired)),
                _ => {}
            }
        }
        lane
    }

    /// The LSN up to which the lane is retired; zero if both of its copies are corrupted.
    pub(super) fn retired(&self) -> Lsn {
        self.header.highest().unwrap_or(Lsn::ZERO)
    }

    /// The last complete group.
    pub(super) fn last(&self) -> Option<&ScannedGroup> {
        self.groups.iter().max_by_key(|group| group.lsn)
    }

    /// The LSN from which recovery replays this lane: that of the second-to-last group, or of the last one if the second-to-last is retired. `None`:
    /// neither needs a replay. Older groups are durable in place: when the last group was appended, everything that the third-to-last one had stored
    /// was already flushed and fenced.
    ///
    /// A corrupted line may have held a group after the last two readable ones, or between them, or no group. In each case the [checkpoint
    /// LSN](super::checkpoint) is below these two, because it is below the lane's last three groups.
    pub(super) fn lowest_live(&self) -> Option<Lsn> {
        self.lowest_of_last_two(self.groups.iter().map(|group| group.lsn))
    }

    /// Like [`lowest_live`](Self::lowest_live), but each corrupted line that may have held a group counts as a group. Its LSN is the lowest that it
    /// can have had, or [`Lsn::MAX`] if it may be newer than every readable entry. A corrupted entry at or above the result may be live.
    pub(super) fn lowest_needed(&self) -> Option<Lsn> {
        let corrupted = self.corrupted.iter().filter(|line| line.undo.is_none());
        let corrupted = corrupted.filter_map(|line| match line.from {
            Some(_) if line.up_to == Lsn::MAX => Some(Lsn::MAX),
            from => from,
        });
        self.lowest_of_last_two(self.groups.iter().map(|group| group.lsn).chain(corrupted))
    }

    fn lowest_of_last_two(&self, lsns: impl Iterator<Item = Lsn> + Clone) -> Option<Lsn> {
        let last = lsns.clone().max()?;
        let before = lsns.filter(|&lsn| lsn < last).max();
        let retired = self.retired().max(self.reached);
        before.into_iter().chain([last]).find(|&lsn| lsn > retired)
    }

    /// The undo entries of a transaction that did not commit: neither a later group nor the lane's header makes them dead.
    pub(super) fn open_undo(&self) -> impl Iterator<Item = &Record> {
        let dead = self.undo_dead();
        self.undo.iter().filter(move |record| record.lsn > dead)
    }

    /// The LSN up to which undo entries are dead.
    fn undo_dead(&self) -> Lsn {
        self.last().map_or(Lsn::ZERO, |last| last.lsn).max(self.undo_end).max(self.retired())
    }

    /// Whether corruption in this lane may affect recovery, given that entries below `lowest` are dead.
    pub(super) fn has_live_corruption(&self, lowest: Option<Lsn>) -> bool {
        self.live_corruption(lowest).is_some() || self.is_retired_unknown()
    }

    /// Whether the lane has groups, and both copies of its retired LSN are corrupted.
    pub(super) fn is_retired_unknown(&self) -> bool {
        self.header.highest().is_none() && !self.groups.is_empty()
    }

    /// The index of a corrupted line that may hold a live entry, given that entries below `lowest` are dead.
    pub(super) fn live_corruption(&self, lowest: Option<Lsn>) -> Option<u32> {
        let dead = self.undo_dead();
        let is_live = |line: &&CorruptedLine| match line.undo {
            _ if line.from.is_none() => false,
            Some(lsn) => lsn > dead,
            // The line may have held an undo entry, or an entry of a group. It counts as live unless both would be dead.
            None => line.up_to > dead || lowest.is_some_and(|lowest| line.up_to >= lowest),
        };
        self.corrupted.iter().find(is_live).map(|line| line.index)
    }
}

/// The highest of the lanes' oldest LSNs. Each lane's oldest LSN is at or below the checkpoint LSN, unless its oldest entry is corrupted and cannot
/// be read.
pub(super) fn highest_oldest(lanes: &[ScannedLane]) -> Option<Lsn> {
    lanes.iter().filter_map(|lane| lane.oldest).max()
}

/// An LSN from which on the rings hold every group, except corrupted ones, and below which no group is live. `None`: no ring has wrapped, so the
/// rings hold every group.
///
/// A ring that has wrapped keeps at least one entry at or below the checkpoint LSN, and all entries above it (see
/// [`LaneGuard::reserve`](super::LaneGuard::reserve)). So the oldest LSN of each lane is at or below the checkpoint LSN, and nothing above the
/// highest of these oldest LSNs was overwritten.
///
/// If the oldest entry of a lane is corrupted, the oldest LSN that is readable there may be above the checkpoint LSN, and live groups of other lanes
/// may be below it. Such a lane only bounds the result from above. The result is then the LSN from which recovery replays, or the highest oldest LSN
/// of the other lanes, if that is higher. No live group was overwritten.
pub(super) fn complete_from(lanes: &[ScannedLane]) -> Option<Lsn> {
    let highest = highest_oldest(lanes)?;
    let whole = lanes.iter().filter(|lane| !lane.is_oldest_corrupted).filter_map(|lane| lane.oldest);
    let live = lowest_live(lanes).unwrap_or(highest);
    Some(whole.fold(live, Lsn::max).min(highest))
}

/// The LSN from which recovery replays the groups of all lanes. `None`: no group needs a replay.
pub(super) fn lowest_live(lanes: &[ScannedLane]) -> Option<Lsn> {
    lanes.iter().filter_map(ScannedLane::lowest_live).min()
}

/// The contents of the line at `offset`. An entry with an invalid target counts as corrupted.
fn line_at(region_bytes: u64, layout: &Layout, offset: u64, line: &[u8; LINE]) -> Line {
    let words = line.as_chunks::<8>().0;
    let word = |number: usize| u64::from_le_bytes(words[number]);
    let entry = LogEntry { target: word(0), data: [1, 2, 3, 4, 5, 6].map(word), lsn: word(7) };
    match Line::of(&entry, layout.seed, offset) {
        Line::Complete(record) if !record.has_valid_targets(layout, region_bytes) => Line::Corrupted,
        line => line,
    }
}

/// The group that `last`, the entry at `index`, commits. `None` if the group is incomplete.
fn group(ring: &[Line], index: usize, last: &Record) -> Option<ScannedGroup> {
    let count = usize::try_from(last.commits?).ok().filter(|&count| (1..=ring.len()).contains(&count))?;
    let first = index + ring.len() + 1 - count;
    let records = (first..first + count).map(|at| match ring[at % ring.len()] {
        Line::Complete(record) => Some(record),
        _ => None,
    });
    let belongs = |record: &Record| {
        let is_last = record.commits.is_some();
        record.lsn == last.lsn && record.kind != EntryKind::Undo && (!is_last || record == last)
    };
    let records: Vec<Record> = records.map(|record| record.filter(belongs)).collect::<Option<_>>()?;
    Some(ScannedGroup { lsn: last.lsn, records })
}

/// The corrupted line at `index`, with bounds from its neighbours. After an open, each ring is written from its first line on.
fn corrupted_line(ring: &[Line], index: usize, floor: Lsn, retired: Lsn) -> CorruptedLine {
    let len = ring.len();
    let line_at = |index: usize| &ring[index % len];
    // The distances to the nearest readable lines. `None`: all lines are corrupted.
    let back = (1..len).find(|back| *line_at(index + len - back) != Line::Corrupted);
    let ahead = (1..len).find(|ahead| *line_at(index + ahead) != Line::Corrupted);
    let neighbours = match (back, ahead) {
        (Some(back), Some(ahead)) => [line_at(index + len - back), line_at(index + ahead)],
        _ => [&ring[index]; 2],
    };
    let [previous, next] = neighbours.map(|line| line.lsn().filter(|&lsn| lsn > floor));
    let is_among_first = back.is_none_or(|back| back > index);
    // The LSN of the entry that was written before this line: the floor, if there is none. `None`: unknown.
    let after = match previous {
        Some(previous) => Some(previous),
        // One of the ring's first lines, or one that was not written in this generation.
        None => is_among_first.then_some(floor),
    };
    // Whether this line must begin a new group: the entry before it ends its group, or there is no entry before it.
    let starts_group = previous.is_none() || neighbours[0].ends_group();
    let is_alone = (back, ahead) == (Some(1), Some(1));
    let up_to = match (after, next.filter(|&next| Some(next) >= after)) {
        // The line held the next entry of the previous line's group, or older contents which that entry was about to overwrite.
        (Some(after), _) if is_alone && !starts_group => after,
        // The retired LSN is that of one of the lane's groups. If it lies strictly between the neighbours' LSNs, that group was in this line.
        (Some(after), next) if is_alone && retired > after && next.is_none_or(|next| retired < next) => {
            retired
        }
        (Some(_), Some(next)) => next,
        _ => Lsn::MAX,
    };
    let from = after.map(|after| if starts_group { after.next() } else { after });
    let undo = undo_here(after, from, neighbours, next);
    #[expect(clippy::cast_possible_truncation, reason = "a ring has no more than 2^20 entries")]
    let index = index as u32;
    CorruptedLine { index, from, up_to, undo }
}

/// The highest LSN that a corrupted line between these neighbours can have had, if it can only have held an undo entry.
///
/// All undo entries of one call have the same LSN, which no group has. So the line held an undo entry if each LSN that it can have had (one LSN, or
/// two consecutive ones) is that of an undo entry next to it.
fn undo_here(
    after: Option<Lsn>,
    from: Option<Lsn>,
    [previous_line, next_line]: [&Line; 2],
    next: Option<Lsn>,
) -> Option<Lsn> {
    let (after, from, next) = (after?, from?, next?);
    let lowest = if previous_line.is_undo() { after } else { from };
    let highest = match next_line {
        // The group begins with this entry.
        Line::Complete(record) if record.commits == Some(1) => next.before(),
        _ => next,
    };
    let is_undo = |lsn| previous_line.is_undo() && lsn == after || next_line.is_undo() && lsn == next;
    let is_between = lowest <= highest && highest <= lowest.next();
    (is_between && is_undo(lowest) && is_undo(highest)).then_some(highest)
}
