//! Threads that a scheduler runs one at a time, and the exploration of each of its schedules.

mod exploration;
#[cfg(feature = "loom")]
pub mod loom;
#[cfg(feature = "shuttle")]
pub mod shuttle;

pub use exploration::{ScheduleCoverage, ScheduleFailure};
