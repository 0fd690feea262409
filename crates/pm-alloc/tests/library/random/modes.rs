//! Random programs of one or several threads on a heap that is used in several modes: as an unlogged heap, durable or not, and by transactions.
//! The programs allocate, free and resize blocks, and copy the heap as for a fork. After each mode the process ends, is killed, or loses power, and
//! the heap is compared with a shadow model of each thread. With several threads the seed does not determine the order of operations.

use super::prelude::*;
use crate::sim::unlogged::{Actor, Shadow, Stop, Unlogged, check, copy, fill, listed, survivors};
use pm_alloc::UnloggedHeap;

/// How the heap is used until it is reopened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Volatile,
    Durable,
    /// Volatile at first, then durable.
    VolatileThenDurable,
    Transactions,
}

/// Runs one transaction. Returns the offset of its block; 0 if there was no room.
fn transact(actor: &mut Actor, heap: &Heap<AnyPmem<'static>>, shadow: &mut Shadow) -> u64 {
    let pmem = heap.pool().pmem().sampled();
    match (actor.rng.below(10), actor.random_block(shadow)) {
        (0..=4, _) | (_, None) => {
            let bytes = actor.bytes();
            let allocated = heap.transaction(|tx| tx.alloc_uninit::<u8>(bytes).map(Link::offset));
            match allocated {
                Ok(offset) => {
                    // The capacity is known only after the commit.
                    let room = heap.transact(|tx| tx.capacity_bytes(link_to::<u8>(offset))).unwrap();
                    assert!(room >= bytes);
                    actor.allocated(pmem, shadow, offset, room);
                    offset
                }
                Err(error) if is_refusal(&error) => 0,
                Err(error) => panic!("{error:?}"),
            }
        }
        (_, Some(offset)) => {
            let (room, id) = shadow.remove(&offset).unwrap();
            check(pmem, offset, room, id);
            heap.transact(|tx| tx.free(link_to::<u8>(offset))).unwrap();
            offset
        }
    }
}

/// Runs one operation on the unlogged heap. If no other thread runs, sometimes also checks a copy of the heap. Returns the block of the operation.
fn step_unlogged(actor: &mut Actor, heap: &Unlogged, shadow: &mut Shadow, options: &HeapOptions) -> u64 {
    let block = actor.step(heap, shadow);
    if actor.is_alone && actor.rng.one_in(10) {
        let copy = copy(heap);
        assert_eq!(listed(&Heap::attach(any(Arc::clone(&copy)), options).unwrap()), rooms([&*shadow]));
        shadow.iter().for_each(|(offset, (room, id))| check(&copy, *offset, *room, *id));
    }
    block
}

/// The capacity of each block of these threads.
fn rooms<'s>(shadows: impl IntoIterator<Item = &'s Shadow>) -> BTreeMap<u64, u64> {
    shadows.into_iter().flatten().map(|(offset, block)| (*offset, block.0)).collect()
}

/// Runs all threads, and `meanwhile` in the calling thread. Returns the state of each thread when the heap is stopped.
fn run_threads(
    threads: &mut [(Actor, Shadow)],
    (sim, steps, event): (&SampledPmem, u64, u64),
    step: impl Fn(&mut Actor, &mut Shadow) -> u64 + Sync,
    meanwhile: impl FnOnce(),
) -> Vec<Stop> {
    let step = &step;
    std::thread::scope(|scope| {
        let run = |(actor, shadow): &mut (Actor, Shadow)| {
            let mut stop = Stop::at(event);
            (0..steps).for_each(|_| stop.step(sim, shadow, |shadow| step(actor, shadow)));
            stop
        };
        let running: Vec<_> = threads.iter_mut().map(|thread| scope.spawn(move || run(thread))).collect();
        meanwhile();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn run(seed: u64, thread_count: u64, modes: &[Mode]) {
    let mut rng = Rng::of(seed);
    let is_alone = thread_count == 1;
    let chunk_bytes = [4096, 4096, 8192][rng.below(3) as usize];
    let options = crate::harness::options().lanes(1 + rng.below(2) as u32);
    let options = options.lane_entries([8, 30][rng.below(2) as usize]).chunk_bytes(chunk_bytes);
    let kib = if is_alone { [64, 100, 160] } else { [64, 160, 260] };
    let mut sim = Arc::new(SampledPmem::new(kib[rng.below(3) as usize] << 10));
    drop(Heap::format(any(Arc::clone(&sim)), &options).unwrap());
    let persists = modes != [Mode::Volatile];
    let actor = |thread| Actor { rng: Rng::of(rng.next()), serial: thread << 24, persists, is_alone };
    let mut threads: Vec<_> = (1..=thread_count).map(actor).map(|actor| (actor, Shadow::new())).collect();
    for round in 0..8 {
        let mode = modes[rng.below(modes.len() as u64) as usize];
        let heap = Heap::attach(any(Arc::clone(&sim)), &options).unwrap();
        let is_durable = mode != Mode::Volatile;
        // With several threads, a later power failure may revert a call that was not acknowledged, unless the headers are made durable here.
        if !is_alone || is_durable && mode != Mode::VolatileThenDurable && rng.one_in(2) {
            heap.scan_ahead(1 << 20).unwrap();
        }
        let steps = 1 + rng.below(30);
        let mut stop_soon = || {
            drop(sim.stopped());
            let event = sim.events() + rng.below(20 * steps * thread_count);
            sim.stop_at(event);
            (&*sim, steps, event)
        };
        let stops = if mode == Mode::Transactions {
            run_threads(&mut threads, stop_soon(), |actor, shadow| transact(actor, &heap, shadow), || ())
        } else {
            let mut heap = UnloggedHeap::new(heap).durable(mode == Mode::Durable);
            if mode == Mode::VolatileThenDurable {
                for (actor, shadow) in &mut threads {
                    for _ in 0..4 + steps / 2 {
                        step_unlogged(actor, &heap, shadow, &options);
                    }
                }
                heap = heap.durable(true);
            }
            let step = |actor: &mut Actor, shadow: &mut Shadow| step_unlogged(actor, &heap, shadow, &options);
            let copies = (0..3).filter(|_| !is_alone).map(|_| copy(&heap));
            let attach = |copy| drop(listed(&Heap::attach(any(copy), &options).unwrap()));
            let stops = run_threads(&mut threads, stop_soon(), step, || copies.for_each(attach));
            assert_eq!(listed(heap.heap()), rooms(threads.iter().map(|thread| &thread.1)), "round {round}");
            stops
        };
        let mut interrupted = vec![];
        let state = match sim.stopped().filter(|_| rng.one_in(2)) {
            Some(state) => {
                for ((_, shadow), stop) in threads.iter_mut().zip(stops) {
                    if let Some((before, operation)) = stop.interrupted() {
                        *shadow = before;
                        interrupted.push(operation);
                    }
                }
                state
            }
            None => sim.state(),
        };
        let left = if is_durable && rng.one_in(2) { state.crash(&mut rng) } else { state };
        sim = Arc::new(SampledPmem::of(left));
        let found = listed(&Heap::attach(any(Arc::clone(&sim)), &options).unwrap());
        let known =
            threads.iter().flat_map(|thread| &thread.1).map(|(offset, block)| (*offset, *block)).collect();
        let (actor, shadow) = &mut threads[0];
        for (offset, room) in survivors(&sim, &found, &known, &interrupted) {
            actor.serial += 1;
            fill(&sim, offset, room, actor.serial, true);
            shadow.insert(offset, (room, actor.serial));
        }
    }
}

#[test]
fn heap_used_in_several_modes_survives_kills_and_power_failures() {
    let modes = [Mode::Volatile, Mode::Durable, Mode::VolatileThenDurable, Mode::Transactions];
    each_seed(100, |seed| run(seed, 1, &modes));
}

#[test]
fn random_unlogged_programs_survive_crashes() {
    each_seed(15, |seed| run(seed, 1, &[[Mode::Volatile, Mode::Durable][seed as usize % 2]]));
}

#[test]
fn random_unlogged_threads_survive_crashes() {
    each_seed(30, |seed| run(seed, 2 + seed / 2 % 3, &[[Mode::Volatile, Mode::Durable][seed as usize % 2]]));
}
