//! The root directory: generations, corrupted slots, read-only pools, and roots that a log changes.

use pm_core::pool::format::{Header, ROOT_COUNT, ROOTS_START, RootSlot};
use pm_core::{
    PlaceError, Pmem, Pool, PoolError, PoolOptions, RootError, RootWrite, Uuid, bytes_of, from_bytes,
};
use pm_crashsim::SimPmem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const POOL_BYTES: u64 = 1 << 15;
const SLOT_BYTES: u64 = 64;

type SimPool = Pool<Arc<SimPmem>>;

fn options() -> PoolOptions {
    PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0)
}

fn pool() -> SimPool {
    Pool::format(Arc::new(SimPmem::new(POOL_BYTES)), &options()).unwrap()
}

fn logged_pool() -> SimPool {
    Pool::format(Arc::new(SimPmem::new(POOL_BYTES)), &options().with_logged_roots()).unwrap()
}

/// The target of a root with this number.
fn target(value: u64) -> (u64, u64, u64) {
    (8192 + 64 * value, 8, 0)
}

fn set(pool: &SimPool, name: &str, value: u64) -> Result<(), RootError> {
    pool.scope(|pm| {
        let place = pm.claim(target(value).0)?;
        // teeth(flush): no test here checks what a crash leaves of the value
        pm.set_root_in_flight(name, pm.flush(pm.write(place, &value))).map(drop)
    })
}

fn get(pool: &SimPool, name: &str) -> Result<Option<u64>, RootError> {
    Ok(pool.find_root(name)?.map(|root| (root.offset() - 8192) / 64))
}

fn slot(pool: &SimPool, index: u64) -> RootSlot {
    from_bytes(|bytes| pool.pmem().load(ROOTS_START + index * SLOT_BYTES, bytes))
}

fn store_slot(pool: &SimPool, index: u64, slot: &RootSlot) {
    pool.pmem().store(ROOTS_START + index * SLOT_BYTES, bytes_of(slot));
}

/// Flips a bit of the generation in a slot, so that its checksum is wrong.
fn corrupt(pool: &SimPool, index: u64) {
    let slot = slot(pool, index);
    store_slot(pool, index, &RootSlot { generation: slot.generation ^ 0x80, ..slot });
}

/// Stores the writes, as a transaction does.
fn change(pool: &SimPool, writes: &[RootWrite]) {
    writes.iter().for_each(|write| pool.pmem().store(write.offset(), write.bytes()));
}

#[test]
fn root_set_after_removal_has_higher_generation() {
    let pool = pool();
    set(&pool, "x", 0).unwrap();
    for value in 1..5 {
        set(&pool, "a", value).unwrap();
    }
    let removed = (0..ROOT_COUNT).find(|index| slot(&pool, *index).target_offset == target(4).0).unwrap();
    let old = slot(&pool, removed);
    pool.remove_root("a").unwrap();
    pool.remove_root("x").unwrap();
    set(&pool, "a", 5).unwrap();
    set(&pool, "b", 6).unwrap();
    // A crash or corruption has undone the removal: the slot has its old contents.
    let free = (0..ROOT_COUNT).find(|index| slot(&pool, *index).is_free()).unwrap();
    store_slot(&pool, free, &old);
    assert_eq!(get(&pool, "a"), Ok(Some(5)));
    let pool = Pool::attach(pool.into_pmem()).unwrap();
    assert_eq!(get(&pool, "a"), Ok(Some(5)));
    assert!(slot(&pool, free).is_free());
}

#[test]
fn corrupted_generation_of_free_slot_is_ignored() {
    let pool = pool();
    store_slot(&pool, 3, &RootSlot { generation: u64::MAX, ..RootSlot::FREE });
    for value in 0..5 {
        assert_eq!(set(&pool, "a", value), Ok(()));
    }
}

#[test]
fn lookups_agree_on_slots_with_same_generation() {
    let pool = pool();
    set(&pool, "a", 1).unwrap();
    let other = RootSlot { target_offset: target(2).0, ..slot(&pool, 0) };
    store_slot(&pool, 1, &other.sealed());
    let reader = Pool::attach_read_only(pool.into_pmem()).unwrap();
    assert_eq!(reader.roots(), [reader.find_root("a").unwrap().unwrap()]);
}

/// The pool has an unknown feature in `features_ro_compat`: "features without which a program may read but not write".
#[test]
fn read_only_pool_is_not_changed() {
    let pool = pool();
    set(&pool, "a", 1).unwrap();
    let pmem = pool.into_pmem();
    let mut header: Header = from_bytes(|bytes| pmem.load(0, bytes));
    header.features_ro_compat = 1 << 63;
    for at in [0, POOL_BYTES - 4096] {
        pmem.store(at, bytes_of(&header.sealed()));
    }
    assert!(matches!(Pool::attach(Arc::clone(&pmem)), Err(PoolError::UnknownFeatures { .. })));
    let pool = Pool::attach_read_only(Arc::clone(&pmem)).unwrap();
    let before = pmem.to_image().to_bytes();
    assert_eq!(set(&pool, "a", 2), Err(RootError::Place(PlaceError::ReadOnly)));
    assert_eq!(pool.remove_root("a"), Err(RootError::ReadOnly));
    assert_eq!(pool.discard_corrupted_roots(), Err(RootError::ReadOnly));
    assert!(matches!(pool.begin_root_change(), Err(RootError::ReadOnly)));
    pool.scope(|pm| {
        let link = pm.root::<u64>("a").unwrap().unwrap();
        assert_eq!(pm.store_u64(link, 7).map(drop), Err(PlaceError::ReadOnly));
    });
    assert!(before == pmem.to_image().to_bytes());
}

#[test]
fn removal_of_possibly_corrupted_root_is_refused() {
    let pool = pool();
    set(&pool, "a", 1).unwrap();
    set(&pool, "b", 2).unwrap();
    corrupt(&pool, 0);
    let corrupted = Err(RootError::Corrupted { slots: 1 });
    assert_eq!(pool.remove_root("a"), corrupted);
    assert_eq!(pool.root_write("a", None, &[]).map(drop), corrupted);
    assert_eq!(pool.remove_root("b"), Ok(()));
    assert_eq!(pool.corrupted_root_count(), 1);
}

#[test]
fn discarded_slots_are_free_again() {
    let pool = pool();
    for index in 0..63 {
        set(&pool, &format!("root {index}"), index).unwrap();
    }
    corrupt(&pool, 5);
    corrupt(&pool, 63);
    store_slot(&pool, 7, &RootSlot { crc: 0, state: 0, ..slot(&pool, 7) });
    assert_eq!(pool.discard_corrupted_roots(), Ok(2), "slots 5 and 7, not the free slot 63");
    assert_eq!(pool.discard_corrupted_roots(), Ok(0));
    assert_eq!((get(&pool, "root 5"), get(&pool, "root 6")), (Ok(None), Ok(Some(6))));
    assert_eq!((set(&pool, "new", 1), set(&pool, "newer", 2)), (Ok(()), Ok(())));
    assert_eq!(set(&pool, "one more", 3), Err(RootError::Full { root_count_max: 63 }));
}

#[test]
fn panic_before_change_keeps_directory_usable() {
    let pool = pool();
    let begin = AssertUnwindSafe(|| {
        let _change = pool.begin_root_change();
        panic!("no slot is hidden yet")
    });
    catch_unwind(begin).unwrap_err();
    assert_eq!(set(&pool, "a", 1), Ok(()));
}

#[test]
fn transaction_reuses_slots_that_it_frees() {
    let pool = pool();
    for index in 0..63 {
        set(&pool, &format!("root {index}"), index).unwrap();
    }
    let mut writes = Vec::new();
    for (name, target) in [("root 1", None), ("root 2", None), ("x", Some(target(1))), ("y", Some(target(2)))]
    {
        writes.extend(pool.root_write(name, target, &writes).unwrap());
    }
    assert_eq!(
        pool.root_write("z", Some(target(3)), &writes).map(drop),
        Err(RootError::Full { root_count_max: 63 })
    );
    change(&pool, &writes);
    let found = ["root 1", "root 2", "root 3", "x", "y"].map(|name| get(&pool, name).unwrap());
    assert_eq!((found, pool.roots().len()), ([None, None, Some(3), Some(1), Some(2)], 63));
}

#[test]
fn pool_does_not_change_logged_roots() {
    let pool = logged_pool();
    pool.logged_roots().restore_missing("log", target(9)).unwrap();
    change(&pool, &[pool.root_write("a", Some(target(1)), &[]).unwrap().unwrap()]);
    let old = slot(&pool, 1);
    change(&pool, &[pool.root_write("a", Some(target(2)), &[]).unwrap().unwrap()]);
    store_slot(&pool, 2, &old);
    let before = pool.pmem().to_image().to_bytes();
    let pool = Pool::attach(pool.into_pmem()).unwrap();
    assert!(pool.has_logged_roots());
    pool.scope(|pm| {
        // teeth: the value never becomes a root
        let value = pm.fence(pm.flush(pm.write(pm.claim(target(3).0).unwrap(), &0_u64))).unwrap();
        assert_eq!(pm.set_root("a", &value), Err(RootError::Logged));
    });
    assert_eq!(pool.remove_root("a"), Err(RootError::Logged));
    assert_eq!(pool.discard_corrupted_roots(), Err(RootError::Logged));
    assert!(before == pool.pmem().to_image().to_bytes(), "all slots are unchanged, also the older one");
    pool.logged_roots().free_replaced_slots().unwrap();
    assert_eq!(get(&pool, "a"), Ok(Some(2)));
    assert!(slot(&pool, 2).is_free());
}

#[test]
fn lost_root_replaces_only_corrupted_slot() {
    for corrupted in [1, 2, 64] {
        let pool = logged_pool();
        pool.logged_roots().restore_missing("log", target(9)).unwrap();
        for index in 1..63 {
            let write = pool.root_write(&format!("root {index}"), Some(target(index)), &[]);
            change(&pool, &[write.unwrap().unwrap()]);
        }
        (0..corrupted).for_each(|index| store_slot(&pool, index, &from_bytes(|bytes| bytes.fill(0xDE))));
        pool.logged_roots().restore_missing("log", target(9)).unwrap();
        assert_eq!(get(&pool, "log"), Ok(Some(9)));
        assert_eq!(pool.corrupted_root_count() as u64, corrupted - 1);
        assert_eq!(
            pool.roots().len() as u64,
            64 - corrupted.min(63),
            "the lost root, and the roots whose slots were not corrupted"
        );
    }
}
