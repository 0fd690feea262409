//! The machine: replays a record and knows, at each step, what is durable for sure and what is pending.

use crate::chunk::Chunk;
use crate::image::{Image, Line, Lines};
use crate::lines::LineMap;
use crate::model::{Model, Rules};
use crate::trace::{Event, EventKind, Trace};
use std::collections::BTreeMap;
use std::collections::hash_map::Entry;

/// What a fence, a locked instruction or an ordered flush makes durable: chunks of events before `before`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Commit {
    /// Write-back stores of one unit: the snapshot that a flush took.
    Unit { unit: u64, before: usize },
    /// The non-temporal stores of one thread.
    NonTemporal { thread: u32, before: usize },
}

/// The state of the persistent memory between two events of a record.
///
/// A crash now leaves the floor and any legal choice among the pending chunks; see
/// [`Choices`](crate::choices::Choices).
pub(crate) struct Machine<'t> {
    rules: Rules,
    start: &'t Image,
    trace: &'t Trace,
    /// What is durable for sure: the start, and over it one layer of lines that became durable since.
    floor: Image,
    /// Pending write-back stores by unit, in order.
    write_back: BTreeMap<u64, Vec<Chunk>>,
    /// Pending non-temporal stores by word, in order.
    non_temporal: BTreeMap<u64, Vec<Chunk>>,
    /// How many chunks are pending, by word.
    pending_count: LineMap<u32>,
    /// Goes up with each chunk that becomes pending.
    news: u64,
    /// By thread: what its next fence commits.
    flushed: BTreeMap<u32, Vec<Commit>>,
    /// By thread: what is ordered before its next store, but not waited for.
    ordered: BTreeMap<u32, Vec<Commit>>,
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
            flushed: BTreeMap::new(),
            ordered: BTreeMap::new(),
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

    /// Whether the event, before it takes effect, makes something durable that is pending now.
    pub(crate) fn commits_at(&self, at: usize) -> bool {
        self.due(&self.trace.events()[at]).any(|commit| self.has_pending(commit))
    }

    /// Carries out one event: first what it commits, then what it does.
    pub(crate) fn step(&mut self, at: usize) {
        let event = &self.trace.events()[at];
        let due: Vec<Commit> = self.due(event).collect();
        for commit in due {
            self.commit(commit);
        }
        let thread = event.thread;
        match event.kind {
            EventKind::Store { offset, data } => self.store(at, offset, self.trace.data(data)),
            EventKind::StoreU128 { offset, data } => {
                Chunk::of_pair(at, offset, self.trace.data(data)).for_each(|chunk| self.cache(chunk));
            }
            EventKind::Exchange { offset, data } => {
                self.ordered.remove(&thread);
                if self.exchange_commits() {
                    self.flushed.remove(&thread);
                }
                self.store(at, offset, self.trace.data(data));
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
            EventKind::FullFence if self.rules.model == Model::Page => {}
            EventKind::Fence | EventKind::FullFence => {
                self.flushed.remove(&thread);
                self.ordered.remove(&thread);
            }
            EventKind::Ack | EventKind::Load { .. } => {}
        }
    }

    /// The image that a crash leaves if, of what is pending, exactly `kept` had reached the medium.
    pub(crate) fn image(&self, kept: &mut [Chunk]) -> Image {
        let (lines, change) = self.merged(kept);
        self.floor.overlaid(lines, change)
    }

    /// The lines that the chunks change, over the floor, and how that changes the fingerprint.
    fn merged(&self, chunks: &mut [Chunk]) -> (Lines, u128) {
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

    /// What the event makes durable before it takes effect.
    fn due(&self, event: &Event) -> impl Iterator<Item = Commit> {
        let (ordered, flushed) = match event.kind {
            EventKind::Store { .. }
            | EventKind::StoreU128 { .. }
            | EventKind::StoreNt { .. }
            | EventKind::FlushOrdered { .. } => (true, false),
            EventKind::Exchange { .. } => (true, self.exchange_commits()),
            EventKind::Fence => (!self.fence_only_orders(), !self.fence_only_orders()),
            EventKind::FullFence => (self.rules.model != Model::Page, self.rules.model != Model::Page),
            EventKind::Flush { .. } | EventKind::Ack | EventKind::Load { .. } => (false, false),
        };
        let thread = event.thread;
        let before = usize::MAX;
        let of = |commits: &BTreeMap<u32, Vec<Commit>>, take: bool| {
            commits.get(&thread).filter(|_| take).cloned().unwrap_or_default()
        };
        let everything = self.everything(before).filter(|_| flushed);
        let non_temporal = flushed.then_some(Commit::NonTemporal { thread, before });
        of(&self.ordered, ordered)
            .into_iter()
            .chain(of(&self.flushed, flushed))
            .chain(everything)
            .chain(non_temporal)
    }

    /// With caches kept, a fence commits all that was stored through them.
    fn everything(&self, before: usize) -> Option<Commit> {
        (self.rules.model == Model::Eadr).then(|| Commit::Unit { unit: Model::Eadr.unit(0), before })
    }

    fn has_pending(&self, commit: Commit) -> bool {
        match commit {
            Commit::Unit { unit, before } => self
                .write_back
                .get(&unit)
                .and_then(|pending| pending.first())
                .is_some_and(|oldest| oldest.event < before),
            Commit::NonTemporal { thread, before } => {
                self.non_temporal.values().flatten().any(|chunk| is_of(self.trace, chunk, thread, before))
            }
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

    fn note_gone(&mut self, chunk: &Chunk) {
        if let Entry::Occupied(mut count) = self.pending_count.entry(chunk.word) {
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
        self.write_back.range(units).map(|(&unit, _)| Commit::Unit { unit, before }).collect()
    }

    /// Moves what the commit covers into the floor.
    fn commit(&mut self, commit: Commit) {
        let mut durable = match commit {
            Commit::Unit { unit, before } => self.take_unit(unit, before),
            Commit::NonTemporal { thread, before } => self.take_non_temporal(thread, before),
        };
        let (lines, change) = self.merged(&mut durable);
        self.floor.absorb(lines, change);
        for chunk in &durable {
            self.note_gone(chunk);
        }
        for chunk in &durable {
            self.forget_older(chunk);
        }
    }

    fn take_unit(&mut self, unit: u64, before: usize) -> Vec<Chunk> {
        let Some(pending) = self.write_back.get_mut(&unit) else {
            return Vec::new();
        };
        let count = pending.partition_point(|chunk| chunk.event < before);
        let durable = pending.drain(..count).collect();
        if pending.is_empty() {
            self.write_back.remove(&unit);
        }
        durable
    }

    fn take_non_temporal(&mut self, thread: u32, before: usize) -> Vec<Chunk> {
        let trace = self.trace;
        let covered = |chunk: &Chunk| is_of(trace, chunk, thread, before);
        let mut durable = Vec::new();
        self.non_temporal.retain(|_, pending| {
            durable.extend(pending.iter().copied().filter(covered));
            pending.retain(|chunk| !covered(chunk));
            !pending.is_empty()
        });
        durable
    }

    /// A store around the cache and one through it can overtake each other; once the later is durable, what the
    /// older one stored to the same bytes is gone.
    fn forget_older(&mut self, durable: &Chunk) {
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

/// Whether the thread stored the chunk before that event.
fn is_of(trace: &Trace, chunk: &Chunk, thread: u32, before: usize) -> bool {
    chunk.event < before && trace.events()[chunk.event].thread == thread
}
