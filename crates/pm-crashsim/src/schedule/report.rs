//! How much was tried of schedules and crashes, and the story of one that failed.

use crate::trace::{EventKind, Trace};
use crate::{Coverage, Failure};
use core::fmt;
use std::panic::Location;

/// What an exploration of schedules and crashes tried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScheduleCoverage {
    /// How many schedules were run.
    pub schedules: u64,
    /// How many different images, after different acknowledgements, were recovered from.
    pub images: u64,
    /// Whether these were all the schedules that the scheduler tells apart.
    pub is_complete: bool,
    /// The crashes, over all schedules.
    pub crashes: Coverage,
}

/// A schedule and a crash of it that was not recovered from.
///
/// Schedules come in the same order in every run: to see it again, run the test again.
///
/// `Debug` prints the same as `Display`, so that `unwrap` in a test tells the story.
#[derive(Clone)]
#[non_exhaustive]
pub struct ScheduleFailure {
    /// The number of the schedule, counted from 1.
    pub schedule: u64,
    /// What it was, as far as it matters to durability. Empty when the operation failed with no crash.
    pub steps: Vec<Step>,
    /// The crash, and what the check said.
    pub failure: Box<Failure>,
    /// What had been tried until then.
    pub coverage: ScheduleCoverage,
}

/// One step of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// Threads are numbered by their first step.
    pub thread: u32,
    /// What it did: "store", "fence" and so on.
    pub what: &'static str,
    /// Where in the source.
    pub location: &'static Location<'static>,
}

/// What a record's threads did, in order.
pub(super) fn steps(trace: &Trace) -> Vec<Step> {
    let step = |event: &crate::trace::Event| {
        let what = match event.kind {
            EventKind::Store { .. } | EventKind::StoreNt { .. } => "store",
            EventKind::Exchange { .. } => "exchange",
            EventKind::Flush { .. } | EventKind::FlushOrdered { .. } => "flush",
            EventKind::Fence | EventKind::FullFence => "fence",
            EventKind::Ack => "acknowledgement",
        };
        Step { thread: event.thread, what, location: event.location }
    };
    trace.events().iter().map(step).collect()
}

impl fmt::Display for ScheduleCoverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { schedules, images, is_complete, crashes } = self;
        let all = if *is_complete { "all" } else { "some" };
        write!(f, "{schedules} schedules, {all} there are, {images} images; {crashes}")
    }
}

impl fmt::Display for ScheduleFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "schedule {}: {}", self.schedule, self.failure)?;
        for of_thread in self.steps.chunk_by(|a, b| a.thread == b.thread) {
            write!(f, "\n  thread {}:", of_thread[0].thread)?;
            for Step { what, location, .. } in of_thread {
                write!(f, "\n    {what} at {location}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for ScheduleFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl core::error::Error for ScheduleFailure {}
