//! The results of an exploration: its coverage, and the failure found.

mod coverage;
mod crash;
mod failure;
mod origin;
mod replay;

pub use coverage::{Coverage, FaultCoverage, KillCoverage, LevelCoverage};
pub use crash::{CrashRecord, CrashReport, Moment, PendingStore};
pub(crate) use failure::{Complaint, Explored, TOO_LONG};
pub use failure::{Failure, Mismatch, Repair};
pub(crate) use origin::Origin;
pub(crate) use replay::{REPLAY_VARIABLE, ReplayCrash, ReplayId};
