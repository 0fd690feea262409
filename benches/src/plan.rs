//! Workloads for allocators: sequences of sizes to allocate and blocks to free. They are made beforehand, so that all allocators get the same
//! and none waits for random numbers.

use std::ops::RangeInclusive;

/// One step of a [`Plan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Allocate a block, and keep it in this slot, which is empty.
    Alloc {
        /// The slot.
        slot: u32,
        /// The size of the block, at least one.
        bytes: u32,
    },
    /// Free the block in this slot.
    Free {
        /// The slot.
        slot: u32,
    },
}

/// A sequence of allocations and deallocations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    ops: Vec<Op>,
    slot_count: u32,
}

impl Plan {
    /// `allocs` allocations of uniformly distributed `sizes` and `frees` deallocations of random live blocks, in random order. The plan is
    /// determined by the seed.
    ///
    /// # Panics
    /// If `frees` exceeds `allocs`, a size is zero, or `sizes` is empty.
    #[must_use]
    pub fn random(allocs: usize, frees: usize, sizes: RangeInclusive<u32>, seed: u64) -> Self {
        assert!(frees <= allocs, "only what was allocated can be freed");
        assert!(*sizes.start() > 0 && !sizes.is_empty(), "a block has at least one byte");
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut live, mut spare) = (Vec::new(), Vec::new());
        let mut plan = Self { ops: Vec::with_capacity(allocs + frees), slot_count: 0 };
        let (mut allocs_left, mut frees_left) = (allocs, frees);
        while allocs_left + frees_left > 0 {
            if live.is_empty() || random.usize(..allocs_left + frees_left) < allocs_left {
                allocs_left -= 1;
                let slot = spare.pop().unwrap_or_else(|| {
                    plan.slot_count += 1;
                    plan.slot_count - 1
                });
                live.push(slot);
                plan.ops.push(Op::Alloc { slot, bytes: random.u32(sizes.clone()) });
            } else {
                frees_left -= 1;
                let slot = live.swap_remove(random.usize(..live.len()));
                spare.push(slot);
                plan.ops.push(Op::Free { slot });
            }
        }
        plan
    }

    /// The steps.
    #[must_use]
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// The number of slots, which are numbered from zero.
    #[must_use]
    pub const fn slot_count(&self) -> u32 {
        self.slot_count
    }

    /// The form that the C programs read: for each step two little-endian words, the slot and the bytes to allocate, or zero to free.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let words = self.ops.iter().flat_map(|&op| match op {
            Op::Alloc { slot, bytes } => [slot, bytes],
            Op::Free { slot } => [slot, 0],
        });
        words.flat_map(u32::to_le_bytes).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_alternate_and_counts_match() {
        for (allocs, frees) in [(1, 1), (1000, 1000), (1000, 300), (5, 0), (0, 0)] {
            let plan = Plan::random(allocs, frees, 10..=4096, 7);
            let mut full = vec![false; plan.slot_count() as usize];
            let mut counts = (0, 0);
            for &op in plan.ops() {
                match op {
                    Op::Alloc { slot, bytes } => {
                        assert!((10..=4096).contains(&bytes));
                        assert!(!std::mem::replace(&mut full[slot as usize], true), "{slot} was full");
                        counts.0 += 1;
                    }
                    Op::Free { slot } => {
                        assert!(std::mem::replace(&mut full[slot as usize], false), "{slot} was empty");
                        counts.1 += 1;
                    }
                }
            }
            assert_eq!(counts, (allocs, frees));
        }
    }

    #[test]
    fn sizes_cover_range_and_seed_fixes_plan() {
        let plan = Plan::random(5000, 5000, 1..=3, 1);
        for size in 1..=3 {
            let count = plan
                .ops()
                .iter()
                .filter(|op| matches!(op, Op::Alloc { bytes, .. } if *bytes == size))
                .count();
            assert!((1400..1950).contains(&count), "{count} of {size} bytes");
        }
        assert_eq!(plan, Plan::random(5000, 5000, 1..=3, 1));
        assert_ne!(plan, Plan::random(5000, 5000, 1..=3, 2));
    }

    #[test]
    fn bytes_are_pairs_of_words() {
        let plan =
            Plan { ops: vec![Op::Alloc { slot: 1, bytes: 0x203 }, Op::Free { slot: 1 }], slot_count: 2 };
        assert_eq!(plan.to_bytes(), [1, 0, 0, 0, 3, 2, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    }
}
