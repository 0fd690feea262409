//! Heaps that end before their pools: the space behind them belongs to the program.

use pm_alloc::{Heap, HeapError, HeapOptions, TxError};
use pm_core::{Counting, PlaceError, Pmem, Region, RegionOptions};
use pm_testkit::any;
use std::sync::Arc;

const POOL_BYTES: u64 = 1 << 20;

fn options(chunks: u64) -> HeapOptions {
    HeapOptions::new().chunk_bytes(16 << 10).chunk_count(chunks)
}

/// Fills the heap, and the space behind it. Both keep what they have, and the heap keeps its length over opens and growth.
#[test]
fn heap_keeps_its_length() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("heap.pm");
    let mut heap = Heap::create(&path, POOL_BYTES, &options(4)).unwrap();
    let behind = heap.space_behind();
    assert_eq!(behind.end, heap.pool().data().end);
    assert!(behind.end - behind.start > POOL_BYTES / 2);
    let pattern: Vec<u8> = (behind.start..behind.end).map(|at| (at % 251) as u8).collect();
    heap.pmem().store_nt(behind.start, &pattern);
    heap.pmem().fence().unwrap();
    let mut blocks = 0;
    while heap.transaction(|tx| tx.alloc(&[7_u64; 100]).map(drop)).is_ok() {
        blocks += 1;
    }
    assert!((4 << 14) / 900 < blocks && blocks < (4 << 14) / 800, "{blocks}");
    heap.extend().unwrap();
    heap.grow(2 * POOL_BYTES).unwrap();
    assert_eq!(heap.space_behind().start, behind.start);
    assert!(heap.space_behind().end >= behind.end + POOL_BYTES);
    drop(heap);
    let heap = Heap::open(&path, &HeapOptions::new()).unwrap();
    assert_eq!(heap.space_behind().start, behind.start);
    let mut found = vec![0; pattern.len()];
    heap.pmem().load(behind.start, &mut found);
    assert!(found == pattern);
    assert_eq!(heap.blocks().len(), blocks);
    assert!(heap.check().is_clean());
    drop(heap);
    // A region that is opened again, too.
    let region = RegionOptions::new().open(&path).unwrap();
    assert_eq!(Heap::attach(any(region), &HeapOptions::new()).unwrap().space_behind().start, behind.start);
}

#[test]
fn impossible_lengths_are_refused() {
    for chunks in [0, 64] {
        let refused = Heap::format(Region::anonymous(POOL_BYTES).unwrap(), &options(chunks));
        assert!(matches!(refused, Err(HeapError::Layout { .. })), "{refused:?}");
    }
}

#[test]
fn links_are_made_from_offsets() {
    let heap = Heap::format(Region::anonymous(POOL_BYTES).unwrap(), &options(4)).unwrap();
    let offset = heap.transaction(|tx| Ok::<_, TxError>(tx.alloc(&[7_u64; 3])?.offset())).unwrap();
    heap.transaction(|tx| {
        let link = tx.link_at::<[u64; 3]>(offset)?;
        tx.write(link, &[8; 3])
    })
    .unwrap();
    heap.view(|view| {
        assert_eq!(view.read(view.link_at::<[u64; 3]>(offset).unwrap()).unwrap(), [8; 3]);
        for offset in [0, heap.space_behind().start - 16, heap.space_behind().start, u64::MAX - 7] {
            let refused = view.link_at::<[u64; 3]>(offset);
            assert!(matches!(refused, Err(PlaceError::OutOfRange { .. })), "{refused:?}");
        }
        assert!(matches!(view.link_at::<u64>(offset + 4), Err(PlaceError::Misaligned { .. })));
    });
}

/// What a transaction publishes in the space behind the heap is fenced before it commits.
#[test]
fn noted_stores_are_fenced_before_the_commit() {
    let pmem = Arc::new(Counting::new(Region::anonymous(POOL_BYTES).unwrap()));
    let heap = Heap::format(any(Arc::clone(&pmem)), &options(4)).unwrap();
    let slot = heap.transaction(|tx| Ok::<_, TxError>(tx.alloc(&0_u64)?.offset())).unwrap();
    let page = heap.space_behind().start;
    for (notes, fences) in [(false, 1), (true, 2)] {
        let ((), cost) = pmem.count(|| {
            heap.transaction(|tx| {
                heap.pmem().store_nt(page, &[1; 4096]);
                if notes {
                    tx.note_unfenced_stores();
                }
                tx.write(tx.link_at(slot)?, &page)
            })
            .unwrap();
        });
        assert_eq!(cost.fences, fences);
    }
}
