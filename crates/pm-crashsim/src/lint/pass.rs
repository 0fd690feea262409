//! The pass over a record that runs all lints at once.

use super::catalog::{Level, Lint, Lints};
use super::finding::{Finding, Occasions, Raw, Role, findings};
use super::pending::{Pending, Stored};
use super::reads::Reads;
use crate::image::Image;
use crate::line::{LINE, lines};
use crate::model::{Model, Promise};
use crate::trace::{Event, EventKind, Trace};
use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Looks for misuse in the record of a run.
///
/// An operation is the part of a thread up to its next acknowledgement, or to the end of the record. Repeated findings at one place
/// are one finding with a count; findings are ordered by their places in the source.
///
/// Reads are linted only if the record has loads, as with [`Explorer::lints`](crate::Explorer::lints).
///
/// The lints assume that a fence waits (see [`Explorer::strict_ack`](crate::Explorer::strict_ack)) and, under every model,
/// that a flush covers only the lines of its range: code above the seam is written once for all models.
#[must_use]
pub fn lint(trace: &Trace, model: Model, lints: &Lints) -> Vec<Finding> {
    if !lints.is_any_on() {
        return Vec::new();
    }
    let start = Image::zeroed(LINE as u64);
    let mut pass = Pass::new(&start, trace, model, lints);
    for at in 0..trace.events().len() {
        pass.step(at);
    }
    pass.deadline(None);
    pass.finish()
}

struct Pass<'t> {
    trace: &'t Trace,
    model: Model,
    lints: &'t Lints,
    pending: Pending<'t>,
    reads: Reads,
    threads: BTreeMap<u32, Thread>,
    /// By line: the number of events up to and including the last store through the cache.
    last_stores: BTreeMap<u64, usize>,
    /// By store: an earlier useless flush of the line by the same thread.
    flushed_early: HashMap<usize, usize>,
    idle_fences: Vec<IdleFence>,
    found: Vec<Raw>,
}

/// The state of a thread.
#[derive(Default)]
struct Thread {
    /// Its next fence has something to wait for.
    has_work: bool,
    /// By line: its last flush, counted like the stores.
    last_flushes: HashMap<u64, usize>,
    /// Lines that it flushed uselessly during its operation, and the flush.
    flushed_in_vain: Vec<(Range<u64>, usize)>,
    /// Its last useless flush since its last fence.
    idle_flush: Option<usize>,
    last_fence: Option<usize>,
}

/// A fence with nothing to wait for.
struct IdleFence {
    at: usize,
    thread: u32,
    /// The useless flush that it was meant for.
    flush: Option<usize>,
}

impl<'t> Pass<'t> {
    fn new(start: &'t Image, trace: &'t Trace, model: Model, lints: &'t Lints) -> Self {
        Self {
            trace,
            model,
            lints,
            pending: Pending::new(start, trace, model, lints.exchange_fences),
            reads: Reads::default(),
            threads: BTreeMap::new(),
            last_stores: BTreeMap::new(),
            flushed_early: HashMap::new(),
            idle_fences: Vec::new(),
            found: Vec::new(),
        }
    }

    fn step(&mut self, at: usize) {
        let Event { kind, thread, .. } = self.trace.events()[at];
        match kind {
            EventKind::Load { offset, len_bytes } => {
                self.reads.load(&self.pending, at, thread, offset, len_bytes);
            }
            EventKind::Store { offset, data }
            | EventKind::StoreU128 { offset, data }
            | EventKind::Exchange { offset, data } => {
                self.store(at, thread, offset, data.len_bytes());
            }
            EventKind::StoreNt { offset, data } => self.store_nt(at, thread, offset, data.len_bytes()),
            EventKind::FlushOrdered { .. } | EventKind::FullFence if self.model == Model::Page => {}
            EventKind::Flush { offset, len_bytes } | EventKind::FlushOrdered { offset, len_bytes } => {
                self.flush(at, thread, offset, len_bytes);
            }
            EventKind::Fence | EventKind::FullFence => self.fence(at, thread),
            EventKind::Kill => self.threads.clear(),
            EventKind::Ack => {
                self.found.extend(self.reads.acknowledge(&self.pending, at, thread));
                self.deadline(Some(at));
                self.thread(thread).flushed_in_vain.clear();
            }
        }
        let durable = self.pending.step(at);
        self.found.extend(self.reads.commit(&self.pending, self.trace, at, &durable));
    }

    fn thread(&mut self, thread: u32) -> &mut Thread {
        self.threads.entry(thread).or_default()
    }

    /// The thread whose fence waits for the flushes of this one: in the page domain, any thread.
    fn set_work(&mut self, thread: u32) {
        let by_any = self.model == Model::Page;
        self.thread(if by_any { 0 } else { thread }).has_work = true;
    }

    fn take_work(&mut self, thread: u32) -> bool {
        let by_any = self.model == Model::Page;
        core::mem::take(&mut self.thread(if by_any { 0 } else { thread }).has_work)
    }

    fn store(&mut self, at: usize, thread: u32, offset: u64, len_bytes: u64) {
        if self.model == Model::Eadr {
            self.set_work(thread);
        }
        let lines = lines(offset, len_bytes);
        let in_vain = &self.thread(thread).flushed_in_vain;
        let early = in_vain.iter().rfind(|(flushed, _)| overlap(flushed, &lines));
        if let Some(&(_, flush)) = early {
            self.flushed_early.insert(at, flush);
        }
        self.last_stores.extend(lines.map(|line| (line, at + 1)));
    }

    /// A store around the cache; ragged ends and stores in the page domain are flushed by the call itself.
    fn store_nt(&mut self, at: usize, thread: u32, offset: u64, len_bytes: u64) {
        self.set_work(thread);
        if self.model == Model::Page {
            for line in lines(offset, len_bytes) {
                self.last_stores.insert(line, at + 1);
                self.thread(thread).last_flushes.insert(line, at + 1);
            }
        }
    }

    fn flush(&mut self, at: usize, thread: u32, offset: u64, len_bytes: u64) {
        let lines = lines(offset, len_bytes);
        // Code for several domains flushes in all of them; with caches that survive, that is not a mistake.
        if lines.is_empty() || self.model == Model::Eadr {
            return;
        }
        // Another thread may have flushed the stores of this one, or vice versa: neither can know, and in another
        // interleaving both flushes are needed. So a thread's flush is judged by its own flushes.
        let last_flushes = &mut self.threads.entry(thread).or_default().last_flushes;
        let mut is_useful = false;
        for (&line, &stored) in self.last_stores.range(lines.clone()) {
            is_useful |= last_flushes.insert(line, at + 1).is_none_or(|flushed| flushed < stored);
        }
        if is_useful {
            self.set_work(thread);
            self.thread(thread).flushed_in_vain.retain(|(flushed, _)| !overlap(flushed, &lines));
            return;
        }
        let is_waiting = self.pending.has_cached(lines.clone());
        let state = self.thread(thread);
        state.idle_flush = Some(at);
        if !is_waiting {
            state.flushed_in_vain.push((lines, at));
        }
        self.found.push(Raw { lint: Lint::RedundantFlush, at, related: Vec::new(), offset, len_bytes });
    }

    fn fence(&mut self, at: usize, thread: u32) {
        self.stores_in_flight(at, thread);
        let has_work = self.take_work(thread);
        let state = self.thread(thread);
        let flush = state.idle_flush.take();
        state.last_fence = Some(at);
        if !has_work {
            self.idle_fences.push(IdleFence { at, thread, flush });
        }
    }

    /// Finds stores of the thread to lines that it has in flight: the fence does not cover them.
    fn stores_in_flight(&mut self, fence: usize, thread: u32) {
        if self.lints.level(Lint::StoreInFlight) == Level::Allow {
            return;
        }
        let is_enough = self.lints.may_replace(Lint::StoreInFlight, Lint::UnflushedStore);
        let trace = self.trace;
        let mut missed = Occasions::default();
        for (number, Promise { flush, before, .. }) in self.pending.flushes_of(thread) {
            // The ragged end of a non-temporal store flushes only itself.
            if trace.events()[flush].kind.is_store() {
                continue;
            }
            for store in self.pending.line(number) {
                let is_later = store.thread == thread && !store.is_streamed && store.chunk.event >= before;
                if !is_later || self.pending.is_reported(&store) {
                    continue;
                }
                if is_enough {
                    self.pending.report(&store);
                }
                let related = [(Role::Flushed, flush), (Role::Fenced, fence)];
                missed.add(Lint::StoreInFlight, store.chunk.event, &store, &related);
            }
        }
        self.found.extend(missed.0.into_values());
    }

    /// An acknowledgement, at which the thread's stores must be durable; or the end, for all threads.
    fn deadline(&mut self, ack: Option<usize>) {
        let thread = ack.map(|ack| self.trace.events()[ack].thread);
        let mut missing = Occasions::default();
        for (store, flush) in self.pending.take_unreported(thread) {
            let (lint, at, mut related) = self.blame(&store, flush);
            related.extend(ack.map(|ack| (Role::Acknowledged, ack)));
            missing.add(lint, at, &store, &related);
        }
        self.found.extend(missing.0.into_values());
    }

    /// The missing step for the store to be durable, and its place.
    fn blame(&self, store: &Stored, flush: Option<Promise>) -> (Lint, usize, Vec<(Role, usize)>) {
        let event = store.chunk.event;
        if store.is_streamed || self.model == Model::Eadr {
            return (Lint::UnfencedStore, event, Vec::new());
        }
        if let Some(Promise { flush, .. }) = flush {
            return match self.trace.events()[flush].kind.is_store() {
                true => (Lint::UnfencedStore, event, Vec::new()),
                false => (Lint::UnfencedFlush, flush, vec![(Role::Stored, event)]),
            };
        }
        let early = self
            .flushed_early
            .get(&event)
            .filter(|_| self.lints.may_replace(Lint::EarlyFlush, Lint::UnflushedStore));
        if let Some(&flush) = early {
            return (Lint::EarlyFlush, flush, vec![(Role::Stored, event)]);
        }
        let fence = self.threads.get(&store.thread).and_then(|thread| thread.last_fence);
        let fence = fence.filter(|&fence| fence > event).map(|fence| (Role::Fenced, fence));
        (Lint::UnflushedStore, event, fence.into_iter().collect())
    }

    /// Drops findings that follow from others, and merges those of one place.
    fn finish(mut self) -> Vec<Finding> {
        let early: BTreeSet<usize> = self.events_of(Lint::EarlyFlush).collect();
        self.found.retain(|raw| raw.lint != Lint::RedundantFlush || !early.contains(&raw.at));
        self.idle_fences.retain(|fence| fence.flush.is_none_or(|flush| !early.contains(&flush)));
        // A fence after an unflushed store lacks that flush, and is not redundant.
        for store in self.events_of(Lint::UnflushedStore).collect::<Vec<_>>() {
            let thread = self.trace.events()[store].thread;
            let misses = |fence: &IdleFence| fence.thread == thread && fence.at > store;
            if let Some(index) = self.idle_fences.iter().position(misses) {
                self.idle_fences.remove(index);
            }
        }
        let redundant = self.idle_fences.iter().map(|fence| Raw {
            lint: Lint::RedundantFence,
            at: fence.at,
            related: Vec::new(),
            offset: 0,
            len_bytes: 0,
        });
        self.found.extend(redundant);
        findings(self.trace, self.lints, self.found)
    }

    fn events_of(&self, lint: Lint) -> impl Iterator<Item = usize> {
        self.found.iter().filter(move |raw| raw.lint == lint).map(|raw| raw.at)
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}
