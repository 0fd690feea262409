//! Trying every crash of a run, and every crash of the recoveries from them.

mod coverage;
mod explorer;
mod failure;
mod given;
mod replay;
mod run;
mod session;
mod teeth;

pub use coverage::{Coverage, LevelCoverage};
pub use explorer::Explorer;
pub use failure::{CrashRecord, CrashReport, Failure, Moment, NotPending, PendingStore, Survivor};
pub use run::{Crash, Run, Verdict};
