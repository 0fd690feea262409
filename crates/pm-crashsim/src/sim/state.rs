//! The state of a region.

use super::reads::Reads;
use super::scheduler::{Scheduler, ThreadKey};
use crate::line::Lines;
use crate::location::LocationId;
use crate::outcome::TOO_LONG;
use crate::site::{Edits, InjectedKinds};
use crate::trace::{DataSpan, Event, EventKind, Trace};
use core::ops::Range;
use std::panic::Location;
use std::time::{Duration, Instant};

#[derive(Default)]
pub(super) struct State {
    /// Lines stored to since the start, with their visible contents.
    pub(super) visible: Lines,
    pub(super) trace: Trace,
    pub(super) recording: Recording,
    /// Whether the program under test has ended, and later accesses are the test's own.
    pub(super) is_over: bool,
    pub(super) limit: Option<Limit>,
    pub(super) edits: Edits,
    /// By location.
    pub(super) sites: Vec<Sites>,
    pub(super) scheduler: Scheduler,
    /// `None` for the threads of killed processes.
    pub(super) threads: Vec<Option<ThreadKey>>,
    pub(super) reads: Reads,
    /// The ranges that are lent.
    pub(super) lent: Vec<Range<u64>>,
}

/// The limits of a check.
pub(super) struct Limit {
    pub(super) accesses_left: u64,
    pub(super) start: Instant,
    pub(super) time: Duration,
}

impl Limit {
    /// The number of accesses between two readings of the clock.
    const BETWEEN_LOOKS: u64 = 1 << 6;

    /// Counts one access. Returns a complaint if a limit is exceeded.
    pub(super) fn access(&mut self) -> Option<String> {
        let Some(left) = self.accesses_left.checked_sub(1) else {
            return Some("recovery does not end: it has made as many accesses as it may".to_owned());
        };
        self.accesses_left = left;
        if left.is_multiple_of(Self::BETWEEN_LOOKS) { self.took_too_long() } else { None }
    }

    pub(super) fn took_too_long(&self) -> Option<String> {
        let elapsed = self.start.elapsed();
        let complaint = || format!("{TOO_LONG}: {elapsed:.1?}, and {:?} are allowed", self.time);
        (elapsed > self.time).then(complaint)
    }
}

/// The recorded part of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Recording {
    #[default]
    Nothing,
    /// Events that matter to durability, without loads.
    Writes,
    /// Also loads once there is a second thread: the stores of other threads that it sees have left the store buffer.
    Observed,
    /// Also all loads.
    Loads,
}

/// The flushes and fences at one location, each as `[flush, fence]`, and their edits.
#[derive(Clone, Copy, Default)]
pub(super) struct Sites {
    pub(super) exercised: [bool; 2],
    pub(super) suppressed: [bool; 2],
    pub(super) injected: InjectedKinds,
}

impl State {
    /// The number of a place.
    pub(super) fn locate(&mut self, caller: &'static Location<'static>) -> LocationId {
        let location = self.trace.locate(caller);
        if location.index() >= self.sites.len() {
            self.sites.resize(self.trace.locations().len(), Sites::default());
            self.look_up_edits();
        }
        location
    }

    pub(super) fn look_up_edits(&mut self) {
        for (location, known) in self.trace.locations().iter().zip(&mut self.sites) {
            for site in self.edits.suppressed.iter().filter(|site| site.location == *location) {
                known.suppressed[site.kind.index()] = true;
            }
            for injection in self.edits.injected.iter().filter(|injection| injection.location == *location) {
                known.injected.insert(injection.kind);
            }
        }
    }

    pub(super) fn record(&mut self, kind: EventKind, location: LocationId) {
        if self.recording >= Recording::Writes {
            if matches!(kind, EventKind::FlushOrdered { .. }) {
                // It is ordered with stores in the store buffer.
                self.recording = self.recording.max(Recording::Observed);
            }
            let thread = self.current_thread();
            let injected = self.sites[location.index()].injected;
            let [flush, fence] = injected.after(kind);
            for kind in [injected.before(kind), Some(kind), flush, fence].into_iter().flatten() {
                self.trace.push(Event { kind, thread, location });
            }
        }
    }

    pub(super) fn record_load(&mut self, offset: u64, len_bytes: u64, caller: &'static Location<'static>) {
        if len_bytes > 0 && self.records_loads() {
            let location = self.locate(caller);
            self.record(EventKind::Load { offset, len_bytes }, location);
        }
    }

    /// Records a store, of the kind with its stored bytes. A store of no bytes is ignored.
    pub(super) fn record_store(
        &mut self,
        bytes: &[u8],
        kind: impl FnOnce(DataSpan) -> EventKind,
        caller: &'static Location<'static>,
    ) {
        if self.recording >= Recording::Writes && !bytes.is_empty() {
            let location = self.locate(caller);
            let data = self.trace.keep(bytes);
            self.record(kind(data), location);
        }
    }

    fn records_loads(&mut self) -> bool {
        match self.recording {
            Recording::Nothing | Recording::Writes => false,
            // Each thread gets its number here, so that the first access of the second one counts.
            Recording::Observed => self.current_thread() > 0 || self.threads.len() > 1,
            Recording::Loads => true,
        }
    }

    fn current_thread(&mut self) -> u32 {
        let id = self.scheduler.current_thread();
        let known = self.threads.iter().position(|&other| other == Some(id));
        let number = known.unwrap_or_else(|| {
            self.threads.push(Some(id));
            self.threads.len() - 1
        });
        u32::try_from(number).expect("fewer threads than 32 bits can count")
    }
}
