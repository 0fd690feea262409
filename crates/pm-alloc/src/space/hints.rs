//! Where free extents may be found, by length. Hints only: each is checked against the map when it is taken, and what
//! became wrong meanwhile is dropped then. So merging two extents need not look for the hints of either.

use super::chunk::ChunkMap;
use std::collections::{HashSet, VecDeque};

/// Lengths with a list of their own: blocks of up to 4 KiB.
const EXACT: u32 = 64;

/// Lists: the exact ones, and then one for each power of two.
const CLASSES: usize = EXACT as usize + 23;

/// Entries of a list of longer extents that are looked at before the next list is.
const TRIES: usize = 16;

/// As many hints may be kept before the first look at which of them are wrong.
const PURGE_MIN: usize = 1024;

/// A free extent may start here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Hint {
    /// The number of its chunk in the arena.
    pub(super) slot: u32,
    /// Its first line.
    pub(super) line: u32,
}

/// The lists. First in, first out, so that all free space takes its turn, and none wears out before the rest.
#[derive(Debug)]
pub(super) struct Hints {
    lists: Vec<VecDeque<Hint>>,
    /// Which of them have entries.
    filled: u128,
    count: usize,
    /// How many lines the extents in the exact lists have.
    hole_lines: usize,
    purge_at: usize,
}

#[inline]
const fn class(lines: u32) -> usize {
    // 65 to 127 lines come right behind the exact ones.
    if lines <= EXACT { lines as usize - 1 } else { (EXACT + lines.ilog2() - EXACT.ilog2()) as usize }
}

/// The length of extents in a list, if it is an exact one.
const fn exact_lines(class: usize) -> usize {
    if class < EXACT as usize { class + 1 } else { 0 }
}

impl Hints {
    pub(super) fn new() -> Self {
        let lists = (0..CLASSES).map(|_| VecDeque::new()).collect();
        Self { lists, filled: 0, count: 0, hole_lines: 0, purge_at: PURGE_MIN }
    }

    /// Takes note of an extent.
    #[inline]
    pub(super) fn push(&mut self, slot: u32, line: u32, lines: u32) {
        let class = class(lines);
        self.lists[class].push_back(Hint { slot, line });
        self.filled |= 1 << class;
        self.count += 1;
        self.hole_lines += exact_lines(class);
    }

    /// An extent for a block that leaves no splinter: one of just so many lines, or a long one.
    ///
    /// While holes are few, most wait only for a block of their length, and cutting a shorter one from them would leave
    /// something that hardly anybody wants.
    #[inline]
    pub(super) fn take_close(&mut self, lines: u32, slots: &[Option<Box<ChunkMap>>]) -> Option<(Hint, u32)> {
        if lines > EXACT {
            return self.take(lines, slots);
        }
        self.take_from(class(lines), lines, slots).or_else(|| self.take(EXACT + 1, slots))
    }

    /// The oldest extent of exactly so many lines, if they have a list of their own.
    #[inline]
    pub(super) fn take_exact(&mut self, lines: u32, slots: &[Option<Box<ChunkMap>>]) -> Option<(Hint, u32)> {
        if lines <= EXACT { self.take_from(class(lines), lines, slots) } else { None }
    }

    /// What would be the next extent of a length, if the hint is right.
    #[inline]
    pub(super) fn next(&self, lines: u32) -> Option<Hint> {
        self.lists[class(lines)].front().copied()
    }

    /// How many lines the extents have that are 64 lines long or shorter; wrong hints count.
    pub(super) const fn hole_lines(&self) -> usize {
        self.hole_lines
    }

    /// The shortest extent that has at least so many lines, and where it ends; among those of its class, the oldest
    /// that is long enough.
    #[inline]
    pub(super) fn take(&mut self, lines: u32, slots: &[Option<Box<ChunkMap>>]) -> Option<(Hint, u32)> {
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
                // Valid entries, all looked at too short; whatever is in the lists behind is long enough.
                return (first + 1..CLASSES).find_map(|class| self.take_from(class, lines, slots));
            }
        }
    }

    /// Whether there is an extent that is longer than half of `lines`, which is more than 64. Forgets wrong hints in front of the first
    /// right one.
    pub(super) fn has_similar(&mut self, lines: u32, slots: &[Option<Box<ChunkMap>>]) -> bool {
        debug_assert!(lines > EXACT, "an exact list has extents of one length");
        loop {
            let from = self.filled & u128::MAX << class(lines);
            if from == 0 {
                return false;
            }
            let index = from.trailing_zeros() as usize;
            while let Some(hint) = self.lists[index].front().copied() {
                if end_of(hint, slots).is_some_and(|end| class(end - hint.line) == index) {
                    return true;
                }
                self.lists[index].pop_front();
                self.forget(index);
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
    ) -> Option<(Hint, u32)> {
        let mut tries = TRIES;
        while let Some(hint) = self.lists[class_index].pop_front() {
            let end = end_of(hint, slots).filter(|end| class(end - hint.line) == class_index);
            match end {
                Some(end) if end - hint.line < lines => {
                    self.lists[class_index].push_back(hint);
                    tries -= 1;
                    if tries == 0 {
                        return None;
                    }
                }
                Some(end) => {
                    self.forget(class_index);
                    if self.lists[class_index].is_empty() {
                        self.filled &= !(1 << class_index);
                    }
                    return Some((hint, end));
                }
                None => self.forget(class_index),
            }
        }
        self.filled &= !(1 << class_index);
        None
    }

    #[inline]
    fn forget(&mut self, class_index: usize) {
        self.count -= 1;
        self.hole_lines -= exact_lines(class_index);
    }

    /// Forgets what is wrong, when there is twice as much as there was right the last time.
    #[inline]
    pub(super) fn purge_if_many(&mut self, slots: &[Option<Box<ChunkMap>>]) {
        if self.count >= self.purge_at {
            self.purge(slots);
        }
    }

    #[cold]
    fn purge(&mut self, slots: &[Option<Box<ChunkMap>>]) {
        let mut seen = HashSet::new();
        (self.count, self.hole_lines) = (0, 0);
        for (index, list) in self.lists.iter_mut().enumerate() {
            list.retain(|hint| {
                end_of(*hint, slots).is_some_and(|end| class(end - hint.line) == index) && seen.insert(*hint)
            });
            self.count += list.len();
            self.hole_lines += list.len() * exact_lines(index);
            if list.is_empty() {
                self.filled &= !(1 << index);
            }
        }
        self.purge_at = PURGE_MIN.max(2 * self.count);
    }

    /// How many there are.
    #[cfg(test)]
    pub(super) const fn len(&self) -> usize {
        self.count
    }
}

#[inline]
fn end_of(hint: Hint, slots: &[Option<Box<ChunkMap>>]) -> Option<u32> {
    slots.get(hint.slot as usize)?.as_ref()?.extent_from(hint.line)
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
    fn the_shortest_comes_first_and_the_oldest_of_those() {
        let mut map = ChunkMap::whole(0, 1024);
        for used in [10, 20, 31, 300] {
            map.hold(used..used + 1);
        }
        let slots = [Some(Box::new(map))];
        let mut hints = Hints::new();
        for (line, lines) in [(301, 723), (32, 268), (21, 10), (11, 9), (1, 9), (11, 9), (5, 5)] {
            hints.push(0, line, lines);
        }
        let mut take = |lines| hints.take(lines, &slots).map(|(hint, end)| (hint.line, end));
        assert_eq!(take(9), Some((11, 20)));
        assert_eq!(take(3), Some((1, 10)), "the hint of five lines is wrong");
        assert_eq!(take(269), Some((301, 1024)), "too short ones stay where they are");
        assert_eq!(take(10), Some((21, 31)));
        assert_eq!(take(11), Some((32, 300)));
        assert_eq!(take(11), None);
        assert_eq!(hints.len(), 1);
    }

    #[test]
    fn similar_extent_is_longer_than_half() {
        let slots = [Some(Box::new(ChunkMap::whole(0, 1024)))];
        let mut hints = Hints::new();
        assert!(!hints.has_similar(65, &slots));
        for (line, lines) in [(2, 600), (2, 600), (1, 200)] {
            hints.push(0, line, lines);
        }
        assert!(!hints.has_similar(200, &slots), "none of them is right");
        assert_eq!(hints.len(), 0);
        hints.push(0, 1, 1023);
        assert!(hints.has_similar(1023, &slots) && !hints.has_similar(1024, &slots));
        assert!(hints.has_similar(65, &slots) && hints.take(65, &slots).is_some(), "it is still there");
    }

    #[test]
    fn wrong_hints_and_doubles_are_forgotten() {
        let slots = [Some(Box::new(ChunkMap::whole(0, 64)))];
        let mut hints = Hints::new();
        for line in 0..PURGE_MIN {
            hints.push(0, 1 + u32::try_from(line).expect("few") % 7, 63);
            hints.purge_if_many(&slots);
        }
        assert_eq!(hints.len(), 1);
        assert!(hints.take(63, &slots).is_some());
    }
}
