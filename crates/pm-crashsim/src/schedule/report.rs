//! How much was tried of schedules and crashes, and the story of one that failed.

use crate::{Coverage, Failure};
use core::fmt;

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
/// No repair is looked for, as [`Explorer::repair`](crate::Explorer::repair) else does: a flush or fence more makes other schedules.
///
/// Schedules come in the same order in every run: to see it again, run the test again.
///
/// `Debug` prints the same as `Display`, so that `unwrap` in a test tells the story.
#[derive(Clone)]
#[non_exhaustive]
pub struct ScheduleFailure {
    /// The number of the schedule, counted from 1.
    pub schedule: u64,
    /// The crash, and what the check said. The first crash's record has what the threads had done until then.
    pub failure: Box<Failure>,
    /// What had been tried until then.
    pub coverage: ScheduleCoverage,
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
        let Some(crash) = self.failure.crashes.first() else { return Ok(()) };
        write!(f, "\n  (of schedules, no repair is looked for)")?;
        let (trace, happened) = (crash.record.trace(), crash.record.events());
        for of_thread in trace.events()[..happened].chunk_by(|a, b| a.thread == b.thread) {
            write!(f, "\n  thread {}:", of_thread[0].thread)?;
            for event in of_thread {
                write!(f, "\n    {} at {}", event.kind.name(), trace.location(event.location))?;
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
