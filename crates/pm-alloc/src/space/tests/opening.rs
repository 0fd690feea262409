//! Scanning chunks after an open, and growing a heap.

use super::fixture::Heap;
use crate::layout::Layout;
use crate::space::{FreeError, Space, SpaceError};
use pm_core::Pmem;

#[test]
fn chunk_is_scanned_when_needed() {
    let mut heap = Heap::new(8, 4096);
    let blocks: Vec<u64> = (0..8).map(|_| heap.allocate(40, 64).unwrap()).collect();
    heap.reopen();
    assert_eq!(heap.space.stats().unscanned_chunks, 8);
    heap.free(blocks[3]);
    assert_eq!(heap.space.stats().unscanned_chunks, 7, "a block in one chunk was freed");
    heap.allocate(20, 64).unwrap();
    assert_eq!(heap.space.stats().unscanned_chunks, 7, "that chunk has room");
    heap.allocate(23, 64).unwrap();
    heap.allocate(23, 64).unwrap();
    assert!(heap.space.stats().unscanned_chunks < 7);
    let left = usize::try_from(heap.space.stats().unscanned_chunks).unwrap();
    assert_eq!(heap.space.scan_some(&heap.region, 2), Ok(left - 2));
    assert_eq!(heap.space.scan_some(&heap.region, 100), Ok(0));
    let stats = heap.space.stats();
    assert_eq!(stats.free_bytes + stats.used_bytes, 8 * 4096);
    let report = heap.space.check(&heap.region);
    assert_eq!(report.free_bytes, stats.free_bytes + stats.quarantined_bytes);
    assert_eq!(report.allocated_blocks, heap.blocks.len() as u64);
    assert_eq!(report.corruptions, []);
    heap.check();
}

#[test]
fn extend_adds_chunks() {
    let mut heap = Heap::new(6, 4096);
    heap.space = Space::open(heap.layout, 2, heap.options);
    let last = heap.layout.first_payload(2);
    heap.allocate(63, 64).unwrap();
    heap.allocate(63, 64).unwrap();
    assert!(matches!(heap.reserve(1, 64), Err(SpaceError::Full { quarantined: false, held: false, .. })));
    assert!(matches!(heap.reserve(200, 64), Err(SpaceError::TooLong { max_lines: 127, .. })));
    assert!(matches!(heap.space.begin_free(&heap.region, last), Err(FreeError::OutsideHeap { .. })));
    heap.space.make_room(6);
    heap.space.extend(6);
    assert_eq!(heap.allocate(200, 64), Ok(last));
    heap.check();
}

/// A first header with a valid checksum counts as corrupted if its block would end outside the heap.
#[test]
fn block_beyond_heap_end_is_corrupted() {
    use crate::format::{BlockHeader, BlockState};
    let mut heap = Heap::new(2, 4096);
    let payload = heap.layout.first_payload(1);
    let offset = Layout::header_offset_of(payload);
    for lines in [64, 65, 1000, (1 << 29) - 1] {
        let header = BlockHeader::new(BlockState::Allocated, lines);
        heap.region.store_u64(offset, header.to_word(heap.layout.seed, offset));
        heap.reopen();
        assert!(matches!(heap.space.begin_free(&heap.region, payload), Err(FreeError::Corrupted { .. })));
        assert_eq!(heap.space.take_corruption().len(), 1);
        assert_eq!(heap.space.check(&heap.region).corruptions.len(), 1);
    }
}
