//! The time that a search may take.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The variable with the number of seconds that a search may take, for explorers that set no time; 0 for no limit.
pub(crate) const TIME_VARIABLE: &str = "PM_CRASHSIM_SECONDS";

const DEFAULT: Duration = Duration::from_secs(60);

/// The time of a search, from its beginning. All parts of the search share it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeBudget {
    pub(crate) total: Duration,
    /// `None` before the search has begun, and if there is no limit.
    until: Option<Instant>,
}

impl TimeBudget {
    /// The time that the environment gives.
    ///
    /// # Panics
    /// When the variable is no number.
    pub(crate) fn of_environment() -> Self {
        static TOTAL: OnceLock<Duration> = OnceLock::new();
        let total = *TOTAL.get_or_init(|| match std::env::var(TIME_VARIABLE) {
            Err(_) => DEFAULT,
            Ok(seconds) => match seconds.trim().parse() {
                Ok(0) => Duration::MAX,
                Ok(seconds) => Duration::from_secs(seconds),
                Err(_) => panic!("{TIME_VARIABLE}={seconds:?} is no number of seconds"),
            },
        });
        Self { total, until: None }
    }

    /// The budget of a search that begins now, unless it has begun.
    pub(crate) fn begun(self) -> Self {
        match self.until {
            Some(_) => self,
            None => Self { until: Instant::now().checked_add(self.total), ..self },
        }
    }

    /// Whether the time is up.
    pub(crate) fn is_spent(self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// An equal part of what is left, for the first of so many searches.
    pub(crate) fn part(self, searches: usize) -> Self {
        let now = Instant::now();
        let left = self.until.map(|until| until.saturating_duration_since(now));
        let searches = u32::try_from(searches).unwrap_or(u32::MAX).max(1);
        Self { until: left.and_then(|left| now.checked_add(left / searches)), ..self }
    }

    /// What is left, but not less than a quarter of the whole: to understand a failure that was found.
    pub(crate) fn for_failure(self) -> Self {
        let quarter = Instant::now().checked_add(self.total / 4);
        Self { until: self.until.max(quarter).filter(|_| self.until.is_some()), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(seconds: u64) -> TimeBudget {
        TimeBudget { total: Duration::from_secs(seconds), until: None }.begun()
    }

    #[test]
    fn time_passes_from_the_beginning() {
        assert!(!budget(100).is_spent());
        let spent = TimeBudget { total: Duration::ZERO, until: None };
        assert!(!spent.is_spent(), "it has not begun");
        assert!(spent.begun().is_spent() && spent.begun().begun().is_spent());
        let unlimited = TimeBudget { total: Duration::MAX, until: None }.begun();
        assert!(
            !unlimited.is_spent() && !unlimited.part(7).is_spent() && !unlimited.for_failure().is_spent()
        );
    }

    #[test]
    fn parts_are_within_the_whole() {
        let whole = budget(100);
        let (half, third) = (whole.part(2), whole.part(3));
        assert!(third.until < half.until && half.until < whole.until);
        assert!(whole.part(0).until <= whole.until, "no search is one");
        let spent = TimeBudget { total: Duration::ZERO, until: None }.begun();
        assert!(spent.part(1).is_spent());
    }

    #[test]
    fn failure_has_a_quarter_at_least() {
        let whole = budget(100);
        assert_eq!(whole.for_failure().until, whole.until, "more is left");
        let late = TimeBudget { until: Some(Instant::now()), ..whole };
        assert!(late.is_spent() && !late.for_failure().is_spent() && late.for_failure().until < whole.until);
    }
}
