//! Random programs of one or several threads on one heap, compared with a shadow model. Each thread has its own blocks, words and roots. Each program
//! is repeatedly killed or loses power at a random event. In variants a line of the log is corrupted, or one fence of a run or of a recovery fails.
//! Each thread finds one of its allowed states, and no block is lost or leaked. With several threads the seed does not determine their order.

use super::prelude::*;
use super::shadow::{Actor, LENS, NEVER, Shadow, formatted, read_states};
use crate::discarding::opened;
use crate::sim::programs::{assert_allowed, corrupt_log};
use core::time::Duration;

/// The faults besides kills and power failures.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// A line of the log, of a lane's header or of the state words is corrupted. The heap may refuse to open then.
    CorruptedLine,
    /// One fence of one thread fails.
    Fence,
    /// One fence of a recovery fails.
    RecoveryFence,
}

/// The medium after a random number of recoveries that are stopped or have a failed fence. `None` if a recovery refuses the heap.
fn stopped_recoveries(
    mut left: State,
    options: &HeapOptions,
    rng: &mut Rng,
    has_kills: bool,
    (fault, is_hit): (Fault, bool),
    failed: &mut u64,
) -> Option<State> {
    while rng.one_in(3) == (fault != Fault::RecoveryFence) {
        let sim = Arc::new(SampledPmem::of(left));
        let event = rng.below(80);
        if fault == Fault::RecoveryFence && rng.one_in(2) {
            sim.fail_once_at(event);
        } else {
            sim.stop_at(event);
        }
        match Heap::attach(any(Arc::clone(&sim)), options) {
            Ok(opened) => {
                let scanned = opened.scan_ahead(rng.below(10) as usize);
                assert!(scanned.is_ok() || sim.has_failed(), "{scanned:?}");
            }
            Err(HeapError::Recover(RecoverError::Corrupted { .. })) if is_hit => return None,
            Err(error) => assert!(sim.has_failed(), "{error:?}"),
        }
        left = sim.stopped().unwrap_or_else(|| sim.state());
        *failed += u64::from(sim.has_failed());
        if !has_kills || rng.one_in(2) {
            left = left.crash(rng);
        }
    }
    Some(left)
}

fn options(lanes: u64, lane_entries: u32, in_place_from_bytes: usize) -> HeapOptions {
    let options = crate::harness::options().lanes(lanes as u32).lane_entries(lane_entries);
    options.chunk_bytes(4096).in_place_from_bytes(in_place_from_bytes)
}

/// Runs all threads. If there is a `hit_step`, the first thread corrupts a line before that step.
fn run_threads(heap: &SimHeap, actors: &mut [Actor], steps: u64, may_stop: bool, hit_step: Option<u64>) {
    std::thread::scope(|scope| {
        for actor in actors {
            scope.spawn(move || {
                for step in 0..steps {
                    if actor.owner == 0 && hit_step == Some(step) {
                        corrupt_log(heap.pool().pmem().sampled(), heap.layout(), &mut actor.rng);
                    }
                    if !actor.has_failed_call {
                        actor.step(heap, may_stop);
                    }
                }
            });
        }
    });
}

/// Runs the program of a seed. Returns the number of failed fences.
fn run(seed: u64, is_alone: bool, fault: Fault, has_kills: bool) -> u64 {
    let mut failed = 0;
    let mut rng = Rng::of(seed);
    let threads = if is_alone { 1 } else { 2 + rng.below(3) as usize };
    let (chunk_bytes, region_bytes, lens) = if !is_alone && rng.one_in(2) {
        const LONG: &[u64] = &[1, 3, 7, 8, 12, 13, 15, 23, 40, 71, 100, 500, 1500, 3000];
        (1 << 15, (80 << 10) + (rng.below(3) << 15), LONG)
    } else {
        (4096, (25 + rng.below(38)) << 12, LENS)
    };
    // A quarantine time would make the program of one thread depend on more than its seed.
    let quarantine = if is_alone { 0 } else { rng.below(2) * rng.below(300) };
    let entries = [16, 30, 44, 80][rng.below(4) as usize];
    let options = options(1 + rng.below(4), entries, [64, 65, 136, 200][rng.below(4) as usize])
        .seed(seed + 1000)
        .chunk_bytes(chunk_bytes)
        .quarantine(Duration::from_micros(quarantine));
    let mut heap = formatted(region_bytes, &options, threads);
    let mut actors = Actor::all(&heap, threads, lens, &mut rng);
    for round in 0..8 {
        run_threads(&heap, &mut actors, rng.below(12), false, None);
        let steps = 5 + rng.below(40);
        let sim = Arc::clone(heap.pool().pmem().sampled());
        let (begun, events) = (sim.events(), threads as u64 * steps * 25);
        let mut stop = begun + rng.below(events);
        sim.stop_at(stop);
        let mut is_hit = matches!(fault, Fault::CorruptedLine | Fault::Fence) && rng.one_in(2);
        if is_hit && fault == Fault::Fence {
            sim.fail_once_at(begun + rng.below(events));
        }
        let hit_step = (is_hit && fault == Fault::CorruptedLine).then(|| rng.below(steps));
        actors.iter_mut().for_each(|actor| actor.may_fail = is_hit);
        run_threads(&heap, &mut actors, steps, true, hit_step);
        if !is_hit {
            let last: Vec<Shadow> = actors.iter().map(Actor::last).collect();
            assert_eq!(read_states(&heap, threads), last, "round {round}, without a crash");
        }
        let layout = *heap.layout();
        drop(heap);
        failed += u64::from(sim.has_failed());
        let is_closed = rng.one_in(8) || is_hit && rng.one_in(2);
        let stopped = sim.stopped().filter(|_| !is_closed).unwrap_or_else(|| {
            stop = NEVER - 1;
            for actor in actors.iter_mut().filter(|_| !is_hit) {
                actor.states.last_mut().unwrap().1 = 0;
            }
            sim.state()
        });
        let may_be_killed = has_kills && !actors.iter().any(|actor| actor.is_storing_word(stop));
        let left = if may_be_killed && rng.one_in(2) { stopped } else { stopped.crash(&mut rng) };
        let faults = (fault, is_hit);
        let left = stopped_recoveries(left, &options, &mut rng, has_kills, faults, &mut failed);
        let Some(left) = left else { return failed };
        let sim = Arc::new(SampledPmem::of(left));
        if fault == Fault::CorruptedLine && !is_hit && rng.one_in(2) {
            corrupt_log(&sim, &layout, &mut rng);
            is_hit = true;
        }
        let Some(opened) = opened(sim, &options) else {
            assert!(is_hit && fault == Fault::CorruptedLine, "round {round}");
            return failed;
        };
        heap = opened;
        for (actor, found) in actors.iter_mut().zip(read_states(&heap, threads)) {
            let case = format!("round {round}: thread {} of {threads}", actor.owner);
            assert_allowed(&actor.states, stop, &found, &case);
            actor.restart(found);
        }
    }
    failed
}

/// Fails a fence and all later ones. Asserts that nothing is stored after it, and that the heap on the medium is sound.
fn failing(seed: u64) {
    let mut rng = Rng::of(seed);
    let options = options(1 + rng.below(3), 30, 64);
    let heap = formatted(120 << 10, &options, 1);
    let mut actor = Actor::all(&heap, 1, LENS, &mut rng).remove(0);
    (0..1 + rng.below(60)).for_each(|_| actor.step(&heap, true));
    let sim = Arc::clone(heap.pool().pmem().sampled());
    sim.fail_at(sim.events() + rng.below(60));
    let mut stores = None;
    for _ in 0..40 {
        let step = std::panic::AssertUnwindSafe(|| actor.step(&heap, true));
        // A step panics if a call is refused.
        let done = std::panic::catch_unwind(step);
        assert!(done.is_ok() || sim.has_failed());
        if sim.has_failed() {
            let before = *stores.get_or_insert(sim.stores());
            assert_eq!(before, sim.stores(), "nothing is stored after the failed fence: {done:?}");
        }
    }
    drop(heap);
    assert!(stores.is_none_or(|stores| stores == sim.stores()), "dropping stores nothing");
    let left = sim.state().crash(&mut rng);
    read_states(&Heap::attach(any(Arc::new(SampledPmem::of(left))), &options).unwrap(), 1);
}

#[test]
fn failed_fence_stops_all_stores_and_leaves_sound_heap() {
    each_seed(30, failing);
}

#[test]
fn random_programs_survive_power_failures() {
    each_seed(40, |seed| run(seed, true, Fault::None, false));
}

#[test]
fn random_programs_survive_kills_and_power_failures() {
    each_seed(40, |seed| run(seed, true, Fault::None, true));
}

#[test]
fn heap_that_opens_with_corrupted_line_has_lost_nothing() {
    each_seed(200, |seed| run(seed, true, Fault::CorruptedLine, seed % 2 == 0));
}

#[test]
fn threads_survive_kills_and_power_failures() {
    each_seed(40, |seed| run(seed, false, Fault::None, true));
}

#[test]
fn threads_lose_nothing_if_heap_opens_with_corrupted_line() {
    each_seed(40, |seed| run(seed, false, Fault::CorruptedLine, true));
}

#[test]
fn threads_survive_one_failed_fence() {
    let failed = each_seed(40, |seed| run(seed, false, Fault::Fence, true));
    assert!(failed.len() < 40 || failed.iter().sum::<u64>() > 0);
}

#[test]
fn threads_survive_failed_fences_in_recovery() {
    let failed = each_seed(40, |seed| run(seed, false, Fault::RecoveryFence, true));
    assert!(failed.len() < 40 || failed.iter().sum::<u64>() > 0);
}
