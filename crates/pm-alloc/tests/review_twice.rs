//! A second heap on the region of the first one, by safe code of one process: `HeapPool::pmem` gives all that `Heap::attach` wants.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

mod review_sim;

use pm_alloc::{Heap, HeapOptions, TxError};
use pm_core::{Pmem, PoolOptions, Uuid};
use review_sim::Sim;
use std::sync::Arc;

fn options() -> HeapOptions {
    let pool = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0);
    HeapOptions::new().pool(pool).seed(7).lanes(1).lane_entries(32).chunk_bytes(4096)
}

fn set<P: Pmem>(heap: &Heap<P>, value: u64) -> Result<(), TxError> {
    heap.transaction(|tx| match tx.root::<u64>("word")? {
        Some(word) => tx.write(word, &value),
        None => {
            let word = tx.alloc(&value)?;
            tx.set_root("word", word)
        }
    })
}

/// A look at a heap through a second handle ends with a higher floor: all that the first one commits from then on is dead to recovery.
#[test]
fn second_handle_that_was_dropped_costs_no_acknowledged_transaction() {
    let heap = Heap::format(Arc::new(Sim::new(1 << 16)), &options()).unwrap();
    set(&heap, 1).unwrap();
    let Ok(second) = Heap::attach(heap.pool().pmem(), &options()) else { return };
    drop(second);
    // It may be refused from now on. Acknowledged, it must be durable.
    let expected = if set(&heap, 2).is_ok() { 2 } else { 1 };
    let left = heap.pool().pmem().power_failure();
    let heap = Heap::attach(Arc::new(Sim::of(left)), &options()).unwrap();
    let found = heap.view(|view| view.read(view.root::<u64>("word").unwrap().unwrap()).unwrap());
    assert_eq!(found, expected, "acknowledged before the power failed");
}
