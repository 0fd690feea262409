//! Random programs of several threads on an unlogged heap, against a shadow model of each: with a kill or a power failure at any event, and copies as
//! for a fork while they run. The seed does not determine the order in which the threads run.

use crate::prelude::*;
use crate::sim::unlogged::{Shadow, Stop, World, check, copy, fill, listed, survivors};
use pm_alloc::UnloggedHeap;

fn run(seed: u64) {
    let mut rng = Rng::of(seed);
    let durable = rng.one_in(2);
    let threads = 2 + rng.below(3);
    let chunk_bytes = [4096, 8192][rng.below(2) as usize];
    let options = crate::harness::options().lanes(1).lane_entries(8).chunk_bytes(chunk_bytes);
    let mut sim = Arc::new(Sim::new([64, 160, 260][rng.below(3) as usize] << 10));
    drop(Heap::format(Arc::clone(&sim), &options).unwrap());
    let mut shadows: Vec<Shadow> = (0..threads).map(|_| Shadow::new()).collect();
    for round in 0..6 {
        let opened = Heap::attach(Arc::clone(&sim), &options).unwrap();
        // A later power failure may revert a call that was not acknowledged, if nothing relies on it.
        opened.scan_ahead(1 << 20).unwrap();
        let heap = UnloggedHeap::new(opened).durable(durable);
        let steps = 3 + rng.below(30);
        drop(sim.stopped());
        let event = sim.events() + rng.below(steps * threads * 6);
        sim.stop_at(event);
        let ended: Vec<(Shadow, Stop)> = std::thread::scope(|scope| {
            let running: Vec<_> = shadows
                .iter()
                .enumerate()
                .map(|(thread, shadow)| {
                    let serial = 10_000 * (round + 1) + 1000 * thread as u64;
                    let rng = Rng::of(rng.next());
                    let mut world = World { rng, serial, persists: durable, is_alone: false };
                    let (mut shadow, mut stop) = (shadow.clone(), Stop::at(event));
                    let (heap, sim) = (&heap, &sim);
                    scope.spawn(move || {
                        for _ in 0..steps {
                            stop.step(sim, &mut shadow, |shadow| world.step(heap, shadow));
                        }
                        (shadow, stop)
                    })
                })
                .collect();
            if rng.one_in(2) {
                for _ in 0..3 {
                    drop(listed(&Heap::attach(copy(&heap), &options).unwrap()));
                }
            }
            running.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let blocks = || ended.iter().flat_map(|thread| &thread.0);
        let all: BTreeMap<u64, u64> = blocks().map(|(offset, block)| (*offset, block.0)).collect();
        assert_eq!(all, listed(heap.heap()), "round {round}, without a crash");
        blocks().for_each(|(offset, block)| check(&sim, *offset, block.0, block.1));
        drop(heap);
        let Some(stopped) = sim.stopped() else {
            shadows = ended.into_iter().map(|thread| thread.0).collect();
            continue;
        };
        let left = if durable && rng.one_in(2) { crash(&stopped, &mut rng) } else { stopped };
        sim = Arc::new(Sim::of(left));
        let found = listed(&Heap::attach(Arc::clone(&sim), &options).unwrap());
        let mut interrupted = vec![];
        shadows = ended
            .into_iter()
            .map(|(shadow, stop)| {
                let Some((before, about)) = stop.interrupted() else { return shadow };
                interrupted.push(about);
                before
            })
            .collect();
        let known: Shadow = shadows.iter().flatten().map(|(offset, block)| (*offset, *block)).collect();
        for (number, (offset, room)) in (0..).zip(survivors(&sim, &found, &known, &interrupted)) {
            let id = 10_000 * (round + 2) - 1 - number;
            fill(&sim, offset, room, id, true);
            shadows[0].insert(offset, (room, id));
        }
    }
}

#[test]
fn random_unlogged_threads_survive_crashes() {
    each_seed(30, run);
}
