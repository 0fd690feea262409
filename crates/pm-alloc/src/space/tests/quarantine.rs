//! Freed blocks are quarantined until the checkpoint LSN has reached the LSN of their freeing and the quarantine time is over.

use super::fixture::{Heap, join};
use crate::format::Lsn;
use crate::space::{SpaceError, SpaceOptions};
use std::time::Duration;

#[test]
fn freed_block_is_quarantined_until_checkpoint() {
    let mut heap = Heap::new(1, 4096);
    heap.checkpoint_lsn = Lsn::ZERO;
    let blocks: Vec<u64> = (0..21).map(|_| heap.allocate(3, 64).unwrap()).collect();
    heap.free(blocks[5]);
    heap.free(blocks[9]);
    let full = SpaceError::Full { lines: 3, quarantined: true, held: false };
    assert_eq!(heap.reserve(3, 64).expect_err("the checkpoint LSN is too low"), full);
    heap.checkpoint_lsn = Lsn::new(22);
    assert_eq!(heap.allocate(3, 64), Ok(blocks[5]));
    assert_eq!(heap.reserve(3, 64).expect_err("the checkpoint LSN is too low"), full);
    heap.checkpoint_lsn = Lsn::new(heap.lsn);
    assert_eq!(heap.allocate(3, 64), Ok(blocks[9]));
    assert_eq!(heap.space.stats().quarantined_blocks, 0);
    let full = SpaceError::Full { lines: 3, quarantined: false, held: false };
    assert_eq!(heap.reserve(3, 64).expect_err("nothing is free"), full);
}

#[test]
fn quarantine_is_drained_incrementally() {
    let mut heap = Heap::new(1, 4096);
    let blocks: Vec<u64> = (0..20).map(|_| heap.allocate(2, 64).unwrap()).collect();
    for block in blocks.into_iter().step_by(2) {
        heap.free(block);
    }
    // Each reservation releases a few quarantined blocks. Those that are still quarantined are not used.
    for _ in 0..3 {
        heap.allocate(3, 64).unwrap();
    }
    let stats = heap.space.stats();
    assert_eq!(stats.quarantined_blocks, 0);
    assert_eq!(stats.free_bytes, (63 - 40 - 9 + 20) * 64);
}

#[test]
fn freed_block_is_quarantined_for_quarantine_time() {
    let quarantine = Duration::from_millis(200);
    let mut heap =
        Heap::with(2, 4096, SpaceOptions { quarantine, arena_count: Some(1), ..SpaceOptions::default() });
    let block = heap.allocate(30, 64).unwrap();
    heap.free(block);
    let others = [heap.allocate(30, 64).unwrap(), heap.allocate(30, 64).unwrap()];
    assert!(!others.contains(&block), "{others:?}");
    heap.allocate(30, 64).unwrap();
    let full = heap.reserve(30, 64).expect_err("the rest of the heap is freed or in use");
    assert_eq!(full, SpaceError::Full { lines: 30, quarantined: true, held: false });
    std::thread::sleep(quarantine);
    assert_eq!(heap.allocate(30, 64), Ok(block));
}

#[test]
fn reserved_extent_is_not_reserved_again() {
    let mut heap = Heap::new(1, 4096);
    let held = heap.reserve(1, 64).unwrap();
    assert_eq!(
        heap.reserve(1, 64).expect_err("all of it is held").to_string(),
        concat!(
            "there is no free extent of 1 lines of 64 bytes; ",
            "a transaction in progress holds more space than it may need"
        )
    );
    heap.space.return_unused(held);
    assert_eq!(heap.allocate(63, 64), Ok(heap.layout.first_payload(0)));
}

/// A block that is allocated from the free space before a gap may overwrite the gap's header. So the gap is quarantined until recovery can no longer
/// replay that header.
#[test]
fn gap_is_quarantined_until_checkpoint() {
    let mut heap = Heap::new(1, 4096);
    heap.checkpoint_lsn = Lsn::new(heap.lsn);
    let aligned = heap.allocate(4, 512).unwrap();
    assert_eq!(aligned % 512, 0);
    let stats = heap.space.stats();
    assert_eq!(
        (stats.quarantined_blocks, stats.quarantined_bytes),
        (1, aligned - heap.layout.first_payload(0))
    );
    heap.check();
    heap.checkpoint_lsn = Lsn::new(heap.lsn);
    assert!(heap.allocate(aligned / 64 - heap.layout.first_payload(0) / 64, 64).unwrap() < aligned);
}

/// As with a gap, recovery may still replay the header of several free blocks that were joined.
#[test]
fn returned_join_is_quarantined_until_checkpoint() {
    let mut heap = Heap::new(1, 4096);
    heap.checkpoint_lsn = Lsn::ZERO;
    let blocks: Vec<u64> = (0..21).map(|_| heap.allocate(3, 64).unwrap()).collect();
    // The blocks are freed at the same time, so they are not coalesced.
    let both = [blocks[3], blocks[4]].map(|block| heap.space.begin_free(&heap.region, block).unwrap());
    for freeing in both {
        heap.commit_free(freeing, Lsn::ZERO);
    }
    heap.blocks.retain(|block, _| *block != blocks[3] && *block != blocks[4]);
    heap.check();
    let mut reservation = heap.space.reserve(&heap.region, 6, 64, Lsn::new(10)).unwrap();
    join(&heap.space, &heap.region, &mut reservation, Lsn::new(11));
    heap.space.return_unused(reservation);
    heap.check();
    let full = heap.space.reserve(&heap.region, 6, 64, Lsn::new(10)).expect_err("the header is in the log");
    assert_eq!(full, SpaceError::Full { lines: 6, quarantined: true, held: false });
    let mut reservation = heap.space.reserve(&heap.region, 6, 64, Lsn::new(11)).unwrap();
    assert_eq!(reservation.carve(6, 64).map(|block| block.start), Some(blocks[3]), "it is one free block");
}
