//! Stray writes into a heap that is in use: corrupted headers are found, and no other block is affected.

use super::fixture::{Heap, Random, list};
use crate::format::{BLOCK_HEADER_BYTES, BlockHeader, BlockState, LINE_BYTES, Lsn};
use crate::layout::Layout;
use crate::space::{Corruption, CorruptionKind, FreeError, Unlogged};
use pm_core::Pmem;
use std::collections::BTreeMap;

/// The number of stray writes of a test, which makes one to three in each round.
const STRAY_WRITES: u64 = 20_000;

/// A heap of a few chunks, with blocks of many lengths and free extents between them.
fn populated(random: &mut Random) -> Heap {
    let mut heap = Heap::new(6, 4096);
    let mut all = Vec::new();
    while all.len() < 60 {
        let lines = if all.len() == 20 { 70 + random.below(40) } else { 1 + random.below(7) };
        match heap.allocate(lines, 64) {
            Ok(payload) => all.push(payload),
            Err(_) => break,
        }
    }
    for payload in all {
        if random.below(3) == 0 {
            heap.free(payload);
        }
    }
    heap
}

/// Writes 1 to 256 random bytes at a random offset, or over a header.
fn stray_write(heap: &Heap, random: &mut Random) {
    let (start, end) = (heap.layout.chunk_offset(0), heap.layout.chunk_offset(heap.chunks));
    let bytes: Vec<u8> = (0..1 + random.below(256)).map(|_| random.next().to_le_bytes()[3]).collect();
    let at = if random.below(2) == 0 && !heap.blocks.is_empty() {
        let index = usize::try_from(random.below(heap.blocks.len() as u64)).unwrap();
        let (payload, _) = heap.blocks.iter().nth(index).unwrap();
        Layout::header_offset_of(*payload) + random.below(BLOCK_HEADER_BYTES)
    } else {
        start + random.below(end - start)
    };
    let bytes = &bytes[..bytes.len().min(usize::try_from(end - at).unwrap())];
    heap.region.store(at, bytes);
}

/// Makes one to three stray writes. Returns the blocks whose own headers have changed, and the number of writes.
fn stray_writes(heap: &Heap, random: &mut Random) -> (Vec<u64>, u64) {
    let header = |payload: &u64| heap.region.load_u64(Layout::header_offset_of(*payload));
    let before: Vec<(u64, u64)> = heap.blocks.keys().map(|payload| (*payload, header(payload))).collect();
    let count = 1 + random.below(3);
    (0..count).for_each(|_| stray_write(heap, random));
    let corrupted = before.into_iter().filter(|(payload, word)| header(payload) != *word);
    (corrupted.map(|(payload, _)| payload).collect(), count)
}

/// Allocates all free space, and asserts that it overlaps no allocated block.
fn fill_free_space(heap: &Heap, live: &BTreeMap<u64, u32>) {
    let mut taken = live.clone();
    for lines in [9, 3, 1] {
        while let Ok(payload) = heap.allocate_unlogged(lines) {
            let end = payload + lines * LINE_BYTES;
            let before = taken.range(..end).next_back();
            let overlaps =
                before.is_some_and(|(other, lines)| other + u64::from(*lines) * LINE_BYTES > payload);
            assert!(!overlaps, "{payload:#x}..{end:#x} overlaps {before:x?}");
            taken.insert(payload, u32::try_from(lines).unwrap());
        }
    }
}

/// While the heap is open, a stray write loses only the blocks whose headers it corrupts.
#[test]
fn stray_writes_into_open_heap_lose_corrupted_blocks_only() {
    let mut random = Random(2024);
    let mut writes = 0;
    while writes < STRAY_WRITES {
        let heap = populated(&mut random);
        let (corrupted, count) = stray_writes(&heap, &mut random);
        writes += count;
        fill_free_space(&heap, &heap.blocks);
        for payload in heap.blocks.keys() {
            let freed = heap.unlogged().free(*payload);
            let expected =
                FreeError::Corrupted { offset: *payload, header_offset: Layout::header_offset_of(*payload) };
            assert_eq!(freed, if corrupted.contains(payload) { Err(expected) } else { Ok(()) });
        }
        let corruptions = heap.space.take_corruption();
        assert!(corruptions.iter().all(|corruption| corruption.kind == CorruptionKind::LengthKnown));
        for payload in corrupted {
            let is_of_payload =
                |corruption: &&Corruption| corruption.header_offset == Layout::header_offset_of(payload);
            assert_eq!(corruptions.iter().filter(is_of_payload).count(), 1, "{payload:#x}");
        }
    }
}

/// A heap that is opened after stray writes reports each corrupted header of the chain, allocates no line of an allocated block, and frees intact
/// blocks.
#[test]
fn stray_writes_into_closed_heap_are_reported() {
    let mut random = Random(4711);
    let mut writes = 0;
    while writes < STRAY_WRITES {
        let mut heap = populated(&mut random);
        let (corrupted, count) = stray_writes(&heap, &mut random);
        writes += count;
        let report = list(&heap.region, &heap.layout, heap.chunks).0;
        heap.reopen();
        heap.space.scan_some(&heap.region, usize::MAX).unwrap();
        let corruptions = heap.space.take_corruption();
        assert!(corruptions.len() <= report.corruptions.len());
        for payload in &corrupted {
            let inside = |corruption: &Corruption| corruption.extent.contains(payload);
            // The block may lie in the extent of another corrupted header.
            assert!(report.corruptions.iter().any(inside), "{payload:#x}: {report:x?}");
        }
        fill_free_space(&heap, &heap.blocks);
        for payload in heap.blocks.keys() {
            let freed = heap.unlogged().free(*payload);
            assert!(!corrupted.contains(payload) || freed.is_err(), "{payload:#x}");
        }
        fill_free_space(&heap, &BTreeMap::new());
    }
}

/// After repairs the chains are intact, and no corrupted block is allocated.
#[test]
fn repair_makes_chains_intact() {
    let mut random = Random(99);
    for _ in 0..500 {
        let mut heap = populated(&mut random);
        stray_write(&heap, &mut random);
        let reopens = random.below(2) == 0;
        if reopens {
            heap.reopen();
            heap.space.scan_some(&heap.region, usize::MAX).unwrap();
        }
        let mut report = heap.space.check(&heap.region);
        let mut repaired = Vec::new();
        while let Some(corruption) = report.corruptions.first() {
            assert_eq!(heap.repair(corruption), Some(corruption.header_offset));
            assert_eq!(heap.space.repair(&heap.region, corruption), Ok(None), "the header is repaired");
            repaired.push(corruption.clone());
            // While the heap is open, the end of a corrupted block is known, and the next block may be corrupted, too.
            report = heap.space.check(&heap.region);
        }
        let after = heap.space.check(&heap.region);
        assert_eq!(after.corruptions, []);
        let in_chunks: u64 = after
            .chunks
            .iter()
            .map(|chunk| chunk.allocated_bytes + chunk.free_bytes + chunk.lost_bytes)
            .sum();
        assert_eq!(in_chunks, after.allocated_bytes + after.free_bytes + after.lost_bytes);
        heap.space.take_corruption();
        let lines = heap.layout.chunk_lines() - 1;
        while heap.space.reserve(&heap.region, lines, 64, Lsn::MAX).is_ok() {}
        heap.space.scan_some(&heap.region, usize::MAX).unwrap();
        assert_eq!(heap.space.take_corruption(), [], "all corruption was found before");
        for corruption in repaired.iter().filter(|corruption| !corruption.extent.is_empty()) {
            let freed = heap.space.begin_free(&heap.region, corruption.extent.start);
            assert!(
                matches!(
                    freed,
                    Err(FreeError::Corrupted { .. }
                        | FreeError::NotABlock { .. }
                        | FreeError::AlreadyFree { .. })
                ),
                "{freed:?}"
            );
        }
    }
}

/// Free lines after a corrupted header are never allocated, not even after a repair: they may be part of the block with that header.
#[test]
fn unreachable_free_lines_are_not_allocated() {
    let mut heap = Heap::new(1, 4096);
    let blocks: Vec<u64> = (0..10).map(|_| heap.allocate(4, 64).unwrap()).collect();
    heap.free(blocks[1]);
    heap.free(blocks[7]);
    heap.region.store_u64(Layout::header_offset_of(blocks[4]), 1);
    heap.reopen();
    assert_eq!(heap.allocate(4, 64), Ok(blocks[1]));
    assert!(heap.reserve(1, 64).is_err());
    heap.free(blocks[8]);
    assert!(heap.reserve(1, 64).is_err(), "freed in the unreachable extent");
    let [corruption] = heap.space.take_corruption().try_into().unwrap();
    let chunk_end = heap.layout.chunk_offset(1);
    assert_eq!(
        (corruption.kind, corruption.extent.clone()),
        (CorruptionKind::LengthUnknown, blocks[4]..chunk_end)
    );
    heap.repair(&corruption).unwrap();
    for _ in 0..2 {
        assert!(heap.reserve(1, 64).is_err(), "after the repair");
        heap.reopen();
    }
    for number in [0, 1, 2, 3, 5, 6, 9] {
        assert_eq!(heap.unlogged().free(blocks[number]), Ok(()), "block {number}");
    }
    assert!(heap.reserve(16, 64).is_ok(), "before the unreachable extent");
    assert!(heap.reserve(1, 64).is_err(), "freed in the unreachable extent");
}

/// Two corrupted headers lose their own blocks, but not the blocks between and after them.
#[test]
fn unreachable_blocks_are_found_by_their_own_headers() {
    let mut heap = Heap::new(1, 4096);
    let blocks: Vec<u64> = (0..12).map(|_| heap.allocate(4, 64).unwrap()).collect();
    for broken in [2, 9] {
        heap.region.store_u64(Layout::header_offset_of(blocks[broken]), 1);
    }
    heap.reopen();
    let listed = list(&heap.region, &heap.layout, heap.chunks).1;
    for (number, block) in blocks.iter().enumerate() {
        let is_intact = ![2, 9].contains(&number);
        assert_eq!(listed.contains_key(block), is_intact, "block {number}");
        let freed = heap.space.begin_free(&heap.region, *block);
        assert_eq!(freed.is_ok(), is_intact, "block {number}: {freed:?}");
    }
    let [corruption] = heap.space.take_corruption().try_into().unwrap();
    assert_eq!(corruption.extent, blocks[2]..heap.layout.chunk_offset(1));
}

/// The header of a former free block may survive inside an allocated block, with a length that reaches over the next block.
#[test]
fn stale_free_header_does_not_hide_live_block() {
    let mut heap = Heap::new(1, 4096);
    let header = |heap: &Heap, line: u64, state, lines| {
        let offset = Layout::header_offset_of(heap.layout.chunk_offset(0) + line * LINE_BYTES);
        heap.region.store_u64(offset, BlockHeader::new(state, lines).to_word(heap.layout.seed, offset));
    };
    // A block of lines 1 to 10, with the header of a former free block of lines 5 to 20 inside; a block of lines 11 to 14; the free rest.
    header(&heap, 1, BlockState::Allocated, 10);
    header(&heap, 5, BlockState::Free, 16);
    header(&heap, 11, BlockState::Allocated, 4);
    header(&heap, 15, BlockState::Free, 49);
    let [first, second] = [1, 11].map(|line| heap.layout.chunk_offset(0) + line * LINE_BYTES);
    heap.corrupt(first);
    heap.reopen();
    heap.repair_all();
    heap.reopen();
    assert!(heap.reserve(1, 64).is_err());
    assert_eq!(heap.space.usable_bytes(&heap.region, second), Ok(Layout::usable_bytes(4)));
}

/// In an unreachable extent, a listed block may be a former block inside an allocated block, so freeing it stores nothing.
#[test]
fn free_in_unreachable_extent_stores_nothing() {
    let mut heap = Heap::new(1, 4096);
    let blocks: Vec<u64> = (0..4).map(|_| heap.allocate(4, 64).unwrap()).collect();
    // The header of the second block is corrupted, so its length is unknown.
    heap.region.store_u64(Layout::header_offset_of(blocks[1]), 1);
    heap.reopen();
    let before = heap.region.load_u64(Layout::header_offset_of(blocks[2]));
    assert_eq!(Unlogged::new(&heap.space, &heap.region, true).free(blocks[2]), Ok(()));
    let freeing = heap.space.begin_free(&heap.region, blocks[3]).unwrap();
    assert_eq!(freeing.header(), None);
    heap.space.finish_free(freeing, Lsn::ZERO);
    assert_eq!(heap.region.load_u64(Layout::header_offset_of(blocks[2])), before);
    for block in [blocks[2], blocks[3]] {
        let again = Unlogged::new(&heap.space, &heap.region, true).free(block);
        assert_eq!(again, Err(FreeError::AlreadyFree { offset: block }));
    }
    assert!(heap.reserve(1, 64).is_err());
}

/// If the header of a huge block is corrupted, a repair does not write into the contents of the block.
#[test]
fn repair_keeps_contents_of_huge_block() {
    let mut heap = Heap::new(6, 4096);
    let small = heap.allocate(3, 64).unwrap();
    let long = heap.allocate(3 * 64 + 20, 64).unwrap();
    let after = heap.allocate(2, 64).unwrap();
    let bytes = usize::try_from(Layout::usable_bytes(heap.blocks[&long])).unwrap();
    let contents: Vec<u8> = (1..=250).cycle().take(bytes).collect();
    heap.region.store(long, &contents);
    heap.region.store_u64(Layout::header_offset_of(long), 77);
    heap.reopen();
    let corruptions = heap.repair_all();
    assert_eq!(corruptions.len(), 1, "{corruptions:x?}");
    assert_eq!(corruptions[0].header_offset, Layout::header_offset_of(long));
    assert!(corruptions[0].extent.start == long && corruptions[0].extent.end >= long + bytes as u64);
    heap.reopen();
    let report = heap.space.check(&heap.region);
    assert_eq!(report.corruptions, []);
    while heap.allocate_unlogged(1).is_ok() {}
    let mut found = vec![0; bytes];
    heap.region.load(long, &mut found);
    assert!(found == contents, "the contents have not changed");
    for block in [small, after] {
        assert_eq!(heap.unlogged().free(block), Ok(()));
    }
}

/// The first headers of two chunks are corrupted: the first while the heap is closed, the second while it is open, after the chunk was scanned. The
/// second chunk is not part of the first one's unreachable extent.
#[test]
fn unreachable_extent_ends_before_scanned_chunk() {
    let mut heap = Heap::new(2, 4096);
    let first = heap.allocate(63, 64).unwrap();
    let second = heap.allocate(10, 64).unwrap();
    heap.region.store_u64(Layout::header_offset_of(first), 1);
    heap.reopen();
    heap.space.scan_some(&heap.region, usize::MAX).unwrap();
    heap.region.store_u64(Layout::header_offset_of(second), 1);
    let mut repaired = Vec::new();
    while let Some(corruption) = heap.space.check(&heap.region).corruptions.first() {
        repaired.push(heap.repair(corruption).unwrap());
    }
    assert_eq!(repaired, [first, second].map(Layout::header_offset_of));
    assert_eq!(heap.header(first), Some(BlockHeader::new(BlockState::Unreachable, 63)));
    assert_eq!(heap.header(second), Some(BlockHeader::new(BlockState::Lost, 10)));
    assert!(heap.reserve(53, 64).is_ok(), "the free lines after the second block");
}
