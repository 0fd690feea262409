//! A heap and the pool below it: what the pool does at opening, and what the pool's own calls do to a heap whose log is alive.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_alloc::{Heap, HeapError, HeapOptions, RecoverError, TxError};
use pm_core::{Link, Pmem, Pool, PoolOptions, Region, RootError, Uuid};
use std::sync::Arc;

const LEN: u64 = 1 << 17;

fn options() -> HeapOptions {
    let pool = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0);
    HeapOptions::new().pool(pool).seed(7).lanes(2).lane_entries(64).chunk_bytes(4096).in_place_from_bytes(64)
}

fn region() -> &'static Region {
    Box::leak(Box::new(Region::anonymous(LEN).unwrap()))
}

fn bytes(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(LEN).unwrap()];
    region.load(0, &mut bytes);
    bytes
}

/// Where the value of a root lies that is set by a transaction.
fn set(heap: &Heap<&Region>, name: &str, value: u64) -> u64 {
    let set = heap.transaction(|tx| {
        let link = tx.alloc(&value)?;
        tx.set_root(name, link)?;
        Ok::<_, TxError>(link.offset())
    });
    set.unwrap()
}

fn remove(heap: &Heap<&Region>, name: &str) {
    heap.transaction(|tx| tx.remove_root(name)).map_err(|error: TxError| error).unwrap();
}

fn slot_of(region: &Region, name: &str) -> Option<u64> {
    let name_at = |slot: u64| {
        let mut found = [0; 24];
        region.load(4096 + 64 * slot + 40, &mut found);
        found
    };
    let mut padded = [0; 24];
    padded[..name.len()].copy_from_slice(name.as_bytes());
    (0..64)
        .find(|&slot| region.load_u64(4096 + 64 * slot) != 0 && name_at(slot) == padded)
        .map(|slot| 4096 + 64 * slot)
}

/// A root is removed by a transaction of the second lane, and set again by one of the first. The power fails when the removal
/// is not in place on the medium: its lane has not committed since. Returns the region as it is then, where the root's last
/// value lies, and where the entry of the removal is.
fn removed_and_set_again() -> (&'static Region, u64, u64) {
    let heap = Heap::format(region(), &options()).unwrap();
    let live: &'static Region = heap.pool().pmem();
    set(&heap, "x", 1);
    for value in 0..10 {
        set(&heap, "a", value);
    }
    let long = heap.transaction(|tx| tx.alloc_zeroed::<u8>(256).map(Link::offset));
    let long = long.map_err(|error: TxError| error).unwrap();
    drop(heap);
    let heap = Heap::attach(live, &options()).unwrap();
    remove(&heap, "x");
    let at = slot_of(live, "a").unwrap();
    let mut old = [0; 64];
    live.load(at, &mut old);
    // The long write takes the first lane, so that the other thread gets the second one.
    let removed = heap.transaction(|tx| {
        tx.write_slice(Link::vouched(long), &[1_u8; 256])?;
        std::thread::scope(|scope| scope.spawn(|| remove(&heap, "a")).join().unwrap());
        Ok::<_, TxError>(())
    });
    removed.unwrap();
    assert_eq!(heap.pool().find_root("a"), Ok(None));
    set(&heap, "a", 100);
    let last = set(&heap, "a", 101);
    assert_ne!(slot_of(live, "a"), Some(at), "in another slot");
    let lane = heap.layout().entry_offset(1, 0);
    let entry =
        (0..64).map(|index| lane + 64 * index).filter(|&entry| live.load_u64(entry) != 0).last().unwrap();
    let crashed = region();
    crashed.store(0, &bytes(live));
    crashed.store(at, &old);
    core::mem::forget(heap);
    (crashed, last, entry)
}

fn root(heap: &Heap<&Region>) -> Option<u64> {
    heap.pool().find_root("a").unwrap().map(|root| root.offset())
}

/// It is replayed, in order.
#[test]
fn root_set_again_survives() {
    let (region, last, _) = removed_and_set_again();
    let heap = Heap::attach(region, &options()).unwrap();
    assert_eq!(root(&heap), Some(last));
    drop(heap);
    assert_eq!(root(&Heap::attach(region, &options()).unwrap()), Some(last));
}

/// "Opening fails and changes nothing."
#[test]
fn refused_opening_changes_no_root() {
    let (region, _, entry) = removed_and_set_again();
    region.store(entry, &[0xA5; 64]);
    let before = bytes(region);
    let refused = Heap::attach(region, &options());
    assert!(matches!(refused, Err(HeapError::Recover(RecoverError::Corrupted { .. }))), "{refused:?}");
    let after = bytes(region);
    let changed: Vec<usize> = (0..before.len()).filter(|&at| before[at] != after[at]).collect();
    assert!(changed.is_empty(), "changed: {changed:?}");
}

/// "A corrupted log line reverts nothing but its own transaction": the removal is lost with it, the later set is another's.
#[test]
fn discarded_removal_does_not_take_a_later_root_with_it() {
    let (region, last, entry) = removed_and_set_again();
    region.store(entry, &[0xA5; 64]);
    let heap = Heap::attach(region, &options().discard_corrupted_records(true)).unwrap();
    assert_eq!(root(&heap), Some(last), "the root that was acknowledged last");
}

/// The pool's own calls are public, and know nothing of the log.
#[test]
fn root_set_in_the_pool_of_a_heap_is_not_lost() {
    let heap = Heap::format(region(), &options()).unwrap();
    let live: &'static Region = heap.pool().pmem();
    set(&heap, "x", 1);
    remove(&heap, "x");
    let crashed = region();
    crashed.store(0, &bytes(live));
    core::mem::forget(heap);
    let pool = Pool::attach(crashed).unwrap();
    let acknowledged = pool.scope(|pm| {
        let value = pm.write(pm.claim(pool.data().end - 64)?, &7_u64);
        pm.set_root_in_flight("mine", pm.flush(value)).map(drop)
    });
    drop(pool);
    let heap = Heap::attach(crashed, &options()).unwrap();
    let found = heap.pool().find_root("mine").map(|root| root.is_some());
    assert!(acknowledged.is_err() || found == Ok(true), "{acknowledged:?}, and then {found:?}");
}

#[test]
fn root_removed_in_the_pool_of_a_heap_does_not_come_back() {
    let heap = Heap::format(region(), &options()).unwrap();
    let live: &'static Region = heap.pool().pmem();
    set(&heap, "x", 1);
    let crashed = region();
    crashed.store(0, &bytes(live));
    core::mem::forget(heap);
    let pool = Pool::attach(crashed).unwrap();
    let acknowledged: Result<(), RootError> = pool.remove_root("x");
    drop(pool);
    let heap = Heap::attach(crashed, &options()).unwrap();
    let found = heap.pool().find_root("x").map(|root| root.is_some());
    assert!(acknowledged.is_err() || found == Ok(false), "{acknowledged:?}, and then {found:?}");
}

/// As many roots as there can be, and the one that names the heap is hit by one fault. "The heap is found by its header, and named again."
#[test]
fn heap_with_all_roots_opens_when_its_own_is_lost() {
    let heap = Heap::format(region(), &options()).unwrap();
    let live: &'static Region = heap.pool().pmem();
    let block =
        heap.transaction(|tx| tx.alloc(&7_u64).map(Link::offset)).map_err(|error: TxError| error).unwrap();
    let mut count = 0;
    let set = |name: &str| heap.transaction(|tx| tx.set_root(name, Link::<u64>::vouched(block)));
    while set(&format!("root {count}")).map_err(|_: TxError| ()).is_ok() {
        count += 1;
    }
    drop(heap);
    let at = slot_of(live, "pm-alloc.heap").unwrap();
    live.store_u64(at + 8, live.load_u64(at + 8) ^ 4);
    let heap = Heap::attach(live, &options());
    assert!(
        heap.as_ref().is_ok_and(|heap| heap.opened().root_restored),
        "with {count} roots of a user: {:?}",
        heap.err()
    );
}

/// A slot that is damaged is never free again, and a name that is not there is an error for good.
#[test]
fn damaged_root_slot_can_be_given_up() {
    let heap = Heap::format(region(), &options()).unwrap();
    let live: &'static Region = heap.pool().pmem();
    set(&heap, "a", 1);
    drop(heap);
    let at = slot_of(live, "a").unwrap();
    live.store_u64(at + 8, live.load_u64(at + 8) ^ 4);
    let heap = Heap::attach(live, &options()).unwrap();
    // The program says that it does without it, and sets it anew.
    remove(&heap, "a");
    set(&heap, "a", 2);
    drop(heap);
    let heap = Heap::attach(live, &options()).unwrap();
    assert_eq!(heap.pool().find_root("another"), Ok(None));
}

/// "It is in use when `state` is 1 and the checksum is right. Anything else is damage: [...] no crash leaves it."
#[test]
fn crash_leaves_no_damaged_root_slot() {
    use pm_crashsim::{Crash, Explorer, Model, Run, SimPmem};
    let sim = Arc::new(SimPmem::new(LEN));
    let heap = Heap::format(Arc::clone(&sim), &options()).unwrap();
    let set = |heap: &Heap<Arc<SimPmem>>| {
        let set = heap.transaction(|tx| {
            let link = tx.alloc(&7_u64)?;
            tx.set_root("a", link)
        });
        set.map_err(|error: TxError| error).unwrap();
    };
    set(&heap);
    drop(heap);
    let found = Explorer::new(Model::Px86Line).crashes(1).choices_per_point(64).recoveries(2000).explore(
        &sim.to_image(),
        |run: &Run<()>| set(&Heap::attach(Arc::clone(run.pmem()), &options()).unwrap()),
        |crash: &Crash<()>| {
            let pool = Pool::attach(Arc::clone(crash.pmem())).unwrap();
            match (pool.damaged_root_count(), pool.find_root("a")) {
                (0, Ok(Some(_))) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        },
    );
    assert!(found.is_ok(), "{}", found.unwrap_err());
}

/// "When [...] there are 63 other roots": there are 62, the heap's own with them.
#[test]
fn root_is_renamed_in_a_full_directory() {
    let heap = Heap::format(region(), &options()).unwrap();
    let block =
        heap.transaction(|tx| tx.alloc(&7_u64).map(Link::offset)).map_err(|error: TxError| error).unwrap();
    let mut count = 0;
    while heap
        .transaction(|tx| tx.set_root(&format!("{count}"), Link::<u64>::vouched(block)))
        .map_err(|_: TxError| ())
        .is_ok()
    {
        count += 1;
    }
    assert_eq!(count, 62);
    let renamed = heap.transaction(|tx| {
        tx.remove_root("0")?;
        tx.set_root("new", Link::<u64>::vouched(block))
    });
    let renamed: Result<(), TxError> = renamed;
    assert!(renamed.is_ok(), "{renamed:?}");
}

/// The page of the root directory is lost, as by a memory error, which costs a page. Header, copy and log are whole.
#[test]
fn heap_opens_when_all_root_slots_are_lost() {
    for lost_bytes in [64, 512, 2048, 4096] {
        let heap = Heap::format(region(), &options()).unwrap();
        let live: &'static Region = heap.pool().pmem();
        drop(heap);
        live.store(4096, &vec![0xDE; lost_bytes]);
        let heap = Heap::attach(live, &options());
        let is_restored = heap.as_ref().is_ok_and(|heap| heap.opened().root_restored);
        assert!(is_restored, "{lost_bytes} bytes are lost: {:?}", heap.err());
    }
}
