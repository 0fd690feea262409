//! What the rings hold, read once.

use super::entry::{Line, Record};
use super::home;
use crate::format::{EntryKind, LogEntry, Lsn, unseal};
use crate::layout::Layout;
use crate::sealed::Sealed;
use core::mem::size_of;
use pm_core::Pmem;

const LINE: usize = size_of::<LogEntry>();

/// A lane as it was found.
#[derive(Debug)]
pub(super) struct LaneFound {
    /// The LSN in its header.
    pub(super) header: Sealed,
    /// Where `header` is corrupted: the lane's groups up to here are retired all the same.
    reached: Lsn,
    /// Undo entries up to here are dead, whatever became of the entry that committed them.
    pub(super) undo_end: Lsn,
    /// Whole groups above the floor, in no order.
    pub(super) groups: Vec<GroupFound>,
    /// Undo entries above the floor, in no order.
    pub(super) undo: Vec<Record>,
    /// Corrupted lines: not as they were written, or aimed where nothing may be stored.
    pub(super) corrupted: Vec<CorruptedLine>,
    /// The highest LSN above the floor.
    pub(super) highest: Option<Lsn>,
    /// The lowest one, if the ring was written around since the log was opened: entries with lower ones were written
    /// over.
    pub(super) oldest: Option<Lsn>,
    /// Whether the line before that entry is corrupted, and so may have held a lower LSN.
    is_oldest_corrupted: bool,
}

/// A group of which all entries are there.
#[derive(Debug)]
pub(super) struct GroupFound {
    pub(super) lsn: Lsn,
    pub(super) records: Vec<Record>,
}

/// A line that holds nothing that the log writes. By its neighbours: LSNs go up along the ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct CorruptedLine {
    pub(super) index: u32,
    /// Its entry had no lower LSN than this. `None`: no entry above the floor was there.
    from: Option<Lsn>,
    /// Its entry had no higher LSN than this.
    up_to: Lsn,
    /// It held an undo entry, and this is the highest LSN that it may have had.
    undo: Option<Lsn>,
}

impl LaneFound {
    /// All lanes of a log.
    pub(super) fn read_all<P: Pmem>(pmem: &P, layout: &Layout, floor: Lsn) -> Vec<Self> {
        let lanes = 0..layout.lane_count;
        let mut lanes: Vec<Self> = lanes.map(|lane| Self::read(pmem, layout, lane, floor)).collect();
        // Entries up to there were written over, so the checkpoint LSN was not below that.
        let reached = highest_oldest(&lanes).unwrap_or(Lsn::ZERO);
        let unknown = lanes.iter_mut().filter(|lane| lane.header.first().is_none());
        unknown.for_each(|lane| lane.reached = reached);
        lanes
    }

    pub(super) fn read<P: Pmem>(pmem: &P, layout: &Layout, lane: u32, floor: Lsn) -> Self {
        let header = Sealed::read(pmem, layout.seed, layout.retired_offsets(lane));
        let end_offset = layout.undo_end_offset(lane);
        let undo_end = unseal(pmem.load_u64(end_offset), layout.seed, end_offset, &[]);
        let mut lines = vec![[0; LINE]; layout.lane_entries as usize];
        pmem.load(layout.entry_offset(lane, 0), lines.as_flattened_mut());
        let offsets = (0..).map(|index| layout.entry_offset(lane, index));
        let ring: Vec<Line> = offsets
            .zip(&lines)
            .map(|(offset, line)| line_at(pmem.len_bytes(), layout, offset, line))
            .collect();
        let lsns = || ring.iter().filter_map(Line::lsn);
        let oldest = lsns().min().filter(|oldest| *oldest > floor);
        let before = |index: usize| &ring[(index + ring.len() - 1) % ring.len()];
        let mut found = Self {
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
        let retired = found.retired();
        for (index, line) in ring.iter().enumerate() {
            match line {
                Line::Whole(record) if record.lsn <= floor => {}
                Line::Whole(record) if record.kind == EntryKind::Undo => found.undo.push(*record),
                Line::Whole(record) if record.commits.is_some() => {
                    found.groups.extend(group(&ring, index, record))
                }
                Line::Corrupted => found.corrupted.push(corrupted_line(&ring, index, floor, retired)),
                _ => {}
            }
        }
        found
    }

    /// The LSN in the header, the higher one of two that differ. One that is corrupted retires nothing.
    pub(super) fn retired(&self) -> Lsn {
        self.header.copies.into_iter().flatten().max().unwrap_or(Lsn::ZERO)
    }

    /// The last whole group.
    pub(super) fn last(&self) -> Option<&GroupFound> {
        self.groups.iter().max_by_key(|group| group.lsn)
    }

    /// The LSN of the first group of this lane that may be missing in place: the last but one, or the last. When the last was
    /// written, all that the one before the last but one had flushed was fenced.
    ///
    /// A corrupted line may have held a group after these, or between them, or nothing. A program keeps the last three groups of a lane
    /// live, so these two are among them in any case.
    pub(super) fn lowest_live(&self) -> Option<Lsn> {
        self.lowest_of_last_two(self.groups.iter().map(|group| group.lsn))
    }

    /// As [`lowest_live`](Self::lowest_live), if each corrupted line held a group: the LSN from which on a missing entry may be live.
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

    /// The undo entries of a transaction that did not commit: no group follows them, and neither word of the lane says that they are
    /// dead.
    pub(super) fn open(&self) -> impl Iterator<Item = &Record> {
        let dead = self.undo_dead();
        self.undo.iter().filter(move |record| record.lsn > dead)
    }

    fn undo_dead(&self) -> Lsn {
        self.last().map_or(Lsn::ZERO, |last| last.lsn).max(self.undo_end).max(self.retired())
    }

    /// Whether something of it is corrupted that may be live, if entries below `lowest` are not.
    pub(super) fn has_live_corruption(&self, lowest: Option<Lsn>) -> bool {
        self.live_corruption(lowest).is_some() || self.is_retired_unknown()
    }

    /// Whether there are groups, and the word that says which of them are retired is corrupted in both copies.
    pub(super) fn is_retired_unknown(&self) -> bool {
        self.header.first().is_none() && !self.groups.is_empty()
    }

    /// A corrupted line that may hold a live entry, if entries below `lowest` are not.
    pub(super) fn live_corruption(&self, lowest: Option<Lsn>) -> Option<u32> {
        let dead = self.undo_dead();
        let is_live = |line: &&CorruptedLine| match line.undo {
            _ if line.from.is_none() => false,
            Some(lsn) => lsn > dead,
            // An entry of a group, or an undo entry: what makes the one dead says nothing of the other.
            None => line.up_to > dead || lowest.is_some_and(|lowest| line.up_to >= lowest),
        };
        self.corrupted.iter().find(is_live).map(|line| line.index)
    }
}

/// The highest of the lanes' oldest LSNs. Each is that of an entry that is not above the checkpoint LSN, if that is not
/// corrupted.
pub(super) fn highest_oldest(lanes: &[LaneFound]) -> Option<Lsn> {
    lanes.iter().filter_map(|lane| lane.oldest).max()
}

/// The LSN from which on no group was written over, and below which none is live. `None`: none was written over at all.
///
/// Each lane keeps an entry that is not above the checkpoint LSN besides all that are, so the highest of the lanes' oldest LSNs will do. Where
/// that entry is corrupted the lane's oldest one may be above the checkpoint LSN, and groups of other lanes below it live; what is live was
/// not written over.
pub(super) fn complete_from(lanes: &[LaneFound]) -> Option<Lsn> {
    let highest = highest_oldest(lanes)?;
    let whole = lanes.iter().filter(|lane| !lane.is_oldest_corrupted).filter_map(|lane| lane.oldest);
    let live = lowest_live(lanes).unwrap_or(highest);
    Some(whole.fold(live, Lsn::max).min(highest))
}

/// The LSN from which on groups are replayed, if any are.
pub(super) fn lowest_live(lanes: &[LaneFound]) -> Option<Lsn> {
    lanes.iter().filter_map(LaneFound::lowest_live).min()
}

/// What the line at `offset` holds. An entry that aims where nothing may be stored is corrupted.
fn line_at(region_bytes: u64, layout: &Layout, offset: u64, line: &[u8; LINE]) -> Line {
    let words = line.as_chunks::<8>().0;
    let word = |number: usize| u64::from_le_bytes(words[number]);
    let entry = LogEntry { target: word(0), data: [1, 2, 3, 4, 5, 6].map(word), lsn: word(7) };
    let is_home = |offset, len| home::is_home(layout, region_bytes, offset, len);
    match Line::of(&entry, layout.seed, offset) {
        Line::Whole(record) if !record.is_allowed(is_home) => Line::Corrupted,
        line => line,
    }
}

/// The group that `last`, the entry with this index, commits; `None` if one of its entries is missing.
fn group(ring: &[Line], index: usize, last: &Record) -> Option<GroupFound> {
    let count = usize::try_from(last.commits?).ok().filter(|&count| (1..=ring.len()).contains(&count))?;
    let first = index + ring.len() + 1 - count;
    let records = (first..first + count).map(|at| match ring[at % ring.len()] {
        Line::Whole(record) => Some(record),
        _ => None,
    });
    let belongs = |record: &Record| {
        let is_last = record.commits.is_some();
        record.lsn == last.lsn && record.kind != EntryKind::Undo && (!is_last || record == last)
    };
    let records: Vec<Record> = records.map(|record| record.filter(belongs)).collect::<Option<_>>()?;
    Some(GroupFound { lsn: last.lsn, records })
}

/// What can be known of the corrupted line with this index. A log that is opened writes its rings from their first lines on.
fn corrupted_line(ring: &[Line], index: usize, floor: Lsn, retired: Lsn) -> CorruptedLine {
    let len = ring.len();
    let before = (1..len).find(|back| ring[(index + len - back) % len] != Line::Corrupted);
    let behind = (1..len).find(|on| ring[(index + on) % len] != Line::Corrupted);
    let lsn_at = |at: usize| ring[at % len].lsn().filter(|&lsn| lsn > floor);
    let (previous, next) = match (before, behind) {
        (Some(back), Some(on)) => (lsn_at(index + len - back), lsn_at(index + on)),
        _ => (None, None),
    };
    let is_first = before.is_none_or(|back| back > index);
    let after = match previous {
        Some(previous) => Some(previous),
        // The ring's first entries, or the ring had not come here yet.
        None => is_first.then_some(floor),
    };
    let neighbours = match (before, behind) {
        (Some(back), Some(on)) => [(index + len - back) % len, (index + on) % len].map(|at| &ring[at]),
        _ => [&ring[index]; 2],
    };
    // It belongs to the group of the entry before it, unless that ends its group, or is of none.
    let is_next = previous.is_none() || neighbours[0].ends_group();
    let is_alone = (before, behind) == (Some(1), Some(1));
    let up_to = match (after, next.filter(|&next| Some(next) >= after)) {
        // It held the group's next entry, or older contents that this entry was to be written over.
        (Some(after), _) if is_alone && !is_next => after,
        // A lane is retired up to one of its groups: if that is none of those beside this line, it was here.
        (Some(after), next) if is_alone && retired > after && next.is_none_or(|next| retired < next) => {
            retired
        }
        (Some(_), Some(next)) => next,
        _ => Lsn::MAX,
    };
    let from = after.map(|after| if is_next { after.next() } else { after });
    let undo = undo_here(after, from, neighbours, next);
    #[expect(clippy::cast_possible_truncation, reason = "a ring has no more than 2^20 entries")]
    let index = index as u32;
    CorruptedLine { index, from, up_to, undo }
}

/// The highest LSN of a line between these, if it can have held nothing but an undo entry: of the call of the undo entry before it, or
/// behind it. A group between two undo entries would have an LSN between theirs, so they must have the same LSN, or two in a row.
fn undo_here(
    after: Option<Lsn>,
    from: Option<Lsn>,
    [previous, behind]: [&Line; 2],
    next: Option<Lsn>,
) -> Option<Lsn> {
    let (after, from, next) = (after?, from?, next?);
    let lowest = if previous.is_undo() { after } else { from };
    let highest = match behind {
        // Its group begins with it.
        Line::Whole(record) if record.commits == Some(1) => next.before(),
        _ => next,
    };
    let is_undo = |lsn| previous.is_undo() && lsn == after || behind.is_undo() && lsn == next;
    let is_between = lowest <= highest && highest <= lowest.next();
    (is_between && is_undo(lowest) && is_undo(highest)).then_some(highest)
}
