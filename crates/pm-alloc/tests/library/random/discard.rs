//! Random programs of two or three threads. Their transactions also trim free extents, and stay open while others run. Neither crashes nor failed
//! fences lose or leak a block. If an entry of one transaction is corrupted and discarded, all changes of other transactions are kept, however long
//! the entry has been dead. Recoveries are stopped before and after the corruption.

use super::prelude::*;
use crate::discarding::{
    Worker, free_payloads, holding_a_lane, line_count_of, live_blocks, opened, opened_after_stops, write_word,
};
use std::sync::Mutex;

const SLOTS_PER_THREAD: u64 = 8;

/// The order of the operations of several threads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Two threads, each in its own lane, run one operation after the other, on the same slots.
    InTurn,
    /// Three threads, each on its own slots. Operations of other threads run within a transaction, and some transactions are rolled back.
    Nested,
}

impl Order {
    const fn threads(self) -> u64 {
        if matches!(self, Self::InTurn) { 2 } else { 3 }
    }

    const fn slot_count(self) -> u64 {
        SLOTS_PER_THREAD * self.threads()
    }

    fn slot(self, me: u64, rng: &mut Rng) -> u64 {
        match self {
            Self::InTurn => rng.below(self.slot_count()),
            Self::Nested => SLOTS_PER_THREAD * me + rng.below(SLOTS_PER_THREAD),
        }
    }
}

fn lines(rng: &mut Rng) -> u64 {
    [1, 1, 2, 3, 4, 5, 6, 8, 12, 20, 33, 70, 90, 130][rng.below(14) as usize]
}

/// The offsets of the slots and of a long block in a heap, with the heap's options.
#[derive(Clone)]
struct Place {
    order: Order,
    options: HeapOptions,
    slots: u64,
    long: u64,
}

/// A new heap. `None` if the region is too short for it.
fn formatted(order: Order, rng: &mut Rng) -> Option<(SimHeap, Place)> {
    let [entries, kib, chunk_kib] = match order {
        Order::InTurn => [[40, 64, 200], [56, 72, 100], [4; 3]],
        Order::Nested => [[24, 40, 64], [72, 84, 104], [16, 32, 32]],
    }
    .map(|choices| choices[rng.below(3) as usize]);
    let options = crate::harness::options().lanes(order.threads() as u32).lane_entries(entries as u32);
    let options = options.chunk_bytes(chunk_kib << 10).in_place_from_bytes(256);
    let heap = Heap::format(any(Arc::new(SampledPmem::new(kib << 10))), &options).ok()?;
    let made = heap.transact(|tx| {
        let slots = tx.alloc_zeroed::<u64>(order.slot_count())?;
        Ok((slots.offset(), tx.alloc_zeroed::<u64>(50 * order.threads())?.offset()))
    });
    let (slots, long) = made.unwrap();
    Some((heap, Place { order, options, slots, long }))
}

/// The changes of one operation: the slots, and the blocks that it allocated or freed.
#[derive(Clone, Debug, Default)]
struct Done {
    slots: Vec<u64>,
    blocks: Vec<u64>,
}

/// The offsets of the words of a block that contain the block's offset: the first word of each line; or all words if it `is_filled`, which overwrites
/// the headers of former blocks.
fn filled_words(block: u64, lines: u64, is_filled: bool) -> impl Iterator<Item = u64> {
    (block..block + 64 * lines - 8).step_by(if is_filled { 8 } else { 64 })
}

/// The state of a program, which all threads share.
#[derive(Clone, Default)]
struct Program {
    /// The contents of the slots.
    shadow: Vec<u64>,
    /// The allocated blocks at a crash, and the number of lines of each.
    lens: Vec<(u64, u64)>,
    is_filled: bool,
    /// The operations that changed lines of the log, with those lines.
    victims: Vec<(Done, Vec<usize>)>,
    log: Vec<String>,
    /// The acknowledged states, each with the number of events before its acknowledgement.
    history: Vec<(u64, Vec<u64>)>,
    /// The state that the first failed operation would have led to, and the number of stores when it failed.
    failed: Option<(Vec<u64>, u64)>,
    /// The power fails after this number of nested operations, while transactions are open.
    until: u64,
}

/// The threads of a program.
struct Team<'s> {
    heap: &'s SimHeap,
    place: &'s Place,
    workers: Vec<Worker<'s>>,
    program: Mutex<Program>,
    /// The medium and the program at the crash.
    left: Mutex<Option<(State, Program)>>,
    entry_lines: Vec<usize>,
}

impl<'s> Team<'s> {
    fn left(&self) -> (State, Program) {
        let program = self.program.lock().unwrap().clone();
        (self.heap.pool().pmem().sampled().state(), Program { lens: live_blocks(self.heap), ..program })
    }

    /// Runs one operation in the thread of this number.
    fn run(self: &Arc<Self>, thread: u64, depth: u64, seed: u64) {
        let team = Arc::clone(self);
        self.workers[thread as usize].run(move |_| team.step(thread, depth, &mut Rng::of(seed)));
    }

    /// Runs operations of the next thread within a transaction of thread `me`.
    fn run_nested(self: &Arc<Self>, me: u64, depth: u64, rng: &mut Rng) {
        for _ in 0..1 + rng.below(4) {
            self.run((me + 1) % self.place.order.threads(), depth + 1, rng.next());
            let mut program = self.program.lock().unwrap();
            program.until = program.until.wrapping_sub(1);
            if program.until == 0 {
                drop(program);
                *self.left.lock().unwrap() = Some(self.left());
                self.program.lock().unwrap().log.push("CRASH".into());
            }
        }
    }

    fn durable(&self) -> Vec<u8> {
        self.heap.pool().pmem().sampled().power_failure().durable
    }

    fn fill(&self, block: u64) {
        let (pmem, lines) = (self.heap.pool().pmem().sampled(), line_count_of(self.heap, block));
        let is_filled = self.program.lock().unwrap().is_filled;
        filled_words(block, lines, is_filled).for_each(|at| pmem.store_u64(at, block));
        let filled = pmem.persist(block, 64 * lines - 8);
        assert!(filled.is_ok() || pmem.has_failed());
    }

    /// One operation of thread `me` on slots.
    fn step(self: &Arc<Self>, me: u64, depth: u64, rng: &mut Rng) {
        let (heap, order) = (self.heap, self.place.order);
        let place = |slot: u64| self.place.slots + 8 * slot;
        let slot = order.slot(me, rng);
        let found = |slot: u64| self.program.lock().unwrap().shadow[slot as usize];
        let mut done = Done::default();
        let mut changes: Vec<(u64, u64)> = vec![];
        let mut before = self.durable();
        let kind = rng.below(10);
        let result: Result<(), TxError> = match (kind, found(slot)) {
            (0..3, 0) => heap.view(|view| {
                let block = view.alloc_uninit_and_link::<u64>(link_to(place(slot)), 8 * lines(rng) - 1)?;
                changes.push((slot, block.offset()));
                done.blocks.push(block.offset());
                Ok(())
            }),
            (0..3, block) => heap.view(|view| {
                view.unlink_and_free::<u64>(link_to(place(slot)))?;
                changes.push((slot, 0));
                done.blocks.push(block);
                Ok(())
            }),
            (3..9, _) => heap.transaction(|tx| {
                if order == Order::Nested && rng.one_in(6) {
                    tx.write(link_to(self.place.long + 400 * me), &[rng.next(); 40])?;
                }
                let mut touched = BTreeSet::new();
                for _ in 0..1 + rng.below(3) {
                    let slot = order.slot(me, rng);
                    if !touched.insert(slot) {
                        continue;
                    }
                    let (block, mut new) = (found(slot), 0);
                    if block == 0 {
                        new = alloc(tx, rng, slot)?;
                    } else {
                        tx.free(link_to::<u64>(block))?;
                    }
                    done.blocks.push(block.max(new));
                    tx.write(link_to(place(slot)), &new)?;
                    changes.push((slot, new));
                    if order == Order::Nested && depth < 2 && rng.one_in(2) {
                        self.run_nested(me, depth, rng);
                    }
                }
                if order == Order::Nested && rng.one_in(4) {
                    // Rolled back.
                    return Err(TxError::Nested);
                }
                before = self.durable();
                Ok(())
            }),
            _ => {
                let done = heap.checkpoint();
                assert!(done.is_ok() || heap.pool().pmem().sampled().has_failed());
                Ok(())
            }
        };
        let mut program = self.program.lock().unwrap();
        program.log.push(format!("{me}@{depth}: {kind} {changes:?} {:?}", result.as_ref().err()));
        let mut shadow = program.shadow.clone();
        changes.iter().for_each(|&(slot, new)| shadow[slot as usize] = new);
        let sim = heap.pool().pmem().sampled();
        match result {
            Ok(()) => {
                let after = self.durable();
                let is_changed = |at: &usize| before[*at..at + 64] != after[*at..at + 64];
                let lines: Vec<usize> = self.entry_lines.iter().copied().filter(is_changed).collect();
                done.slots = changes.iter().map(|change| change.0).collect();
                if !lines.is_empty() {
                    program.victims.push((done, lines));
                }
                program.history.push((sim.events(), shadow.clone()));
                program.shadow = shadow;
                drop(program);
                changes.into_iter().filter(|change| change.1 != 0).for_each(|(_, block)| self.fill(block));
            }
            Err(TxError::Space(_) | TxError::Nested) => {}
            Err(error) if error.to_string().contains("half of its lane") => {}
            Err(error) => {
                assert!(sim.has_failed(), "{error}");
                if let Some((_, stores)) = program.failed {
                    assert_eq!(sim.stores(), stores, "nothing is stored after a failed fence");
                    return;
                }
                if kind < 3 {
                    // The block that it would have allocated is unknown.
                    shadow[slot as usize] = u64::MAX;
                }
                program.failed = Some((shadow, sim.stores()));
            }
        }
    }
}

fn alloc(tx: &mut Tx<'_, AnyPmem<'static>>, rng: &mut Rng, slot: u64) -> Result<u64, TxError> {
    Ok(match rng.below(5) {
        0 => tx.alloc_aligned::<u64>(lines(rng).min(9), 256)?.offset(),
        1 => tx.alloc_slice(&[slot; 30])?.offset(),
        2 => tx.alloc_slice(&[slot; 13])?.offset(),
        _ => tx.alloc_uninit::<u64>(8 * lines(rng) - 1)?.offset(),
    })
}

impl Place {
    /// Asserts that the heap is sound, and that its blocks are those of the slots. Returns the contents of the slots.
    fn assert_sound(&self, heap: &SimHeap, case: &str) -> Vec<u64> {
        let report = heap.check();
        assert!(report.is_clean(), "{case}: {:?}", report.corruptions);
        let places = (0..self.order.slot_count()).map(|at| self.slots + 8 * at);
        let found: Vec<u64> = places.map(|at| heap.pool().pmem().load_u64(at)).collect();
        let listed: BTreeSet<u64> = heap.blocks().into_iter().collect();
        let mut known: BTreeSet<u64> = found.iter().copied().filter(|&block| block != 0).collect();
        known.extend([self.slots, self.long]);
        assert_eq!(listed, known, "{case}");
        found
    }

    /// Runs a program. Returns the medium and the program at the crash, if there was one, and at the end.
    fn run(
        &self,
        heap: &SimHeap,
        shadow: Vec<u64>,
        steps: u64,
        rng: &mut Rng,
    ) -> (Option<(State, Program)>, (State, Program)) {
        let layout = *heap.layout();
        let lanes = if self.order == Order::InTurn { [rng.below(2) as u32].to_vec() } else { vec![0, 1, 2] };
        let places = lanes
            .into_iter()
            .flat_map(|lane| (0..layout.lane_entries).map(move |entry| layout.entry_offset(lane, entry)));
        let (until, is_filled) = (rng.below(60), rng.one_in(4));
        std::thread::scope(|scope| {
            let team = Arc::new(Team {
                heap,
                place: self,
                workers: (0..self.order.threads()).map(|_| Worker::new(scope, heap)).collect(),
                program: Mutex::new(Program { shadow, until, is_filled, ..Program::default() }),
                left: Mutex::default(),
                entry_lines: places.map(|at| at as usize).collect(),
            });
            if self.order == Order::InTurn {
                // The first thread holds a lane, so the second thread acquires the other lane, and keeps using it.
                let (inner, long) = (Arc::clone(&team), self.long);
                let write = move |heap: &SimHeap| write_word(heap, long + 8 * 49, 0);
                team.workers[0].run(move |heap| holding_a_lane(heap, long, || inner.workers[1].run(write)));
            }
            for _ in 0..steps {
                team.run(rng.below(self.order.threads()), 0, rng.next());
            }
            (team.left.lock().unwrap().take(), team.left())
        })
    }

    /// Corrupts a line of the victim's log entries, and opens the heap. Returns whether the entry had to be discarded.
    fn assert_only_victim_is_lost(
        &self,
        mut left: State,
        (victim, line): (&Done, usize),
        program: &Program,
        rng: &mut Rng,
    ) -> bool {
        let case = format!("lost {victim:?}\n{}", program.log.join("\n"));
        left.visible[line + 20] ^= 4;
        left.durable[line + 20] ^= 4;
        if opened(Arc::new(SampledPmem::of(left.clone())), &self.options).is_some() {
            return false;
        }
        let heap = opened_after_stops(left, &self.options, rng);
        let pmem = heap.pool().pmem();
        let listed: BTreeSet<u64> = heap.blocks().into_iter().collect();
        let report = heap.check();
        // The contents of the victim's block may have overwritten a header, which breaks the chain.
        assert!(report.is_clean() || program.is_filled, "{case}: {:?}", report.corruptions);
        let mut live: Vec<(u64, u64)> = vec![];
        for (slot, &block) in (0..).zip(&program.shadow) {
            if victim.slots.contains(&slot) || block == 0 {
                continue;
            }
            assert_eq!(pmem.load_u64(self.slots + 8 * slot), block, "{case}: slot {slot}");
            live.extend(program.lens.iter().find(|live| live.0 == block));
        }
        for at in free_payloads(&heap) {
            let over = live.iter().find(|live| at < live.0 + 64 * live.1 && live.0 < at + 64);
            assert!(over.is_none(), "{case}: {at} is not in the live {over:?}");
        }
        for &(block, lines) in &live {
            assert!(listed.contains(&block), "{case}: {block} is not listed");
            let mut words = filled_words(block, lines, program.is_filled);
            assert!(words.all(|at| pmem.load_u64(at) == block), "{case}: {block} is changed");
        }
        let mut known: BTreeSet<u64> = program.shadow.iter().chain(&victim.blocks).copied().collect();
        known.extend([self.slots, self.long]);
        let leaked: Vec<&u64> = listed.difference(&known).collect();
        assert!(leaked.is_empty() || !report.is_clean(), "{case}: no block is leaked, not {leaked:?}");
        true
    }
}

/// Runs the program of a seed, corrupts an entry and discards it. Returns whether an entry had to be discarded.
fn run_with_discard(order: Order, seed: u64) -> bool {
    let mut rng = Rng::of(seed);
    let Some((mut heap, place)) = formatted(order, &mut rng) else { return false };
    if rng.one_in(2) {
        let sim = Arc::clone(heap.pool().pmem().sampled());
        drop(heap);
        heap = Heap::attach(any(sim), &place.options).unwrap();
    }
    let shadow = vec![0; order.slot_count() as usize];
    let (crashed, at_end) = place.run(&heap, shadow, 15 + rng.below(60), &mut rng);
    let (state, program) = crashed.unwrap_or(at_end);
    let victims = &program.victims;
    core::mem::forget(heap);
    let left = stopped_recoveries(state.crash(&mut rng), &place.options, &mut rng);
    // The number of last transactions from which the victim is chosen.
    let most = match order {
        Order::InTurn => 2,
        Order::Nested => [6, u64::MAX][rng.below(2) as usize],
    };
    let Some(back) = most.min(victims.len() as u64).checked_sub(1) else { return false };
    let at = victims.len() - 1 - rng.below(back + 1) as usize;
    let (victim, lines) = &victims[at];
    let line = lines[rng.below(lines.len() as u64) as usize];
    // A later transaction may have overwritten the victim's entry.
    if victims[at + 1..].iter().any(|later| later.1.contains(&line)) {
        return false;
    }
    place.assert_only_victim_is_lost(left, (victim, line), &program, &mut rng)
}

/// Runs processes that end by power failures and kills, without corruption.
fn run_with_crashes(seed: u64) {
    let mut rng = Rng::of(seed);
    let Some((heap, place)) = formatted(Order::Nested, &mut rng) else { return };
    let mut sim = Arc::clone(heap.pool().pmem().sampled());
    let mut shadow = vec![0; place.order.slot_count() as usize];
    drop(heap);
    for process in 0..1 + rng.below(3) {
        let heap = Heap::attach(any(Arc::clone(&sim)), &place.options).unwrap();
        let stop = sim.events() + rng.below(6000);
        sim.stop_at(stop);
        let (_, (state, program)) = place.run(&heap, shadow.clone(), 10 + rng.below(30), &mut rng);
        let stopped = sim.stopped();
        let stop = if stopped.is_some() { stop } else { u64::MAX };
        let state = stopped.unwrap_or(state);
        core::mem::forget(heap);
        let history = &program.history;
        let before = history.iter().rfind(|state| state.0 <= stop).map_or(&shadow, |found| &found.1);
        let after = history.iter().find(|state| state.0 > stop).map(|found| &found.1);
        let left = if rng.one_in(3) { state } else { state.crash(&mut rng) };
        sim = Arc::new(SampledPmem::of(left));
        let case = format!("process {process}\n{}", program.log.join("\n"));
        let found = place.assert_sound(&Heap::attach(any(Arc::clone(&sim)), &place.options).unwrap(), &case);
        assert!(found == *before || Some(&found) == after, "{case}: {found:?}, {before:?}, {after:?}");
        shadow = found;
    }
}

/// Runs a program in which a fence and all later fences fail while transactions are open. Returns whether an operation failed.
fn run_with_failed_fence(seed: u64) -> bool {
    let mut rng = Rng::of(seed);
    let Some((heap, place)) = formatted(Order::Nested, &mut rng) else { return false };
    let sim = Arc::clone(heap.pool().pmem().sampled());
    let shadow = vec![0; place.order.slot_count() as usize];
    sim.fail_at(sim.events() + rng.below(5000));
    let (_, (state, program)) = place.run(&heap, shadow.clone(), 10 + rng.below(30), &mut rng);
    let case = program.log.join("\n");
    let before = program.history.last().map_or(&shadow, |last| &last.1);
    core::mem::forget(heap);
    let left = if rng.one_in(3) { state } else { state.crash(&mut rng) };
    let found = place
        .assert_sound(&Heap::attach(any(Arc::new(SampledPmem::of(left))), &place.options).unwrap(), &case);
    let after = program.failed.as_ref().map(|failed| &failed.0);
    let fits = |after: &Vec<u64>| {
        after.iter().zip(&found).all(|(after, found)| after == found || *after == u64::MAX)
    };
    assert!(found == *before || after.is_some_and(fits), "{case}: {found:?}, {before:?}, {after:?}");
    after.is_some()
}

/// Runs a program for each seed. Asserts that `run` returns true for some seed, unless there are fewer seeds than usual.
fn assert_some(usual: u64, what: &str, run: impl Fn(u64) -> bool + Sync) {
    let ran = each_seed(usual, run);
    let count = ran.iter().filter(|is_true| **is_true).count();
    println!("{count} of {} {what}", ran.len());
    assert!((ran.len() as u64) < usual || count > 0);
}

#[test]
fn failed_fence_with_open_transactions_loses_nothing() {
    assert_some(40, "failed", run_with_failed_fence);
}

#[test]
fn crashes_with_open_transactions_lose_and_leak_nothing() {
    each_seed(40, run_with_crashes);
}

#[test]
fn discarding_one_entry_loses_only_its_transaction() {
    assert_some(200, "discarded", |seed| run_with_discard(Order::InTurn, seed));
}

#[test]
fn discarding_one_entry_with_open_transactions_loses_only_its_transaction() {
    assert_some(100, "discarded", |seed| run_with_discard(Order::Nested, seed));
}
