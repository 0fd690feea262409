//! Random programs in three lanes, with chunks in which free extents are divided, and with transactions that stay open while others run. Neither
//! crashes nor failed fences lose or leak anything. If an entry of one transaction is corrupted and discarded, all changes of the others stay,
//! however long that entry has been dead.

use super::victim::{Before, Done, fill};
use crate::discarding::{live_lines, stopped_recoveries};
use crate::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};

const SLOTS: u64 = 8;
const THREADS: usize = 3;

fn options(entries: u32, chunk: u64) -> HeapOptions {
    crate::harness::options().lanes(3).lane_entries(entries).chunk_bytes(chunk).in_place_from_bytes(256)
}

fn lines(rng: &mut Rng) -> u64 {
    [1, 1, 2, 3, 4, 5, 6, 8, 12, 20, 33, 70, 90, 130][rng.below(14) as usize]
}

/// The state that all threads share.
struct World<'h> {
    heap: &'h SimHeap,
    slots: u64,
    shadow: Mutex<Vec<u64>>,
    victims: Mutex<Vec<(Done, Vec<usize>)>>,
    log: Mutex<Vec<String>>,
    is_filled: bool,
    entry_lines: Vec<usize>,
    long: u64,
    /// After this many nested calls the power fails, with transactions open.
    until: Mutex<u64>,
    left: Mutex<Option<Left>>,
    /// The acknowledged states, each with its number of events.
    history: Mutex<Vec<(u64, Vec<u64>)>>,
    /// The state that the first failed operation would have left, and the number of stores when it failed.
    failed: Mutex<Option<(Vec<u64>, u64)>>,
}

/// The number of free blocks that were divided while a transaction was open.
static CUTS: AtomicU64 = AtomicU64::new(0);

type Left = (State, Vec<(u64, u64)>, Vec<u64>, Vec<(Done, Vec<usize>)>);

fn left(world: &World<'_>) -> Left {
    let sim = world.heap.pool().pmem();
    let (shadow, victims) = (world.shadow.lock().unwrap().clone(), world.victims.lock().unwrap().clone());
    (sim.state(), live_lines(world.heap), shadow, victims)
}

fn durable(world: &World<'_>) -> Vec<u8> {
    world.heap.pool().pmem().power_failure().durable
}

fn note(world: &World<'_>, done: Done, before: &[u8]) {
    let after = durable(world);
    let lines: Vec<usize> =
        world.entry_lines.iter().copied().filter(|&at| before[at..at + 64] != after[at..at + 64]).collect();
    if !lines.is_empty() {
        world.victims.lock().unwrap().push((done, lines));
    }
}

/// One operation of thread `me` on its own slots. It may run operations of other threads inside, by `call`.
fn step(world: &World<'_>, me: usize, depth: usize, rng: &mut Rng, call: &dyn Fn(usize, u64, usize)) {
    let heap = world.heap;
    let place = |slot: u64| world.slots + 8 * slot;
    let slot = SLOTS * me as u64 + rng.below(SLOTS);
    let found = world.shadow.lock().unwrap()[slot as usize];
    let mut done = Done::default();
    let mut changes: Vec<(u64, u64)> = vec![];
    let mut before = durable(world);
    let kind = rng.below(10);
    let result: Result<(), TxError> = match (kind, found) {
        (0..2, 0) => heap.view(|view| {
            let block = view.alloc_uninit_and_link::<u64>(link_to(place(slot)), 8 * lines(rng) - 1)?;
            changes.push((slot, block.offset()));
            (done.slots, done.blocks) = (vec![slot], vec![block.offset()]);
            Ok(())
        }),
        (0..2, block) => heap.view(|view| {
            view.unlink_and_free::<u64>(link_to(place(slot)))?;
            changes.push((slot, 0));
            (done.slots, done.blocks) = (vec![slot], vec![block]);
            Ok(())
        }),
        (2..9, _) => heap.transaction(|tx| {
            if rng.one_in(6) {
                tx.write(link_to(world.long + 400 * me as u64), &[rng.next(); 40])?;
            }
            let mut touched = BTreeSet::new();
            for _ in 0..1 + rng.below(3) {
                let slot = SLOTS * me as u64 + rng.below(SLOTS);
                if !touched.insert(slot) {
                    continue;
                }
                let block = world.shadow.lock().unwrap()[slot as usize];
                let new = if block == 0 {
                    let free = heap.check().free_blocks;
                    let new = alloc(tx, rng, slot)?;
                    CUTS.fetch_add(u64::from(heap.check().free_blocks > free), Ordering::Relaxed);
                    done.blocks.push(new);
                    new
                } else {
                    tx.free(link_to::<u64>(block))?;
                    done.blocks.push(block);
                    0
                };
                tx.write(link_to(place(slot)), &new)?;
                changes.push((slot, new));
                done.slots.push(slot);
                if depth < THREADS - 1 && rng.one_in(2) {
                    for _ in 0..1 + rng.below(4) {
                        call((me + 1) % THREADS, rng.next(), depth + 1);
                    }
                }
            }
            if rng.one_in(4) {
                // Rolled back.
                return Err(TxError::Nested);
            }
            before = durable(world);
            Ok(())
        }),
        _ => {
            let done = heap.checkpoint();
            assert!(done.is_ok() || heap.pool().pmem().has_failed());
            Ok(())
        }
    };
    match result {
        Ok(()) => {
            world.log.lock().unwrap().push(format!("{me}@{depth}: {kind} {changes:?}"));
            let new: Vec<u64> = changes.iter().map(|change| change.1).filter(|&new| new != 0).collect();
            note(world, done, &before);
            let mut shadow = world.shadow.lock().unwrap();
            for (slot, new) in changes {
                shadow[slot as usize] = new;
            }
            world.history.lock().unwrap().push((heap.pool().pmem().events(), shadow.clone()));
            drop(shadow);
            new.into_iter().for_each(|block| fill(heap, block, world.is_filled));
        }
        Err(TxError::Space(_) | TxError::Nested) => {
            world.log.lock().unwrap().push(format!("{me}@{depth}: {kind} given up {changes:?}"));
        }
        Err(error) if error.to_string().contains("half of its lane") => {}
        Err(error) => {
            let sim = heap.pool();
            let sim = sim.pmem();
            assert!(sim.has_failed(), "{error}");
            let mut failed = world.failed.lock().unwrap();
            if let Some((_, stores)) = &*failed {
                assert_eq!(sim.stores(), *stores, "stored after a failed fence");
            } else {
                let mut shadow = world.shadow.lock().unwrap().clone();
                changes.iter().for_each(|&(slot, new)| shadow[slot as usize] = new);
                if kind < 2 {
                    // It is unknown which block it would have been.
                    shadow[slot as usize] = u64::MAX;
                }
                *failed = Some((shadow, sim.stores()));
            }
        }
    }
}

fn alloc(tx: &mut Tx<'_, Arc<Sim>>, rng: &mut Rng, slot: u64) -> Result<u64, TxError> {
    Ok(match rng.below(5) {
        0 => tx.alloc_aligned::<u64>(lines(rng).min(9), 256)?.offset(),
        1 => tx.alloc_slice(&[slot; 30])?.offset(),
        2 => tx.alloc_slice(&[slot; 13])?.offset(),
        _ => tx.alloc_uninit::<u64>(8 * lines(rng) - 1)?.offset(),
    })
}

/// A new heap, and the offsets of its block of slots and of a long one. `None` if there is no room for them.
struct Formatted {
    heap: SimHeap,
    options: HeapOptions,
    slots: u64,
    long: u64,
}

fn formatted(rng: &mut Rng) -> Option<Formatted> {
    let chunk = [16, 32][rng.below(2) as usize] << 10;
    let options = options([24, 40, 64][rng.below(3) as usize], chunk);
    let bytes = [72, 84, 104][rng.below(3) as usize] << 10;
    let heap = Heap::format(Arc::new(Sim::new(bytes)), &options).ok()?;
    let made = heap.transact(|tx| {
        let slots = tx.alloc_zeroed::<u64>(SLOTS * THREADS as u64)?;
        Ok((slots.offset(), tx.alloc_zeroed::<u64>(50 * THREADS as u64)?.offset()))
    });
    let (slots, long) = made.unwrap();
    Some(Formatted { heap, options, slots, long })
}

/// Asserts that the heap is sound, and that its blocks are those of the slots. Returns the contents of the slots.
fn assert_sound(heap: &SimHeap, slots: u64, long: u64, case: &str) -> Vec<u64> {
    let report = heap.check();
    assert!(report.is_clean(), "{case}: {:?}", report.corruptions);
    let found: Vec<u64> =
        (0..SLOTS * THREADS as u64).map(|at| heap.pool().pmem().load_u64(slots + 8 * at)).collect();
    let listed: BTreeSet<u64> = heap.blocks().into_iter().collect();
    let mut known: BTreeSet<u64> = found.iter().copied().filter(|&block| block != 0).collect();
    known.extend([slots, long]);
    assert_eq!(listed, known, "{case}");
    found
}

/// Runs the steps of a program.
fn program<'h>(
    heap: &'h SimHeap,
    slots: u64,
    long: u64,
    shadow: Vec<u64>,
    steps: u64,
    rng: &mut Rng,
) -> World<'h> {
    let is_filled = rng.one_in(4);
    let layout = *heap.layout();
    let entry_lines = (0..layout.lane_count)
        .flat_map(|lane| (0..layout.lane_entries).map(move |entry| layout.entry_offset(lane, entry) as usize))
        .collect();
    let world = World {
        heap,
        slots,
        shadow: Mutex::new(shadow),
        victims: Mutex::default(),
        log: Mutex::default(),
        is_filled,
        entry_lines,
        long,
        until: Mutex::new(rng.below(60)),
        left: Mutex::default(),
        history: Mutex::default(),
        failed: Mutex::default(),
    };
    let returned = world;
    let world = &returned;
    std::thread::scope(|scope| {
        let mut senders: Vec<mpsc::Sender<(u64, usize, mpsc::Sender<()>)>> = vec![];
        let mut receivers = vec![];
        for _ in 0..THREADS {
            let (sender, receiver) = mpsc::channel();
            senders.push(sender);
            receivers.push(receiver);
        }
        let stop = senders.clone();
        for (me, receiver) in receivers.into_iter().enumerate() {
            let senders = senders.clone();
            scope.spawn(move || {
                for (seed, depth, finish) in receiver {
                    if depth == usize::MAX {
                        return;
                    }
                    let call = |thread: usize, seed: u64, depth: usize| {
                        let (finish, finished) = mpsc::channel();
                        senders[thread].send((seed, depth, finish)).unwrap();
                        finished.recv().unwrap();
                        let mut until = world.until.lock().unwrap();
                        *until = until.wrapping_sub(1);
                        if *until == 0 {
                            *world.left.lock().unwrap() = Some(left(world));
                            world.log.lock().unwrap().push("CRASH".into());
                        }
                    };
                    step(world, me, depth, &mut Rng::of(seed), &call);
                    finish.send(()).unwrap();
                }
            });
        }
        for _ in 0..steps {
            let (finish, finished) = mpsc::channel();
            stop[rng.below(THREADS as u64) as usize].send((rng.next(), 0, finish)).unwrap();
            if finished.recv().is_err() {
                break;
            }
        }
        for sender in &stop {
            drop(sender.send((0, usize::MAX, mpsc::channel().0)));
        }
    });
    returned
}

fn run(seed: u64) -> bool {
    let mut rng = Rng::of(seed);
    let Some(Formatted { mut heap, options, slots, long }) = formatted(&mut rng) else { return false };
    if rng.one_in(2) {
        let sim = Arc::clone(heap.pool().pmem());
        drop(heap);
        heap = Heap::attach(sim, &options).unwrap();
    }
    let shadow = vec![0; SLOTS as usize * THREADS];
    let world = program(&heap, slots, long, shadow, 15 + rng.below(40), &mut rng);
    let is_filled = world.is_filled;
    let at_end = || left(&world);
    let (state, lens, shadow, victims) = world.left.lock().unwrap().take().unwrap_or_else(at_end);
    let program = world.log.lock().unwrap().join("\n");
    drop(world);
    let left = crash(&state, &mut rng);
    core::mem::forget(heap);
    let left = stopped_recoveries(left, &options, &mut rng);
    if victims.is_empty() {
        return false;
    }
    let most = if rng.one_in(2) { 6 } else { u64::MAX };
    let back = 1 + rng.below(most.min(victims.len() as u64)) as usize;
    let (victim, lines) = &victims[victims.len() - back];
    let line = lines[rng.below(lines.len() as u64) as usize];
    // A later one may have overwritten its entry.
    if victims[victims.len() - back + 1..].iter().any(|later| later.1.contains(&line)) {
        return false;
    }
    let case = format!("PM_CRASH_FIRST={seed} PM_CRASH_SEQUENCES=1: lost {victim:?}\n{program}");
    let before = Before { slots, long, shadow, lens, is_filled };
    before.assert_only_victim_is_lost(left, line, victim, &options, &mut rng, &case)
}

/// Power failures and kills, without corruption.
fn crashed(seed: u64) {
    let mut rng = Rng::of(seed);
    let Some(Formatted { heap, options, slots, long }) = formatted(&mut rng) else { return };
    let mut sim = Arc::clone(heap.pool().pmem());
    let mut shadow = vec![0; SLOTS as usize * THREADS];
    drop(heap);
    for process in 0..1 + rng.below(3) {
        let heap = Heap::attach(Arc::clone(&sim), &options).unwrap();
        let first = sim.events();
        let stop = first + rng.below(6000);
        sim.stop_at(stop);
        let world = program(&heap, slots, long, shadow.clone(), 10 + rng.below(30), &mut rng);
        let stopped = sim.stopped();
        let stop = if stopped.is_some() { stop } else { u64::MAX };
        let state = stopped.unwrap_or_else(|| sim.state());
        let history = world.history.lock().unwrap().clone();
        let program = world.log.lock().unwrap().join("\n");
        let case = format!("PM_CRASH_FIRST={seed} PM_CRASH_SEQUENCES=1, process {process}\n{program}");
        drop(world);
        core::mem::forget(heap);
        let before = history.iter().rev().find(|(events, _)| *events <= stop).map(|found| found.1.clone());
        let after = history.iter().find(|(events, _)| *events > stop).map(|found| found.1.clone());
        let before = before.unwrap_or(shadow);
        let left = if rng.one_in(3) { state } else { crash(&state, &mut rng) };
        sim = Arc::new(Sim::of(left));
        let heap = Heap::attach(Arc::clone(&sim), &options).unwrap();
        shadow = assert_sound(&heap, slots, long, &case);
        assert!(
            shadow == before || Some(&shadow) == after.as_ref(),
            "{case}: {shadow:?}, {before:?}, {after:?}"
        );
    }
}

/// A fence and all later ones fail while transactions are open.
fn failing(seed: u64) -> bool {
    let mut rng = Rng::of(seed);
    let Some(Formatted { heap, options, slots, long }) = formatted(&mut rng) else { return false };
    let sim = Arc::clone(heap.pool().pmem());
    let shadow = vec![0; SLOTS as usize * THREADS];
    sim.fail_at(sim.events() + rng.below(5000));
    let world = program(&heap, slots, long, shadow.clone(), 10 + rng.below(30), &mut rng);
    let program = world.log.lock().unwrap().join("\n");
    let case = format!("PM_CRASH_FIRST={seed} PM_CRASH_SEQUENCES=1\n{program}");
    let before = world.history.lock().unwrap().last().map_or(shadow, |last| last.1.clone());
    let failed = world.failed.lock().unwrap().take();
    drop(world);
    core::mem::forget(heap);
    let left = if rng.one_in(3) { sim.state() } else { crash(&sim.state(), &mut rng) };
    let heap = Heap::attach(Arc::new(Sim::of(left)), &options).unwrap();
    let found = assert_sound(&heap, slots, long, &case);
    let after = failed.as_ref().map(|failed| &failed.0);
    let fits = |after: &Vec<u64>| {
        after.iter().zip(&found).all(|(after, found)| after == found || *after == u64::MAX)
    };
    assert!(found == before || after.is_some_and(fits), "{case}: {found:?}, {before:?}, {after:?}");
    failed.is_some()
}

/// Runs a program for each seed. Asserts that `run` is true for some, unless there are fewer than usual.
fn assert_some(usual: u64, what: &str, run: impl Fn(u64) -> bool + Sync) {
    let ran = each_seed(usual, run);
    let count = ran.iter().filter(|is_true| **is_true).count();
    println!("{count} of {} {what}, {} cuts", ran.len(), CUTS.load(Ordering::Relaxed));
    assert!((ran.len() as u64) < usual || count > 0);
}

#[test]
fn failed_fence_with_open_transactions_loses_nothing() {
    assert_some(40, "failed", failing);
}

#[test]
fn crashes_with_open_transactions_lose_and_leak_nothing() {
    each_seed(40, crashed);
}

#[test]
fn discarding_one_entry_costs_one_transaction_while_extents_are_divided() {
    assert_some(100, "discarded", run);
}
