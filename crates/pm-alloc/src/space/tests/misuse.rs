//! Offsets without an allocated block cannot be freed, and corrupted headers are found when their block is next used.

use super::fixture::Heap;
use crate::format::Lsn;
use crate::layout::Layout;
use crate::space::{CorruptionKind, FreeError, SpaceError};
use pm_core::Pmem;

fn free(heap: &Heap, offset: u64) -> FreeError {
    heap.space.begin_free(&heap.region, offset).expect_err("no allocated block starts there")
}

#[test]
fn double_free_is_refused() {
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
fn free_of_coalesced_block_is_refused() {
    let mut heap = Heap::new(2, 4096);
    let blocks: Vec<u64> = (0..4).map(|_| heap.allocate(3, 64).unwrap()).collect();
    for block in [blocks[0], blocks[2], blocks[1]] {
        heap.free(block);
        // It is coalesced with the previously freed blocks.
        assert_eq!(free(&heap, block), FreeError::AlreadyFree { offset: block });
    }
    assert_eq!(free(&heap, blocks[0] + 64), FreeError::AlreadyFree { offset: blocks[0] + 64 });
    let untouched = heap.layout.first_payload(1);
    assert_eq!(free(&heap, untouched), FreeError::AlreadyFree { offset: untouched });
    assert_eq!(free(&heap, untouched + 64), FreeError::AlreadyFree { offset: untouched + 64 });
    heap.check();
}

#[test]
fn free_inside_block_is_refused() {
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
fn free_outside_heap_is_refused() {
    let heap = Heap::new(2, 4096);
    for outside in [0, 4032, heap.layout.chunk_offset(2), u64::MAX] {
        assert_eq!(free(&heap, outside), FreeError::OutsideHeap { offset: outside });
    }
}

#[test]
fn underflow_corrupts_own_block_only() {
    let mut heap = Heap::new(1, 4096);
    let blocks: Vec<u64> = (0..3).map(|_| heap.allocate(3, 64).unwrap()).collect();
    let header_offset = Layout::header_offset_of(blocks[1]);
    heap.region.store(header_offset + 4, &[0xff; 8]);
    let corrupted = FreeError::Corrupted { offset: blocks[1], header_offset };
    assert_eq!(free(&heap, blocks[1]), corrupted);
    assert_eq!(heap.space.usable_bytes(&heap.region, blocks[1]), Err(corrupted));
    let [corruption] = heap.space.take_corruption().try_into().unwrap();
    assert_eq!((corruption.header_offset, corruption.kind), (header_offset, CorruptionKind::LengthKnown));
    assert_eq!(corruption.extent, blocks[1]..blocks[2]);
    assert_eq!(corruption.found, heap.region.load_u64(header_offset));
    heap.free(blocks[0]);
    heap.free(blocks[2]);
    // All lines except those of the corrupted block can be allocated.
    let rest = [3, 57].map(|lines| heap.allocate(lines, 64).unwrap());
    assert_eq!(rest, [blocks[0], blocks[2]]);
    assert!(matches!(heap.reserve(1, 64), Err(SpaceError::Full { quarantined: false, .. })));
}

#[test]
fn overflow_corrupts_next_block_only() {
    let mut heap = Heap::new(1, 4096);
    let blocks: Vec<u64> = (0..3).map(|_| heap.allocate(3, 64).unwrap()).collect();
    let usable = heap.space.usable_bytes(&heap.region, blocks[0]).unwrap();
    heap.region.store(blocks[0], &vec![7; usize::try_from(usable).unwrap() + 1]);
    heap.free(blocks[0]);
    assert!(matches!(free(&heap, blocks[1]), FreeError::Corrupted { .. }));
    assert_eq!(heap.space.take_corruption().len(), 1);
}

#[test]
fn corrupted_free_block_is_not_allocated() {
    let mut heap = Heap::new(1, 4096);
    let blocks: Vec<u64> = (0..3).map(|_| heap.allocate(3, 64).unwrap()).collect();
    heap.free(blocks[1]);
    heap.region.store_u64(Layout::header_offset_of(blocks[1]), 0);
    let next = heap.allocate_unlogged(3).unwrap();
    assert!(next > blocks[2], "the free block is isolated");
    let [corruption] = heap.space.take_corruption().try_into().unwrap();
    assert_eq!(corruption.extent, blocks[1]..blocks[2]);
}

#[test]
fn copied_header_is_invalid_elsewhere() {
    let mut heap = Heap::new(1, 4096);
    let blocks: Vec<u64> = (0..2).map(|_| heap.allocate(3, 64).unwrap()).collect();
    // The whole block, with its header.
    let mut bytes = [0; 192];
    heap.region.load(blocks[0] - 8, &mut bytes);
    heap.region.store(blocks[1] - 8, &bytes);
    assert!(matches!(free(&heap, blocks[1]), FreeError::Corrupted { .. }));
}

#[test]
fn impossible_requests_are_refused() {
    let heap = Heap::new(4, 4096);
    let refused =
        |lines, align| heap.space.reserve(&heap.region, lines, align, Lsn::MAX).expect_err("too much");
    assert_eq!(refused(1, 4096), SpaceError::Alignment { lines: 1, align_bytes: 4096 });
    assert_eq!(refused(63, 128), SpaceError::Alignment { lines: 63, align_bytes: 128 });
    assert_eq!(refused(64, 128), SpaceError::Alignment { lines: 64, align_bytes: 128 });
    assert_eq!(refused(256, 64), SpaceError::TooLong { lines: 256, max_lines: 255 });
    assert!(matches!(refused(u64::MAX, 64), SpaceError::TooLong { .. }));
}
