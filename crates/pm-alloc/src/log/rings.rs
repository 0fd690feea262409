//! Scans the rings for recovery: complete groups, undo entries, and corrupted lines, each with the range of LSNs that its entry can have had.

use super::entry::{Entry, Line};
use super::floor::SealedWord;
use crate::format::{EntryKind, LogEntry, Lsn, unseal};
use crate::layout::Layout;
use core::mem::size_of;
use pm_core::Pmem;

const LINE: usize = size_of::<LogEntry>();

/// A lane as it was read from the medium.
#[derive(Debug)]
pub(super) struct ScannedLane {
    /// The LSN up to which the lane is retired.
    pub(super) retired_word: SealedWord,
    /// A lower bound of the checkpoint LSN, for a lane whose two copies of the retired LSN are both corrupted; zero otherwise.
    min_checkpoint_lsn: Lsn,
    /// Undo entries up to this LSN are dead, even if the entry that committed them is corrupted.
    pub(super) undo_end: Lsn,
    /// Complete groups above the floor, unordered.
    pub(super) groups: Vec<ScannedGroup>,
    /// Undo entries above the floor, unordered.
    pub(super) undo: Vec<Entry>,
    /// Corrupted lines: the checksum is wrong, or a target is invalid.
    pub(super) corrupted: Vec<CorruptedLine>,
    /// The highest LSN above the floor.
    pub(super) highest: Option<Lsn>,
    /// The lowest LSN, if the ring has wrapped since the log was opened; entries with lower LSNs were overwritten. `None` otherwise.
    pub(super) oldest: Option<Lsn>,
    /// Whether the line before the entry with the `oldest` LSN is corrupted. That line may have held an entry with a lower LSN.
    is_oldest_uncertain: bool,
}

/// A complete group.
#[derive(Debug)]
pub(super) struct ScannedGroup {
    pub(super) lsn: Lsn,
    pub(super) entries: Vec<Entry>,
}

/// A corrupted line, with bounds of the LSN of its former entry. They follow from the line's neighbours, because LSNs increase along the ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct CorruptedLine {
    pub(super) index: u32,
    /// The lowest LSN that its entry can have had. `None` if the line held no entry above the floor.
    lsn_min: Option<Lsn>,
    /// The highest LSN that its entry can have had; [`Lsn::MAX`] if unbounded.
    lsn_max: Lsn,
    /// If the line can only have held an undo entry: the highest LSN that this entry can have had.
    undo_lsn_max: Option<Lsn>,
}

impl ScannedLane {
    pub(super) fn read_all<P: Pmem>(pmem: &P, layout: &Layout, floor: Lsn) -> Vec<Self> {
        let lanes = 0..layout.lane_count;
        let mut lanes: Vec<Self> = lanes.map(|lane| Self::read(pmem, layout, lane, floor)).collect();
        // The oldest entry of a ring that has wrapped is dead, so the checkpoint LSN has reached its LSN.
        let reached = highest_oldest(&lanes).unwrap_or(Lsn::ZERO);
        let unknown = lanes.iter_mut().filter(|lane| lane.retired_word.highest().is_none());
        unknown.for_each(|lane| lane.min_checkpoint_lsn = reached);
        lanes
    }

    pub(super) fn read<P: Pmem>(pmem: &P, layout: &Layout, index: u32, floor: Lsn) -> Self {
        let retired_word = SealedWord::read(pmem, layout.seed, layout.retired_offsets(index));
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
            retired_word,
            min_checkpoint_lsn: Lsn::ZERO,
            undo_end: undo_end.unwrap_or_default(),
            groups: Vec::new(),
            undo: Vec::new(),
            corrupted: Vec::new(),
            highest: lsns().filter(|lsn| *lsn > floor).max(),
            oldest,
            is_oldest_uncertain: (ring.iter().enumerate())
                .any(|(index, line)| line.lsn() == oldest && matches!(before(index), Line::Corrupted)),
        };
        let retired = lane.retired();
        for (index, line) in ring.iter().enumerate() {
            match line {
                Line::Complete(entry) if entry.lsn <= floor => {}
                Line::Complete(entry) if entry.kind == EntryKind::Undo => lane.undo.push(*entry),
                Line::Complete(entry) if entry.group_len.is_some() => {
                    lane.groups.extend(group(&ring, index, entry))
                }
                Line::Corrupted => lane.corrupted.push(corrupted_line(&ring, index, floor, retired)),
                _ => {}
            }
        }
        lane
    }

    /// The LSN up to which the lane is retired; zero if both copies of that LSN are corrupted.
    pub(super) fn retired(&self) -> Lsn {
        self.retired_word.highest().unwrap_or(Lsn::ZERO)
    }

    /// The last complete group.
    pub(super) fn last(&self) -> Option<&ScannedGroup> {
        self.groups.iter().max_by_key(|group| group.lsn)
    }

    /// The LSN from which recovery replays this lane: that of the second-to-last group, or of the last group if the second-to-last is retired. `None`
    /// if neither needs to be replayed. Older groups are durable in place: when the last group was appended, all stores of the third-to-last group
    /// had already been flushed and fenced.
    ///
    /// A corrupted line may have held a group after the last two readable groups, or between them, or no group. In each case the checkpoint LSN is
    /// below these two groups, because [it is below the lane's last three groups](super::checkpoint).
    pub(super) fn replay_from(&self) -> Option<Lsn> {
        self.lowest_unretired_of_last_two(self.groups.iter().map(|group| group.lsn))
    }

    /// Like [`replay_from`](Self::replay_from), but each corrupted line that may have held a group counts as a group. Its LSN is taken to be the
    /// lowest that its entry can have had, or [`Lsn::MAX`] if that entry may be newer than every readable entry. A corrupted entry of a group may be
    /// live if its LSN is at or above the result.
    pub(super) fn maybe_live_from(&self) -> Option<Lsn> {
        let corrupted = self.corrupted.iter().filter(|line| line.undo_lsn_max.is_none());
        let corrupted = corrupted.filter_map(|line| match line.lsn_min {
            Some(_) if line.lsn_max == Lsn::MAX => Some(Lsn::MAX),
            lsn_min => lsn_min,
        });
        self.lowest_unretired_of_last_two(self.groups.iter().map(|group| group.lsn).chain(corrupted))
    }

    fn lowest_unretired_of_last_two(&self, lsns: impl Iterator<Item = Lsn> + Clone) -> Option<Lsn> {
        let last = lsns.clone().max()?;
        let before = lsns.filter(|&lsn| lsn < last).max();
        let retired = self.retired().max(self.min_checkpoint_lsn);
        before.into_iter().chain([last]).find(|&lsn| lsn > retired)
    }

    /// The undo entries of a transaction that did not commit: neither a later group nor the lane's header makes them dead.
    pub(super) fn open_undo(&self) -> impl Iterator<Item = &Entry> {
        let dead = self.undo_dead();
        self.undo.iter().filter(move |entry| entry.lsn > dead)
    }

    /// The LSN up to which undo entries are dead.
    fn undo_dead(&self) -> Lsn {
        self.last().map_or(Lsn::ZERO, |last| last.lsn).max(self.undo_end).max(self.retired())
    }

    /// Whether corruption in this lane may affect recovery, given that groups below `lowest` are dead (all groups if it is `None`).
    pub(super) fn has_live_corruption(&self, lowest: Option<Lsn>) -> bool {
        self.live_corruption(lowest).is_some() || self.is_retired_unknown()
    }

    /// Whether the lane has groups, and both copies of its retired LSN are corrupted.
    pub(super) fn is_retired_unknown(&self) -> bool {
        self.retired_word.highest().is_none() && !self.groups.is_empty()
    }

    /// The index of a corrupted line that may hold a live entry, given that groups below `lowest` are dead (all groups if it is `None`).
    pub(super) fn live_corruption(&self, lowest: Option<Lsn>) -> Option<u32> {
        let dead = self.undo_dead();
        let is_live = |line: &&CorruptedLine| match line.undo_lsn_max {
            _ if line.lsn_min.is_none() => false,
            Some(lsn) => lsn > dead,
            // The line may have held an undo entry, or an entry of a group. The line counts as live unless that entry is dead in both cases.
            None => line.lsn_max > dead || lowest.is_some_and(|lowest| line.lsn_max >= lowest),
        };
        self.corrupted.iter().find(is_live).map(|line| line.index)
    }
}

/// The highest of the lanes' oldest LSNs. Each lane's oldest LSN is at or below the checkpoint LSN, unless the lane's oldest entry is corrupted.
pub(super) fn highest_oldest(lanes: &[ScannedLane]) -> Option<Lsn> {
    lanes.iter().filter_map(|lane| lane.oldest).max()
}

/// The LSN from which on the rings hold every group, except corrupted groups. No group below it is live. `None` if no ring has wrapped: then the
/// rings hold every group.
///
/// A ring that has wrapped keeps all entries above the checkpoint LSN, and at least one entry at or below it (see
/// [`LaneGuard::make_room`](super::LaneGuard::make_room)). So the oldest LSN of each lane is at or below the checkpoint LSN, and no group above the
/// highest of these oldest LSNs was overwritten: the result is that highest LSN.
///
/// This does not hold for a lane whose oldest entry may be corrupted: its oldest readable LSN may be above the checkpoint LSN, and above live groups
/// of other lanes. In that case the result is at most the LSN from which recovery replays, or the highest oldest LSN of the other lanes, whichever is
/// higher. No live group was overwritten.
pub(super) fn complete_from_lsn(lanes: &[ScannedLane]) -> Option<Lsn> {
    let highest = highest_oldest(lanes)?;
    let intact = lanes.iter().filter(|lane| !lane.is_oldest_uncertain).filter_map(|lane| lane.oldest);
    let live = replay_from(lanes).unwrap_or(highest);
    Some(intact.fold(live, Lsn::max).min(highest))
}

/// The LSN from which recovery replays the groups of all lanes. `None` if no group needs to be replayed.
pub(super) fn replay_from(lanes: &[ScannedLane]) -> Option<Lsn> {
    lanes.iter().filter_map(ScannedLane::replay_from).min()
}

/// The contents of the line at `offset`. An entry with an invalid target counts as corrupted.
fn line_at(region_bytes: u64, layout: &Layout, offset: u64, line: &[u8; LINE]) -> Line {
    let words = line.as_chunks::<8>().0;
    let word = |number: usize| u64::from_le_bytes(words[number]);
    let entry = LogEntry { target: word(0), data: [1, 2, 3, 4, 5, 6].map(word), lsn: word(7) };
    match Line::of(&entry, layout.seed, offset) {
        Line::Complete(entry) if !entry.has_valid_targets(layout, region_bytes) => Line::Corrupted,
        line => line,
    }
}

/// The group that `last`, the entry at `index`, commits. `None` if the group is incomplete.
fn group(ring: &[Line], index: usize, last: &Entry) -> Option<ScannedGroup> {
    let count = usize::try_from(last.group_len?).ok().filter(|&count| (1..=ring.len()).contains(&count))?;
    let first = index + ring.len() + 1 - count;
    let entries = (first..first + count).map(|at| match ring[at % ring.len()] {
        Line::Complete(entry) => Some(entry),
        _ => None,
    });
    let belongs = |entry: &Entry| {
        let is_last = entry.group_len.is_some();
        entry.lsn == last.lsn && entry.kind != EntryKind::Undo && (!is_last || entry == last)
    };
    let entries: Vec<Entry> = entries.map(|entry| entry.filter(belongs)).collect::<Option<_>>()?;
    Some(ScannedGroup { lsn: last.lsn, entries })
}

/// The corrupted line at `index`, with bounds from its neighbours. After an open, each ring is written from its first line on.
fn corrupted_line(ring: &[Line], index: usize, floor: Lsn, retired: Lsn) -> CorruptedLine {
    let len = ring.len();
    let line_at = |index: usize| &ring[index % len];
    // The distances to the nearest readable lines. `None` if all other lines are corrupted.
    let back = (1..len).find(|back| *line_at(index + len - back) != Line::Corrupted);
    let ahead = (1..len).find(|ahead| *line_at(index + ahead) != Line::Corrupted);
    let neighbours = match (back, ahead) {
        (Some(back), Some(ahead)) => [line_at(index + len - back), line_at(index + ahead)],
        _ => [&ring[index]; 2],
    };
    let [previous, next] = neighbours.map(|line| line.lsn().filter(|&lsn| lsn > floor));
    let is_among_first = back.is_none_or(|back| back > index);
    // The LSN of the entry written before this line's entry, or the floor if there was none. `None` if the line was not written in this generation.
    let prev_lsn = match previous {
        Some(previous) => Some(previous),
        // The previous line was not written in this generation. So neither was this line, unless it is one of the ring's first lines.
        None => is_among_first.then_some(floor),
    };
    // Whether this line must begin a new group: the entry before it ends its group, or there is no such entry.
    let starts_group = previous.is_none() || neighbours[0].ends_group();
    let is_alone = (back, ahead) == (Some(1), Some(1));
    let lsn_max = match (prev_lsn, next.filter(|&next| Some(next) >= prev_lsn)) {
        // The line held the next entry of the previous line's group, or older contents, if a crash came before that entry was stored.
        (Some(prev_lsn), _) if is_alone && !starts_group => prev_lsn,
        // The retired LSN is that of one of the lane's groups. If it lies strictly between the LSNs of the neighbours, this line held that group.
        (Some(prev_lsn), next)
            if is_alone && retired > prev_lsn && next.is_none_or(|next| retired < next) =>
        {
            retired
        }
        (Some(_), Some(next)) => next,
        _ => Lsn::MAX,
    };
    let lsn_min = prev_lsn.map(|prev_lsn| if starts_group { prev_lsn.next() } else { prev_lsn });
    let undo_lsn_max = undo_lsn_max(prev_lsn, lsn_min, neighbours, next);
    #[expect(clippy::cast_possible_truncation, reason = "a ring has no more than 2^20 entries")]
    let index = index as u32;
    CorruptedLine { index, lsn_min, lsn_max, undo_lsn_max }
}

/// The highest LSN that a corrupted line between these neighbours can have had, if it can only have held an undo entry. `None` otherwise.
///
/// The undo entries of one call of `undo` share an LSN, and no group has that LSN. If the line can only have had one LSN, or one of two consecutive
/// LSNs, and each of these is the LSN of a neighbouring undo entry, then the line held an undo entry.
fn undo_lsn_max(
    prev_lsn: Option<Lsn>,
    lsn_min: Option<Lsn>,
    [previous_line, next_line]: [&Line; 2],
    next: Option<Lsn>,
) -> Option<Lsn> {
    let (prev_lsn, lsn_min, next) = (prev_lsn?, lsn_min?, next?);
    let lowest = if previous_line.is_undo() { prev_lsn } else { lsn_min };
    let highest = match next_line {
        // The next entry is a whole group, so the corrupted line had a lower LSN.
        Line::Complete(entry) if entry.group_len == Some(1) => next.before(),
        _ => next,
    };
    let is_undo = |lsn| previous_line.is_undo() && lsn == prev_lsn || next_line.is_undo() && lsn == next;
    let is_between = lowest <= highest && highest <= lowest.next();
    (is_between && is_undo(lowest) && is_undo(highest)).then_some(highest)
}
