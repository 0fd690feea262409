//! What a direct heap that was not durable leaves when it is dropped, and what later handles of the heap build on it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod sim;

use pm_alloc::{DirectHeap, Heap, HeapOptions, TxError};
use pm_core::{Link, Pmem};
use sim::Sim;
use std::sync::Arc;

type SimHeap = Heap<Arc<Sim>>;

fn options() -> HeapOptions {
    HeapOptions::new().lanes(1).lane_entries(30).chunk_bytes(4096).seed(7)
}

/// A heap with one block of a direct heap that is not durable, closed in order.
fn with_direct_block() -> (Arc<Sim>, u64) {
    let sim = Arc::new(Sim::new(1 << 17));
    drop(Heap::format(Arc::clone(&sim), &options()).unwrap());
    let heap = DirectHeap::new(Heap::attach(Arc::clone(&sim), &options()).unwrap());
    let block = heap.alloc(500, 64).unwrap();
    drop(heap);
    (sim, block)
}

fn after_power_failure(sim: &Sim) -> SimHeap {
    Heap::attach(Arc::new(Sim::of(sim.power_failure())), &options()).unwrap()
}

#[test]
fn block_that_a_transaction_gave_a_root_is_not_handed_out_again() {
    let (sim, block) = with_direct_block();
    let heap = Heap::attach(Arc::clone(&sim), &options()).unwrap();
    assert_eq!(heap.blocks(), [block]);
    heap.transaction(|tx| {
        let link = Link::<[u64; 8]>::vouched(block);
        tx.write(link, &[7; 8])?;
        tx.set_root("data", link)
    })
    .map_err(|error: TxError| error)
    .unwrap();
    let heap = after_power_failure(&sim);
    let rooted = heap.pool().find_root("data").unwrap().unwrap().offset();
    assert_eq!((rooted, heap.pool().pmem().load_u64(rooted)), (block, 7), "the transaction is there");
    let other =
        heap.transaction(|tx| tx.alloc(&[9_u64; 60]).map(Link::offset)).map_err(|e: TxError| e).unwrap();
    assert!(
        heap.blocks().contains(&rooted) && other != rooted,
        "{rooted:#x} is live, and {other:#x} was handed out"
    );
}

#[test]
fn block_of_an_earlier_handle_is_not_handed_out_by_a_durable_one() {
    let (sim, block) = with_direct_block();
    let heap = DirectHeap::new(Heap::attach(Arc::clone(&sim), &options()).unwrap()).durable(true);
    assert!(heap.usable_bytes(block).unwrap() >= 500);
    sim.store_u64(block, 7);
    sim.persist(block, 8).unwrap();
    let heap = DirectHeap::new(after_power_failure(&sim)).durable(true);
    assert_eq!(heap.heap().pool().pmem().load_u64(block), 7);
    let other = heap.alloc(500, 64).unwrap();
    assert!(
        heap.usable_bytes(block).is_ok() && other != block,
        "{block:#x} is live, and {other:#x} was handed out"
    );
}
