//! A failed recovery, with everything needed to understand and repeat it.

use super::coverage::Coverage;
use super::crash::CrashReport;
use super::origin::Origin;
use super::replay::{ReplayCrash, ReplayId};
use crate::{Fault, Injection, SourceLocation};
use core::fmt;
use std::path::PathBuf;

/// The message of a check that exceeds its time limit begins with this.
pub(crate) const TOO_LONG: &str = "recovery takes too long";

/// The outcome of an exploration, or of a part of it.
pub(crate) type Explored<T> = Result<T, Box<Failure>>;

/// Why an exploration failed: the crashes, each inside the recovery from the one before, and the message of the check.
///
/// `Debug` prints the same as `Display`, so that `unwrap` in a test prints the report.
#[derive(Clone)]
#[non_exhaustive]
pub struct Failure {
    /// The message of the check, or of the operation.
    pub message: String,
    /// The found and the allowed states, if the check compared them by [`Crash::expect`](crate::Crash::expect).
    pub mismatch: Option<Mismatch>,
    /// The crashes that led there, in order. Empty when the operation failed without a crash. A kill is an event of the trace that was crashed; if a
    /// process failed after a kill without a crash, there is one entry, whose [moment](crate::Moment) is that kill, and nothing was lost in it.
    pub crashes: Vec<CrashReport>,
    /// The flush or fence that would repair it, if there is one.
    pub repair: Option<Repair>,
    /// The argument of [`Explorer::replay`](crate::Explorer::replay) that repeats just these crashes.
    pub replay: Option<String>,
    /// The file with the trace for tools, if one was written.
    pub trace_file: Option<PathBuf>,
    /// The coverage up to the failure.
    pub coverage: Coverage,
    /// The media faults of the failing image. A failure with faults is neither shrunk nor repaired.
    pub faults: Vec<Fault>,
    /// Where processes were killed, before the first crash.
    pub(crate) kills: Vec<usize>,
    pub(crate) path: Vec<ReplayCrash>,
    /// The state without a crash that the check also rejects: before the operation, or after it.
    pub(crate) untouched: Option<&'static str>,
    pub(crate) origin: Origin,
    /// Whether the operation failed without a crash.
    pub(crate) is_of_operation: bool,
}

impl Failure {
    pub(crate) fn new(complaint: impl Into<Complaint>, coverage: Coverage) -> Self {
        let Complaint { message, mismatch } = complaint.into();
        Self {
            message,
            mismatch,
            crashes: Vec::new(),
            repair: None,
            replay: None,
            trace_file: None,
            coverage,
            faults: Vec::new(),
            kills: Vec::new(),
            path: Vec::new(),
            untouched: None,
            origin: Origin::default(),
            is_of_operation: false,
        }
    }

    /// A failure of the operation itself.
    pub(crate) fn of_operation(message: &str, coverage: Coverage) -> Self {
        let failure = Self::new(format!("the operation itself failed: {message}"), coverage);
        Self { is_of_operation: true, ..failure }
    }

    /// The name of the crashes if the run that was crashed first, with the kills in it, is the operation. `None` if no crash followed the kills.
    pub(crate) fn replay_of_record(&self) -> Option<String> {
        let record = &self.crashes.first()?.record;
        let (model, mark) = (record.rules().model, record.trace().mark());
        let id = ReplayId { model, mark, kills: Vec::new(), crashes: self.path.clone() };
        (self.replay.is_some() && !self.path.is_empty()).then(|| id.to_string())
    }

    /// Whether it can be repeated many times: not if each time takes as long as a check may.
    pub(crate) fn is_to_repeat(&self) -> bool {
        self.faults.is_empty() && !self.message.starts_with(TOO_LONG)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl core::error::Error for Failure {}

/// A repair of a failure: with it, the check passes on the images of a crash.
///
/// It was tested by an exploration with smaller bounds, so it is a strong hint and not a proof.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Repair {
    /// The repair.
    pub injection: Injection,
    /// A flush that covers only a part of the store, and the first byte that it misses: if there is one, that is the place to change.
    pub short_flush: Option<(SourceLocation, u64)>,
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.short_flush {
            None => write!(f, "{} repairs it", self.injection),
            Some((flush, offset)) => write!(
                f,
                "the flush at {flush} should also cover offset {offset:#x}: {} repairs it",
                self.injection
            ),
        }
    }
}

/// A state that no legal history explains, and the states that legal histories have.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mismatch {
    /// The `Debug` output of the state that recovery found.
    pub found: String,
    /// The `Debug` output of the allowed states.
    pub allowed: Vec<String>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.allowed.as_slice() {
            [] => write!(f, "{} was found, where nothing is allowed", self.found),
            allowed => write!(f, "{} was found, where only {} is allowed", self.found, allowed.join(" or ")),
        }
    }
}

impl core::error::Error for Mismatch {}

/// The complaint of a check, by a panic or an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Complaint {
    pub(crate) message: String,
    pub(crate) mismatch: Option<Mismatch>,
}

impl Complaint {
    /// The message without its numbers: the common part of complaints of one kind.
    pub(crate) fn kind(&self) -> String {
        let words = self.message.split_inclusive(|c: char| !c.is_alphanumeric());
        words.filter(|word| !word.contains(|c: char| c.is_ascii_digit())).collect()
    }
}

impl From<String> for Complaint {
    fn from(message: String) -> Self {
        Self { message, mismatch: None }
    }
}
