//! Explores the crashes of each schedule's record, and remembers recoveries for the next schedules.
//!
//! The scheduler runs and records the operation on its own thread; the exploration receives the records.

use crate::explore::{History, Memory, catch};
use crate::sim::Scheduler;
use crate::trace::Trace;
use crate::watchdog::Watched;
use crate::{Coverage, Crash, Explorer, Failure, Image, Run, Site, Verdict};
use core::fmt;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

/// What the watchdog says of an operation that does not return: all threads of a scheduler are one of the system, which such a lock blocks.
const WATCHED: &str =
    "an operation (perhaps it holds a lock of std, not of the scheduler, over an access to the region)";

/// The number of schedules that may run ahead of their exploration.
const AHEAD: usize = 1024;

/// The coverage of an exploration of schedules and crashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScheduleCoverage {
    /// The number of schedules.
    pub schedules: u64,
    /// The number of different images, after different acknowledgements, recovered from.
    pub images: u64,
    /// Whether these were all the schedules that the scheduler tells apart.
    pub is_complete: bool,
    /// The crashes, over all schedules.
    pub crashes: Coverage,
}

/// A schedule and a crash of it whose recovery failed.
///
/// It has no repair, unlike other [failures](crate::Explorer::repair): another flush or fence makes other schedules.
///
/// The schedules come in the same order in every run: to repeat the failure, run the test again.
///
/// `Debug` prints the same as `Display`, so that `unwrap` in a test prints the report.
#[derive(Clone)]
#[non_exhaustive]
pub struct ScheduleFailure {
    /// The number of the schedule, counted from 1.
    pub schedule: u64,
    /// The crash, and the message of the check. The record of the first crash has the events of the threads.
    pub failure: Box<Failure>,
    /// The coverage up to the failure.
    pub coverage: ScheduleCoverage,
}

impl fmt::Display for ScheduleCoverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { schedules, images, is_complete, crashes } = self;
        let all = if *is_complete { "all" } else { "some" };
        write!(f, "{schedules} schedules, {all} there are, {images} images; {crashes}")
    }
}

impl fmt::Display for ScheduleFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "schedule {}: {}", self.schedule, self.failure)?;
        let Some(crash) = self.failure.crashes.first() else { return Ok(()) };
        write!(f, "\n  (of schedules, no repair is looked for)")?;
        let (trace, happened) = (crash.record.trace(), crash.record.events());
        for of_thread in trace.events()[..happened].chunk_by(|a, b| a.thread == b.thread) {
            write!(f, "\n  thread {}:", of_thread[0].thread)?;
            for event in of_thread {
                write!(f, "\n    {} at {}", event.kind.name(), trace.location(event.location))?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for ScheduleFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl core::error::Error for ScheduleFailure {}

/// Runs `run_all` on its own thread, which runs the recorder under each schedule, and explores the records.
///
/// A panic of it is the operation's, or the scheduler's about the operation.
pub(super) fn explore<A: Clone + Eq + Hash + Send + Sync, F: Send, V: Verdict>(
    explorer: &Explorer,
    image: &Image,
    operation: F,
    check: impl Fn(&Crash<'_, A>) -> V + Sync,
    run_all: impl FnOnce(Recorder<A, F>) + Send,
) -> Result<ScheduleCoverage, Box<ScheduleFailure>> {
    assert!(!explorer.is_replay(), "the name of a crash is meaningless without its schedule");
    let explorer = &explorer.begun();
    std::thread::scope(|scope| {
        let (reports, received) = sync_channel(AHEAD);
        scope.spawn(move || {
            let (explorer, image) = (explorer.clone(), image.clone());
            let ended = catch(|| {
                run_all(Recorder {
                    explorer,
                    image,
                    operation,
                    reports: reports.clone(),
                    watched: Watched::new("schedules", WATCHED),
                });
                None
            });
            // Sent, because a scheduler that panics may have leaked its threads, and the sender with them. An
            // exploration that failed does not receive any more.
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

/// The record of the operation under one schedule.
struct Record<A> {
    trace: Trace,
    acked: Vec<A>,
    sites: Vec<Site>,
    /// The complaint of the operation.
    failed: Option<String>,
}

/// A message of the scheduler's thread to the explorer's.
enum Report<A> {
    Schedule(Box<Record<A>>),
    /// After the last schedule; or after a panic, with its message.
    Ended(Option<String>),
}

/// Runs the operation under each schedule. It belongs to the scheduler's thread, and may outlive the exploration there.
pub(super) struct Recorder<A, F> {
    explorer: Explorer,
    image: Image,
    operation: F,
    reports: SyncSender<Report<A>>,
    watched: Watched,
}

/// The exploration has ended, and no more schedules are needed.
pub(super) struct Enough;

impl<A, F> Recorder<A, F> {
    /// Runs the operation once, under the current schedule.
    pub(super) fn run<O: Verdict>(&self, scheduler: Scheduler) -> Result<(), Enough>
    where
        F: Fn(&Arc<Run<A>>) -> O,
    {
        let pmem = Arc::new(self.explorer.recorded(&self.image).scheduled_by(scheduler));
        let run = Arc::new(Run::new(Arc::clone(&pmem), Vec::new()));
        let watched = self.watched.begin();
        let failed = (self.operation)(&run).failure();
        drop(watched);
        let (acked, sites, trace) = (run.take_acked(), pmem.sites(), pmem.take_trace());
        let record = Record { trace, acked, sites, failed };
        self.reports.send(Report::Schedule(Box::new(record))).map_err(|_| Enough)
    }
}

struct Exploration<'e, A> {
    explorer: &'e Explorer,
    image: &'e Image,
    memory: Memory,
    /// By the number of a history, 0 for the empty one, and the next acknowledgement: the number of the longer history.
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
        check: &(impl Fn(&Crash<'_, A>) -> V + Sync),
    ) -> Result<(), Box<ScheduleFailure>> {
        if let Some(message) = record.failed {
            return Err(self.failed(&message));
        }
        self.coverage.schedules += 1;
        self.coverage.crashes.sites.extend(record.sites);
        let numbers = self.numbers(&record.acked);
        let history = History { acked: &record.acked, numbers: &numbers };
        let memory = &mut self.memory;
        let explored = self.explorer.explore_record(self.image, &record.trace, history, memory, check);
        self.coverage.images = self.memory.images();
        match explored {
            Ok(coverage) => {
                self.coverage.crashes.add(coverage);
                Ok(())
            }
            Err(mut failure) => {
                // The name of a crash is meaningless without the schedule.
                failure.replay = None;
                let schedule = self.coverage.schedules;
                Err(Box::new(ScheduleFailure { schedule, failure, coverage: self.coverage.clone() }))
            }
        }
    }

    /// The number of each prefix of the acknowledgements.
    fn numbers(&mut self, acked: &[A]) -> Vec<usize> {
        let mut numbers = vec![0];
        for what in acked {
            let next = self.longer_histories.len() + 1;
            let longer = (numbers[numbers.len() - 1], what.clone());
            numbers.push(*self.longer_histories.entry(longer).or_insert(next));
        }
        numbers
    }

    /// The operation failed without a crash, in the schedule after the explored ones.
    fn failed(&self, message: &str) -> Box<ScheduleFailure> {
        let failure = Box::new(Failure::of_operation(message, self.coverage.crashes.clone()));
        let coverage = self.coverage.clone();
        Box::new(ScheduleFailure { schedule: coverage.schedules + 1, failure, coverage })
    }
}
