//! Killing processes: the next one sees all that was stored, and durable is what was durable before.

use super::crash_report::{CrashRecord, CrashReport, Moment};
use super::examined::Examined;
use super::failure::Failure;
use super::kill_state::KillState;
use super::memory::History;
use super::run::Complaint;
use super::session::{Point, Session, Subject, for_each_point};
use super::shrink::Shrinker;
use super::{Crash, quiet};
use crate::SimPmem;
use crate::choices::Choices;
use crate::chunk::Chunk;
use crate::image::Image;
use crate::line::{LineSet, lines};
use crate::machine::Machine;
use crate::sim::Recording;
use crate::trace::{EventKind, Trace};
use std::sync::Arc;

/// Which of the kills of a run a session tries: every so many.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) number: usize,
    pub(super) of: usize,
}

impl Share {
    pub(super) const ALL: Self = Self { number: 0, of: 1 };
}

/// Where a process is killed.
#[derive(Clone, Copy)]
struct Kill<'k> {
    machine: &'k Machine<'k>,
    /// How many events had happened.
    events: usize,
    /// How many operations were acknowledged.
    acked: usize,
}

/// A process that was run after a kill.
struct Process<A> {
    /// What was done until the kill, the kill, and what this process did.
    trace: Trace,
    /// The lines that it looked at.
    reads: Vec<u64>,
    /// All that was acknowledged until its end, if it can acknowledge anything.
    acked: Option<Vec<A>>,
}

/// What is to be done with a process that came after a kill.
#[derive(Clone, Copy)]
enum Then<'t> {
    /// Crash it everywhere, and kill it so many more times.
    Explore { kills: usize },
    /// Kill it where these say, and then crash it where the explorer does.
    Replay(&'t [usize]),
}

impl<A> Session<'_, A> {
    /// Kills the run before each event from number `from` on, and at its end, wherever that leaves another state; and the
    /// processes that come after, until there were `kills` of them.
    pub(super) fn kill_everywhere(
        &mut self,
        start: &Image,
        trace: &Trace,
        from: usize,
        kills: usize,
        share: Share,
    ) -> Result<(), Box<Failure>> {
        self.kill_from(start, trace, from, kills, share, &mut Examined::default())
    }

    fn kill_from(
        &mut self,
        start: &Image,
        trace: &Trace,
        from: usize,
        kills: usize,
        share: Share,
        examined: &mut Examined,
    ) -> Result<(), Box<Failure>> {
        if kills == 0 || trace.events().is_empty() {
            return Ok(());
        }
        let mut machine = Machine::new(self.subject.explorer.rules, start, trace);
        let mut stored = LineSet::default();
        let mut last: Option<(KillState, usize, LineSet)> = None;
        let (mut acked, mut number, mut may_differ) = (0, 0, true);
        for at in 0..=trace.events().len() {
            if at >= from && may_differ {
                let state = KillState::of(&machine.killed(at), &stored);
                let history = self.subject.history.numbers[acked];
                if self.memory.is_new_kill(state.fingerprint, history, kills) {
                    number += 1;
                    if (number - 1) % share.of == share.number {
                        self.coverage.kills.legal += 1;
                        let is_like = |(before, after, looked): &(KillState, usize, LineSet)| {
                            *after == acked && !state.differs_in(before, looked)
                        };
                        let is_known = self.subject.explorer.reduce && last.as_ref().is_some_and(is_like);
                        self.coverage.kills.tried += u64::from(is_known || !self.is_spent());
                        if !is_known && !self.is_spent() {
                            let kill = Kill { machine: &machine, events: at, acked };
                            let mut looked = Examined::default();
                            self.kill_at(kill, Then::Explore { kills: kills - 1 }, &mut looked)?;
                            examined.extend(looked.lines().iter().copied());
                            last = Some((state, acked, looked.into_lines().into_iter().collect()));
                        }
                    }
                }
            }
            let Some(event) = trace.events().get(at) else { break };
            may_differ =
                event.kind.is_store() || matches!(event.kind, EventKind::Ack) || machine.commits_at(at);
            machine.step(at);
            acked += usize::from(matches!(event.kind, EventKind::Ack));
            if let Some((offset, len_bytes)) = event.kind.extent().filter(|_| event.kind.is_store()) {
                stored.extend(lines(offset, len_bytes));
            }
        }
        Ok(())
    }

    /// Kills the run after so many events without loads, the next process likewise, and crashes the last one where the name
    /// of the crash says.
    pub(super) fn replay_kills(
        &mut self,
        start: &Image,
        trace: &Trace,
        kills: &[usize],
    ) -> Result<(), Box<Failure>> {
        // An exploration that skips all else counts as one.
        self.coverage.level(0);
        self.replay_kill(start, trace, kills, &mut Examined::default())
    }

    fn replay_kill(
        &mut self,
        start: &Image,
        trace: &Trace,
        kills: &[usize],
        examined: &mut Examined,
    ) -> Result<(), Box<Failure>> {
        let Some((&position, rest)) = kills.split_first() else {
            return self.replay_in(start, trace, 0, 0, examined);
        };
        let Some(events) = trace.events_at(position).filter(|_| !trace.events().is_empty()) else {
            return Ok(());
        };
        let mut machine = Machine::new(self.subject.explorer.rules, start, trace);
        (0..events).for_each(|event| machine.step(event));
        self.coverage.kills.legal += 1;
        self.coverage.kills.tried += 1;
        let kill = Kill { machine: &machine, events, acked: trace.acks(events) };
        self.kill_at(kill, Then::Replay(rest), examined)
    }

    /// Kills the run there, runs the next process, and does with it what is to be done.
    fn kill_at(
        &mut self,
        kill: Kill<'_>,
        then: Then<'_>,
        examined: &mut Examined,
    ) -> Result<(), Box<Failure>> {
        let tried = self.run_after(kill).and_then(|process| {
            examined.extend(process.reads.iter().copied());
            let Some(acked) = &process.acked else {
                return self.crash_after(kill, &process.trace, then, examined);
            };
            // What was acknowledged after the kill is not known to have been acknowledged by another process, too.
            let mut numbers = self.subject.history.numbers[..=kill.acked].to_vec();
            numbers.extend((kill.acked..acked.len()).map(|_| self.memory.states().fresh_history()));
            let history = History { acked, numbers: &numbers };
            let subject = Subject { history, ..*self.subject };
            let mut session = Session::new(&subject, &mut *self.memory);
            (session.crashes, session.most_recoveries) = (self.crashes, self.most_recoveries);
            session.coverage = core::mem::take(&mut self.coverage);
            session.places = Arc::clone(&self.places);
            session.exercised = core::mem::take(&mut self.exercised);
            session.clean = core::mem::take(&mut self.clean);
            session.faulted = core::mem::take(&mut self.faulted);
            let explored = session.crash_after(kill, &process.trace, then, examined);
            let Session { coverage, places, exercised, clean, faulted, .. } = session;
            self.coverage = coverage;
            (self.places, self.exercised, self.clean, self.faulted) = (places, exercised, clean, faulted);
            explored
        });
        tried.map_err(|mut failure| {
            failure.kills.insert(0, kill.machine.trace().position(kill.events));
            failure
        })
    }

    /// Runs the process that comes after the kill: the check, unless there is another one.
    fn run_after(&mut self, kill: Kill<'_>) -> Result<Process<A>, Box<Failure>> {
        let Subject { explorer, history, check, restart, meter } = self.subject;
        self.coverage.kills.processes += 1;
        meter.count_recovery();
        let visible = kill.machine.image(&mut Choices::of(kill.machine).all());
        let pmem = SimPmem::recorded(&visible, explorer.rules.model, Recording::Writes, &explorer.edits);
        pmem.share_places(&self.places);
        pmem.watch(self.memo(0).watched());
        pmem.limit(explorer.accesses_per_check, explorer.time_per_check);
        if let Some(touched) = &explorer.touched {
            pmem.report_to(touched);
        }
        let pmem = Arc::new(pmem);
        let before = &history.acked[..kill.acked];
        let (acked, failed) = match restart {
            None => (None, check(&Crash::new(Arc::clone(&pmem), before, 0))),
            Some(restart) => {
                let (acked, failed) = restart(Arc::clone(&pmem), before);
                (Some(acked), failed.map(Complaint::from))
            }
        };
        let failed = failed.or_else(|| pmem.took_too_long().map(Complaint::from));
        pmem.new_sites(&mut self.exercised, |site| {
            self.coverage.sites.insert(site);
        });
        let (reads, of_process) = (pmem.take_reads(), pmem.take_trace());
        self.places = Arc::clone(of_process.places());
        let mut trace = kill.machine.trace().killed(kill.events);
        if let Some(complaint) = failed {
            return Err(self.failed_after(kill, trace, complaint));
        }
        self.lint(&of_process)?;
        trace.extend(&of_process);
        Ok(Process { trace, reads, acked })
    }

    /// The process that came after the kill failed, with no crash.
    fn failed_after(&self, kill: Kill<'_>, killed: Trace, complaint: Complaint) -> Box<Failure> {
        let mut failure = Box::new(Failure::new(complaint, self.coverage.clone()));
        let mut machine = kill.machine.on(&killed);
        machine.step(kill.events);
        // What is visible is what a crash leaves that loses nothing.
        let pending = Choices::of(&machine).all();
        let kept = pending.iter().map(Chunk::as_survivor).collect();
        let (rules, start) = (*machine.rules(), machine.start().clone());
        let record = CrashRecord::from_parts(rules, start, killed.clone(), kill.events + 1, kept);
        let mut report = CrashReport::new(record, &pending, None);
        report.moment = Moment::killed(kill.machine.trace(), kill.events);
        failure.crashes.push(report);
        failure
    }

    /// Crashes a process that came after a kill, everywhere or where the name of a crash says.
    fn crash_after(
        &mut self,
        kill: Kill<'_>,
        trace: &Trace,
        then: Then<'_>,
        examined: &mut Examined,
    ) -> Result<(), Box<Failure>> {
        self.watch(0, trace.lines_stored());
        let (start, from) = (kill.machine.start(), kill.events + 1);
        let kills = match then {
            Then::Explore { kills } => kills,
            Then::Replay(rest) => return self.replay_kill(start, trace, rest, examined),
        };
        let mut machine = kill.machine.on(trace);
        machine.step(kill.events);
        // What a crash right after the kill leaves is what one before it leaves.
        let crashed_with = Some(machine.news());
        let crashed = for_each_point(machine, from, crashed_with, |machine, events, acked| {
            let visit = self.visit();
            let point = Point { machine, events, acked, level: 0, is_after_kill: true, visit, outer: None };
            self.crash_at(&point, examined)
        });
        crashed.map_err(|mut failure| {
            let Subject { explorer, history, check, .. } = self.subject;
            if explorer.shrink && explorer.replay.is_none() && failure.is_to_repeat() {
                let acked = history.acked;
                quiet::quietly(|| Shrinker::new(explorer, acked, check).shrink(&mut failure, trace.mark()));
            }
            failure
        })?;
        self.kill_from(start, trace, from, kills, Share::ALL, examined)
    }
}
