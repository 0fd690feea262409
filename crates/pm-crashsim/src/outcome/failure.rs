//! A crash that was not recovered from, with what is needed to understand and to repeat it.

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
    /// What the check, or the operation, said.
    pub message: String,
    /// What was found and what was allowed, if the check told by [`Crash::expect`](crate::Crash::expect).
    pub mismatch: Option<Mismatch>,
    /// The crashes that led there, in order. Empty when the operation failed with no crash. A kill is an event of the trace that
    /// was crashed; if a process failed after one with no crash, there is one crash here whose [moment](crate::Moment) is
    /// that kill, and nothing was lost in it.
    pub crashes: Vec<CrashReport>,
    /// What would repair it, if one flush or fence does.
    pub repair: Option<Repair>,
    /// What [`Explorer::replay`](crate::Explorer::replay) takes to repeat just these crashes.
    pub replay: Option<String>,
    /// The file that keeps the trace for tools, if one was written.
    pub trace_file: Option<PathBuf>,
    /// What had been tried until then.
    pub coverage: Coverage,
    /// Media faults that were there besides. A failure with faults is neither shrunk nor repaired.
    pub faults: Vec<Fault>,
    /// Where processes were killed, before the first crash.
    pub(crate) kills: Vec<usize>,
    pub(crate) path: Vec<ReplayCrash>,
    /// What the check rejects besides, which no crash has touched: what was there before the operation, or after it.
    pub(crate) untouched: Option<&'static str>,
    pub(crate) origin: Origin,
    /// Whether the operation failed, with no crash.
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

    /// The operation itself failed.
    pub(crate) fn of_operation(message: &str, coverage: Coverage) -> Self {
        let failure = Self::new(format!("the operation itself failed: {message}"), coverage);
        Self { is_of_operation: true, ..failure }
    }

    /// The name of the crashes if the run that was crashed first, with the kills in it, is the operation. Nothing if no crash
    /// came after the kills.
    pub(crate) fn replay_of_record(&self) -> Option<String> {
        let record = &self.crashes.first()?.record;
        let (model, mark) = (record.rules().model, record.trace().mark());
        let id = ReplayId { model, mark, kills: Vec::new(), crashes: self.path.clone() };
        (self.replay.is_some() && !self.path.is_empty()).then(|| id.to_string())
    }

    /// Whether it can be repeated many times to learn more of it: not if each time takes as long as a check may.
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

/// What would repair a failure: with it, the check passes on what a crash can leave.
///
/// It was tried by exploring again with smaller bounds, so it is a strong hint and not a proof.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Repair {
    /// What to put where.
    pub injection: Injection,
    /// A flush of what is stored there that does not reach all of it, and the first byte that it misses: if there
    /// is one, that is the place to change.
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

/// A state that no legal history explains, with those that some would.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mismatch {
    /// What recovery found, as its `Debug` has it.
    pub found: String,
    /// What it could have found, likewise.
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

/// What a check complained of, by a panic or an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Complaint {
    pub(crate) message: String,
    pub(crate) mismatch: Option<Mismatch>,
}

impl Complaint {
    /// The message without its numbers: what complaints of one kind have in common.
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
