//! A crash that was not recovered from, told so that it can be understood and repeated.

use super::Coverage;
use super::crash_report::CrashReport;
use super::repair::Repair;
use super::replay::ReplayCrash;
use super::run::{Complaint, Mismatch};
use core::fmt;

/// Why an exploration failed: the crashes, one inside the recovery from the other, and what the check said.
///
/// `Debug` prints the same as `Display`, so that `unwrap` in a test tells the story.
#[derive(Clone)]
#[non_exhaustive]
pub struct Failure {
    /// What the check, or the operation, said.
    pub message: String,
    /// What was found and what was allowed, if the check told by [`Crash::expect`](crate::Crash::expect).
    pub mismatch: Option<Mismatch>,
    /// The crashes that led there, in order. Empty when the operation failed with no crash.
    pub crashes: Vec<CrashReport>,
    /// What would repair it, if one flush or fence does.
    pub repair: Option<Repair>,
    /// What [`Explorer::replay`](crate::Explorer::replay) takes to repeat just these crashes.
    pub replay: Option<String>,
    /// What had been tried until then.
    pub coverage: Coverage,
    pub(super) path: Vec<ReplayCrash>,
}

impl Failure {
    pub(super) fn new(complaint: impl Into<Complaint>, coverage: Coverage) -> Self {
        let Complaint { message, mismatch } = complaint.into();
        Self {
            message,
            mismatch,
            crashes: Vec::new(),
            repair: None,
            replay: None,
            coverage,
            path: Vec::new(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)?;
        for (number, crash) in self.crashes.iter().enumerate() {
            let nested = if number == 0 { "" } else { ", in recovery" };
            write!(f, "\n  {}.{nested} {crash}", number + 1)?;
        }
        if let Some(repair) = &self.repair {
            write!(f, "\n  {repair}")?;
        }
        if let Some(replay) = &self.replay {
            write!(f, "\n  repeat it with Explorer::replay(\"{replay}\")")?;
        }
        write!(f, "\n  {}", self.coverage)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl core::error::Error for Failure {}
