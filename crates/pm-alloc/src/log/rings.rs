//! What the rings hold, read once.

use super::entry::Record;
use super::home;
use crate::format::{EntryKind, LogEntry, Stamp};
use crate::layout::Layout;
use crate::sealed::Sealed;
use core::mem::size_of;
use pm_core::Pmem;

const LINE: usize = size_of::<LogEntry>();

/// A lane as it was found.
#[derive(Debug)]
pub(super) struct LaneFound {
    /// The stamp in its header.
    pub(super) header: Sealed,
    /// Whole groups above the floor, in no order.
    pub(super) groups: Vec<GroupFound>,
    /// Undo entries above the floor, in no order.
    pub(super) undo: Vec<Record>,
    /// Entries above the floor that are not as they were written, or aim where nothing may be stored.
    pub(super) damaged: u64,
    /// The highest stamp above the floor, of anything that looks like an entry.
    pub(super) highest: Option<Stamp>,
}

/// A group of which all entries are there.
#[derive(Debug)]
pub(super) struct GroupFound {
    pub(super) stamp: Stamp,
    pub(super) records: Vec<Record>,
}

impl LaneFound {
    pub(super) fn read<P: Pmem>(pmem: &P, layout: &Layout, lane: u32, floor: Stamp) -> Self {
        let header = Sealed::read(pmem, layout.seed, layout.lane_offset(lane));
        let mut found = Self { header, groups: Vec::new(), undo: Vec::new(), damaged: 0, highest: None };
        let mut lines = vec![[0; LINE]; layout.lane_entries as usize];
        pmem.load(layout.entry_offset(lane, 0), lines.as_flattened_mut());
        let mut ring = Vec::with_capacity(layout.lane_entries as usize);
        for (index, line) in (0..).zip(&lines) {
            ring.push(found.note(pmem.len_bytes(), layout, floor, layout.entry_offset(lane, index), line));
        }
        for (index, record) in ring.iter().enumerate() {
            match record {
                Some(record) if record.kind == EntryKind::Undo => found.undo.push(*record),
                Some(record) if record.commits.is_some() => found.groups.extend(group(&ring, index, record)),
                _ => {}
            }
        }
        found
    }

    /// The entry in this line, if it is above the floor and may be followed.
    fn note(
        &mut self,
        region_bytes: u64,
        layout: &Layout,
        floor: Stamp,
        offset: u64,
        line: &[u8; LINE],
    ) -> Option<Record> {
        let words = line.as_chunks::<8>().0;
        let word = |number: usize| u64::from_le_bytes(words[number]);
        let entry = LogEntry { target: word(0), data: [1, 2, 3, 4, 5, 6].map(word), stamp: word(7) };
        let stamp = Stamp::new(entry.stamp >> 16);
        if stamp <= floor {
            return None;
        }
        // Damaged ones count too: a bit that flips back must not make one of them an entry of the next generation.
        self.highest = self.highest.max(Some(stamp));
        let is_home = |offset, len| home::is_home(layout, region_bytes, offset, len);
        let record = Record::of(&entry, layout.seed, offset).filter(|record| record.is_allowed(is_home));
        self.damaged += u64::from(record.is_none());
        record
    }

    /// The stamp in the header. One that is damaged retires nothing.
    pub(super) fn retired(&self) -> Stamp {
        self.header.first().unwrap_or(Stamp::ZERO)
    }

    /// The last whole group.
    pub(super) fn last(&self) -> Option<&GroupFound> {
        self.groups.iter().max_by_key(|group| group.stamp)
    }

    /// The stamp of the first group of this lane that may be missing in place: the last but one, or the last. When the last was
    /// written, all that the one before the last but one had flushed was fenced.
    pub(super) fn lowest_live(&self) -> Option<Stamp> {
        let last = self.last()?.stamp;
        let before = self.groups.iter().map(|group| group.stamp).filter(|&stamp| stamp < last).max();
        before.into_iter().chain([last]).find(|&stamp| stamp > self.retired())
    }

    /// The undo entries of a transaction that did not commit: no group follows them.
    pub(super) fn open(&self) -> impl Iterator<Item = &Record> {
        let last = self.last().map_or(Stamp::ZERO, |last| last.stamp);
        self.undo.iter().filter(move |record| record.stamp > last)
    }
}

/// The group that `last`, the entry with this index, commits; `None` if one of its entries is missing.
fn group(ring: &[Option<Record>], index: usize, last: &Record) -> Option<GroupFound> {
    let count = usize::try_from(last.commits?).ok().filter(|&count| (1..=ring.len()).contains(&count))?;
    let first = index + ring.len() + 1 - count;
    let records = (first..first + count).map(|at| ring[at % ring.len()]);
    let belongs = |record: &Record| {
        let is_last = record.commits.is_some();
        record.stamp == last.stamp && record.kind != EntryKind::Undo && (!is_last || record == last)
    };
    let records: Vec<Record> = records.map(|record| record.filter(belongs)).collect::<Option<_>>()?;
    Some(GroupFound { stamp: last.stamp, records })
}
