//! What a region remembers of its run.

use crate::edits::{Edits, InjectedKinds};
use crate::image::Lines;
use crate::reads::Reads;
use crate::schedule::{Scheduler, ThreadKey};
use crate::trace::{DataSpan, Event, EventKind, LocationId, Trace};
use std::panic::Location;

#[derive(Default)]
pub(super) struct State {
    /// Lines stored to since the start, as the program sees them.
    pub(super) visible: Lines,
    pub(super) trace: Trace,
    pub(super) recording: Recording,
    /// Whether the program under test is done, and what follows is the test's own.
    pub(super) is_over: bool,
    /// How many more accesses may be made, if that is bounded.
    pub(super) accesses_left: Option<u64>,
    pub(super) edits: Edits,
    /// By location.
    pub(super) sites: Vec<Sites>,
    pub(super) scheduler: Scheduler,
    pub(super) threads: Vec<ThreadKey>,
    pub(super) reads: Reads,
}

/// How much of a run is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Recording {
    #[default]
    Nothing,
    /// What matters to durability.
    Writes,
    /// Loads as well.
    Loads,
}

/// What is known of the flushes and the fences at one location: each `[flush, fence]`; and what is put in there.
#[derive(Clone, Copy, Default)]
pub(super) struct Sites {
    pub(super) exercised: [bool; 2],
    pub(super) suppressed: [bool; 2],
    pub(super) injected: InjectedKinds,
}

impl State {
    /// The number of a place, with what is known of its flushes and fences.
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
            let thread = self.current_thread();
            let injected = self.sites[location.index()].injected;
            let [flush, fence] = injected.after(kind);
            for kind in [injected.before(kind), Some(kind), flush, fence].into_iter().flatten() {
                self.trace.push(Event { kind, thread, location });
            }
        }
    }

    pub(super) fn record_load(&mut self, offset: u64, len_bytes: u64, caller: &'static Location<'static>) {
        if self.recording >= Recording::Loads && len_bytes > 0 {
            let location = self.locate(caller);
            self.record(EventKind::Load { offset, len_bytes }, location);
        }
    }

    /// Records a store, whose kind is made of where its bytes are kept. One of no bytes is none.
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

    fn current_thread(&mut self) -> u32 {
        let id = self.scheduler.current_thread();
        let known = self.threads.iter().position(|&other| other == id);
        let number = known.unwrap_or_else(|| {
            self.threads.push(id);
            self.threads.len() - 1
        });
        u32::try_from(number).expect("fewer threads than 32 bits can count")
    }
}
