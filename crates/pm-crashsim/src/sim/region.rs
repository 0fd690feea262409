//! The simulated region.

use super::reads::{SharedTouched, Touched};
use super::scheduler::Scheduler;
use super::state::{Limit, Recording, State};
use crate::image::Image;
use crate::line::{LINE, LineList, LineSet, PAIR, WORD, pieces};
use crate::location::Locations;
use crate::site::{self, Edits, Site, SiteKind};
use crate::trace::{DataSpan, EventKind, Trace};
use crate::{Model, TraceFile};
use core::fmt;
use core::ops::Range;
use core::ptr::NonNull;
use pm_core::{Domain, FenceError, Pmem, WriterLock};
use std::collections::BTreeSet;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A region of persistent memory that records its run.
///
/// A store is visible at once, to every thread. Nothing is evicted, flushed or lost while the program runs: the [`Explorer`](crate::Explorer) replays
/// the record through the model afterwards, and derives from it every image that a crash could have left.
///
/// A thread is a `std` thread, or inside the `loom` and `shuttle` fronts one of theirs. Each access takes a lock, so the
/// record has them in one order, which is an order that the hardware could have chosen.
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
    /// The contents at the start.
    image: Image,
    /// Selects the next thread. Called before the state is locked, never while it is.
    scheduler: Scheduler,
    state: Mutex<State>,
    /// The lock of the live process: another one after a kill.
    writer: Mutex<WriterLock>,
}

impl SimPmem {
    /// A region of zeros under the default model, outside any exploration: for preparing an [`Image`].
    ///
    /// # Panics
    /// If the length is zero or not a multiple of 64.
    #[must_use]
    pub fn new(len_bytes: u64) -> Self {
        Self::from_image(&Image::zeroed(len_bytes), Model::default())
    }

    /// A region that starts as `image`, under `model`, outside any exploration.
    #[must_use]
    pub fn from_image(image: &Image, model: Model) -> Self {
        Self::recorded(image, model, Recording::Nothing, &Edits::default())
    }

    /// A region that starts as `image`, under `model`, and records its run for [`to_trace_file`](Self::to_trace_file).
    #[must_use]
    pub fn recording(image: &Image, model: Model) -> Self {
        Self::recorded(image, model, Recording::Writes, &Edits::default())
    }

    /// The model of the region, which decides the result of [`domain`](pm_core::Pmem::domain).
    #[must_use]
    pub const fn model(&self) -> Model {
        self.model
    }

    /// The visible contents as an image: the result of an orderly shutdown. Takes time
    /// proportional to the lines stored to since the region was all zeros or bytes.
    #[must_use]
    pub fn to_image(&self) -> Image {
        let mut state = self.state();
        state.reads.note_all();
        self.image.with_all(&state.visible)
    }

    /// Suppresses flushes or fences of this site from now on, to show that a test notices.
    pub fn suppress(&self, site: &Site) {
        let mut state = self.state();
        state.edits.suppressed.insert(site.clone());
        state.look_up_edits();
    }

    /// Every place that flushed or fenced so far, suppressed ones included.
    #[must_use]
    pub fn sites(&self) -> Vec<Site> {
        let mut sites = BTreeSet::new();
        self.new_sites(&mut Vec::new(), |site| {
            sites.insert(site);
        });
        sites.into_iter().collect()
    }

    /// `clflush`: as [`flush`](pm_core::Pmem::flush), but ordered before the thread's later stores without a fence. The
    /// seam does not offer it, because AMD orders it by `mfence` only; it is here to study x86.
    ///
    /// # Panics
    /// When the range leaves the region.
    #[track_caller]
    pub fn clflush(&self, offset: u64, len_bytes: u64) {
        self.check(offset, len_bytes);
        self.record_site(SiteKind::Flush, EventKind::FlushOrdered { offset, len_bytes });
    }

    /// `mfence`: commits as [`fence`](pm_core::Pmem::fence) does, and also waits when acknowledgements are strict. Has no effect in the page domain.
    #[track_caller]
    pub fn mfence(&self) {
        self.record_site(SiteKind::Fence, EventKind::FullFence);
    }

    /// Kills the process here with the caches kept; the next event is another process's. It sees every store, and no more is durable
    /// than before. Unfenced flushes have no effect. The explorer kills everywhere if [configured to](crate::Explorer::kills); this method
    /// is for a test of one place.
    #[track_caller]
    pub fn kill(&self) {
        self.switch();
        let mut state = self.state();
        let location = state.locate(Location::caller());
        state.record(EventKind::Kill, location);
        state.threads.iter_mut().for_each(|thread| *thread = None);
        *self.writer.lock().unwrap_or_else(PoisonError::into_inner) = WriterLock::default();
    }

    /// Marks in the record that an operation returned, as [`Run::ack`](crate::Run::ack) does.
    #[track_caller]
    pub fn ack(&self) {
        let mut state = self.state();
        let location = state.locate(Location::caller());
        state.record(EventKind::Ack, location);
    }

    /// The record so far, with what the region held at the start. Empty, unless the region is [`recording`](Self::recording).
    #[must_use]
    pub fn to_trace_file(&self) -> TraceFile {
        TraceFile::new(self.model, self.image.clone(), self.state().trace.clone())
    }

    /// A recording region with `edits`, and without the site that is suppressed for the whole process.
    pub(crate) fn recorded(image: &Image, model: Model, recording: Recording, edits: &Edits) -> Self {
        let mut edits = edits.clone();
        edits.suppressed.extend(site::suppressed().cloned());
        let recording = match (recording, model) {
            (Recording::Writes, Model::Eadr) => Recording::Observed,
            _ => recording,
        };
        let state = State { recording, edits, ..State::default() };
        Self {
            model,
            image: image.clone(),
            scheduler: Scheduler::Std,
            state: Mutex::new(state),
            writer: Mutex::default(),
        }
    }

    /// The same region, its threads scheduled by `scheduler`.
    #[cfg(any(feature = "loom", feature = "shuttle"))]
    pub(crate) fn scheduled_by(mut self, scheduler: Scheduler) -> Self {
        self.state().scheduler = scheduler.clone();
        self.scheduler = scheduler;
        self
    }

    /// Lets the scheduler select the next thread: another one, or this one with its access.
    pub(crate) fn switch(&self) {
        self.scheduler.switch();
    }

    /// Notes reads of these lines from now on.
    pub(crate) fn watch(&self, lines: &Arc<LineSet>) {
        self.state().reads.watch(lines);
    }

    /// Limits the accesses from now on, and their time; one more panics.
    pub(crate) fn limit(&self, accesses: u64, time: Duration) {
        self.state().limit = Some(Limit { accesses_left: accesses, start: Instant::now(), time });
    }

    /// The complaint, if the time limit is exceeded.
    pub(crate) fn took_too_long(&self) -> Option<String> {
        self.state().limit.as_ref()?.took_too_long()
    }

    /// Starts with the places of other runs.
    pub(crate) fn share_places(&self, places: &Arc<Locations>) {
        self.state().trace.share_places(places);
    }

    /// Passes every place that flushed or fenced to `found`, unless `known` has it; adds it to `known`, by number of the place.
    pub(crate) fn new_sites(&self, known: &mut Vec<[bool; 2]>, mut found: impl FnMut(Site)) {
        let state = self.state();
        if known.len() < state.sites.len() {
            known.resize(state.sites.len(), [false; 2]);
        }
        for ((location, sites), known) in state.trace.locations().iter().zip(&state.sites).zip(known) {
            for kind in SiteKind::ALL {
                if sites.exercised[kind.index()] && !known[kind.index()] {
                    known[kind.index()] = true;
                    found(Site { kind, location: location.clone() });
                }
            }
        }
    }

    /// The watched lines that were read, in the order of their first reads.
    pub(crate) fn take_reads(&self) -> LineList {
        self.state().reads.take()
    }

    /// Ends the record.
    pub(crate) fn stop_recording(&self) {
        let mut state = self.state();
        state.recording = Recording::Nothing;
        state.is_over = true;
    }

    /// The contents at the start. A caller that reads them [notes](Self::note_touched) the lines.
    pub(crate) const fn start(&self) -> &Image {
        &self.image
    }

    /// Notes the dependencies of an exploration that started from the same image.
    pub(crate) fn note_touched(&self, touched: &Touched) {
        self.state().reads.note_touched(touched);
    }

    /// Also notes there every line that is read or stored to from now on.
    pub(crate) fn report_to(&self, touched: &SharedTouched) {
        self.state().reads.report_to(touched);
    }

    /// The record so far, taken out.
    pub(crate) fn take_trace(&self) -> Trace {
        self.state().trace.take()
    }

    /// The state, for one access.
    #[track_caller]
    fn access(&self) -> MutexGuard<'_, State> {
        self.switch();
        let mut state = self.state();
        if let Some(problem) = state.limit.as_mut().and_then(Limit::access) {
            drop(state);
            panic!("{problem}");
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
    fn check_atomic(&self, what: &str, offset: u64, len_bytes: usize) {
        self.check(offset, len_bytes as u64);
        let is_aligned = offset.is_multiple_of(len_bytes as u64);
        assert!(is_aligned, "an atomic {what} must be aligned, and offset {offset} is not");
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
            site::exercised(kind, caller);
        }
        if !is_suppressed {
            state.record(event, location);
        }
    }

    /// The state. A panic of another thread leaves it consistent: every change is complete before anything that can panic.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, state: &mut State, offset: u64, out: &mut [u8]) {
        for piece in pieces(offset, out.len(), LINE) {
            state.reads.note(piece.unit);
            let line = state.visible.get(&piece.unit).unwrap_or_else(|| self.image.line(piece.unit));
            out[piece.of_range].copy_from_slice(&line[piece.within]);
        }
    }

    #[track_caller]
    fn write(&self, state: &mut State, offset: u64, bytes: &[u8]) {
        let end = offset + bytes.len() as u64;
        if let Some(lent) = state.lent.iter().find(|lent| lent.start < end && offset < lent.end) {
            panic!("{} bytes are stored at offset {offset}, while the bytes {lent:?} are lent", bytes.len());
        }
        for piece in pieces(offset, bytes.len(), LINE) {
            state.reads.note_stored(piece.unit);
            let line = state.visible.entry(piece.unit).or_insert_with(|| *self.image.line(piece.unit));
            line[piece.within].copy_from_slice(&bytes[piece.of_range]);
        }
    }

    /// Notes bytes that are lent until the returned value is dropped.
    fn note_lent(&self, range: Range<u64>) -> Lent<'_> {
        self.state().lent.push(range.clone());
        Lent { pmem: self, range }
    }

    /// Stores bytes that lie in the region.
    #[track_caller]
    fn store_as(&self, offset: u64, bytes: &[u8], kind: impl FnOnce(DataSpan) -> EventKind) {
        let mut state = self.access();
        self.write(&mut state, offset, bytes);
        state.record_store(bytes, kind, Location::caller());
    }

    fn read_word(&self, state: &mut State, offset: u64) -> u64 {
        let mut word = [0; WORD];
        self.read(state, offset, &mut word);
        u64::from_le_bytes(word)
    }
}

/// Lent bytes, to which nothing may be stored.
struct Lent<'p> {
    pmem: &'p SimPmem,
    range: Range<u64>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut state = self.pmem.state();
        if let Some(place) = state.lent.iter().position(|range| *range == self.range) {
            state.lent.swap_remove(place);
        }
    }
}

impl Pmem for SimPmem {
    fn len_bytes(&self) -> u64 {
        self.image.len_bytes()
    }

    fn domain(&self) -> Domain {
        self.model().domain()
    }

    fn writer_lock(&self) -> Option<WriterLock> {
        Some(self.writer.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    fn load(&self, offset: u64, out: &mut [u8]) {
        self.check(offset, out.len() as u64);
        let mut state = self.access();
        self.read(&mut state, offset, out);
        state.record_load(offset, out.len() as u64, Location::caller());
    }

    fn lend(&self, offset: u64, len_bytes: usize, with: &mut dyn FnMut(NonNull<[u8]>)) {
        let mut bytes = vec![0; len_bytes];
        self.load(offset, &mut bytes);
        let _lent = self.note_lent(offset..offset + len_bytes as u64);
        with(NonNull::from(bytes.as_slice()));
    }

    fn store(&self, offset: u64, bytes: &[u8]) {
        self.check(offset, bytes.len() as u64);
        self.store_as(offset, bytes, |data| EventKind::Store { offset, data });
    }

    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        self.check(offset, bytes.len() as u64);
        self.store_as(offset, bytes, |data| EventKind::StoreNt { offset, data });
    }

    fn load_u64(&self, offset: u64) -> u64 {
        self.check_atomic("word", offset, WORD);
        let mut state = self.access();
        state.record_load(offset, WORD as u64, Location::caller());
        self.read_word(&mut state, offset)
    }

    fn load_words(&self, offset: u64, out: &mut [u64]) {
        let len_bytes = size_of_val(out) as u64;
        self.check(offset, len_bytes);
        let is_aligned = offset.is_multiple_of(WORD as u64);
        assert!(is_aligned, "atomic words must be aligned, and offset {offset} is not");
        // One event, but other threads may store between the words.
        self.access().record_load(offset, len_bytes, Location::caller());
        for (index, (at, word)) in (offset..).step_by(WORD).zip(out).enumerate() {
            if index > 0 {
                self.switch();
            }
            *word = self.read_word(&mut self.state(), at);
        }
    }

    fn store_u64(&self, offset: u64, value: u64) {
        self.check_atomic("word", offset, WORD);
        self.store_as(offset, &value.to_le_bytes(), |data| EventKind::Store { offset, data });
    }

    fn store_u128(&self, offset: u64, value: u128) {
        self.check_atomic("pair", offset, PAIR);
        self.store_as(offset, &value.to_le_bytes(), |data| EventKind::StoreU128 { offset, data });
    }

    fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.check_atomic("word", offset, WORD);
        let mut state = self.access();
        let found = self.read_word(&mut state, offset);
        if found != current {
            // A failed exchange may or may not order on hardware; the conservative reading is that it only loads.
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
