//! More concurrent transactions than free extents: trims of extents, and waits for trims.

use super::prelude::*;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Barrier, Mutex};
use std::time::Duration;

const LANES: u32 = 8;
/// A region with room for one chunk.
const ONE_CHUNK_BYTES: u64 = 1 << 19;

fn heap<'r>(region: impl Into<AnyPmem<'r>>) -> Heap<AnyPmem<'r>> {
    let options = HeapOptions::new().lanes(LANES).lane_entries(60).chunk_bytes(1 << 18);
    Heap::format(any(region), &options).unwrap()
}

/// Runs `count` concurrent transactions. Each allocates a block, and none commits before all have allocated.
fn open(heap: &Heap<AnyPmem<'_>>, count: usize) -> Vec<Result<u64, TxError>> {
    let barrier = Barrier::new(count);
    let transaction = || {
        heap.transaction(|tx| {
            let block = tx.alloc(&[1_u64; 40]);
            barrier.wait();
            block.map(Link::offset)
        })
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(transaction)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The blocks of a heap. Asserts that no header is corrupted.
fn blocks(heap: &Heap<AnyPmem<'_>>) -> BTreeSet<u64> {
    assert_clean(heap);
    heap.blocks().into_iter().collect()
}

#[test]
fn more_open_transactions_than_free_extents_find_room() {
    for (region_bytes, more) in [(1 << 20, 1), (1 << 20, 13), (ONE_CHUNK_BYTES, 31)] {
        let region = Region::anonymous(region_bytes).unwrap();
        let heap = heap(&region);
        let count = heap.check().chunks.len() + more;
        let first = open(&heap, count).into_iter().collect::<Result<BTreeSet<u64>, _>>().unwrap();
        assert_eq!((first.len(), blocks(&heap)), (count, first.clone()));
        drop(heap);
        let heap = Heap::attach(any(&region), &HeapOptions::new()).unwrap();
        assert_eq!(blocks(&heap), first);
        let second = open(&heap, count).into_iter().collect::<Result<BTreeSet<u64>, _>>().unwrap();
        assert_eq!(blocks(&heap), &first | &second);
    }
}

/// While a transaction trims the last extent, no other transaction finds the heap full.
#[test]
fn short_transactions_in_one_chunk_always_find_room() {
    let region = Region::anonymous(ONE_CHUNK_BYTES).unwrap();
    let heap = heap(&region);
    assert_eq!(heap.check().chunks.len(), 1);
    std::thread::scope(|scope| {
        for thread in 0..u64::from(LANES) {
            let heap = &heap;
            scope.spawn(move || {
                for round in 0..500 {
                    let block = heap
                        .transaction(|tx| tx.alloc_uninit::<u8>(1 + 8 * (thread + round)).map(Link::offset));
                    let block = block.map_err(|error: TxError| error).unwrap();
                    heap.transact(|tx| tx.free(link_to::<u8>(block))).unwrap();
                }
            });
        }
    });
    assert_eq!(blocks(&heap), BTreeSet::new());
}

/// After the transactions that trimmed an extent were rolled back, it is one extent again.
#[test]
fn rolled_back_transactions_leave_one_extent() {
    let region = Region::anonymous(ONE_CHUNK_BYTES).unwrap();
    let heap = heap(&region);
    let lines = (1 << 18) / 64 - 1;
    let barrier = Barrier::new(8);
    let roll_back = || {
        heap.transaction(|tx| {
            let block = tx.alloc(&1_u64);
            barrier.wait();
            block.and(Err::<(), _>(TxError::RolledBack("on purpose".into())))
        })
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(roll_back)).collect();
        for thread in threads {
            let error = thread.join().unwrap().unwrap_err();
            assert!(matches!(error, TxError::RolledBack(_)), "{error}");
        }
    });
    assert_eq!(heap.stats().reservations, 0);
    let alloc = |lines: u64| {
        let block = heap.transaction(|tx| tx.alloc_uninit::<u8>(lines * 64 - 8).map(Link::offset));
        block.map_err(|error: TxError| error)
    };
    let all = alloc(lines).unwrap();
    assert_eq!(blocks(&heap), BTreeSet::from([all]));
    assert!(matches!(alloc(1), Err(TxError::Space(SpaceError::Full { held: false, .. }))));
}

type AtFence = Box<dyn FnOnce() + Send>;

/// Calls a function in the next fence.
struct AtNextFence(Mutex<Option<AtFence>>);

impl Hook<Region> for AtNextFence {
    fn fence(&self, region: &Region) -> Result<(), FenceError> {
        let at_fence = self.0.lock().unwrap().take();
        at_fence.into_iter().for_each(|at_fence| at_fence());
        region.fence()
    }
}

/// A heap of one chunk that calls a function in its next fence.
fn interrupted(at_fence: AtFence) -> Heap<AnyPmem<'static>> {
    let region = Region::anonymous(ONE_CHUNK_BYTES).unwrap();
    let hook = Arc::new(AtNextFence(Mutex::new(None)));
    let heap = heap(Hooked::new(region, Arc::clone(&hook)));
    *hook.0.lock().unwrap() = Some(at_fence);
    heap
}

fn alloc(heap: &Heap<AnyPmem<'static>>) -> Result<(), TxError> {
    heap.transaction(|tx| tx.alloc(&1_u64).map(drop))
}

#[test]
fn transaction_waits_for_rest_of_extent_being_trimmed() {
    let (is_trimming, trimming) = std::sync::mpsc::channel();
    let heap = interrupted(Box::new(move || {
        is_trimming.send(()).unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| alloc(&heap));
        trimming.recv().unwrap();
        alloc(&heap).unwrap();
        first.join().unwrap().unwrap();
    });
}

/// It is unknown which headers were stored before the panic, so the extent is not allocated before the heap is opened again.
#[test]
fn transaction_does_not_wait_for_extent_whose_trim_panicked() {
    let heap = interrupted(Box::new(|| panic!("in the fence")));
    assert!(catch_unwind(AssertUnwindSafe(|| alloc(&heap))).is_err());
    let refused = alloc(&heap);
    assert!(matches!(refused, Err(TxError::Space(SpaceError::Full { held: false, .. }))), "{refused:?}");
    assert_eq!(heap.stats().reservations, 0);
    assert_clean(&heap);
}
