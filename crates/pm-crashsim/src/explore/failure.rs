//! A crash that was not recovered from, told so that it can be understood and repeated.

use super::Coverage;
use super::crash_report::CrashReport;
use super::repair::Repair;
use super::replay::{ReplayCrash, ReplayId};
use super::run::{Complaint, Mismatch};
use crate::Fault;
use crate::report::{Origin, Paint, svg, test_source, write_report};
use crate::sim::TOO_LONG;
use core::fmt;
use std::path::PathBuf;

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
    pub(super) kills: Vec<usize>,
    pub(super) path: Vec<ReplayCrash>,
    /// What the check rejects besides, which no crash has touched: what was there before the operation, or after it.
    pub(crate) untouched: Option<&'static str>,
    pub(crate) origin: Origin,
    /// Whether the operation failed, with no crash.
    pub(super) is_of_operation: bool,
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

    /// The crashes drawn as a picture for documents, legible on light and on dark pages: the text of an SVG file.
    #[must_use]
    pub fn to_svg(&self) -> String {
        svg(self)
    }

    /// Tests that repeat the failure and stand for themselves, as Rust source: one recovers from what the last crash
    /// left, the other repeats the run call by call and crashes it in the same way.
    ///
    /// A check that is a function is called by its path, as a module of the same crate would; for one that is a
    /// closure, and for what was acknowledged unless that is `()`, places are left that say `FILL IN`. Nothing if
    /// the failure is of no crash. The run is left out if it was one of several threads.
    #[must_use]
    pub fn to_test(&self) -> Option<String> {
        test_source(self)
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
    pub(super) fn is_to_repeat(&self) -> bool {
        self.faults.is_empty() && !self.message.starts_with(TOO_LONG)
    }

    /// The report as it goes to standard error: coloured if that is a terminal and `NO_COLOR` is not set.
    pub(super) fn for_stderr(&self) -> String {
        let mut report = String::new();
        write_report(&mut report, self, Paint::for_stderr())
            .expect("a string takes all that is written to it");
        report
    }
}

/// The whole report, without colours.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_report(f, self, Paint::Plain)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl core::error::Error for Failure {}
