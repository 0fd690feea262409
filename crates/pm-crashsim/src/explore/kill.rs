//! Kills of processes: the next process sees all stores, and durable is what was durable before.

use super::memory::History;
use super::run::{Crash, quietly};
use super::session::Session;
use super::shrink::Shrinker;
use super::subject::Subject;
use crate::image::Image;
use crate::line::{LineList, LineMap, LineSet, fingerprint, fingerprint_of, lines};
use crate::model::{Choices, Chunk, Machine};
use crate::outcome::{Complaint, CrashRecord, CrashReport, Explored, Failure, Moment};
use crate::sim::Recording;
use crate::trace::{EventKind, Trace};
use std::sync::Arc;

/// The kills of a session.
pub(super) struct Kills<'k, 's, A>(pub(super) &'k mut Session<'s, A>);

/// The share of the kills of a run that a session tries: number `number` modulo `of`.
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
    /// The number of events before the kill.
    events: usize,
    /// The number of acknowledgements before the kill.
    acked: usize,
}

/// A process that ran after a kill.
struct Process<A> {
    /// The run until the kill, the kill, and the run of this process.
    trace: Trace,
    /// The lines that it read.
    reads: LineList,
    /// All acknowledgements until its end, if it can acknowledge.
    acked: Option<Vec<A>>,
}

/// What to do with a process that ran after a kill.
#[derive(Clone, Copy)]
enum Then<'t> {
    /// Crash it everywhere, and kill it up to `kills` times more.
    Explore { kills: usize },
    /// Kill it at these positions, and then crash it as the explorer's settings name.
    Replay(&'t [usize]),
}

impl<A> Kills<'_, '_, A> {
    /// Kills the operation before each of its events and at its end, wherever that leaves another state; likewise the processes that
    /// follow, up to the number of kills in the settings.
    pub(super) fn everywhere(&mut self, share: Share) -> Explored<()> {
        let Subject { settings, start, trace, .. } = *self.0.subject;
        self.kill_from(start, trace, 0, settings.kills, share, &mut LineList::default())
    }

    /// Kills the run after the first number of events, loads not counted, the next process likewise, and crashes the last one as the settings name.
    pub(super) fn replay(&mut self, kills: &[usize]) -> Explored<()> {
        // An exploration that skips all else counts as one.
        self.0.gathered.coverage.level(0);
        let Subject { start, trace, .. } = *self.0.subject;
        self.replay_kill(start, trace, kills, &mut LineList::default())
    }

    /// Kills the run before each event from number `from` on, and at its end, wherever that leaves another state; and the
    /// processes that follow, until `kills` were killed.
    fn kill_from(
        &mut self,
        start: &Image,
        trace: &Trace,
        from: usize,
        kills: usize,
        share: Share,
        examined: &mut LineList,
    ) -> Explored<()> {
        if kills == 0 || trace.events().is_empty() {
            return Ok(());
        }
        let mut machine = Machine::new(self.0.subject.settings.rules, start, trace);
        let mut stored = LineSet::default();
        let mut last: Option<(KillState, usize, LineList)> = None;
        let (mut acked, mut number, mut may_differ) = (0, 0, true);
        for at in 0..=trace.events().len() {
            if at >= from && may_differ {
                let state = KillState::of(&machine.killed(at), &stored);
                let history = self.0.subject.history.numbers[acked];
                if self.0.memory.is_new_kill(state.fingerprint, history, kills) {
                    let is_of_share = number % share.of == share.number;
                    number += 1;
                    let is_like = |(before, after, looked): &(KillState, usize, LineList)| {
                        *after == acked && !state.differs_in(before, looked)
                    };
                    let is_known = self.0.subject.settings.reduce && last.as_ref().is_some_and(is_like);
                    let is_tried = is_of_share && !is_known && !self.0.is_spent();
                    let covered = &mut self.0.gathered.coverage.kills;
                    covered.legal += u64::from(is_of_share);
                    covered.tried += u64::from(is_tried || (is_of_share && is_known));
                    if is_tried {
                        let kill = Kill { machine: &machine, events: at, acked };
                        let mut looked = LineList::default();
                        self.kill_at(kill, Then::Explore { kills: kills - 1 }, &mut looked)?;
                        examined.extend(&looked);
                        last = Some((state, acked, looked));
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

    fn replay_kill(
        &mut self,
        start: &Image,
        trace: &Trace,
        kills: &[usize],
        examined: &mut LineList,
    ) -> Explored<()> {
        let Some((&position, rest)) = kills.split_first() else {
            return self.0.replay_in(start, trace, 0, 0, examined);
        };
        let Some(events) = trace.events_at(position).filter(|_| !trace.events().is_empty()) else {
            return Ok(());
        };
        let machine = Machine::at(self.0.subject.settings.rules, start, trace, events);
        self.0.gathered.coverage.kills.legal += 1;
        self.0.gathered.coverage.kills.tried += 1;
        let kill = Kill { machine: &machine, events, acked: trace.acks(events) };
        self.kill_at(kill, Then::Replay(rest), examined)
    }

    /// Kills the run there, runs the next process and continues with it.
    fn kill_at(&mut self, kill: Kill<'_>, then: Then<'_>, examined: &mut LineList) -> Explored<()> {
        let tried = self.run_after(kill).and_then(|process| {
            examined.extend(&process.reads);
            let Some(acked) = &process.acked else {
                return self.crash_after(kill, &process.trace, then, examined);
            };
            // Another process may acknowledge something else after the same acknowledgements: a history of its own.
            let mut numbers = self.0.subject.history.numbers[..=kill.acked].to_vec();
            numbers.extend((kill.acked..acked.len()).map(|_| self.0.memory.states().fresh_history()));
            let history = History { acked, numbers: &numbers };
            let subject = Subject { history, ..*self.0.subject };
            let mut session = self.0.going_on(&subject);
            let explored = Kills(&mut session).crash_after(kill, &process.trace, then, examined);
            self.0.gathered = session.gathered;
            explored
        });
        tried.map_err(|mut failure| {
            failure.kills.insert(0, kill.machine.trace().position(kill.events));
            failure
        })
    }

    /// Runs the process after the kill: the check, unless the subject has another one.
    fn run_after(&mut self, kill: Kill<'_>) -> Explored<Process<A>> {
        let Subject { history, check, restart, meter, .. } = self.0.subject;
        self.0.gathered.coverage.kills.processes += 1;
        meter.count_recovery();
        let visible = kill.machine.image(&mut Choices::of(kill.machine).all());
        let pmem = self.0.region(&visible, 0, Recording::Writes);
        let before = &history.acked[..kill.acked];
        let (acked, failed) = match restart {
            None => (None, check(&Crash::new(Arc::clone(&pmem), before, 0))),
            Some(restart) => {
                let (acked, failed) = restart(Arc::clone(&pmem), before);
                (Some(acked), failed.map(Complaint::from))
            }
        };
        let failed = failed.or_else(|| pmem.took_too_long().map(Complaint::from));
        let (reads, of_process) = self.0.harvest(&pmem);
        let mut trace = kill.machine.trace().killed(kill.events);
        if let Some(complaint) = failed {
            return Err(self.failed_after(kill, trace, complaint));
        }
        self.0.lint(&of_process)?;
        trace.extend(&of_process);
        Ok(Process { trace, reads, acked })
    }

    /// The failure of the process after the kill, without a crash.
    fn failed_after(&self, kill: Kill<'_>, killed: Trace, complaint: Complaint) -> Box<Failure> {
        let mut failure = Box::new(Failure::new(complaint, self.0.gathered.coverage.clone()));
        let mut machine = kill.machine.on(&killed);
        machine.step(kill.events);
        // A crash that loses nothing leaves what is visible.
        let pending = Choices::of(&machine).all();
        let kept = pending.iter().map(Chunk::as_survivor).collect();
        let (rules, start) = (*machine.rules(), machine.start().clone());
        let record = CrashRecord::from_parts(rules, start, killed.clone(), kill.events + 1, kept);
        let mut report = CrashReport::new(record, &pending, None);
        report.moment = Moment::killed(kill.machine.trace(), kill.events);
        failure.crashes.push(report);
        failure
    }

    /// Crashes a process that ran after a kill, everywhere or as the settings name.
    fn crash_after(
        &mut self,
        kill: Kill<'_>,
        trace: &Trace,
        then: Then<'_>,
        examined: &mut LineList,
    ) -> Explored<()> {
        self.0.memo(0).watch(trace.lines_stored());
        let (start, from) = (kill.machine.start(), kill.events + 1);
        let kills = match then {
            Then::Explore { kills } => kills,
            Then::Replay(rest) => return self.replay_kill(start, trace, rest, examined),
        };
        let mut machine = kill.machine.on(trace);
        machine.step(kill.events);
        self.0.crash_after_kill(machine, from, examined).map_err(|mut failure| {
            let Subject { settings, history, check, .. } = self.0.subject;
            if settings.shrink && settings.replay.is_none() && failure.is_to_repeat() {
                let shrinker = Shrinker::new(settings, history.acked, *check);
                quietly(|| shrinker.shrink(&mut failure, trace.mark()));
            }
            failure
        })?;
        self.kill_from(start, trace, from, kills, Share::ALL, examined)
    }
}

/// The state that a kill leaves, as fingerprints. Unfenced flushes and the threads of the stores make no difference.
struct KillState {
    /// Of lines that differ from the start.
    lines: LineMap<u128>,
    /// Of all lines.
    fingerprint: u128,
}

impl KillState {
    /// Of a machine at a kill that differs from the start in the lines `stored` at most.
    fn of(machine: &Machine<'_>, stored: &LineSet) -> Self {
        let mut pending: LineMap<Vec<(Chunk, u64)>> = LineMap::default();
        for chunks in machine.write_back() {
            // In a unit that is longer than a line, the order spans lines.
            let reaches = chunks.iter().any(|chunk| chunk.line() != chunks[0].line());
            let unit = if reaches { short(fingerprint_of(words(chunks.iter()))) | 1 } else { 1 };
            chunks.iter().for_each(|chunk| pending.entry(chunk.line()).or_default().push((*chunk, unit)));
        }
        for chunk in machine.non_temporal().flatten() {
            pending.entry(chunk.line()).or_default().push((*chunk, 0));
        }
        let mut lines = LineMap::default();
        for &line in stored {
            let durable = machine.durable_line(line);
            let mut chunks = pending.remove(&line).unwrap_or_default();
            if chunks.is_empty() && durable == machine.start().line(line) {
                continue;
            }
            chunks.sort_by_key(|(chunk, _)| (chunk.event, chunk.word, chunk.first_byte));
            let of_durable = fingerprint(line, durable);
            let units = chunks.iter().map(|&(_, unit)| unit);
            let all = [short(of_durable), short(of_durable >> 64)].into_iter();
            let all = all.chain(units).chain(words(chunks.iter().map(|(chunk, _)| chunk)));
            lines.insert(line, fingerprint_of(core::iter::once(line).chain(all)));
        }
        let fingerprint = lines.values().fold(0, |sum, of_line| sum ^ of_line);
        Self { lines, fingerprint }
    }

    /// Whether the two states differ in any of these lines.
    fn differs_in(&self, other: &Self, lines: &LineList) -> bool {
        lines.iter().any(|line| self.lines.get(line) != other.lines.get(line))
    }
}

/// Words that identify chunks and their order. Chunks are distinguished by event, but not by the numbers of the events.
fn words<'c>(chunks: impl Iterator<Item = &'c Chunk>) -> impl Iterator<Item = u64> {
    let mut before = None;
    chunks.flat_map(move |chunk| {
        let is_of_same = before.replace(chunk.event) == Some(chunk.event);
        let shape = u64::from(chunk.mask) << 16 | u64::from(chunk.first_byte) << 8;
        let shape = shape | u64::from(chunk.in_pair) << 1 | u64::from(is_of_same);
        [chunk.word, shape, u64::from_le_bytes(chunk.value)]
    })
}

#[expect(clippy::cast_possible_truncation, reason = "half of a fingerprint is wanted")]
const fn short(print: u128) -> u64 {
    print as u64
}
