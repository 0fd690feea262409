//! A power failure while the rings are erased, once in 16,384 opens, is not reported as corruption.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

mod discarding;
mod links;
mod sim;

use discarding::{heap, options, sim_of, slot, write_word};
use pm_alloc::format::{Lsn, seal};
use pm_alloc::{Heap, HeapInspection};
use pm_core::{Pmem, Pool};
use sim::{Rng, Sim, crash};
use std::sync::Arc;

#[test]
fn power_failure_while_rings_are_erased_is_not_corruption() {
    let heap = heap();
    let sim = Arc::clone(heap.pool().pmem());
    (0..5).for_each(|value| write_word(&heap, slot(&heap, 0), value));
    let layout = *heap.layout();
    heap.close().unwrap();
    // The state after so many opens.
    let floor = Lsn::new(((1 << 14) - 1) << 32).end_of_generation();
    for offset in layout.floor_offsets() {
        sim.store_u64(offset, seal(floor, layout.seed, offset, &[]));
        sim.persist(offset, 8).unwrap();
    }
    let inspect = |sim: Arc<Sim>| HeapInspection::of(&Pool::attach_read_only(sim).unwrap()).unwrap().log;
    let corruption = |sim: Arc<Sim>| -> u64 {
        inspect(sim).lanes.iter().map(|lane| lane.corrupted + u64::from(lane.retired_corrupted)).sum()
    };
    let bytes = sim.power_failure().durable;
    assert_eq!(corruption(sim_of(bytes.clone())), 0);
    let sim = sim_of(bytes);
    sim.stop_at_change(layout.entry_offset(0, 0));
    core::mem::forget(Heap::attach(Arc::clone(&sim), &options()).unwrap());
    let stopped = sim.stopped().unwrap();
    for seed in 0..200 {
        let left = crash(&stopped, &mut Rng::of(seed)).durable;
        let opened = Heap::attach(sim_of(left.clone()), &options()).unwrap();
        assert_eq!(opened.open_report().recovery.corrupted_entries, 0, "found by opening");
        drop(opened);
        assert_eq!(corruption(sim_of(left)), 0, "seed {seed}");
    }
}
