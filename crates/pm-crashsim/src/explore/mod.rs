//! Trying every crash of a run, and every crash of the recoveries from them.

mod coverage;
mod crash_report;
mod explorer;
mod failure;
mod quiet;
mod repair;
mod replay;
mod run;
mod session;
mod shrink;
mod teeth;

pub use coverage::{Coverage, LevelCoverage};
pub use crash_report::{CrashRecord, CrashReport, Moment, PendingStore, Survivor};
pub use explorer::Explorer;
pub use failure::Failure;
pub use repair::Repair;
pub use run::{Crash, Mismatch, Run, Verdict};
