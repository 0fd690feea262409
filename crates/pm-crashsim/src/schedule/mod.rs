//! Threads that a scheduler runs one at a time, and the exploration of each of its schedules.

#[cfg(any(feature = "loom", feature = "shuttle"))]
mod exploration;
#[cfg(feature = "loom")]
pub mod loom;
#[cfg(any(feature = "loom", feature = "shuttle"))]
mod record;
#[cfg(any(feature = "loom", feature = "shuttle"))]
mod report;
#[cfg(feature = "shuttle")]
pub mod shuttle;
mod switch;

#[cfg(any(feature = "loom", feature = "shuttle"))]
pub use report::{ScheduleCoverage, ScheduleFailure};
pub(crate) use switch::{Scheduler, ThreadKey};
