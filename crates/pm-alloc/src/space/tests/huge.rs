//! Huge blocks: those longer than a chunk.

use super::fixture::Heap;
use crate::format::{BlockState, Lsn};
use crate::layout::Layout;
use crate::space::{FreeError, SpaceError, SpaceOptions};
use pm_core::Pmem;

#[test]
fn huge_block_may_end_around_chunk_end() {
    for lines in (64..70).chain(120..140).chain(250..256) {
        let mut heap = Heap::new(4, 4096);
        let block = heap.allocate(lines, 64).unwrap();
        assert_eq!(block, heap.layout.first_payload(0));
        heap.check();
        // A block that would end where a chunk's first block starts is one line longer.
        let real = lines + u64::from(lines % 64 == 0);
        let usable = heap.space.usable_bytes(&heap.region, block).unwrap();
        assert_eq!(usable, Layout::usable_bytes(u32::try_from(real).unwrap()));
        let lines_after = 63 - (real + 1 + 63) % 64;
        if lines_after > 0 {
            // Free chunks may be used first.
            let others: Vec<_> = core::iter::from_fn(|| heap.allocate(lines_after, 64).ok())
                .take_while(|other| *other != block + real * 64)
                .collect();
            assert_eq!(heap.blocks.len(), 2 + others.len(), "after {lines} lines");
            others.into_iter().for_each(|other| heap.free(other));
            heap.check();
        }
        heap.reopen();
        heap.check_contents();
        heap.free(block);
        heap.check();
        while heap.allocate(1, 64).is_ok() {}
        heap.check();
        assert!(heap.blocks.len() as u64 >= 4 * 63 - lines_after, "{} blocks", heap.blocks.len());
    }
}

#[test]
fn returned_reservation_frees_its_chunks() {
    for reopens in [false, true] {
        let mut heap = Heap::new(4, 4096);
        let mut reservation = heap.reserve(150, 64).unwrap();
        let block = reservation.carve(150, 64).unwrap().start;
        assert_eq!(reservation.carve(1, 64), None, "the rest of the last chunk is not carved");
        heap.fill(block, 150);
        if reopens {
            heap.reopen();
        } else {
            heap.space.return_unused(reservation);
        }
        heap.check();
        for _ in 0..4 {
            heap.allocate(63, 64).unwrap();
        }
        heap.check();
        assert_eq!(heap.space.take_corruption(), []);
    }
}

#[test]
fn returned_reservation_without_join_changes_nothing() {
    let mut heap = Heap::new(4, 4096);
    let reservation = heap.space.reserve(&heap.region, 150, 64, Lsn::MAX).unwrap();
    heap.space.return_unused(reservation);
    for _ in 0..4 {
        heap.allocate(63, 64).unwrap();
    }
    heap.check();
}

#[test]
fn freed_huge_block_is_quarantined_until_checkpoint() {
    let mut heap = Heap::new(4, 4096);
    heap.checkpoint_lsn = Lsn::ZERO;
    let block = heap.allocate(200, 64).unwrap();
    let freeing = heap.space.begin_free(&heap.region, block).unwrap();
    let again = heap.space.begin_free(&heap.region, block).expect_err("a transaction is freeing it");
    assert_eq!(again, FreeError::AlreadyFree { offset: block });
    heap.space.cancel_free(freeing);
    heap.free(block);
    let full = SpaceError::Full { lines: 200, quarantined: true, held: false };
    assert_eq!(heap.reserve(200, 64).expect_err("the checkpoint LSN is too low"), full);
    heap.checkpoint_lsn = Lsn::new(heap.lsn);
    assert_eq!(heap.allocate(200, 64), Ok(block));
    heap.check();
}

/// Another thread settles a huge block after this one has assigned all shared chunks, and before it searches the arenas.
#[test]
fn rest_shared_just_before_search_is_tried_again() {
    let mut heap = Heap::new(2, 4096);
    heap.allocate(70, 64).unwrap();
    let request = heap.space.request(50, 64).unwrap();
    let (found, may_find_more) = heap.space.search(0, &heap.region, request, Lsn::MAX);
    assert!(found.is_err() && may_find_more, "{found:?}");
    heap.allocate(50, 64).unwrap();
    let (found, may_find_more) = heap.space.search(0, &heap.region, request, Lsn::MAX);
    assert!(found.is_err() && !may_find_more, "{found:?}");
}

#[test]
fn free_chunks_of_other_arenas_are_used() {
    let options = SpaceOptions { arena_count: Some(4), ..SpaceOptions::default() };
    let mut heap = Heap::with(8, 4096, options);
    for arena in 0..4 {
        let reservation = heap.space.reserve_in(arena, &heap.region, 1, 64, Lsn::MAX).unwrap();
        heap.space.return_unused(reservation);
    }
    let block = heap.allocate(8 * 64 - 1, 64).unwrap();
    assert_eq!(block, heap.layout.first_payload(0));
    heap.check();
}

/// A stray write corrupts the header of a huge block. Its lines are not read as chunks, because the first headers of these chunks are erased.
#[test]
fn corrupted_huge_block_is_not_allocated() {
    let mut heap = Heap::new(4, 4096);
    let block = heap.allocate(130, 64).unwrap();
    // The program wrote nothing where the first headers of the block's second and third chunk were.
    for chunk in 1..3 {
        heap.region.store_u64(Layout::header_offset_of(heap.layout.first_payload(chunk)), 0);
    }
    heap.region.store(block - 6, &[0xaa; 4]);
    heap.reopen();
    assert_eq!(heap.allocate(63, 64), Ok(heap.layout.first_payload(3)));
    assert!(matches!(heap.reserve(1, 64), Err(SpaceError::Full { .. })));
    // All three chunks are unreachable.
    let [corruption] = heap.space.take_corruption().try_into().unwrap();
    assert_eq!(corruption.extent, block..heap.layout.chunk_offset(3));
    assert_eq!(heap.header(block).map(|header| header.state), None::<BlockState>);
}
