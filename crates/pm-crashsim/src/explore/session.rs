//! One exploration at work: point by point, choice by choice, one recovery inside the other.

use super::crash_report::{CrashRecord, CrashReport};
use super::explorer::Explorer;
use super::failure::Failure;
use super::replay::{ReplayCrash, ReplayId};
use super::run::Complaint;
use super::{Coverage, Crash};
use crate::SimPmem;
use crate::choices::Choices;
use crate::image::Image;
use crate::machine::Machine;
use crate::plan::Plan;
use crate::sim::Recording;
use crate::trace::{EventKind, Trace};
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The check, with panics and errors made one.
pub(super) type Check<'s, A> = &'s dyn Fn(&Crash<'_, A>) -> Option<Complaint>;

pub(super) struct Session<'s, A> {
    explorer: &'s Explorer,
    acked: &'s [A],
    check: Check<'s, A>,
    /// Which contents, with how many acknowledgements, were recovered from already, and how many more crashes
    /// were tried inside.
    seen: HashMap<(u128, usize), usize>,
    coverage: Coverage,
}

/// Where a run is being crashed.
struct Point<'p> {
    machine: &'p Machine<'p>,
    /// How many events of the run had happened.
    events: usize,
    /// How many operations were acknowledged.
    acked: usize,
    /// How many crashes came before this one.
    level: usize,
    /// Counted along the run.
    number: u64,
}

impl<'s, A> Session<'s, A> {
    pub(super) fn new(
        explorer: &'s Explorer,
        acked: &'s [A],
        check: Check<'s, A>,
        coverage: Coverage,
    ) -> Self {
        Self { explorer, acked, check, seen: HashMap::new(), coverage }
    }

    /// Crashes the operation's record everywhere.
    pub(super) fn explore(mut self, start: &Image, trace: &Trace) -> Result<Coverage, Box<Failure>> {
        self.crash_everywhere(start, trace, 0, 0).map_err(|mut failure| {
            let Explorer { rules, seed, .. } = *self.explorer;
            let id = ReplayId { model: rules.model, seed, crashes: failure.path.clone() };
            failure.replay = Some(id.to_string());
            failure
        })?;
        // Tried nothing is not passed: after a change of the code, the crash may have another name.
        let wanted = self.explorer.replay.as_ref().filter(|id| self.coverage.levels.len() < id.crashes.len());
        match wanted {
            Some(id) => Err(Box::new(Failure::new(format!("no crash of this run is {id}"), self.coverage))),
            None => Ok(self.coverage),
        }
    }

    /// Replays one record and crashes it at each point where that can show something new: what a crash between
    /// two points leaves is among what a crash at the later one leaves.
    fn crash_everywhere(
        &mut self,
        start: &Image,
        trace: &Trace,
        already_acked: usize,
        level: usize,
    ) -> Result<(), Box<Failure>> {
        let mut machine = Machine::new(self.explorer.rules, start, trace);
        let (mut acked, mut number) = (already_acked, 0);
        let mut has_news = true;
        for (at, event) in trace.events().iter().enumerate() {
            let is_ack = matches!(event.kind, EventKind::Ack);
            if has_news && (is_ack || machine.commits_at(at)) {
                self.crash_at(&Point { machine: &machine, events: at, acked, level, number })?;
                number += 1;
                has_news = false;
            }
            machine.step(at);
            if is_ack {
                acked += 1;
                self.crash_at(&Point { machine: &machine, events: at + 1, acked, level, number })?;
                number += 1;
            }
            has_news |= event.kind.is_store();
        }
        if has_news {
            self.crash_at(&Point { machine: &machine, events: trace.events().len(), acked, level, number })?;
        }
        Ok(())
    }

    /// Tries the planned choices at one point.
    fn crash_at(&mut self, point: &Point<'_>) -> Result<(), Box<Failure>> {
        let explorer = self.explorer;
        let planned = explorer.replay.as_ref().map(|id| &id.crashes[point.level]);
        if planned.is_some_and(|crash| crash.point != point.number) {
            return Ok(());
        }
        let choices = Choices::of(point.machine);
        let bound = match point.level {
            0 => explorer.choices_per_point,
            _ => explorer.nested_choices_per_point,
        };
        let plan = Plan::new(&choices, bound, explorer.seed);
        let numbers = match planned {
            Some(crash) if crash.choice < plan.len() => crash.choice..crash.choice + 1,
            Some(_) => return Ok(()),
            None => 0..plan.len(),
        };
        let mut distinct = HashSet::new();
        for choice in numbers {
            let mut kept = plan.kept(choice);
            let image = point.machine.image(&mut kept);
            if plan.is_exhaustive() || distinct.insert(image.fingerprint()) {
                self.coverage.level(point.level).tried += 1;
            }
            self.recover(&image, point, plan.crashes_recovery(choice)).map_err(|mut failure| {
                let record = CrashRecord::new(point.machine, point.events, &kept);
                failure.crashes.insert(0, CrashReport::new(record, &choices.all(), None));
                failure.path.insert(0, ReplayCrash { point: point.number, choice });
                failure
            })?;
        }
        let level = self.coverage.level(point.level);
        level.points += 1;
        level.legal = level.legal.saturating_add(plan.legal());
        level.is_exhaustive &= plan.is_exhaustive();
        Ok(())
    }

    /// Runs the check on what a crash left, unless it was run on the same before, then crashes its recovery if
    /// `again` says so.
    fn recover(&mut self, image: &Image, point: &Point<'_>, again: bool) -> Result<(), Box<Failure>> {
        let explorer = self.explorer;
        let crashes_left = match &explorer.replay {
            Some(id) => id.crashes.len() - point.level - 1,
            None if again => explorer.crashes - point.level - 1,
            None => 0,
        };
        let key = (image.fingerprint(), point.acked);
        if self.seen.get(&key).is_some_and(|&tried_inside| tried_inside >= crashes_left) {
            return Ok(());
        }
        self.seen.insert(key, crashes_left);
        self.coverage.level(point.level).recoveries += 1;

        let model = explorer.rules.model;
        let recording = if crashes_left > 0 { Recording::Writes } else { Recording::Nothing };
        let pmem = Arc::new(SimPmem::recorded(image, model, recording, &explorer.edits));
        let crash = Crash::new(Arc::clone(&pmem), &self.acked[..point.acked], point.level + 1);
        let failed = (self.check)(&crash);
        self.coverage.sites.extend(pmem.sites());
        if let Some(complaint) = failed {
            return Err(Box::new(Failure::new(complaint, self.coverage.clone())));
        }
        let trace = pmem.take_trace();
        if trace.events().is_empty() {
            return Ok(());
        }
        self.crash_everywhere(image, &trace, point.acked, point.level + 1)
    }
}

/// What a closure under test complains of, if it does; a panic is a complaint.
pub(super) fn catch(closure: impl FnOnce() -> Option<String>) -> Option<String> {
    // The closure's captures may be left half changed by a panic; the exploration ends there, and only the
    // caller sees them again.
    catch_unwind(AssertUnwindSafe(closure)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Some(text.unwrap_or_else(|| "a panic without a message".to_owned()))
    })
}
