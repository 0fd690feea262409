//! What the documentation promises, and the code does not hold.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

mod sim;

use pm_alloc::{Heap, HeapOptions, TxError};
use pm_core::{PoolOptions, Uuid};
use sim::Sim;
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

/// `Tx::set_root` fails if "there are 63 other roots".
#[test]
fn root_is_replaced_by_another_name_in_one_transaction() {
    let heap = heap();
    let run = |f: &dyn Fn(u32) -> Result<(), TxError>| (0..61).try_for_each(f);
    run(&|number| {
        heap.transaction(|tx| {
            let long = tx.root::<[u64; 40]>("long")?.unwrap();
            tx.set_root(&format!("root {number}"), long)
        })
    })
    .unwrap();
    // The heap's own root, `long`, and 61 more: all 63.
    let renamed = heap.transaction(|tx| {
        let long = tx.root::<[u64; 40]>("root 5")?.unwrap();
        tx.remove_root("root 5")?;
        tx.set_root("other", long)
    });
    assert!(renamed.is_ok(), "62 other roots are left: {renamed:?}");
}
