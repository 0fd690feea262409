//! Before all else: does the check accept what no crash has touched?

use super::failure::Failure;
use super::quiet::quietly;
use super::session::{Point, Session};
use super::{Crash, Explorer};
use crate::SimPmem;
use crate::choices::Choices;
use crate::image::Image;
use crate::machine::Machine;
use crate::sim::Recording;
use crate::trace::Trace;
use std::sync::Arc;

impl<A> Session<'_, A> {
    /// Runs the check on what was there before the run, and on what was there after it with nothing lost. Each is what a
    /// crash may leave, but if the check rejects one of them, it is the check, or the operation, that is to be looked at first.
    pub(super) fn rejects_untouched(&mut self, start: &Image, trace: &Trace) -> Option<Box<Failure>> {
        let mut machine = Machine::new(self.subject.explorer.rules, start, trace);
        let all = trace.events().len();
        let before = self.rejects(&machine, 0, "before the operation");
        before.or_else(|| {
            (0..all).for_each(|at| machine.step(at));
            self.rejects(&machine, all, "after the operation, with nothing lost")
        })
    }

    fn rejects(&mut self, machine: &Machine<'_>, events: usize, when: &'static str) -> Option<Box<Failure>> {
        let (acked, visit) = (machine.trace().acks(events), self.visit());
        let point = Point { machine, events, acked, level: 0, is_after_kill: false, visit, outer: None };
        let choices = Choices::of(machine);
        let mut kept = choices.all();
        let image = machine.image(&mut kept);
        let Explorer { rules, edits, .. } = self.subject.explorer;
        let pmem = SimPmem::recorded(&image, rules.model, Recording::Nothing, edits);
        pmem.limit(self.subject.explorer.accesses_per_check, self.subject.explorer.time_per_check);
        if let Some(touched) = &self.subject.explorer.touched {
            pmem.report_to(touched);
        }
        // A state found here is none that was looked at: nothing is recorded.
        let crash = Crash::new(Arc::new(pmem), &self.subject.history.acked[..acked], 1);
        let complaint = quietly(|| (self.subject.check)(&crash))?;
        let failure = Box::new(Failure::new(complaint, self.coverage.clone()));
        let mut failure = Self::blame(failure, &point, &choices, &kept);
        failure.untouched = Some(when);
        Some(failure)
    }
}
