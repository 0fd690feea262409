//! What is no block cannot be freed, and what was written over is found when it is next touched.

use super::fixture::Heap;
use crate::format::Lsn;
use crate::layout::Layout;
use crate::space::{CorruptionKind, FreeError, SpaceError};
use pm_core::Pmem;

fn free(heap: &Heap, offset: u64) -> FreeError {
    heap.space.begin_free(&heap.region, offset).expect_err("that is no allocated block")
}

#[test]
fn a_block_is_freed_once() {
    let mut heap = Heap::new(2, 4096);
    let block = heap.allocate(3, 64).unwrap();
    let freeing = heap.space.begin_free(&heap.region, block).unwrap();
    assert_eq!(free(&heap, block), FreeError::AlreadyFree { offset: block }, "a transaction is freeing it");
    heap.space.cancel_free(freeing);
    heap.free(block);
    assert_eq!(free(&heap, block), FreeError::AlreadyFree { offset: block });
    heap.reopen();
    assert_eq!(free(&heap, block), FreeError::AlreadyFree { offset: block });
    assert_eq!(heap.space.take_corruption(), []);
}

#[test]
fn free_space_and_its_neighbours_are_no_blocks() {
    let mut heap = Heap::new(2, 4096);
    let blocks: Vec<u64> = (0..4).map(|_| heap.allocate(3, 64).unwrap()).collect();
    for block in [blocks[0], blocks[2], blocks[1]] {
        heap.free(block);
        // Where it lies is one free block by now, with what was freed before.
        assert_eq!(free(&heap, block), FreeError::AlreadyFree { offset: block });
    }
    assert_eq!(free(&heap, blocks[0] + 64), FreeError::AlreadyFree { offset: blocks[0] + 64 });
    let untouched = heap.layout.first_payload(1);
    assert_eq!(free(&heap, untouched), FreeError::AlreadyFree { offset: untouched });
    assert_eq!(free(&heap, untouched + 64), FreeError::AlreadyFree { offset: untouched + 64 });
    heap.check();
}

#[test]
fn what_lies_inside_a_block_is_none() {
    let mut heap = Heap::new(8, 4096);
    let small = heap.allocate(3, 64).unwrap();
    let huge = heap.allocate(100, 64).unwrap();
    for inside in [small + 64, small + 128, huge + 64, heap.layout.first_payload(2), small - 64] {
        assert_eq!(free(&heap, inside), FreeError::NotABlock { offset: inside });
    }
    for inside in [small + 8, huge + 1] {
        assert_eq!(free(&heap, inside), FreeError::Misaligned { offset: inside });
    }
}

#[test]
fn what_lies_elsewhere_is_foreign() {
    let heap = Heap::new(2, 4096);
    for outside in [0, 4032, heap.layout.chunk_offset(2), u64::MAX] {
        assert_eq!(free(&heap, outside), FreeError::OutsideHeap { offset: outside });
    }
}

#[test]
fn an_underflow_costs_its_own_block() {
    let mut heap = Heap::new(1, 4096);
    let blocks: Vec<u64> = (0..3).map(|_| heap.allocate(3, 64).unwrap()).collect();
    let header_offset = Layout::header_of(blocks[1]);
    heap.region.store(header_offset + 4, &[0xff; 8]);
    let corrupted = FreeError::Corrupted { offset: blocks[1], header_offset };
    assert_eq!(free(&heap, blocks[1]), corrupted);
    assert_eq!(heap.space.usable_bytes(&heap.region, blocks[1]), Err(corrupted));
    let [corruption] = heap.space.take_corruption().try_into().unwrap();
    assert_eq!((corruption.header_offset, corruption.kind), (header_offset, CorruptionKind::Known));
    assert_eq!(corruption.extent, blocks[1]..blocks[2]);
    assert_eq!(corruption.found, heap.region.load_u64(header_offset));
    heap.free(blocks[0]);
    heap.free(blocks[2]);
    // All but the corrupted block can be had.
    let rest = [3, 57].map(|lines| heap.allocate(lines, 64).unwrap());
    assert_eq!(rest, [blocks[0], blocks[2]]);
    assert!(matches!(heap.reserve(1, 64), Err(SpaceError::Full { waiting: false, .. })));
}

#[test]
fn an_overflow_costs_the_next_block() {
    let mut heap = Heap::new(1, 4096);
    let blocks: Vec<u64> = (0..3).map(|_| heap.allocate(3, 64).unwrap()).collect();
    let usable = heap.space.usable_bytes(&heap.region, blocks[0]).unwrap();
    heap.region.store(blocks[0], &vec![7; usize::try_from(usable).unwrap() + 1]);
    heap.free(blocks[0]);
    assert!(matches!(free(&heap, blocks[1]), FreeError::Corrupted { .. }));
    assert_eq!(heap.space.take_corruption().len(), 1);
}

#[test]
fn what_is_free_is_looked_at_before_it_is_handed_out() {
    let mut heap = Heap::new(1, 4096);
    let blocks: Vec<u64> = (0..3).map(|_| heap.allocate(3, 64).unwrap()).collect();
    heap.free(blocks[1]);
    heap.region.store_u64(Layout::header_of(blocks[1]), 0);
    let next = heap.space.allocate_unlogged(&heap.region, 3, 64, false).unwrap();
    assert!(next > blocks[2], "the free block is isolated");
    let [corruption] = heap.space.take_corruption().try_into().unwrap();
    assert_eq!(corruption.extent, blocks[1]..blocks[2]);
}

#[test]
fn blocks_copied_elsewhere_are_no_blocks_there() {
    let mut heap = Heap::new(1, 4096);
    let blocks: Vec<u64> = (0..2).map(|_| heap.allocate(3, 64).unwrap()).collect();
    // The whole block, its header included.
    let mut bytes = [0; 192];
    heap.region.load(blocks[0] - 8, &mut bytes);
    heap.region.store(blocks[1] - 8, &bytes);
    assert!(matches!(free(&heap, blocks[1]), FreeError::Corrupted { .. }));
}

#[test]
fn what_no_chunk_can_have_is_refused() {
    let heap = Heap::new(4, 4096);
    let refused =
        |lines, align| heap.space.reserve(&heap.region, lines, align, Lsn::MAX).expect_err("too much");
    assert_eq!(refused(1, 4096), SpaceError::Alignment { lines: 1, align_bytes: 4096 });
    assert_eq!(refused(63, 128), SpaceError::Alignment { lines: 63, align_bytes: 128 });
    assert_eq!(refused(64, 128), SpaceError::Alignment { lines: 64, align_bytes: 128 });
    assert_eq!(refused(256, 64), SpaceError::TooLong { lines: 256, max_lines: 255 });
    assert!(matches!(refused(u64::MAX, 64), SpaceError::TooLong { .. }));
}
