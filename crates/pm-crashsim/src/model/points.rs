//! The points of a run at which a crash can leave something new.

use super::choices::Choices;
use super::chunk::Chunk;
use super::machine::Machine;
use crate::trace::EventKind;
use std::collections::HashSet;

/// A point of a run at which the [`Explorer`](crate::Explorer) crashes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CrashPoint {
    /// The number of events before it.
    pub events: usize,
    /// The number of acknowledged operations.
    pub acked: usize,
    /// The number of lines with pending stores.
    pub pending_lines: usize,
    /// The number of pending words of stores, or pieces of words, over all lines.
    pub pending_words: usize,
    /// The number of legal choices of survivors; `u128::MAX` when there are more than that.
    pub legal: u128,
}

impl CrashPoint {
    pub(crate) fn of(machine: &Machine<'_>, events: usize, acked: usize) -> Self {
        let choices = Choices::of(machine);
        let lines: HashSet<u64> = choices.all().iter().map(Chunk::line).collect();
        Self {
            events,
            acked,
            pending_lines: lines.len(),
            pending_words: choices.pending(),
            legal: choices.count(),
        }
    }
}

/// A walk along a record, with stops right before each event that makes something durable for certain, before and after each
/// acknowledgement, and at the end. The images of a crash between two stops are among those of the later stop.
pub(crate) struct Points<'t> {
    machine: Machine<'t>,
    /// The next event.
    at: usize,
    acked: usize,
    /// The machine's news at the last stop.
    crashed_with: Option<u64>,
}

impl<'t> Points<'t> {
    /// The whole record.
    pub(crate) fn of(machine: Machine<'t>) -> Self {
        Self { machine, at: 0, acked: 0, crashed_with: None }
    }

    /// The points at which more is pending than now, from event `at` on, which is the machine's next.
    pub(crate) fn after(machine: Machine<'t>, at: usize) -> Self {
        let (acked, crashed_with) = (machine.trace().acks(at), Some(machine.news()));
        Self { machine, at, acked, crashed_with }
    }

    /// The state at the stop.
    pub(crate) const fn machine(&self) -> &Machine<'t> {
        &self.machine
    }

    /// The next stop: the number of events before it, and how many of them are acknowledgements.
    pub(crate) fn next(&mut self) -> Option<(usize, usize)> {
        while let Some(event) = self.machine.trace().events().get(self.at) {
            let is_ack = matches!(event.kind, EventKind::Ack);
            if self.has_news() && (is_ack || self.machine.commits_at(self.at)) {
                return Some(self.stop());
            }
            self.machine.step(self.at);
            self.at += 1;
            if is_ack {
                self.acked += 1;
                return Some((self.at, self.acked));
            }
        }
        self.has_news().then(|| self.stop())
    }

    fn has_news(&self) -> bool {
        self.crashed_with != Some(self.machine.news())
    }

    fn stop(&mut self) -> (usize, usize) {
        self.crashed_with = Some(self.machine.news());
        (self.at, self.acked)
    }
}
