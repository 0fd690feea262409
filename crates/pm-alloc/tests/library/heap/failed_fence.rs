//! After a failed fence the heap stores nothing more, because its state on the medium is unknown.

use super::prelude::*;
use core::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

const REGION_BYTES: u64 = 1 << 17;

/// Lets `left` fences succeed and fails the later ones. Counts the stores after the first failed fence. Flushed lines reach the medium in any case.
#[derive(Debug)]
struct Failing {
    left: AtomicU32,
    has_failed: AtomicBool,
    stored_after: AtomicU32,
}

impl Failing {
    fn let_succeed(&self, fences: u32) {
        self.left.store(fences, Relaxed);
    }
    fn stored_after(&self) -> u32 {
        self.stored_after.load(Relaxed)
    }
}

impl<'r> Hook<&'r Region> for Failing {
    fn before_store(&self, _: Range<u64>) {
        self.stored_after.fetch_add(u32::from(self.has_failed.load(Relaxed)), Relaxed);
    }
    fn fence(&self, region: &&'r Region) -> Result<(), FenceError> {
        let left = self.left.load(Relaxed).checked_sub(1);
        self.has_failed.fetch_or(left.is_none(), Relaxed);
        self.left.store(left.ok_or(FenceError::Poisoned)?, Relaxed);
        region.fence()
    }
}

/// A region whose fences fail as the hook says.
fn failing(region: &Region) -> (AnyPmem<'_>, Arc<Failing>) {
    let hook = Failing { left: 1000.into(), has_failed: false.into(), stored_after: 0.into() };
    let hook = Arc::new(hook);
    (any(Hooked::new(region, Arc::clone(&hook))), hook)
}

type FailingHeap<'r> = Heap<AnyPmem<'r>>;
type Block<'p> = Link<'p, [u64; 40]>;

fn options() -> HeapOptions {
    crate::harness::options().lanes(2).lane_entries(32).chunk_bytes(4096).in_place_from_bytes(64)
}

/// A heap with two slots, the first of which links to a block of ones.
fn prepared() -> Region {
    let region = Region::anonymous(REGION_BYTES).unwrap();
    let heap = Heap::format(any(&region), &options()).unwrap();
    heap.transact(|tx| {
        let slots = tx.alloc_zeroed::<Block<'_>>(2)?;
        let block = tx.alloc(&[1_u64; 40])?;
        tx.write(slots, &block)?;
        tx.set_root("slots", slots)
    })
    .unwrap();
    drop(heap);
    region
}

/// Links the second slot to a block of this value, in one transaction.
fn publish(heap: &FailingHeap<'_>, value: u64) -> Result<(), TxError> {
    heap.transaction(|tx| {
        let slots = tx.root::<Block<'_>>("slots")?.unwrap();
        let block = tx.alloc(&[value; 40])?;
        tx.write(slots.element(1), &block)
    })
}

type Call = fn(&FailingHeap<'_>) -> Result<(), TxError>;

/// Every call that stores.
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
            view.alloc_and_link(slots.element(1), &[0xEE_u64; 40]).map(drop)
        })
    },
    |heap| {
        heap.view(|view| {
            let slots = view.root::<Block<'_>>("slots")?.unwrap();
            view.unlink_and_free(slots)
        })
    },
    |heap| {
        heap.view(|view| {
            let slots = view.root::<Block<'_>>("slots")?.unwrap();
            view.store_u64(link_to(slots.offset()), 5)
        })
    },
];

#[test]
fn nothing_is_stored_after_failed_fence() {
    // The first fence makes the contents of the block durable, the second fence commits.
    for fences in 0..2 {
        for (number, call) in CALLS.iter().enumerate() {
            let region = prepared();
            let (pmem, hook) = failing(&region);
            let heap = Heap::attach(pmem, &options()).unwrap();
            hook.let_succeed(fences);
            assert!(matches!(publish(&heap, 0xAA), Err(TxError::Commit(_))));
            let before = bytes(&region);
            call(&heap).unwrap_err();
            assert!(before == bytes(&region), "call {number} stored something");
            drop(heap);
            assert!(before == bytes(&region), "dropping the heap stored something");
            let heap = Heap::attach(any(&region), &options()).unwrap();
            let found = heap.view(|view| {
                let slots = view.root::<Block<'_>>("slots").unwrap().unwrap();
                let block = view.read(slots.element(1)).unwrap();
                (!block.is_null()).then(|| view.read(block).unwrap())
            });
            assert!(found.is_none_or(|found| found == [0xAA; 40]), "{found:x?}");
            assert_clean(&heap);
        }
    }
}

#[test]
fn failed_fence_of_a_structure_poisons_the_heap() {
    let region = prepared();
    let (pmem, hook) = failing(&region);
    let heap = Heap::attach(pmem, &options()).unwrap();
    let block = heap.transact(|tx| tx.alloc_uninit::<u64>(8).map(Link::offset)).unwrap();
    let pmem: pm_alloc::PoisoningPmem<'_, _> = heap.pmem();
    pmem.store_u64(block, 7);
    pmem.persist(block, 8).unwrap();
    publish(&heap, 0xAA).unwrap();
    hook.let_succeed(0);
    let copy = pmem;
    copy.store_u64(block + 8, 8);
    copy.persist(block + 8, 8).unwrap_err();
    hook.let_succeed(1000);
    let before = bytes(&region);
    let error = publish(&heap, 0xBB).unwrap_err();
    assert!(matches!(error, TxError::Commit(CommitError::Fence(_))), "{error}");
    assert!(before == bytes(&region));
    let mut words = [0; 2];
    pmem.load_words(block, &mut words);
    assert_eq!(words, [7, 8], "reading works");
}

/// The second checkpoint has nothing to do, because nothing was committed since the first one. It still fails.
#[test]
fn checkpoint_after_failed_fence_fails() {
    let region = prepared();
    let (pmem, hook) = failing(&region);
    let heap = Heap::attach(pmem, &options()).unwrap();
    heap.checkpoint().unwrap();
    hook.let_succeed(0);
    let word = heap.layout().first_payload(0);
    let stored = heap.view(|view| view.store_u64(link_to(word), 0));
    assert!(matches!(stored, Err(TxError::Commit(CommitError::Fence(_)))), "{stored:?}");
    hook.let_succeed(100);
    assert!(matches!(heap.checkpoint(), Err(CommitError::Fence(_))));
}

#[test]
fn unlogged_heap_stores_nothing_after_failed_fence() {
    let region = prepared();
    let (pmem, hook) = failing(&region);
    let heap = Heap::attach(pmem, &options()).unwrap();
    let unlogged = UnloggedHeap::new(heap).durable(true);
    let block = unlogged.alloc(100, 64).unwrap();
    hook.let_succeed(0);
    unlogged.alloc(100, 64).unwrap_err();
    let before = bytes(&region);
    hook.let_succeed(100);
    unlogged.alloc(100, 64).unwrap_err();
    unlogged.free(block).unwrap_err();
    drop(unlogged);
    assert!(before == bytes(&region));
}

/// The fence that fails is the first after the open. It makes the headers of the block's chunk durable.
#[test]
fn unlogged_free_after_open_reports_failed_fence() {
    for durable in [false, true] {
        let region = prepared();
        let (closed, _, [_, short]) = unlogged(&region);
        drop(closed);
        let (pmem, hook) = failing(&region);
        let heap = UnloggedHeap::new(Heap::attach(pmem, &options()).unwrap()).durable(durable);
        hook.let_succeed(0);
        let failed = heap.free(short).unwrap_err();
        assert!(matches!(failed, UnloggedError::Fence(_)), "{failed:?}");
        assert_eq!(hook.stored_after(), 0);
    }
}

type Unlogged<'r> = UnloggedHeap<AnyPmem<'r>>;

/// An unlogged heap with a block of 12 KiB and a short one.
fn unlogged(region: &Region) -> (Unlogged<'_>, Arc<Failing>, [u64; 2]) {
    let (pmem, hook) = failing(region);
    let heap = Heap::attach(pmem, &options()).unwrap();
    let unlogged = UnloggedHeap::new(heap).durable(true);
    let short = unlogged.alloc(1000, 64).unwrap();
    let long = unlogged.alloc(12 << 10, 64).unwrap();
    (unlogged, hook, [long, short])
}

/// No call of an unlogged heap stores anything after its first failed fence, whichever fence fails.
#[test]
fn unlogged_calls_stop_at_first_failed_fence() {
    type Call = fn(&Unlogged<'_>, [u64; 2]) -> Result<(), UnloggedError>;
    let calls: [(&str, Call); 7] = [
        ("a block", |unlogged, _| unlogged.alloc(100, 64).map(drop)),
        ("a long block", |unlogged, _| unlogged.alloc(8 << 10, 64).map(drop)),
        ("freeing", |unlogged, [_, short]| unlogged.free(short)),
        ("growing", |unlogged, [_, short]| unlogged.resize(short, 2000..=2000, |_, _| true).map(drop)),
        ("shrinking", |unlogged, [_, short]| unlogged.resize(short, 100..=100, |_, _| true).map(drop)),
        ("growing over chunks", |unlogged, [long, _]| {
            unlogged.resize(long, 20 << 10..=20 << 10, |_, _| true).map(drop)
        }),
        ("shrinking over chunks", |unlogged, [long, _]| {
            unlogged.resize(long, 5 << 10..=5 << 10, |_, _| true).map(drop)
        }),
    ];
    for (name, call) in calls {
        let mut fences = 0;
        loop {
            let region = prepared();
            let (unlogged, hook, blocks) = unlogged(&region);
            hook.let_succeed(fences);
            let result = call(&unlogged, blocks);
            assert_eq!(hook.stored_after(), 0, "{name}, after {fences} fences");
            match result {
                Ok(()) => break,
                Err(
                    UnloggedError::Commit(_)
                    | UnloggedError::Fence(_)
                    | UnloggedError::Space(SpaceError::Fence(_)),
                ) => {}
                Err(error) => panic!("{name}: {error}"),
            }
            hook.let_succeed(100);
            unlogged.alloc(100, 64).unwrap_err();
            assert_eq!(hook.stored_after(), 0, "{name}, after {fences} fences, next call");
            fences += 1;
        }
        assert!(fences > 0, "{name} has no fence");
    }
}

/// After a failed fence of a chunk scan, another fence would not make the headers durable, because they would have to be flushed again.
#[test]
fn failed_fence_of_chunk_scan_poisons_heap() {
    type ScanCall = fn(&mut FailingHeap<'_>, u64) -> bool;
    let calls: [(&str, ScanCall); 5] = [
        ("scan_ahead", |heap, _| heap.scan_ahead(usize::MAX).is_ok()),
        ("free", |heap, block| heap.transact(|tx| tx.free(link_to::<u8>(block))).is_ok()),
        ("capacity_bytes", |heap, block| {
            let capacity = heap.transact(|tx| tx.capacity_bytes(link_to::<u8>(block)));
            capacity.is_ok()
        }),
        ("alloc", |heap, _| publish(heap, 1).is_ok()),
        ("repair", |heap, _| {
            let corruption = heap.check().corruptions.remove(0);
            heap.repair(&corruption).is_ok()
        }),
    ];
    for (name, call) in calls {
        let region = prepared();
        let block = {
            let heap = Heap::attach(any(&region), &options()).unwrap();
            let block = heap.transact(|tx| tx.alloc(&[1_u64; 40]).map(Link::offset));
            block.unwrap()
        };
        if name == "repair" {
            region.store_u64(block - 8, 1);
        }
        let (pmem, hook) = failing(&region);
        let mut heap = Heap::attach(pmem, &options()).unwrap();
        hook.let_succeed(0);
        assert!(!call(&mut heap, block), "{name} has no fence");
        hook.let_succeed(100);
        let before = bytes(&region);
        assert!(!call(&mut heap, block), "{name} fails again after its fence has failed");
        let refused = publish(&heap, 0xAA);
        assert!(matches!(refused, Err(TxError::Commit(CommitError::Fence(_)))), "{name}: {refused:?}");
        assert!(before == bytes(&region), "{name}");
        drop(heap);
        assert!(before == bytes(&region), "{name}");
    }
}

/// An unlogged heap first makes the changes of all transactions durable in place, and allows no further transaction.
#[test]
fn replay_does_not_change_unlogged_heap() {
    let region = prepared();
    let heap = Heap::attach(any(&region), &options()).unwrap();
    let freed = heap.transact(|tx| tx.alloc(&[1_u64; 30]).map(Link::offset)).unwrap();
    heap.transact(|tx| tx.free(link_to::<u8>(freed))).unwrap();
    let unlogged = UnloggedHeap::new(heap).durable(true);
    let blocks = [unlogged.alloc(232, 64).unwrap(), unlogged.alloc(232, 64).unwrap()];
    let refused = unlogged.heap().transaction(|tx| tx.alloc(&1_u64).map(drop));
    assert!(matches!(refused, Err(TxError::Commit(CommitError::Bypassed))), "{refused:?}");
    // The region as a kill would leave it.
    let killed = bytes(&region);
    drop(unlogged);
    region.store(0, &killed);
    let heap = Heap::attach(any(&region), &options()).unwrap();
    assert!(blocks.iter().all(|block| heap.blocks().contains(block)));
}

/// Each fence of a trim fails in turn. The heap stores nothing more, and the next open finds a sound chain.
#[test]
fn failed_fence_of_trim_reallocates_nothing() {
    let options = || options().chunk_bytes(1 << 15);
    for fences in 0..2 {
        let region = Region::anonymous(9 << 13).unwrap();
        drop(Heap::format(any(&region), &options()).unwrap());
        let (pmem, hook) = failing(&region);
        let heap = Heap::attach(pmem, &options()).unwrap();
        heap.scan_ahead(1).unwrap();
        hook.let_succeed(fences);
        for _ in 0..2 {
            let refused = heap.transaction(|tx| tx.alloc(&1_u64).map(drop));
            assert!(matches!(refused, Err(TxError::Commit(CommitError::Fence(_)))), "{refused:?}");
            hook.let_succeed(100);
        }
        assert_eq!((hook.stored_after(), heap.stats().reservations), (0, 0), "after {fences} fences");
        drop(heap);
        let heap = Heap::attach(any(&region), &options()).unwrap();
        let report = assert_clean(&heap);
        assert_eq!((report.chunks.len(), report.free_blocks), (1, u64::from(fences) + 1));
        heap.transact(|tx| tx.alloc_uninit::<u8>(511 * 64 - 8).map(drop)).unwrap();
    }
}
