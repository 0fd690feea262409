//! Random programs in two lanes. At a crash an entry of one of the last two transactions of a lane is corrupted, and discarded; recoveries are
//! stopped before it is corrupted, and after. All changes of other transactions stay: their blocks are listed, unchanged and not handed out, and
//! what they freed is free.
//!
//! `PM_CRASH_SEQUENCES` is the number of programs, `PM_CRASH_FIRST` the first seed.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

mod discarding;
mod harness;
mod links;
mod sim;

use discarding::{SimHeap, all_payloads, lines_of, live_lines, opened_at_last, stopped_recoveries};
use harness::Transact as _;
use links::link_to;
use pm_alloc::{Heap, HeapError, HeapOptions, RecoverError, TxError};
use pm_core::Pmem;
use sim::{Rng, Sim, crash, seeds};
use std::collections::BTreeSet;
use std::sync::{Arc, mpsc};

const SLOTS: u64 = 16;

fn options(entries: u32) -> HeapOptions {
    harness::options().lanes(2).lane_entries(entries).chunk_bytes(4096).in_place_from_bytes(256)
}

fn lines(rng: &mut Rng) -> u64 {
    [1, 1, 2, 3, 4, 5, 6, 8, 12, 20, 33, 70][rng.below(12) as usize]
}

/// The changes of one operation: slots, and blocks that it allocated or freed.
#[derive(Clone, Debug, Default)]
struct Done {
    slots: Vec<u64>,
    blocks: Vec<u64>,
}

/// One operation on slots of a block at `slots`, whose contents are in `shadow`.
///
/// The first word of each line of a block is the block's offset; if `is_filled`, all others are, too, which overwrites the headers of former
/// blocks.
///
/// The first word of each line of a block is where the block starts; if `is_filled`, all others are, too, which
/// overwrites the headers of former blocks.
fn step(heap: &SimHeap, slots: u64, shadow: &mut [u64], is_filled: bool, rng: &mut Rng) -> Done {
    let mut done = Done::default();
    let mut next = shadow.to_vec();
    let place = |slot: u64| slots + 8 * slot;
    let slot = rng.below(SLOTS);
    let result: Result<(), TxError> = match (rng.below(8), shadow[slot as usize]) {
        (0..3, 0) => heap.view(|view| {
            let block = view.alloc_uninit_and_link::<u64>(link_to(place(slot)), 8 * lines(rng) - 1)?;
            next[slot as usize] = block.offset();
            (done.slots, done.blocks) = (vec![slot], vec![block.offset()]);
            Ok(())
        }),
        (0..3, block) => heap.view(|view| {
            view.unlink_and_free::<u64>(link_to(place(slot)))?;
            next[slot as usize] = 0;
            (done.slots, done.blocks) = (vec![slot], vec![block]);
            Ok(())
        }),
        (3..7, _) => heap.transaction(|tx| {
            for slot in [slot, (slot + 1 + rng.below(3)) % SLOTS] {
                let block = next[slot as usize];
                let new = if block == 0 {
                    let new = match rng.below(4) {
                        0 => tx.alloc_aligned::<u64>(lines(rng).min(9), 256)?,
                        1 => tx.alloc_slice(&[slot; 30])?,
                        _ => tx.alloc_uninit::<u64>(8 * lines(rng) - 1)?,
                    };
                    done.blocks.push(new.offset());
                    new.offset()
                } else if done.blocks.contains(&block) {
                    continue;
                } else {
                    tx.free(link_to::<u64>(block))?;
                    done.blocks.push(block);
                    0
                };
                tx.write(link_to(place(slot)), &new)?;
                next[slot as usize] = new;
                done.slots.push(slot);
            }
            Ok(())
        }),
        _ => {
            heap.checkpoint().unwrap();
            Ok(())
        }
    };
    match result {
        Ok(()) => {
            let new = next.iter().filter(|block| **block != 0 && !shadow.contains(block));
            new.for_each(|&block| fill(heap, block, is_filled));
            shadow.copy_from_slice(&next);
        }
        Err(TxError::Space(_)) => done = Done::default(),
        Err(error) => panic!("{error}"),
    }
    done
}

fn fill(heap: &SimHeap, block: u64, is_filled: bool) {
    let (pool, lines) = (heap.pool(), lines_of(heap, block));
    let step = if is_filled { 8 } else { 64 };
    (block..block + 64 * lines - 8).step_by(step).for_each(|at| pool.pmem().store_u64(at, block));
    pool.pmem().persist(block, 64 * lines - 8).unwrap();
}

/// Whether an entry was discarded.
#[expect(clippy::too_many_lines, reason = "a program, its crash, and what must be left of it")]
fn run(seed: u64) -> bool {
    let mut rng = Rng::of(seed);
    let options = options([40, 64, 200][rng.below(3) as usize]);
    let bytes = [56, 72, 100][rng.below(3) as usize] << 10;
    let heap = Heap::format(Arc::new(Sim::new(bytes)), &options).unwrap();
    let sim = Arc::clone(heap.pool().pmem());
    let made = heap.transact(|tx| {
        let slots = tx.alloc_zeroed::<u64>(SLOTS)?;
        Ok((slots.offset(), tx.alloc_zeroed::<u64>(40)?.offset()))
    });
    let (slots, long) = made.unwrap();
    let mut shadow = vec![0; SLOTS as usize];
    let mut victims = vec![];
    let (lane, is_filled) = (rng.below(2), rng.one_in(4));
    std::thread::scope(|scope| {
        let (to_other, jobs) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let (finish, finished) = mpsc::channel();
        scope.spawn(move || {
            for job in jobs {
                job();
                finish.send(()).unwrap();
            }
        });
        // The other thread gets the other lane, and keeps using it.
        let heap = &heap;
        let taken = heap.transaction(|tx| {
            tx.write(link_to(long), &[1_u64; 40])?;
            let job = move || {
                heap.transact(|tx| tx.write(link_to(slots), &0_u64)).unwrap();
            };
            to_other.send(Box::new(job)).unwrap();
            finished.recv().unwrap();
            Ok::<_, TxError>(())
        });
        taken.unwrap();
        for _ in 0..20 + rng.below(60) {
            let before = sim.power_failure();
            let who = rng.below(2);
            let done = if who == 0 {
                step(heap, slots, &mut shadow, is_filled, &mut rng)
            } else {
                let (result, received) = mpsc::channel();
                let (mut theirs, seed) = (shadow.clone(), rng.next());
                let job = move || {
                    let done = step(heap, slots, &mut theirs, is_filled, &mut Rng::of(seed));
                    result.send((done, theirs)).unwrap();
                };
                to_other.send(Box::new(job)).unwrap();
                let (done, theirs) = received.recv().unwrap();
                finished.recv().unwrap();
                shadow = theirs;
                done
            };
            let after = sim.power_failure();
            let entries: Vec<usize> = (0..heap.layout().lane_entries)
                .map(|entry| heap.layout().entry_offset(lane as u32, entry) as usize)
                .filter(|&at| before.durable[at..at + 64] != after.durable[at..at + 64])
                .collect();
            if !entries.is_empty() {
                victims.push((done, entries));
            }
        }
    });
    let lens: Vec<(u64, u64)> = live_lines(&heap);
    let left = crash(&sim.state(), &mut rng);
    core::mem::forget(heap);
    let mut left = stopped_recoveries(left, &options, &mut rng);
    let back = if rng.one_in(4) { 2 } else { 1 };
    let Some((victim, victim_entries)) = victims.len().checked_sub(back).map(|at| victims[at].clone()) else {
        return false;
    };
    let hit = victim_entries[rng.below(victim_entries.len() as u64) as usize] + 20;
    left.visible[hit] ^= 4;
    left.durable[hit] ^= 4;
    let told = format!("PM_CRASH_FIRST={seed} PM_CRASH_SEQUENCES=1: lost {victim:?}");
    match Heap::attach(Arc::new(Sim::of(left.clone())), &options) {
        Ok(_) => return false,
        Err(HeapError::Recover(RecoverError::Corrupted { .. })) => {}
        Err(error) => panic!("{told}: {error}"),
    }
    let heap = opened_at_last(left, &options, &mut rng);
    let listed: BTreeSet<u64> = heap.blocks().into_iter().collect();
    let is_whole = heap.check().is_clean();
    // The contents of the victim's block may overwrite a header of the chain, and cut it.
    assert!(is_whole || is_filled, "{told}");
    let mut live: Vec<(u64, u64)> = vec![];
    for (slot, &block) in shadow.iter().enumerate() {
        if victim.slots.contains(&(slot as u64)) || block == 0 {
            continue;
        }
        assert_eq!(heap.pool().pmem().load_u64(slots + 8 * slot as u64), block, "{told}: slot {slot}");
        live.extend(lens.iter().find(|live| live.0 == block));
    }
    for at in all_payloads(&heap) {
        let over = live.iter().find(|live| at < live.0 + 64 * live.1 && live.0 < at + 64);
        assert!(over.is_none(), "{told}: {at} handed out over {over:?}");
    }
    for &(block, lines) in &live {
        assert!(listed.contains(&block), "{told}: {block} is not listed");
        let step = if is_filled { 8 } else { 64 };
        let mut words = (block..block + 64 * lines - 8).step_by(step);
        assert!(words.all(|at| heap.pool().pmem().load_u64(at) == block), "{told}: {block} is changed");
    }
    let mut known: BTreeSet<u64> = shadow.iter().copied().chain(victim.blocks.iter().copied()).collect();
    known.extend([slots, long]);
    let leaked: Vec<&u64> = listed.iter().filter(|block| !known.contains(block)).collect();
    assert!(leaked.is_empty() || !is_whole, "{told}: {leaked:?} were freed");
    true
}

#[test]
fn discarding_one_entry_costs_one_transaction() {
    let mut discarded = 0;
    let seeds = seeds(200);
    for seed in seeds.clone() {
        // A thread gets the lane that it had last, so each program runs in new threads.
        let ran = std::thread::spawn(move || run(seed)).join();
        discarded += u64::from(ran.unwrap_or_else(|error| std::panic::resume_unwind(error)));
    }
    println!("{discarded} of {seeds:?} discarded");
    assert!(seeds.end - seeds.start < 100 || discarded > 0);
}
