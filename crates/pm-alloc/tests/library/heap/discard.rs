//! Discarding the corrupted log entry of an allocation loses no block of other transactions, although old headers in the chunk are misleading.

use super::prelude::*;
use crate::discarding::{
    alloc, assert_in_use, at_line, discard, entries_of, free, free_lines, free_now, heap,
    heap_with_an_old_header, in_two_lanes, line_of, listed, options, sim_of, slot, write_word,
};
use crate::sim::SimHeap;

/// The power fails. Opens an intact copy of the heap for `check`. Then corrupts the entry, opens the heap, and discards the entry.
fn discarded(heap: SimHeap, entries: &[usize], check: impl FnOnce(&SimHeap)) -> SimHeap {
    assert_eq!(entries.len(), 1);
    let bytes = heap.pool().pmem().sampled().power_failure().durable;
    core::mem::forget(heap);
    check(&Heap::attach(any(sim_of(bytes.clone())), &options()).unwrap());
    discard(bytes, entries, &options())
}

/// A transaction T splits block A off a free block. The power fails when A's header is durable (its line was evicted), and the header of the rest is
/// not. T's entry is corrupted and discarded. Where the rest begins is an old header of a former free block. That block included lines of block Y,
/// which was allocated before the heap was last opened.
#[test]
fn discarded_half_durable_split_reallocates_no_older_block() {
    let heap = heap_with_an_old_header();
    let (sim, y) = (Arc::clone(heap.pool().pmem().sampled()), at_line(&heap, 23));
    let entries = entries_of(&heap, || assert_eq!(alloc(&heap, 0, 8), 3, "A"));
    let state = sim.state();
    let mut bytes = state.durable.clone();
    // Of the applied words, only A's header becomes durable.
    let header = at_line(&heap, 3) as usize - 8;
    assert_ne!(bytes[header..header + 8], state.visible[header..header + 8], "A's header is not durable yet");
    bytes[header..header + 8].copy_from_slice(&state.visible[header..header + 8]);
    assert_eq!(entries.len(), 1);
    core::mem::forget(heap);

    // Recovery without corruption keeps Y.
    let heap = Heap::attach(any(sim_of(bytes.clone())), &options()).unwrap();
    assert!(heap.check().is_clean() && heap.blocks().contains(&y));
    assert!(free_lines(&heap).iter().all(|line| !(23..33).contains(line)));
    drop(heap);

    let heap = discard(bytes, &entries, &options());
    assert_in_use(&heap, 1, 23, 10);
}

/// A block B was allocated, then freed and coalesced with its free neighbours, and its old header stays inside the coalesced block. Then C and E were
/// allocated there, and C was freed. The entries of all these are intact. The entry of a later transaction, which wrote a word, is discarded. The old
/// header of B must not be taken for that of an allocated block.
#[test]
fn discarded_word_write_reallocates_no_block() {
    let heap = heap();
    assert_eq!(
        [alloc(&heap, 0, 2), alloc(&heap, 1, 6), alloc(&heap, 2, 4), alloc(&heap, 3, 49)],
        [3, 5, 11, 15]
    );
    free_now(&heap, 0);
    free_now(&heap, 2);
    free_now(&heap, 1);
    assert_eq!([alloc(&heap, 4, 4), alloc(&heap, 5, 8)], [3, 7], "C and E");
    free_now(&heap, 4);
    let entries = entries_of(&heap, || write_word(&heap, slot(&heap, 7), 1));
    let heap = discarded(heap, &entries, |intact| assert_eq!(listed(intact), [1, 7, 15]));
    assert_in_use(&heap, 5, 7, 8);
    assert_eq!(listed(&heap), [1, 7, 15]);
}

/// T splits A off a free block. A transaction in another lane frees X, which is after the rest, and coalesces the two. T's entry is discarded.
/// X stays free: its freeing was acknowledged, and the entry is intact.
#[test]
fn blocks_freed_by_others_stay_free_after_discarded_allocation() {
    let heap = heap();
    // In another chunk, because it is longer than the rest of this one.
    assert_eq!(alloc(&heap, 3, 63), 65);
    let long = at_line(&heap, 65);
    // These blocks are F, X and G.
    assert_eq!([alloc(&heap, 0, 12), alloc(&heap, 1, 2), alloc(&heap, 2, 47)], [3, 15, 17]);
    free_now(&heap, 0);
    let first = || assert_eq!(alloc(&heap, 0, 8), 3, "A");
    let (entries, ()) = in_two_lanes(&heap, long, first, |heap| free(heap, 1));
    let x = at_line(&heap, 15);
    let heap = discarded(heap, &entries, |intact| assert!(!intact.blocks().contains(&x)));
    assert_eq!(heap.open_report().recovery.discarded_in_lanes, [0]);
    assert_eq!(heap.pool().pmem().load_u64(slot(&heap, 1)), 0, "the transaction that freed X is not lost");
    assert!(!heap.blocks().contains(&x), "X is free");
}

/// T allocates a block longer than a chunk. A transaction in another lane allocates B after the end of that block. T's entry is discarded. Then the
/// header at the start of T's block is that of the joined chunks, which include B.
#[test]
fn discarded_huge_block_reallocates_no_block_after_it() {
    let heap = heap();
    let chunks = heap.check().chunks.len() as u64;
    // All chunks are full, except for two adjacent ones.
    assert_eq!(alloc(&heap, 3, 61), 3);
    assert_eq!([alloc(&heap, 4, 63), alloc(&heap, 0, 63), alloc(&heap, 1, 63)], [65, 129, 193]);
    for _ in 4..chunks {
        heap.transact(|tx| tx.alloc_uninit::<u64>(8 * 63 - 1).map(drop)).unwrap();
    }
    free(&heap, 0);
    free(&heap, 1);
    heap.checkpoint().unwrap();
    let first = || assert_eq!(alloc(&heap, 0, 70), 129);
    let (entries, b) = in_two_lanes(&heap, at_line(&heap, 65), first, |heap| alloc(heap, 1, 10));
    assert_eq!(b, 129 + 70);
    let heap = discarded(heap, &entries, |intact| assert!(intact.blocks().contains(&at_line(intact, b))));
    assert_eq!(heap.open_report().recovery.discarded_in_lanes, [0]);
    assert_in_use(&heap, 1, b, 10);
}

/// T splits A off a free block. A transaction in another lane allocates C from the rest, and B right after C. It writes the bytes before and
/// after B's header. Then C is freed. T's entry is discarded.
#[test]
fn discarded_allocation_keeps_block_whose_header_is_between_writes() {
    let heap = heap();
    assert_eq!(alloc(&heap, 3, 63), 65);
    let long = at_line(&heap, 65);
    assert_eq!([alloc(&heap, 0, 12), alloc(&heap, 2, 49)], [3, 15]);
    free_now(&heap, 0);
    let first = || assert_eq!(alloc(&heap, 0, 8), 3, "A");
    let second = |heap: &SimHeap| {
        let links = [slot(heap, 1), slot(heap, 4)];
        let allocated = heap.transact(|tx| {
            let c = tx.alloc_uninit::<u8>(120)?;
            tx.write_slice(c.element(76), &[0xCC_u8; 44])?;
            let b = tx.alloc(&[0xB_u64; 7])?;
            tx.write(link_to(links[0]), &c.offset())?;
            tx.write(link_to(links[1]), &b.offset())?;
            Ok(b.offset())
        });
        free(heap, 1);
        line_of(heap, allocated.unwrap())
    };
    let (entries, b) = in_two_lanes(&heap, long, first, second);
    assert_eq!(b, 13);
    let heap = discarded(heap, &entries, |intact| assert!(intact.blocks().contains(&at_line(intact, b))));
    assert_eq!(heap.open_report().recovery.discarded_in_lanes, [0]);
    assert_in_use(&heap, 4, b, 1);
}
