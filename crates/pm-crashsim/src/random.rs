//! A small seeded generator: the same seed explores the same images, on every machine.

/// Splitmix64.
///
/// # Source
/// Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA'14), figure 17.
pub(crate) struct Random {
    state: u64,
}

impl Random {
    /// A stream of its own for every pair.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut seeded = Self { state: seed };
        let scrambled = seeded.next();
        Self { state: scrambled ^ stream }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not zero. The bias is below `bound / 2^64`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let wide = u128::from(self.next()) * bound as u128;
        usize::try_from(wide >> 64).expect("less than the bound")
    }
}
