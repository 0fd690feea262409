//! Random programs in two lanes. At a crash an entry of one of the last two transactions of a lane is corrupted, and discarded; recoveries are
//! stopped before it is corrupted, and after. All changes of other transactions stay: their blocks are listed, unchanged and not allocated again,
//! and what they freed is free.

use super::victim::{Before, Done, fill};
use crate::discarding::{Worker, holding_a_lane, live_lines, stopped_recoveries, write_word};
use crate::prelude::*;

const SLOTS: u64 = 16;

fn options(entries: u32) -> HeapOptions {
    crate::harness::options().lanes(2).lane_entries(entries).chunk_bytes(4096).in_place_from_bytes(256)
}

fn lines(rng: &mut Rng) -> u64 {
    [1, 1, 2, 3, 4, 5, 6, 8, 12, 20, 33, 70][rng.below(12) as usize]
}

/// One operation on slots of a block at `slots`, whose contents are in `shadow`.
///
/// The first word of each line of a block is the block's offset; if `is_filled`, all others are, too, which overwrites the headers of former
/// blocks.
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

/// Whether an entry was discarded.
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
        let (heap, other) = (&heap, Worker::new(scope, &heap));
        // The other thread gets the other lane, and keeps using it.
        holding_a_lane(heap, long, || other.run(move |heap| write_word(heap, slots, 0)));
        for _ in 0..20 + rng.below(60) {
            let before = sim.power_failure();
            let done = if rng.below(2) == 0 {
                step(heap, slots, &mut shadow, is_filled, &mut rng)
            } else {
                let (mut theirs, seed) = (shadow.clone(), rng.next());
                let step = move |heap: &SimHeap| {
                    let done = step(heap, slots, &mut theirs, is_filled, &mut Rng::of(seed));
                    (done, theirs)
                };
                let (done, theirs) = other.run(step);
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
    let left = stopped_recoveries(left, &options, &mut rng);
    let back = if rng.one_in(4) { 2 } else { 1 };
    let Some((victim, victim_entries)) = victims.len().checked_sub(back).map(|at| victims[at].clone()) else {
        return false;
    };
    let line = victim_entries[rng.below(victim_entries.len() as u64) as usize];
    let case = format!("PM_CRASH_FIRST={seed} PM_CRASH_SEQUENCES=1: lost {victim:?}");
    let before = Before { slots, long, shadow, lens, is_filled };
    before.assert_only_victim_is_lost(left, line, &victim, &options, &mut rng, &case)
}

#[test]
fn discarding_one_entry_costs_one_transaction() {
    let discarded = each_seed(200, run);
    let count = discarded.iter().filter(|is_discarded| **is_discarded).count();
    println!("{count} of {} discarded", discarded.len());
    assert!(discarded.len() < 100 || count > 0);
}
