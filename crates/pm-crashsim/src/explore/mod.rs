//! Trying every crash of a run, and every crash of the recoveries from them.

mod coverage;
mod crash_report;
mod environment;
mod examined;
mod explorer;
mod failure;
mod faulty;
mod given;
mod kill;
mod kill_state;
mod memory;
mod model;
mod parallel;
mod point;
mod progress;
mod quiet;
mod recover;
mod repair;
mod repeat;
mod replay;
mod restarted;
mod rounds;
mod run;
mod search;
mod session;
mod shrink;
mod states;
mod teeth;
mod untouched;
mod walk;
mod within;

#[cfg(any(feature = "loom", feature = "shuttle"))]
pub(crate) use {
    memory::{History, Memory},
    session::catch,
};

pub use coverage::{Coverage, KillCoverage, LevelCoverage};
pub use crash_report::{CrashRecord, CrashReport, IllegalCrash, Moment, PendingStore, Survivor};
pub(crate) use environment::REPLAY_VARIABLE;
pub use explorer::Explorer;
pub use failure::Failure;
pub use faulty::FaultCoverage;
pub use model::model;
pub use repair::Repair;
pub use run::{Crash, Mismatch, Run, Verdict};
pub use walk::CrashPoint;
