//! Copies of the allocated blocks of a heap with corrupted headers: no byte of a block that may be in use is missing or allocated again in a copy.

use super::fixture::{Heap, Random, list};
use crate::format::{BlockHeader, BlockState, LINE_BYTES};
use crate::layout::Layout;
use crate::space::{FreeError, Piece};
use pm_core::{Pmem, Region};

/// A copy of the heap, as another process would open it. Bytes that are in no piece are neither zero nor a header.
pub(super) fn copy_of(heap: &Heap) -> Heap {
    let mut copy = Heap::with(heap.chunks, heap.layout.chunk_bytes, heap.options);
    copy.region = Region::anonymous(heap.region.len_bytes()).unwrap();
    copy.region.store(0, &vec![0xee; usize::try_from(copy.region.len_bytes()).unwrap()]);
    heap.space.freeze(&heap.region, true).live_pieces(|piece| match piece {
        Piece::Bytes(range) => {
            let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap()];
            heap.region.load(range.start, &mut bytes);
            copy.region.store(range.start, &bytes);
        }
        Piece::Word { offset, word } => copy.region.store_u64(offset, word),
    });
    copy.blocks.clone_from(&heap.blocks);
    copy
}

/// Allocates all free space of the copy, and overwrites it. Asserts that each allocated block of the heap has the same contents in the copy, and
/// returns the newly allocated blocks.
fn check_contents(heap: &Heap, copy: &Heap) -> Vec<u64> {
    let mut taken = Vec::new();
    for lines in [copy.layout.chunk_lines() + 9, 30, 9, 3, 1] {
        while let Ok(payload) = copy.allocate_unlogged(lines) {
            let bytes = usize::try_from(lines * LINE_BYTES - 8).unwrap();
            copy.region.store(payload, &vec![0x55; bytes]);
            taken.push(payload);
        }
    }
    for payload in heap.blocks.keys() {
        assert!(copy.bytes(*payload) == heap.bytes(*payload), "the block at {payload:#x} has other contents");
    }
    taken
}

/// Looks up a block, and returns whether its header is found to be corrupted.
fn is_corrupted(heap: &Heap, payload: u64) -> bool {
    matches!(heap.space.usable_bytes(&heap.region, payload), Err(FreeError::Corrupted { .. }))
}

/// Ten blocks of four lines, each with different contents. Two of them are free.
fn heap_of_ten_blocks() -> (Heap, Vec<u64>) {
    let mut heap = Heap::new(3, 4096);
    let blocks: Vec<u64> = (0..10).map(|_| heap.allocate(4, 64).unwrap()).collect();
    for (number, block) in (1..).zip(&blocks) {
        heap.region.store(*block, &[number; 248]);
    }
    heap.free(blocks[1]);
    heap.free(blocks[7]);
    (heap, blocks)
}

#[test]
fn copy_keeps_unreachable_extent() {
    for is_repaired in [false, true] {
        let (mut heap, blocks) = heap_of_ten_blocks();
        heap.corrupt(blocks[4]);
        heap.reopen();
        if is_repaired {
            drop(heap.repair_all());
            heap.reopen();
        }
        let copy = copy_of(&heap);
        let corruptions = copy.space.check(&copy.region).corruptions;
        assert_eq!(
            corruptions,
            heap.space.check(&heap.region).corruptions,
            "the copy has the same corrupted headers"
        );
        assert_eq!(corruptions.is_empty(), is_repaired);
        let taken = check_contents(&heap, &copy);
        assert!(taken.contains(&blocks[1]) && !taken.contains(&blocks[7]), "{taken:x?}");
        assert!(is_corrupted(&copy, blocks[4]));
        for number in [0, 2, 3, 5, 6, 8, 9] {
            let freed = copy.unlogged().free(blocks[number]);
            assert_eq!(freed, Ok(()), "block {number}");
        }
    }
}

#[test]
fn copy_keeps_unreachable_extent_across_chunks() {
    for is_repaired in [false, true] {
        let mut heap = Heap::new(6, 4096);
        heap.allocate(3, 64).unwrap();
        let long = heap.allocate(3 * 64 + 20, 64).unwrap();
        let after = heap.allocate(2, 64).unwrap();
        heap.region.store(long, &(1..=250).cycle().take(3 * 4096).collect::<Vec<u8>>());
        heap.corrupt(long);
        heap.reopen();
        if is_repaired {
            drop(heap.repair_all());
            heap.reopen();
        }
        let copy = copy_of(&heap);
        check_contents(&heap, &copy);
        assert_eq!(copy.unlogged().free(after), Ok(()));
        assert!(copy.unlogged().free(long).is_err());
    }
}

/// A header is corrupted while the heap is open, so the length of its block is known.
#[test]
fn copy_keeps_lost_block_and_free_blocks() {
    for is_repaired in [false, true] {
        let (mut heap, blocks) = heap_of_ten_blocks();
        heap.corrupt(blocks[4]);
        assert!(is_corrupted(&heap, blocks[4]));
        if is_repaired {
            drop(heap.repair_all());
            heap.reopen();
        }
        let copy = copy_of(&heap);
        let report = copy.space.check(&copy.region);
        assert!(report.is_clean(), "{:?}", report.corruptions);
        assert_eq!((report.allocated_blocks, report.lost_blocks), (7, 1));
        assert_eq!(copy.header(blocks[4]), Some(BlockHeader::new(BlockState::Lost, 4)));
        let taken = check_contents(&heap, &copy);
        assert!([1, 7].iter().all(|free| taken.contains(&blocks[*free])), "{taken:x?}");
        assert!(is_corrupted(&copy, blocks[4]));
        // A copy of the copy.
        check_contents(&heap, &copy_of(&copy));
    }
}

#[test]
fn copy_keeps_lost_huge_blocks() {
    for is_repaired in [false, true] {
        let mut heap = Heap::new(6, 4096);
        let long = heap.allocate(2 * 64 + 20, 64).unwrap();
        let after = heap.allocate(2, 64).unwrap();
        heap.region.store(long, &(1..=250).cycle().take(2 * 4096).collect::<Vec<u8>>());
        heap.corrupt(long);
        assert!(is_corrupted(&heap, long));
        if is_repaired {
            drop(heap.repair_all());
            heap.reopen();
            heap.space.scan_some(&heap.region, usize::MAX).unwrap();
        }
        let copy = copy_of(&heap);
        let report = list(&copy.region, &copy.layout, copy.chunks).0;
        assert!(report.is_clean(), "{:?}", report.corruptions);
        assert_eq!((report.allocated_blocks, report.lost_blocks), (1, 1));
        check_contents(&heap, &copy);
        assert!(is_corrupted(&copy, long));
        assert_eq!(copy.space.usable_bytes(&copy.region, after), Ok(Layout::usable_bytes(2)));
    }
}

/// In an unreachable extent, the length in a block's own header is known, but not which headers after it are valid.
#[test]
fn resize_in_unreachable_extent_stores_nothing() {
    let (mut heap, blocks) = heap_of_ten_blocks();
    heap.corrupt(blocks[4]);
    heap.reopen();
    let all = |heap: &Heap| {
        let mut bytes = vec![0; usize::try_from(heap.region.len_bytes()).unwrap()];
        heap.region.load(0, &mut bytes);
        bytes
    };
    let before = all(&heap);
    let resize = |block: usize, lines: u64| {
        super::fixture::resize(heap.unlogged(), blocks[block], lines..=lines, |_| true)
    };
    // Block 7 is free, and so are the lines after block 9.
    for block in [5, 6, 8, 9] {
        for lines in [5, 8, 63, 64, 130] {
            assert_eq!(resize(block, lines).unwrap(), None, "block {block}, {lines} lines");
        }
        // The block is long enough.
        assert_eq!(resize(block, 1).unwrap(), Some(4), "block {block}");
    }
    assert_eq!(resize(3, 5).unwrap(), None, "up to the unreachable extent");
    assert!(resize(4, 5).is_err() && resize(7, 5).is_err());
    assert!(all(&heap) == before, "no byte has changed");
    assert_eq!(resize(3, 2).unwrap(), Some(2), "before the unreachable extent");
    assert_eq!(resize(3, 4).unwrap(), Some(4), "before the unreachable extent");
}

/// After stray writes, whether or not the corruption was found or repaired, a copy has the contents of all blocks, and never allocates their lines.
#[test]
fn copy_after_stray_writes_keeps_all_blocks() {
    let mut random = Random(31);
    for round in 0..2000 {
        let mut heap = Heap::new(6, 4096);
        for number in 0..50 {
            let lines = if number == 20 { 70 + random.below(80) } else { 1 + random.below(9) };
            let Ok(payload) = heap.allocate(lines, 64) else { break };
            if random.below(3) == 0 {
                heap.free(payload);
            }
        }
        for _ in 0..=random.below(3) {
            let at = usize::try_from(random.below(heap.blocks.len() as u64)).unwrap();
            let payload = *heap.blocks.keys().nth(at).unwrap();
            heap.region.store(Layout::header_offset_of(payload), &random.next().to_le_bytes());
            match random.below(4) {
                0 => heap.reopen(),
                1 => assert!(is_corrupted(&heap, payload), "round {round}"),
                2 => drop(heap.repair_all()),
                _ => {}
            }
        }
        let copy = copy_of(&heap);
        check_contents(&heap, &copy);
        // A copy of a copy whose chunks were not scanned.
        check_contents(&heap, &copy_of(&copy_of(&heap)));
    }
}
