//! What the documentation promises, and the code does not hold.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

mod review_sim;

use pm_alloc::{Heap, HeapOptions, TxError};
use pm_core::{Link, PoolOptions, Uuid};
use review_sim::Sim;
use std::sync::Arc;

fn options() -> HeapOptions {
    let pool = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0);
    HeapOptions::new().pool(pool).seed(7).lanes(2).lane_entries(64).chunk_bytes(4096).in_place_from_bytes(256)
}

type SimHeap = Heap<Arc<Sim>>;

fn heap() -> SimHeap {
    let heap = Heap::format(Arc::new(Sim::new(1 << 16)), &options()).unwrap();
    heap.transaction(|tx| {
        let long = tx.alloc_zeroed::<[u64; 40]>(1)?;
        tx.set_root("long", long)
    })
    .map_err(|error: TxError| error)
    .unwrap();
    heap
}

fn first_word(heap: &SimHeap) -> u64 {
    heap.view(|view| view.read(view.root::<[u64; 40]>("long").unwrap().unwrap()).unwrap()[0])
}

/// `Heap::view`: what `store_word` stores in a transaction "is no part of it, and stays when it is given up".
#[test]
fn word_stored_within_a_transaction_stays_when_that_is_given_up() {
    let heap = heap();
    let given_up = heap.transaction(|tx| {
        let long = tx.root::<[u64; 40]>("long")?.unwrap();
        tx.write(long, &[1; 40])?;
        heap.view(|view| view.store_word(Link::vouched(long.offset()), 7))?;
        Err::<(), TxError>(TxError::Nested)
    });
    assert!(matches!(given_up, Err(TxError::Nested)));
    assert_eq!(first_word(&heap), 7, "the word was acknowledged, and is no part of the transaction");
}

/// `View::store_word`: "When it returns, the new word is durable".
#[test]
fn word_stored_within_a_transaction_survives_a_power_failure() {
    let heap = heap();
    let sim = Arc::clone(heap.pool().pmem());
    let mut left = None;
    heap.transaction(|tx| {
        let long = tx.root::<[u64; 40]>("long")?.unwrap();
        tx.write(long, &[1; 40])?;
        heap.view(|view| view.store_word(Link::vouched(long.offset()), 7))?;
        left = Some(sim.power_failure());
        Ok::<(), TxError>(())
    })
    .unwrap();
    let heap = Heap::attach(Arc::new(Sim::of(left.unwrap())), &options()).unwrap();
    assert_eq!(first_word(&heap), 7, "the word was acknowledged before the power failed");
}
