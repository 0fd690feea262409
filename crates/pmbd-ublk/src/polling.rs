//! Adaptive polling: how long a thread that has run out of requests polls for the next one before it sleeps.

use std::time::Duration;

/// Waking a sleeping thread costs more than a request from memory, so a thread whose next request comes soon polls for a while. Otherwise
/// polling only takes the CPU from the submitters of requests.
///
/// The budget depends on the last gaps between requests: it doubles, up to the limit, with every gap that polling would have bridged, and
/// halves with every other one, down to nothing. By hand: crossbeam's `Backoff` does not adapt to the time between events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Polling {
    limit: Duration,
    budget: Duration,
}

impl Polling {
    /// The budget that follows zero.
    const STEP: Duration = Duration::from_micros(4);

    /// Polls for at most `limit` at a time; never, if that is zero.
    pub(crate) const fn new(limit: Duration) -> Self {
        Self { limit, budget: limit }
    }

    /// How long to poll before the next sleep.
    pub(crate) const fn budget(self) -> Duration {
        self.budget
    }

    /// Takes note of the time between running out of requests and having the next one.
    pub(crate) fn learn(&mut self, gap: Duration) {
        // A gap that was slept through includes the wakeup, which polling would have saved.
        self.budget = if gap <= self.limit * 2 {
            (self.budget * 2).clamp(Self::STEP.min(self.limit), self.limit)
        } else if self.budget <= Self::STEP {
            Duration::ZERO
        } else {
            self.budget / 2
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(50);

    #[test]
    fn short_gaps_sustain_polling_and_long_ones_end_it() {
        let mut polling = Polling::new(LIMIT);
        for _ in 0..10 {
            polling.learn(Duration::from_micros(20));
            assert_eq!(polling.budget(), LIMIT);
        }
        let gaps = (0..10).take_while(|_| {
            polling.learn(Duration::from_millis(5));
            !polling.budget().is_zero()
        });
        assert!(gaps.count() < 5, "an idle queue sleeps after a handful of gaps");
    }

    #[test]
    fn polling_resumes_after_sleep() {
        let mut polling = Polling::new(LIMIT);
        (0..20).for_each(|_| polling.learn(Duration::from_secs(1)));
        assert_eq!(polling.budget(), Duration::ZERO);
        (0..6).for_each(|_| polling.learn(Duration::from_micros(60)));
        assert_eq!(polling.budget(), LIMIT);
    }

    #[test]
    fn zero_limit_never_polls() {
        let mut polling = Polling::new(Duration::ZERO);
        polling.learn(Duration::ZERO);
        assert_eq!(polling.budget(), Duration::ZERO);
    }
}
