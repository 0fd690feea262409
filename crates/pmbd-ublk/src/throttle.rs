//! Limits messages whose cause may repeat thousands of times a second. By hand: rate limiters on crates.io do not count what they suppress.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The period in which messages are counted.
const WINDOW: Duration = Duration::from_secs(10);
/// The messages of one kind that are written in it.
const BURST: u32 = 5;

/// Admits the first messages of a kind in each period, and counts the others. One static for each kind.
#[derive(Debug)]
pub(crate) struct Throttle(Mutex<Window>);

#[derive(Debug)]
struct Window {
    began: Option<Instant>,
    written: u32,
    suppressed: u64,
}

impl Throttle {
    /// A throttle that has counted nothing yet.
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Window { began: None, written: 0, suppressed: 0 }))
    }

    /// Whether to write this message. If so, the number suppressed since the last one written.
    pub(crate) fn admit(&self) -> Option<u64> {
        self.admit_at(Instant::now())
    }

    fn admit_at(&self, now: Instant) -> Option<u64> {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if window.began.is_none_or(|began| now.duration_since(began) >= WINDOW) {
            (window.began, window.written) = (Some(now), 0);
        }
        if window.written == BURST {
            window.suppressed += 1;
            return None;
        }
        window.written += 1;
        Some(std::mem::take(&mut window.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_beyond_burst_are_counted() {
        let throttle = Throttle::new();
        let start = Instant::now();
        for _ in 0..BURST {
            assert_eq!(throttle.admit_at(start), Some(0));
        }
        for _ in 0..1000 {
            assert_eq!(throttle.admit_at(start + WINDOW / 2), None);
        }
        assert_eq!(throttle.admit_at(start + WINDOW), Some(1000));
        assert_eq!(throttle.admit_at(start + WINDOW), Some(0));
    }
}
