//! The lengths of the log's entries.

use std::collections::VecDeque;

/// The lengths of the entries of a log, which follow one another.
#[derive(Debug, Default)]
pub(super) struct Lengths {
    /// The index of the first one.
    start: u64,
    lengths: VecDeque<u32>,
    total: u64,
}

impl Lengths {
    /// Adds the entry that follows. The first one may have any index.
    pub(super) fn push(&mut self, index: u64, len_bytes: usize) {
        if self.lengths.is_empty() {
            self.start = index;
        }
        // The store takes no value that is so long.
        let length = u32::try_from(len_bytes).unwrap_or(u32::MAX);
        self.lengths.push_back(length);
        self.total += u64::from(length);
    }

    /// Removes the entries from an index on.
    pub(super) fn truncate(&mut self, from: u64) {
        while self.start + (self.lengths.len() as u64) > from
            && let Some(length) = self.lengths.pop_back()
        {
            self.total -= u64::from(length);
        }
    }

    /// Removes the entries up to an index.
    pub(super) fn purge(&mut self, last: u64) {
        while self.start <= last
            && let Some(length) = self.lengths.pop_front()
        {
            self.start += 1;
            self.total -= u64::from(length);
        }
    }

    /// The length of all entries.
    pub(super) const fn total(&self) -> u64 {
        self.total
    }

    /// The last entry before the newest ones that together have at least this length.
    pub(super) fn before_newest(&self, len_bytes: u64) -> Option<u64> {
        let (mut kept, mut index) = (0, self.start + self.lengths.len() as u64);
        for length in self.lengths.iter().rev() {
            if kept >= len_bytes {
                break;
            }
            kept += u64::from(*length);
            index -= 1;
        }
        (index > self.start).then(|| index - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_follow_the_log() {
        let mut lengths = Lengths::default();
        assert_eq!((lengths.total(), lengths.before_newest(0)), (0, None));
        // The first index is not that of the last entry that was purged.
        (7..12).for_each(|index| lengths.push(index, 10));
        assert_eq!(lengths.total(), 50);
        let before = |lengths: &Lengths, bytes| lengths.before_newest(bytes);
        assert_eq!(before(&lengths, 0), Some(11), "none is kept");
        assert_eq!(before(&lengths, 1), Some(10));
        assert_eq!(before(&lengths, 10), Some(10));
        assert_eq!(before(&lengths, 11), Some(9));
        assert_eq!(before(&lengths, 40), Some(7));
        assert_eq!(before(&lengths, 41), None, "all are kept");
        assert_eq!(before(&lengths, 1000), None);
        lengths.purge(3);
        lengths.truncate(12);
        assert_eq!(lengths.total(), 50);
        lengths.purge(8);
        lengths.truncate(11);
        assert_eq!((lengths.total(), before(&lengths, 10)), (20, Some(9)));
        lengths.push(11, 5);
        assert_eq!((lengths.total(), before(&lengths, 5)), (25, Some(10)));
        // All of it, and beyond: a state that was received.
        lengths.purge(100);
        assert_eq!((lengths.total(), before(&lengths, 0)), (0, None));
        lengths.push(101, 3);
        lengths.truncate(50);
        assert_eq!(lengths.total(), 0);
        lengths.push(50, 3);
        assert_eq!((lengths.total(), before(&lengths, 0)), (3, Some(50)));
    }
}
