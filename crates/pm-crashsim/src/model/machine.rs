//! The machine: replays a record, and has after each event what is durable for certain and what is pending.

use super::chunk::{Chunk, NEVER, Survivor};
use super::rules::{Model, Rules};
use crate::image::Image;
use crate::line::{LINE, Line, LineMap, Lines, WORD, index, pieces};
use crate::trace::{Event, EventKind, Trace};
use core::ops::Range;
use std::collections::{BTreeMap, HashMap, HashSet, btree_map, hash_map};

/// The state of the persistent memory between two events of a record.
///
/// A crash now leaves the floor and any legal choice among the pending chunks; see [`Choices`](super::Choices).
#[derive(Clone)]
pub(crate) struct Machine<'t> {
    rules: Rules,
    start: &'t Image,
    trace: &'t Trace,
    /// The contents that are durable for certain: the start, and over it one layer of lines that became durable since.
    floor: Image,
    /// Pending write-back stores by unit, in order.
    write_back: BTreeMap<u64, Vec<Chunk>>,
    /// Pending non-temporal stores by word, in order.
    non_temporal: BTreeMap<u64, Vec<Chunk>>,
    /// The number of pending chunks, by word.
    pending_count: LineMap<u32>,
    /// Counts the chunks that became pending.
    news: u64,
    /// The number of events before the last kill.
    killed: usize,
    /// Committed by the next fence of any thread: a process that opens an ordinary file flushes all of it, for the stores that another
    /// process left in the page cache.
    reopened: Vec<Commit>,
    /// By thread: committed by its next fence.
    flushed: BTreeMap<u32, Vec<Commit>>,
    /// By thread: ordered before its next store, but not waited for.
    ordered: BTreeMap<u32, Vec<Commit>>,
    /// Whether pending chunks are ordered before an event.
    has_ordered: bool,
    /// The last store to each byte, if threads load stores of other threads.
    observed: Option<Observed>,
    /// For lints: the stores and lines of the chunks that became durable since they were last taken.
    became_durable: Vec<(usize, u64)>,
}

/// An unfenced flush of one unit.
#[derive(Clone, Copy)]
pub(crate) struct Promise {
    /// The thread whose fence it waits for; `None` for any thread.
    pub(crate) thread: Option<u32>,
    pub(crate) unit: u64,
    /// The flush; or a non-temporal store to an ordinary file, which is flushed immediately; or a kill.
    pub(crate) flush: usize,
    /// It covers the stores of events before this one.
    pub(crate) before: usize,
}

/// The chunks that a fence, a locked instruction or an ordered flush makes durable: those of events before `before`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Commit {
    /// Write-back stores of one unit: the snapshot that a flush took, or the store of the event before `before`.
    Unit { unit: u64, before: usize, by_store: bool },
    /// The non-temporal stores of one thread.
    NonTemporal { thread: u32, before: usize },
    /// With caches kept, the stores that have left the store buffer.
    Cached { before: usize },
    /// Chunks that are ordered before an event before that one.
    Ordered { before: usize },
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
            observed: if rules.for_lints { None } else { Observed::of(trace) },
            became_durable: Vec::new(),
        }
    }

    /// The state after that many events.
    pub(crate) fn at(rules: Rules, start: &'t Image, trace: &'t Trace, events: usize) -> Self {
        let mut machine = Self::new(rules, start, trace);
        (0..events).for_each(|at| machine.step(at));
        machine
    }

    pub(crate) const fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The durable contents before the run.
    pub(crate) const fn start(&self) -> &'t Image {
        self.start
    }

    pub(crate) const fn trace(&self) -> &'t Trace {
        self.trace
    }

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

    /// The pending chunks on these lines.
    pub(crate) fn pending_in(&self, lines: Range<u64>) -> impl Iterator<Item = &Chunk> {
        let (line, words_of) = (LINE as u64, (LINE / WORD) as u64);
        let words = lines.start * words_of..lines.end * words_of;
        let units = self.rules.units(lines.start * line, (lines.end - lines.start) * line);
        let (cached, around) = (self.write_back.range(units), self.non_temporal.range(words.clone()));
        cached.chain(around).flat_map(|(_, chunks)| chunks).filter(move |chunk| words.contains(&chunk.word))
    }

    /// Whether the chunk bypassed the cache, and waits for its thread's fence.
    pub(crate) fn is_streamed(&self, chunk: &Chunk) -> bool {
        self.rules.model != Model::Page && chunk.event >= self.killed && self.is_around(chunk)
    }

    /// The unfenced flushes.
    pub(crate) fn promises(&self) -> impl Iterator<Item = Promise> {
        let of_threads = self.flushed.iter().chain(&self.ordered).map(|(&thread, of)| (Some(thread), of));
        let all = of_threads.chain([(None, &self.reopened)]);
        all.flat_map(|(thread, commits)| commits.iter().map(move |commit| (thread, commit))).filter_map(
            |(thread, commit)| match *commit {
                Commit::Unit { unit, before, by_store } => {
                    Some(Promise { thread, unit, flush: before - usize::from(by_store), before })
                }
                _ => None,
            },
        )
    }

    /// The stores and lines of the chunks that became durable since the last call.
    pub(crate) fn take_became_durable(&mut self) -> Vec<(usize, u64)> {
        core::mem::take(&mut self.became_durable)
    }

    /// Whether the legal parts of one line depend on those of others.
    pub(crate) const fn has_order_across_lines(&self) -> bool {
        self.has_ordered
    }

    /// Whether the event makes something durable that is not so now: pending chunks, or itself.
    pub(crate) fn commits_at(&self, at: usize) -> bool {
        self.rules.is_durable_at_once(&self.trace.events()[at])
            || self.due(at).any(|commit| self.covered(commit).next().is_some())
    }

    /// Applies one event: first its commits, then its own effect.
    pub(crate) fn step(&mut self, at: usize) {
        let event = &self.trace.events()[at];
        let due: Vec<Commit> = self.due(at).collect();
        for commit in due {
            self.commit(commit);
        }
        let thread = event.thread;
        if self.rules.drains(event) {
            self.reopened.clear();
            if self.rules.waits_for_all_threads() {
                self.flushed.clear();
            }
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
                if let Some(everything) =
                    self.everything(at + 1).filter(|_| self.rules.is_durable_at_once(event))
                {
                    self.commit(everything);
                }
            }
            EventKind::StoreNt { offset, data } => {
                self.store_nt(at, thread, offset, self.trace.data(data));
            }
            EventKind::Flush { offset, len_bytes } => {
                let snapshots = self.snapshots(at, false, offset, len_bytes);
                self.flushed.entry(thread).or_default().extend(snapshots);
            }
            EventKind::FlushOrdered { offset, len_bytes } => {
                // CPU instructions do not reach an ordinary file.
                if self.rules.model != Model::Page {
                    let snapshots = self.snapshots(at, false, offset, len_bytes);
                    self.ordered.entry(thread).or_default().extend(snapshots);
                }
            }
            EventKind::Fence if self.rules.fence_only_orders() => {
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

    /// The durable content of the line.
    pub(crate) fn durable_line(&self, number: u64) -> &Line {
        self.floor.line(number)
    }

    /// The image that a crash leaves if `kept` of the pending chunks had reached the medium. Adds chunks that must be there then, and
    /// removes chunks that cannot be.
    pub(crate) fn image(&self, kept: &mut Vec<Chunk>) -> Image {
        self.add_ordered(kept);
        self.enforce_word_order(kept);
        let (lines, change) = self.merged(kept);
        self.floor.overlaid(lines, change)
    }

    /// Stores to one word become durable in order, around the cache and through it: adds to `kept` older stores to the word of a
    /// kept one, and removes stores whose older ones are lost.
    pub(crate) fn enforce_word_order(&self, kept: &mut Vec<Chunk>) {
        if !self.rules.model.orders_words() {
            return;
        }
        for (word, around) in &self.non_temporal {
            // Most words are stored to in one way only.
            let count = self.pending_count.get(word).map_or(0, |&count| index(count.into()));
            if count > around.len() {
                self.enforce_order_in(*word, around, kept);
            }
        }
    }

    /// The same state, of a record that begins with the same events.
    pub(crate) fn on<'o>(&self, trace: &'o Trace) -> Machine<'o>
    where
        't: 'o,
    {
        let observed = self.observed.clone().or_else(|| Observed::of(trace));
        Machine { trace, observed, ..self.clone() }
    }

    /// The state if the process is killed now, after that many events.
    pub(crate) fn killed(&self, events: usize) -> Self {
        let mut killed = self.clone();
        killed.kill(events);
        killed
    }

    /// The lines that the chunks change, over the floor, and the change of the fingerprint.
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

    fn store(&mut self, at: usize, offset: u64, bytes: &[u8]) {
        for chunk in Chunk::of_store(at, offset, bytes) {
            self.cache(chunk);
        }
    }

    /// All of it is durable at the thread's next fence, and nothing else is: ragged ends go through the cache and are flushed, but that promises
    /// nothing for the rest of their lines. An ordinary file cannot bypass the page cache, so all of the store is cached and flushed.
    fn store_nt(&mut self, at: usize, thread: u32, offset: u64, bytes: &[u8]) {
        for chunk in Chunk::of_store(at, offset, bytes) {
            if self.rules.model == Model::Page {
                self.cache(chunk);
                let snapshot = self.snapshots(at + 1, true, chunk.offset(), 1);
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
        let unit = self.rules.unit(chunk.offset());
        self.write_back.entry(unit).or_default().push(chunk);
    }

    /// Whether the medium holds these bytes already in any case: the store is then ignored.
    fn changes_nothing(&self, chunk: &Chunk) -> bool {
        if self.rules.for_lints || self.pending_count.contains_key(&chunk.word) {
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
        if let hash_map::Entry::Occupied(mut count) = self.pending_count.entry(chunk.word) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// The promise of a flush of the range to its fence: each unit as it was before that event.
    fn snapshots(&self, before: usize, by_store: bool, offset: u64, len_bytes: u64) -> Vec<Commit> {
        if len_bytes == 0 || self.rules.model == Model::Eadr {
            return Vec::new();
        }
        let units = self.rules.units(offset, len_bytes);
        let mut reached: Vec<u64> = self.write_back.range(units.clone()).map(|(&unit, _)| unit).collect();
        let orphans = self.orphans(|unit| units.contains(&unit));
        reached.extend(orphans.map(|chunk| self.rules.unit(chunk.offset())));
        reached.into_iter().map(|unit| Commit::Unit { unit, before, by_store }).collect()
    }

    /// A store around the cache and one through it can overtake each other; once the later is durable, the older one's bytes are gone.
    fn forget_older(&mut self, durable: &Chunk) {
        let unit = self.rules.unit(durable.offset());
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

    /// Adds the chunks that are ordered before a kept one.
    fn add_ordered(&self, kept: &mut Vec<Chunk>) {
        let Some(latest) = kept.iter().map(|chunk| chunk.event).max().filter(|_| self.has_ordered) else {
            return;
        };
        let known: HashSet<_> = kept.iter().map(Chunk::as_survivor).collect();
        let pending = self.write_back.values().chain(self.non_temporal.values()).flatten();
        let ordered = pending.filter(|chunk| chunk.ordered_at <= latest);
        kept.extend(ordered.filter(|chunk| !known.contains(&chunk.as_survivor())));
    }

    fn enforce_order_in(&self, word: u64, around: &[Chunk], kept: &mut Vec<Chunk>) {
        let unit = self.write_back.get(&self.rules.unit(around[0].offset()));
        let cached: Vec<&Chunk> = unit.into_iter().flatten().filter(|chunk| chunk.word == word).collect();
        let latest = cached.iter().filter(|chunk| chunk.is_among(kept)).map(|chunk| chunk.event).max();
        let is_needed = |chunk: &Chunk| latest.is_some_and(|latest| chunk.event < latest);
        let missing: Vec<&Chunk> = cached.into_iter().filter(|chunk| !chunk.is_among(kept)).collect();
        // All pieces of a store to the word are there before those of the next store.
        let wanted: Vec<Chunk> =
            around.iter().filter(|chunk| chunk.is_among(kept) || is_needed(chunk)).copied().collect();
        // The loss of replaced bytes is invisible.
        let is_hidden = |lost: &Chunk, around: &[Chunk]| {
            let later = around.iter().filter(|chunk| chunk.event > lost.event);
            let masks = later.map(|chunk| chunk.mask).reduce(|all, mask| all | mask);
            masks.is_none_or(|masks| lost.mask & !masks == 0)
        };
        let is_legal = |count: &usize| missing.iter().all(|lost| is_hidden(lost, &wanted[..*count]));
        let count = (0..=wanted.len()).rev().find(is_legal).unwrap_or(0);
        kept.retain(|chunk| chunk.word != word || !chunk.is_among(around));
        kept.extend(&wanted[..count]);
    }

    /// The caches stay, and unfenced flushes promise nothing any more. Store buffers run empty, so with caches
    /// that survive everything is durable, and without them everything ordered before a store.
    fn kill(&mut self, at: usize) {
        self.commit(Commit::Ordered { before: NEVER });
        self.flushed.clear();
        self.ordered.clear();
        let cached: Vec<u64> = self.write_back.keys().copied().collect();
        let commits = cached.into_iter().map(|unit| Commit::Unit { unit, before: at, by_store: false });
        match self.rules.model {
            Model::Eadr => self.commit(Commit::Cached { before: at }),
            Model::Page => self.reopened = commits.collect(),
            Model::Px86Line | Model::Px86Loc | Model::Chunk8 => {}
        }
        self.killed = at;
    }

    /// Non-temporal stores of killed processes, in these units: no fence waits for them any more, but a flush reaches them, because they are visible.
    fn orphans(&self, is_wanted: impl Fn(u64) -> bool) -> impl Iterator<Item = &Chunk> {
        let pending = self.non_temporal.values().take_while(|_| self.killed > 0).flatten();
        pending.filter(move |chunk| chunk.event < self.killed && is_wanted(self.rules.unit(chunk.offset())))
    }

    /// The commits of the event before it takes effect.
    fn due(&self, at: usize) -> impl Iterator<Item = Commit> {
        let event = &self.trace.events()[at];
        let (thread, drains) = (event.thread, self.rules.drains(event));
        let of = |commits: &BTreeMap<u32, Vec<Commit>>| match drains && self.rules.waits_for_all_threads() {
            true => commits.values().flatten().copied().collect(),
            false => commits.get(&thread).filter(|_| drains).cloned().unwrap_or_default(),
        };
        // A store that another thread has seen has left the store buffer, with all earlier ones.
        let before = match &self.observed {
            // The store buffer runs empty before another process runs.
            _ if drains || event.kind == EventKind::Kill => Some(usize::MAX),
            Some(observed) => observed.seen_by(event).map(|store| store + 1),
            None => None,
        };
        let ordered = before.filter(|_| self.has_ordered).map(|before| Commit::Ordered { before });
        let everything = match drains {
            true => self.everything(usize::MAX),
            false => before.and_then(|before| self.cached(before)),
        };
        let non_temporal = drains.then_some(Commit::NonTemporal { thread, before: usize::MAX });
        let reopened = matches!(event.kind, EventKind::Fence).then(|| self.reopened.clone());
        of(&self.ordered)
            .into_iter()
            .chain(reopened.into_iter().flatten())
            .chain(of(&self.flushed))
            .chain(ordered)
            .chain(everything)
            .chain(non_temporal)
    }

    /// With caches kept, a fence commits all stores through them, and those of killed processes around them.
    fn everything(&self, before: usize) -> Option<Commit> {
        (self.rules.model == Model::Eadr).then_some(Commit::Unit { unit: 0, before, by_store: false })
    }

    /// With caches kept, every store that has left the store buffer is durable.
    fn cached(&self, before: usize) -> Option<Commit> {
        (self.rules.model == Model::Eadr).then_some(Commit::Cached { before })
    }

    /// The pending chunks that the commit covers.
    fn covered(&self, commit: Commit) -> impl Iterator<Item = &Chunk> {
        let unit = match commit {
            Commit::Unit { unit, .. } => self.write_back.get(&unit),
            Commit::Cached { .. } => self.write_back.get(&0),
            _ => None,
        };
        let (write_back, non_temporal) = match commit {
            Commit::Unit { .. } | Commit::Cached { .. } => (None, None),
            Commit::NonTemporal { .. } => (None, Some(&self.non_temporal)),
            Commit::Ordered { .. } => (Some(&self.write_back), Some(&self.non_temporal)),
        };
        let in_maps = write_back.into_iter().chain(non_temporal).flat_map(BTreeMap::values);
        let orphans =
            self.orphans(move |unit| matches!(commit, Commit::Unit { unit: flushed, .. } if flushed == unit));
        in_maps.chain(unit).flatten().chain(orphans).filter(move |chunk| match commit {
            Commit::Unit { before, .. } | Commit::Cached { before } => chunk.event < before,
            Commit::NonTemporal { thread, before } => {
                chunk.event < before && self.trace.events()[chunk.event].thread == thread
            }
            Commit::Ordered { before } => chunk.ordered_at < before,
        })
    }

    /// The chunks that must be durable if all these pending chunks are: older stores to the same words, in the other way.
    fn older(&self, chunks: &[Chunk]) -> Vec<Chunk> {
        let mut older: Vec<Chunk> = Vec::new();
        if self.non_temporal.is_empty() || !self.rules.model.orders_words() {
            return older;
        }
        let mut known: HashSet<Survivor> = chunks.iter().map(Chunk::as_survivor).collect();
        // Older stores in the same way are among these already. The loss of replaced bytes is invisible.
        let replaces = |lost: &Chunk| {
            let later = chunks.iter().filter(|chunk| chunk.word == lost.word && chunk.event > lost.event);
            let masks = later.filter(|chunk| self.is_around(chunk)).fold(0, |all, chunk| all | chunk.mask);
            lost.mask & !masks == 0
        };
        // Most words are stored to in one way only.
        let is_mixed = |chunk: &&Chunk| {
            let around = self.non_temporal.get(&chunk.word).map_or(0, Vec::len);
            let all = self.pending_count.get(&chunk.word).map_or(0, |&count| index(count.into()));
            around > 0 && all > around
        };
        for chunk in chunks.iter().filter(is_mixed) {
            let is_around = self.is_around(chunk);
            let other_way = self.needed_by(chunk).filter(|older| self.is_around(older) != is_around);
            let seen = other_way.filter(|older| !is_around || !replaces(older));
            older.extend(seen.filter(|older| known.insert(older.as_survivor())));
        }
        let mut next = 0;
        while let Some(&chunk) = older.get(next) {
            older.extend(self.needed_by(&chunk).filter(|older| known.insert(older.as_survivor())));
            next += 1;
        }
        older
    }

    /// Whether it was stored around the cache.
    fn is_around(&self, chunk: &Chunk) -> bool {
        matches!(self.trace.events()[chunk.event].kind, EventKind::StoreNt { .. })
    }

    /// The pending chunks without which this one cannot be durable.
    fn needed_by(&self, chunk: &Chunk) -> impl Iterator<Item = Chunk> {
        let (chunk, model, is_around) = (*chunk, self.rules.model, self.is_around(chunk));
        let unit = self.write_back.get(&self.rules.unit(chunk.offset()));
        let cached = unit.into_iter().flatten().filter(move |older| match (is_around, model) {
            (true, _) => older.word == chunk.word && older.mask & !chunk.mask != 0,
            (false, Model::Px86Loc) => {
                older.word == chunk.word || (chunk.in_pair && older.pair() == chunk.pair())
            }
            (false, _) => true,
        });
        let around = self.non_temporal.get(&chunk.word).into_iter().flatten();
        let is_older = move |older: &&Chunk| {
            older.event < chunk.event || (chunk.in_pair && older.in_pair && older.event == chunk.event)
        };
        cached.chain(around).filter(is_older).copied()
    }

    /// Orders before this event the chunks that the thread's flushes, or its fence, ordered before its next store.
    fn order(&mut self, at: usize, thread: u32) {
        for commit in self.ordered.remove(&thread).unwrap_or_default() {
            let covered: Vec<Chunk> = self.covered(commit).copied().collect();
            let older = self.older(&covered);
            let names: HashSet<Survivor> = covered.iter().chain(&older).map(Chunk::as_survivor).collect();
            self.has_ordered |= !names.is_empty();
            let pending = self.write_back.values_mut().chain(self.non_temporal.values_mut()).flatten();
            for chunk in pending.filter(|chunk| names.contains(&chunk.as_survivor())) {
                if self.rules.for_lints && chunk.ordered_at == NEVER {
                    self.became_durable.push((chunk.event, chunk.line()));
                }
                chunk.ordered_at = chunk.ordered_at.min(at);
            }
        }
    }

    /// Moves what the commit covers into the floor.
    fn commit(&mut self, commit: Commit) {
        let mut durable = match commit {
            // Without non-temporal stores there is only one way.
            Commit::Unit { unit, before, .. } if self.non_temporal.is_empty() => self.take_unit(unit, before),
            _ => {
                let mut durable: Vec<Chunk> = self.covered(commit).copied().collect();
                durable.extend(self.older(&durable));
                self.take(&durable);
                durable
            }
        };
        if self.rules.for_lints {
            let new = durable.iter().filter(|chunk| chunk.ordered_at == NEVER);
            self.became_durable.extend(new.map(|chunk| (chunk.event, chunk.line())));
        } else {
            let (lines, change) = self.merged(&mut durable);
            self.floor.absorb(lines, change);
        }
        for chunk in &durable {
            self.note_gone(chunk);
        }
        for chunk in &durable {
            self.forget_older(chunk);
        }
        if commit == (Commit::Ordered { before: usize::MAX }) {
            self.has_ordered = false;
        }
    }

    /// Takes the oldest chunks out of a unit.
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

    /// Removes these chunks from the pending ones.
    fn take(&mut self, chunks: &[Chunk]) {
        let mut names: HashMap<(bool, u64), HashSet<Survivor>> = HashMap::new();
        for chunk in chunks {
            let is_around = self.is_around(chunk);
            let key = if is_around { chunk.word } else { self.rules.unit(chunk.offset()) };
            names.entry((is_around, key)).or_default().insert(chunk.as_survivor());
        }
        for ((is_around, key), names) in names {
            let pending_by = if is_around { &mut self.non_temporal } else { &mut self.write_back };
            if let btree_map::Entry::Occupied(mut pending) = pending_by.entry(key) {
                pending.get_mut().retain(|chunk| !names.contains(&chunk.as_survivor()));
                if pending.get().is_empty() {
                    pending.remove();
                }
            }
        }
    }
}

/// The last store to each byte.
#[derive(Clone)]
struct Observed {
    /// By word: for each byte, the number of the last store to it through the cache, plus one, and its thread. Zero without
    /// one, or if the last store bypassed the cache, which orders it with no other.
    last: LineMap<[(usize, u32); WORD]>,
}

impl Observed {
    /// `None` if no thread loads bytes that another one may have stored.
    fn of(trace: &Trace) -> Option<Self> {
        let events = trace.events();
        let first = events.first()?.thread;
        let is_shared = events.iter().any(|event| event.thread != first);
        let is_observer =
            |event: &Event| matches!(event.kind, EventKind::Load { .. } | EventKind::Exchange { .. });
        (is_shared && events.iter().any(is_observer)).then(|| Self { last: LineMap::default() })
    }

    /// The last store of another thread that, by this event, must have left the store buffer.
    fn seen_by(&self, event: &Event) -> Option<usize> {
        let EventKind::Load { .. } = event.kind else { return None };
        let (offset, len_bytes) = event.kind.extent()?;
        let of_word = |word: u64, bytes: Range<usize>| {
            let stores = self.last.get(&word).map_or(&[][..], |last| &last[bytes]);
            stores
                .iter()
                .filter(|(_, thread)| *thread != event.thread)
                .filter_map(|(at, _)| at.checked_sub(1))
                .max()
        };
        pieces(offset, index(len_bytes), WORD).filter_map(|piece| of_word(piece.unit, piece.within)).max()
    }

    /// Notes the stores of the event.
    fn note(&mut self, at: usize, event: &Event) {
        let Some((offset, len_bytes)) = event.kind.extent().filter(|_| event.kind.is_store()) else { return };
        let is_around = matches!(event.kind, EventKind::StoreNt { .. });
        for piece in pieces(offset, index(len_bytes), WORD) {
            let last = self.last.entry(piece.unit).or_default();
            last[piece.within].fill(if is_around { (0, 0) } else { (at + 1, event.thread) });
        }
    }
}
