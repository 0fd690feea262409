//! How long freed blocks wait.

use std::time::{Duration, Instant};

/// Tells the time, unless nobody asks.
#[derive(Debug)]
pub(super) struct Clock {
    epoch: Instant,
    wait_ns: u64,
}

/// A time by that clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    now_ns: u64,
    wait_ns: u64,
}

impl Clock {
    /// That of a heap whose freed blocks wait at least so long.
    pub(super) fn new(wait: Duration) -> Self {
        Self { epoch: Instant::now(), wait_ns: nanoseconds(wait) }
    }

    /// Whether anything has to wait.
    pub(super) const fn is_used(&self) -> bool {
        self.wait_ns > 0
    }

    /// The time. Not looked at where nothing has to wait.
    #[inline]
    pub(super) fn now(&self) -> Moment {
        let now_ns = if self.wait_ns == 0 { 0 } else { nanoseconds(self.epoch.elapsed()) };
        Moment { now_ns, wait_ns: self.wait_ns }
    }
}

impl Moment {
    /// Until when a block waits that is freed now.
    pub(super) const fn due_ns(self) -> u64 {
        self.now_ns.saturating_add(self.wait_ns)
    }

    /// Whether a block that waits until then has waited long enough.
    #[inline]
    pub(super) const fn is_due(self, due_ns: u64) -> bool {
        self.now_ns >= due_ns
    }
}

/// 584 years at most, which is as good as for ever.
fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
