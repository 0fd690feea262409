//! Trying every crash of a run, and every crash of the recoveries from them.

mod coverage;
mod examined;
mod explorer;
mod failure;
mod given;
mod parallel;
mod point;
mod progress;
mod replay;
mod run;
mod session;
mod teeth;
mod walk;

pub use coverage::{Coverage, LevelCoverage};
pub use explorer::Explorer;
pub use failure::{CrashRecord, CrashReport, Failure, IllegalCrash, Moment, PendingStore, Survivor};
pub use run::{Crash, Run, Verdict};
pub use walk::CrashPoint;
