//! Where both sides persist: every multiple of the length in the region once, in random order.

use pm_bench::Side;

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
        let mut random = SplitMix(0x6A09_E667_F3BC_C908);
        for last in (1..offsets.len()).rev() {
            let other = random.next() % (last as u64 + 1);
            offsets.swap(last, usize::try_from(other).expect("an index"));
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

/// Sebastiano Vigna's splitmix64: good enough to defeat prefetchers, and the same everywhere.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}
