//! The run that is explored, the check that judges it, and a meter of the progress.

use super::memory::History;
use super::run::Crash;
use super::settings::Settings;
use crate::outcome::Complaint;
use crate::trace::Trace;
use crate::{Image, SimPmem};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The time to the first message, and between two messages.
const INTERVAL: Duration = Duration::from_secs(5);
/// The number of recoveries between two readings of the clock.
const BETWEEN_LOOKS: u64 = 1 << 10;

/// The check; its panics and errors are complaints.
pub(super) type Check<'s, A> = &'s (dyn Fn(&Crash<'_, A>) -> Option<Complaint> + Sync);

/// Runs a second process after these acknowledgements; returns all acknowledgements by its end, and its complaint.
pub(super) type Restart<'s, A> = &'s (dyn Fn(Arc<SimPmem>, &[A]) -> (Vec<A>, Option<String>) + Sync);

/// A run to crash, with everything that its exploration needs.
pub(super) struct Subject<'s, A> {
    pub(super) settings: &'s Settings,
    /// The durable contents before the run.
    pub(super) start: &'s Image,
    pub(super) trace: &'s Trace,
    pub(super) history: History<'s, A>,
    pub(super) check: Check<'s, A>,
    /// The process that runs after a kill, if that is not the check.
    pub(super) restart: Option<Restart<'s, A>>,
    pub(super) meter: &'s Meter,
}

/// Counts recoveries of all threads, and prints the count every [`INTERVAL`].
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
            let (seconds, per_second) =
                (elapsed.as_secs(), u128::from(before) * 1000 / elapsed.as_millis().max(1));
            eprintln!("{}: {before} recoveries in {seconds} s, {per_second} a second", self.name);
        }
    }
}
