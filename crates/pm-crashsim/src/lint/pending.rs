//! The lints' view of the machine: the stores that a crash could still lose, and the unfenced flushes that cover them.

use crate::Survivor;
use crate::image::Image;
use crate::line::{LineMap, lines};
use crate::model::{Chunk, Machine, Model, NEVER, Promise, Rules};
use crate::trace::Trace;
use core::ops::Range;
use std::collections::{BTreeMap, HashSet};

/// The stores that are not durable, between two events of a record.
pub(super) struct Pending<'t> {
    machine: Machine<'t>,
    /// By line: the first store to it after all earlier ones became durable. Flushes before it do not matter any more.
    since: LineMap<usize>,
    reported: HashSet<Survivor>,
}

/// A chunk that is not durable.
#[derive(Clone, Copy)]
pub(super) struct Stored {
    pub(super) chunk: Chunk,
    pub(super) thread: u32,
    /// It bypassed the cache, and waits for its thread's fence.
    pub(super) is_streamed: bool,
}

/// The store and the line of each chunk that has become durable.
pub(super) type Durable = Vec<(usize, u64)>;

impl<'t> Pending<'t> {
    /// `start` may be any image: the lints consider no contents.
    pub(super) fn new(start: &'t Image, trace: &'t Trace, model: Model, exchange_fences: bool) -> Self {
        let rules = Rules { model, exchange_fences, for_lints: true, ..Rules::default() };
        let machine = Machine::new(rules, start, trace);
        Self { machine, since: LineMap::default(), reported: HashSet::new() }
    }

    /// The stores on that line, in order.
    pub(super) fn line(&self, number: u64) -> Vec<Stored> {
        self.stores_in(number..number + 1)
    }

    /// The unreported stores of a thread, or of all threads, that no later store has replaced, each with
    /// the latest flush that covers it, preferably of its own thread. They count as reported from now on.
    pub(super) fn take_unreported(&mut self, thread: Option<u32>) -> Vec<(Stored, Option<Promise>)> {
        let mut promises: LineMap<Vec<Promise>> = LineMap::default();
        self.promises().for_each(|promise| promises.entry(promise.unit).or_default().push(promise));
        let mut unreported = Vec::new();
        for line in self.stores_in(0..u64::MAX / 64).chunk_by(|a, b| a.chunk.line() == b.chunk.line()) {
            for (index, store) in line.iter().enumerate() {
                let is_wanted = thread.is_none_or(|thread| thread == store.thread);
                if is_wanted && self.report(store) && !is_overwritten(line, index) {
                    let of_line = promises.get(&store.chunk.line()).into_iter().flatten();
                    let covering = of_line.filter(|by| !store.is_streamed && store.chunk.event < by.before);
                    let latest =
                        covering.max_by_key(|by| (by.thread == Some(store.thread), by.before, by.flush));
                    unreported.push((*store, latest.copied()));
                }
            }
        }
        unreported
    }

    /// Marks the store as reported, and returns whether it was not so before.
    pub(super) fn report(&mut self, store: &Stored) -> bool {
        self.reported.insert(store.chunk.as_survivor())
    }

    pub(super) fn is_reported(&self, store: &Stored) -> bool {
        self.reported.contains(&store.chunk.as_survivor())
    }

    /// Whether these lines hold a store through the cache.
    pub(super) fn has_cached(&self, lines: Range<u64>) -> bool {
        self.stores_in(lines).iter().any(|store| !store.is_streamed)
    }

    /// The thread's latest unfenced flush of each line.
    pub(super) fn flushes_of(&self, thread: u32) -> BTreeMap<u64, Promise> {
        let mut latest: BTreeMap<u64, Promise> = BTreeMap::new();
        for promise in self.promises().filter(|promise| promise.thread == Some(thread)) {
            let known = latest.entry(promise.unit).or_insert(promise);
            if (known.before, known.flush) < (promise.before, promise.flush) {
                *known = promise;
            }
        }
        latest
    }

    /// Applies one event, and returns what it made durable.
    pub(super) fn step(&mut self, at: usize) -> Durable {
        self.machine.step(at);
        let kind = self.machine.trace().events()[at].kind;
        if let Some((offset, len_bytes)) = kind.extent().filter(|_| kind.is_store()) {
            for line in lines(offset, len_bytes) {
                let is_older = |chunk: &Chunk| is_losable(chunk) && chunk.event < at;
                if !self.machine.pending_in(line..line + 1).any(is_older) {
                    self.since.insert(line, at);
                }
            }
        }
        let mut durable = self.machine.take_became_durable();
        durable.sort_by_key(|&(event, line)| (line, event));
        durable
    }

    /// The stores on these lines, line by line, each line's in order.
    fn stores_in(&self, lines: Range<u64>) -> Vec<Stored> {
        let chunks = self.machine.pending_in(lines).filter(|chunk| is_losable(chunk));
        let mut stores: Vec<Stored> = chunks
            .map(|chunk| Stored {
                chunk: *chunk,
                thread: self.machine.trace().events()[chunk.event].thread,
                is_streamed: self.machine.is_streamed(chunk),
            })
            .collect();
        stores.sort_by_key(|store| (store.chunk.line(), store.chunk.as_survivor()));
        stores
    }

    fn promises(&self) -> impl Iterator<Item = Promise> {
        self.machine
            .promises()
            .filter(|promise| self.since.get(&promise.unit).is_none_or(|&since| since < promise.before))
    }
}

/// Whether stores on that line replaced every byte of that one after it.
pub(super) fn is_overwritten(line: &[Stored], index: usize) -> bool {
    let Chunk { word, mask, .. } = line[index].chunk;
    let later = line[index + 1..].iter().filter(|later| later.chunk.word == word);
    mask & !later.fold(0, |covered, later| covered | later.chunk.mask) == 0
}

/// For lints, a chunk that is ordered before a store counts as durable.
fn is_losable(chunk: &Chunk) -> bool {
    chunk.ordered_at == NEVER
}
