//! The time that calls take, over all threads.

use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Sums up the time of calls, or only forwards them.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    is_on: bool,
    spent_ns: CachePadded<AtomicU64>,
}

impl Stopwatch {
    pub(crate) const fn new(is_on: bool) -> Self {
        Self { is_on, spent_ns: CachePadded::new(AtomicU64::new(0)) }
    }

    /// Runs `call`, and adds its time.
    #[inline]
    pub(crate) fn time<R>(&self, call: impl FnOnce() -> R) -> R {
        if !self.is_on {
            return call();
        }
        let begin = Instant::now();
        let result = call();
        let spent_ns = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.spent_ns.fetch_add(spent_ns, Relaxed);
        result
    }

    /// The sum over the calls that have returned.
    pub(crate) fn spent(&self) -> Duration {
        Duration::from_nanos(self.spent_ns.load(Relaxed))
    }
}
