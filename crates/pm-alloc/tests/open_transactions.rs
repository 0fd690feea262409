//! Transactions that are open at the same time, in a heap with fewer free extents than there are of them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod links;

use links::link_to;
use pm_alloc::{Heap, HeapOptions, SpaceError, TxError};
use pm_core::{Domain, FenceError, Link, Pmem, Region};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Barrier, Mutex};
use std::time::Duration;

const LANES: u32 = 8;
/// A region with room for one chunk.
const ONE_CHUNK_BYTES: u64 = 1 << 19;

fn heap<P: Pmem>(region: P) -> Heap<P> {
    let options = HeapOptions::new().lanes(LANES).lane_entries(60).chunk_bytes(1 << 18);
    Heap::format(region, &options).unwrap()
}

/// Opens so many transactions, of which each allocates a block, and commits none before all have theirs.
fn open(heap: &Heap<&Region>, count: usize) -> Vec<Result<u64, TxError>> {
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

/// The blocks of a heap, in which no header is corrupted.
fn blocks(heap: &Heap<&Region>) -> BTreeSet<u64> {
    assert!(heap.check().is_clean());
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
        let heap = Heap::attach(&region, &HeapOptions::new()).unwrap();
        assert_eq!(blocks(&heap), first);
        let second = open(&heap, count).into_iter().collect::<Result<BTreeSet<u64>, _>>().unwrap();
        assert_eq!(blocks(&heap), &first | &second);
    }
}

/// As the last extent becomes two free blocks, no other transaction finds the heap full.
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
                    heap.transaction(|tx| tx.free(link_to::<u8>(block)))
                        .map_err(|error: TxError| error)
                        .unwrap();
                }
            });
        }
    });
    assert_eq!(blocks(&heap), BTreeSet::new());
}

/// What transactions that did not commit have cut off is one extent again.
#[test]
fn all_free_space_can_be_allocated_after_open_transactions_failed() {
    let region = Region::anonymous(ONE_CHUNK_BYTES).unwrap();
    let heap = heap(&region);
    let lines = (1 << 18) / 64 - 1;
    let barrier = Barrier::new(8);
    let abandon = || {
        heap.transaction(|tx| {
            let block = tx.alloc(&1_u64);
            barrier.wait();
            block.and(Err::<(), _>(TxError::Abandoned("on purpose".into())))
        })
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(abandon)).collect();
        for thread in threads {
            let error = thread.join().unwrap().unwrap_err();
            assert!(matches!(error, TxError::Abandoned(_)), "{error}");
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

/// A region that does something else in the next fence.
struct Interrupted {
    region: Region,
    at_fence: Mutex<Option<AtFence>>,
}

impl Pmem for Interrupted {
    fn len_bytes(&self) -> u64 {
        self.region.len_bytes()
    }
    fn domain(&self) -> Domain {
        self.region.domain()
    }
    fn load(&self, offset: u64, out: &mut [u8]) {
        self.region.load(offset, out);
    }
    fn store(&self, offset: u64, bytes: &[u8]) {
        self.region.store(offset, bytes);
    }
    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        self.region.store_nt(offset, bytes);
    }
    fn load_u64(&self, offset: u64) -> u64 {
        self.region.load_u64(offset)
    }
    fn store_u64(&self, offset: u64, value: u64) {
        self.region.store_u64(offset, value);
    }
    fn store_u128(&self, offset: u64, value: u128) {
        self.region.store_u128(offset, value);
    }
    fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.region.compare_exchange_u64(offset, current, new)
    }
    fn flush(&self, offset: u64, len: u64) {
        self.region.flush(offset, len);
    }
    fn fence(&self) -> Result<(), FenceError> {
        let at_fence = self.at_fence.lock().unwrap().take();
        at_fence.into_iter().for_each(|at_fence| at_fence());
        self.region.fence()
    }
}

/// A heap of one chunk, whose next fence is another one.
fn interrupted(at_fence: AtFence) -> Heap<Interrupted> {
    let region = Region::anonymous(ONE_CHUNK_BYTES).unwrap();
    let heap = heap(Interrupted { region, at_fence: Mutex::new(None) });
    *heap.pool().pmem().at_fence.lock().unwrap() = Some(at_fence);
    heap
}

fn alloc(heap: &Heap<Interrupted>) -> Result<(), TxError> {
    heap.transaction(|tx| tx.alloc(&1_u64).map(drop))
}

#[test]
fn transaction_waits_for_the_rest_of_an_extent_that_is_being_cut() {
    let (is_cutting, cutting) = std::sync::mpsc::channel();
    let heap = interrupted(Box::new(move || {
        is_cutting.send(()).unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| alloc(&heap));
        cutting.recv().unwrap();
        alloc(&heap).unwrap();
        first.join().unwrap().unwrap();
    });
}

/// What the panic left of the headers is not known: the extent is not handed out before the heap is opened again.
#[test]
fn transaction_does_not_wait_for_an_extent_whose_cut_panicked() {
    let heap = interrupted(Box::new(|| panic!("in the fence")));
    assert!(catch_unwind(AssertUnwindSafe(|| alloc(&heap))).is_err());
    let refused = alloc(&heap);
    assert!(matches!(refused, Err(TxError::Space(SpaceError::Full { held: false, .. }))), "{refused:?}");
    assert_eq!(heap.stats().reservations, 0);
    assert!(heap.check().is_clean());
}
