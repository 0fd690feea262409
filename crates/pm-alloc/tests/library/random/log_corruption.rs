//! Random programs, after which each line of the log is corrupted in turn: the heap refuses to open, or has the same contents as without the
//! corruption.

use super::prelude::*;
use crate::discarding::{ENTRIES, heap, opened, options, sim_of, with_worker};

fn heap_with_two_blocks() -> (SimHeap, [u64; 2]) {
    let heap = heap();
    let block = || heap.transact(|tx| tx.alloc_zeroed::<u64>(80).map(Link::offset)).unwrap();
    let blocks = [block(), block()];
    (heap, blocks)
}

fn commit(heap: &SimHeap, block: u64, seed: u64) {
    let mut rng = Rng::of(seed);
    let words = 1 + rng.below(8);
    heap.transact(|tx| {
        if rng.one_in(12) {
            tx.write(link_to(block), &[seed; 40])?;
            if rng.one_in(2) {
                return Ok(());
            }
        }
        for word in 0..words {
            tx.write(link_to(block + 8 * (2 * word)), &seed)?;
        }
        Ok(())
    })
    .unwrap();
}

/// After a checkpoint every entry is dead. Only the line after a lane's last entry might have had a live entry, so only its corruption is refused.
#[test]
fn at_most_one_corrupted_line_of_a_lane_is_refused_after_checkpoint() {
    for seed in seeds(150) {
        let mut rng = Rng::of(seed);
        let (heap, [mine, theirs]) = heap_with_two_blocks();
        with_worker(&heap, |other| {
            for _ in 0..rng.below(60) {
                let seed = rng.next();
                if rng.one_in(2) {
                    commit(&heap, mine, seed);
                } else {
                    other.run(move |heap| commit(heap, theirs, seed));
                }
            }
        });
        heap.checkpoint().unwrap();
        let bytes = heap.pool().pmem().sampled().power_failure().durable;
        let layout = *heap.layout();
        core::mem::forget(heap);
        for lane in 0..2 {
            let mut refused = vec![];
            for entry in 0..ENTRIES {
                let mut bytes = bytes.clone();
                let line = layout.entry_offset(lane, entry) as usize;
                match rng.below(3) {
                    0 => bytes[line + 20] ^= 4,
                    1 => bytes[line..line + 64].fill(0),
                    _ => bytes[line..line + 64].fill(0xa5),
                }
                if opened(sim_of(bytes), &options()).is_none() {
                    refused.push(entry);
                }
            }
            assert!(refused.len() <= 1, "seed {seed}, lane {lane}: at most one is refused, not {refused:?}");
        }
    }
}

/// One line is corrupted: the heap refuses to open, or has the same contents as without the corruption.
#[test]
fn heap_with_corrupted_line_is_refused_or_unchanged() {
    let (mut opened_count, mut refused_count) = (0, 0);
    for seed in seeds(150) {
        let mut rng = Rng::of(seed ^ 0x1234_5678);
        let (heap, [mine, theirs]) = heap_with_two_blocks();
        let sim = Arc::clone(heap.pool().pmem().sampled());
        with_worker(&heap, |other| {
            for _ in 0..rng.below(60) {
                let seed = rng.next();
                match rng.below(13) {
                    0 => heap.checkpoint().unwrap(),
                    1..7 => commit(&heap, mine, seed),
                    _ => other.run(move |heap| commit(heap, theirs, seed)),
                }
            }
            sim.stop_at(sim.events() + rng.below(150));
            let rolled_back = heap.transaction(|tx| {
                for _ in 0..1 + rng.below(3) {
                    let from = 8 * rng.below(40);
                    tx.write(link_to(mine + from), &[seed; 40])?;
                    let seed = rng.next();
                    other.run(move |heap| commit(heap, theirs, seed));
                }
                Err::<(), _>(TxError::Nested)
            });
            assert!(rolled_back.is_err());
            (0..4).for_each(|_| commit(&heap, mine, rng.next()));
        });
        let base = sim.stopped().unwrap_or_else(|| sim.state()).crash(&mut rng).durable;
        let layout = *heap.layout();
        core::mem::forget(heap);
        let data =
            |sim: &Arc<SampledPmem>| sim.power_failure().durable[layout.chunks_start as usize..].to_vec();
        let intact = sim_of(base.clone());
        let intact_heap = Heap::attach(any(Arc::clone(&intact)), &options()).unwrap();
        let intact = data(&intact);
        drop(intact_heap);
        let places = (0..2).flat_map(|lane| (0..ENTRIES).map(move |entry| layout.entry_offset(lane, entry)));
        let words = (0..2).flat_map(|lane| layout.retired_offsets(lane)).chain(layout.floor_offsets());
        for line in places.chain(words).map(|at| at as usize) {
            let mut bytes = base.clone();
            match rng.below(4) {
                0 => bytes[line + 20] ^= 4,
                1 => bytes[line..line + 64].fill(0),
                2 => bytes[line + 60] ^= 0x10,
                _ => bytes[line..line + 64].fill(0xa5),
            }
            let sim = sim_of(bytes);
            if let Some(_opened) = opened(Arc::clone(&sim), &options()) {
                opened_count += 1;
                assert!(data(&sim) == intact, "seed {seed}: the data is as without corruption of {line}");
            } else {
                refused_count += 1;
            }
        }
    }
    assert!(
        opened_count > refused_count && refused_count > 0,
        "{opened_count} opened, {refused_count} refused"
    );
}
