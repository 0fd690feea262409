//! Heaps that grow while they are in use: what a crash has left, greatest lengths that are no use, and allocations that cannot succeed.

use super::prelude::*;
use std::fs;
use std::path::Path;

const MIB: u64 = 1 << 20;

fn options() -> HeapOptions {
    HeapOptions::new().chunk_bytes(16 << 10)
}

fn alloc(heap: &Heap, bytes: u64, align_bytes: u64) -> Result<(), TxError> {
    heap.transaction(|tx| tx.alloc_uninit_aligned::<u8>(bytes, align_bytes).map(drop))
}

/// Allocates blocks until there is no room. Returns their number.
fn fill(heap: &Heap) -> u64 {
    let refused = |_: &u64| alloc(heap, 8000, 64).is_err();
    (0..1 << 20).find(refused).unwrap()
}

fn file_bytes(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

/// A growth to 8 MiB was interrupted after it had made the file longer, and the next open has a lower limit.
#[test]
fn interrupted_growth_beyond_greatest_length() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("heap.pm");
    drop(Heap::create(&path, MIB, &options()).unwrap());
    fs::File::options().write(true).open(&path).unwrap().set_len(8 * MIB).unwrap();
    let heap = Heap::open(&path, &options().max_bytes(4 * MIB)).unwrap();
    assert!(fill(&heap) > 80);
    heap.close().unwrap();
    assert!(Heap::open(&path, &options()).unwrap().check().is_clean());
}

/// A block longer than a chunk cannot be aligned, however long the heap is.
#[test]
fn refused_alignment_does_not_grow_the_file() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("heap.pm");
    let heap = Heap::create(&path, MIB, &options().max_bytes(64 * MIB)).unwrap();
    let refused = alloc(&heap, 32 * MIB, 4096);
    assert!(matches!(refused, Err(TxError::Space(SpaceError::Alignment { .. }))), "{refused:?}");
    assert_eq!(file_bytes(&path), MIB);
}

/// A transaction that forbids growth fails in a full heap, and the next one grows it.
#[test]
fn transaction_that_forbids_growth_does_not_grow_the_file() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("heap.pm");
    let heap = Heap::create(&path, MIB, &options().max_bytes(4 * MIB)).unwrap();
    let alloc_in_place = || {
        heap.transaction(|tx| {
            tx.forbid_growth();
            tx.alloc_uninit::<u8>(8000).map(drop)
        })
    };
    let refused = (0..1 << 20).find_map(|_| alloc_in_place().err()).unwrap();
    assert!(matches!(refused, TxError::Space(SpaceError::Full { .. })), "{refused:?}");
    assert_eq!(file_bytes(&path), MIB);
    alloc(&heap, 8000, 64).unwrap();
    assert!(file_bytes(&path) > MIB);
    alloc_in_place().unwrap();
}

/// A greatest length with too many chunks is refused before the file has its name.
#[test]
fn refused_greatest_length_leaves_no_file() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("heap.pm");
    let options = HeapOptions::new().chunk_bytes(4096).max_bytes((1 << 44) + (1 << 30));
    let refused = Heap::create(&path, MIB, &options);
    assert!(matches!(refused, Err(pm_alloc::HeapError::Layout { .. })), "{refused:?}");
    assert!(!path.exists(), "a file is left behind");
}

/// The file has become longer than the region, as after a growth of which the last system calls have failed. The growth that finds it so has a reason for its
/// failure, or succeeds.
#[test]
fn longer_file_is_no_silent_end_of_growth() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("heap.pm");
    let heap = Heap::create(&path, MIB, &options().max_bytes(16 * MIB)).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(3 * MIB).unwrap();
    fill(&heap);
    let pool_bytes = heap.pmem().len_bytes();
    assert!(pool_bytes == 16 * MIB || heap.growth_error().is_some(), "full at {pool_bytes} without a reason");
}

/// The next open of a heap that grows takes what an interrupted growth has left.
#[test]
fn open_takes_the_longer_file() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("heap.pm");
    drop(Heap::create(&path, MIB, &options()).unwrap());
    fs::File::options().write(true).open(&path).unwrap().set_len(2 * MIB).unwrap();
    let heap = Heap::open(&path, &options()).unwrap();
    assert_eq!(heap.stats().chunks, heap.layout().chunks_before(MIB - 4096));
    drop(heap);
    let heap = Heap::open(&path, &options().max_bytes(2 * MIB)).unwrap();
    assert_eq!(heap.stats().chunks, heap.layout().chunks_before(2 * MIB - 4096));
}
