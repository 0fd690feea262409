//! Random programs of several threads on one heap, each with its own blocks, words and root. Each run is killed or loses power at a random event,
//! again and again; in variants a line of the log is corrupted, or one fence of a run or of a recovery fails. Each thread finds one of its allowed
//! states, and no block is lost or leaked. The seed does not determine the order in which the threads run.

use crate::prelude::*;
use crate::sim::programs::{Failure, States, alloc_and_link, assert_allowed, hit_log, new_block};
use core::time::Duration;
use pm_alloc::Durability;

const SLOTS: usize = 8;
const WORDS: usize = 16;
const BIG: usize = 60;

/// The event of a state that may be lost.
const NEVER: u64 = u64::MAX;

/// The faults besides kills and power failures.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// A line of the log, of a lane's header or of the state words is corrupted. The heap may refuse to open then.
    CorruptedLine,
    /// One fence of one thread.
    Fence,
    /// One fence of a recovery.
    RecoveryFence,
}

/// The data of one thread in the heap.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shadow {
    slots: Vec<u64>,
    words: Vec<u64>,
    big: Vec<u64>,
    root: u64,
}

fn words_of(id: u64) -> usize {
    (id & 0xffff) as usize
}

/// Whether the contents, except for the number, are written without the log and never flushed.
fn is_scratch(id: u64) -> bool {
    id >> 55 & 1 == 1
}

/// The offsets of a thread's slots and words.
fn place_of(heap: &SimHeap, thread: usize) -> u64 {
    heap.view(|view| view.root::<u64>(&format!("thread {thread}")).unwrap().unwrap().offset())
}

fn look(heap: &SimHeap, threads: usize) -> Vec<Shadow> {
    assert_clean(heap);
    let mut reachable = BTreeSet::new();
    let pmem = heap.pool().pmem();
    let mut shadows = vec![];
    for thread in 0..threads {
        let at = place_of(heap, thread);
        reachable.insert(at);
        let mut block = |offset: u64| {
            if offset == 0 {
                return 0;
            }
            assert!(reachable.insert(offset), "linked twice: {offset}");
            let id = pmem.load_u64(offset);
            assert!(words_of(id) > 0 && id >> 56 == thread as u64, "no contents at {offset}: {id:x}");
            let found: Vec<u64> = (0..words_of(id) as u64).map(|n| pmem.load_u64(offset + 8 * n)).collect();
            assert!(is_scratch(id) || found == content(id, words_of(id)), "contents at {offset}");
            id
        };
        let word = |n: usize| pmem.load_u64(at + 8 * n as u64);
        let root =
            heap.view(|view| view.root::<u64>(&format!("root {thread}")).unwrap().map_or(0, Link::offset));
        shadows.push(Shadow {
            slots: (0..SLOTS).map(|n| block(word(n))).collect(),
            words: (SLOTS..SLOTS + WORDS).map(word).collect(),
            big: (SLOTS + WORDS..SLOTS + WORDS + BIG).map(word).collect(),
            root: block(root),
        });
    }
    let listed: BTreeSet<u64> = heap.blocks().into_iter().collect();
    assert_eq!(listed, reachable, "leaked or lost");
    shadows
}

/// One thread of a program.
struct World<'h> {
    heap: &'h SimHeap,
    rng: Rng,
    serial: u64,
    thread: usize,
    at: u64,
    lens: &'static [u64],
    /// Whether words are stored without a transaction, which a killed process may leave visible and not durable.
    has_words: bool,
    may_fail: bool,
    /// Whether an operation failed.
    is_dead: bool,
    states: States<Shadow>,
}

impl World<'_> {
    fn id(&mut self) -> u64 {
        self.serial += 1;
        let len = self.lens[self.rng.below(self.lens.len() as u64) as usize];
        (self.thread as u64) << 56 | self.rng.below(2) << 55 | self.serial << 16 | len
    }

    fn block<'p>(&mut self, tx: &mut Tx<'p, Arc<Sim>>, id: u64) -> Result<Link<'p, u64>, TxError> {
        new_block(tx, &mut self.rng, &content(id, words_of(id)))
    }

    /// Makes some changes in one transaction.
    fn change(&mut self, tx: &mut Tx<'_, Arc<Sim>>, shadow: &mut Shadow) -> Result<(), TxError> {
        for _ in 0..1 + self.rng.below(4) {
            let slot = self.rng.below(SLOTS as u64) as usize;
            let link = link_to::<u64>(self.at + 8 * slot as u64);
            match self.rng.below(8) {
                0..=2 if shadow.slots[slot] == 0 => {
                    let id = self.id();
                    let block = self.block(tx, id)?;
                    tx.write(link, &block.offset())?;
                    shadow.slots[slot] = id;
                }
                0..=3 if shadow.slots[slot] != 0 => {
                    let block = link_to::<u64>(tx.read(link)?);
                    tx.free(block)?;
                    tx.write(link, &0)?;
                    shadow.slots[slot] = 0;
                }
                4 => {
                    let id = self.id();
                    let block = self.block(tx, id)?;
                    tx.free(block)?;
                }
                5 => self.change_root(tx, shadow)?,
                6 => self.write_big(tx, shadow)?,
                _ => {
                    let from = self.rng.below(WORDS as u64) as usize;
                    let len = 1 + self.rng.below((WORDS - from) as u64) as usize;
                    let values: Vec<u64> = (0..len).map(|_| self.rng.next()).collect();
                    tx.write_slice(link_to(self.at + 8 * (SLOTS + from) as u64), &values)?;
                    shadow.words[from..from + len].copy_from_slice(&values);
                }
            }
        }
        Ok(())
    }

    fn change_root(&mut self, tx: &mut Tx<'_, Arc<Sim>>, shadow: &mut Shadow) -> Result<(), TxError> {
        let name = format!("root {}", self.thread);
        if shadow.root != 0 {
            let old = tx.root::<u64>(&name)?.unwrap();
            tx.free(old)?;
            tx.remove_root(&name)?;
            shadow.root = 0;
        } else {
            let id = self.id();
            let block = self.block(tx, id)?;
            tx.set_root(&name, block)?;
            shadow.root = id;
        }
        Ok(())
    }

    /// A write that is long enough to be made in place.
    fn write_big(&mut self, tx: &mut Tx<'_, Arc<Sim>>, shadow: &mut Shadow) -> Result<(), TxError> {
        let from = self.rng.below(BIG as u64 - 20) as usize;
        let len = 17 + self.rng.below((BIG - from - 17) as u64 + 1) as usize;
        let values: Vec<u64> = (0..len).map(|_| self.rng.next()).collect();
        tx.write_slice(link_to(self.at + 8 * (SLOTS + WORDS + from) as u64), &values)?;
        shadow.big[from..from + len].copy_from_slice(&values);
        Ok(())
    }

    /// Adds the state to which an operation led, or may have led.
    fn note(&mut self, next: Shadow, done: Result<(), Failure>, is_deferred: bool) {
        let now = self.heap.pool().pmem().events();
        match done {
            Ok(()) => self.states.push((next, if is_deferred { NEVER } else { now })),
            Err(Failure::GivenUp) => {}
            Err(Failure::Tx(error)) if is_refusal(&error) => {}
            Err(Failure::Tx(error)) => {
                assert!(self.may_fail, "{error:?}");
                self.is_dead = true;
                self.states.push((next, NEVER));
            }
        }
    }

    fn step(&mut self) {
        let slot = self.rng.below(SLOTS as u64) as usize;
        let last = &self.states.last().unwrap().0;
        let is_used = last.slots[slot] != 0;
        match self.rng.below(10) {
            0 | 1 if is_used => self.unlink_and_free(slot),
            0 | 1 => self.publish(slot),
            2 if self.has_words => {
                let (n, value) = (self.rng.below(WORDS as u64), self.rng.next());
                let place = self.at + 8 * (SLOTS as u64 + n);
                let done = self.heap.view(|view| view.store_u64(link_to(place), value));
                let mut next = self.states.last().unwrap().0.clone();
                next.words[n as usize] = value;
                self.note(next, done.map_err(Failure::Tx), false);
            }
            3 => self.transaction(true),
            4 if self.rng.one_in(4) => match self.heap.checkpoint() {
                Ok(()) => {
                    let last = self.states.last_mut().unwrap();
                    last.1 = last.1.min(self.heap.pool().pmem().events());
                }
                Err(error) => {
                    assert!(self.may_fail, "{error:?}");
                    self.is_dead = true;
                }
            },
            4 => {}
            5 if is_scratch(last.slots[slot]) => {
                let id = last.slots[slot];
                let pmem = self.heap.pool().pmem();
                let block = pmem.load_u64(self.at + 8 * slot as u64);
                for n in 1..words_of(id) as u64 {
                    pmem.store_u64(block + 8 * n, 0x0101_0101_0101_0101 * (n & 7));
                }
                if self.rng.one_in(2) {
                    self.unlink_and_free(slot);
                }
            }
            _ => self.transaction(false),
        }
    }

    fn unlink_and_free(&mut self, slot: usize) {
        let place = self.at + 8 * slot as u64;
        let done = self.heap.view(|view| view.unlink_and_free::<u64>(link_to(place)));
        let mut next = self.states.last().unwrap().0.clone();
        next.slots[slot] = 0;
        self.note(next, done.map_err(Failure::Tx), false);
    }

    fn publish(&mut self, slot: usize) {
        let id = self.id();
        let words = content(id, words_of(id));
        let place = self.at + 8 * slot as u64;
        let done = alloc_and_link(self.heap, place, &words);
        if matches!(done, Ok(false)) {
            // Longer blocks are allocated by transactions.
            return;
        }
        let mut next = self.states.last().unwrap().0.clone();
        next.slots[slot] = id;
        self.note(next, done.map(drop).map_err(Failure::Tx), false);
    }

    fn transaction(&mut self, is_long: bool) {
        let (is_given_up, is_deferred) = (self.rng.one_in(6), is_long && self.rng.one_in(2));
        let durability = if is_deferred { Durability::Deferred } else { Durability::Immediate };
        let last = self.states.last().unwrap().0.clone();
        let mut next = last.clone();
        let done = self.heap.transaction_with(durability, |tx| {
            if is_long {
                self.write_big(tx, &mut next)?;
            } else {
                self.change(tx, &mut next)?;
            }
            if is_given_up { Err(Failure::GivenUp) } else { Ok(()) }
        });
        // A transaction without changes does not make an earlier deferred one durable.
        if done.is_err() || next != last {
            self.note(next, done, is_deferred);
        }
    }
}

/// The medium after any number of recoveries that are stopped, or have a failing fence. `None` if one is refused.
fn stopped_recoveries(
    mut left: State,
    options: &HeapOptions,
    rng: &mut Rng,
    has_kills: bool,
    (fault, is_hit): (Fault, bool),
    failed: &mut u64,
) -> Option<State> {
    while rng.one_in(3) == (fault != Fault::RecoveryFence) {
        let sim = Arc::new(Sim::of(left));
        let event = rng.below(80);
        if fault == Fault::RecoveryFence && rng.one_in(2) {
            sim.fail_once_at(event);
        } else {
            sim.stop_at(event);
        }
        let opened = Heap::attach(Arc::clone(&sim), options);
        match &opened {
            Ok(opened) => {
                let scanned = opened.scan_ahead(rng.below(10) as usize);
                assert!(scanned.is_ok() || sim.has_failed(), "{scanned:?}");
            }
            Err(HeapError::Recover(RecoverError::Corrupted { .. })) if is_hit => return None,
            Err(error) => assert!(sim.has_failed(), "{error:?}"),
        }
        left = sim.stopped().unwrap_or_else(|| sim.state());
        drop(opened);
        *failed += u64::from(sim.has_failed());
        if !has_kills || rng.one_in(2) {
            left = crash(&left, rng);
        }
    }
    Some(left)
}

fn options(rng: &mut Rng, seed: u64, chunk_bytes: u64) -> HeapOptions {
    HeapOptions::new()
        .pool(pool_options())
        .seed(seed + 1000)
        .lanes(1 + rng.below(4) as u32)
        .lane_entries([30, 44, 80][rng.below(3) as usize])
        .chunk_bytes(chunk_bytes)
        .in_place_from_bytes(136)
        .quarantine(Duration::from_micros(rng.below(2) * rng.below(300)))
}

/// A heap with the initial data of each thread.
fn formatted(region_bytes: u64, options: &HeapOptions, threads: usize) -> SimHeap {
    let heap = Heap::format(Arc::new(Sim::new(region_bytes)), options).unwrap();
    let made: Result<(), TxError> = heap.transaction(|tx| {
        (0..threads).try_for_each(|thread| {
            let block = tx.alloc_zeroed::<u64>((SLOTS + WORDS + BIG) as u64)?;
            tx.set_root(&format!("thread {thread}"), block)
        })
    });
    made.unwrap();
    heap
}

/// Runs all threads, the first of which corrupts a line before one of its steps.
fn run_threads(worlds: Vec<World<'_>>, steps: u64, hit_step: Option<u64>) -> Vec<States<Shadow>> {
    let run = |mut world: World<'_>| {
        for step in 0..steps {
            if world.thread == 0 && hit_step == Some(step) {
                hit_log(world.heap.pool().pmem(), world.heap.layout(), &mut world.rng);
            }
            if !world.is_dead {
                world.step();
            }
        }
        world.states
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = worlds.into_iter().map(|world| scope.spawn(move || run(world))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The number of failed fences.
fn run(seed: u64, fault: Fault) -> u64 {
    let mut failed = 0;
    let mut rng = Rng::of(seed);
    let threads = 2 + rng.below(3) as usize;
    let (chunk_bytes, region_bytes, lens): (_, _, &'static [u64]) = if rng.one_in(2) {
        let lens = &[1, 3, 7, 8, 12, 13, 15, 23, 40, 71, 100, 500, 1500, 3000];
        (1 << 15, (80 << 10) + (rng.below(3) << 15), lens)
    } else {
        let lens = &[1, 3, 7, 8, 12, 13, 15, 23, 40, 71, 100, 300, 600, 1100];
        (4096, (25 + rng.below(25)) << 12, lens)
    };
    let options = options(&mut rng, seed, chunk_bytes);
    let mut heap = formatted(region_bytes, &options, threads);
    let mut shadows = look(&heap, threads);
    for round in 0..8 {
        let has_kills = rng.one_in(2);
        let steps = 5 + rng.below(40);
        let sim = Arc::clone(heap.pool().pmem());
        let (begun, events) = (sim.events(), threads as u64 * steps * 25);
        let mut stop = begun + rng.below(events);
        sim.stop_at(stop);
        let mut is_hit = matches!(fault, Fault::CorruptedLine | Fault::Fence) && rng.one_in(2);
        if is_hit && fault == Fault::Fence {
            sim.fail_once_at(begun + rng.below(events));
        }
        let hit_step = (is_hit && fault == Fault::CorruptedLine).then(|| rng.below(steps));
        let worlds: Vec<World<'_>> = (0..threads)
            .map(|thread| World {
                heap: &heap,
                rng: Rng::of(rng.next()),
                serial: 1000 * round,
                thread,
                at: place_of(&heap, thread),
                lens,
                has_words: !has_kills,
                may_fail: is_hit,
                is_dead: false,
                states: vec![(shadows[thread].clone(), 0)],
            })
            .collect();
        let mut states = run_threads(worlds, steps, hit_step);
        if !is_hit {
            let last: Vec<Shadow> = states.iter().map(|states| states.last().unwrap().0.clone()).collect();
            assert_eq!(look(&heap, threads), last, "round {round}, without a crash");
        }
        let layout = *heap.layout();
        drop(heap);
        failed += u64::from(sim.has_failed());
        let is_closed = rng.one_in(8) || is_hit && rng.one_in(2);
        let stopped = sim.stopped().filter(|_| !is_closed).unwrap_or_else(|| {
            stop = NEVER - 1;
            for states in states.iter_mut().filter(|_| !is_hit) {
                states.last_mut().unwrap().1 = 0;
            }
            sim.state()
        });
        let left = if has_kills && rng.one_in(2) { stopped } else { crash(&stopped, &mut rng) };
        let Some(left) =
            stopped_recoveries(left, &options, &mut rng, has_kills, (fault, is_hit), &mut failed)
        else {
            return failed;
        };
        let sim = Arc::new(Sim::of(left));
        if fault == Fault::CorruptedLine && !is_hit && rng.one_in(2) {
            hit_log(&sim, &layout, &mut rng);
            is_hit = true;
        }
        heap = match Heap::attach(sim, &options) {
            Err(HeapError::Recover(RecoverError::Corrupted { .. }))
                if is_hit && fault == Fault::CorruptedLine =>
            {
                return failed;
            }
            opened => opened.unwrap(),
        };
        shadows = look(&heap, threads);
        for (thread, found) in shadows.iter().enumerate() {
            assert_allowed(
                &states[thread],
                stop,
                found,
                &format!("round {round}: thread {thread} of {threads}"),
            );
        }
    }
    failed
}

#[test]
fn threads_survive_kills_and_power_failures() {
    each_seed(40, |seed| run(seed, Fault::None));
}

#[test]
fn threads_lose_nothing_if_heap_opens_with_corrupted_line() {
    each_seed(40, |seed| run(seed, Fault::CorruptedLine));
}

#[test]
fn threads_survive_one_failed_fence() {
    let failed = each_seed(40, |seed| run(seed, Fault::Fence));
    assert!(failed.len() < 40 || failed.iter().sum::<u64>() > 0);
}

#[test]
fn threads_survive_failed_fences_in_recovery() {
    let failed = each_seed(40, |seed| run(seed, Fault::RecoveryFence));
    assert!(failed.len() < 40 || failed.iter().sum::<u64>() > 0);
}
