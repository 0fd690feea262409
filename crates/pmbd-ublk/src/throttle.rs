//! Messages whose cause may repeat thousands of times a second.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The span that messages are counted over.
const WINDOW: Duration = Duration::from_secs(10);
/// How many messages of one kind are written in it.
const BURST: u32 = 5;

/// Lets the first messages of a kind through in each span of ten seconds, and counts the others. One static for each kind.
#[derive(Debug)]
pub(crate) struct Throttle(Mutex<Window>);

#[derive(Debug)]
struct Window {
    began: Option<Instant>,
    written: u32,
    suppressed: u64,
}

impl Throttle {
    /// One that has counted nothing yet.
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Window { began: None, written: 0, suppressed: 0 }))
    }

    /// Whether to write this message. If so, how many were not written since the last one that was.
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
    fn burst_passes_and_rest_is_counted() {
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
