//! An unlogged heap: the durability of headers that a freezing thread has read, and of blocks that were allocated without durability.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod sim;

use pm_alloc::{Heap, HeapOptions, UnloggedHeap};
use pm_core::{PoolOptions, Uuid};
use sim::Sim;
use std::sync::Arc;

fn options() -> HeapOptions {
    let pool = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0);
    HeapOptions::new().pool(pool).seed(7).lanes(1).lane_entries(16).chunk_bytes(4096)
}

/// The first process is killed while it splits a freed block of two chunks: the header of the first is stored, and not durable. In the second
/// process one thread freezes the heap, as for a fork, and another allocates from the second chunk, durably.
#[test]
fn headers_read_by_freezing_thread_are_durable() {
    block_survives(true);
}

/// The same without a freezing thread.
#[test]
fn headers_read_by_allocating_thread_are_durable() {
    block_survives(false);
}

fn block_survives(freezes: bool) {
    let sim = Arc::new(Sim::new(48 << 10));
    let heap = UnloggedHeap::new(Heap::format(Arc::clone(&sim), &options()).unwrap()).durable(true);
    let first = heap.heap().layout().first_payload(0);
    assert_eq!(heap.alloc(64 * 70, 64).unwrap(), first);
    heap.free(first).unwrap();
    // Up to the store of the last header of the split.
    sim.stop_at_change((first - 8) / 64 * 64);
    assert_eq!(heap.alloc(8, 64).unwrap(), first);
    let killed = sim.stopped().unwrap();
    core::mem::forget(heap);

    let sim = Arc::new(Sim::of(killed));
    let heap = UnloggedHeap::new(Heap::attach(Arc::clone(&sim), &options()).unwrap()).durable(true);
    let layout = *heap.heap().layout();
    if freezes {
        drop(heap.freeze());
    }
    let block = std::thread::scope(|scope| {
        let other = || heap.alloc_if(64 * 40, 64, |offset, _| layout.chunk_of(offset) == Some(1)).unwrap();
        scope.spawn(other).join().unwrap()
    });
    assert_eq!(layout.chunk_of(block), Some(1));
    core::mem::forget(heap);

    let heap = UnloggedHeap::new(Heap::attach(Arc::new(Sim::of(sim.power_failure())), &options()).unwrap());
    assert!(
        heap.heap().blocks().contains(&block),
        "the block was durable: {block}, {:?}",
        heap.heap().blocks()
    );
}

/// Blocks are allocated first without durability, then with it.
#[test]
fn durable_block_survives_after_volatile_ones() {
    let sim = Arc::new(Sim::new(48 << 10));
    let heap = UnloggedHeap::new(Heap::format(Arc::clone(&sim), &options()).unwrap());
    heap.alloc(64 * 8 - 8, 64).unwrap();
    let heap = heap.durable(true);
    let block = heap.alloc(64 * 4 - 8, 64).unwrap();
    core::mem::forget(heap);
    let heap = UnloggedHeap::new(Heap::attach(Arc::new(Sim::of(sim.power_failure())), &options()).unwrap());
    assert!(
        heap.heap().blocks().contains(&block),
        "the block was durable: {block}, {:?}",
        heap.heap().blocks()
    );
}
