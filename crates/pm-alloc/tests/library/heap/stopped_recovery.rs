//! Interrupted recoveries. A recovery must not store an old word that a later transaction has overwritten, because the next recovery may replay less.

use super::prelude::*;
use crate::discarding::{
    alloc, assert_in_use, at_line, discard, entries_of, heap, options, sim_of, slot, with_worker, write_word,
};
use crate::sim::SimHeap;
use pm_alloc::HeapInspection;
use pm_alloc::format::{Lsn, seal};
use pm_core::Pool;

/// Transaction T commits in lane 0. Lane 1 commits `second`, which overwrites a word of T, and then three more words. The power fails. Recovery is
/// stopped right after its first store to the line that `second` returns. Returns the image before recovery, the images that the stopped recovery may
/// leave, and the offset of T's entry, for the caller to corrupt.
fn stopped_recoveries(
    heap: SimHeap,
    t: impl FnOnce(&SimHeap),
    second: impl FnOnce(&SimHeap) -> u64 + Send + 'static,
) -> (Vec<u8>, Vec<Vec<u8>>, Vec<usize>) {
    let sim = Arc::clone(heap.pool().pmem().sampled());
    let (entries, line) = with_worker(&heap, |other| {
        let entries = entries_of(&heap, || t(&heap));
        let line = other.run(|heap| {
            let line = second(heap);
            (0..3).for_each(|value| write_word(heap, slot(heap, 7), value));
            line
        });
        (entries, line)
    });
    assert_eq!(entries.len(), 1);
    core::mem::forget(heap);
    let bytes = sim.power_failure().durable;
    let sim = sim_of(bytes.clone());
    sim.stop_at_change(line);
    core::mem::forget(Heap::attach(any(Arc::clone(&sim)), &options()).unwrap());
    let stopped = sim.stopped().unwrap();
    // The images of a kill and of power failures.
    let mut left = vec![stopped.visible.clone()];
    left.extend((0..64).map(|seed| stopped.crash(&mut Rng::of(seed)).durable));
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
    assert_eq!(found(&discard(bytes, &entries, &options())), 2, "without a stopped recovery");
    for left in left {
        assert_eq!(
            found(&Heap::attach(any(sim_of(left.clone())), &options()).unwrap()),
            2,
            "without corruption"
        );
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
        let heap = Heap::attach(any(sim_of(left.clone())), &options()).unwrap();
        assert_in_use(&heap, 2, 7, 4);
        drop(heap);
        assert_in_use(&discard(left, &entries, &options()), 2, 7, 4);
    }
}

/// The rings are erased once in 16,384 opens. A power failure meanwhile is not reported as corruption.
#[test]
fn power_failure_while_rings_are_erased_is_not_corruption() {
    let heap = heap();
    let sim = Arc::clone(heap.pool().pmem().sampled());
    (0..5).for_each(|value| write_word(&heap, slot(&heap, 0), value));
    let layout = *heap.layout();
    heap.close().unwrap();
    // The floor after 16,383 opens.
    let floor = Lsn::new(((1 << 14) - 1) << 32).end_of_generation();
    for offset in layout.floor_offsets() {
        sim.store_u64(offset, seal(floor, layout.seed, offset, &[]));
        sim.persist(offset, 8).unwrap();
    }
    let inspect =
        |sim: Arc<SampledPmem>| HeapInspection::of(&Pool::attach_read_only(sim).unwrap()).unwrap().log;
    let corruption = |sim: Arc<SampledPmem>| -> u64 {
        inspect(sim).lanes.iter().map(|lane| lane.corrupted_count + u64::from(lane.retired_corrupted)).sum()
    };
    let bytes = sim.power_failure().durable;
    assert_eq!(corruption(sim_of(bytes.clone())), 0);
    let sim = sim_of(bytes);
    sim.stop_at_change(layout.entry_offset(0, 0));
    core::mem::forget(Heap::attach(any(Arc::clone(&sim)), &options()).unwrap());
    let stopped = sim.stopped().unwrap();
    for seed in 0..200 {
        let left = stopped.crash(&mut Rng::of(seed)).durable;
        let opened = Heap::attach(any(sim_of(left.clone())), &options()).unwrap();
        assert_eq!(opened.open_report().recovery.corrupted_entries, 0, "open finds no corruption");
        drop(opened);
        assert_eq!(corruption(sim_of(left)), 0, "seed {seed}");
    }
}
