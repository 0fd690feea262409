//! Trying every crash of a run, and every crash of the recoveries from them.

mod coverage;
mod examined;
mod explorer;
mod failure;
mod faulty;
mod memory;
mod model;
mod parallel;
mod point;
mod progress;
mod replay;
mod run;
mod session;
mod teeth;

#[cfg(any(feature = "loom", feature = "shuttle"))]
pub(crate) use {
    memory::{History, Memory},
    session::catch,
};

pub use coverage::{Coverage, LevelCoverage};
pub use explorer::Explorer;
pub use failure::{CrashRecord, CrashReport, Failure, Moment, PendingStore, Survivor};
pub use faulty::FaultCoverage;
pub use model::model;
pub use run::{Crash, Run, Verdict};
