//! Random numbers, and which random programs run.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use core::ops::Range;

/// A linear congruential generator.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// The seeds of random programs: so many, or as the environment says.
pub(crate) fn seeds(count: u64) -> Range<u64> {
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let first = number("PM_CRASH_FIRST", 0);
    first..first + number("PM_CRASH_SEQUENCES", count)
}
