//! Random programs. After a checkpoint every entry is dead: damage to one refuses nothing, but in the line behind a lane's last entry.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

mod discarding;
mod sim;

use discarding::{ENTRIES, SimHeap, heap, options, with_other};
use pm_alloc::{Heap, HeapError, RecoverError, TxError};
use pm_core::Link;
use sim::{Rng, Sim, seeds};
use std::sync::Arc;

fn commit(heap: &SimHeap, block: u64, seed: u64) {
    let mut rng = Rng::of(seed);
    let words = 1 + rng.below(8);
    heap.transaction(|tx| {
        if rng.one_in(12) {
            tx.write(Link::vouched(block), &[seed; 40])?;
            if rng.one_in(2) {
                return Ok(());
            }
        }
        for word in 0..words {
            tx.write(Link::vouched(block + 8 * (2 * word)), &seed)?;
        }
        Ok::<_, TxError>(())
    })
    .unwrap();
}

#[test]
fn damage_after_a_checkpoint_refuses_nothing() {
    for seed in seeds(150) {
        let mut rng = Rng::of(seed);
        let heap = heap();
        let made = heap.transaction(|tx| {
            Ok::<_, TxError>([tx.alloc_zeroed::<u64>(40)?.offset(), tx.alloc_zeroed::<u64>(40)?.offset()])
        });
        let [mine, theirs] = made.unwrap();
        with_other(&heap, |other| {
            for _ in 0..rng.below(60) {
                let seed = rng.next();
                if rng.one_in(2) {
                    commit(&heap, mine, seed);
                } else {
                    other(Box::new(move |heap| commit(heap, theirs, seed)));
                }
            }
        });
        heap.checkpoint().unwrap();
        let bytes = heap.pool().pmem().power_failure().durable;
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
                let sim: Arc<Sim> = discarding::sim_of(bytes);
                match Heap::attach(sim, &options()) {
                    Ok(_) => {}
                    Err(HeapError::Recover(RecoverError::Corrupted { .. })) => refused.push(entry),
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(refused.len() <= 1, "seed {seed}, lane {lane}: {refused:?}");
        }
    }
}
