//! Groups: what readers see of them, when they are committed, and what happens when they cannot be.

use core::ops::ControlFlow;
use pm_btree::{CloseError, Encoded, OpenError, Store, StoreOptions, Table, WriteError};
use pm_core::{Counting, Region};
use pm_testkit::AnyPmem;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

type CountedStore = Store<AnyPmem<'static>>;
type Words = Table<u64, u64, AnyPmem<'static>>;

fn options(limit: u32) -> StoreOptions {
    StoreOptions::new().group_commits(limit)
}

fn store(limit: u32) -> CountedStore {
    Store::format(AnyPmem::from(Counting::new(Region::anonymous(16 << 20).unwrap())), &options(limit))
        .unwrap()
}

fn fences(store: &CountedStore) -> u64 {
    store.heap().pool().pmem().counted().counts().fences
}

#[test]
fn waiting_changes_are_visible() {
    let store = store(8);
    let table = store.table::<&str, u64>("t").unwrap();
    table.insert("kept", 1).unwrap();
    table.insert("removed", 1).unwrap();
    let before = fences(&store);
    table.insert_grouped("new", 2).unwrap();
    table.insert_grouped("kept", 3).unwrap();
    table.remove_grouped("removed").unwrap();
    table.insert_grouped("back", 4).unwrap();
    table.remove_grouped("back").unwrap();
    table.remove_grouped("absent").unwrap();
    table.insert_grouped("kept", 5).unwrap();
    assert_eq!((store.grouped_len(), fences(&store)), (7, before));
    let get = |key| table.get(key).unwrap().map(|value| value.value());
    for (key, value) in
        [("new", Some(2)), ("kept", Some(5)), ("removed", None), ("back", None), ("absent", None)]
    {
        assert_eq!(get(key), value, "{key}");
        assert_eq!(table.get_with(key, |value| value).unwrap(), value, "{key}");
        assert_eq!(table.contains_key(key).unwrap(), value.is_some(), "{key}");
    }
    assert_eq!(store.grouped_len(), 7);
    // These commit the group.
    let all: Vec<(String, u64)> = table
        .range(..)
        .map(|entry| entry.map(|(key, value)| (key.value().to_owned(), value.value())).unwrap())
        .collect();
    assert_eq!(all, [("kept".to_owned(), 5), ("new".to_owned(), 2)]);
    assert_eq!(store.grouped_len(), 0);
    table.insert_grouped("a", 6).unwrap();
    assert_eq!(table.first().unwrap().unwrap().0.value(), "a");
    table.insert_grouped("b", 6).unwrap();
    assert_eq!(table.len().unwrap(), 4);
    table.insert_grouped("c", 6).unwrap();
    assert_eq!(store.table_len("t").unwrap(), Some(5));
}

/// The limit bounds what a crash can lose.
/// A change that joins a group ahead of an open range or a visit is seen like one that does not wait.
#[test]
fn open_ranges_see_changes_that_join_a_group_ahead_of_them() {
    let store = store(100);
    let table = store.table::<u64, u64>("t").unwrap();
    (0..200).for_each(|key| table.insert(key * 10, key).map(drop).unwrap());
    let keys = |rest: &mut dyn Iterator<Item = u64>| rest.filter(|key| key % 10 != 0).collect::<Vec<_>>();
    let mut range = table.range(..);
    range.next().unwrap().unwrap();
    table.insert_grouped(1995, 1).unwrap();
    table.remove_grouped(1990).unwrap();
    let rest: Vec<u64> = range.map(|entry| entry.unwrap().0.value()).collect();
    assert_eq!(keys(&mut rest.iter().copied()), [1995]);
    assert!(!rest.contains(&1990));

    let mut range = table.range(..);
    assert_eq!(range.next_back().unwrap().unwrap().0.value(), 1995);
    table.insert_grouped(5, 1).unwrap();
    let rest: Vec<u64> = range.rev().map(|entry| entry.unwrap().0.value()).collect();
    assert_eq!(keys(&mut rest.iter().copied()), [5]);

    let mut seen = Vec::new();
    let ended = table.visit(.., |entry| {
        let (key, _) = entry.unwrap();
        if key == 0 {
            table.insert_grouped(1994, 1).unwrap();
        }
        seen.push(key);
        ControlFlow::<()>::Continue(())
    });
    assert!(ended.is_continue());
    assert_eq!(keys(&mut seen.into_iter()), [5, 1994, 1995]);
}

#[test]
fn full_group_is_committed_by_the_next_change() {
    let store = store(4);
    let table = store.table::<u64, u64>("t").unwrap();
    let before = fences(&store);
    for key in 0..9 {
        table.insert_grouped(key, key).unwrap();
        assert_eq!(store.grouped_len() as u64, key % 4 + 1);
    }
    assert_eq!(fences(&store) - before, 4);
    store.sync().unwrap();
    assert_eq!((store.grouped_len(), fences(&store) - before), (0, 6));
    store.sync().unwrap();
    assert_eq!(fences(&store) - before, 6);
}

/// A change that does not wait makes those before it durable: every kind of them.
#[test]
fn changes_that_do_not_wait_commit_the_group() {
    let store = store(8);
    let table = store.table::<u64, u64>("t").unwrap();
    let commits = |change: &dyn Fn(&Words)| {
        table.insert_grouped(1, 1).unwrap();
        change(&table);
        assert_eq!(store.grouped_len(), 0);
    };
    commits(&|table| assert!(table.insert(2, 2).unwrap()));
    commits(&|table| assert!(table.remove(2).unwrap()));
    commits(&|table| assert!(table.compare_and_swap(1, Some(1), Some(1)).unwrap().is_swapped()));
    commits(&|table| assert_eq!(table.pop_last().unwrap().unwrap().0.value(), 1));
    commits(&|table| drop(table.update(1, |value| Some(Encoded::new(value.unwrap_or(0) + 1))).unwrap()));
    commits(&|table| assert_eq!(table.retain(|_, _| false).unwrap(), 1));
    commits(&|table| {
        let mut batch = store.batch();
        batch.insert(table, 3, 3).unwrap();
        batch.commit().unwrap();
    });
}

#[test]
fn store_without_groups_makes_changes_durable_at_once() {
    let store = store(0);
    let table = store.table::<u64, u64>("t").unwrap();
    let before = fences(&store);
    table.insert_grouped(1, 1).unwrap();
    table.remove_grouped(1).unwrap();
    assert_eq!((store.grouped_len(), fences(&store) - before), (0, 2));
    assert!(!store.sync_older(Duration::ZERO).unwrap());
}

#[test]
fn old_groups_are_committed() {
    let store = store(8);
    let table = store.table::<u64, u64>("t").unwrap();
    assert!(!store.sync_older(Duration::ZERO).unwrap());
    table.insert_grouped(1, 1).unwrap();
    assert!(!store.sync_older(Duration::from_secs(3600)).unwrap());
    assert!(store.sync_older(Duration::ZERO).unwrap());
    assert_eq!(store.grouped_len(), 0);
}

#[test]
fn value_that_is_too_long_is_refused_at_once() {
    let store = store(8);
    let table = store.table::<&str, &[u8]>("t").unwrap();
    let too_long = table.insert_grouped("key", &[7; 1 << 20]);
    assert!(matches!(too_long, Err(WriteError::TooLong { .. })), "{too_long:?}");
    assert_eq!(store.grouped_len(), 0);
    // As long as a change that does not wait may be.
    let longest = (1..20_000).rev().find(|len| table.insert("key", &vec![7; *len]).is_ok()).unwrap();
    assert!(matches!(table.insert_grouped("key", &vec![7; longest + 1]), Err(WriteError::TooLong { .. })));
    table.insert_grouped("key", &vec![8; longest]).unwrap();
    store.sync().unwrap();
}

/// A group that the pool has no room for goes on waiting, visible, until there is room; a store that is closed before that says that it is lost.
#[test]
fn group_without_room_waits() {
    let options = options(64).extent_bytes(4096);
    for grows in [true, false] {
        let mut store = Store::format(Region::anonymous(256 << 10).unwrap(), &options).unwrap();
        let table = store.table::<u64, &[u8]>("t").unwrap();
        let mut keys = 0_u64;
        let refused = loop {
            match table.insert_grouped(keys, &[7; 900]) {
                Ok(()) => keys += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, WriteError::Full), "{refused:?}");
        assert_eq!(store.grouped_len(), 64);
        assert!(matches!(store.sync(), Err(WriteError::Full)));
        assert!(matches!(table.insert(0, &[8; 900]), Err(WriteError::Full)));
        assert!(table.len().is_err() && table.first().is_err());
        assert_eq!(table.get(keys - 1).unwrap().unwrap().value(), [7; 900]);
        assert!(store.check().unwrap().is_sound());
        drop(table);
        if grows {
            store.grow(1 << 20).unwrap();
            store.sync().unwrap();
            assert_eq!(store.table::<u64, &[u8]>("t").unwrap().len().unwrap(), keys);
            store.close().unwrap();
        } else {
            let closed = store.close();
            assert!(
                matches!(closed, Err(CloseError::Failed(OpenError::Group(WriteError::Full)))),
                "{closed:?}"
            );
        }
    }
}

/// Dropping a store commits its group.
#[test]
fn dropped_store_has_its_group() {
    let pmem = std::sync::Arc::new(Region::anonymous(1 << 20).unwrap());
    let store = Store::format(AnyPmem::from(&pmem), &options(8)).unwrap();
    store.table::<u64, u64>("t").unwrap().insert_grouped(1, 2).unwrap();
    drop(store);
    let store = Store::attach(AnyPmem::from(pmem), &options(8)).unwrap();
    assert_eq!(store.table::<u64, u64>("t").unwrap().get(1).unwrap().unwrap().value(), 2);
}

/// Two threads change keys of their own, one of them in groups, and read all keys: a value never goes back.
#[test]
fn values_do_not_go_back() {
    let store = store(5);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let write = |key: u64, is_grouped: bool| {
            let (store, is_done) = (&store, &is_done);
            scope.spawn(move || {
                let table = store.table::<u64, u64>("t").unwrap();
                for number in 1..20_000 {
                    match is_grouped {
                        true => table.insert_grouped(key, number).unwrap(),
                        false => drop(table.insert(key, number).unwrap()),
                    }
                    assert_eq!(table.get(key).unwrap().unwrap().value(), number);
                }
                is_done.store(true, Ordering::Release);
            });
        };
        write(1, true);
        write(2, false);
        scope.spawn(|| {
            let table = store.table::<u64, u64>("t").unwrap();
            let mut last = [0; 3];
            while !is_done.load(Ordering::Acquire) {
                for key in [1, 2] {
                    let found = table.get(key as u64).unwrap().map_or(0, |value| value.value());
                    assert!(found >= last[key], "{found} after {}", last[key]);
                    last[key] = found;
                }
            }
        });
    });
    let table = store.table::<u64, u64>("t").unwrap();
    assert_eq!([1, 2].map(|key| table.get(key).unwrap().unwrap().value()), [19_999; 2]);
}

/// An operation of the model.
#[derive(Clone, Debug)]
enum Op {
    Insert(u8, u8),
    Remove(u8),
    InsertGrouped(u8, u8),
    RemoveGrouped(u8),
    Sync,
    Range,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        1 => (0..40_u8, any::<u8>()).prop_map(|(key, value)| Op::Insert(key, value)),
        1 => (0..40_u8).prop_map(Op::Remove),
        6 => (0..40_u8, any::<u8>()).prop_map(|(key, value)| Op::InsertGrouped(key, value)),
        3 => (0..40_u8).prop_map(Op::RemoveGrouped),
        1 => Just(Op::Sync),
        1 => Just(Op::Range),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A table with groups behaves like a map: with long keys, and values in entries and in records.
    #[test]
    fn table_with_groups_is_a_map(ops in proptest::collection::vec(op(), 1..200), limit in 1..9_u32) {
        let options = options(limit).node_slots(4).extent_bytes(4096);
        let store = Store::format(Region::anonymous(1 << 20).unwrap(), &options).unwrap();
        let table = store.table::<&[u8], &[u8]>("t").unwrap();
        let mut map = BTreeMap::new();
        let name = |key: u8| format!("a long prefix {key:03}").into_bytes();
        for op in &ops {
            let value = |value: u8| vec![value; usize::from(value % 12)];
            match *op {
                Op::Insert(key, new) => {
                    let is_new = map.insert(name(key), value(new)).is_none();
                    prop_assert_eq!(table.insert(&name(key), &value(new)).unwrap(), is_new);
                }
                Op::Remove(key) => prop_assert_eq!(table.remove(&name(key)).unwrap(), map.remove(&name(key)).is_some()),
                Op::InsertGrouped(key, new) => {
                    map.insert(name(key), value(new));
                    table.insert_grouped(&name(key), &value(new)).unwrap();
                }
                Op::RemoveGrouped(key) => {
                    map.remove(&name(key));
                    table.remove_grouped(&name(key)).unwrap();
                }
                Op::Sync => store.sync().unwrap(),
                Op::Range => {
                    let all: BTreeMap<Vec<u8>, Vec<u8>> = table
                        .range(..)
                        .map(|entry| entry.map(|(key, value)| (key.value().to_vec(), value.value().to_vec())).unwrap())
                        .collect();
                    prop_assert_eq!(&all, &map);
                }
            }
            for key in 0..40 {
                let found = table.get(&name(key)).unwrap().map(|value| value.value().to_vec());
                prop_assert_eq!(found.as_ref(), map.get(&name(key)));
            }
        }
    }
}

/// What must not happen: a range over a table whose group cannot be committed gives the same error for ever. It says so once, and ends: `count`, or
/// a loop that logs errors and goes on, would not end.
#[test]
fn range_ends_after_a_group_that_cannot_be_committed() {
    let store =
        Store::format(Region::anonymous(256 << 10).unwrap(), &options(64).extent_bytes(4096)).unwrap();
    let table = store.table::<u64, &[u8]>("t").unwrap();
    table.insert(0, &[7]).unwrap();
    let mut range = table.range(..);
    assert!(range.next().unwrap().is_ok());
    assert!(range.next().is_none());
    let mut keys = 0_u64;
    while table.insert_grouped(keys, &[7; 900]).is_ok() {
        keys += 1;
    }
    assert!(matches!(store.sync(), Err(WriteError::Full)));
    let results: Vec<bool> = table.range(..).take(5).map(|entry| entry.is_ok()).collect();
    assert_eq!(results, [false], "one error, and no entry");
    let results: Vec<bool> = table.range(..).rev().take(5).map(|entry| entry.is_ok()).collect();
    assert_eq!(results, [false], "one error, and no entry");
    // It is a FusedIterator: one that has ended stays so.
    assert!(range.next().is_none(), "a range that has ended goes on");
}
