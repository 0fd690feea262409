//! The search at work: run by run, point by point, each recovery inside the one before.

use super::branches::{Branches, LineOption};
use super::memory::{Known, Memo, Memory, NodeId, Ran};
use super::plan::{Plan, Round, rounds};
use super::run::Crash;
use super::subject::Subject;
use crate::faults::{Fault, apply};
use crate::image::Image;
use crate::line::{LineList, PrintSet};
use crate::location::Locations;
use crate::model::{Choices, Chunk, Machine, Points};
use crate::outcome::{
    Complaint, Coverage, CrashRecord, CrashReport, Explored, Failure, LevelCoverage, ReplayCrash,
};
use crate::sim::{Recording, SimPmem};
use crate::trace::Trace;
use core::ops::Range;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

/// How often known paths may be walked, as a multiple of the bound: a walk costs little, but not nothing.
const WALKS_PER_RUN: u64 = 64;

pub(super) struct Session<'s, A> {
    pub(super) subject: &'s Subject<'s, A>,
    pub(super) memory: &'s mut Memory,
    pub(super) gathered: Gathered,
    round: Round,
    /// Whether the current recovery was not crashed at some point, because the visit tries all images of a crash there elsewhere.
    is_covered_elsewhere: bool,
    /// The bound on recoveries.
    most_recoveries: u64,
    /// The images that earlier rounds tried, by the number of events before the crash and of acknowledgements.
    tried: HashMap<(usize, usize), PrintSet>,
}

/// Results gathered from all runs of a session, and from sessions that continue it after a kill.
#[derive(Default)]
pub(super) struct Gathered {
    pub(super) coverage: Coverage,
    /// The places in the source of recoveries, and which of them flushed and fenced.
    places: Arc<Locations>,
    exercised: Vec<[bool; 2]>,
    /// Fingerprints of recoveries without findings.
    clean: PrintSet,
    /// The contents recovered from with faults, by history.
    faulted: HashSet<(u128, usize)>,
}

/// A point of a run at which it is crashed.
struct Point<'p> {
    machine: &'p Machine<'p>,
    /// Events of the run before the crash.
    events: usize,
    acked: usize,
    /// The number of earlier crashes.
    level: usize,
    /// Whether a process was killed before, and this is the first crash since.
    is_after_kill: bool,
    visit: u64,
    /// The images of the crash that this run recovers from, if all of them are tried.
    outer: Option<&'p Family<'p>>,
}

/// The images of a point of which every choice was tried, its lines in every combination.
struct Family<'c> {
    branches: Branches<'c>,
    outer: Option<&'c Family<'c>>,
}

/// A successful recovery.
struct Recovered {
    /// The lines that it, and the recoveries from crashes inside it, read, of those that differ between images.
    lines: LineList,
    /// For the decision tree.
    ran: Ran,
}

/// One visit of a point.
struct Search<'s> {
    point: &'s Point<'s>,
    choices: &'s Choices,
    /// The bound on recoveries.
    budget: u64,
    distinct: &'s mut PrintSet,
    examined: &'s mut LineList,
}

/// A line that was read, and the contents still to be tried for it.
struct Frame {
    node: NodeId,
    options: Rc<[LineOption]>,
    next: usize,
    /// The length of the path and the number of choices when it was read.
    path_len: usize,
    depth: usize,
}

impl<'s, A> Session<'s, A> {
    pub(super) fn new(subject: &'s Subject<'s, A>, memory: &'s mut Memory, most_recoveries: u64) -> Self {
        let may_be_faulty = subject.settings.faults.lines(subject.start.len_bytes());
        memory.memo(0).watch(subject.trace.lines_stored().chain(may_be_faulty));
        Self {
            subject,
            memory,
            gathered: Gathered { places: Arc::clone(subject.trace.places()), ..Gathered::default() },
            round: Round { crashes: subject.settings.crashes, few: None, every: 1 },
            is_covered_elsewhere: false,
            most_recoveries,
            tried: HashMap::new(),
        }
    }

    /// A session on another subject, which continues with what this one gathered. The caller takes that back at the end.
    pub(super) fn going_on<'n>(&'n mut self, subject: &'n Subject<'n, A>) -> Session<'n, A> {
        Session {
            subject,
            memory: &mut *self.memory,
            gathered: core::mem::take(&mut self.gathered),
            round: self.round,
            is_covered_elsewhere: false,
            most_recoveries: self.most_recoveries,
            tried: HashMap::new(),
        }
    }

    pub(super) fn into_coverage(self) -> Coverage {
        let mut coverage = self.gathered.coverage;
        // The time may have been up when all had been tried.
        coverage.is_out_of_time &= !coverage.is_exhaustive();
        coverage
    }

    /// Visits all points with a few telling choices before it tries more anywhere, and crashes once everywhere before it crashes again inside, so
    /// that a failure is found soon, and with as few crashes as possible. Later rounds do not repeat what earlier ones learnt. If recoveries are
    /// bounded, it first visits points at even distances, so that the bound does not leave out the end of the run.
    pub(super) fn crash_in_rounds(&mut self, points: Range<usize>) -> Explored<()> {
        for round in rounds(self.subject.settings, self.most_recoveries < u64::MAX) {
            self.round = round;
            self.gathered.coverage.begin_again();
            self.crash_points(points.clone())?;
            if self.is_spent() {
                break;
            }
        }
        self.round = Round { few: None, every: 1, ..self.round };
        Ok(())
    }

    /// Crashes the run as the settings name, if it has such a crash.
    pub(super) fn replay(&mut self) -> Explored<()> {
        let Subject { start, trace, .. } = *self.subject;
        self.replay_in(start, trace, 0, 0, &mut LineList::default())
    }

    /// Crashes a process that ran after a kill everywhere, from event `at` on, which is the machine's next.
    pub(super) fn crash_after_kill(
        &mut self,
        machine: Machine<'_>,
        at: usize,
        examined: &mut LineList,
    ) -> Explored<()> {
        // A crash right after the kill leaves what one before it leaves.
        let mut walk = Points::after(machine, at);
        while let Some((events, acked)) = walk.next() {
            let visit = self.visit();
            let machine = walk.machine();
            let point = Point { machine, events, acked, level: 0, is_after_kill: true, visit, outer: None };
            self.crash_at(&point, examined)?;
        }
        Ok(())
    }

    /// Whether the bound on recoveries is reached, or the time is up.
    pub(super) fn is_spent(&mut self) -> bool {
        let coverage = &mut self.gathered.coverage;
        coverage.is_out_of_time |= self.subject.settings.time.is_spent();
        coverage.is_out_of_time || coverage.recoveries() >= self.most_recoveries
    }

    /// A region for the check, which notes its reads of lines that differ between images.
    pub(super) fn region(&mut self, image: &Image, level: usize, recording: Recording) -> Arc<SimPmem> {
        let settings = self.subject.settings;
        let pmem = settings.recovering(image, recording);
        pmem.share_places(&self.gathered.places);
        if settings.reduce || settings.replay.is_some() {
            pmem.watch(self.memo(level).watched());
        }
        Arc::new(pmem)
    }

    /// Takes out the reads and the record of a run, and notes the sites that it exercised.
    pub(super) fn harvest(&mut self, pmem: &SimPmem) -> (LineList, Trace) {
        let Gathered { coverage, places, exercised, .. } = &mut self.gathered;
        pmem.new_sites(exercised, |site| {
            coverage.sites.insert(site);
        });
        let (reads, trace) = (pmem.take_reads(), pmem.take_trace());
        *places = Arc::clone(trace.places());
        (reads, trace)
    }

    /// Lints a recovery, unless one with the same record had no findings.
    pub(super) fn lint(&mut self, trace: &Trace) -> Explored<()> {
        let settings = self.subject.settings;
        let lints = settings.lints.in_recovery();
        if !lints.is_any_on() {
            return Ok(());
        }
        let fingerprint = trace.fingerprint();
        if self.gathered.clean.contains(&fingerprint) {
            return Ok(());
        }
        if settings.lint(trace, &lints, &mut self.gathered.coverage)? == 0 {
            self.gathered.clean.insert(fingerprint);
        }
        Ok(())
    }

    /// Crashes the operation's record at the points with these numbers.
    fn crash_points(&mut self, points: Range<usize>) -> Explored<()> {
        let Subject { settings, start, trace, .. } = *self.subject;
        let mut examined = LineList::default();
        let mut walk = Points::of(Machine::new(settings.rules, start, trace));
        let mut number = 0;
        while let Some((events, acked)) = walk.next() {
            if points.contains(&number) {
                let visit = self.visit();
                let machine = walk.machine();
                let point =
                    Point { machine, events, acked, level: 0, is_after_kill: false, visit, outer: None };
                self.crash_at(&point, &mut examined)?;
            }
            number += 1;
        }
        Ok(())
    }

    /// Crashes a recovery's record everywhere.
    fn crash_recovery(
        &mut self,
        start: &Image,
        trace: &Trace,
        from: &Point<'_>,
        family: Option<&Family<'_>>,
        examined: &mut LineList,
    ) -> Explored<()> {
        let level = from.level + 1;
        let differing = Arc::clone(self.memo(from.level).watched());
        self.memo(level).watch(differing.iter().copied().chain(trace.lines_stored()));
        if self.subject.settings.replay.is_some() {
            return self.replay_in(start, trace, level, from.acked, examined);
        }
        // Nothing is lost before the first store.
        let mut walk = Points::after(Machine::new(self.subject.settings.rules, start, trace), 0);
        while let Some((events, acked)) = walk.next() {
            let (acked, visit) = (from.acked + acked, self.visit());
            let machine = walk.machine();
            let point = Point { machine, events, acked, level, is_after_kill: false, visit, outer: family };
            self.crash_at(&point, examined)?;
        }
        Ok(())
    }

    /// Crashes the run as the settings name. A run without such a crash stays uncrashed.
    pub(super) fn replay_in(
        &mut self,
        start: &Image,
        trace: &Trace,
        level: usize,
        already_acked: usize,
        examined: &mut LineList,
    ) -> Explored<()> {
        let settings = self.subject.settings;
        let crashes = settings.replay.as_ref().map_or(&[][..], |id| &id.crashes);
        let Some((crash, events)) =
            crashes.get(level).and_then(|crash| Some((crash, trace.events_at(crash.position)?)))
        else {
            return Ok(());
        };
        let machine = Machine::at(settings.rules, start, trace, events);
        let choices = Choices::of(&machine);
        let Some(mut kept) = crash.kept(&choices) else {
            return Ok(());
        };
        let (acked, visit) = (already_acked + trace.acks(events), self.visit());
        let is_after_kill = level == 0 && settings.replay.as_ref().is_some_and(|id| !id.kills.is_empty());
        let point = Point { machine: &machine, events, acked, level, is_after_kill, visit, outer: None };
        let tried = self.covered(&point);
        tried.points += 1;
        tried.legal += 1;
        tried.tried += 1;
        let image = machine.image(&mut kept);
        let recovered = self.recover(&image, &point, crashes.len() - level - 1, None);
        let recovered = recovered.map_err(|failure| blame(failure, &machine, events, &choices, &kept))?;
        examined.extend(&recovered.lines);
        Ok(())
    }

    /// Tries the choices at one point: all, if their number, or the number of different recoveries, is within the
    /// bound; else as many as the bound allows.
    fn crash_at(&mut self, point: &Point<'_>, examined: &mut LineList) -> Explored<()> {
        let settings = self.subject.settings;
        let choices = Choices::of(point.machine);
        let bound = match point.level {
            0 => settings.choices_per_point,
            _ => settings.nested_choices_per_point,
        };
        let legal = choices.count();
        let is_of_operation = point.level == 0 && !point.is_after_kill;
        let every = self.round.every;
        let level = self.covered(point);
        let is_passed_over = is_of_operation && !level.points.is_multiple_of(every);
        level.points += 1;
        level.legal = level.legal.saturating_add(legal);

        if is_passed_over || self.is_spent() {
            return self.leave_out(point);
        }
        let mut distinct = self.tried_before(point);
        if let Some(few) = self.round.few {
            return self.sample(point, &choices, bound.min(few), examined, &mut distinct);
        }
        if settings.reduce {
            let mut branches = Branches::new(point.machine, &choices);
            if self.is_covered(point, &branches) {
                let level = self.covered(point);
                level.tried = level.tried.saturating_add(legal);
                self.is_covered_elsewhere = true;
                // For lines it stored to, its images were found covered; other lines hold what it found.
                examined.extend(point.machine.trace().lines_stored());
                return Ok(());
            }
            let budget = if legal <= u128::from(bound) { bound } else { bound.div_ceil(2) };
            let mut search = Search { point, choices: &choices, budget, distinct: &mut distinct, examined };
            // First without crashes of the recoveries: known results need not be tried inside them.
            let mut is_done = self.branch(&mut search, &mut branches, 0, None)?;
            let inside = self.crashes_left(point);
            if is_done && inside > 0 {
                let family = Family { branches, outer: point.outer };
                let mut branches = Branches::new(point.machine, &choices);
                is_done = self.branch(&mut search, &mut branches, inside, Some(&family))?;
            }
            if is_done {
                self.memory.visits.all_tried(point.visit, point.outer.is_some());
                let level = self.covered(point);
                level.tried = level.tried.saturating_add(legal);
                return Ok(());
            }
            self.memory.visits.some_tried(point.visit);
        }
        self.sample(point, &choices, bound, examined, &mut distinct)
    }

    /// The bound on recoveries is reached, or the round passes over the point: only what earlier rounds tried here counts.
    fn leave_out(&mut self, point: &Point<'_>) -> Explored<()> {
        let tried = self.tried_before(point).len() as u128;
        let level = self.covered(point);
        level.tried = level.tried.saturating_add(tried);
        level.is_exhaustive = false;
        Ok(())
    }

    /// The images that earlier rounds tried at a point of the operation, taken out.
    fn tried_before(&mut self, point: &Point<'_>) -> PrintSet {
        let is_of_operation = point.level == 0 && !point.is_after_kill;
        let before = is_of_operation.then(|| self.tried.remove(&(point.events, point.acked)));
        before.flatten().unwrap_or_default()
    }

    /// Whether every image of this point is also an image of the crash that this recovery recovers from, and so was tried.
    fn is_covered(&mut self, point: &Point<'_>, branches: &Branches<'_>) -> bool {
        let Some(nearest) = point.outer else {
            return false;
        };
        // The contents that the recovery found are an image of that crash, so only lines that it stored to can differ.
        let mut stored: Vec<u64> = point.machine.trace().lines_stored().collect();
        stored.sort_unstable();
        stored.dedup();
        if nearest.branches.include(branches, stored.into_iter()) {
            return true;
        }
        let watched = Arc::clone(self.memo(point.level).watched());
        let farther = core::iter::successors(nearest.outer, |family| family.outer);
        let mut farther = farther.take(self.subject.settings.crashes);
        farther.any(|family| family.branches.include(branches, watched.iter().copied()))
    }

    /// Follows the reads of recovery, tries every content of each line read, and crashes each recovery `inside` times.
    /// Returns whether all were tried; false if that would take more than `budget` recoveries.
    fn branch(
        &mut self,
        search: &mut Search<'_>,
        branches: &mut Branches<'_>,
        inside: usize,
        family: Option<&Family<'_>>,
    ) -> Explored<bool> {
        let Search { point, choices, budget, .. } = *search;
        let history = self.subject.history.numbers[point.acked];
        let mut node = self.memo(point.level).root(history as u64);
        let (mut path, mut frames) = (Vec::new(), Vec::<Frame>::new());
        let (mut runs, mut walks) = (0, 0);
        let may_be_too_many = choices.count() > u128::from(budget);
        loop {
            match self.memo(point.level).known(node) {
                Known::Reads(line) => {
                    path.push(line);
                    search.examined.insert(line);
                    let Ok(options) = branches.options(line) else {
                        return Ok(false);
                    };
                    let Some(options) = options else {
                        let content = branches.durable_line(line);
                        node = self.memo(point.level).child(node, content);
                        continue;
                    };
                    let (path_len, depth) = (path.len(), branches.depth());
                    frames.push(Frame { node, options, next: 0, path_len, depth });
                }
                Known::Ran(ran) if ran.suffices(inside, point.visit, &self.memory.visits) => {
                    walks += 1;
                    if may_be_too_many {
                        search.distinct.insert(point.machine.image(&mut branches.kept()).fingerprint());
                    }
                    if walks > budget.saturating_mul(WALKS_PER_RUN) {
                        return Ok(false);
                    }
                }
                Known::Ran(_) | Known::Nothing => {
                    if runs == budget || self.is_spent() || self.memo(point.level).is_full() {
                        return Ok(false);
                    }
                    runs += 1;
                    let mut kept = branches.kept();
                    let image = point.machine.image(&mut kept);
                    search.distinct.insert(image.fingerprint());
                    let recovered = self.recover(&image, point, inside, family);
                    let Recovered { lines, ran } = recovered
                        .map_err(|failure| blame(failure, point.machine, point.events, choices, &kept))?;
                    self.memo(point.level).insert(node, &path, &lines, &image, ran);
                    continue;
                }
            }
            // Continue with the next content of the last line that has one left.
            loop {
                let Some(frame) = frames.last_mut() else {
                    return Ok(true);
                };
                branches.undo_to(frame.depth);
                path.truncate(frame.path_len);
                let Some(option) = frame.options.get(frame.next) else {
                    frames.pop();
                    continue;
                };
                frame.next += 1;
                branches.choose(option);
                node = self.memo(point.level).child(frame.node, &option.content);
                break;
            }
        }
    }

    /// Tries the choices of a plan.
    fn sample(
        &mut self,
        point: &Point<'_>,
        choices: &Choices,
        bound: u64,
        examined: &mut LineList,
        distinct: &mut PrintSet,
    ) -> Explored<()> {
        let plan = Plan::new(choices, bound, self.subject.settings.seed);
        let mut kept = Vec::new();
        let (mut is_cut_short, mut done) = (false, 0_u64);
        for choice in 0..plan.len() {
            is_cut_short = self.is_spent();
            if is_cut_short {
                break;
            }
            kept.clear();
            plan.keep(choice, &mut kept);
            let image = point.machine.image(&mut kept);
            if !plan.is_exhaustive() || self.most_recoveries < u64::MAX {
                distinct.insert(image.fingerprint());
            }
            let inside = if plan.crashes_recovery(choice) { self.crashes_left(point) } else { 0 };
            let tried = self.recover_once(&image, point, inside, examined);
            tried.map_err(|failure| blame(failure, point.machine, point.events, choices, &kept))?;
            done += 1;
        }
        let is_exhaustive = plan.is_exhaustive() && !is_cut_short;
        // The choices of an exhaustive plan differ.
        let tried = match plan.is_exhaustive() {
            true if !is_cut_short => plan.legal(),
            true => u128::from(done).max(distinct.len() as u128),
            false => distinct.len() as u128,
        };
        if point.level == 0 && !point.is_after_kill {
            self.tried.insert((point.events, point.acked), core::mem::take(distinct));
        }
        let level = self.covered(point);
        level.tried = level.tried.saturating_add(tried);
        level.is_exhaustive &= is_exhaustive;
        Ok(())
    }

    /// Recovers from an image, unless the outcome is known.
    fn recover_once(
        &mut self,
        image: &Image,
        point: &Point<'_>,
        inside: usize,
        examined: &mut LineList,
    ) -> Explored<()> {
        let history = self.subject.history.numbers[point.acked];
        if !self.subject.settings.reduce {
            let is_new = self.memory.is_new(image.fingerprint(), history, inside);
            return if is_new { self.recover(image, point, inside, None).map(|_| ()) } else { Ok(()) };
        }
        let mut path = Vec::new();
        let mut node = self.memo(point.level).root(history as u64);
        loop {
            match self.memo(point.level).known(node) {
                Known::Reads(line) => {
                    path.push(line);
                    node = self.memo(point.level).child(node, image.line(line));
                }
                Known::Ran(ran) if ran.suffices(inside, point.visit, &self.memory.visits) => break,
                Known::Ran(_) | Known::Nothing => {
                    let Recovered { lines, ran } = self.recover(image, point, inside, None)?;
                    if !self.memo(point.level).is_full() {
                        self.memo(point.level).insert(node, &path, &lines, image, ran);
                    }
                    path.extend(&lines);
                    break;
                }
            }
        }
        examined.extend(path);
        Ok(())
    }

    /// Runs the check on the image of a crash, then crashes its recovery `inside` times.
    fn recover(
        &mut self,
        image: &Image,
        point: &Point<'_>,
        inside: usize,
        family: Option<&Family<'_>>,
    ) -> Explored<Recovered> {
        let Subject { settings, history, check, meter, .. } = self.subject;
        self.covered(point).recoveries += 1;
        meter.count_recovery();
        self.memory.note_recovered(image.fingerprint(), history.numbers[point.acked]);

        let may_be_crashed = point.level + 1 < settings.crashes;
        let recording = if may_be_crashed { Recording::Writes } else { Recording::Nothing };
        let pmem = self.region(image, point.level, recording);
        let crash = Crash::new(Arc::clone(&pmem), &history.acked[..point.acked], point.level + 1);
        let crash = match settings.replay {
            Some(_) => crash,
            // A few crashes inside do not show everything about this state.
            None if self.round.few.is_some() && inside > 0 => crash,
            None => crash.among(self.memory.states(), history.numbers[point.acked], inside),
        };
        let failed = check(&crash);
        let failed = failed.or_else(|| pmem.took_too_long().map(Complaint::from));
        let (mut examined, trace) = self.harvest(&pmem);
        if let Some(complaint) = failed {
            return Err(Box::new(Failure::new(complaint, self.gathered.coverage.clone())));
        }
        self.lint(&trace)?;
        self.recover_from_faults(image, point, &mut examined)?;
        let mut is_covered_elsewhere = false;
        // A recovery that stored nothing has nothing to crash, at any depth.
        let stored_nothing = trace.lines_stored().next().is_none();
        let inside = if may_be_crashed && stored_nothing { usize::MAX } else { inside };
        if inside > 0 && !stored_nothing {
            let mut within = LineList::default();
            let covered_before = core::mem::take(&mut self.is_covered_elsewhere);
            self.crash_recovery(image, &trace, point, family, &mut within)?;
            is_covered_elsewhere = self.is_covered_elsewhere;
            self.is_covered_elsewhere |= covered_before;
            let watched = self.memo(point.level).watched();
            examined.extend(within.iter().filter(|line| watched.contains(*line)));
        }
        // With few choices at each point, the crashes inside are not final.
        let thoroughly = if self.round.few.is_some() && inside < usize::MAX { 0 } else { inside };
        let ran = Ran { inside: thoroughly, only_in: is_covered_elsewhere.then_some(point.visit) };
        Ok(Recovered { lines: examined, ran })
    }

    /// Runs the check on the image with faults, after it ran without. Adds the lines that it reads then: images that are alike without
    /// faults may differ with them.
    fn recover_from_faults(
        &mut self,
        image: &Image,
        point: &Point<'_>,
        examined: &mut LineList,
    ) -> Explored<()> {
        let settings = self.subject.settings;
        let history = self.subject.history.numbers[point.acked];
        let is_wanted = point.level == 0 && settings.faults.are_any();
        if !is_wanted || !self.gathered.faulted.insert((image.fingerprint(), history)) {
            return Ok(());
        }
        let plan = settings.faults.plan(image.len_bytes(), settings.seed);
        let covered = &mut self.gathered.coverage.faults;
        covered.images += 1;
        covered.legal = covered.legal.saturating_add(plan.legal());
        covered.tried = covered.tried.saturating_add(plan.len() as u128);
        let read = examined.clone();
        let is_read = |fault: &Fault| read.contains(&fault.line());
        for faults in plan.sets().filter(|faults| !settings.reduce || faults.iter().any(is_read)) {
            self.recover_from(image, point, &faults, examined)?;
        }
        Ok(())
    }

    fn recover_from(
        &mut self,
        image: &Image,
        point: &Point<'_>,
        faults: &[Fault],
        examined: &mut LineList,
    ) -> Explored<()> {
        let subject = self.subject;
        self.gathered.coverage.faults.recoveries += 1;
        subject.meter.count_recovery();
        let pmem = self.region(&apply(image, faults), point.level, Recording::Nothing);
        let crash = Crash::new(Arc::clone(&pmem), &subject.history.acked[..point.acked], point.level + 1);
        let failed = (subject.check)(&crash.with_faults(faults));
        examined.extend(&pmem.take_reads());
        failed.map_or(Ok(()), |mut complaint| {
            let names: Vec<String> = faults.iter().map(Fault::to_string).collect();
            complaint.message = format!("with {}: {}", names.join(", "), complaint.message);
            let mut failure = Box::new(Failure::new(complaint, self.gathered.coverage.clone()));
            failure.faults = faults.to_vec();
            Err(failure)
        })
    }

    /// The number of crashes that may follow one at this point.
    fn crashes_left(&self, point: &Point<'_>) -> usize {
        self.round.crashes - point.level - 1
    }

    pub(super) fn memo(&mut self, level: usize) -> &mut Memo {
        self.memory.memo(level)
    }

    const fn visit(&mut self) -> u64 {
        self.memory.visits.begin()
    }

    /// The coverage of points like this one.
    fn covered(&mut self, point: &Point<'_>) -> &mut LevelCoverage {
        let coverage = &mut self.gathered.coverage;
        if point.is_after_kill { &mut coverage.after_kill } else { coverage.level(point.level) }
    }
}

/// Adds the crash that led to a failure.
pub(super) fn blame(
    mut failure: Box<Failure>,
    machine: &Machine<'_>,
    events: usize,
    choices: &Choices,
    kept: &[Chunk],
) -> Box<Failure> {
    let record = CrashRecord::new(machine, events, kept);
    failure.crashes.insert(0, CrashReport::new(record, &choices.all(), None));
    failure.path.insert(0, ReplayCrash::new(choices, machine.trace().position(events), kept));
    failure
}
