//! The number of writes to each line, a measure of wear, and its distribution over the lines.

use crate::line::{LINE_BYTES, line_start, lines_spanned};
use std::collections::HashMap;

/// The number of writes to each line.
///
/// A line is identified by the offset or address of its first byte. The caller defines what a *write* is: see [`Coalescing`] and
/// [`LineCounting`](crate::LineCounting).
///
/// ```
/// use pm_core::LineWrites;
/// let mut writes = LineWrites::default();
/// for offset in [0, 0, 0, 64] {
///     writes.add(offset, 8);
/// }
/// assert_eq!((writes.total_writes(), writes.max_writes(), writes.line_count()), (4, 3, 2));
/// // Of the lines that were written at all, half were written once, and all at most three times.
/// let points: Vec<_> = writes.cdf().into_iter().map(|point| (point.writes, point.fraction)).collect();
/// assert_eq!(points, [(1, 0.5), (3, 1.0)]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineWrites {
    counts: HashMap<u64, u64>,
}

/// One step of a cumulative distribution: see [`LineWrites::cdf`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CdfPoint {
    /// A number of writes that at least one line received.
    pub writes: u64,
    /// The fraction of the written lines that received at most `writes` writes; greater than 0 and at most 1.
    pub fraction: f64,
}

impl LineWrites {
    /// Adds one write to each line that holds a byte of the `len_bytes` bytes at `offset`.
    ///
    /// # Panics
    /// If the last byte of the range lies past `u64::MAX`.
    pub fn add(&mut self, offset: u64, len_bytes: u64) {
        for line in lines(offset, len_bytes) {
            self.add_line(line);
        }
    }

    /// The total number of writes.
    #[must_use]
    pub fn total_writes(&self) -> u64 {
        self.counts.values().sum()
    }

    /// The number of writes to the most frequently written line, which wears out first; zero if no line was written.
    #[must_use]
    pub fn max_writes(&self) -> u64 {
        self.counts.values().copied().max().unwrap_or(0)
    }

    /// The number of lines that were written at least once.
    #[must_use]
    pub fn line_count(&self) -> u64 {
        self.counts.len() as u64
    }

    /// The number of writes to the line that holds the byte at `offset`.
    #[must_use]
    pub fn writes_to(&self, offset: u64) -> u64 {
        self.counts.get(&line_start(offset)).copied().unwrap_or(0)
    }

    /// The offset of each line that was written at least once, with its number of writes, in ascending order of the offsets.
    #[must_use]
    pub fn by_line(&self) -> Vec<(u64, u64)> {
        let mut lines: Vec<_> = self.counts.iter().map(|(&line, &writes)| (line, writes)).collect();
        lines.sort_unstable();
        lines
    }

    /// The number of writes to each line that was written at least once, in ascending order.
    #[must_use]
    pub fn sorted_writes(&self) -> Vec<u64> {
        let mut writes: Vec<_> = self.counts.values().copied().collect();
        writes.sort_unstable();
        writes
    }

    /// The cumulative distribution over the lines that were written at least once: a point for each number of writes that occurs, in ascending order;
    /// the last point has the fraction 1.
    #[must_use]
    pub fn cdf(&self) -> Vec<CdfPoint> {
        let sorted = self.sorted_writes();
        let mut points: Vec<CdfPoint> = Vec::new();
        for (index, &writes) in sorted.iter().enumerate() {
            let fraction = (index + 1) as f64 / sorted.len() as f64;
            match points.last_mut() {
                Some(point) if point.writes == writes => point.fraction = fraction,
                _ => points.push(CdfPoint { writes, fraction }),
            }
        }
        points
    }

    fn add_line(&mut self, line: u64) {
        *self.counts.entry(line).or_default() += 1;
    }
}

/// Turns the stores of one thread into writes: consecutive stores to the same line are one write.
///
/// A store that spans several lines is a write to each line; its write to the first line may continue the write of the previous store. Only a store
/// to another line ends a write; loads, flushes and fences do not.
///
/// ```
/// use pm_core::{Coalescing, LineWrites};
/// let (mut stream, mut writes) = (Coalescing::default(), LineWrites::default());
/// stream.store(0, 8, &mut writes);
/// stream.store(8, 64, &mut writes); // continues in the first line, and begins the second
/// stream.store(0, 8, &mut writes); // returns to the first line: a new write
/// assert_eq!((writes.writes_to(0), writes.writes_to(64)), (2, 1));
/// ```
///
/// # Source
/// NVMalloc, section 8.1.1: "the number of accesses to each 64 byte block of memory (the size of a cache line),
/// coalescing consecutive stores to a single block".
#[derive(Clone, Debug, Default)]
pub struct Coalescing {
    last_line: Option<u64>,
}

impl Coalescing {
    /// Adds a store of `len_bytes` bytes at `offset`: one write to each of its lines, except a line in which it continues the previous write.
    ///
    /// # Panics
    /// If the last byte of the range lies past `u64::MAX`.
    pub fn store(&mut self, offset: u64, len_bytes: u64, writes: &mut LineWrites) {
        for line in lines(offset, len_bytes) {
            if self.last_line.replace(line) != Some(line) {
                writes.add_line(line);
            }
        }
    }
}

/// The starts of the lines that hold a byte of the range.
fn lines(offset: u64, len_bytes: u64) -> impl Iterator<Item = u64> {
    let first = line_start(offset);
    (0..lines_spanned(offset, len_bytes)).map(move |index| first + index * LINE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// A naive oracle: the line of each byte of each store, without repetitions.
    fn coalesced(stores: &[(u64, u64)]) -> BTreeMap<u64, u64> {
        let lines =
            stores.iter().flat_map(|&(offset, len)| (offset..offset + len).map(|byte| byte / 64 * 64));
        let mut lines: Vec<u64> = lines.collect();
        lines.dedup();
        let mut counts = BTreeMap::new();
        for line in lines {
            *counts.entry(line).or_default() += 1;
        }
        counts
    }

    proptest! {
        #[test]
        fn coalescing_agrees_with_oracle(
            stores in prop::collection::vec((0_u64..500, 0_u64..200), 0..60),
        ) {
            let (mut stream, mut writes) = (Coalescing::default(), LineWrites::default());
            for &(offset, len) in &stores {
                stream.store(offset, len, &mut writes);
            }
            prop_assert_eq!(writes.by_line(), coalesced(&stores).into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn distribution_agrees_with_oracle(
            ranges in prop::collection::vec((0_u64..2000, 0_u64..200), 1..60),
        ) {
            let mut writes = LineWrites::default();
            let mut each = BTreeMap::<u64, u64>::new();
            for &(offset, len) in &ranges {
                writes.add(offset, len);
                let lines: std::collections::BTreeSet<_> = (offset..offset + len).map(|byte| byte / 64).collect();
                lines.into_iter().for_each(|line| *each.entry(line * 64).or_default() += 1);
            }
            prop_assert_eq!(writes.by_line(), each.iter().map(|(&line, &count)| (line, count)).collect::<Vec<_>>());
            prop_assert_eq!(writes.total_writes(), each.values().sum::<u64>());
            prop_assert_eq!(writes.max_writes(), each.values().copied().max().unwrap_or(0));
            prop_assert_eq!(writes.line_count(), each.len() as u64);
            prop_assert!(writes.sorted_writes().is_sorted());
            let points = writes.cdf();
            prop_assert!(points.is_sorted_by(|one, next| one.writes < next.writes && one.fraction < next.fraction));
            prop_assert!(points.last().is_none_or(|last| last.fraction == 1.0));
            for point in points {
                let at_most = each.values().filter(|&&count| count <= point.writes).count();
                prop_assert_eq!(point.fraction, at_most as f64 / each.len() as f64);
            }
        }
    }

    #[test]
    fn empty_distribution_without_writes() {
        let mut writes = LineWrites::default();
        writes.add(100, 0);
        assert_eq!(
            (writes.total_writes(), writes.max_writes(), writes.line_count(), writes.writes_to(100)),
            (0, 0, 0, 0)
        );
        assert!(writes.cdf().is_empty() && writes.by_line().is_empty());
    }
}
