//! Freed blocks that are not reusable: in quarantine, which ends when the heap is opened again, or lost by a repair.

use super::prelude::*;
use crate::discarding::{drain_quarantine, free_payloads};
use std::time::Duration;

fn options() -> HeapOptions {
    HeapOptions::new().lanes(1).lane_entries(64).quarantine(Duration::from_secs(3600))
}

fn alloc<P: Pmem>(heap: &Heap<P>) -> Result<u64, TxError> {
    heap.transaction(|tx| tx.alloc(&[7_u64; 40]).map(Link::offset))
}

fn free<P: Pmem>(heap: &Heap<P>, block: u64) {
    heap.transact(|tx| tx.free(link_to::<u64>(block))).unwrap();
}

/// A heap that was filled, and of which two blocks that are not adjacent were then freed.
fn full_but_for_two<'r>(region: impl Into<AnyPmem<'r>>) -> (Heap<AnyPmem<'r>>, [u64; 2]) {
    let heap = Heap::format(any(region), &options()).unwrap();
    let blocks: Vec<u64> = std::iter::from_fn(|| alloc(&heap).ok()).collect();
    let two = [blocks[3], blocks[5]];
    two.iter().for_each(|block| free(&heap, *block));
    (heap, two)
}

fn is_quarantined(error: &TxError) -> bool {
    matches!(error, TxError::Space(SpaceError::Full { quarantined: true, .. }))
}

#[test]
fn freed_blocks_are_quarantined_for_their_time() {
    let (heap, _) = full_but_for_two(Region::anonymous(1 << 18).unwrap());
    assert!(is_quarantined(&alloc(&heap).unwrap_err()));
    let short = Duration::from_millis(30);
    let heap = Heap::format(Region::anonymous(1 << 18).unwrap(), &options().quarantine(short)).unwrap();
    let blocks: Vec<u64> = std::iter::from_fn(|| alloc(&heap).ok()).collect();
    let freed = std::time::Instant::now();
    free(&heap, blocks[3]);
    let again = loop {
        match alloc(&heap) {
            Ok(block) => break block,
            Err(error) => assert!(is_quarantined(&error), "{error}"),
        }
        assert!(freed.elapsed() < Duration::from_secs(60), "the freed block is not reused");
        std::thread::yield_now();
    };
    assert!(freed.elapsed() >= short, "{:?}", freed.elapsed());
    assert_eq!(again, blocks[3]);
}

/// The quarantine is in DRAM, so it ends with the process.
#[test]
fn reopening_ends_quarantine() {
    let (region, killed) = (Region::anonymous(1 << 18).unwrap(), Region::anonymous(1 << 18).unwrap());
    let (heap, two) = full_but_for_two(&region);
    assert!(is_quarantined(&alloc(&heap).unwrap_err()));
    killed.store(0, &bytes(&region));
    drop(heap);
    for region in [&region, &killed] {
        let heap = Heap::attach(any(region), &options()).unwrap();
        let mut again = [(); 2].map(|()| alloc(&heap).unwrap());
        again.sort_unstable();
        assert_eq!(again, two);
        // Blocks that the new process frees are quarantined.
        free(&heap, two[0]);
        assert!(is_quarantined(&alloc(&heap).unwrap_err()));
    }
}

/// Allocates a block that is longer than a chunk, and longer than half of the heap.
fn alloc_long<P: Pmem>(heap: &Heap<P>) -> Result<u64, TxError> {
    heap.transaction(|tx| tx.alloc_uninit::<u8>(150_000).map(Link::offset))
}

#[test]
fn reopening_ends_quarantine_of_long_block() {
    let (region, options) = (Region::anonymous(1 << 18).unwrap(), options().chunk_bytes(4096));
    let heap = Heap::format(any(&region), &options).unwrap();
    let block = alloc_long(&heap).unwrap();
    free(&heap, block);
    assert!(is_quarantined(&alloc_long(&heap).unwrap_err()));
    drop(heap);
    let heap = Heap::attach(any(&region), &options).unwrap();
    assert_eq!(alloc_long(&heap).unwrap(), block);
}

#[test]
fn rolled_back_long_block_is_not_quarantined() {
    let region = Region::anonymous(1 << 18).unwrap();
    let heap = Heap::format(any(&region), &options().chunk_bytes(4096)).unwrap();
    let rolled_back = heap.transaction(|tx| {
        tx.alloc_uninit::<u8>(150_000)?;
        Err::<(), _>(TxError::Nested)
    });
    assert!(matches!(rolled_back, Err(TxError::Nested)));
    alloc_long(&heap).unwrap();
}

/// Lines before an aligned block were never allocated, so they have no quarantine time. They are usable when the checkpoint LSN allows it.
#[test]
fn lines_before_aligned_block_are_usable_at_once() {
    let options = options().chunk_bytes(4096);
    let heap = Heap::format(Region::anonymous(1 << 17).unwrap(), &options).unwrap();
    let aligned = || heap.transaction(|tx| tx.alloc_aligned::<u64>(100, 2048).map(drop));
    let full: TxError = std::iter::repeat_with(aligned).find_map(Result::err).unwrap();
    assert!(matches!(full, TxError::Space(SpaceError::Full { .. })), "{full:?}");
    let word = || heap.transaction(|tx| tx.alloc(&7_u64).map(drop));
    let full: TxError = std::iter::repeat_with(word).find_map(Result::err).unwrap();
    assert!(!is_quarantined(&full), "{full:?}");
    assert_eq!(heap.check().free_bytes, 0);
}

#[test]
fn lines_before_aligned_block_of_unlogged_heap_are_usable_at_once() {
    let options = options().chunk_bytes(4096);
    let heap = UnloggedHeap::new(Heap::format(Region::anonymous(1 << 17).unwrap(), &options).unwrap());
    while heap.alloc(800, 2048).is_ok() {}
    let full = std::iter::repeat_with(|| heap.alloc(8, 64)).find_map(Result::err).unwrap();
    assert!(matches!(full, UnloggedError::Space(SpaceError::Full { quarantined: false, .. })), "{full:?}");
    assert_eq!(heap.heap().check().free_bytes, 0);
}

/// Frees a block of `lines` lines, corrupts its header, and repairs it. Returns the payloads inside the block that are then allocated.
fn allocated_after_repair(lines: u64) -> Vec<u64> {
    let mut heap = crate::discarding::heap();
    let made = heap.transaction(|tx| Ok::<_, TxError>(tx.alloc_uninit::<u64>(8 * lines - 1)?.offset()));
    let block = made.unwrap();
    drain_quarantine(&heap);
    heap.transact(|tx| tx.free(link_to::<u64>(block))).unwrap();
    heap.pool().pmem().store_u64(block - 8, 0x5555);
    heap.pool().pmem().persist(block - 8, 8).unwrap();
    let corruptions = heap.check().corruptions;
    assert_eq!(corruptions.len(), 1);
    assert!(heap.repair(&corruptions[0]).unwrap());
    assert_clean(&heap);
    assert!(heap.check().lost_bytes >= 64 * lines, "{:?}", heap.check());
    free_payloads(&heap).into_iter().filter(|at| (block..block + 64 * lines).contains(at)).collect()
}

/// A block that is lost by a repair is never allocated again, even if it had been freed.
#[test]
fn lost_block_is_not_allocated() {
    for (name, lines) in [("short", 20), ("longer than a chunk", 100)] {
        assert_eq!(allocated_after_repair(lines), vec![], "{name}");
    }
}
