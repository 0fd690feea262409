//! What an unlogged heap that was not durable leaves, dropped or killed, and what later handles of the heap build on it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod links;
mod sim;

use links::link_to;
use pm_alloc::{Heap, HeapOptions, TxError, UnloggedHeap};
use pm_core::{Link, Pmem};
use sim::Sim;
use std::sync::Arc;

type SimHeap = Heap<Arc<Sim>>;
type Direct = UnloggedHeap<Arc<Sim>>;

/// How the process ends that has an unlogged heap: it drops the heap, or is killed.
const ENDS: [fn(Direct); 2] = [drop::<Direct>, core::mem::forget::<Direct>];

fn options() -> HeapOptions {
    HeapOptions::new().lanes(1).lane_entries(30).chunk_bytes(4096).seed(7)
}

/// A heap with one block of an unlogged heap that is not durable.
fn with_unlogged_block(end: fn(Direct)) -> (Arc<Sim>, u64) {
    let sim = Arc::new(Sim::new(1 << 17));
    drop(Heap::format(Arc::clone(&sim), &options()).unwrap());
    let heap = UnloggedHeap::new(Heap::attach(Arc::clone(&sim), &options()).unwrap());
    let block = heap.alloc(500, 64).unwrap();
    end(heap);
    (sim, block)
}

fn after_power_failure(sim: &Sim) -> SimHeap {
    Heap::attach(Arc::new(Sim::of(sim.power_failure())), &options()).unwrap()
}

#[test]
fn block_that_a_transaction_gave_a_root_is_not_handed_out_again() {
    ENDS.into_iter().for_each(give_a_root);
}

fn give_a_root(end: fn(Direct)) {
    let (sim, block) = with_unlogged_block(end);
    let heap = Heap::attach(Arc::clone(&sim), &options()).unwrap();
    assert_eq!(heap.blocks(), [block]);
    heap.transaction(|tx| {
        let link = link_to::<[u64; 8]>(block);
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
    ENDS.into_iter().for_each(use_durably);
}

fn use_durably(end: fn(Direct)) {
    let (sim, block) = with_unlogged_block(end);
    let heap = UnloggedHeap::new(Heap::attach(Arc::clone(&sim), &options()).unwrap()).durable(true);
    assert!(heap.usable_bytes(block).unwrap() >= 500);
    sim.store_u64(block, 7);
    sim.persist(block, 8).unwrap();
    let heap = UnloggedHeap::new(after_power_failure(&sim)).durable(true);
    assert_eq!(heap.heap().pool().pmem().load_u64(block), 7);
    let other = heap.alloc(500, 64).unwrap();
    assert!(
        heap.usable_bytes(block).is_ok() && other != block,
        "{block:#x} is live, and {other:#x} was handed out"
    );
}

/// The long block is learned, and its header durable by that; the header behind it is not.
#[test]
fn chain_behind_a_long_block_is_durable() {
    ENDS.into_iter().for_each(learn_a_long_block);
}

fn learn_a_long_block(end: fn(Direct)) {
    let sim = Arc::new(Sim::new(1 << 17));
    drop(Heap::format(Arc::clone(&sim), &options()).unwrap());
    let heap = UnloggedHeap::new(Heap::attach(Arc::clone(&sim), &options()).unwrap());
    heap.alloc(10_000, 64).unwrap();
    end(heap);
    let heap = Heap::attach(Arc::clone(&sim), &options()).unwrap();
    heap.transaction(|tx| tx.alloc(&[9_u64; 20]).map(drop)).map_err(|error: TxError| error).unwrap();
    let report = after_power_failure(&sim).check();
    assert!(report.is_clean(), "{:?}", report.corruptions);
}

fn tx_alloc(heap: &SimHeap, lines: u64) -> u64 {
    let block = heap.transaction(|tx| Ok(tx.alloc_uninit::<u64>(8 * lines - 1)?.offset()));
    block.map_err(|error: TxError| error).unwrap()
}

fn tx_free(heap: &SimHeap, block: u64) {
    heap.transaction(|tx| tx.free(link_to::<u64>(block))).map_err(|error: TxError| error).unwrap();
}

/// A block that a transaction committed long before is not handed out, because an unlogged heap had made another one
/// shorter: learning the chunk makes its first header durable, and not the one behind it, where an old header is.
#[test]
fn block_of_an_old_transaction_is_not_handed_out_after_another_was_made_shorter() {
    ENDS.into_iter().for_each(shorten_the_block_before);
}

fn shorten_the_block_before(end: fn(Direct)) {
    let sim = Arc::new(Sim::new(1 << 17));
    let heap = Heap::format(Arc::clone(&sim), &options()).unwrap();
    let layout = *heap.layout();
    let line = |line: u64| layout.chunk_offset(0) + 64 * line;
    assert_eq!([tx_alloc(&heap, 5), tx_alloc(&heap, 40)], [line(1), line(6)]);
    tx_free(&heap, line(6));
    tx_free(&heap, line(1));
    drop(heap);
    let heap = Heap::attach(Arc::clone(&sim), &options()).unwrap();
    heap.scan_ahead(1 << 20).unwrap();
    assert_eq!(tx_alloc(&heap, 30), line(1));
    let made = heap.transaction(|tx| {
        let block = tx.alloc_slice(&[7_u64; 79])?;
        tx.set_root("data", block)?;
        Ok(block.offset())
    });
    let block = made.map_err(|error: TxError| error).unwrap();
    assert_eq!(block, line(31));
    drop(heap);
    let direct = UnloggedHeap::new(Heap::attach(Arc::clone(&sim), &options()).unwrap());
    assert_eq!(direct.resize(line(1), 1..=5 * 64 - 8, |_, _| true).unwrap(), Some(5 * 64 - 8));
    end(direct);
    let heap = Heap::attach(Arc::clone(&sim), &options()).unwrap();
    assert!(heap.check().is_clean());
    let other = tx_alloc(&heap, 3);
    assert!(other >= layout.chunk_offset(1), "in another chunk");
    let heap = after_power_failure(&sim);
    assert_eq!(heap.pool().find_root("data").unwrap().unwrap().offset(), block);
    let report = heap.check();
    let is_listed = heap.blocks().contains(&block);
    while let Ok(filled) = heap.transaction(|tx| Ok::<_, TxError>(tx.alloc_slice(&[9_u64; 7])?.offset())) {
        assert!(
            filled < block || block + 640 <= filled,
            "{filled:#x} of the live block at {block:#x} was handed out; listed: {is_listed}, {:?}",
            report.corruptions
        );
    }
    assert!(is_listed);
}
