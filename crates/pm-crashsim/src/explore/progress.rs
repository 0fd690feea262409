//! What a long exploration says while it works.

use core::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// An exploration says nothing before, and then each time after, this long.
const INTERVAL: Duration = Duration::from_secs(5);
/// How many recoveries are run between looks at the clock.
const BETWEEN_LOOKS: u64 = 1 << 10;

/// How far an exploration has come.
struct Progress {
    recoveries: u64,
    elapsed: Duration,
}

/// Counts recoveries, on all cores, and speaks now and then.
pub(super) struct Meter {
    name: &'static str,
    start: Instant,
    recoveries: AtomicU64,
    intervals: AtomicU64,
}

impl Meter {
    pub(super) fn start(name: &'static str) -> Self {
        Self { name, start: Instant::now(), recoveries: AtomicU64::new(0), intervals: AtomicU64::new(0) }
    }

    pub(super) fn count_recovery(&self) {
        let before = self.recoveries.fetch_add(1, Ordering::Relaxed);
        if !before.is_multiple_of(BETWEEN_LOOKS) {
            return;
        }
        let elapsed = self.start.elapsed();
        let intervals = elapsed.as_secs() / INTERVAL.as_secs();
        if self.intervals.fetch_max(intervals, Ordering::Relaxed) < intervals {
            eprintln!("{}: {}", self.name, Progress { recoveries: before, elapsed });
        }
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_second = u128::from(self.recoveries) * 1000 / self.elapsed.as_millis().max(1);
        let Self { recoveries, elapsed } = self;
        write!(f, "{recoveries} recoveries in {} s, {per_second} a second", elapsed.as_secs())
    }
}
