//! One exploration from end to end: record, lint, crash, and make the best of a failure.

use super::failure::Failure;
use super::kill::Share;
use super::memory::{History, Memory};
use super::progress::Meter;
use super::quiet::{inherit_quiet, is_quiet, quietly};
use super::replay::ReplayId;
use super::run::{Crash, Run, Verdict};
use super::session::{Restart, Session, Subject, catch};
use super::shrink::Shrinker;
use super::{Coverage, Explorer, parallel};
use crate::lint::{denied, lint, merge};
use crate::report::{Origin, save_trace};
use crate::trace::Trace;
use crate::{Image, Lints};
use std::sync::Arc;

impl Explorer {
    /// Runs `operation` on a region that starts as `image`, and `check` on everything that a crash of it can leave.
    ///
    /// `check` gets the crashed region: it recovers, compares with what was acknowledged, and fails by a panic or
    /// an error.
    ///
    /// With the name of a crash in the environment variable `PM_CRASHSIM_REPLAY`, as a report's last line sets it,
    /// only that crash is repeated; an exploration that has none of that name says so on standard error, and
    /// passes.
    ///
    /// # Errors
    /// The first failure found.
    ///
    /// # Panics
    /// When `PM_CRASHSIM_REPLAY` holds what is no name of a crash.
    pub fn explore<A: Sync, O: Verdict, V: Verdict>(
        &self,
        image: &Image,
        operation: impl Fn(&Run<A>) -> O,
        check: impl Fn(&Crash<'_, A>) -> V + Sync,
    ) -> Result<Coverage, Box<Failure>> {
        self.explore_by(|explorer| explorer.search(image, &operation, None, &check))
    }

    /// Explores by `search`, which shrinks what it finds, or replays.
    pub(super) fn explore_by(
        &self,
        search: impl Fn(&Self) -> Result<Coverage, Box<Failure>>,
    ) -> Result<Coverage, Box<Failure>> {
        if let Some(id) = self.wanted_by_environment() {
            return self.replay_if_met(&id, search);
        }
        search(self).map_err(|mut failure| {
            if self.repair && self.replay.is_none() && failure.is_to_repeat() {
                let passes = |explorer: &Self| search(explorer).is_ok();
                failure.repair = quietly(|| self.find_repair(&failure, passes));
            }
            failure.trace_file = save_trace(&failure);
            failure
        })
    }

    /// As [`explore`](Self::explore), for tests: prints the coverage, and panics with the story of a failure.
    ///
    /// # Panics
    /// On the first failure found.
    #[track_caller]
    pub fn check<A: Sync, O: Verdict, V: Verdict>(
        &self,
        image: &Image,
        operation: impl Fn(&Run<A>) -> O,
        check: impl Fn(&Crash<'_, A>) -> V + Sync,
    ) -> Coverage {
        self.told(self.explore(image, operation, check))
    }

    /// Prints the coverage, or panics with the story.
    #[track_caller]
    pub(super) fn told(&self, explored: Result<Coverage, Box<Failure>>) -> Coverage {
        match explored {
            Ok(coverage) => {
                println!("{}: {coverage}", self.rules.model);
                coverage
                    .advice()
                    .into_iter()
                    .for_each(|advice| println!("not every legal crash was tried: {advice}"));
                coverage.findings.iter().for_each(|finding| println!("{finding}"));
                coverage
            }
            Err(failure) => panic!("{}", failure.for_stderr()),
        }
    }

    /// Explores, and shrinks the failure that it finds.
    pub(super) fn search<A: Sync, O: Verdict, V: Verdict>(
        &self,
        image: &Image,
        operation: &impl Fn(&Run<A>) -> O,
        restart: Option<Restart<'_, A>>,
        check: &(impl Fn(&Crash<'_, A>) -> V + Sync),
    ) -> Result<Coverage, Box<Failure>> {
        let pmem = Arc::new(self.recorded(image));
        let run = Run::new(Arc::clone(&pmem));
        let failed = catch(|| operation(&run).failure());
        let mut coverage = Coverage::default();
        coverage.sites.extend(pmem.sites());
        if let Some(message) = failed {
            return Err(Box::new(Failure::of_operation(&message, coverage)));
        }
        let trace = pmem.take_trace();
        let acked = run.take_acked();
        let histories: Vec<usize> = (0..=acked.len()).collect();
        let history = History { acked: &acked, numbers: &histories };
        self.explore_restarts(image, &trace, history, &mut Memory::default(), restart, check, coverage)
    }

    /// Crashes a run that was recorded, everywhere, and shrinks the failure that shows.
    pub(crate) fn explore_record<A: Sync, V: Verdict>(
        &self,
        image: &Image,
        trace: &Trace,
        history: History<'_, A>,
        memory: &mut Memory,
        check: &(impl Fn(&Crash<'_, A>) -> V + Sync),
        coverage: Coverage,
    ) -> Result<Coverage, Box<Failure>> {
        self.explore_restarts(image, trace, history, memory, None, check, coverage)
    }

    #[expect(clippy::too_many_arguments, reason = "all that an exploration takes")]
    fn explore_restarts<A: Sync, V: Verdict>(
        &self,
        image: &Image,
        trace: &Trace,
        history: History<'_, A>,
        memory: &mut Memory,
        restart: Option<Restart<'_, A>>,
        check: &(impl Fn(&Crash<'_, A>) -> V + Sync),
        mut coverage: Coverage,
    ) -> Result<Coverage, Box<Failure>> {
        self.lint(trace, &self.lints, &mut coverage)?;
        let is_quiet = is_quiet();
        let complain = |crash: &Crash<'_, A>| {
            let failed = inherit_quiet(is_quiet, || catch(|| check(crash).failure()));
            failed.map(|message| crash.complaint(message))
        };
        let meter = Meter::start(self.rules.model.name());
        let acked = history.acked;
        let subject = Subject { explorer: self, history, check: &complain, restart, meter: &meter };
        let mut explored = match (&self.replay, self.jobs) {
            (Some(id), _) => self.replay_only(&subject, memory, image, trace, id),
            (None, 1) => Session::new(&subject, memory).explore(image, trace, 0..usize::MAX, Share::ALL),
            (None, jobs) => parallel::explore(&subject, memory, image, trace, jobs),
        };
        match &mut explored {
            Ok(found) => {
                found.add(coverage);
                found.states = memory.states().count();
            }
            Err(failure) => {
                failure.coverage.add(coverage);
                // The point that was being explored is not counted yet; each recovery was from a choice of its own.
                let Coverage { levels, after_kill, .. } = &mut failure.coverage;
                for level in levels.iter_mut().chain([after_kill]) {
                    level.tried = level.tried.max(level.recoveries.into()).min(level.legal);
                }
                failure.origin = Origin::here::<A, _>(check);
                // What was found after a kill has been shrunk by then.
                let is_to_shrink = failure.kills.is_empty() && failure.is_to_repeat();
                if self.shrink && self.replay.is_none() && is_to_shrink {
                    quietly(|| Shrinker::new(self, acked, &complain).shrink(failure, trace.mark()));
                }
            }
        }
        explored
    }

    /// Tried nothing is not passed: after a change of the code, the crash may have another name.
    fn replay_only<A>(
        &self,
        subject: &Subject<'_, A>,
        memory: &mut Memory,
        image: &Image,
        trace: &Trace,
        id: &ReplayId,
    ) -> Result<Coverage, Box<Failure>> {
        let not_found = |coverage| Box::new(Failure::new(format!("no crash of this run is {id}"), coverage));
        if trace.mark() != id.mark {
            return Err(not_found(Coverage::default()));
        }
        let coverage = Session::new(subject, memory).explore(image, trace, 0..usize::MAX, Share::ALL)?;
        let (levels, after_kill) = (&coverage.levels, &coverage.after_kill);
        let nested = levels.iter().skip(1).filter(|level| level.points > 0).count();
        let is_crashed = after_kill.points > 0 || levels.first().is_some_and(|level| level.points > 0);
        let crashes = nested + usize::from(is_crashed);
        let kills = usize::try_from(coverage.kills.processes).unwrap_or(usize::MAX);
        match crashes < id.crashes.len() || kills < id.kills.len() {
            true => Err(not_found(coverage)),
            false => Ok(coverage),
        }
    }

    /// Adds what the lints find to the coverage. How many findings that were.
    pub(super) fn lint(
        &self,
        trace: &Trace,
        lints: &Lints,
        coverage: &mut Coverage,
    ) -> Result<usize, Box<Failure>> {
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
