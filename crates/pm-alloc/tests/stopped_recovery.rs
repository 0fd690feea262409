//! An interrupted recovery must not store a word that a later transaction has overwritten: the next recovery may replay less.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

mod discarding;
mod links;
mod sim;

use discarding::{
    SimHeap, alloc, assert_in_use, at_line, discard, entry_lines, heap, options, sim_of, slot, with_other,
    write_word,
};
use pm_alloc::Heap;
use pm_core::Pmem;
use sim::{Rng, crash};
use std::sync::{Arc, mpsc};

/// T commits in lane 0. Lane 1 commits `second`, which overwrites a word of T, and three more words. The power fails. Recovery is stopped
/// right after its first store to the line at `line`; T's entry is corrupted then, and discarded. Returns the image before recovery, those that
/// the stopped recovery may leave, and T's line.
fn stopped_recoveries(
    heap: SimHeap,
    t: impl FnOnce(&SimHeap),
    second: impl FnOnce(&SimHeap) -> u64 + Send + 'static,
) -> (Vec<u8>, Vec<Vec<u8>>, Vec<usize>) {
    let sim = Arc::clone(heap.pool().pmem());
    let mut entries = vec![];
    let (send, line) = mpsc::channel();
    with_other(&heap, |other| {
        let before = sim.power_failure();
        t(&heap);
        entries = entry_lines(&heap, &before, &sim.power_failure());
        other(Box::new(move |heap| {
            send.send(second(heap)).unwrap();
            (0..3).for_each(|value| write_word(heap, slot(heap, 7), value));
        }));
    });
    assert_eq!(entries.len(), 1);
    let line = line.recv().unwrap();
    core::mem::forget(heap);
    let bytes = sim.power_failure().durable;
    let sim = sim_of(bytes.clone());
    sim.stop_at_change(line);
    core::mem::forget(Heap::attach(Arc::clone(&sim), &options()).unwrap());
    let stopped = sim.stopped().unwrap();
    // Killed, or without power.
    let mut left = vec![stopped.visible.clone()];
    left.extend((0..64).map(|seed| crash(&stopped, &mut Rng::of(seed)).durable));
    left.sort();
    left.dedup();
    (bytes, left, entries)
}

#[test]
fn word_of_intact_transaction_is_not_reverted() {
    let heap = heap();
    let word = slot(&heap, 6);
    let (bytes, left, entries) = stopped_recoveries(
        heap,
        |heap| write_word(heap, slot(heap, 6), 1),
        |heap| {
            write_word(heap, slot(heap, 6), 2);
            slot(heap, 6) / 64 * 64
        },
    );
    let found = |heap: &SimHeap| heap.pool().pmem().load_u64(word);
    assert_eq!(found(&discard(bytes, &entries, &options())), 2, "without an interrupted recovery");
    for left in left {
        assert_eq!(found(&Heap::attach(sim_of(left.clone()), &options()).unwrap()), 2, "without corruption");
        assert_eq!(
            found(&discard(left, &entries, &options())),
            2,
            "the second transaction's entry is intact"
        );
    }
}

#[test]
fn block_of_intact_transaction_is_not_reallocated() {
    let heap = heap();
    let (bytes, left, entries) = stopped_recoveries(
        heap,
        |heap| assert_eq!(alloc(heap, 1, 4), 3, "A"),
        |heap| {
            assert_eq!(alloc(heap, 2, 4), 7, "W");
            (at_line(heap, 7) - 8) / 64 * 64
        },
    );
    assert_in_use(&discard(bytes, &entries, &options()), 2, 7, 4);
    for left in left {
        let heap = Heap::attach(sim_of(left.clone()), &options()).unwrap();
        assert_in_use(&heap, 2, 7, 4);
        drop(heap);
        assert_in_use(&discard(left, &entries, &options()), 2, 7, 4);
    }
}
