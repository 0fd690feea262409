//! The settings of an exploration: its model, its bounds, and the edits of its runs.

use crate::Lints;
use crate::faults::Faults;
use crate::image::Image;
use crate::lint::{denied, lint, merge};
use crate::model::{Model, Rules};
use crate::outcome::{Coverage, Explored, Failure, ReplayId};
use crate::sim::{Recording, SharedTouched, SimPmem};
use crate::site::Edits;
use crate::time_budget::TimeBudget;
use crate::trace::Trace;
use std::time::Duration;

/// The settings of an [`Explorer`](super::Explorer).
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) rules: Rules,
    pub(super) crashes: usize,
    pub(super) kills: usize,
    pub(super) choices_per_point: u64,
    pub(super) nested_choices_per_point: u64,
    pub(super) recoveries: u64,
    pub(super) time: TimeBudget,
    pub(super) time_per_check: Duration,
    pub(super) seed: u64,
    pub(super) edits: Edits,
    pub(super) replay: Option<ReplayId>,
    pub(super) shrink: bool,
    pub(super) repair: bool,
    pub(super) reduce: bool,
    pub(super) jobs: usize,
    pub(super) accesses_per_check: u64,
    pub(super) lints: Lints,
    pub(super) faults: Faults,
    /// Where every run notes the lines that it touches, for an exploration inside a check.
    pub(super) touched: Option<SharedTouched>,
}

impl Settings {
    pub(super) fn new(model: Model) -> Self {
        Self {
            rules: Rules { model, ..Rules::default() },
            crashes: 2,
            kills: 0,
            choices_per_point: 4096,
            nested_choices_per_point: 256,
            recoveries: u64::MAX,
            time: TimeBudget::of_environment(),
            time_per_check: Duration::from_secs(60),
            seed: 0,
            edits: Edits::default(),
            replay: None,
            shrink: true,
            repair: true,
            reduce: true,
            jobs: 1,
            accesses_per_check: 1 << 24,
            lints: Lints::all_allowed(),
            faults: Faults::none(),
            touched: None,
        }
    }

    /// The settings of a search that begins now, unless it has begun.
    pub(super) fn begun(&self) -> Self {
        Self { time: self.time.begun(), ..self.clone() }
    }

    /// A recording region for the operation.
    pub(super) fn recorded(&self, image: &Image) -> SimPmem {
        let recording = match self.lints.needs_loads() {
            true => Recording::Loads,
            false if self.rules.strict_ack => Recording::Observed,
            false => Recording::Writes,
        };
        self.region(image, recording)
    }

    /// A region for a check, within the limits of a check.
    pub(super) fn recovering(&self, image: &Image, recording: Recording) -> SimPmem {
        let pmem = self.region(image, recording);
        pmem.limit(self.accesses_per_check, self.time_per_check);
        pmem
    }

    fn region(&self, image: &Image, recording: Recording) -> SimPmem {
        let pmem = SimPmem::recorded(image, self.rules.model, recording, &self.edits);
        if let Some(touched) = &self.touched {
            pmem.report_to(touched);
        }
        pmem
    }

    /// Adds the findings of the lints to the coverage, and returns their number.
    pub(super) fn lint(&self, trace: &Trace, lints: &Lints, coverage: &mut Coverage) -> Explored<usize> {
        if !lints.is_any_on() {
            return Ok(0);
        }
        let lints = lints.clone().exchange_fences(self.rules.exchange_fences);
        let findings = lint(trace, self.rules.model, &lints);
        let (count, denied) = (findings.len(), denied(&findings));
        merge(&mut coverage.findings, findings);
        denied.map_or(Ok(count), |story| Err(Box::new(Failure::new(story, coverage.clone()))))
    }
}
