//! Removals of ranges.

use pm_btree::{Store, StoreOptions, WriteError};
use pm_core::{Counting, Pmem, Region};
use pm_testkit::{AnyPmem, any};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

type AnyStore = Store<AnyPmem<'static>>;

fn create(options: &StoreOptions) -> AnyStore {
    Store::format(any(Region::anonymous(16 << 20).unwrap()), options).unwrap()
}

/// Whether a key lies within the bounds, also if they are reversed.
fn is_inside(key: u64, (from, to): (Bound<u64>, Bound<u64>)) -> bool {
    let above = match from {
        Bound::Included(from) => key >= from,
        Bound::Excluded(from) => key > from,
        Bound::Unbounded => true,
    };
    let below = match to {
        Bound::Included(to) => key <= to,
        Bound::Excluded(to) => key < to,
        Bound::Unbounded => true,
    };
    above && below
}

/// All kinds of bounds, at keys and beside them, reversed and equal, on tables that are empty or not, in batches of a few keys.
#[test]
fn bounds_are_those_of_a_range() {
    let bounds = |key: u64| [Bound::Included(key), Bound::Excluded(key)];
    let ends = || [0, 10, 15, 20, 60, 99, u64::MAX].into_iter().flat_map(bounds).chain([Bound::Unbounded]);
    let store = create(&StoreOptions::new().node_slots(4).removal_batch(3));
    let table = store.table::<u64, u64>("t").unwrap();
    let names = store.table::<&str, u64>("names").unwrap();
    for from in ends() {
        for to in ends() {
            let is_ours = |key: &u64| is_inside(*key, (from, to));
            for keys in [Vec::new(), Vec::from_iter((0..100).step_by(10)), vec![0, u64::MAX]] {
                let name = |key: u64| format!("a long common prefix {key:020}");
                for key in &keys {
                    table.insert(*key, 1).unwrap();
                    names.insert(&name(*key), 1).unwrap();
                }
                let expected = keys.iter().copied().filter(is_ours).count() as u64;
                assert_eq!(table.remove_range((from, to)).unwrap(), expected, "{from:?} {to:?}");
                let [from, to] = [from, to].map(|bound| bound.map(name));
                let of_names = (from.as_ref().map(String::as_str), to.as_ref().map(String::as_str));
                assert_eq!(names.remove_range(of_names).unwrap(), expected, "{from:?} {to:?}");
                let left: Vec<u64> = table.range(..).map(|entry| entry.unwrap().0.value()).collect();
                assert!(left.iter().eq(keys.iter().filter(|key| !is_ours(key))), "{from:?} {to:?}");
                assert_eq!(names.len().unwrap(), left.len() as u64);
                assert_eq!(
                    table.remove_range(..).unwrap() + names.remove_range(..).unwrap(),
                    2 * left.len() as u64
                );
            }
        }
    }
    assert!(store.check().unwrap().is_sound());
}

/// Random ranges in leaves of all fillings, with groups and without; the store is opened again in between.
fn check_model(options: &StoreOptions, seed: u64) {
    let pmem = any(Region::anonymous(16 << 20).unwrap());
    let mut store = Store::format(pmem.clone(), options).unwrap();
    let mut map: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..60 {
        let table = store.table::<u64, &[u8]>("t").unwrap();
        for number in 0..random.usize(..400) {
            let (key, value) = (random.u64(..1_000), vec![number as u8; random.usize(..40)]);
            match number % 3 {
                0 => table.insert_grouped(key, &value).unwrap(),
                _ => drop(table.insert(key, &value).unwrap()),
            }
            map.insert(key, value);
        }
        let from = random.u64(..1_000);
        let range = from..from + random.u64(..500);
        let removed = table.remove_range(range.clone()).unwrap();
        assert_eq!(removed, map.extract_if(range, |_, _| true).count() as u64);
        assert_eq!(table.len().unwrap(), map.len() as u64);
        let found: Vec<_> = table.range(..).map(|entry| entry.unwrap()).collect();
        assert!(found.iter().map(|(key, value)| (key.value(), value.value().to_vec())).eq(map.clone()));
        drop(table);
        if round % 20 == 19 {
            store.close().unwrap();
            store = Store::attach(pmem.clone(), options).unwrap();
            assert!(store.check().unwrap().is_sound());
            assert_eq!(store.heap().blocks(), store.blocks());
        }
    }
}

#[test]
fn ranges_are_those_of_a_map() {
    check_model(&StoreOptions::new().node_slots(4).removal_batch(7), 1);
    check_model(&StoreOptions::new(), 2);
    check_model(&StoreOptions::new().node_slots(6).group_commits(16).removal_batch(50), 3);
    check_model(&StoreOptions::new().verify_reads(true), 4);
}

/// Changes that wait in the group are of the range like others: inserted ones are removed, removed ones are not counted.
#[test]
fn waiting_changes_are_removed() {
    let store = create(&StoreOptions::new().group_commits(64));
    let table = store.table::<u64, u64>("t").unwrap();
    (0..10).for_each(|key| assert!(table.insert(key, key).unwrap()));
    table.insert_grouped(20, 20).unwrap();
    table.remove_grouped(3).unwrap();
    table.insert_grouped(40, 40).unwrap();
    assert_eq!(store.grouped_len(), 3);
    assert_eq!(table.remove_range(2..=20).unwrap(), 8);
    assert_eq!(store.grouped_len(), 0);
    let left: Vec<u64> = table.range(..).map(|entry| entry.unwrap().0.value()).collect();
    assert_eq!(left, [0, 1, 40]);
}

/// A range of many batches costs two fences for each, and two for the leaves that it empties, and at most a line for each key.
#[test]
fn batches_share_fences() {
    let pmem = any(Counting::new(Region::anonymous(64 << 20).unwrap()));
    let store = Store::format(pmem, &StoreOptions::new()).unwrap();
    let table = store.table::<u64, u64>("t").unwrap();
    table.extend_sorted((0..50_000).map(|key| (key, key))).unwrap();
    let (removed, cost) =
        store.heap().pool().pmem().counted().count(|| table.remove_range(100..49_900).unwrap());
    assert_eq!((removed, table.len().unwrap()), (49_800, 200));
    println!("{cost:?}");
    // Two more unlink the leaves that a batch has left empty.
    assert!(cost.fences <= 4 * 49_800_u64.div_ceil(4_096), "{cost:?}");
    assert!(cost.lines < 49_800, "{cost:?}");
    let ((), nothing) = store.heap().pool().pmem().counted().count(|| {
        assert_eq!(table.remove_range(100..49_900).unwrap(), 0);
    });
    assert_eq!((nothing.lines, nothing.fences), (0, 0));
}

/// A full store removes keys all the same.
#[test]
fn keys_of_full_store_are_removed() {
    let options = StoreOptions::new().node_slots(4).extent_bytes(4096);
    let pmem = any(Region::anonymous(256 << 10).unwrap());
    let store = Store::format(pmem.clone(), &options).unwrap();
    let table = store.table::<u64, u64>("t").unwrap();
    let mut keys = 0;
    while table.insert(keys, keys).is_ok() {
        keys += 1;
    }
    assert!(keys > 500, "{keys}");
    assert_eq!(table.remove_range(10..keys - 10).unwrap(), keys - 20);
    let left: Vec<u64> = table.range(..).map(|entry| entry.unwrap().0.value()).collect();
    assert_eq!(left, Vec::from_iter((0..10).chain(keys - 10..keys)));
    assert!(store.check().unwrap().is_sound());
    drop(table);
    store.close().unwrap();
    let store = Store::attach(pmem, &options).unwrap();
    assert_eq!(store.table_len("t").unwrap(), Some(20));
    assert_eq!(store.heap().blocks(), store.blocks());
}

/// Two threads remove the same range, while a third inserts keys: each key that was removed is counted once.
#[test]
fn keys_are_counted_once() {
    let store = create(&StoreOptions::new().removal_batch(64));
    let table = store.table::<u64, u64>("t").unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let removers = [(); 2].map(|()| {
        let (table, is_over) = (table.clone(), Arc::clone(&is_over));
        std::thread::spawn(move || {
            let mut removed = 0;
            while !is_over.load(Ordering::Relaxed) {
                removed += table.remove_range(1_000..9_000).unwrap();
            }
            removed
        })
    });
    let mut inserted = 0;
    for round in 0..20_000_u64 {
        inserted += u64::from(table.insert(round.wrapping_mul(7_919) % 10_000, round).unwrap());
    }
    is_over.store(true, Ordering::Relaxed);
    let removed: u64 = removers.into_iter().map(|remover| remover.join().unwrap()).sum();
    assert_eq!(removed + table.len().unwrap(), inserted);
    assert!(removed > 0);
    assert!(store.check().unwrap().is_sound());
}

/// Keys that fill a batch by their length.
#[test]
fn long_keys_are_removed() {
    let store = Store::format(any(Region::anonymous(256 << 20).unwrap()), &StoreOptions::new()).unwrap();
    let table = store.table::<&[u8], u64>("t").unwrap();
    let key = |number: u64| [&[7; 60_000], number.to_be_bytes().as_slice()].concat();
    (0..60).for_each(|number| assert!(table.insert(&key(number), number).unwrap()));
    assert_eq!(table.remove_range(key(1).as_slice()..key(59).as_slice()).unwrap(), 58);
    assert_eq!(table.len().unwrap(), 2);
}

/// A corrupted entry within the range is an error, and what was not removed remains.
#[test]
fn corrupted_entry_is_an_error() {
    let options = StoreOptions::new().node_slots(8).removal_batch(4);
    let pmem = Arc::new(Region::anonymous(4 << 20).unwrap());
    let store = Store::format(any(Arc::clone(&pmem)), &options).unwrap();
    let table = store.table::<u64, u64>("t").unwrap();
    (0..100).for_each(|key| assert!(table.insert(key << 40, key).unwrap()));
    drop(table);
    store.close().unwrap();
    let mut bytes = vec![0; usize::try_from(pmem.len_bytes()).unwrap()];
    pmem.load(0, &mut bytes);
    // The value of the entry is the second word of its slot.
    let at = bytes.windows(8).position(|window| window == (50_u64 << 40).to_le_bytes()).unwrap() as u64;
    pmem.store_u64(at + 8, pmem.load_u64(at + 8) ^ 1);
    let store = Store::attach(any(pmem), &options).unwrap();
    let table = store.table::<u64, u64>("t").unwrap();
    assert!(matches!(table.remove_range(..), Err(WriteError::Corrupted(_))));
    assert!((60..100).all(|key| table.get(key << 40).unwrap().unwrap().value() == key));
    assert!(!table.contains_key(0).unwrap(), "the first batches were removed");
}
