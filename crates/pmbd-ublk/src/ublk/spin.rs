//! How long a queue that has run out of requests looks for the next one before it sleeps.

use std::time::Duration;

/// Waking a sleeping thread costs more than a request from memory takes, so a queue that is likely to get
/// another request soon does better to look for it for a while. One that is not only steals the CPU from its
/// submitters.
///
/// This decides by the last gaps alone: the budget doubles with every gap that looking would have bridged, up
/// to the limit, and halves with every other, down to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spin {
    limit: Duration,
    budget: Duration,
}

impl Spin {
    /// The budget that a queue starts over with after it was down to nothing.
    const STEP: Duration = Duration::from_micros(4);

    /// Spins for at most `limit` at a time; never, if that is zero.
    pub(super) const fn new(limit: Duration) -> Self {
        Self { limit, budget: limit }
    }

    /// How long to look before the next sleep.
    pub(super) const fn budget(self) -> Duration {
        self.budget
    }

    /// Learns from the time between running out of requests and having the next one.
    pub(super) fn learn(&mut self, gap: Duration) {
        // A gap that was slept through includes the waking up, which looking would have saved.
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
    fn short_gaps_keep_it_looking_and_long_ones_put_it_to_sleep() {
        let mut spin = Spin::new(LIMIT);
        for _ in 0..10 {
            spin.learn(Duration::from_micros(20));
            assert_eq!(spin.budget(), LIMIT);
        }
        let gaps = (0..10).take_while(|_| {
            spin.learn(Duration::from_millis(5));
            !spin.budget().is_zero()
        });
        assert!(gaps.count() < 5, "an idle queue sleeps after a handful of gaps");
    }

    #[test]
    fn a_queue_that_slept_comes_back() {
        let mut spin = Spin::new(LIMIT);
        (0..20).for_each(|_| spin.learn(Duration::from_secs(1)));
        assert_eq!(spin.budget(), Duration::ZERO);
        (0..6).for_each(|_| spin.learn(Duration::from_micros(60)));
        assert_eq!(spin.budget(), LIMIT);
    }

    #[test]
    fn off_stays_off() {
        let mut spin = Spin::new(Duration::ZERO);
        spin.learn(Duration::ZERO);
        assert_eq!(spin.budget(), Duration::ZERO);
    }
}
