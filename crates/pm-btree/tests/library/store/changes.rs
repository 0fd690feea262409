//! Changes that depend on what the table holds: compare-and-swap, updates, pops, and removals by a predicate; alone, and in several threads.

use pm_btree::{Encoded, Store, StoreOptions, Swap, Table, WriteError};
use pm_core::Region;
use pm_testkit::{AnyPmem, any};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

type AnonymousStore = Store<AnyPmem<'static>>;

fn store_with(slots: u32) -> AnonymousStore {
    let pmem = Arc::new(Region::anonymous(64 << 20).unwrap());
    Store::format(any(pmem), &StoreOptions::new().node_slots(slots)).unwrap()
}

#[test]
fn value_is_swapped_if_it_is_the_expected_one() {
    let store = store_with(4);
    let table = store.table::<&str, &str>("t").unwrap();
    let swap = |old, new| table.compare_and_swap("a key", old, new).unwrap();
    assert!(swap(None, Some("one")).is_swapped());
    match swap(None, Some("two")) {
        Swap::Unequal(Some(found)) => assert_eq!(found.value(), "one"),
        other => panic!("{other:?}"),
    }
    assert!(!swap(Some("on"), Some("two")).is_swapped());
    assert!(swap(Some("one"), Some("a value in a record")).is_swapped());
    assert!(!swap(Some("one"), None).is_swapped());
    assert!(swap(Some("a value in a record"), Some("a value in a record")).is_swapped());
    assert_eq!(table.len().unwrap(), 1);
    assert!(swap(Some("a value in a record"), None).is_swapped());
    assert!(matches!(swap(Some("one"), Some("two")), Swap::Unequal(None)));
    assert!(swap(None, None).is_swapped());
    assert!(table.is_empty().unwrap());
}

#[test]
fn update_may_insert_replace_remove_and_use_the_table() {
    let store = store_with(4);
    let table = store.table::<&str, &str>("t").unwrap();
    let append = |old: Option<&str>| {
        let new = old.unwrap_or_default().to_owned() + "more ";
        Some(Encoded::<&str>::new(&new))
    };
    assert_eq!(table.update("k", append).unwrap().unwrap().value(), "more ");
    assert_eq!(table.update("k", append).unwrap().unwrap().value(), "more more ");
    // A closure that changes the same key is called again.
    let mut calls = 0;
    let updated = table.update("k", |old| {
        calls += 1;
        if calls == 1 {
            table.insert("k", "other ").unwrap();
        }
        append(old)
    });
    assert_eq!((updated.unwrap().unwrap().value(), calls), ("other more ", 2));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        drop(table.update("k", |_| panic!("a panic in a closure")));
    }));
    assert!(panicked.is_err());
    assert!(table.update("k", |_| None).unwrap().is_none());
    assert!(table.is_empty().unwrap());
    assert!(table.update("k", |_| None).unwrap().is_none());
}

#[test]
fn threads_count_together() {
    const THREADS: u64 = 3;
    const COUNTS: u64 = 2_000;
    let store = store_with(4);
    let table = store.table::<u64, u64>("t").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let table = &table;
            scope.spawn(move || {
                for count in 0..COUNTS {
                    table.update(count % 5, |old| Some(Encoded::new(old.unwrap_or(0) + 1))).unwrap();
                    // Neighbours in the same leaf.
                    table.insert(100 + thread, count).unwrap();
                }
            });
        }
    });
    for key in 0..5 {
        assert_eq!(table.get(key).unwrap().unwrap().value(), THREADS * COUNTS / 5);
    }
}

/// Random insertions, removals and pops behave like those of a map, while leaves become empty and are used again.
fn check_pops(store: &AnonymousStore, seed: u64) {
    let table = store.table::<u64, &[u8]>("words").unwrap();
    let strings = store.table::<&[u8], u64>("strings").unwrap();
    let mut map = BTreeMap::new();
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..300 {
        let (insertions, is_first) = (random.u64(..40), random.bool());
        let base = random.u64(..1_000);
        for _ in 0..insertions {
            // Runs of neighbouring keys, here and there.
            let key = base + random.u64(..100);
            let value = vec![7; random.usize(..20)];
            table.insert(key, &value).unwrap();
            strings.insert(format!("a common prefix {key:04}").as_bytes(), key).unwrap();
            map.insert(key, value);
        }
        for _ in 0..random.u64(..45) {
            let (expected, found, string) = match is_first {
                true => (map.pop_first(), table.pop_first().unwrap(), strings.pop_first().unwrap()),
                false => (map.pop_last(), table.pop_last().unwrap(), strings.pop_last().unwrap()),
            };
            let found = found.map(|(key, value)| (key.value(), value.value().to_vec()));
            assert_eq!(found, expected, "round {round}");
            assert_eq!(string.map(|(_, value)| value.value()), expected.map(|(key, _)| key));
        }
        assert_eq!((table.len().unwrap(), strings.len().unwrap()), (map.len() as u64, map.len() as u64));
    }
}

#[test]
fn pops_are_those_of_a_map() {
    for seed in 0..5 {
        check_pops(&store_with(4), seed);
        check_pops(&store_with(8), seed);
    }
}

#[test]
fn queue_is_emptied_in_linear_time() {
    let store = store_with(4);
    let table = store.table::<u64, u64>("t").unwrap();
    let count = 100_000;
    for key in 0..count {
        table.insert(key, key).unwrap();
    }
    // With a walk over all empty leaves, each pop would visit up to 33,000.
    for key in 0..count / 2 {
        assert_eq!(table.pop_first().unwrap().unwrap().0.value(), key);
        assert_eq!(table.pop_last().unwrap().unwrap().0.value(), count - 1 - key);
    }
    assert!(table.pop_first().unwrap().is_none() && table.pop_last().unwrap().is_none());
    for key in [7, count - 7, 3] {
        table.insert(key, key).unwrap();
    }
    let popped = [table.pop_last(), table.pop_first(), table.pop_last(), table.pop_first()];
    let popped = popped.map(|popped| popped.unwrap().map(|(key, _)| key.value()));
    assert_eq!(popped, [Some(count - 7), Some(3), Some(7), None]);
}

/// Threads insert and pop at both ends. Every entry is popped exactly once, and what is left is found.
#[test]
fn entry_is_popped_by_one_thread() {
    const THREADS: u64 = 4;
    const KEYS: u64 = 8_000;
    let store = store_with(4);
    let table = store.table::<u64, u64>("t").unwrap();
    let popped: Vec<AtomicU64> = (0..KEYS * THREADS).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (table, popped) = (&table, &popped);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread);
                let mut keys: Vec<u64> = (0..KEYS).map(|key| key * THREADS + thread).collect();
                random.shuffle(&mut keys);
                for key in keys {
                    assert!(table.insert(key, key).unwrap());
                    let pop = |table: &Table<u64, u64, AnyPmem<'static>>| match thread % 2 {
                        0 => table.pop_first().unwrap(),
                        _ => table.pop_last().unwrap(),
                    };
                    for _ in 0..random.u32(..3) {
                        if let Some((key, value)) = pop(table) {
                            assert_eq!(key.value(), value.value());
                            popped[key.value() as usize].fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    let mut left = 0;
    while let Some((key, _)) = table.pop_first().unwrap() {
        popped[key.value() as usize].fetch_add(1, Ordering::Relaxed);
        left += 1;
    }
    println!("{left} of {} keys were left", KEYS * THREADS);
    assert!(popped.iter().all(|count| count.load(Ordering::Relaxed) == 1));
    assert!(table.is_empty().unwrap() && store.check().unwrap().is_sound());
}

#[test]
fn retain_removes_by_predicate() {
    let store = store_with(6);
    let table = store.table::<&str, u64>("t").unwrap();
    let name = |number: u64| format!("a common prefix {number}");
    for number in 0..1_000 {
        table.insert(&name(number), number).unwrap();
    }
    assert_eq!(table.retain(|_, value| value.is_multiple_of(3)).unwrap(), 666);
    assert_eq!(table.len().unwrap(), 334);
    assert!(table.range(..).all(|entry| entry.unwrap().1.value().is_multiple_of(3)));
    // A value that changes while the predicate runs is looked at again.
    let mut is_changed = false;
    let removed = table.retain(|key, value| {
        if key == name(3) && !is_changed {
            is_changed = true;
            table.insert(key, value + 1_000).unwrap();
            return false;
        }
        true
    });
    assert_eq!(removed.unwrap(), 0);
    assert_eq!(table.get(&name(3)).unwrap().unwrap().value(), 1_003);
    assert_eq!(table.retain(|_, _| false).unwrap(), 334);
    assert!(table.is_empty().unwrap() && table.first().unwrap().is_none());
}

#[test]
fn entry_that_cannot_be_decoded_is_not_popped() {
    let store = store_with(4);
    let bytes = store.table::<u64, &[u8]>("t").unwrap();
    bytes.insert(1, b"\xff").unwrap();
    drop(bytes);
    // Types are checked by name; a type with a foreign name stands for corrupted bytes.
    struct Text;
    impl pm_btree::Value for Text {
        type View<'a> = &'a str;
        const FIXED_WIDTH: Option<usize> = None;
        fn encode(view: &str, out: &mut Vec<u8>) -> Result<(), pm_btree::EncodeError> {
            <&str>::encode(view, out)
        }
        fn decode(bytes: &[u8]) -> Result<&str, pm_btree::DecodeError> {
            <&str>::decode(bytes)
        }
        fn type_name() -> String {
            <&[u8]>::type_name()
        }
    }
    let table = store.table::<u64, Text>("t").unwrap();
    assert!(matches!(table.pop_first(), Err(WriteError::Decode(_))));
    assert!(matches!(table.compare_and_swap(1, Some("x"), None), Err(WriteError::Decode(_))));
    assert_eq!(table.len().unwrap(), 1);
}
