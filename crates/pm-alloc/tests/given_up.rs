//! A block that a repair gives up is never allocated again, even if it was freed.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

mod discarding;
mod links;
mod sim;

use discarding::{all_payloads, heap, settle};
use links::link_to;
use pm_alloc::TxError;
use pm_core::Pmem;

/// The payloads that are allocated in a block of so many lines after it was freed, and its header corrupted and repaired.
fn allocated_after_repair(lines: u64) -> Vec<u64> {
    let mut heap = heap();
    let made = heap.transaction(|tx| Ok::<_, TxError>(tx.alloc_uninit::<u64>(8 * lines - 1)?.offset()));
    let block = made.unwrap();
    settle(&heap);
    heap.transaction::<_, TxError>(|tx| tx.free(link_to::<u64>(block))).unwrap();
    heap.pool().pmem().store_u64(block - 8, 0x5555);
    heap.pool().pmem().persist(block - 8, 8).unwrap();
    let corruptions = heap.check().corruptions;
    assert_eq!(corruptions.len(), 1);
    assert!(heap.repair(&corruptions[0]).unwrap());
    assert!(heap.check().is_clean());
    assert!(heap.check().lost_bytes >= 64 * lines, "{:?}", heap.check());
    all_payloads(&heap).into_iter().filter(|at| (block..block + 64 * lines).contains(at)).collect()
}

#[test]
fn given_up_short_block_is_not_allocated() {
    assert_eq!(allocated_after_repair(20), vec![]);
}

#[test]
fn given_up_long_block_is_not_allocated() {
    assert_eq!(allocated_after_repair(100), vec![]);
}
