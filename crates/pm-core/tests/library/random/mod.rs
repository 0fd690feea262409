//! The seeds of random programs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use core::ops::Range;

/// Seeds of `count` random programs. `PM_CRASH_FIRST` overrides the first seed, which is 0, and `PM_CRASH_SEQUENCES` overrides `count`.
pub(crate) fn seeds(count: u64) -> Range<u64> {
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let first = number("PM_CRASH_FIRST", 0);
    first..first + number("PM_CRASH_SEQUENCES", count)
}
