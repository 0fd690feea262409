//! One exploration at work: run by run, point by point, one recovery inside the other.

use super::crash_report::{CrashRecord, CrashReport};
use super::examined::Examined;
use super::explorer::Explorer;
use super::failure::Failure;
use super::kill::Share;
use super::memory::{History, Memory};
use super::progress::Meter;
use super::replay::{ReplayCrash, ReplayId};
use super::run::Complaint;
use super::{Coverage, Crash, LevelCoverage};
use crate::SimPmem;
use crate::branch::Branches;
use crate::choices::Choices;
use crate::chunk::Chunk;
use crate::image::Image;
use crate::line::PrintSet;
use crate::location::Locations;
use crate::machine::Machine;
use crate::memo::{Memo, Ran};
use crate::sim::Recording;
use crate::trace::{EventKind, Trace};
use core::ops::Range;
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The check, with panics and errors made one.
pub(super) type Check<'s, A> = &'s (dyn Fn(&Crash<'_, A>) -> Option<Complaint> + Sync);

/// What a second process does after these acknowledgements: all acknowledgements by then, and what it complains of.
pub(super) type Restart<'s, A> = &'s (dyn Fn(Arc<SimPmem>, &[A]) -> (Vec<A>, Option<String>) + Sync);

/// A run that is to be crashed, and what is known about it.
pub(super) struct Subject<'s, A> {
    pub(super) explorer: &'s Explorer,
    pub(super) history: History<'s, A>,
    pub(super) check: Check<'s, A>,
    /// What comes after a kill, if that is not the check.
    pub(super) restart: Option<Restart<'s, A>>,
    pub(super) meter: &'s Meter,
}

pub(super) struct Session<'s, A> {
    pub(super) subject: &'s Subject<'s, A>,
    pub(super) memory: &'s mut Memory,
    pub(super) coverage: Coverage,
    /// How many crashes may follow each other, in this pass.
    pub(super) crashes: usize,
    /// The places in the source that recoveries came by, and which of them flushed, and fenced.
    pub(super) places: Arc<Locations>,
    pub(super) exercised: Vec<[bool; 2]>,
    /// The recoveries in which the lints found nothing.
    pub(super) clean: PrintSet,
    /// Whether the recovery at work was not crashed somewhere, because all that a crash there leaves is tried elsewhere
    /// in the visit.
    pub(super) is_covered_elsewhere: bool,
    /// How many recoveries may be run.
    pub(super) most_recoveries: u64,
    /// In a round of few choices at each point, how many.
    pub(super) few: Option<u64>,
    /// In rounds over some of the operation's points: each one with a number that this divides is visited.
    pub(super) every: u64,
    /// What earlier rounds tried, by the number of events before the crash and of acknowledgements.
    pub(super) tried: HashMap<(usize, usize), PrintSet>,
    /// Which contents, after which acknowledgements, were recovered from with faults.
    pub(super) faulted: HashSet<(u128, usize)>,
}

/// Where a run is being crashed.
pub(super) struct Point<'p> {
    pub(super) machine: &'p Machine<'p>,
    /// How many events of the run had happened.
    pub(super) events: usize,
    /// How many operations were acknowledged.
    pub(super) acked: usize,
    /// How many crashes came before this one.
    pub(super) level: usize,
    /// Whether a process was killed before, with no crash until this one.
    pub(super) is_after_kill: bool,
    /// The number of this visit.
    pub(super) visit: u64,
    /// Everything that may survive a crash of the run that this one recovers from, when all of that is tried.
    pub(super) outer: Option<&'p Family<'p>>,
}

/// What may survive at a point of which every choice was tried, its lines in every combination.
pub(super) struct Family<'c> {
    pub(super) branches: Branches<'c>,
    pub(super) outer: Option<&'c Family<'c>>,
}

/// How a recovery went well.
pub(super) struct Recovered {
    /// The lines that it, and the recoveries from crashes inside it, looked at, of those that differ between images.
    pub(super) lines: Vec<u64>,
    /// What is to be remembered of it.
    pub(super) ran: Ran,
}

impl<'s, A> Session<'s, A> {
    pub(super) fn new(subject: &'s Subject<'s, A>, memory: &'s mut Memory) -> Self {
        Self {
            subject,
            memory,
            coverage: Coverage::default(),
            crashes: subject.explorer.crashes,
            places: Arc::default(),
            exercised: Vec::new(),
            clean: PrintSet::default(),
            is_covered_elsewhere: false,
            most_recoveries: u64::MAX,
            few: None,
            every: 1,
            tried: HashMap::new(),
            faulted: HashSet::new(),
        }
    }

    /// Crashes the operation's record at the points with these numbers.
    pub(super) fn explore(
        mut self,
        start: &Image,
        trace: &Trace,
        points: Range<usize>,
        share: Share,
    ) -> Result<Coverage, Box<Failure>> {
        self.places = Arc::clone(trace.places());
        let may_be_faulty = self.subject.explorer.faults.lines(start.len_bytes());
        self.watch(0, trace.lines_stored().chain(may_be_faulty));
        self.crashes = self.subject.explorer.crashes;
        self.most_recoveries = self.subject.explorer.recoveries.div_ceil(share.of as u64);
        let explored = match &self.subject.explorer.replay {
            Some(id) if !id.kills.is_empty() => self.replay_kills(start, trace, &id.kills),
            Some(_) => self.replay_in(start, trace, 0, 0, &mut Examined::default()),
            None => self.explore_all(start, trace, points, share),
        };
        explored.map_err(|mut failure| {
            let model = self.subject.explorer.rules.model;
            let (kills, crashes) = (failure.kills.clone(), failure.path.clone());
            let id = ReplayId { model, mark: trace.mark(), kills, crashes };
            failure.replay = Some(id.to_string());
            failure
        })?;
        Ok(self.coverage)
    }

    /// How many crashes are tried inside of a recovery as thoroughly as they ever will be.
    const fn all_inside(&self, inside: usize) -> usize {
        if self.few.is_some() && inside < usize::MAX { 0 } else { inside }
    }

    /// Whether as many recoveries were run as may be.
    pub(super) fn is_spent(&self) -> bool {
        self.coverage.recoveries() >= self.most_recoveries
    }

    pub(super) fn crash_points(
        &mut self,
        start: &Image,
        trace: &Trace,
        points: Range<usize>,
    ) -> Result<(), Box<Failure>> {
        let mut number = 0;
        let mut examined = Examined::default();
        let machine = Machine::new(self.subject.explorer.rules, start, trace);
        for_each_point(machine, 0, None, |machine, events, acked| {
            let is_wanted = points.contains(&number);
            number += 1;
            match is_wanted {
                true => {
                    let visit = self.visit();
                    let point =
                        Point { machine, events, acked, level: 0, is_after_kill: false, visit, outer: None };
                    self.crash_at(&point, &mut examined)
                }
                false => Ok(()),
            }
        })
    }

    /// Crashes a recovery's record everywhere.
    fn crash_recovery(
        &mut self,
        start: &Image,
        trace: &Trace,
        from: &Point<'_>,
        family: Option<&Family<'_>>,
        examined: &mut Examined,
    ) -> Result<(), Box<Failure>> {
        let level = from.level + 1;
        let differing = Arc::clone(self.memo(from.level).watched());
        self.watch(level, differing.iter().copied().chain(trace.lines_stored()));
        if self.subject.explorer.replay.is_some() {
            return self.replay_in(start, trace, level, from.acked, examined);
        }
        let machine = Machine::new(self.subject.explorer.rules, start, trace);
        // Nothing is lost before the first store.
        let crashed_with = Some(machine.news());
        for_each_point(machine, 0, crashed_with, |machine, events, acked| {
            let (acked, visit) = (from.acked + acked, self.visit());
            let point = Point { machine, events, acked, level, is_after_kill: false, visit, outer: family };
            self.crash_at(&point, examined)
        })
    }

    /// Runs the check on what a crash left, then crashes its recovery `inside` times.
    pub(super) fn recover(
        &mut self,
        image: &Image,
        point: &Point<'_>,
        inside: usize,
        family: Option<&Family<'_>>,
    ) -> Result<Recovered, Box<Failure>> {
        let Subject { explorer, history, check, meter, .. } = self.subject;
        self.covered(point).recoveries += 1;
        meter.count_recovery();
        self.memory.note_recovered(image.fingerprint(), history.numbers[point.acked]);

        let may_be_crashed = point.level + 1 < explorer.crashes;
        let recording = if may_be_crashed { Recording::Writes } else { Recording::Nothing };
        let pmem = SimPmem::recorded(image, explorer.rules.model, recording, &explorer.edits);
        pmem.share_places(&self.places);
        if explorer.reduce || explorer.replay.is_some() {
            pmem.watch(self.memo(point.level).watched());
        }
        pmem.limit(explorer.accesses_per_check, explorer.time_per_check);
        if let Some(touched) = &explorer.touched {
            pmem.report_to(touched);
        }
        let pmem = Arc::new(pmem);
        let crash = Crash::new(Arc::clone(&pmem), &history.acked[..point.acked], point.level + 1);
        let crash = match explorer.replay {
            Some(_) => crash,
            // What few crashes inside showed is not all that this state shows.
            None if self.few.is_some() && inside > 0 => crash,
            None => crash.among(self.memory.states(), history.numbers[point.acked], inside),
        };
        let failed = check(&crash);
        let failed = failed.or_else(|| pmem.took_too_long().map(Complaint::from));
        pmem.new_sites(&mut self.exercised, |site| {
            self.coverage.sites.insert(site);
        });
        if let Some(complaint) = failed {
            return Err(Box::new(Failure::new(complaint, self.coverage.clone())));
        }
        let lines = pmem.take_reads();
        let trace = pmem.take_trace();
        self.places = Arc::clone(trace.places());
        self.lint(&trace)?;
        let mut examined = Examined::from(lines);
        self.recover_from_faults(image, point, &mut examined)?;
        let mut is_covered_elsewhere = false;
        // A recovery that stored nothing left what it found: there is nothing to crash, however often.
        let stored_nothing = trace.lines_stored().next().is_none();
        let inside = if may_be_crashed && stored_nothing { usize::MAX } else { inside };
        if inside > 0 && !stored_nothing {
            let mut within = Examined::default();
            let covered_before = core::mem::take(&mut self.is_covered_elsewhere);
            self.crash_recovery(image, &trace, point, family, &mut within)?;
            is_covered_elsewhere = self.is_covered_elsewhere;
            self.is_covered_elsewhere |= covered_before;
            let watched = self.memo(point.level).watched();
            examined.extend(within.into_lines().into_iter().filter(|line| watched.contains(line)));
        }
        let lines = examined.into_lines();
        let ran =
            Ran { inside: self.all_inside(inside), only_in: is_covered_elsewhere.then_some(point.visit) };
        Ok(Recovered { lines, ran })
    }

    /// Lints a recovery, unless it did just what another one did in which nothing was found.
    pub(super) fn lint(&mut self, trace: &Trace) -> Result<(), Box<Failure>> {
        let explorer = self.subject.explorer;
        let lints = explorer.lints.in_recovery();
        if !lints.is_any_on() {
            return Ok(());
        }
        let fingerprint = trace.fingerprint();
        if self.clean.contains(&fingerprint) {
            return Ok(());
        }
        if explorer.lint(trace, &lints, &mut self.coverage)? == 0 {
            self.clean.insert(fingerprint);
        }
        Ok(())
    }

    /// Adds to a failure the crash that led to it.
    pub(super) fn blame(
        mut failure: Box<Failure>,
        point: &Point<'_>,
        choices: &Choices,
        kept: &[Chunk],
    ) -> Box<Failure> {
        let record = CrashRecord::new(point.machine, point.events, kept);
        failure.crashes.insert(0, CrashReport::new(record, &choices.all(), None));
        let position = point.machine.trace().position(point.events);
        failure.path.insert(0, ReplayCrash::new(choices, position, kept));
        failure
    }

    pub(super) fn memo(&mut self, level: usize) -> &mut Memo {
        self.memory.memo(level)
    }

    /// A number for the next visit of a point.
    pub(super) const fn visit(&mut self) -> u64 {
        self.memory.visits.begin()
    }

    /// What was tried at points like this one.
    pub(super) fn covered(&mut self, point: &Point<'_>) -> &mut LevelCoverage {
        if point.is_after_kill { &mut self.coverage.after_kill } else { self.coverage.level(point.level) }
    }

    pub(super) fn watch(&mut self, level: usize, lines: impl Iterator<Item = u64>) {
        self.memo(level).watch(lines);
    }
}

/// How many points there are at which to crash a run.
pub(super) fn count_points(explorer: &Explorer, start: &Image, trace: &Trace) -> usize {
    let mut count = 0;
    let counted = for_each_point(Machine::new(explorer.rules, start, trace), 0, None, |_, _, _| {
        count += 1;
        Ok::<(), core::convert::Infallible>(())
    });
    match counted {
        Ok(()) => count,
        Err(never) => match never {},
    }
}

/// Replays a record from the event on that is to come next in the machine, and stops at each point where a crash can show something
/// new, with the number of events and of acknowledgements until then. What a crash between two points leaves is among what a crash
/// at the later one leaves.
pub(super) fn for_each_point<E>(
    mut machine: Machine<'_>,
    from: usize,
    mut crashed_with: Option<u64>,
    mut crash: impl FnMut(&Machine<'_>, usize, usize) -> Result<(), E>,
) -> Result<(), E> {
    let trace = machine.trace();
    let mut acked = trace.acks(from);
    for (at, event) in trace.events().iter().enumerate().skip(from) {
        let is_ack = matches!(event.kind, EventKind::Ack);
        let has_news = crashed_with != Some(machine.news());
        if has_news && (is_ack || machine.commits_at(at)) {
            crash(&machine, at, acked)?;
            crashed_with = Some(machine.news());
        }
        machine.step(at);
        if is_ack {
            acked += 1;
            crash(&machine, at + 1, acked)?;
        }
    }
    match crashed_with == Some(machine.news()) {
        true => Ok(()),
        false => crash(&machine, trace.events().len(), acked),
    }
}

/// What a closure under test complains of, if it does; a panic is a complaint.
pub(crate) fn catch(closure: impl FnOnce() -> Option<String>) -> Option<String> {
    // The closure's captures may be left half changed by a panic; the exploration ends there, and only the
    // caller sees them again.
    catch_unwind(AssertUnwindSafe(closure)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Some(text.unwrap_or_else(|| "a panic without a message".to_owned()))
    })
}
