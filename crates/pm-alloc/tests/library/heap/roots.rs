//! Roots of a heap: a full directory, corrupted slots, and recovery of slots by the log.

use super::prelude::*;
use pm_alloc::{HeapError, RecoverError, format};
use pm_core::{Pool, RootError};

const LEN: u64 = 1 << 17;
const SLOTS: core::ops::Range<u64> = 4096..8192;

type RegionHeap = Heap<AnyPmem<'static>>;

fn options() -> HeapOptions {
    crate::harness::options().lanes(2).lane_entries(64).chunk_bytes(4096).in_place_from_bytes(64)
}

fn region() -> &'static Region {
    Box::leak(Box::new(Region::anonymous(LEN).unwrap()))
}

fn format() -> (&'static Region, RegionHeap) {
    let region = region();
    (region, Heap::format(any(region), &options()).unwrap())
}

/// A copy of the medium, as a kill leaves it.
fn killed(heap: RegionHeap) -> &'static Region {
    let crashed = region();
    crashed.store(0, &bytes(heap.pool().pmem()));
    core::mem::forget(heap);
    crashed
}

/// Sets a root to a new word with this value, and returns its offset.
fn set(heap: &RegionHeap, name: &str, value: u64) -> Result<u64, TxError> {
    heap.transaction(|tx| {
        let link = tx.alloc(&value)?;
        tx.set_root(name, link)?;
        Ok(link.offset())
    })
}

fn remove(heap: &RegionHeap, name: &str) -> Result<(), TxError> {
    heap.transaction(|tx| tx.remove_root(name))
}

fn root(heap: &RegionHeap, name: &str) -> Result<Option<u64>, RootError> {
    Ok(heap.pool().find_root(name)?.map(|root| root.offset()))
}

/// The offset of the slot of a root.
fn slot_of(region: &Region, name: &str) -> u64 {
    let mut padded = [0; 24];
    padded[..name.len()].copy_from_slice(name.as_bytes());
    let holds_name = |slot: &u64| {
        let mut found = [0; 24];
        region.load(slot + 40, &mut found);
        found == padded
    };
    SLOTS.step_by(64).find(holds_name).unwrap()
}

fn corrupt(region: &Region, name: &str) {
    let at = slot_of(region, name) + 8;
    region.store_u64(at, region.load_u64(at) ^ 4);
}

/// A transaction of the second lane removes a root, and transactions of the first lane set it again. The power fails when the removal is applied and
/// not durable, because its lane has not committed since. Returns the medium, the offset of the root's last value, and that of the removal's entry.
fn removed_and_set_again() -> (&'static Region, u64, u64) {
    let (live, heap) = format();
    set(&heap, "x", 1).unwrap();
    for value in 0..10 {
        set(&heap, "a", value).unwrap();
    }
    let long = heap.transact(|tx| tx.alloc_zeroed::<u8>(256).map(Link::offset)).unwrap();
    drop(heap);
    let heap = Heap::attach(any(live), &options()).unwrap();
    remove(&heap, "x").unwrap();
    let at = slot_of(live, "a");
    let mut old = [0; 64];
    live.load(at, &mut old);
    // The long write acquires the first lane, so the other thread acquires the second lane.
    let removed = heap.transaction(|tx| {
        tx.write_slice(link_to(long), &[1_u8; 256])?;
        std::thread::scope(|scope| scope.spawn(|| remove(&heap, "a")).join().unwrap())
    });
    removed.unwrap();
    assert_eq!(root(&heap, "a"), Ok(None));
    set(&heap, "a", 100).unwrap();
    let last = set(&heap, "a", 101).unwrap();
    let lane = heap.layout().entry_offset(1, 0);
    let entries = (0..64).map(|index| lane + 64 * index);
    let entry = entries.filter(|entry| live.load_u64(*entry) != 0).last().unwrap();
    let crashed = killed(heap);
    crashed.store(at, &old);
    (crashed, last, entry)
}

#[test]
fn root_removed_and_set_again_survives() {
    let (region, last, _) = removed_and_set_again();
    for _ in 0..2 {
        assert_eq!(root(&Heap::attach(any(region), &options()).unwrap(), "a"), Ok(Some(last)));
    }
}

/// The later root was set by another transaction, whose entries are intact.
#[test]
fn discarded_removal_keeps_later_root() {
    let (region, last, entry) = removed_and_set_again();
    region.store(entry, &[0xA5; 64]);
    let heap = Heap::attach(any(region), &options().discard_corrupted_records(true)).unwrap();
    assert_eq!(root(&heap, "a"), Ok(Some(last)));
    remove(&heap, "a").unwrap();
    assert_eq!(root(&heap, "a"), Ok(None), "no slot has an older value");
}

#[test]
fn refused_open_changes_nothing() {
    let (region, _, entry) = removed_and_set_again();
    region.store(entry, &[0xA5; 64]);
    let before = bytes(region);
    let refused = Heap::attach(any(region), &options());
    assert!(matches!(refused, Err(HeapError::Recover(RecoverError::Corrupted { .. }))), "{refused:?}");
    let after = bytes(region);
    let changed: Vec<usize> = (0..before.len()).filter(|at| before[*at] != after[*at]).collect();
    assert!(changed.is_empty(), "changed: {changed:?}");
}

/// If the pool's own calls could change roots, replaying the log would revert their changes.
/// The message says what is wrong with the name.
#[test]
fn heaps_own_root_is_reserved() {
    let (_, heap) = format();
    for refused in [set(&heap, "pm-alloc.heap", 1).map(drop), remove(&heap, "pm-alloc.heap")] {
        let Err(TxError::Root(error @ RootError::Reserved { .. })) = refused else { panic!("{refused:?}") };
        assert!(error.to_string().contains("\"pm-alloc.heap\" cannot name a root: it is that of"), "{error}");
    }
    assert!(set(&heap, "pm-alloc.heap2", 1).is_ok());
}

#[test]
fn pool_of_heap_refuses_root_changes() {
    let (_, heap) = format();
    let at = set(&heap, "x", 1).unwrap();
    let crashed = killed(heap);
    for name in [Some(format::ROOT), None] {
        name.into_iter().for_each(|name| corrupt(crashed, name));
        let pool = Pool::attach(crashed).unwrap();
        assert_eq!(pool.remove_root("x"), Err(RootError::Logged));
        pool.scope(|pm| {
            let value = pm.flush(pm.write(pm.claim(pool.data().end - 64).unwrap(), &7_u64));
            assert_eq!(pm.set_root_in_flight("mine", value).map(drop), Err(RootError::Logged));
        });
        drop(pool);
        let heap = Heap::attach(any(crashed), &options()).unwrap();
        assert_eq!((root(&heap, "x"), root(&heap, "mine")), (Ok(Some(at)), Ok(None)));
    }
}

/// Open finds the heap by its header, and stores its root in the corrupted slot. That slot had no other root, so a root that is not found is known to
/// be absent.
#[test]
fn lost_heap_root_is_restored_in_full_directory() {
    for count in [0, 1, 61, 62] {
        let (region, heap) = format();
        for number in 0..count {
            set(&heap, &format!("root {number}"), number).unwrap();
        }
        drop(heap);
        corrupt(region, format::ROOT);
        for is_restored in [true, false] {
            let heap = Heap::attach(any(region), &options()).unwrap();
            assert_eq!(heap.open_report().is_root_restored, is_restored);
            assert_eq!(heap.pool().corrupted_root_count(), 0);
            assert_eq!(heap.pool().roots().len() as u64, count + 1);
            assert_eq!(root(&heap, "absent"), Ok(None));
        }
    }
}

/// A memory error may destroy a whole page.
#[test]
fn heap_opens_when_all_root_slots_are_lost() {
    for lost_bytes in [64, 512, 4096] {
        let (region, heap) = format();
        drop(heap);
        region.store(SLOTS.start, &vec![0xDE; lost_bytes]);
        let mut heap = Heap::attach(any(region), &options()).unwrap();
        assert!(heap.open_report().is_root_restored);
        assert_eq!(heap.discard_corrupted_roots().unwrap(), lost_bytes / 64 - 1);
        assert_eq!(heap.discard_corrupted_roots().unwrap(), 0);
        set(&heap, "a", 1).unwrap();
        drop(heap);
        assert!(root(&Heap::attach(any(region), &options()).unwrap(), "a").unwrap().is_some());
    }
}

/// The log entry that set the root is still in the log, and must not be replayed.
#[test]
fn discarded_root_stays_discarded() {
    let (region, heap) = format();
    set(&heap, "a", 1).unwrap();
    corrupt(region, "a");
    drop(heap);
    let mut heap = Heap::attach(any(region), &options()).unwrap();
    assert!(matches!(remove(&heap, "a"), Err(TxError::Root(RootError::Corrupted { slots: 1 }))));
    set(&heap, "b", 2).unwrap();
    corrupt(region, "b");
    assert_eq!(heap.discard_corrupted_roots().unwrap(), 2);
    let heap = Heap::attach(any(killed(heap)), &options()).unwrap();
    assert_eq!((root(&heap, "a"), root(&heap, "b")), (Ok(None), Ok(None)));
}

/// A crash tore the slot of "b", and the entries that would replay it are corrupted and discarded. The contents of the slot are unknown. So until
/// it is freed, a name that is not found may have been in it. Other roots are found.
#[test]
fn name_is_absent_once_its_torn_slot_is_freed() {
    let (_, heap) = format();
    let a = set(&heap, "a", 1).unwrap();
    let before = bytes(heap.pool().pmem());
    set(&heap, "b", 2).unwrap();
    let layout = *heap.layout();
    let left = killed(heap);
    let after = bytes(left);
    let lines = (0..2).flat_map(|lane| (0..64).map(move |entry| layout.entry_offset(lane, entry)));
    let range = |at: u64| usize::try_from(at).unwrap()..usize::try_from(at).unwrap() + 64;
    let entries: Vec<u64> = lines.filter(|&at| before.get(range(at)) != after.get(range(at))).collect();
    assert!(!entries.is_empty());
    corrupt(left, "b");
    entries.iter().for_each(|&at| left.store_u64(at + 8, !left.load_u64(at + 8)));
    let refused = Heap::attach(any(left), &options());
    assert!(matches!(refused, Err(HeapError::Recover(RecoverError::Corrupted { .. }))));
    let mut heap = Heap::attach(any(left), &options().discard_corrupted_records(true)).unwrap();
    assert_eq!(root(&heap, "a"), Ok(Some(a)));
    let corrupted = Err(RootError::Corrupted { slots: 1 });
    assert_eq!((root(&heap, "b"), root(&heap, "none")), (corrupted.clone(), corrupted));
    assert_eq!(heap.discard_corrupted_roots().unwrap(), 1);
    assert_eq!((root(&heap, "a"), root(&heap, "b"), root(&heap, "none")), (Ok(Some(a)), Ok(None), Ok(None)));
    set(&heap, "b", 2).unwrap();
}

#[test]
fn roots_are_replaced_in_full_directory() {
    let (_, heap) = format();
    let at = set(&heap, "0", 0).unwrap();
    for number in 1..62 {
        heap.transact(|tx| tx.set_root(&format!("{number}"), link_to::<u64>(at))).unwrap();
    }
    assert!(matches!(set(&heap, "new", 1), Err(TxError::Root(RootError::Full { root_count_max: 63 }))));
    heap.transact(|tx| {
        tx.remove_root("0")?;
        tx.remove_root("1")?;
        tx.set_root("new", link_to::<u64>(at))?;
        tx.set_root("newer", link_to::<u64>(at))?;
        tx.remove_root("0")
    })
    .unwrap();
    let heap = Heap::attach(any(killed(heap)), &options()).unwrap();
    let found = ["0", "1", "2", "new", "newer"].map(|name| root(&heap, name).unwrap().is_some());
    assert_eq!((found, heap.pool().roots().len()), ([false, false, true, true, true], 63));
    // A root that is removed and set again in one transaction needs no other slot.
    let again = heap.transact(|tx| {
        tx.remove_root("2")?;
        tx.set_root("2", link_to::<u64>(at))
    });
    again.unwrap();
    assert_eq!(root(&heap, "2"), Ok(Some(at)));
}

/// A crash of a transaction may tear a slot. The log contains the whole slot, and recovery replays it.
#[test]
fn recovery_leaves_no_torn_slot() {
    use pm_crashsim::{Crash, Explorer, Model, Run, SimPmem};
    use std::sync::Arc;
    let sim = Arc::new(SimPmem::new(LEN));
    let heap = Heap::format(any(Arc::clone(&sim)), &options()).unwrap();
    let set = |heap: &Heap<AnyPmem<'static>>| {
        heap.transact(|tx| {
            let link = tx.alloc(&7_u64)?;
            tx.set_root("a", link)
        })
        .unwrap();
    };
    set(&heap);
    drop(heap);
    let torn = std::sync::atomic::AtomicBool::new(false);
    let operation = |run: &Run<()>| set(&Heap::attach(any(Arc::clone(run.pmem())), &options()).unwrap());
    let check = |crash: &Crash<()>| {
        let corrupted = Pool::attach_read_only(crash.pmem()).unwrap().corrupted_root_count();
        torn.fetch_or(corrupted != 0, std::sync::atomic::Ordering::Relaxed);
        let heap =
            Heap::attach(any(Arc::clone(crash.pmem())), &options()).map_err(|error| error.to_string())?;
        match (heap.pool().corrupted_root_count(), heap.pool().find_root("a")) {
            (0, Ok(Some(_))) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    Explorer::new(Model::Px86Line).crashes(1).choices_per_point(16).check(&sim.to_image(), operation, check);
    assert!(torn.into_inner(), "some crash is between the stores to the slot");
}

/// The slot of the heap's own root is corrupted while the heap is open. It is freed together with another corrupted slot.
#[test]
fn heap_opens_after_its_own_root_was_discarded() {
    let (region, mut heap) = format();
    set(&heap, "a", 1).unwrap();
    corrupt(region, format::ROOT);
    corrupt(region, "a");
    assert_eq!(heap.discard_corrupted_roots().unwrap(), 2);
    assert_eq!(root(&heap, "a"), Ok(None));
    drop(heap);
    let heap = Heap::attach(any(region), &options()).unwrap();
    assert!(!heap.open_report().is_root_restored);
    assert_eq!(heap.pool().corrupted_root_count(), 0);
}
