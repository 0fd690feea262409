//! The stores that are not durable yet, line by line, and the flushes that have them in flight.

use crate::line::lines;
use crate::model::{Chunk, Model};
use crate::trace::{Event, EventKind, Trace};
use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};

/// The lines of a region that are not durable, between two events of a record.
///
/// Unlike [`Machine`](crate::model::Machine) it keeps no bytes, but which thread flushed what. A flush covers lines under
/// the page model too: code above the seam is written once, and must not rely on flushes that reach farther.
pub(super) struct Pending<'t> {
    trace: &'t Trace,
    model: Model,
    exchange_fences: bool,
    lines: BTreeMap<u64, Line>,
    /// By thread: the lines on which something waits for its fence.
    waiting: BTreeMap<u32, BTreeSet<u64>>,
    /// By thread: the lines ordered before its next store.
    ordered: BTreeMap<u32, BTreeSet<u64>>,
}

/// One line that is not durable.
#[derive(Default)]
pub(super) struct Line {
    /// In order.
    pub(super) stores: Vec<Stored>,
    snapshots: Vec<Snapshot>,
}

/// A chunk that is not durable.
#[derive(Clone, Copy)]
pub(super) struct Stored {
    pub(super) chunk: Chunk,
    pub(super) thread: u32,
    /// It bypassed the cache, and waits for its thread's fence.
    pub(super) is_streamed: bool,
    /// It bypassed the cache in a process that was killed, and waits for a flush of its line, or any fence with caches kept.
    pub(super) is_orphan: bool,
    /// It was reported.
    pub(super) is_reported: bool,
}

/// The promise of a flush to its fence: the write-back stores of events before `before`.
#[derive(Clone, Copy)]
pub(super) struct Snapshot {
    pub(super) thread: u32,
    /// The flush; or a non-temporal store to an ordinary file, which is flushed immediately.
    pub(super) flush: usize,
    pub(super) before: usize,
    /// `clflush`: comes before the thread's next store.
    is_ordered: bool,
}

/// The store and the line of each chunk that has become durable.
pub(super) type Durable = Vec<(usize, u64)>;

impl<'t> Pending<'t> {
    pub(super) const fn new(trace: &'t Trace, model: Model, exchange_fences: bool) -> Self {
        Self {
            trace,
            model,
            exchange_fences,
            lines: BTreeMap::new(),
            waiting: BTreeMap::new(),
            ordered: BTreeMap::new(),
        }
    }

    pub(super) fn line(&self, number: u64) -> Option<&Line> {
        self.lines.get(&number)
    }

    pub(super) fn line_mut(&mut self, number: u64) -> Option<&mut Line> {
        self.lines.get_mut(&number)
    }

    /// The unreported stores of a thread, or of all threads, that no later store has replaced, each with
    /// the flush that covers it. They count as reported from now on.
    pub(super) fn take_unreported(&mut self, thread: Option<u32>) -> Vec<(Stored, Option<Snapshot>)> {
        let mut unreported = Vec::new();
        for line in self.lines.values_mut() {
            for index in 0..line.stores.len() {
                let store = line.stores[index];
                if store.is_reported || thread.is_some_and(|thread| thread != store.thread) {
                    continue;
                }
                line.stores[index].is_reported = true;
                if !line.is_overwritten(index) {
                    unreported.push((store, line.snapshot_over(&store).copied()));
                }
            }
        }
        unreported
    }

    /// Whether these lines hold a store through the cache.
    pub(super) fn has_cached(&self, lines: Range<u64>) -> bool {
        self.lines.range(lines).flat_map(|(_, line)| &line.stores).any(|store| !store.is_streamed)
    }

    /// The numbers of the lines on which something waits for the thread's fence.
    pub(super) fn waiting_for(&self, thread: u32) -> Vec<u64> {
        self.waiting.get(&thread).into_iter().flatten().copied().collect()
    }

    /// Applies one event, and returns what it made durable.
    pub(super) fn step(&mut self, at: usize) -> Durable {
        let Event { kind, thread, .. } = self.trace.events()[at];
        let mut durable = Durable::new();
        match kind {
            EventKind::Store { offset, data } | EventKind::StoreU128 { offset, data } => {
                self.commit_ordered(thread, &mut durable);
                self.store(at, thread, offset, self.trace.data(data), false);
            }
            EventKind::Exchange { offset, data } => {
                let fences = self.exchange_fences && self.model != Model::Page;
                if fences {
                    self.fence(thread, &mut durable);
                } else {
                    self.commit_ordered(thread, &mut durable);
                }
                self.store(at, thread, offset, self.trace.data(data), false);
                if fences {
                    // Itself included.
                    self.drain(&mut durable);
                }
            }
            EventKind::StoreNt { offset, data } => {
                self.commit_ordered(thread, &mut durable);
                self.store(at, thread, offset, self.trace.data(data), true);
            }
            EventKind::Flush { offset, len_bytes } => self.flush(at, thread, offset, len_bytes, false),
            EventKind::FlushOrdered { offset, len_bytes } if self.model != Model::Page => {
                self.flush(at, thread, offset, len_bytes, true);
            }
            EventKind::Fence if self.model == Model::Page => {
                // One `msync` waits for what any thread flushed.
                for thread in self.waiting.keys().copied().collect::<Vec<_>>() {
                    self.fence(thread, &mut durable);
                }
            }
            EventKind::FullFence if self.model == Model::Page => {}
            EventKind::Fence | EventKind::FullFence => self.fence(thread, &mut durable),
            EventKind::Kill => self.kill(at, &mut durable),
            EventKind::FlushOrdered { .. } | EventKind::Ack | EventKind::Load { .. } => {}
        }
        durable
    }

    fn store(&mut self, at: usize, thread: u32, offset: u64, bytes: &[u8], around: bool) {
        for chunk in Chunk::of_store(at, offset, bytes) {
            let is_streamed = around && self.model != Model::Page;
            let line = self.lines.entry(chunk.line()).or_default();
            line.stores.push(Stored { chunk, thread, is_streamed, is_orphan: false, is_reported: false });
            if around {
                self.waiting.entry(thread).or_default().insert(chunk.line());
            }
            if around && !is_streamed {
                line.snapshots.push(Snapshot { thread, flush: at, before: at + 1, is_ordered: false });
            }
        }
    }

    fn flush(&mut self, at: usize, thread: u32, offset: u64, len_bytes: u64, is_ordered: bool) {
        if self.model == Model::Eadr {
            return;
        }
        for (&number, line) in self.lines.range_mut(lines(offset, len_bytes)) {
            line.snapshots.push(Snapshot { thread, flush: at, before: at, is_ordered });
            self.waiting.entry(thread).or_default().insert(number);
            if is_ordered {
                self.ordered.entry(thread).or_default().insert(number);
            }
        }
    }

    fn commit_ordered(&mut self, thread: u32, durable: &mut Durable) {
        for number in self.ordered.remove(&thread).unwrap_or_default() {
            self.change_line(number, |line| line.commit(number, thread, true, durable));
        }
    }

    fn fence(&mut self, thread: u32, durable: &mut Durable) {
        self.ordered.remove(&thread);
        for number in self.waiting.remove(&thread).unwrap_or_default() {
            self.change_line(number, |line| line.commit(number, thread, false, durable));
        }
        self.drain(durable);
    }

    /// With caches kept, every store that has left the store buffer is durable.
    fn drain(&mut self, durable: &mut Durable) {
        if self.model == Model::Eadr {
            for (&number, line) in &mut self.lines {
                line.take(number, durable, |store| !store.is_streamed);
            }
            self.lines.retain(|_, line| !line.stores.is_empty());
        }
    }

    /// The caches stay, and nothing is in flight any more. Stores that bypassed the caches are then reached by flushes.
    fn kill(&mut self, at: usize, durable: &mut Durable) {
        self.waiting.clear();
        self.ordered.clear();
        for (&number, line) in &mut self.lines {
            line.snapshots.clear();
            match self.model {
                Model::Eadr => line.take(number, durable, |store| !store.is_streamed && !store.is_orphan),
                Model::Page => {
                    // Opening an ordinary file flushes all of it, and the next fence of any thread waits for that.
                    let (thread, before) = (u32::MAX, at);
                    line.snapshots.push(Snapshot { thread, flush: at, before, is_ordered: false });
                    self.waiting.entry(thread).or_default().insert(number);
                }
                Model::Px86Line | Model::Px86Loc | Model::Chunk8 => {}
            }
            for store in &mut line.stores {
                store.is_orphan |= core::mem::take(&mut store.is_streamed);
            }
        }
        self.lines.retain(|_, line| !line.stores.is_empty());
    }

    /// Changes the line, and removes it if nothing is left of it.
    fn change_line(&mut self, number: u64, change: impl FnOnce(&mut Line)) {
        if let Some(line) = self.lines.get_mut(&number) {
            change(line);
            if line.stores.is_empty() {
                self.lines.remove(&number);
            }
        }
    }

    /// The event, the word and the bytes of every store that is not durable, to be compared with the machine.
    #[cfg(test)]
    pub(super) fn chunks(&self) -> BTreeSet<(usize, u64, u8)> {
        let stores = self.lines.values().flat_map(|line| &line.stores);
        stores.map(|store| (store.chunk.event, store.chunk.word, store.chunk.mask)).collect()
    }
}

impl Line {
    /// The thread's latest unfenced flush of the line.
    pub(super) fn snapshot_of(&self, thread: u32) -> Option<&Snapshot> {
        self.snapshots.iter().rev().find(|snapshot| snapshot.thread == thread)
    }

    /// The latest flush that covers the store, preferably of its own thread.
    pub(super) fn snapshot_over(&self, store: &Stored) -> Option<&Snapshot> {
        let covers = |snapshot: &&Snapshot| !store.is_streamed && store.chunk.event < snapshot.before;
        let own = self.snapshots.iter().rev().filter(covers).find(|by| by.thread == store.thread);
        own.or_else(|| self.snapshots.iter().rev().find(covers))
    }

    /// Whether later stores replaced every byte of that one.
    pub(super) fn is_overwritten(&self, index: usize) -> bool {
        let Chunk { word, mask, .. } = self.stores[index].chunk;
        let later = self.stores[index + 1..].iter().filter(|later| later.chunk.word == word);
        mask & !later.fold(0, |covered, later| covered | later.chunk.mask) == 0
    }

    /// Makes durable what waits for the thread.
    fn commit(&mut self, number: u64, thread: u32, ordered_only: bool, durable: &mut Durable) {
        let is_due = |by: &Snapshot| by.thread == thread && (by.is_ordered || !ordered_only);
        let before = self.snapshots.iter().filter(|by| is_due(by)).map(|by| by.before).max().unwrap_or(0);
        self.snapshots.retain(|by| !is_due(by));
        self.take(number, durable, |store| match store.is_streamed {
            true => store.thread == thread && !ordered_only,
            false => store.chunk.event < before,
        });
    }

    fn take(&mut self, number: u64, durable: &mut Durable, is_due: impl Fn(&Stored) -> bool) {
        let taken: Vec<Chunk> = self.stores.iter().filter(|&store| is_due(store)).map(|s| s.chunk).collect();
        self.stores.retain(|store| !is_due(store));
        // A store around the cache and one through it can overtake each other; bytes that a durable one replaced are gone.
        for store in &mut self.stores {
            taken.iter().for_each(|later| store.chunk.yield_to(later));
        }
        self.stores.retain(|store| store.chunk.mask != 0);
        durable.extend(taken.iter().map(|chunk| (chunk.event, number)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Image;
    use crate::model::Machine;
    use crate::model::Rules;
    use proptest::prelude::*;

    const LEN: u64 = 256;

    /// Stores around the cache go to the other half: the lints do not handle words stored to in both ways.
    const CACHED: u64 = 128;

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Store(u64, usize),
        StoreNt(u64, usize),
        StoreU128(u64),
        Exchange(u64),
        Flush(u64, u64),
        Clflush(u64, u64),
        Fence,
        FullFence,
        Kill,
    }

    fn op() -> impl Strategy<Value = Op> {
        let place = || (0..LEN - 20, 1_usize..20);
        let place_in = |start: u64| (start..start + CACHED - 20, 1_usize..20);
        prop_oneof![
            3 => place_in(0).prop_map(|(offset, len)| Op::Store(offset, len)),
            3 => place_in(CACHED).prop_map(|(offset, len)| Op::StoreNt(offset, len)),
            1 => (0..CACHED / 16).prop_map(|pair| Op::StoreU128(pair * 16)),
            1 => (0..CACHED / 8).prop_map(|word| Op::Exchange(word * 8)),
            2 => place().prop_map(|(offset, len)| Op::Flush(offset, len as u64)),
            1 => place().prop_map(|(offset, len)| Op::Clflush(offset, len as u64)),
            2 => Just(Op::Fence),
            1 => Just(Op::FullFence),
            1 => Just(Op::Kill),
        ]
    }

    fn record(ops: &[(u32, Op)]) -> Trace {
        let mut trace = Trace::default();
        let location = trace.locations_mut().intern(crate::SourceLocation::new("a.rs", 1, 1));
        let mut process = 0;
        for (number, &(thread, op)) in ops.iter().enumerate() {
            // Each store changes bytes: the machine ignores a store of what is there already.
            let byte = u8::try_from(number + 1).expect("few events");
            let kind = match op {
                Op::Store(offset, len) => EventKind::Store { offset, data: trace.keep(&vec![byte; len]) },
                Op::StoreNt(offset, len) => EventKind::StoreNt { offset, data: trace.keep(&vec![byte; len]) },
                Op::StoreU128(offset) => EventKind::StoreU128 { offset, data: trace.keep(&[byte; 16]) },
                Op::Exchange(offset) => EventKind::Exchange { offset, data: trace.keep(&[byte; 8]) },
                Op::Flush(offset, len_bytes) => EventKind::Flush { offset, len_bytes },
                Op::Clflush(offset, len_bytes) => EventKind::FlushOrdered { offset, len_bytes },
                Op::Fence => EventKind::Fence,
                Op::FullFence => EventKind::FullFence,
                Op::Kill => EventKind::Kill,
            };
            trace.push(Event { kind, thread: thread + 3 * process, location });
            // Another process has other threads.
            process += u32::from(kind == EventKind::Kill);
        }
        trace
    }

    proptest! {
        /// At every step of any program, the lints consider durable exactly what the explorer cannot lose.
        #[test]
        fn agrees_with_the_machine(
            ops in proptest::collection::vec((0_u32..3, op()), 0..60),
            exchange_fences: bool,
        ) {
            let (start, trace) = (Image::zeroed(LEN), record(&ops));
            for model in [Model::Eadr, Model::Px86Line, Model::Px86Loc, Model::Chunk8] {
                let rules = Rules { model, exchange_fences, ..Rules::default() };
                let mut machine = Machine::new(rules, &start, &trace);
                let mut pending = Pending::new(&trace, model, exchange_fences);
                for (at, op) in ops.iter().enumerate() {
                    machine.step(at);
                    pending.step(at);
                    let chunks = machine.write_back().chain(machine.non_temporal()).flatten();
                // For the lints, a store ordered before the thread's next action counts as durable.
                    let chunks = chunks.filter(|chunk| chunk.ordered_at == crate::model::NEVER);
                    let expected = chunks.map(|chunk| (chunk.event, chunk.word, chunk.mask)).collect();
                    prop_assert_eq!(pending.chunks(), expected, "{} after {:?}", model, op);
                }
            }
        }
    }
}
