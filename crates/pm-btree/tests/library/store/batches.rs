//! Batches: what they change, in which stores, and at which price; alone, and in several threads.

use core::ops::Range;
use pm_btree::{LoadFailure, Store, StoreOptions, WriteError};
use pm_core::{Counting, FenceError, Pmem, Region};
use pm_testkit::{AnyPmem, Hook, Hooked, any};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

type CountedStore = Store<AnyPmem<'static>>;

fn create(slots: u32) -> (Arc<Counting<Region>>, CountedStore) {
    let pmem = Arc::new(Counting::new(Region::anonymous(128 << 20).unwrap()));
    let store = Store::format(any(&pmem), &StoreOptions::new().node_slots(slots));
    (pmem, store.unwrap())
}

/// Opens the store again, as after a kill if `is_killed`.
fn reopen(pmem: &Arc<Counting<Region>>, store: CountedStore, is_killed: bool) -> CountedStore {
    if is_killed {
        // The state words say that the session goes on. The lock of the pool is released with the store.
        let mut bytes = vec![0; usize::try_from(pmem.len_bytes()).unwrap()];
        pmem.load(0, &mut bytes);
        drop(store);
        for (offset, chunk) in (0..).step_by(1 << 20).zip(bytes.chunks(1 << 20)) {
            pmem.store(offset, chunk);
        }
    } else {
        store.close().unwrap();
    }
    Store::attach(any(pmem), &StoreOptions::new()).unwrap()
}

#[test]
fn last_operation_on_a_key_counts() {
    let (_, store) = create(4);
    let words = store.table::<u64, &str>("words").unwrap();
    let names = store.table::<&str, u64>("names").unwrap();
    words.insert(1, "one").unwrap();
    names.insert("one", 1).unwrap();
    let mut batch = store.batch();
    batch.insert(&words, 2, "second").unwrap();
    batch.remove(&words, 1).unwrap();
    batch.insert(&names, "two", 2).unwrap();
    batch.insert(&words, 2, "a long value in a record").unwrap();
    batch.insert(&words, 3, "three").unwrap();
    batch.remove(&words, 3).unwrap();
    batch.remove(&names, "no such name").unwrap();
    batch.insert(&words.clone(), 1, "again").unwrap();
    assert_eq!(batch.len(), 8);
    assert!(words.get(2).unwrap().is_none(), "not committed");
    batch.commit().unwrap();
    let all: Vec<(u64, String)> = words
        .range(..)
        .map(|entry| entry.map(|(key, value)| (key.value(), value.value().to_owned())).unwrap())
        .collect();
    assert_eq!(all, [(1, "again".to_owned()), (2, "a long value in a record".to_owned())]);
    assert_eq!((words.len().unwrap(), names.len().unwrap()), (2, 2));
    assert_eq!(names.get("two").unwrap().unwrap().value(), 2);
}

#[test]
fn table_of_another_store_is_refused() {
    let ((_, store), (_, other)) = (create(4), create(4));
    let table = other.table::<u64, u64>("t").unwrap();
    let mut batch = store.batch();
    assert!(matches!(batch.insert(&table, 1, 2), Err(WriteError::OtherStore)));
    assert!(matches!(batch.remove(&table, 1), Err(WriteError::OtherStore)));
    assert!(batch.is_empty());
    batch.commit().unwrap();
}

#[test]
fn refused_batch_changes_nothing() {
    let pmem = Arc::new(Region::anonymous(512 << 10).unwrap());
    let store = Store::format(any(pmem), &StoreOptions::new().node_slots(4)).unwrap();
    let table = store.table::<u64, &[u8]>("t").unwrap();
    table.insert(5, b"five").unwrap();
    for len in [100, 3_000] {
        for _ in 0..20 {
            let mut batch = store.batch();
            batch.remove(&table, 5).unwrap();
            for key in 0..5_000 {
                batch.insert(&table, key * 7, &vec![7; len]).unwrap();
            }
            assert!(matches!(batch.commit(), Err(WriteError::Full | WriteError::TooLong { .. })));
        }
    }
    assert_eq!(table.len().unwrap(), 1);
    // What fails takes no records.
    let mut batch = store.batch();
    batch.remove(&table, 5).unwrap();
    batch.insert(&table, 6, &[7; 100]).unwrap();
    batch.insert(&table, 7, &[7; 100]).unwrap();
    batch.commit().unwrap();
    assert_eq!(table.len().unwrap(), 2);
    assert!(store.check().unwrap().is_sound());
}

#[test]
fn batch_costs_its_lines_and_two_fences() {
    let (_, store) = create(62);
    let table = store.table::<u64, u64>("t").unwrap();
    let other = store.table::<u64, u64>("u").unwrap();
    let price = |count: u64| {
        let mut batch = store.batch();
        for key in 0..count {
            batch.insert(&table, key * 3, key).unwrap();
            batch.insert(&other, key * 5, key).unwrap();
        }
        let ((), cost) = store.heap().pool().pmem().counted().count(|| batch.commit().unwrap());
        (cost.lines, cost.fences)
    };
    assert_eq!(price(1), (2 + 1, 2));
    // Two entries in a line, and those of the first batch in the same lines again.
    let (lines, fences) = price(20);
    println!("40 operations: {lines} lines");
    assert!(lines <= 20 + 1 + 2 && fences == 2, "{lines} lines, {fences} fences");
    let mut batch = store.batch();
    batch.remove(&table, 1).unwrap();
    let ((), cost) = store.heap().pool().pmem().counted().count(|| batch.commit().unwrap());
    assert_eq!((cost.lines, cost.fences), (0, 0), "the key is absent");
    let mut batch = store.batch();
    for key in 0..10 {
        batch.remove(&table, key * 3).unwrap();
    }
    let ((), cost) = store.heap().pool().pmem().counted().count(|| batch.commit().unwrap());
    println!("10 removals: {} lines", cost.lines);
    assert!(cost.lines <= 10 + 1 && cost.fences == 2, "{cost:?}");
}

#[test]
fn batch_of_many_keys_splits_one_leaf_many_times() {
    for (slots, is_ascending) in [(4, true), (4, false), (62, true), (62, false)] {
        let (pmem, store) = create(slots);
        let table = store.table::<u64, u64>("t").unwrap();
        let names = store.table::<&str, &str>("names").unwrap();
        for key in [0, 10, 5_000] {
            table.insert(key, key).unwrap();
            names.insert(&format!("a common prefix {key:06}"), "old").unwrap();
        }
        let mut batch = store.batch();
        for number in 0..1_000 {
            // Behind the last key, or among the others.
            let key = number * 3 + if is_ascending { 5_001 } else { 1 };
            batch.insert(&table, key, number).unwrap();
            batch.insert(&names, &format!("a common prefix {key:06}"), "new").unwrap();
        }
        batch.remove(&table, 10).unwrap();
        let ((), cost) = store.heap().pool().pmem().counted().count(|| batch.commit().unwrap());
        println!("{slots} slots, ascending {is_ascending}: {cost:?}");
        drop((table, names));
        let store = reopen(&pmem, store, true);
        let table = store.table::<u64, u64>("t").unwrap();
        let names = store.table::<&str, &str>("names").unwrap();
        let lens = (table.len().unwrap(), names.len().unwrap());
        // 10 is also one of the inserted keys, if they are among the others.
        assert_eq!(lens, if is_ascending { (1_002, 1_003) } else { (1_001, 1_002) });
        assert!(store.check().unwrap().is_sound());
        assert_eq!(names.range(..).count() as u64, names.len().unwrap());
    }
}

/// The number of each kind of call: loads, stores, flushes and fences.
#[derive(Debug, Default)]
struct Calls([AtomicU64; 4]);

impl Calls {
    fn count(&self, kind: usize) {
        self.0[kind].fetch_add(1, Ordering::Relaxed);
    }

    /// The calls since this was asked last, by key.
    fn take(&self, keys: u64) -> [f64; 4] {
        self.0.each_ref().map(|calls| calls.swap(0, Ordering::Relaxed) as f64 / keys as f64)
    }
}

impl<R: Pmem> Hook<R> for Calls {
    fn before_load(&self, _: Range<u64>) {
        self.count(0);
    }

    fn before_load_u64(&self, _: u64) {
        self.count(0);
    }

    fn before_store(&self, _: Range<u64>) {
        self.count(1);
    }

    fn before_flush(&self, _: Range<u64>) {
        self.count(2);
    }

    fn fence(&self, region: &R) -> Result<(), FenceError> {
        self.count(3);
        region.fence()
    }
}

#[test]
fn calls_by_key_do_not_grow_with_the_batch() {
    const LONG: u64 = 20_000;
    let calls = Arc::new(Calls::default());
    let pmem = any(Hooked::new(Region::anonymous(128 << 20).unwrap(), Arc::clone(&calls)));
    let store = Store::format(pmem, &StoreOptions::new()).unwrap();
    for existing in [0, 3, 30_000] {
        let by_key = [1_000, LONG].map(|length| {
            let mut random = fastrand::Rng::with_seed(existing);
            let words = store.table::<u64, u64>(&format!("words {existing} {length}")).unwrap();
            let names = store.table::<&str, u64>(&format!("names {existing} {length}")).unwrap();
            for _ in 0..existing {
                let key = random.u64(..);
                words.insert(key, 1).unwrap();
                names.insert(&format!("a common prefix {key:020}"), 1).unwrap();
            }
            // In a large table a longer batch splits more leaves, as do many short ones.
            let rounds = if existing < 100 { 1 } else { LONG / length };
            calls.take(1);
            for _ in 0..rounds {
                let mut batch = store.batch();
                for _ in 0..length {
                    let key = random.u64(..);
                    batch.insert(&words, key, 2).unwrap();
                    batch.insert(&names, &format!("a common prefix {key:020}"), 2).unwrap();
                }
                batch.commit().unwrap();
            }
            let by_key = calls.take(2 * length * rounds);
            assert_eq!(words.len().unwrap(), existing + rounds * length);
            assert_eq!(names.len().unwrap(), existing + rounds * length);
            by_key
        });
        println!("loads, stores, flushes and fences by key, {existing} keys before: {by_key:.4?}");
        let [short, long] = by_key;
        for (short, long) in short.into_iter().zip(long) {
            assert!(long <= short * 1.1 + 0.001, "{existing} keys before: {by_key:.4?}");
        }
    }
    assert!(store.check().unwrap().is_sound());
}

/// Batches of random operations behave like those on maps, in stores that are closed or killed from time to time.
fn check_model(slots: u32, seed: u64) {
    let (pmem, mut store) = create(slots);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut words: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut names: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    let name = |number: u64| format!("a common prefix {number}").into_bytes();
    let rounds =
        std::env::var("PM_MODEL_OPS").map_or(1_500, |count| count.parse::<u64>().expect("a number") / 50);
    for round in 0..rounds {
        if random.u32(..100) == 0 {
            store = reopen(&pmem, store, random.bool());
        }
        let of_words = store.table::<u64, &[u8]>("words").unwrap();
        let of_names = store.table::<&[u8], u64>("names").unwrap();
        let mut batch = store.batch();
        let (base, width) = (random.u64(..2_000), *random.choice(&[5, 40, 1_000]).unwrap());
        let removals = random.u32(..4);
        for _ in 0..random.u64(..60) {
            let number = base + random.u64(..width);
            let value: Vec<u8> = vec![random.u8(..); random.usize(..40)];
            match (random.bool(), random.u32(..4) < removals) {
                (true, false) => {
                    batch.insert(&of_words, number, &value).unwrap();
                    words.insert(number, value);
                }
                (true, true) => {
                    batch.remove(&of_words, number).unwrap();
                    words.remove(&number);
                }
                (false, false) => {
                    batch.insert(&of_names, &name(number), number + round).unwrap();
                    names.insert(name(number), number + round);
                }
                (false, true) => {
                    batch.remove(&of_names, &name(number)).unwrap();
                    names.remove(&name(number));
                }
            }
        }
        batch.commit().unwrap();
        for _ in 0..random.u32(..8) {
            let number = base + random.u64(..width);
            match random.u32(..3) {
                0 => assert_eq!(
                    of_words.insert(number, b"single").unwrap(),
                    words.insert(number, b"single".to_vec()).is_none()
                ),
                1 => assert_eq!(of_words.remove(number).unwrap(), words.remove(&number).is_some()),
                _ => {
                    assert_eq!(of_names.remove(&name(number)).unwrap(), names.remove(&name(number)).is_some())
                }
            }
        }
        assert_eq!(
            (of_words.len().unwrap(), of_names.len().unwrap()),
            (words.len() as u64, names.len() as u64)
        );
        if round % 50 == 0 || round + 1 == rounds {
            let found: BTreeMap<u64, Vec<u8>> = of_words
                .range(..)
                .map(|entry| entry.map(|(key, value)| (key.value(), value.value().to_vec())).unwrap())
                .collect();
            assert_eq!(found, words);
            let found: BTreeMap<Vec<u8>, u64> = of_names
                .range(..)
                .map(|entry| entry.map(|(key, value)| (key.value().to_vec(), value.value())).unwrap())
                .collect();
            assert_eq!(found, names);
            assert!(store.check().unwrap().is_sound());
        }
    }
}

#[test]
fn batches_are_those_of_maps() {
    for seed in 0..2 {
        check_model(4, seed);
        check_model(8, seed);
        check_model(62, seed);
    }
}

/// The space of replaced records is used again.
#[test]
fn replaced_records_are_released() {
    let (_, store) = create(62);
    let table = store.table::<u64, &[u8]>("t").unwrap();
    let mut used = Vec::new();
    for round in 0..40_u8 {
        let mut batch = store.batch();
        for key in 0..20 {
            match (u64::from(round) + key) % 5 {
                0 => batch.remove(&table, key).unwrap(),
                _ => batch.insert(&table, key, &[round; 100]).unwrap(),
            }
        }
        batch.commit().unwrap();
        used.push(store.stats().unwrap().used_bytes);
    }
    assert_eq!(used[10..].iter().max(), used[5..15].iter().max(), "{used:?}");
}

/// Threads move money between accounts of two tables, in batches. No crash and no interleaving changes the sum.
#[test]
fn transfers_of_threads_keep_the_sum() {
    const ACCOUNTS: u64 = 40;
    const THREADS: u64 = 3;
    let (pmem, store) = create(4);
    let locks: Vec<std::sync::Mutex<()>> = (0..ACCOUNTS).map(|_| std::sync::Mutex::new(())).collect();
    {
        let even = store.table::<u64, u64>("even").unwrap();
        let odd = store.table::<&str, u64>("odd").unwrap();
        for account in 0..ACCOUNTS {
            even.insert(account, 1_000).unwrap();
            odd.insert(&format!("the odd account {account}"), 1_000).unwrap();
        }
    }
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (store, locks) = (&store, &locks);
            scope.spawn(move || {
                let even = store.table::<u64, u64>("even").unwrap();
                let odd = store.table::<&str, u64>("odd").unwrap();
                let log = store.table::<(u64, u64), u64>("log").unwrap();
                let mut random = fastrand::Rng::with_seed(thread);
                for number in 0..2_000 {
                    // Account `a` of one table, account `b` of the other. The locks make reading and writing one step.
                    let (a, b) = (random.u64(..ACCOUNTS), random.u64(..ACCOUNTS));
                    let _first = locks[a.min(b) as usize].lock().unwrap();
                    let _second = (a != b).then(|| locks[a.max(b) as usize].lock().unwrap());
                    let name = format!("the odd account {b}");
                    let have = even.get(a).unwrap().map_or(0, |value| value.value());
                    let other = odd.get(&name).unwrap().map_or(0, |value| value.value());
                    let amount = random.u64(..=have);
                    let mut batch = store.batch();
                    match have - amount {
                        0 => batch.remove(&even, a).unwrap(),
                        rest => batch.insert(&even, a, rest).unwrap(),
                    }
                    batch.insert(&odd, &name, other + amount).unwrap();
                    batch.insert(&log, (thread, number), amount).unwrap();
                    batch.commit().unwrap();
                    if other + amount > 1_500 {
                        let back =
                            [(&odd, &name)].map(|(table, name)| table.get(name).unwrap().unwrap().value());
                        let mut batch = store.batch();
                        let have = even.get(a).unwrap().map_or(0, |value| value.value());
                        batch.insert(&even, a, have + back[0]).unwrap();
                        batch.remove(&odd, &name).unwrap();
                        batch.commit().unwrap();
                    }
                }
            });
        }
    });
    let store = reopen(&pmem, store, true);
    assert!(store.check().unwrap().is_sound());
    let even = store.table::<u64, u64>("even").unwrap();
    let odd = store.table::<&str, u64>("odd").unwrap();
    let sums = [
        even.range(..).map(|entry| entry.unwrap().1.value()).sum::<u64>(),
        odd.range(..).map(|entry| entry.unwrap().1.value()).sum::<u64>(),
    ];
    assert_eq!(sums.iter().sum::<u64>(), 2 * ACCOUNTS * 1_000);
    assert_eq!(store.table::<(u64, u64), u64>("log").unwrap().len().unwrap(), THREADS * 2_000);
}

/// Batches of overlapping keys, pops and single changes at the same time: no deadlock, and all leaves stay sound.
#[test]
fn batches_pops_and_changes_overlap() {
    let (pmem, store) = create(4);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let store = &store;
            scope.spawn(move || {
                let tables = ["a", "b"].map(|name| store.table::<u64, u64>(name).unwrap());
                let mut random = fastrand::Rng::with_seed(thread);
                for _ in 0..3_000 {
                    let mut key = || random.u64(..300);
                    match thread {
                        0 => {
                            tables[0].pop_first().unwrap();
                            tables[1].pop_last().unwrap();
                        }
                        1 => {
                            tables[0].insert(key(), 1).unwrap();
                            tables[1].remove(key()).unwrap();
                        }
                        _ => {
                            let mut batch = store.batch();
                            for table in &tables {
                                for _ in 0..6 {
                                    batch.insert(table, key(), thread).unwrap();
                                    batch.remove(table, key()).unwrap();
                                }
                            }
                            batch.commit().unwrap();
                        }
                    }
                }
            });
        }
    });
    let lens = ["a", "b"].map(|name| store.table::<u64, u64>(name).unwrap().len().unwrap());
    let store = reopen(&pmem, store, true);
    assert!(store.check().unwrap().is_sound());
    for (name, len) in ["a", "b"].into_iter().zip(lens) {
        let table = store.table::<u64, u64>(name).unwrap();
        assert_eq!((table.len().unwrap(), table.range(..).count() as u64), (len, len));
        while table.pop_last().unwrap().is_some() {}
        assert!(table.is_empty().unwrap());
    }
}

/// More batches at a time than a session has slots.
#[test]
fn batches_wait_for_slots() {
    let (_, store) = create(8);
    std::thread::scope(|scope| {
        for thread in 0..20_u64 {
            let store = &store;
            scope.spawn(move || {
                let table = store.table::<u64, u64>(&format!("table {}", thread % 3)).unwrap();
                for number in 0..200 {
                    let mut batch = store.batch();
                    batch.insert(&table, thread << 32 | number, number).unwrap();
                    batch.commit().unwrap();
                }
            });
        }
    });
    assert_eq!(
        store.tables().iter().map(|table| store.table_len(&table.name).unwrap().unwrap()).sum::<u64>(),
        20 * 200
    );
}

#[test]
fn sorted_entries_fill_leaves() {
    let (pmem, store) = create(62);
    let table = store.table::<u64, u64>("t").unwrap();
    let count = 100_000;
    let load = || table.extend_sorted((0..count).map(|key| (key, !key))).unwrap();
    let (loaded, cost) = store.heap().pool().pmem().counted().count(load);
    assert_eq!((loaded, table.len().unwrap()), (count, count));
    println!("{} entries: {cost:?}", count);
    assert!(cost.fences < count / 500, "{cost:?}");
    let leaves = store.check().unwrap().leaves;
    assert!(leaves <= count / 61 + 40, "{leaves} leaves");
    // The values are replaced, and new keys are inserted between them.
    let names = store.table::<&str, &[u8]>("names").unwrap();
    let keys: Vec<String> = (0..20_000).map(|key| format!("a common prefix {key:08}")).collect();
    let value = [3; 100];
    for _ in 0..2 {
        let entries = keys.iter().map(|key| (key.as_str(), value.as_slice()));
        assert_eq!(names.extend_sorted(entries).unwrap(), 20_000);
    }
    drop((table, names));
    let store = reopen(&pmem, store, true);
    assert!(store.check().unwrap().is_sound());
    assert_eq!(store.table::<&str, &[u8]>("names").unwrap().len().unwrap(), 20_000);
    assert_eq!(store.table::<u64, u64>("t").unwrap().range(..).count() as u64, count);
}

#[test]
fn key_out_of_order_ends_a_load() {
    let (_, store) = create(8);
    let table = store.table::<u64, u64>("t").unwrap();
    for repeated in [4_999, 0, 4_998] {
        let keys = (0..5_000).chain([repeated]).chain(5_000..6_000);
        let error = table.extend_sorted(keys.map(|key| (key, key))).unwrap_err();
        assert!(matches!(error.failure, LoadFailure::OutOfOrder), "{error}");
        assert_eq!((error.durable, table.len().unwrap()), (5_000, 5_000));
    }
    assert_eq!(table.extend_sorted([]).unwrap(), 0);
    let long = vec![0; 16 << 20];
    let bytes = store.table::<u64, &[u8]>("bytes").unwrap();
    let entries = [(1, b"short".as_slice()), (2, &long)];
    let error = bytes.extend_sorted(entries).unwrap_err();
    assert!(matches!(error.failure, LoadFailure::Write(WriteError::TooLong { .. })), "{error}");
    assert_eq!((error.durable, bytes.len().unwrap()), (0, 0));
}

/// A batch writes entries with records. A split moves them, but leaves the moved ones in the slots of the left leaf, where one has the key that separates the
/// leaves. Then changes in the right leaf release their records, whose space is used again. After a kill none of these stale entries counts.
#[test]
fn entries_that_a_split_has_moved_do_not_count_after_a_kill() {
    for (slots, count) in [(62, 60), (6, 6), (4, 4)] {
        // The first key that is changed later: at one of them, only the right leaf is.
        for first in 0..count {
            let pmem = Arc::new(Counting::new(Region::anonymous(4 << 20).unwrap()));
            let store = Store::format(any(&pmem), &StoreOptions::new().node_slots(slots)).unwrap();
            let table = store.table::<u64, [u8; 100]>("t").unwrap();
            let mut batch = store.batch();
            for key in 0..count {
                batch.insert(&table, 2 * key, [1; 100]).unwrap();
            }
            batch.commit().unwrap();
            for key in count * 5 / 6..count * 5 / 6 + 8.min(count) {
                table.insert(2 * key + 1, [2; 100]).unwrap();
            }
            for round in 3..43 {
                for key in first..count {
                    table.insert(2 * key, [round; 100]).unwrap();
                }
            }
            drop(table);
            let store = reopen(&pmem, store, true);
            let table = store.table::<u64, [u8; 100]>("t").unwrap();
            let case = format!("{slots} slots, changed from {first} on");
            for key in 0..count {
                let value = table.get(2 * key).unwrap_or_else(|error| panic!("{case}, key {key}: {error}"));
                assert_eq!(value.unwrap().value(), [if key < first { 1 } else { 42 }; 100], "{case}");
            }
            let report = store.check().unwrap();
            assert!(report.is_sound(), "{case}: {report:?}");
            (0..count).for_each(|key| assert!(table.insert(2 * key, [43; 100]).is_ok()));
        }
    }
}
