//! The explorer's side: each schedule's record crashed everywhere, and what was recovered from remembered for the next.

use super::record::{AHEAD, Record, Report};
use super::report::{ScheduleCoverage, ScheduleFailure};
use crate::explore::{History, Memory, catch};
use crate::{Coverage, Crash, Explorer, Failure, Image, Verdict};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::mpsc::{SyncSender, sync_channel};

/// Lets `run_all` run on a thread of its own, and explores what it records.
///
/// A panic of it is the operation's, or the scheduler's about the operation.
pub(super) fn explore<A: Clone + Eq + Hash + Send + Sync, V: Verdict>(
    explorer: &Explorer,
    image: &Image,
    check: impl Fn(&Crash<'_, A>) -> V + Sync,
    run_all: impl FnOnce(SyncSender<Report<A>>) + Send,
) -> Result<ScheduleCoverage, Box<ScheduleFailure>> {
    assert!(!explorer.is_replay(), "the name of a crash says nothing without its schedule");
    std::thread::scope(|scope| {
        let (reports, received) = sync_channel(AHEAD);
        scope.spawn(move || {
            let ended = catch(|| {
                run_all(reports.clone());
                None
            });
            // Said, because a scheduler that panics may have leaked its threads, and the sender with them. An
            // exploration that failed does not listen any more.
            drop(reports.send(Report::Ended(ended)));
        });
        let mut exploration = Exploration::new(explorer, image);
        for report in received {
            match report {
                Report::Schedule(record) => exploration.take(*record, &check)?,
                Report::Ended(None) => break,
                Report::Ended(Some(message)) => return Err(exploration.failed(&message)),
            }
        }
        Ok(exploration.coverage)
    })
}

struct Exploration<'e, A> {
    explorer: &'e Explorer,
    image: &'e Image,
    memory: Memory,
    /// By the number of a history, 0 for the empty one, and what was acknowledged next: the number of the longer one.
    longer_histories: HashMap<(usize, A), usize>,
    coverage: ScheduleCoverage,
}

impl<'e, A: Clone + Eq + Hash + Sync> Exploration<'e, A> {
    fn new(explorer: &'e Explorer, image: &'e Image) -> Self {
        let (memory, longer_histories) = (Memory::default(), HashMap::new());
        Self { explorer, image, memory, longer_histories, coverage: ScheduleCoverage::default() }
    }

    fn take<V: Verdict>(
        &mut self,
        record: Record<A>,
        check: impl Fn(&Crash<'_, A>) -> V + Sync,
    ) -> Result<(), Box<ScheduleFailure>> {
        if let Some(message) = record.failed {
            return Err(self.failed(&message));
        }
        self.coverage.schedules += 1;
        self.coverage.crashes.sites.extend(record.sites);
        let numbers = self.numbers(&record.acked);
        let history = History { acked: &record.acked, numbers: &numbers };
        let memory = &mut self.memory;
        let before = Coverage::default();
        let explored =
            self.explorer.explore_record(self.image, &record.trace, history, memory, check, before);
        self.coverage.images = self.memory.images();
        match explored {
            Ok(coverage) => {
                self.coverage.crashes.add(coverage);
                Ok(())
            }
            Err(mut failure) => {
                // The name of a crash says nothing without the schedule.
                failure.replay = None;
                let schedule = self.coverage.schedules;
                Err(Box::new(ScheduleFailure { schedule, failure, coverage: self.coverage.clone() }))
            }
        }
    }

    /// For each count of the acknowledgements, the number that stands for just these.
    fn numbers(&mut self, acked: &[A]) -> Vec<usize> {
        let mut numbers = vec![0];
        for what in acked {
            let next = self.longer_histories.len() + 1;
            let longer = (numbers[numbers.len() - 1], what.clone());
            numbers.push(*self.longer_histories.entry(longer).or_insert(next));
        }
        numbers
    }

    /// The operation failed, without a crash, in the schedule after those explored.
    fn failed(&self, message: &str) -> Box<ScheduleFailure> {
        let message = format!("the operation itself failed: {message}");
        let failure = Box::new(Failure::new(message, self.coverage.crashes.clone()));
        let coverage = self.coverage.clone();
        Box::new(ScheduleFailure { schedule: coverage.schedules + 1, failure, coverage })
    }
}
