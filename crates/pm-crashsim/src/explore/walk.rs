//! Walking along a trace: where a crash can leave something new, and how much is open there.

use super::session::for_each_point;
use crate::choices::Choices;
use crate::chunk::Chunk;
use crate::machine::Machine;
use crate::model::Rules;
use crate::step::lanes;
use crate::trace::Trace;
use crate::{IllegalCrash, Image, Survivor, TraceFile};
use core::convert::Infallible;
use std::collections::HashSet;

/// A point of a run at which the [`Explorer`](crate::Explorer) crashes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CrashPoint {
    /// How many events have happened.
    pub events: usize,
    /// How many operations were acknowledged.
    pub acked: usize,
    /// How many lines have stores that are pending.
    pub pending_lines: usize,
    /// How many words of stores, or pieces of words, are pending, over all lines.
    pub pending_words: usize,
    /// How many choices of what survives are legal; `u128::MAX` when there are more than that.
    pub legal: u128,
}

impl TraceFile {
    /// The points at which a crash of the run can leave something new: right before something becomes durable for sure,
    /// around acknowledgements, and at the end.
    ///
    /// ```
    /// use pm_core::Pmem;
    /// use pm_crashsim::{Image, Model, SimPmem};
    /// let pmem = SimPmem::recording(&Image::zeroed(4096), Model::Px86Line);
    /// pmem.store(0, &[1; 128]);
    /// pmem.persist(0, 128)?;
    /// let points = pmem.to_trace_file().crash_points();
    /// assert_eq!(points.len(), 1, "before the fence");
    /// assert_eq!(points[0].legal, 256 * 256, "any of eight words, in two lines");
    /// # Ok::<(), pm_core::FenceError>(())
    /// ```
    #[must_use]
    pub fn crash_points(&self) -> Vec<CrashPoint> {
        let mut points = Vec::new();
        let machine = Machine::new(*self.rules(), self.start(), self.trace());
        let walked = for_each_point(machine, 0, None, |machine, events, acked| {
            points.push(CrashPoint::of(machine, events, acked));
            Ok::<(), Infallible>(())
        });
        match walked {
            Ok(()) => {}
            Err(never) => match never {},
        }
        points
    }

    /// What is pending after that many events: what a crash then could keep.
    ///
    /// # Panics
    /// When there are not as many events.
    #[must_use]
    pub fn pending(&self, events: usize) -> Vec<Survivor> {
        let machine = machine_at(self.rules(), self.start(), self.trace(), events);
        let chunks = Choices::of(&machine).all();
        chunks.iter().map(Chunk::as_survivor).collect()
    }
}

impl CrashPoint {
    fn of(machine: &Machine<'_>, events: usize, acked: usize) -> Self {
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

/// What a crash leaves that keeps exactly those survivors.
pub(crate) fn image(
    rules: &Rules,
    start: &Image,
    trace: &Trace,
    events: usize,
    kept: &[Survivor],
) -> Result<Image, IllegalCrash> {
    let machine = machine_at(rules, start, trace, events);
    let mut missing: HashSet<Survivor> = kept.iter().copied().collect();
    let mut survivors = Vec::with_capacity(missing.len());
    for chain in Choices::of(&machine).chains() {
        // A step survives, in whole or in part, only after whole ones.
        let mut is_torn = false;
        for step in chain.steps() {
            let lost_before = is_torn;
            for lane in lanes(step) {
                let is_kept = |chunk: &Chunk| missing.contains(&chunk.as_survivor());
                let number = if lost_before { 0 } else { lane.most(is_kept) };
                for chunk in lane.part(number).map(|at| &step[at]) {
                    missing.remove(&chunk.as_survivor());
                    survivors.push(*chunk);
                }
                let is_left = |chunk: &&Chunk| missing.contains(&chunk.as_survivor());
                if let Some(other) = lane.chunks.iter().find(is_left) {
                    let is_half = other.in_pair && !lost_before;
                    let illegal = if is_half { IllegalCrash::Halved } else { IllegalCrash::OutOfOrder };
                    return Err(illegal(other.as_survivor()));
                }
                is_torn |= number < lane.parts();
            }
        }
    }
    match missing.into_iter().min() {
        Some(survivor) => Err(IllegalCrash::NotPending(survivor)),
        None => Ok(machine.image(&mut survivors)),
    }
}

fn machine_at<'t>(rules: &Rules, start: &'t Image, trace: &'t Trace, events: usize) -> Machine<'t> {
    assert!(events <= trace.events().len(), "{events} events of a trace that has {}", trace.events().len());
    let mut machine = Machine::new(*rules, start, trace);
    (0..events).for_each(|at| machine.step(at));
    machine
}
