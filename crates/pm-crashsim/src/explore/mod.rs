//! Trying every crash of a run, and every crash of the recoveries from them.

mod coverage;
mod examined;
mod explorer;
mod failure;
mod given;
mod memory;
mod model;
mod parallel;
mod point;
mod progress;
mod replay;
mod run;
mod session;
mod teeth;
mod walk;

#[cfg(any(feature = "loom", feature = "shuttle"))]
pub(crate) use {
    memory::{History, Memory},
    session::catch,
};

pub use coverage::{Coverage, LevelCoverage};
pub use explorer::Explorer;
pub use failure::{CrashRecord, CrashReport, Failure, IllegalCrash, Moment, PendingStore, Survivor};
pub use model::model;
pub use run::{Crash, Run, Verdict};
pub use walk::CrashPoint;
