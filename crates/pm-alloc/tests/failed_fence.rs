//! After a failed fence the state of a heap is unknown, and nothing more is stored through it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use core::cell::Cell;
use pm_alloc::{CommitError, DirectHeap, Heap, HeapOptions, TxError};
use pm_core::{Domain, FenceError, Link, Pmem, PoolOptions, Region, Uuid};

const REGION_BYTES: u64 = 1 << 16;

/// A region of which so many fences succeed. What they were for reaches the medium all the same.
struct Failing<'r> {
    region: &'r Region,
    left: Cell<u32>,
}

impl Pmem for Failing<'_> {
    fn len_bytes(&self) -> u64 {
        self.region.len_bytes()
    }
    fn domain(&self) -> Domain {
        Domain::Page
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
        let left = self.left.get().checked_sub(1).ok_or(FenceError::Poisoned)?;
        self.left.set(left);
        self.region.fence()
    }
}

type FailingHeap<'r> = Heap<Failing<'r>>;
type Block<'p> = Link<'p, [u64; 40]>;

fn options() -> HeapOptions {
    let pool = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0);
    HeapOptions::new().pool(pool).seed(7).lanes(2).lane_entries(32).chunk_bytes(4096).in_place_from_bytes(64)
}

fn bytes(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(REGION_BYTES).unwrap()];
    region.load(0, &mut bytes);
    bytes
}

/// A heap with two slots, the first of which links to a block of ones.
fn prepared() -> Region {
    let region = Region::anonymous(REGION_BYTES).unwrap();
    let heap = Heap::format(&region, &options()).unwrap();
    heap.transaction(|tx| {
        let slots = tx.alloc_zeroed::<Block<'_>>(2)?;
        let block = tx.alloc(&[1_u64; 40])?;
        tx.write(slots, &block)?;
        tx.set_root("slots", slots)
    })
    .map_err(|error: TxError| error)
    .unwrap();
    drop(heap);
    region
}

/// Links a block of these to the second slot, in one transaction.
fn publish(heap: &FailingHeap<'_>, value: u64) -> Result<(), TxError> {
    heap.transaction(|tx| {
        let slots = tx.root::<Block<'_>>("slots")?.unwrap();
        let block = tx.alloc(&[value; 40])?;
        tx.write(slots.element(1), &block)
    })
}

type Call = fn(&FailingHeap<'_>) -> Result<(), TxError>;

/// All calls that store something.
const CALLS: [Call; 7] = [
    |heap| publish(heap, 0xBB),
    |heap| heap.transaction(|tx| tx.alloc_zeroed::<u64>(40).map(drop)),
    |heap| heap.transaction(|tx| tx.alloc(&[0xCC_u8; 16]).map(drop)),
    |heap| {
        heap.transaction(|tx| {
            let block = tx.read(tx.root::<Block<'_>>("slots")?.unwrap())?;
            tx.write(block, &[0xDD; 40])
        })
    },
    |heap| {
        heap.view(|view| {
            let slots = view.root::<Block<'_>>("slots")?.unwrap();
            view.alloc_into(slots.element(1), &[0xEE_u64; 40]).map(drop)
        })
    },
    |heap| {
        heap.view(|view| {
            let slots = view.root::<Block<'_>>("slots")?.unwrap();
            view.free_from(slots)
        })
    },
    |heap| {
        heap.view(|view| {
            let slots = view.root::<u64>("words")?;
            slots.map_or(Ok(()), |words| view.store_word(words, 5))
        })
    },
];

#[test]
fn nothing_is_stored_after_a_failed_fence() {
    // The first fence is for the contents of the block, the second one commits.
    for fences in 0..2 {
        for (number, call) in CALLS.iter().enumerate() {
            let region = prepared();
            let heap = Heap::attach(Failing { region: &region, left: Cell::new(100) }, &options()).unwrap();
            heap.pool().pmem().left.set(fences);
            assert!(matches!(publish(&heap, 0xAA), Err(TxError::Commit(_))));
            let before = bytes(&region);
            if number + 1 < CALLS.len() {
                call(&heap).unwrap_err();
            } else {
                call(&heap).unwrap();
            }
            assert!(before == bytes(&region), "call {number} stored something");
            drop(heap);
            assert!(before == bytes(&region), "dropping the heap stored something");
            let heap = Heap::attach(&region, &options()).unwrap();
            let found = heap.view(|view| {
                let slots = view.root::<Block<'_>>("slots").unwrap().unwrap();
                let block = view.read(slots.element(1)).unwrap();
                (!block.is_null()).then(|| view.read(block).unwrap())
            });
            assert!(found.is_none_or(|found| found == [0xAA; 40]), "{found:x?}");
            assert!(heap.check().is_clean());
        }
    }
}

/// Calls that commit nothing, and fence what they learn of a chunk that this process has not looked at.
const LEARNING: [fn(&mut FailingHeap<'_>) -> bool; 4] = [
    |heap| heap.scan_ahead(1).is_err(),
    |heap| heap.transaction(|tx| tx.free(Link::<u8>::vouched(heap.blocks()[0]))).is_err_and(is_fence),
    |heap| {
        let block = heap.blocks()[0];
        let asked = heap.transaction(|tx| tx.capacity_bytes(Link::<u8>::vouched(block)));
        asked.is_err_and(is_fence)
    },
    |heap| {
        let header = heap.blocks()[0] - 8;
        heap.pool().pmem().region.store_u64(header, 1);
        let damage = heap.check().damages.remove(0);
        heap.repair(&damage).is_err_and(is_fence)
    },
];

fn is_fence(error: TxError) -> bool {
    matches!(error, TxError::Fence(_) | TxError::Commit(CommitError::Fence(_)))
}

#[test]
fn failed_fence_of_any_call_stops_the_heap() {
    for (number, call) in LEARNING.iter().enumerate() {
        let region = prepared();
        let mut heap = Heap::attach(Failing { region: &region, left: Cell::new(100) }, &options()).unwrap();
        heap.pool().pmem().left.set(0);
        assert!(call(&mut heap), "call {number} does not fence");
        heap.pool().pmem().left.set(100);
        let before = bytes(&region);
        let refused = publish(&heap, 0xAA);
        assert!(matches!(refused, Err(TxError::Commit(CommitError::Fence(_)))), "call {number}: {refused:?}");
        drop(heap);
        assert!(before == bytes(&region), "something was stored after call {number}");
    }
}

#[test]
fn a_direct_heap_stores_nothing_after_a_failed_fence() {
    let region = prepared();
    let heap = Heap::attach(Failing { region: &region, left: Cell::new(100) }, &options()).unwrap();
    let direct = DirectHeap::new(heap).durable(true);
    let block = direct.alloc(100, 64).unwrap();
    direct.heap().pool().pmem().left.set(0);
    direct.alloc(100, 64).unwrap_err();
    let before = bytes(&region);
    direct.heap().pool().pmem().left.set(100);
    direct.alloc(100, 64).unwrap_err();
    direct.free(block).unwrap_err();
    drop(direct);
    assert!(before == bytes(&region));
}

/// What transactions have committed is applied before blocks change without the log, and none follows.
#[test]
fn a_direct_heap_is_not_changed_by_replay() {
    let region = prepared();
    let heap = Heap::attach(&region, &options()).unwrap();
    let freed = heap.transaction(|tx| tx.alloc(&[1_u64; 30]).map(Link::offset));
    let freed = freed.map_err(|error: TxError| error).unwrap();
    heap.transaction(|tx| tx.free(Link::<u8>::vouched(freed))).map_err(|error: TxError| error).unwrap();
    let direct = DirectHeap::new(heap).durable(true);
    let blocks = [direct.alloc(232, 64).unwrap(), direct.alloc(232, 64).unwrap()];
    let refused = direct.heap().transaction(|tx| tx.alloc(&1_u64).map(drop));
    assert!(matches!(refused, Err(TxError::Commit(CommitError::Bypassed))), "{refused:?}");
    // As a kill leaves it.
    let killed = bytes(&region);
    drop(direct);
    region.store(0, &killed);
    let heap = Heap::attach(&region, &options()).unwrap();
    assert!(blocks.iter().all(|block| heap.blocks().contains(block)));
}
