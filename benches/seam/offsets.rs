//! Where both sides persist: every multiple of the length in the region once, in random order.

use pm_bench::{Side, SplitMix};

/// A random order of all multiples of a length, cut into chunks of one round each.
#[derive(Debug)]
pub(crate) struct Offsets {
    offsets: Vec<u64>,
    per_chunk: usize,
}

impl Offsets {
    /// For a region and a round of these sizes, each a multiple of the next, and accesses of `len` bytes.
    /// Always the same order.
    pub(crate) fn new(region_bytes: u64, round_bytes: u64, len: u64) -> Self {
        let mut offsets: Vec<u64> =
            (0..region_bytes).step_by(usize::try_from(len).expect("a length")).collect();
        let mut random = SplitMix::new(0x6A09_E667_F3BC_C908);
        for last in (1..offsets.len()).rev() {
            offsets.swap(last, random.below(last + 1));
        }
        Self { offsets, per_chunk: usize::try_from(round_bytes / len).expect("a count") }
    }

    /// The offsets of a side's turn `turn`. The other side has been there half the region ago, or will be
    /// half the region later, so that what it left in the caches is gone; after a whole number of passes both
    /// have done the same.
    pub(crate) fn chunk(&self, turn: usize, side: Side) -> &[u64] {
        let count = self.offsets.len() / self.per_chunk;
        let ahead = if side == Side::Theirs { count / 2 } else { 0 };
        let start = (turn + ahead) % count * self.per_chunk;
        &self.offsets[start..start + self.per_chunk]
    }
}
