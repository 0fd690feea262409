//! Groups: what readers see of them, when they are committed, and what happens when they cannot be.

use core::ops::{ControlFlow, Range};
use pm_btree::{Encoded, Key, ReadError, Store, StoreOptions, Table, WriteError};
use pm_core::{Counting, FenceError, Pmem, Region, crc32c_append, crc32c_words};
use pm_testkit::{AnyPmem, Hook, Hooked, any as any_pmem};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
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
    let too_long = table.insert_grouped("key", &vec![7; 16 << 20]);
    assert!(matches!(too_long, Err(WriteError::TooLong { .. })), "{too_long:?}");
    assert_eq!(store.grouped_len(), 0);
}

/// Adds changes in groups up to Full. Each that was accepted is made, and all other calls work.
fn check_full<K: Key>(
    options: &StoreOptions,
    len: usize,
    with_key: impl Fn(u64, &mut dyn FnMut(K::View<'_>)),
) {
    let pmem = Arc::new(Region::anonymous(256 << 10).unwrap());
    let store = Store::format(any_pmem(Arc::clone(&pmem)), options).unwrap();
    let (table, other) = (store.table::<K, &[u8]>("t").unwrap(), store.table::<u64, u64>("other").unwrap());
    let value = vec![7; len];
    let insert = |number| {
        let mut inserted = Ok(());
        with_key(number, &mut |key| inserted = table.insert_grouped(key, &value));
        inserted
    };
    // In no order: so leaves are split in the middle.
    let numbers: Vec<u64> = (0..4000).map(|number| number * 1_117 % 4_001).collect();
    let refused_at = numbers.iter().position(|number| {
        let inserted = insert(*number);
        assert!(matches!(inserted, Ok(()) | Err(WriteError::Full)), "{inserted:?}");
        inserted.is_err()
    });
    let mut accepted = numbers[..refused_at.expect("the pool is full at some time")].to_vec();
    store.sync().unwrap();
    assert_eq!(table.len().unwrap(), accepted.len() as u64);
    // Removals need no room, singly, in groups and in batches, and changes of the other table are made.
    if other.insert(1, 1).is_ok() {
        assert!(other.remove(1).unwrap());
    }
    for number in accepted.drain(..3) {
        with_key(number, &mut |key| assert!(table.remove(key).unwrap()));
    }
    for number in accepted.drain(..3) {
        with_key(number, &mut |key| table.remove_grouped(key).unwrap());
    }
    assert_eq!(table.range(..).filter(Result::is_ok).count(), accepted.len());
    while insert(0).is_ok_and(|()| store.grouped_len() < 2) {}
    store.sync().unwrap();
    let mut batch = store.batch();
    for entry in table.range(..) {
        batch.remove(&table, entry.unwrap().0.value()).unwrap();
    }
    batch.commit().unwrap();
    assert!(table.is_empty().unwrap() && store.check().unwrap().is_sound());
    drop((table, other));
    store.close().unwrap();
}

/// What must not happen: changes join a group, are visible, and cannot be made when it is committed, because the pool is full.
#[test]
fn changes_that_have_joined_a_group_find_room() {
    for (limit, slots) in [(64, 62), (1000, 62), (1000, 4), (10_000, 12)] {
        let options = options(limit).extent_bytes(4096).node_slots(slots);
        let words = |number: u64, with: &mut dyn FnMut(u64)| with(number);
        check_full::<u64>(&options, 900, words);
        check_full::<u64>(&options, 90, words);
        check_full::<u64>(&options, 8, words);
        let bytes = |number: u64, with: &mut dyn FnMut(&str)| {
            // Separators of many lengths.
            with(&format!("{:<1$}{number}", "key of ", 8 + number as usize % 50));
        };
        check_full::<&str>(&options, 8, bytes);
        check_full::<&str>(&options, 300, bytes);
    }
}

/// An update takes the place of the one before it in the group: it needs nothing more.
#[test]
fn updates_of_one_key_need_no_more_room() {
    let store =
        Store::format(Region::anonymous(256 << 10).unwrap(), &options(100_000).extent_bytes(4096)).unwrap();
    let table = store.table::<u64, &[u8]>("t").unwrap();
    let used = || store.stats().unwrap().used_bytes;
    table.insert(7, &[0; 100]).unwrap();
    let before = used();
    for number in 0..10_000_usize {
        table.insert_grouped(7, &vec![1; 100 + number % 300]).unwrap();
    }
    assert_eq!(store.grouped_len(), 10_000, "all wait, in a pool of 256 KiB");
    store.sync().unwrap();
    table.insert(7, &[0; 100]).unwrap();
    table.insert(8, &[]).unwrap();
    assert_eq!(used(), before, "what was set aside is free again");
}

/// Values of these lengths for these keys, all in one group, are there after it is committed, and after an open.
fn check_lengths(changes: &[(u64, usize)]) {
    let options = options(8).extent_bytes(4096);
    let region = Arc::new(Region::anonymous(1 << 20).unwrap());
    let store = Store::format(any_pmem(Arc::clone(&region)), &options).unwrap();
    let expected: BTreeMap<u64, Vec<u8>> =
        (1..).zip(changes).map(|(byte, (key, len))| (*key, vec![byte; *len])).collect();
    let check = |store: &CountedStore, when: &str| {
        assert!(store.check().unwrap().is_sound(), "{changes:?}, {when}");
        let table = store.table::<u64, &[u8]>("t").unwrap();
        assert_eq!(table.len().unwrap(), expected.len() as u64, "{changes:?}, {when}");
        for (key, value) in &expected {
            let found = table.get(*key).unwrap().is_some_and(|found| found.value() == value);
            assert!(found, "{changes:?}, {when}: the value of {key}");
        }
    };
    let table = store.table::<u64, &[u8]>("t").unwrap();
    for (byte, (key, len)) in (1..).zip(changes) {
        table.insert_grouped(*key, &vec![byte; *len]).unwrap();
    }
    assert_eq!(store.grouped_len(), changes.len());
    store.sync().unwrap();
    check(&store, "after the commit");
    drop(table);
    store.close().unwrap();
    let store = Store::attach(any_pmem(region), &options).unwrap();
    check(&store, "after an open");
    assert_eq!(store.heap().blocks(), store.blocks());
}

/// What must not happen: one of two values of almost the same length gets the block of the other, which is shorter, and overwrites what follows it.
/// In extents of this length values of more than about 1,000 bytes have blocks of their own.
#[test]
fn values_of_a_group_have_blocks_of_their_lengths() {
    check_lengths(&[(1, 4610), (2, 5120)]);
    check_lengths(&[(2, 5120), (1, 4610)]);
    check_lengths(&[(1, 4610), (1, 5120)]);
    check_lengths(&[(1, 5120), (1, 4610)]);
    // One has a unit of an extent, and the other one a block.
    check_lengths(&[(1, 985), (2, 1000)]);
    check_lengths(&[(1, 1000), (2, 985)]);
    check_lengths(&[(1, 1000), (1, 985), (2, 1000), (2, 1100), (1, 1024), (1, 1025)]);
}

/// A length around one at which the space of a record changes its kind or size.
fn length_at_a_limit(random: &mut fastrand::Rng) -> usize {
    let limit = random.choice([0, 48, 992, 1024, 1152, 2048, 4096, 4608, 4672, 5120]).unwrap();
    (limit + random.usize(..72)).saturating_sub(36)
}

/// Random changes in groups of entries with keys and values of lengths around all limits, against a map, with opens in between. The keys differ at
/// their ends, so that separators are as long.
fn check_random_lengths<K: Key>(name: &str, seed: u64, with_key: impl Fn(u64, &mut dyn FnMut(K::View<'_>))) {
    let options = options(64).node_slots(4).extent_bytes(4096);
    let region = Arc::new(Region::anonymous(4 << 20).unwrap());
    let mut store = Store::format(any_pmem(Arc::clone(&region)), &options).unwrap();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut model = BTreeMap::new();
    for round in 0..12 {
        let when = format!("{name}, seed {seed}, round {round}");
        let table = store.table::<K, &[u8]>(name).unwrap();
        for _ in 0..random.usize(..80) {
            let number = random.u64(..60);
            let value = vec![random.u8(..); length_at_a_limit(&mut random)];
            with_key(number, &mut |key| match random.u8(..8) {
                0 => {
                    table.remove_grouped(key).unwrap();
                    model.remove(&number);
                }
                1 => {
                    table.insert(key, &value).unwrap();
                    model.insert(number, value.clone());
                }
                _ => {
                    table.insert_grouped(key, &value).unwrap();
                    model.insert(number, value.clone());
                }
            });
        }
        store.sync().unwrap();
        let check = |store: &CountedStore, table: &Table<K, &[u8], AnyPmem<'static>>| {
            assert!(store.check().unwrap().is_sound(), "{when}");
            assert_eq!(table.len().unwrap(), model.len() as u64, "{when}");
            for (number, value) in &model {
                with_key(*number, &mut |key| {
                    let found = table.get(key).unwrap().is_some_and(|found| found.value() == value);
                    assert!(found, "{when}: the value of {number}");
                });
            }
        };
        check(&store, &table);
        drop(table);
        store.close().unwrap();
        store = Store::attach(any_pmem(Arc::clone(&region)), &options).unwrap();
        check(&store, &store.table::<K, &[u8]>(name).unwrap());
        assert_eq!(store.heap().blocks(), store.blocks(), "{when}");
    }
}

#[test]
fn values_and_keys_of_all_lengths_are_those_of_a_map() {
    for seed in 0..8 {
        check_random_lengths::<u64>("words", seed, |number, with| with(number));
        check_random_lengths::<&str>("strings", seed, |number, with| {
            let len = length_at_a_limit(&mut fastrand::Rng::with_seed(number));
            with(&format!("{:<len$}{number:02}", "key"));
        });
    }
}

/// Makes the entry of a key name the record of another one, with a right seal.
fn share_record(pmem: &Region, key: u64, other: u64) {
    let bytes = image(pmem);
    let word = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap());
    let is_leaf = |node: &usize| bytes[*node..].starts_with(b"PMBN\0\0\x01\0");
    let node = (0..bytes.len()).step_by(64).find(is_leaf).unwrap();
    let slot_of =
        |key| (node + 64..).step_by(32).find(|at| word(*at) == key && word(at + 24) & 7 == 1).unwrap();
    let (at, other) = (slot_of(key), slot_of(other));
    let (payload, low, commit) = (word(other + 8), word(other + 16) & 0xffff_ffff, word(at + 24));
    let seed = crc32c_words(&[1, node as u64, word(node + 40)]);
    let head = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let seal = crc32c_append(seed, &[head, payload.wrapping_mul(0xD1B5_4A32_D192_ED03), low, commit]);
    pmem.store_u64(at as u64 + 8, payload);
    pmem.store_u64(at as u64 + 16, low | u64::from(seal) << 32);
}

fn image(pmem: &Region) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(pmem.len_bytes()).unwrap()];
    pmem.load(0, &mut bytes);
    bytes
}

/// Runs a function once, at the next load.
#[derive(Default)]
struct AtLoad(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl<R: Pmem> Hook<R> for AtLoad {
    fn before_load(&self, _: Range<u64>) {
        let run = self.0.lock().unwrap().take();
        run.into_iter().for_each(|run| run());
    }
}

/// Corruption that is found between the time at which a change joins a group and its commit: the change is reported, and no other call is in the way.
#[test]
fn lost_change_is_named_and_blocks_nothing() {
    let region = Arc::new(Region::anonymous(1 << 20).unwrap());
    let options = options(64).node_slots(8).sweep_at_open(0);
    let store = Store::format(any_pmem(Arc::clone(&region)), &options).unwrap();
    let table = store.table::<u64, &[u8]>("t").unwrap();
    (0..5).for_each(|key| assert!(table.insert(key, &[key as u8; 50]).unwrap()));
    drop((store.table::<u64, u64>("other").unwrap(), table));
    store.close().unwrap();
    share_record(&region, 3, 4);

    let at_load = Arc::new(AtLoad::default());
    let pmem = any_pmem(Hooked::new(region, Arc::clone(&at_load)));
    let store = Store::attach(pmem, &options).unwrap();
    let table = store.table::<u64, &[u8]>("t").unwrap();
    let other = store.table::<u64, u64>("other").unwrap();
    let join = {
        let (table, other) = (table.clone(), other.clone());
        move || {
            other.insert_grouped(1, 10).unwrap();
            table.insert_grouped(100, b"inline").unwrap();
            table.remove_grouped(0).unwrap();
            other.insert_grouped(2, 20).unwrap();
        }
    };
    *at_load.0.lock().unwrap() = Some(Box::new(join));
    // This visits all leaves; the changes join when it begins.
    store.stats().unwrap();
    assert_eq!(store.grouped_len(), 4);
    let Err(WriteError::Lost(lost)) = store.sync() else { panic!("a change is lost") };
    let lost: Vec<_> = lost.iter().map(|lost| (lost.table.as_str(), lost.key.as_slice())).collect();
    assert_eq!(lost, [("t", 100_u64.to_be_bytes().as_slice())]);
    assert_eq!(store.grouped_len(), 0);
    store.sync().unwrap();
    assert!(
        matches!(table.get(0), Err(ReadError::Corrupted(_))),
        "0 is absent, and may have been in the corrupted entry"
    );
    assert_eq!([1, 2].map(|key| other.get(key).unwrap().unwrap().value()), [10, 20]);
    // Nothing is lost any more. Changes of this leaf are refused when they join; others work.
    assert!(matches!(table.insert_grouped(100, b"inline"), Err(WriteError::Corrupted(_))));
    table.insert_grouped(1, b"one").unwrap();
    assert!(other.remove(1).unwrap());
    let mut batch = store.batch();
    batch.remove(&other, 2).unwrap();
    batch.commit().unwrap();
    assert!(other.is_empty().unwrap());
    assert_eq!(table.get(1).unwrap().unwrap().value(), b"one");
    drop((table, other));
    store.close().unwrap();
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

/// Fences that fail from some time on.
#[derive(Default)]
struct FailingFences(AtomicBool);

impl<R: Pmem> Hook<R> for FailingFences {
    fn fence(&self, region: &R) -> Result<(), FenceError> {
        if self.0.load(Ordering::Relaxed) { Err(FenceError::Poisoned) } else { region.fence() }
    }
}

/// What must not happen: a range over a table whose group cannot be committed gives the same error for ever. It says so once, and ends: `count`, or
/// a loop that logs errors and goes on, would not end.
#[test]
fn range_ends_after_a_group_that_cannot_be_committed() {
    let fails = Arc::new(FailingFences::default());
    let region = Arc::new(Region::anonymous(256 << 10).unwrap());
    let store = Store::format(any_pmem(Hooked::new(region, Arc::clone(&fails))), &options(64)).unwrap();
    let table = store.table::<u64, &[u8]>("t").unwrap();
    table.insert(0, &[7]).unwrap();
    let mut range = table.range(..);
    assert!(range.next().unwrap().is_ok());
    assert!(range.next().is_none());
    table.insert_grouped(1, &[7; 900]).unwrap();
    fails.0.store(true, Ordering::Relaxed);
    assert!(matches!(store.sync(), Err(WriteError::Fence(_))));
    let results: Vec<bool> = table.range(..).take(5).map(|entry| entry.is_ok()).collect();
    assert_eq!(results, [false], "one error, and no entry");
    let results: Vec<bool> = table.range(..).rev().take(5).map(|entry| entry.is_ok()).collect();
    assert_eq!(results, [false], "one error, and no entry");
    // It is a FusedIterator: one that has ended stays so.
    assert!(range.next().is_none(), "a range that has ended goes on");
}
