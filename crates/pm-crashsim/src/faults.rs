//! Media faults: changes of durable bytes.

use crate::image::Image;
use crate::line::{LINE, Lines, index, lines, random};
use crate::setters::setters;
use core::fmt;
use core::ops::Range;
use std::collections::BTreeSet;

/// The contents of a poisoned line.
const POISON: u8 = 0xDE;

const BITS: u64 = u8::BITS as u64;

/// The media faults to add to the images that a crash leaves; see [`Explorer::faults`](crate::Explorer::faults).
///
/// With [`flips`](Self::flips) every set of up to that many bits is legal, with [`poison`](Self::poison) every set of up to that
/// many lines; a set has only one kind. Without [`within`](Self::within) they lie anywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    flips: u64,
    poison: u64,
    ranges: Vec<Range<u64>>,
    sets_per_image: u64,
}

/// One fault of the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Fault {
    /// A bit is inverted and no error is raised: silent corruption, of the medium or on the way to it.
    Flip {
        /// The byte.
        offset: u64,
        /// The bit, 0 being the lowest.
        bit: u8,
    },
    /// The medium cannot read the line. In the simulator its bytes are `0xDE`.
    Poison {
        /// The first byte of the line.
        offset: u64,
    },
}

impl Default for Faults {
    fn default() -> Self {
        Self::none()
    }
}

impl Faults {
    /// A medium without faults.
    #[must_use]
    pub const fn none() -> Self {
        Self { flips: 0, poison: 0, ranges: Vec::new(), sets_per_image: 1 << 16 }
    }

    setters! {
        /// Up to that many flipped bits at once.
        flips(bits: u64) => flips;

        /// Up to that many poisoned lines at once.
        poison(lines: u64) => poison;

        /// The number of sets of faults tried on one image; 65,536 by default. If more are legal, each size gets an even
        /// share: all of its sets, if there are no more, or a random selection.
        sets_per_image(bound: u64) => sets_per_image, "at least one set must be tried";
    }

    /// Adds a range in which faults lie. A line is poisoned if any part of it is in the range.
    ///
    /// # Panics
    /// If the range overlaps an earlier one.
    #[must_use]
    pub fn within(mut self, range: Range<u64>) -> Self {
        let overlaps = |other: &Range<u64>| other.start < range.end && range.start < other.end;
        assert!(!self.ranges.iter().any(overlaps), "{range:?} overlaps a range that was given before");
        self.ranges.push(range);
        self
    }

    /// Whether there are any.
    pub(crate) const fn are_any(&self) -> bool {
        self.flips > 0 || self.poison > 0
    }

    /// The numbers of all lines in which a fault may lie.
    pub(crate) fn lines(&self, region_bytes: u64) -> BTreeSet<u64> {
        let ranges = self.are_any().then(|| self.ranges(region_bytes));
        let ranges = ranges.into_iter().flatten();
        ranges.flat_map(|range| lines(range.start, range.end - range.start)).collect()
    }

    /// The sets to try on each image of a region.
    pub(crate) fn plan(&self, region_bytes: u64, seed: u64) -> FaultPlan {
        let ranges = self.ranges(region_bytes);
        let bits = ranges.iter().map(|range| (range.end - range.start) * BITS).sum();
        let lines: Vec<u64> = self.lines(region_bytes).into_iter().collect();
        let flips = (1..=self.flips).map(|size| (Kind::Flip, size, bits));
        let poison = (1..=self.poison).map(|size| (Kind::Poison, size, lines.len() as u64));
        let classes: Vec<_> = flips.chain(poison).collect();
        let counts = classes.iter().map(|&(_, size, places)| combinations(places, size));
        let legal = counts.fold(0, u128::saturating_add);
        let is_all = legal <= u128::from(self.sets_per_image);
        let share = self.sets_per_image.div_ceil((classes.len() as u64).max(1));
        let mut plan = FaultPlan { ranges, lines, sets: Vec::new(), legal };
        for (number, (kind, size, places)) in classes.into_iter().enumerate() {
            let count = combinations(places, size);
            if is_all || count <= u128::from(share) {
                plan.sets.extend((0..count).map(|rank| (kind, size, rank)));
            } else {
                let mut random = random(seed, number as u64);
                let mut ranks = BTreeSet::new();
                while (ranks.len() as u64) < share {
                    ranks.insert(random.u128(..count));
                }
                plan.sets.extend(ranks.into_iter().map(|rank| (kind, size, rank)));
            }
        }
        plan
    }

    fn ranges(&self, region_bytes: u64) -> Vec<Range<u64>> {
        let everything = 0..region_bytes;
        let outside = self.ranges.iter().find(|range| range.end > region_bytes);
        assert!(outside.is_none(), "faults in {outside:?} leave the region, which has {region_bytes} bytes");
        if self.ranges.is_empty() { vec![everything] } else { self.ranges.clone() }
    }
}

impl Fault {
    /// The bytes that the fault changes.
    #[must_use]
    pub const fn range(&self) -> Range<u64> {
        match *self {
            Self::Flip { offset, .. } => offset..offset + 1,
            Self::Poison { offset } => offset..offset + LINE as u64,
        }
    }

    pub(crate) const fn line(&self) -> u64 {
        self.range().start / LINE as u64
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flip { offset, bit } => write!(f, "bit {bit} of byte {offset:#x} flipped"),
            Self::Poison { offset } => write!(f, "line {offset:#x} poisoned"),
        }
    }
}

/// The image as a medium with these faults returns it.
pub(crate) fn apply(image: &Image, faults: &[Fault]) -> Image {
    let mut changed = Lines::default();
    for fault in faults {
        let line = changed.entry(fault.line()).or_insert_with(|| *image.line(fault.line()));
        match *fault {
            Fault::Flip { offset, bit } => line[index(offset % LINE as u64)] ^= 1 << bit,
            Fault::Poison { .. } => line.fill(POISON),
        }
    }
    image.with_lines(changed)
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Flip,
    Poison,
}

/// The sets of faults that are tried on each image.
pub(crate) struct FaultPlan {
    ranges: Vec<Range<u64>>,
    lines: Vec<u64>,
    /// The kind of faults, how many at once, and the rank of the set.
    sets: Vec<(Kind, u64, u128)>,
    legal: u128,
}

impl FaultPlan {
    /// The number of legal sets; `u128::MAX` when there are more than that.
    pub(crate) const fn legal(&self) -> u128 {
        self.legal
    }

    /// The number of sets tried.
    pub(crate) const fn len(&self) -> usize {
        self.sets.len()
    }

    /// The sets, one by one.
    pub(crate) fn sets(&self) -> impl Iterator<Item = Vec<Fault>> {
        self.sets.iter().map(|&(kind, size, rank)| match kind {
            Kind::Flip => combination(size, rank).map(|place| self.flip(place)).collect(),
            Kind::Poison => combination(size, rank).map(|place| self.poison(place)).collect(),
        })
    }

    /// The bit with that number, over all ranges.
    fn flip(&self, mut place: u64) -> Fault {
        for range in &self.ranges {
            let bits = (range.end - range.start) * BITS;
            if place < bits {
                let bit = u8::try_from(place % BITS).expect("a byte has eight bits");
                return Fault::Flip { offset: range.start + place / BITS, bit };
            }
            place -= bits;
        }
        unreachable!("no more places are drawn from than the ranges have")
    }

    fn poison(&self, place: u64) -> Fault {
        Fault::Poison { offset: self.lines[index(place)] * LINE as u64 }
    }
}

/// The number of sets of `size` among `places`; `u128::MAX` when there are more than that.
fn combinations(places: u64, size: u64) -> u128 {
    if size > places {
        return 0;
    }
    // Exact at each step: a product of n successive numbers is a multiple of n!.
    let step = |count: u128, n: u64| count.checked_mul((places - n).into()).map(|c| c / u128::from(n + 1));
    (0..size).try_fold(1, step).unwrap_or(u128::MAX)
}

/// The set of `size` numbers with that rank, ordered by the greatest number, then by the next. Every set has one rank.
fn combination(size: u64, mut rank: u128) -> impl Iterator<Item = u64> {
    (1..=size).rev().map(move |left| {
        // The greatest number below which there are no more than `rank` sets of the remaining size.
        let (mut low, mut high) = (0, u64::MAX);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if combinations(middle, left) <= rank { low = middle } else { high = middle - 1 }
        }
        rank -= combinations(low, left);
        low
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_has_one_rank() {
        for size in 1..=3 {
            let count = combinations(7, size);
            let sets: BTreeSet<Vec<u64>> = (0..count).map(|rank| combination(size, rank).collect()).collect();
            assert_eq!(sets.len() as u128, count);
            assert!(sets.iter().all(|set| set.iter().all(|&n| n < 7) && set.is_sorted_by(|a, b| a > b)));
        }
        assert_eq!([combinations(7, 3), combinations(3, 7), combinations(5, 0)], [35, 0, 1]);
    }

    #[test]
    fn plan_has_all_sets_or_a_share_of_each_size() {
        let all = Faults::none().flips(1).poison(2).within(60..66).plan(4096, 0);
        assert_eq!((all.legal(), all.len()), (6 * 8 + 2 + 1, 6 * 8 + 2 + 1));
        assert_eq!(all.sets().next(), Some(vec![Fault::Flip { offset: 60, bit: 0 }]));
        assert_eq!(all.sets().last().map(|set| set.len()), Some(2));
        let some = Faults::none().flips(2).sets_per_image(100).plan(4096, 0);
        assert_eq!(some.legal(), 32_768 + 32_768 * 32_767 / 2);
        assert_eq!(some.len(), 100);
    }
}
