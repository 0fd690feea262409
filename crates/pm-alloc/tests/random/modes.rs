//! Random programs on a heap that is used in turn without the log and not durably, without the log and durably, and by transactions: allocating,
//! freeing, resizing, copying as for a fork. Each time the process ends, is killed, or loses power, and the heap is compared with a shadow model.

use crate::prelude::*;
use crate::sim::unlogged::{Direct, Shadow, Stop, World, check, copy, fill, listed, survivors};
use pm_alloc::UnloggedHeap;

/// How the heap is used until it is reopened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Volatile,
    Durable,
    /// Not durably first.
    VolatileThenDurable,
    Transactions,
}

/// One transaction. Returns its block.
fn transact(world: &mut World, heap: &Heap<Arc<Sim>>, shadow: &mut Shadow) -> u64 {
    let pmem = heap.pool().pmem();
    match (world.rng.below(10), world.chosen(shadow)) {
        (0..=4, _) | (_, None) => {
            let bytes = world.bytes();
            let allocated = heap.transaction(|tx| tx.alloc_uninit::<u8>(bytes).map(Link::offset));
            match allocated {
                Ok(offset) => {
                    // The capacity is known only after the commit.
                    let room = heap.transact(|tx| tx.capacity_bytes(link_to::<u8>(offset))).unwrap();
                    assert!(room >= bytes);
                    world.allocated(pmem, shadow, offset, room);
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

/// One operation without the log, and sometimes a copy, which has the same blocks. Returns its block.
fn step_unlogged(world: &mut World, heap: &Direct, shadow: &mut Shadow, options: &HeapOptions) -> u64 {
    let block = world.step(heap, shadow);
    if world.rng.one_in(10) {
        let copy = copy(heap);
        let expected: BTreeMap<u64, u64> = shadow.iter().map(|(offset, block)| (*offset, block.0)).collect();
        assert_eq!(listed(&Heap::attach(Arc::clone(&copy), options).unwrap()), expected);
        shadow.iter().for_each(|(offset, (room, id))| check(&copy, *offset, *room, *id));
    }
    block
}

fn run(seed: u64, modes: &[Mode]) {
    let mut rng = Rng::of(seed);
    let chunk_bytes = [4096, 4096, 8192][rng.below(3) as usize];
    let options = crate::harness::options().lanes(1 + rng.below(2) as u32);
    let options = options.lane_entries([8, 30][rng.below(2) as usize]).chunk_bytes(chunk_bytes);
    let mut sim = Arc::new(Sim::new([64, 100, 160][rng.below(3) as usize] << 10));
    drop(Heap::format(Arc::clone(&sim), &options).unwrap());
    let mut world = World { rng, serial: 0, persists: true, is_alone: true };
    let mut shadow = Shadow::new();
    for _ in 0..10 {
        let mode = modes[world.rng.below(modes.len() as u64) as usize];
        let heap = Heap::attach(Arc::clone(&sim), &options).unwrap();
        let is_scanned = matches!(mode, Mode::Durable | Mode::Transactions) && world.rng.one_in(2);
        if is_scanned {
            heap.scan_ahead(1 << 20).unwrap();
        }
        let steps = 1 + world.rng.below(25);
        let begin = |world: &mut World| {
            let event = sim.events() + world.rng.below(20 * steps);
            sim.stop_at(event);
            Stop::at(event)
        };
        let mut stop = begin(&mut world);
        if mode == Mode::Transactions {
            for _ in 0..steps {
                stop.step(&sim, &mut shadow, |shadow| transact(&mut world, &heap, shadow));
            }
            drop(heap);
        } else {
            let mut heap = UnloggedHeap::new(heap).durable(mode == Mode::Durable);
            if mode == Mode::VolatileThenDurable {
                for _ in 0..4 + world.rng.below(steps) {
                    step_unlogged(&mut world, &heap, &mut shadow, &options);
                }
                heap = heap.durable(true);
                drop(sim.stopped());
                stop = begin(&mut world);
            }
            for _ in 0..steps {
                stop.step(&sim, &mut shadow, |shadow| step_unlogged(&mut world, &heap, shadow, &options));
            }
        }
        let (state, known, interrupted) = match (sim.stopped(), stop.interrupted()) {
            (Some(state), Some((before, about))) if world.rng.one_in(2) => (state, before, vec![about]),
            _ => (sim.state(), shadow, vec![]),
        };
        // Whether the chunks were scanned or not.
        let is_durable = mode != Mode::Volatile;
        let left = if is_durable && world.rng.one_in(2) { crash(&state, &mut world.rng) } else { state };
        sim = Arc::new(Sim::of(left));
        let found = listed(&Heap::attach(Arc::clone(&sim), &options).unwrap());
        let others = survivors(&sim, &found, &known, &interrupted);
        shadow = known;
        for (offset, room) in others {
            world.serial += 1;
            fill(&sim, offset, room, world.serial, true);
            shadow.insert(offset, (room, world.serial));
        }
    }
}

#[test]
fn heap_used_in_several_modes_survives_kills_and_power_failures() {
    let modes = [Mode::Volatile, Mode::Durable, Mode::VolatileThenDurable, Mode::Transactions];
    each_seed(100, |seed| run(seed, &modes));
}

#[test]
fn random_unlogged_programs_survive_crashes() {
    each_seed(15, |seed| run(seed, &[[Mode::Volatile, Mode::Durable][seed as usize % 2]]));
}
