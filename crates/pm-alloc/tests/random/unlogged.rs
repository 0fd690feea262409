//! Random programs on an unlogged heap, against a shadow model: allocating, freeing, resizing, copying as for a fork, and a kill or a power failure
//! at a random event.

use crate::prelude::*;
use crate::sim::unlogged::{Direct, Shadow, World, check, copy, fill, listed};
use pm_alloc::UnloggedHeap;

fn copied(heap: &Direct, options: &HeapOptions, shadow: &Shadow) {
    let copy = copy(heap);
    let heap = Heap::attach(Arc::clone(&copy), options).unwrap();
    let expected: BTreeMap<u64, u64> = shadow.iter().map(|(offset, block)| (*offset, block.0)).collect();
    assert_eq!(listed(&heap), expected);
    shadow.iter().for_each(|(offset, (room, id))| check(&copy, *offset, *room, *id));
}

fn run(seed: u64) {
    let mut rng = Rng::of(seed);
    let durable = rng.one_in(2);
    let chunk_bytes = [4096, 8192][rng.below(2) as usize];
    let options = crate::harness::options().lanes(1).lane_entries(8).chunk_bytes(chunk_bytes);
    let sim = Arc::new(Sim::new([64, 100, 160][rng.below(3) as usize] << 10));
    let mut heap = UnloggedHeap::new(Heap::format(sim, &options).unwrap()).durable(durable);
    let mut world = World { rng, serial: 0, persists: durable, is_alone: true };
    let mut shadow = Shadow::new();
    for _ in 0..8 {
        for _ in 0..1 + world.rng.below(30) {
            world.step(&heap, &mut shadow);
            if world.rng.one_in(10) {
                copied(&heap, &options, &shadow);
            }
        }
        let sim = Arc::clone(heap.heap().pool().pmem());
        let stop = sim.events() + world.rng.below(20);
        sim.stop_at(stop);
        let (mut before, mut about) = (shadow.clone(), ("", 0));
        while sim.events() <= stop {
            before = shadow.clone();
            about = world.step(&heap, &mut shadow);
        }
        let stopped: State = sim.stopped().unwrap();
        drop(heap);
        let left = if durable && world.rng.one_in(2) { crash(&stopped, &mut world.rng) } else { stopped };
        let sim = Arc::new(Sim::of(left));
        let opened = Heap::attach(Arc::clone(&sim), &options).unwrap();
        // A later power failure may revert a call that was not acknowledged, if nothing relies on it.
        opened.scan_ahead(1 << 20).unwrap();
        let found = listed(&opened);
        let mut now = Shadow::new();
        for (offset, room) in &found {
            let known = before.get(offset);
            assert!(known.is_some() || *offset == about.1, "{about:?}: {offset} is allocated");
            if *offset != about.1 {
                assert_eq!(known.unwrap().0, *room, "{about:?}: the block at {offset}");
                check(&sim, *offset, *room, known.unwrap().1);
                now.insert(*offset, *known.unwrap());
            } else if let Some((old, id)) = known {
                let new = shadow.get(offset).map_or(*old, |block| block.0);
                assert!(*room == *old || *room == new, "{about:?}: {room} of {old} or {new}");
                check(&sim, *offset, *old.min(&new), *id);
                now.insert(*offset, (*room, *id));
            } else {
                now.insert(*offset, (*room, u64::MAX));
            }
        }
        for (offset, _) in before.iter().filter(|block| *block.0 != about.1) {
            assert!(found.contains_key(offset), "{about:?}: the block at {offset} is lost");
        }
        shadow = now;
        heap = UnloggedHeap::new(opened).durable(durable);
        let ids: Vec<(u64, u64)> = shadow.iter().map(|(offset, block)| (*offset, block.0)).collect();
        for (offset, room) in ids {
            world.serial += 1;
            shadow.insert(offset, (room, world.serial));
            fill(&sim, offset, room, world.serial, durable);
        }
    }
}

#[test]
fn random_unlogged_programs_survive_crashes() {
    each_seed(15, run);
}
