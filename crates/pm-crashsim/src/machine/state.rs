//! The state between two events, and what each event does to it.

use super::commit::Commit;
use crate::chunk::Chunk;
use crate::image::{Image, Line, Lines};
use crate::line::LineMap;
use crate::model::{Model, Rules};
use crate::observed::Observed;
use crate::trace::{Event, EventKind, Trace};
use std::collections::BTreeMap;
use std::collections::hash_map;

/// The state of the persistent memory between two events of a record.
///
/// A crash now leaves the floor and any legal choice among the pending chunks; see
/// [`Choices`](crate::choices::Choices).
#[derive(Clone)]
pub(crate) struct Machine<'t> {
    pub(super) rules: Rules,
    pub(super) start: &'t Image,
    pub(super) trace: &'t Trace,
    /// What is durable for sure: the start, and over it one layer of lines that became durable since.
    pub(super) floor: Image,
    /// Pending write-back stores by unit, in order.
    pub(super) write_back: BTreeMap<u64, Vec<Chunk>>,
    /// Pending non-temporal stores by word, in order.
    pub(super) non_temporal: BTreeMap<u64, Vec<Chunk>>,
    /// How many chunks are pending, by word.
    pub(super) pending_count: LineMap<u32>,
    /// Goes up with each chunk that becomes pending.
    pub(super) news: u64,
    /// How many events had happened when a process was last killed.
    pub(super) killed: usize,
    /// What the next fence of any thread commits: a process that opens an ordinary file flushes all of it, for what another
    /// process left in the page cache.
    pub(super) reopened: Vec<Commit>,
    /// By thread: what its next fence commits.
    pub(super) flushed: BTreeMap<u32, Vec<Commit>>,
    /// By thread: what is ordered before its next store, but not waited for.
    pub(super) ordered: BTreeMap<u32, Vec<Commit>>,
    /// Whether pending chunks are ordered before an event.
    pub(super) has_ordered: bool,
    /// Who stored what last, if threads load what others store.
    pub(super) observed: Option<Observed>,
}

impl<'t> Machine<'t> {
    pub(crate) fn new(rules: Rules, start: &'t Image, trace: &'t Trace) -> Self {
        Self {
            rules,
            start,
            trace,
            floor: start.overlaid(Lines::default(), 0),
            write_back: BTreeMap::new(),
            non_temporal: BTreeMap::new(),
            pending_count: LineMap::default(),
            news: 0,
            killed: 0,
            reopened: Vec::new(),
            flushed: BTreeMap::new(),
            ordered: BTreeMap::new(),
            has_ordered: false,
            observed: Observed::of(trace),
        }
    }

    pub(crate) const fn rules(&self) -> &Rules {
        &self.rules
    }

    /// What was durable before the run.
    pub(crate) const fn start(&self) -> &'t Image {
        self.start
    }

    pub(crate) const fn trace(&self) -> &'t Trace {
        self.trace
    }

    /// Goes up whenever something becomes pending.
    pub(crate) const fn news(&self) -> u64 {
        self.news
    }

    /// Pending write-back stores, unit by unit, each in order.
    pub(crate) fn write_back(&self) -> impl Iterator<Item = &[Chunk]> {
        self.write_back.values().map(Vec::as_slice)
    }

    /// Pending non-temporal stores, word by word, each in order.
    pub(crate) fn non_temporal(&self) -> impl Iterator<Item = &[Chunk]> {
        self.non_temporal.values().map(Vec::as_slice)
    }

    /// Whether what may be kept of one line depends on what is kept of others.
    pub(crate) const fn has_order_across_lines(&self) -> bool {
        self.has_ordered
    }

    /// Whether the event makes something durable that is not so now: what is pending, or itself.
    pub(crate) fn commits_at(&self, at: usize) -> bool {
        self.is_durable_at_once(&self.trace.events()[at])
            || self.due(at).any(|commit| self.covered(commit).next().is_some())
    }

    /// A locked instruction leaves nothing in the store buffer, itself included, and with caches kept that is all it takes.
    fn is_durable_at_once(&self, event: &Event) -> bool {
        matches!(event.kind, EventKind::Exchange { .. })
            && self.exchange_commits()
            && self.rules.model == Model::Eadr
    }

    /// Carries out one event: first what it commits, then what it does.
    pub(crate) fn step(&mut self, at: usize) {
        let event = &self.trace.events()[at];
        let due: Vec<Commit> = self.due(at).collect();
        for commit in due {
            self.commit(commit);
        }
        let thread = event.thread;
        if self.drains(event) {
            self.reopened.clear();
            self.flushed.remove(&thread);
            self.ordered.remove(&thread);
        }
        if event.kind.is_store() {
            self.order(at, thread);
        }
        match event.kind {
            EventKind::Store { offset, data } => self.store(at, offset, self.trace.data(data)),
            EventKind::StoreU128 { offset, data } => {
                Chunk::of_pair(at, offset, self.trace.data(data)).for_each(|chunk| self.cache(chunk));
            }
            EventKind::Exchange { offset, data } => {
                self.store(at, offset, self.trace.data(data));
                if let Some(everything) = self.everything(at + 1).filter(|_| self.is_durable_at_once(event)) {
                    self.commit(everything);
                }
            }
            EventKind::StoreNt { offset, data } => {
                self.store_nt(at, thread, offset, self.trace.data(data));
            }
            EventKind::Flush { offset, len_bytes } => {
                let snapshots = self.snapshots(at, offset, len_bytes);
                self.flushed.entry(thread).or_default().extend(snapshots);
            }
            EventKind::FlushOrdered { offset, len_bytes } => {
                // An ordinary file is not reached by CPU instructions.
                if self.rules.model != Model::Page {
                    let snapshots = self.snapshots(at, offset, len_bytes);
                    self.ordered.entry(thread).or_default().extend(snapshots);
                }
            }
            EventKind::Fence if self.fence_only_orders() => {
                let mut commits = self.flushed.remove(&thread).unwrap_or_default();
                commits.push(Commit::NonTemporal { thread, before: at });
                commits.extend(self.everything(at));
                self.ordered.entry(thread).or_default().extend(commits);
            }
            EventKind::Kill => self.kill(at),
            EventKind::Fence | EventKind::FullFence | EventKind::Ack | EventKind::Load { .. } => {}
        }
        if let Some(observed) = &mut self.observed {
            observed.note(at, event);
        }
    }

    /// The lines that the chunks change, over the floor, and how that changes the fingerprint.
    pub(super) fn merged(&self, chunks: &mut [Chunk]) -> (Lines, u128) {
        // Two chunks of one word can come from different chains; the later store wins.
        chunks.sort_unstable_by_key(|chunk| (chunk.line(), chunk.event));
        let mut lines = Lines::default();
        let mut change = 0;
        for of_line in chunks.chunk_by(|a, b| a.line() == b.line()) {
            let number = of_line[0].line();
            let old = self.durable_line(number);
            let mut new = *old;
            of_line.iter().for_each(|chunk| chunk.apply(&mut new));
            change ^= self.start.fingerprint_change(number, old, &new);
            lines.insert(number, new);
        }
        (lines, change)
    }

    /// What the line holds for sure.
    pub(crate) fn durable_line(&self, number: u64) -> &Line {
        self.floor.line(number)
    }

    fn exchange_commits(&self) -> bool {
        self.rules.exchange_fences && self.rules.model != Model::Page
    }

    /// `msync` waits, whatever `sfence` does.
    fn fence_only_orders(&self) -> bool {
        self.rules.strict_ack && self.rules.model != Model::Page
    }

    /// Whether the event waits until all that its thread stored has left the store buffer.
    pub(super) fn drains(&self, event: &Event) -> bool {
        match event.kind {
            EventKind::Exchange { .. } => self.exchange_commits(),
            EventKind::Fence => !self.fence_only_orders(),
            EventKind::FullFence => self.rules.model != Model::Page,
            _ => false,
        }
    }

    fn store(&mut self, at: usize, offset: u64, bytes: &[u8]) {
        for chunk in Chunk::of_store(at, offset, bytes) {
            self.cache(chunk);
        }
    }

    /// All of it is durable at the thread's next fence, and nothing else is: that ragged ends go through the cache, and
    /// are flushed, is no promise for what else their lines hold. On an ordinary file there is no way around the page
    /// cache, so that all of it is stored and flushed.
    fn store_nt(&mut self, at: usize, thread: u32, offset: u64, bytes: &[u8]) {
        for chunk in Chunk::of_store(at, offset, bytes) {
            if self.rules.model == Model::Page {
                self.cache(chunk);
                let snapshot = self.snapshots(at + 1, chunk.offset(), 1);
                self.flushed.entry(thread).or_default().extend(snapshot);
            } else if !self.changes_nothing(&chunk) {
                self.note_pending(&chunk);
                self.non_temporal.entry(chunk.word).or_default().push(chunk);
            }
        }
    }

    fn cache(&mut self, chunk: Chunk) {
        if self.changes_nothing(&chunk) {
            return;
        }
        self.note_pending(&chunk);
        let unit = self.rules.model.unit(chunk.offset());
        self.write_back.entry(unit).or_default().push(chunk);
    }

    /// Whether the bytes are what the medium holds already, whatever happens: such a store is none.
    fn changes_nothing(&self, chunk: &Chunk) -> bool {
        if self.pending_count.contains_key(&chunk.word) {
            return false;
        }
        let line = self.durable_line(chunk.line());
        let mut stored = *line;
        chunk.apply(&mut stored);
        stored == *line
    }

    fn note_pending(&mut self, chunk: &Chunk) {
        self.news += 1;
        *self.pending_count.entry(chunk.word).or_default() += 1;
    }

    pub(super) fn note_gone(&mut self, chunk: &Chunk) {
        if let hash_map::Entry::Occupied(mut count) = self.pending_count.entry(chunk.word) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// What a flush of the range promises its fence: each unit as it was before that event.
    fn snapshots(&self, before: usize, offset: u64, len_bytes: u64) -> Vec<Commit> {
        if len_bytes == 0 || self.rules.model == Model::Eadr {
            return Vec::new();
        }
        let unit_of = |position| self.rules.model.unit(position);
        let units = unit_of(offset)..=unit_of(offset + len_bytes - 1);
        let mut reached: Vec<u64> = self.write_back.range(units.clone()).map(|(&unit, _)| unit).collect();
        let orphans = self.orphans(|unit| units.contains(&unit));
        reached.extend(orphans.map(|chunk| unit_of(chunk.offset())));
        reached.into_iter().map(|unit| Commit::Unit { unit, before }).collect()
    }

    /// A store around the cache and one through it can overtake each other; once the later is durable, what the
    /// older one stored to the same bytes is gone.
    pub(super) fn forget_older(&mut self, durable: &Chunk) {
        let unit = self.rules.model.unit(durable.offset());
        let mut gone = Vec::new();
        for (pending_by, key) in [(&mut self.write_back, unit), (&mut self.non_temporal, durable.word)] {
            if let Some(pending) = pending_by.get_mut(&key) {
                pending.iter_mut().for_each(|chunk| chunk.yield_to(durable));
                gone.extend(pending.extract_if(.., |chunk| chunk.mask == 0));
                if pending.is_empty() {
                    pending_by.remove(&key);
                }
            }
        }
        gone.iter().for_each(|chunk| self.note_gone(chunk));
    }
}
