//! The simulated region: what the program sees at once, and a record of what it did.

use crate::Model;
use crate::edits::{Edits, InjectedKinds};
use crate::image::{Image, Lines};
use crate::lines::LineSet;
use crate::mutation;
use crate::reads::Reads;
use crate::schedule::{Scheduler, ThreadKey};
use crate::site::{Site, SiteKind};
use crate::span::{LINE, WORD, pieces};
use crate::trace::{DataSpan, Event, EventKind, LocationId, Trace};
use core::fmt;
use pm_core::{Domain, FenceError, Pmem};
use std::collections::BTreeSet;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A region of persistent memory that remembers how it was written.
///
/// It answers as memory does: a store is visible at once, to every thread. Nothing is ever evicted, flushed or
/// lost while it runs: the [`Explorer`](crate::Explorer) replays the record through the model afterwards, and
/// makes from it every image that a crash could have left.
///
/// A thread is a `std` thread, or inside of the `loom` and `shuttle` fronts one of theirs. Accesses take a lock one by one, so the record has them in one order, which is an
/// order that the hardware could have chosen.
///
/// ```
/// use pm_core::Pmem;
/// use pm_crashsim::SimPmem;
/// let pmem = SimPmem::new(4096);
/// pmem.store(60, b"straddles");
/// pmem.persist(60, 9)?;
/// let mut read = [0; 9];
/// pmem.load(60, &mut read);
/// assert_eq!(&read, b"straddles");
/// assert_eq!(pmem.sites().len(), 2, "one flush and one fence");
/// # Ok::<(), pm_core::FenceError>(())
/// ```
pub struct SimPmem {
    model: Model,
    /// What was there at the start.
    image: Image,
    /// Who decides which thread comes next. Asked before the state is locked, never while it is.
    scheduler: Scheduler,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Lines stored to since the start, as the program sees them.
    visible: Lines,
    trace: Trace,
    recording: Recording,
    /// Whether the program under test is done, and what follows is the test's own.
    is_over: bool,
    /// How many more accesses may be made, if that is bounded.
    accesses_left: Option<u64>,
    edits: Edits,
    /// By location.
    sites: Vec<Sites>,
    scheduler: Scheduler,
    threads: Vec<ThreadKey>,
    reads: Reads,
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
struct Sites {
    exercised: [bool; 2],
    suppressed: [bool; 2],
    injected: InjectedKinds,
}

impl SimPmem {
    /// A region of zeros under the default model, outside any exploration: for preparing an [`Image`].
    ///
    /// # Panics
    /// If the length is zero or no multiple of 64.
    #[must_use]
    pub fn new(len_bytes: u64) -> Self {
        Self::from_image(&Image::zeroed(len_bytes), Model::default())
    }

    /// A region that starts as `image`, under `model`, outside any exploration.
    #[must_use]
    pub fn from_image(image: &Image, model: Model) -> Self {
        Self::recorded(image, model, Recording::Nothing, &Edits::default())
    }

    /// A region whose run is recorded, with `edits`, and without the site that the whole process does without.
    pub(crate) fn recorded(image: &Image, model: Model, recording: Recording, edits: &Edits) -> Self {
        let mut edits = edits.clone();
        edits.suppressed.extend(mutation::suppressed().cloned());
        let state = State { recording, edits, ..State::default() };
        Self { model, image: image.clone(), scheduler: Scheduler::Std, state: Mutex::new(state) }
    }

    /// The same region, its threads scheduled by `scheduler`.
    #[cfg(any(feature = "loom", feature = "shuttle"))]
    pub(crate) fn scheduled_by(mut self, scheduler: Scheduler) -> Self {
        self.state().scheduler = scheduler.clone();
        self.scheduler = scheduler;
        self
    }

    /// Lets the scheduler choose who comes next: another thread, or this one with its access.
    pub(crate) fn switch(&self) {
        self.scheduler.switch();
    }

    /// From now on notes which of these lines are read.
    pub(crate) fn watch(&self, lines: &Arc<LineSet>) {
        self.state().reads.watch(lines);
    }

    /// From now on that many accesses may be made; one more panics.
    pub(crate) fn limit_accesses(&self, accesses: u64) {
        self.state().accesses_left = Some(accesses);
    }

    /// The watched lines that were read, in the order of their first reads.
    pub(crate) fn take_reads(&self) -> Vec<u64> {
        self.state().reads.take()
    }

    /// The model that the region stands for; it decides what [`domain`](Pmem::domain) says.
    #[must_use]
    pub const fn model(&self) -> Model {
        self.model
    }

    /// What the program sees now, as an image of its own: what an orderly shutdown would leave. Costs time
    /// proportional to the region.
    #[must_use]
    pub fn to_image(&self) -> Image {
        let mut bytes = self.image.to_bytes();
        let mut state = self.state();
        state.reads.note_all();
        for (&number, line) in &state.visible {
            let start = crate::span::index(number) * LINE;
            bytes[start..start + LINE].copy_from_slice(line);
        }
        Image::from_bytes(bytes)
    }

    /// From now on, flushes or fences of this site do nothing. For showing that a test notices.
    pub fn suppress(&self, site: &Site) {
        let mut state = self.state();
        state.edits.suppressed.insert(site.clone());
        state.look_up_edits();
    }

    /// Every place that flushed or fenced so far, suppressed ones included.
    #[must_use]
    pub fn sites(&self) -> Vec<Site> {
        let state = self.state();
        let mut sites = BTreeSet::new();
        for (location, known) in state.trace.locations().iter().zip(&state.sites) {
            let exercised =
                SiteKind::ALL.into_iter().zip(known.exercised).filter(|(_, exercised)| *exercised);
            sites.extend(exercised.map(|(kind, _)| Site { kind, location: location.clone() }));
        }
        sites.into_iter().collect()
    }

    /// `clflush`: as [`flush`](Pmem::flush), but ordered before the thread's later stores without a fence. The
    /// seam does not offer it, for AMD orders it by `mfence` only; it is here to study x86.
    ///
    /// # Panics
    /// When the range leaves the region.
    #[track_caller]
    pub fn clflush(&self, offset: u64, len_bytes: u64) {
        self.check(offset, len_bytes);
        self.record_site(SiteKind::Flush, EventKind::FlushOrdered { offset, len_bytes });
    }

    /// `mfence`: commits as [`fence`](Pmem::fence) does, and has waited even when acknowledgements are strict. Does
    /// nothing for the page domain.
    #[track_caller]
    pub fn mfence(&self) {
        self.record_site(SiteKind::Fence, EventKind::FullFence);
    }

    /// Records the end of an operation.
    #[track_caller]
    pub(crate) fn mark_ack(&self) {
        let mut state = self.state();
        let location = state.locate(Location::caller());
        state.record(EventKind::Ack, location);
    }

    /// What follows is not part of the record.
    pub(crate) fn stop_recording(&self) {
        let mut state = self.state();
        state.recording = Recording::Nothing;
        state.is_over = true;
    }

    /// What was there at the start, if anything was stored since.
    pub(crate) fn start_if_changed(&self) -> Option<&Image> {
        let mut state = self.state();
        // Whoever asks may look anywhere.
        state.reads.note_all();
        (!state.visible.is_empty()).then_some(&self.image)
    }

    /// The record so far, taken out.
    pub(crate) fn take_trace(&self) -> Trace {
        self.state().trace.take()
    }

    /// What the region held at the start, and the record so far.
    pub(crate) fn start_and_trace(&self) -> (Image, Trace) {
        (self.image.clone(), self.state().trace.clone())
    }

    /// The state. A panic of another thread cannot have left it half changed: every change is complete before
    /// anything that can panic.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, for one access.
    #[track_caller]
    fn access(&self) -> MutexGuard<'_, State> {
        self.switch();
        let mut state = self.state();
        if let Some(left) = &mut state.accesses_left {
            assert!(*left > 0, "recovery does not end: it has made as many accesses as it may");
            *left -= 1;
        }
        state
    }

    #[track_caller]
    fn check(&self, offset: u64, len_bytes: u64) {
        let end = self.image.len_bytes();
        assert!(
            offset.checked_add(len_bytes).is_some_and(|e| e <= end),
            "{len_bytes} bytes at offset {offset} leave the region, which has {end}"
        );
    }

    #[track_caller]
    fn check_atomic(&self, offset: u64) {
        self.check(offset, WORD as u64);
        assert!(
            offset.is_multiple_of(WORD as u64),
            "an atomic word must be aligned, and offset {offset} is not"
        );
    }

    #[track_caller]
    fn record_site(&self, kind: SiteKind, event: EventKind) {
        let caller = Location::caller();
        let mut state = self.access();
        let location = state.locate(caller);
        let is_over = state.is_over;
        let known = &mut state.sites[location.index()];
        let is_new = !is_over && !core::mem::replace(&mut known.exercised[kind.index()], true);
        let is_suppressed = known.suppressed[kind.index()];
        if is_new {
            mutation::exercised(kind, caller);
        }
        if !is_suppressed {
            state.record(event, location);
        }
    }

    fn read(&self, state: &mut State, offset: u64, out: &mut [u8]) {
        for piece in pieces(offset, out.len(), LINE) {
            state.reads.note(piece.unit);
            let line = state.visible.get(&piece.unit).copied();
            let line = line.unwrap_or_else(|| self.image.line(piece.unit));
            out[piece.of_range].copy_from_slice(&line[piece.within]);
        }
    }

    fn write(&self, state: &mut State, offset: u64, bytes: &[u8]) {
        for piece in pieces(offset, bytes.len(), LINE) {
            let line = state.visible.entry(piece.unit).or_insert_with(|| self.image.line(piece.unit));
            line[piece.within].copy_from_slice(&bytes[piece.of_range]);
        }
    }

    fn read_word(&self, state: &mut State, offset: u64) -> u64 {
        let mut word = [0; WORD];
        self.read(state, offset, &mut word);
        u64::from_le_bytes(word)
    }
}

impl State {
    /// The number of a place, with what is known of its flushes and fences.
    fn locate(&mut self, caller: &'static Location<'static>) -> LocationId {
        let location = self.trace.locations_mut().of_caller(caller);
        if location.index() >= self.sites.len() {
            self.sites.resize(location.index() + 1, Sites::default());
            self.look_up_edits();
        }
        location
    }

    fn look_up_edits(&mut self) {
        for (location, known) in self.trace.locations().iter().zip(&mut self.sites) {
            for site in self.edits.suppressed.iter().filter(|site| site.location == *location) {
                known.suppressed[site.kind.index()] = true;
            }
            for injection in self.edits.injected.iter().filter(|injection| injection.location == *location) {
                known.injected.insert(injection.kind);
            }
        }
    }

    fn record(&mut self, kind: EventKind, location: LocationId) {
        if self.recording >= Recording::Writes {
            let thread = self.current_thread();
            let injected = self.sites[location.index()].injected;
            let [flush, fence] = injected.after(kind);
            for kind in [injected.before(kind), Some(kind), flush, fence].into_iter().flatten() {
                self.trace.push(Event { kind, thread, location });
            }
        }
    }

    fn record_load(&mut self, offset: u64, len_bytes: u64, caller: &'static Location<'static>) {
        if self.recording >= Recording::Loads && len_bytes > 0 {
            let location = self.locate(caller);
            self.record(EventKind::Load { offset, len_bytes }, location);
        }
    }

    /// Records a store, whose kind is made of where its bytes are kept. One of no bytes is none.
    fn record_store(
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

impl Pmem for SimPmem {
    fn len_bytes(&self) -> u64 {
        self.image.len_bytes()
    }

    fn domain(&self) -> Domain {
        self.model.domain()
    }

    fn load(&self, offset: u64, out: &mut [u8]) {
        self.check(offset, out.len() as u64);
        let mut state = self.access();
        self.read(&mut state, offset, out);
        state.record_load(offset, out.len() as u64, Location::caller());
    }

    fn store(&self, offset: u64, bytes: &[u8]) {
        self.check(offset, bytes.len() as u64);
        let mut state = self.access();
        self.write(&mut state, offset, bytes);
        state.record_store(bytes, |data| EventKind::Store { offset, data }, Location::caller());
    }

    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        self.check(offset, bytes.len() as u64);
        let mut state = self.access();
        self.write(&mut state, offset, bytes);
        state.record_store(bytes, |data| EventKind::StoreNt { offset, data }, Location::caller());
    }

    fn load_u64(&self, offset: u64) -> u64 {
        self.check_atomic(offset);
        let mut state = self.access();
        state.record_load(offset, WORD as u64, Location::caller());
        self.read_word(&mut state, offset)
    }

    fn store_u64(&self, offset: u64, value: u64) {
        self.check_atomic(offset);
        self.switch();
        let bytes = value.to_le_bytes();
        let mut state = self.access();
        self.write(&mut state, offset, &bytes);
        state.record_store(&bytes, |data| EventKind::Store { offset, data }, Location::caller());
    }

    fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.check_atomic(offset);
        let mut state = self.access();
        let found = self.read_word(&mut state, offset);
        if found != current {
            // A failed exchange may or may not order on hardware; the careful reading is that it only loads.
            state.record_load(offset, WORD as u64, Location::caller());
            return Err(found);
        }
        let bytes = new.to_le_bytes();
        self.write(&mut state, offset, &bytes);
        state.record_store(&bytes, |data| EventKind::Exchange { offset, data }, Location::caller());
        Ok(found)
    }

    fn flush(&self, offset: u64, len_bytes: u64) {
        self.check(offset, len_bytes);
        self.record_site(SiteKind::Flush, EventKind::Flush { offset, len_bytes });
    }

    fn fence(&self) -> Result<(), FenceError> {
        self.record_site(SiteKind::Fence, EventKind::Fence);
        Ok(())
    }
}

impl fmt::Debug for SimPmem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.access();
        f.debug_struct("SimPmem")
            .field("model", &self.model)
            .field("image", &self.image)
            .field("visible_lines", &state.visible.len())
            .field("recorded_events", &state.trace.events().len())
            .finish_non_exhaustive()
    }
}
