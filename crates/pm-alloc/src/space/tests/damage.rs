//! Stray writes all over a heap that is in use: what they hit is found, and nothing else suffers.

use super::fixture::{Heap, Random};
use crate::format::{BLOCK_HEADER_BYTES, LINE_BYTES, Stamp};
use crate::layout::Layout;
use crate::space::{CheckReport, Damage, DamageKind, FreeError};
use pm_core::Pmem;
use std::collections::BTreeMap;

/// Stray writes, in rounds of one to three before they are looked for.
const STRAY_WRITES: usize = 20_000;

/// A heap of some chunks with blocks of many lengths in it, and holes between.
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

/// Writes 1 to 256 random bytes somewhere, or where a header is hit; says where.
fn stray_write(heap: &Heap, random: &mut Random) -> core::ops::Range<u64> {
    let (start, end) = (heap.layout.chunk_offset(0), heap.layout.chunk_offset(heap.chunks));
    let bytes: Vec<u8> = (0..1 + random.below(256)).map(|_| random.next().to_le_bytes()[3]).collect();
    let at = if random.below(2) == 0 && !heap.blocks.is_empty() {
        let index = usize::try_from(random.below(heap.blocks.len() as u64)).unwrap();
        let (payload, _) = heap.blocks.iter().nth(index).unwrap();
        Layout::header_of(*payload) + random.below(BLOCK_HEADER_BYTES)
    } else {
        start + random.below(end - start)
    };
    let bytes = &bytes[..bytes.len().min(usize::try_from(end - at).unwrap())];
    heap.region.store(at, bytes);
    at..at + bytes.len() as u64
}

/// The blocks whose own headers are no more what they were.
fn hit(heap: &Heap, headers: &BTreeMap<u64, u64>) -> Vec<u64> {
    let changed = |payload: &&u64| heap.region.load_u64(Layout::header_of(**payload)) != headers[*payload];
    heap.blocks.keys().filter(changed).copied().collect()
}

fn headers(heap: &Heap) -> BTreeMap<u64, u64> {
    heap.blocks.keys().map(|payload| (*payload, heap.region.load_u64(Layout::header_of(*payload)))).collect()
}

/// Takes all that is still handed out, and says that it overlaps nothing that is live.
fn take_the_rest(heap: &Heap, live: &BTreeMap<u64, u32>) {
    let mut taken = live.clone();
    for lines in [9, 3, 1] {
        while let Ok(payload) = heap.space.allocate_direct(&heap.region, lines, 64, false) {
            let end = payload + lines * LINE_BYTES;
            let before = taken.range(..end).next_back();
            let overlaps =
                before.is_some_and(|(other, lines)| other + u64::from(*lines) * LINE_BYTES > payload);
            assert!(!overlaps, "{payload:#x}..{end:#x} overlaps {before:x?}");
            taken.insert(payload, u32::try_from(lines).unwrap());
        }
    }
}

/// While the heap is open, a stray write costs the blocks whose headers it hit, and no others.
#[test]
fn stray_writes_into_an_open_heap_cost_what_they_hit() {
    let mut random = Random(2024);
    let mut writes = 0;
    while writes < STRAY_WRITES {
        let heap = populated(&mut random);
        let before = headers(&heap);
        for _ in 0..=random.below(3) {
            stray_write(&heap, &mut random);
            writes += 1;
        }
        let hit = hit(&heap, &before);
        take_the_rest(&heap, &heap.blocks);
        for payload in heap.blocks.keys() {
            let freed = heap.space.free_direct(&heap.region, *payload, false);
            let expected =
                FreeError::Damaged { offset: *payload, header_offset: Layout::header_of(*payload) };
            assert_eq!(freed, if hit.contains(payload) { Err(expected) } else { Ok(()) });
        }
        let damages = heap.space.take_damage();
        assert!(damages.iter().all(|damage| damage.kind == DamageKind::Known));
        for payload in hit {
            let told = |damage: &&Damage| damage.header_offset == Layout::header_of(payload);
            assert_eq!(damages.iter().filter(told).count(), 1, "{payload:#x}");
        }
    }
}

/// Opened after stray writes, a heap tells of each header that was hit on the chain, hands out nothing of what is live,
/// and frees what is found to be whole.
#[test]
fn stray_writes_into_a_closed_heap_are_found() {
    let mut random = Random(4711);
    let mut writes = 0;
    while writes < STRAY_WRITES {
        let mut heap = populated(&mut random);
        let before = headers(&heap);
        for _ in 0..=random.below(3) {
            stray_write(&heap, &mut random);
            writes += 1;
        }
        let hit = hit(&heap, &before);
        let report = CheckReport::of(&heap.region, &heap.layout, heap.chunks, |_| ());
        heap.reopen();
        heap.space.scan_some(&heap.region, usize::MAX);
        let damages = heap.space.take_damage();
        assert!(damages.len() <= report.damages.len());
        for payload in &hit {
            let inside = |damage: &Damage| damage.extent.contains(payload);
            // What is covered by a damaged block longer than a chunk is in another extent.
            assert!(report.damages.iter().any(inside), "{payload:#x}: {report:x?}");
        }
        take_the_rest(&heap, &heap.blocks);
        for payload in heap.blocks.keys() {
            let freed = heap.space.free_direct(&heap.region, *payload, false);
            assert!(!hit.contains(payload) || freed.is_err(), "{payload:#x}");
        }
        take_the_rest(&heap, &BTreeMap::new());
    }
}

/// Repaired, chains are whole, and nothing that was damaged is handed out.
#[test]
fn a_repair_makes_chains_whole() {
    let mut random = Random(99);
    for _ in 0..500 {
        let mut heap = populated(&mut random);
        stray_write(&heap, &mut random);
        let reopens = random.below(2) == 0;
        if reopens {
            heap.reopen();
            heap.space.scan_some(&heap.region, usize::MAX);
        }
        let report = heap.space.check(&heap.region);
        for damage in &report.damages {
            let (offset, word) = heap.space.repair(&heap.region, damage).unwrap();
            assert_eq!(offset, damage.header_offset);
            heap.region.store_u64(offset, word);
            assert_eq!(heap.space.repair(&heap.region, damage), None, "it is repaired");
        }
        for damage in &report.damages {
            heap.space.repaired(&heap.region, damage);
        }
        let after = heap.space.check(&heap.region);
        assert_eq!(after.damages, []);
        let extents: u64 = report.damages.iter().map(|damage| damage.extent.end - damage.extent.start).sum();
        assert_eq!(after.lost_bytes, extents);
        let in_chunks: u64 = after
            .chunks
            .iter()
            .map(|chunk| chunk.allocated_bytes + chunk.free_bytes + chunk.lost_bytes)
            .sum();
        assert_eq!(in_chunks, after.allocated_bytes + after.free_bytes + after.lost_bytes);
        heap.space.take_damage();
        let lines = heap.layout.chunk_lines() - 1;
        while heap.space.reserve(&heap.region, lines, 64, Stamp::MAX).is_ok() {}
        assert_eq!(heap.space.take_damage(), [], "everything was found before");
        for damage in report.damages.iter().filter(|damage| !damage.extent.is_empty()) {
            let freed = heap.space.begin_free(&heap.region, damage.extent.start);
            assert!(
                matches!(freed, Err(FreeError::Damaged { .. } | FreeError::NotABlock { .. })),
                "{freed:?}"
            );
        }
    }
}

/// Of a chunk whose chain is broken, what is free behind the break is not handed out before the repair, and then it is.
#[test]
fn what_is_free_behind_a_break_waits_for_a_repair() {
    let mut heap = Heap::new(1, 4096);
    let blocks: Vec<u64> = (0..10).map(|_| heap.allocate(4, 64).unwrap()).collect();
    heap.free(blocks[1]);
    heap.free(blocks[7]);
    heap.region.store_u64(Layout::header_of(blocks[4]), 1);
    heap.reopen();
    assert_eq!(heap.allocate(4, 64), Ok(blocks[1]));
    assert!(heap.reserve(1, 64).is_err());
    heap.free(blocks[8]);
    assert!(heap.reserve(1, 64).is_err(), "freed behind the break");
    let [damage] = heap.space.take_damage().try_into().unwrap();
    assert_eq!((damage.kind, damage.extent.clone()), (DamageKind::Resynchronized, blocks[4]..blocks[5]));
    let (offset, word) = heap.space.repair(&heap.region, &damage).unwrap();
    heap.region.store_u64(offset, word);
    heap.space.repaired(&heap.region, &damage);
    heap.blocks.remove(&blocks[4]);
    heap.check();
    assert_eq!(heap.allocate(8, 64), Ok(blocks[7]));
    heap.check();
}

/// Two damaged headers cost their blocks, and not what lies between them.
#[test]
fn the_chain_goes_on_between_two_breaks() {
    let mut heap = Heap::new(1, 4096);
    let blocks: Vec<u64> = (0..12).map(|_| heap.allocate(4, 64).unwrap()).collect();
    for broken in [2, 9] {
        heap.region.store_u64(Layout::header_of(blocks[broken]), 1);
    }
    heap.reopen();
    for (number, block) in blocks.iter().enumerate() {
        let freed = heap.space.begin_free(&heap.region, *block);
        assert_eq!(freed.is_ok(), ![2, 9].contains(&number), "block {number}: {freed:?}");
    }
    let extents: Vec<_> = heap.space.take_damage().into_iter().map(|damage| damage.extent).collect();
    assert_eq!(extents, [blocks[2]..blocks[3], blocks[9]..blocks[10]]);
}
