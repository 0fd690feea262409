//! One schedule, run and recorded, on its way from the scheduler's thread to the explorer's.

use super::switch::Scheduler;
use crate::trace::Trace;
use crate::{Explorer, Image, Run, SimPmem, Site, Verdict};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

/// How many schedules may be run ahead of their exploration.
pub(super) const AHEAD: usize = 1024;

/// What one schedule made of the operation.
pub(super) struct Record<A> {
    pub(super) trace: Trace,
    pub(super) acked: Vec<A>,
    pub(super) sites: Vec<Site>,
    /// What the operation complained of.
    pub(super) failed: Option<String>,
}

/// What the explorer's thread hears of the scheduler's.
pub(super) enum Report<A> {
    Schedule(Box<Record<A>>),
    /// The last one was run; or there was a panic, with this message.
    Ended(Option<String>),
}

/// Runs the operation under each schedule. Belongs to the scheduler's thread, and outlives its caller there.
pub(super) struct Recorder<A, F> {
    pub(super) explorer: Explorer,
    pub(super) image: Image,
    pub(super) operation: F,
    pub(super) reports: SyncSender<Report<A>>,
}

/// Nobody wants to know of more schedules.
pub(super) struct Enough;

impl<A, F> Recorder<A, F> {
    /// Runs the operation once, under the schedule that the scheduler has begun.
    pub(super) fn run<O: Verdict>(&self, scheduler: Scheduler) -> Result<(), Enough>
    where
        F: Fn(&Arc<Run<A>>) -> O,
    {
        let pmem = Arc::new(self.explorer.recorded(&self.image).scheduled_by(scheduler));
        let run = Arc::new(Run::new(Arc::clone(&pmem)));
        let failed = (self.operation)(&run).failure();
        let (acked, sites, trace) = (run.take_acked(), pmem.sites(), SimPmem::take_trace(&pmem));
        let record = Record { trace, acked, sites, failed };
        self.reports.send(Report::Schedule(Box::new(record))).map_err(|_| Enough)
    }
}
