//! One exploration from end to end: record, lint, crash, shrink the failure.

use super::kill::{Kills, Share};
use super::memory::{History, Memory};
use super::run::{Crash, Run, Verdict, catch, inherit_quiet, is_quiet, quietly};
use super::session::{Session, blame};
use super::settings::Settings;
use super::shrink::Shrinker;
use super::subject::{Meter, Restart, Subject};
use crate::image::Image;
use crate::model::{Choices, Machine, Points};
use crate::outcome::{Coverage, Explored, Failure, Origin, ReplayId};
use crate::sim::Recording;
use crate::trace::Trace;
use crate::watchdog::Watched;
use core::ops::Range;
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The number of pieces per job, so that no job waits long for the last piece.
const PIECES_PER_JOB: usize = 4;

/// Runs the operation, explores its record, and shrinks the failure found.
pub(super) fn search<A: Sync, O: Verdict, V: Verdict>(
    settings: &Settings,
    image: &Image,
    operation: &impl Fn(&Run<A>) -> O,
    restart: Option<Restart<'_, A>>,
    check: &(impl Fn(&Crash<'_, A>) -> V + Sync),
) -> Explored<Coverage> {
    let pmem = Arc::new(settings.recorded(image));
    let run = Run::new(Arc::clone(&pmem), Vec::new());
    let failed = catch(|| operation(&run).failure());
    let sites = pmem.sites();
    if let Some(message) = failed {
        let coverage = Coverage { sites: sites.into_iter().collect(), ..Coverage::default() };
        return Err(Box::new(Failure::of_operation(&message, coverage)));
    }
    let trace = pmem.take_trace();
    let acked = run.take_acked();
    let numbers: Vec<usize> = (0..=acked.len()).collect();
    let history = History { acked: &acked, numbers: &numbers };
    let mut explored =
        explore_record(settings, image, &trace, history, &mut Memory::default(), restart, check);
    let coverage = match &mut explored {
        Ok(coverage) => coverage,
        Err(failure) => &mut failure.coverage,
    };
    coverage.sites.extend(sites);
    explored
}

/// Crashes a recorded run everywhere, and shrinks the failure found.
pub(super) fn explore_record<A: Sync, V: Verdict>(
    settings: &Settings,
    image: &Image,
    trace: &Trace,
    history: History<'_, A>,
    memory: &mut Memory,
    restart: Option<Restart<'_, A>>,
    check: &(impl Fn(&Crash<'_, A>) -> V + Sync),
) -> Explored<Coverage> {
    let mut linted = Coverage::default();
    settings.lint(trace, &settings.lints, &mut linted)?;
    let is_quiet = is_quiet();
    let watched = Watched::checks(settings.rules.model.name());
    let complain = |crash: &Crash<'_, A>| {
        let _check = watched.begin();
        let failed = inherit_quiet(is_quiet, || catch(|| check(crash).failure()));
        failed.map(|message| crash.complaint(message))
    };
    let meter = Meter::start(settings.rules.model.name());
    let acked = history.acked;
    let subject =
        Subject { settings, start: image, trace, history, check: &complain, restart, meter: &meter };
    let mut explored = match (&settings.replay, settings.jobs) {
        (Some(id), _) => replay(&subject, memory, id),
        (None, 1) => explore_piece(&subject, memory, 0..usize::MAX, Share::ALL),
        (None, jobs) => explore_in_parallel(&subject, memory, jobs),
    };
    match &mut explored {
        Ok(coverage) => {
            coverage.add(linted);
            coverage.states = memory.states().count();
        }
        Err(failure) => {
            failure.coverage.add(linted);
            // The point in progress is not counted yet; each of its recoveries was from a different choice.
            let Coverage { levels, after_kill, .. } = &mut failure.coverage;
            for level in levels.iter_mut().chain([after_kill]) {
                level.tried = level.tried.max(level.recoveries.into()).min(level.legal);
            }
            failure.origin = Origin::here::<A, _>(check);
            // A failure after a kill has been shrunk already.
            let is_to_shrink = failure.kills.is_empty() && failure.is_to_repeat();
            if settings.shrink && settings.replay.is_none() && is_to_shrink {
                let settings = &Settings { time: settings.time.for_failure(), ..settings.clone() };
                quietly(|| Shrinker::new(settings, acked, &complain).shrink(failure, trace.mark()));
            }
        }
    }
    explored
}

/// Repeats one crash. A run without a crash of that name fails.
fn replay<A>(subject: &Subject<'_, A>, memory: &mut Memory, id: &ReplayId) -> Explored<Coverage> {
    let not_found = |coverage| Box::new(Failure::new(format!("no crash of this run is {id}"), coverage));
    if subject.trace.mark() != id.mark {
        return Err(not_found(Coverage::default()));
    }
    let coverage = explore_piece(subject, memory, 0..usize::MAX, Share::ALL)?;
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

/// Explores on `jobs` threads. A piece is a run of neighbouring points, which have much in common. Of several failures, the first along
/// the run is returned.
fn explore_in_parallel<A: Sync>(
    subject: &Subject<'_, A>,
    memory: &Memory,
    jobs: usize,
) -> Explored<Coverage> {
    let mut walk = Points::of(Machine::new(subject.settings.rules, subject.start, subject.trace));
    let points = core::iter::from_fn(|| walk.next()).count();
    let piece = points.div_ceil(jobs * PIECES_PER_JOB).max(1);
    let pieces = points.div_ceil(piece).max(1);
    let coverages = Mutex::new(BTreeMap::new());
    let fails = |number: usize| {
        let (range, share) = (number * piece..(number + 1) * piece, Share { number, of: pieces });
        let memory = &mut Memory::sharing_states(memory);
        let coverage = match explore_piece(subject, memory, range, share) {
            Ok(coverage) => coverage,
            Err(failure) => return Some(failure),
        };
        coverages.lock().unwrap_or_else(PoisonError::into_inner).insert(number, coverage);
        None
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(jobs).build().expect("threads can be started");
    if let Some(failure) = pool.install(|| (0..pieces).into_par_iter().find_map_first(fails)) {
        return Err(failure);
    }
    let coverages = coverages.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut coverage = Coverage::default();
    coverages.into_values().for_each(|of_piece| coverage.add(of_piece));
    Ok(coverage)
}

/// Crashes the operation's record at the points with these numbers and kills it at its share of the events; or replays the crash that
/// the settings name.
fn explore_piece<A>(
    subject: &Subject<'_, A>,
    memory: &mut Memory,
    points: Range<usize>,
    share: Share,
) -> Explored<Coverage> {
    let most_recoveries = subject.settings.recoveries.div_ceil(share.of as u64);
    let mut session = Session::new(subject, memory, most_recoveries);
    let explored = match &subject.settings.replay {
        Some(id) if !id.kills.is_empty() => Kills(&mut session).replay(&id.kills),
        Some(_) => session.replay(),
        None => {
            let rejected = if share.number == 0 { rejects_untouched(subject) } else { None };
            let crashed = session.crash_in_rounds(points);
            let explored = crashed.and_then(|()| Kills(&mut session).everywhere(share));
            match (explored, rejected) {
                (Err(mut failure), Some(rejected)) => {
                    failure.untouched = rejected.untouched;
                    Err(failure)
                }
                (Ok(()), Some(rejected)) => Err(rejected),
                (explored, None) => explored,
            }
        }
    };
    explored.map_err(|mut failure| {
        let (kills, crashes) = (failure.kills.clone(), failure.path.clone());
        let id = ReplayId { model: subject.settings.rules.model, mark: subject.trace.mark(), kills, crashes };
        failure.replay = Some(id.to_string());
        failure
    })?;
    Ok(session.into_coverage())
}

/// Runs the check on the state before the run, and on the state after it with nothing lost. A crash may leave either; a check that
/// rejects one of them is itself suspect, or the operation is.
fn rejects_untouched<A>(subject: &Subject<'_, A>) -> Option<Box<Failure>> {
    let trace = subject.trace;
    let rejects = |events: usize, when: &'static str| {
        let machine = Machine::at(subject.settings.rules, subject.start, trace, events);
        let choices = Choices::of(&machine);
        let mut kept = choices.all();
        let pmem = subject.settings.recovering(&machine.image(&mut kept), Recording::Nothing);
        // A state found here does not count as seen: nothing is recorded.
        let crash = Crash::new(Arc::new(pmem), &subject.history.acked[..trace.acks(events)], 1);
        let complaint = quietly(|| (subject.check)(&crash))?;
        let failure = Box::new(Failure::new(complaint, Coverage::default()));
        let mut failure = blame(failure, &machine, events, &choices, &kept);
        failure.untouched = Some(when);
        Some(failure)
    };
    let after = || rejects(trace.events().len(), "after the operation, with nothing lost");
    rejects(0, "before the operation").or_else(after)
}
