//! The benchmarks' generator of random numbers: a linear congruential one modulo 2^46.

/// 5^13.
const MULTIPLIER: u64 = 1_220_703_125;
const SEED: u64 = 314_159_265;
/// The bits of its state.
pub(super) const BITS: u32 = 46;

/// Numbers that are uniform below 1, in units of 2^-46.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new() -> Self {
        Self(SEED)
    }

    /// The next one.
    pub(super) const fn next(&mut self) -> u64 {
        // The product is exact modulo 2^64, so it is modulo 2^46.
        self.0 = self.0.wrapping_mul(MULTIPLIER) & ((1 << BITS) - 1);
        self.0
    }

    /// The next one as a number below 1.
    pub(super) fn unit(&mut self) -> f64 {
        // 46 bits are exact.
        self.next() as f64 / (1_u64 << BITS) as f64
    }
}
