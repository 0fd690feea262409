//! The free lists of an arena, segregated by size class.
//!
//! An entry is only a candidate: it is compared with the map of its chunk when it is taken, and dropped if no extent of the list's size class starts
//! there any more (a stale entry). So when two extents are coalesced, their entries need not be found and removed.

use super::chunk_map::ChunkMap;
use core::ops::RangeInclusive;
use std::collections::{HashSet, VecDeque};

/// The length of the longest extents, in lines, that have a size class for their exact length: 4 KiB.
const EXACT_LINES_MAX: u32 = 64;

/// The number of size classes: the exact classes, and one class for each larger power of two.
const CLASSES: usize = EXACT_LINES_MAX as usize + 23;

/// The maximum number of extents in one list that a search examines and finds too short, before it goes to the next list.
const TRIES: usize = 16;

/// Stale entries are purged only if there are at least this many entries.
const PURGE_MIN: usize = 1024;

/// The number of lines that one word of a bitmap covers.
const WORD_LINES: u32 = u64::BITS;

/// The maximum number of words of block-start bitmaps that one search for a run examines. These words cover 512 KiB of the heap, and searching them
/// takes a quarter of a microsecond. In a benchmark, a maximum four times as high saved only 0.1 % of the written lines.
const RUN_WORDS_MAX: usize = 128;

/// A line where a free extent may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Candidate {
    /// The slot of the chunk in the arena.
    pub(super) slot: u32,
    /// The first line of the extent.
    pub(super) line: u32,
}

/// The free lists. Each list is first in, first out, so that all free space is used in turn and wears evenly.
#[derive(Debug)]
pub(super) struct FreeLists {
    lists: Vec<VecDeque<Candidate>>,
    /// Bit `i` is set if list `i` has entries.
    filled: u128,
    count: usize,
    /// The number of lines of all extents in the exact lists, including stale entries.
    short_extent_lines: usize,
    /// The number of entries at which stale entries are purged.
    purge_at: usize,
    /// The start of the next search for a run. It advances cyclically, so that all space is used in turn.
    run_cursor: Candidate,
}

#[inline]
const fn class(lines: u32) -> usize {
    // The class of 65 to 127 lines follows the exact classes.
    if lines <= EXACT_LINES_MAX {
        lines as usize - 1
    } else {
        (EXACT_LINES_MAX + lines.ilog2() - EXACT_LINES_MAX.ilog2()) as usize
    }
}

/// The length, in lines, of the extents in an exact list; zero for the other lists.
const fn exact_lines(class: usize) -> usize {
    if class < EXACT_LINES_MAX as usize { class + 1 } else { 0 }
}

impl FreeLists {
    pub(super) fn new() -> Self {
        let lists = (0..CLASSES).map(|_| VecDeque::new()).collect();
        let run_cursor = Candidate { slot: 0, line: 0 };
        Self { lists, filled: 0, count: 0, short_extent_lines: 0, purge_at: PURGE_MIN, run_cursor }
    }

    #[inline]
    pub(super) fn push(&mut self, slot: u32, line: u32, lines: u32) {
        let class = class(lines);
        self.lists[class].push_back(Candidate { slot, line });
        self.filled |= 1 << class;
        self.count += 1;
        self.short_extent_lines += exact_lines(class);
    }

    /// Takes an extent of exactly `lines` lines, or else a long extent: one of more than 64 lines. Also returns its end.
    ///
    /// While there are few short extents, most of them are likely to be requested at their exact length. A block that is shorter than the extent
    /// would leave a rest, whose length is rarely requested.
    #[inline]
    pub(super) fn take_exact_or_long(
        &mut self,
        lines: u32,
        slots: &[Option<Box<ChunkMap>>],
    ) -> Option<(Candidate, u32)> {
        if lines > EXACT_LINES_MAX {
            return self.take(lines, slots);
        }
        self.take_from(class(lines), lines, slots).or_else(|| self.take(EXACT_LINES_MAX + 1, slots))
    }

    /// Takes the oldest extent of exactly `lines` lines, if `lines` is at most 64. Also returns its end.
    #[inline]
    pub(super) fn take_exact(
        &mut self,
        lines: u32,
        slots: &[Option<Box<ChunkMap>>],
    ) -> Option<(Candidate, u32)> {
        if lines <= EXACT_LINES_MAX { self.take_from(class(lines), lines, slots) } else { None }
    }

    /// The oldest candidate in the size class of `lines`.
    #[inline]
    pub(super) fn next(&self, lines: u32) -> Option<Candidate> {
        self.lists[class(lines)].front().copied()
    }

    /// The number of lines of all extents of 64 lines or fewer, including stale entries.
    pub(super) const fn short_extent_lines(&self) -> usize {
        self.short_extent_lines
    }

    /// Takes an extent of at least `lines` lines: in the lowest size class that has one, the oldest that is long enough. Also returns its end.
    #[inline]
    pub(super) fn take(&mut self, lines: u32, slots: &[Option<Box<ChunkMap>>]) -> Option<(Candidate, u32)> {
        let first = class(lines);
        loop {
            let from = self.filled & u128::MAX << first;
            if from == 0 {
                return None;
            }
            let class = from.trailing_zeros() as usize;
            if let Some(found) = self.take_from(class, lines, slots) {
                return Some(found);
            }
            if !self.lists[class].is_empty() {
                // The extents that were examined are too short. All extents of the higher size classes are long enough.
                return (first + 1..CLASSES).find_map(|class| self.take_from(class, lines, slots));
            }
        }
    }

    /// Finds a run of adjacent free blocks with `wanted` lines in total, preferably a run with the fewest lines. Also returns its number of lines. A
    /// block that covers a run exactly needs only its own header.
    #[inline]
    pub(super) fn find_run(
        &mut self,
        wanted: RangeInclusive<u32>,
        slots: &[Option<Box<ChunkMap>>],
    ) -> Option<(Candidate, u32)> {
        let (fewest, most) = (*wanted.start(), *wanted.end());
        let mut longer = None;
        let mut words = RUN_WORDS_MAX;
        let cursor = &mut self.run_cursor;
        // The search visits its first chunk again at the end, for the lines before the initial cursor.
        for _ in 0..=slots.len() {
            if let Some(map) = slots.get(cursor.slot as usize).and_then(Option::as_ref) {
                while cursor.line < map.lines && words > 0 {
                    let up_to = if longer.is_none() { most } else { fewest };
                    if let Some((line, lines)) = map.find_run(cursor.line, fewest..=up_to) {
                        let found = (Candidate { slot: cursor.slot, line }, lines);
                        if lines == fewest {
                            return Some(found);
                        }
                        longer = Some(found);
                    }
                    words -= 1;
                    // Continues at the next word with a block start.
                    let next = map.starts.next_set(cursor.line + WORD_LINES);
                    cursor.line = next - next % WORD_LINES;
                }
                if words == 0 {
                    break;
                }
            }
            cursor.line = 0;
            cursor.slot = if cursor.slot as usize + 1 < slots.len() { cursor.slot + 1 } else { 0 };
        }
        longer
    }

    /// Whether there is an extent in the size class of `lines` or in a higher one. `lines` must be more than 64. Drops stale entries.
    pub(super) fn has_similar_or_longer(&mut self, lines: u32, slots: &[Option<Box<ChunkMap>>]) -> bool {
        debug_assert!(lines > EXACT_LINES_MAX, "an exact list has extents of one length");
        loop {
            let from = self.filled & u128::MAX << class(lines);
            if from == 0 {
                return false;
            }
            let index = from.trailing_zeros() as usize;
            while let Some(candidate) = self.lists[index].front().copied() {
                if end_of(candidate, slots).is_some_and(|end| class(end - candidate.line) == index) {
                    return true;
                }
                self.lists[index].pop_front();
                self.count_removal(index);
            }
            self.filled &= !(1 << index);
        }
    }

    #[inline]
    fn take_from(
        &mut self,
        class_index: usize,
        lines: u32,
        slots: &[Option<Box<ChunkMap>>],
    ) -> Option<(Candidate, u32)> {
        let mut tries = TRIES;
        while let Some(candidate) = self.lists[class_index].pop_front() {
            let end = end_of(candidate, slots).filter(|end| class(end - candidate.line) == class_index);
            match end {
                Some(end) if end - candidate.line < lines => {
                    self.lists[class_index].push_back(candidate);
                    tries -= 1;
                    if tries == 0 {
                        return None;
                    }
                }
                Some(end) => {
                    self.count_removal(class_index);
                    if self.lists[class_index].is_empty() {
                        self.filled &= !(1 << class_index);
                    }
                    return Some((candidate, end));
                }
                None => self.count_removal(class_index),
            }
        }
        self.filled &= !(1 << class_index);
        None
    }

    #[inline]
    fn count_removal(&mut self, class_index: usize) {
        self.count -= 1;
        self.short_extent_lines -= exact_lines(class_index);
    }

    /// Purges stale entries if there are at least twice as many entries as after the last purge.
    #[inline]
    pub(super) fn purge_if_many(&mut self, slots: &[Option<Box<ChunkMap>>]) {
        if self.count >= self.purge_at {
            self.purge(slots);
        }
    }

    #[cold]
    fn purge(&mut self, slots: &[Option<Box<ChunkMap>>]) {
        let mut seen = HashSet::new();
        (self.count, self.short_extent_lines) = (0, 0);
        for (index, list) in self.lists.iter_mut().enumerate() {
            list.retain(|candidate| {
                end_of(*candidate, slots).is_some_and(|end| class(end - candidate.line) == index)
                    && seen.insert(*candidate)
            });
            self.count += list.len();
            self.short_extent_lines += list.len() * exact_lines(index);
            if list.is_empty() {
                self.filled &= !(1 << index);
            }
        }
        self.purge_at = PURGE_MIN.max(2 * self.count);
    }

    #[cfg(test)]
    pub(super) const fn len(&self) -> usize {
        self.count
    }
}

#[inline]
fn end_of(candidate: Candidate, slots: &[Option<Box<ChunkMap>>]) -> Option<u32> {
    slots.get(candidate.slot as usize)?.as_ref()?.extent_end(candidate.line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_cover_all_lengths_in_order() {
        assert_eq!((class(1), class(64), class(65), class(127), class(128)), (0, 63, 64, 64, 65));
        assert_eq!(class((1 << 28) - 1), 64 + 21);
        assert!(class(1 << 28) < CLASSES);
    }

    #[test]
    fn take_prefers_shortest_then_oldest() {
        let mut map = ChunkMap::free(0, 1024);
        for used in [10, 20, 31, 300] {
            map.hold(used..used + 1);
        }
        let slots = [Some(Box::new(map))];
        let mut lists = FreeLists::new();
        for (line, lines) in [(301, 723), (32, 268), (21, 10), (11, 9), (1, 9), (11, 9), (5, 5)] {
            lists.push(0, line, lines);
        }
        let mut take = |lines| lists.take(lines, &slots).map(|(candidate, end)| (candidate.line, end));
        assert_eq!(take(9), Some((11, 20)));
        assert_eq!(take(3), Some((1, 10)), "the entry of five lines is stale");
        assert_eq!(take(269), Some((301, 1024)), "shorter extents stay in the list");
        assert_eq!(take(10), Some((21, 31)));
        assert_eq!(take(11), Some((32, 300)));
        assert_eq!(take(11), None);
        assert_eq!(lists.len(), 1);
    }

    #[test]
    fn extent_in_same_or_higher_class_is_found() {
        let slots = [Some(Box::new(ChunkMap::free(0, 1024)))];
        let mut lists = FreeLists::new();
        assert!(!lists.has_similar_or_longer(65, &slots));
        for (line, lines) in [(2, 600), (2, 600), (1, 200)] {
            lists.push(0, line, lines);
        }
        assert!(!lists.has_similar_or_longer(200, &slots), "all entries are stale");
        assert_eq!(lists.len(), 0);
        lists.push(0, 1, 1023);
        assert!(lists.has_similar_or_longer(1023, &slots) && !lists.has_similar_or_longer(1024, &slots));
        assert!(
            lists.has_similar_or_longer(65, &slots) && lists.take(65, &slots).is_some(),
            "the extent stays in the list"
        );
    }

    #[test]
    fn purge_drops_stale_and_duplicate_entries() {
        let slots = [Some(Box::new(ChunkMap::free(0, 64)))];
        let mut lists = FreeLists::new();
        for line in 0..PURGE_MIN {
            lists.push(0, 1 + u32::try_from(line).expect("few") % 7, 63);
            lists.purge_if_many(&slots);
        }
        assert_eq!(lists.len(), 1);
        assert!(lists.take(63, &slots).is_some());
    }
}
