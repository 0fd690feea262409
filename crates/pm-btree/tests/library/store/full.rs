//! Tests on full stores.

use pm_btree::{OpenError, Store, StoreOptions, Table, TableError, WriteError};
use pm_core::{Pmem, Region};
use pm_testkit::{AnyPmem, any};
use std::collections::BTreeMap;
use std::sync::Arc;

type Words = Table<u64, u64, AnyPmem<'static>>;

/// A full store takes more entries once it has grown, several times, and keeps all of them over the next open. A size that is too small changes nothing.
#[test]
fn full_store_grows() {
    let options = StoreOptions::new().node_slots(4).extent_bytes(4096);
    let mut store = Store::format(Region::anonymous(256 << 10).unwrap(), &options).unwrap();
    let mut keys = 0_u64;
    for pool_bytes in [512 << 10, 1 << 20, 3 << 20] {
        let before = keys;
        let table = store.table::<u64, &[u8]>("t").unwrap();
        let error = loop {
            match table.insert(keys, &[7; 300]) {
                Ok(_) => keys += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, WriteError::Full), "{error}");
        assert!(keys > before + before / 2, "{keys} after {before} keys");
        drop(table);
        store.grow(4096).unwrap_err();
        store.grow(pool_bytes).unwrap();
        let table = store.table::<u64, &[u8]>("t").unwrap();
        (0..keys).for_each(|key| assert_eq!(table.get(key).unwrap().unwrap().value(), [7; 300]));
    }
    let store = Store::attach(any(copy(&store)), &options).unwrap();
    assert!(store.check().unwrap().is_sound());
    assert_eq!(store.table::<u64, &[u8]>("t").unwrap().len().unwrap(), keys);
    assert_eq!(store.heap().blocks(), store.blocks());
}

// What must not happen: what fails takes space. A table that cannot be created because the catalogue has no room keeps its first leaf and its anchor until the next
// open, and each attempt takes two nodes more, until no leaf can be split.
#[test]
fn table_that_cannot_be_created_takes_no_space() {
    let pmem = Arc::new(Region::anonymous(1 << 20).unwrap());
    let options = StoreOptions::new().node_slots(4).extent_bytes(4096);
    let store = Store::format(any(pmem), &options).unwrap();
    let table = store.table::<u64, &[u8]>("t").unwrap();
    let mut keys = 0;
    while table.insert(keys, &[7; 900]).is_ok() {
        keys += 1;
    }
    // The description of a table has a record of 48 or 64 bytes. Updates need no nodes.
    let mut key = 0;
    for len in [48, 64] {
        while key < keys && table.insert(key, &vec![8; len]).is_ok() {
            key += 1;
        }
    }
    assert!(key < keys, "both classes are full");
    let before = store.stats().unwrap().used_bytes;
    for _ in 0..20 {
        let error = store.table::<u64, u64>("u").unwrap_err();
        assert!(matches!(error, TableError::Write(WriteError::Full)), "{error}");
    }
    assert_eq!(store.stats().unwrap().used_bytes, before);
}

/// What must not happen: a batch that fails takes space, because the leaves that it has split off stay although they have no entries.
#[test]
fn batch_that_fails_takes_no_space() {
    let options = StoreOptions::new().node_slots(4).extent_bytes(4096);
    let format = || Store::format(any(Region::anonymous(256 << 10).unwrap()), &options).unwrap();
    let fill = |table: &Words| (0..).find(|key| table.insert(3_000_000 + key, 1).is_err()).unwrap();
    let of_new = fill(&format().table("b").unwrap());
    let store = format();
    let (a, b) = (store.table::<u64, u64>("a").unwrap(), store.table::<u64, u64>("b").unwrap());
    assert!(a.insert(1_000_000, 1).unwrap() && b.insert(1_000_000, 1).unwrap());
    let before = store.check().unwrap().leaves;
    for attempt in 0..3 {
        let mut batch = store.batch();
        (0..300).for_each(|key| batch.insert(&a, 2_000_000 + key, key).unwrap());
        // All entries of this leaf move.
        (0..300).for_each(|key| batch.insert(&a, key, key).unwrap());
        (0..100_000).for_each(|key| batch.insert(&b, 2_000_000 + key, key).unwrap());
        let error = batch.commit().unwrap_err();
        assert!(matches!(error, WriteError::Full), "{error}");
        let report = store.check().unwrap();
        assert!(report.leaves < before + 32, "{attempt}: {before}, then {} leaves", report.leaves);
        assert!(report.is_sound(), "{attempt}: {report:?}");
        assert_eq!((a.len().unwrap(), b.len().unwrap()), (1, 1));
        assert_eq!(a.get(1_000_000).unwrap().unwrap().value(), 1);
    }
    let keys = fill(&b);
    assert!(keys * 100 >= of_new * 90, "{keys} keys, and {of_new} in a new store");
    assert!(store.check().unwrap().is_sound());
}

/// The pool is full, and there is space only in extents of before the open. A record of another length that waited for a reader does not help.
#[test]
fn full_store_ends_the_sweep_also_if_a_record_waits() {
    let options = StoreOptions::new().node_slots(4).extent_bytes(4096).sweep_at_open(0);
    let pmem = Arc::new(Region::anonymous(256 << 10).unwrap());
    let store = Store::format(any(Arc::clone(&pmem)), &options).unwrap();
    let table = store.table::<u64, &[u8]>("t").unwrap();
    assert!(table.insert(0, &[1; 100]).unwrap());
    let mut keys = 1;
    while table.insert(keys, &[7; 900]).is_ok() {
        keys += 1;
    }
    drop(table);
    store.close().unwrap();
    let store = Store::attach(any(pmem), &options).unwrap();
    let table = store.table::<u64, &[u8]>("t").unwrap();
    (1..9).for_each(|key| assert!(table.remove(key).unwrap()));
    table.get_with(0, |_| assert!(table.remove(0).unwrap())).unwrap();
    (1..9).for_each(|key| assert!(table.insert(key, &[8; 900]).unwrap()));
}

/// What is available is what records of a new length can take, and not what is free between others.
#[test]
fn available_space_serves_any_length() {
    let options = StoreOptions::new().node_slots(4).extent_bytes(4096);
    let pmem = Arc::new(Region::anonymous(1 << 20).unwrap());
    let store = Store::format(any(Arc::clone(&pmem)), &options).unwrap();
    let table = store.table::<u64, &[u8]>("t").unwrap();
    let mut keys = 0;
    while table.insert(keys, &[7; 900]).is_ok() {
        keys += 1;
    }
    assert_eq!(store.room(1000).unwrap().whole_bytes(), 0);
    (0..keys).filter(|key| key % 64 < 40 && key % 9 > 1).for_each(|key| assert!(table.remove(key).unwrap()));
    drop(table);
    let reopened = Store::attach(any(copy(&store)), &options).unwrap();
    for store in [store, reopened] {
        store.stats().unwrap();
        let available = store.room(1000).unwrap().whole_bytes();
        let before = store.stats().unwrap();
        let extent_bytes = 4096 - 128;
        assert!(available >= 20 * extent_bytes && available % extent_bytes == 0, "{available}");
        assert!(available * 3 < (before.pool_bytes - before.used_bytes) * 2, "{available} of {before:?}");
        let table = store.table::<u64, &[u8]>("u").unwrap();
        fill(&table, 700);
        let taken = store.stats().unwrap().extent_bytes - before.extent_bytes;
        // Extents that are empty may have been returned before.
        assert!(
            (available - 2 * extent_bytes..=available + extent_bytes).contains(&taken),
            "{taken} of {available}"
        );
        assert_eq!(store.room(1000).unwrap().whole_bytes(), 0);
    }
}

/// What is taken from a room can be inserted, of whatever lengths, in batches or alone; and little more than that.
#[test]
fn room_that_is_taken_is_there() {
    let mut emptier = 0;
    for seed in 0..100 {
        let mut random = fastrand::Rng::with_seed(seed);
        let options = StoreOptions::new().node_slots(8).extent_bytes(16 << 10);
        let pmem = Arc::new(Region::anonymous(4 << 20).unwrap());
        let store = Store::format(any(pmem), &options).unwrap();
        let (words, bytes) =
            (store.table::<u64, &[u8]>("w").unwrap(), store.table::<&[u8], &[u8]>("b").unwrap());
        // A few lengths, up to 16 KiB, of which some are removed.
        let length = |random: &mut fastrand::Rng| {
            let bits = random.u32(1..11);
            random.usize(0..16 << bits)
        };
        let value = vec![7; 64 << 10];
        let key = |number: u64, len: usize| [&number.to_be_bytes()[..], &value[..len]].concat();
        let lengths: Vec<_> = (0..random.usize(1..30)).map(|_| length(&mut random)).collect();
        let mut number = 0;
        let rounds = random.u64(50..2000);
        while number < rounds {
            let len = lengths[random.usize(..lengths.len())];
            if words.insert(number, &value[..len]).is_err()
                || bytes.insert(&key(number, len % 50), &value[..len]).is_err()
            {
                break;
            }
            number += 1;
        }
        for number in (0..number).filter(|_| random.u32(..8) < 5) {
            words.remove(number).unwrap();
        }
        let mut room = store.room(16 << 10).unwrap();
        let kept_bytes = if seed % 3 == 0 { 256 << 10 } else { 0 };
        let (before, mut taken_bytes) = (room.whole_bytes(), 0);
        let mut batch = store.batch();
        for _ in 0..100_000 {
            let len = length(&mut random);
            let number = random.u64(..);
            let key = key(number, random.usize(..100));
            let is_taken = if random.bool() {
                let is_taken = room.take_for_number(len as u64, kept_bytes);
                if is_taken && seed % 2 == 0 {
                    batch.insert(&words, number, &value[..len]).unwrap();
                } else if is_taken {
                    words.insert(number, &value[..len]).unwrap();
                }
                is_taken
            } else {
                let is_taken = room.take(key.len() as u64, len as u64, kept_bytes);
                if is_taken && seed % 2 == 0 {
                    batch.insert(&bytes, &key, &value[..len]).unwrap();
                } else if is_taken {
                    bytes.insert(&key, &value[..len]).unwrap();
                }
                is_taken
            };
            taken_bytes += if is_taken { len as u64 } else { 0 };
        }
        batch.commit().unwrap();
        let left = store.room(16 << 10).unwrap().whole_bytes();
        assert!(left >= kept_bytes.min(before), "{left} of {before} left with seed {seed}");
        // Each length takes a piece at first.
        if before > 2 << 20 {
            emptier += 1;
            assert!(taken_bytes * 4 >= before, "{taken_bytes} of {before} taken with seed {seed}");
        }
    }
    assert!(emptier > 5, "{emptier}");
}

/// A class with little left in its extents gets another one, so what is free there does not count beside whole pieces.
#[test]
fn room_has_no_units_that_are_not_taken() {
    let options = StoreOptions::new().node_slots(8).extent_bytes(16 << 10);
    let store = Store::format(any(Arc::new(Region::anonymous(1 << 20).unwrap())), &options).unwrap();
    let table = store.table::<u64, &[u8]>("t").unwrap();
    let value = vec![7; 16 << 10];
    let mut number = 0;
    let mut insert = |table: &Table<u64, &[u8], AnyPmem<'static>>, len: usize| {
        number += 1;
        table.insert(number, &value[..len]).unwrap();
    };
    let lengths: Vec<usize> = (3..15).map(|lines| lines * 64).collect();
    for len in &lengths {
        let units = (16 << 10) / len;
        (0..units - units / 12).for_each(|_| insert(&table, *len));
    }
    drop(table);
    // No thread has an extent from which it takes.
    let store = Store::attach(any(copy(&store)), &options).unwrap();
    let table = store.table("t").unwrap();
    store.stats().unwrap();
    let mut room = store.room(8000).unwrap();
    for len in &lengths {
        assert!(room.take_for_number(*len as u64, 0));
        insert(&table, *len);
    }
    let mut long = 0;
    while room.take_for_number(15_000, 0) {
        insert(&table, 15_000);
        long += 1;
    }
    assert!(long > 5, "{long}");
}

/// Gaps of one extent have no room for a record that needs two, also if they are half of the store.
#[test]
fn available_space_is_that_for_a_length() {
    let options = StoreOptions::new().node_slots(4).extent_bytes(4096);
    let store = Store::format(any(Arc::new(Region::anonymous(1 << 20).unwrap())), &options).unwrap();
    let table = store.table::<u64, &[u8]>("t").unwrap();
    // Each has a block for itself.
    let keys = fill(&table, 3968);
    let short = store.room(3968).unwrap().whole_bytes();
    (0..keys).step_by(2).for_each(|key| assert!(table.remove(key).unwrap()));
    assert!(store.room(3968).unwrap().whole_bytes() >= short + keys / 3 * 3968);
    let long = store.room(9000).unwrap().whole_bytes() / 9024;
    let table = store.table::<u64, &[u8]>("u").unwrap();
    let found = fill(&table, 9000);
    assert!(found <= long && found + 2 >= long, "{found} of {long}");
    assert_eq!(store.room(u64::MAX).unwrap().whole_bytes(), 0);
}

/// Extents that are longer than a chunk of the heap are counted, too.
#[test]
fn available_space_has_extents_longer_than_chunks() {
    let options = StoreOptions::new().extent_bytes(1 << 20);
    let store = Store::format(Region::anonymous(32 << 20).unwrap(), &options).unwrap();
    let available = store.room(100).unwrap().whole_bytes();
    assert!(available > 16 << 20, "{available}");
    let table = store.table::<u64, &[u8]>("t").unwrap();
    let mut keys = 0;
    while table.insert(keys, &[7; 2000]).is_ok() {
        keys += 1;
    }
    assert!(keys * 2000 > available * 3 / 4, "{keys} in {available}");
    assert_eq!(store.room(100).unwrap().whole_bytes(), 0);
}

#[test]
fn store_with_short_extents_is_not_too_long() {
    let options = StoreOptions::new().extent_bytes(4096);
    let mut store = Store::format(Region::anonymous(1 << 20).unwrap(), &options).unwrap();
    assert!(matches!(store.grow(8 << 30), Err(OpenError::Layout { .. })));
    assert_eq!(store.stats().unwrap().pool_bytes, 1 << 20);
    store.grow(2 << 20).unwrap();
}

/// A queue: entries are inserted at the end and removed at the start. Its empty leaves fill the pool, unless they are unlinked.
#[test]
fn compaction_releases_emptied_leaves() {
    let options = StoreOptions::new().node_slots(4).extent_bytes(4096).empty_leaves(u32::MAX);
    let mut store = Store::format(Region::anonymous(512 << 10).unwrap(), &options).unwrap();
    let mut next = 0_u64;
    let push_and_pop = |store: &Store, next: &mut u64| {
        let queue = store.table::<u64, u64>("queue").unwrap();
        while *next < 30_000 && queue.insert(*next, *next).is_ok() {
            *next += 1;
            while queue.len().unwrap() > 5 {
                queue.pop_first().unwrap();
            }
        }
        *next
    };
    let mut rounds = 0;
    while push_and_pop(&store, &mut next) < 30_000 {
        let keys = |store: &Store| -> Vec<u64> {
            let queue = store.table::<u64, u64>("queue").unwrap();
            queue.range(..).map(|entry| entry.unwrap().0.value()).collect()
        };
        let before = keys(&store);
        assert!(store.compact().unwrap() > 100 << 10);
        assert_eq!(keys(&store), before);
        assert!(store.check().unwrap().leaves < 6);
        rounds += 1;
    }
    assert!(rounds > 2, "{rounds}");
    assert!(store.check().unwrap().is_sound());
    store.compact().unwrap();
    assert_eq!(store.compact().unwrap(), 0);
}

/// A copy of the region of an open store, as a kill would leave it.
fn copy<P: Pmem>(store: &Store<P>) -> Arc<Region> {
    let mut bytes = vec![0; usize::try_from(store.stats().unwrap().pool_bytes).unwrap()];
    store.heap().pmem().load(0, &mut bytes);
    let killed = Region::anonymous(bytes.len() as u64).unwrap();
    killed.store(0, &bytes);
    Arc::new(killed)
}

/// Inserts values of this length from key 0 on until the store is full, and returns their number.
fn fill(table: &Table<u64, &'static [u8], AnyPmem<'static>>, bytes: usize) -> u64 {
    let value = vec![7; bytes];
    let mut keys = 0;
    loop {
        match table.insert(keys, &value) {
            Ok(_) => keys += 1,
            Err(error) => {
                assert!(matches!(error, WriteError::Full), "{error}");
                return keys;
            }
        }
    }
}

/// The space of removed values serves values of other lengths, also after an open, and after a kill.
#[test]
fn space_of_removed_values_serves_other_lengths() {
    let options = StoreOptions::new();
    let format = || Arc::new(Region::anonymous(16 << 20).unwrap());
    let lengths = [500, 600, 3000, 100, 20_000, 40];
    let of_new = lengths.map(|bytes| {
        let store = Store::format(any(format()), &options).unwrap();
        fill(&store.table("t").unwrap(), bytes)
    });
    let mut pmem = format();
    let mut store = Store::format(any(Arc::clone(&pmem)), &options).unwrap();
    for (round, (bytes, of_new)) in lengths.into_iter().zip(of_new).enumerate() {
        let table = store.table::<u64, &[u8]>("t").unwrap();
        let keys = fill(&table, bytes);
        assert!(keys * 100 >= of_new * 95, "{keys} values of {bytes}, and {of_new} in a new store");
        assert_eq!(table.len().unwrap(), keys);
        assert!(table.range(..).all(|entry| entry.unwrap().1.value() == vec![7; bytes]));
        let even = table.retain(|key, _| key % 2 == 0).unwrap();
        assert_eq!(even, keys / 2);
        table.retain(|_, _| false).unwrap();
        assert!(store.check().unwrap().is_sound());
        assert_eq!(store.heap().blocks(), store.blocks());
        drop(table);
        // Leaves stay leaves: a store of short values would have many of them.
        store.compact().unwrap();
        match round % 3 {
            0 => (),
            1 => {
                store.close().unwrap();
                store = Store::attach(any(Arc::clone(&pmem)), &options).unwrap();
            }
            _ => {
                pmem = copy(&store);
                store = Store::attach(any(Arc::clone(&pmem)), &options).unwrap();
            }
        }
    }
}

/// The space of leaves serves values after a close, which nothing but the leaves had filled, however the entries were removed.
#[test]
fn space_of_leaves_serves_values_after_a_close() {
    let removals: [fn(&Words); 2] = [
        |short| assert!(short.retain(|_, _| false).unwrap() > 0),
        |short| assert!(short.remove_range(..).unwrap() > 0),
    ];
    let options = StoreOptions::new().removal_batch(1 << 20);
    let format = || Arc::new(Region::anonymous(16 << 20).unwrap());
    let of_new = fill(&Store::format(any(format()), &options).unwrap().table("t").unwrap(), 500);
    for (number, remove) in removals.into_iter().enumerate() {
        let pmem = format();
        let store = Store::format(any(Arc::clone(&pmem)), &options).unwrap();
        let short = store.table::<u64, u64>("short").unwrap();
        let mut keys = 0_u64;
        while short.insert(keys, keys).is_ok() {
            keys += 1;
        }
        assert!(keys > 300_000, "{keys}");
        remove(&short);
        drop(short);
        store.close().unwrap();
        let store = Store::attach(any(pmem), &options).unwrap();
        assert_eq!(store.heap().blocks(), store.blocks());
        let keys = fill(&store.table("t").unwrap(), 500);
        assert!(keys * 100 >= of_new * 95, "{number}: {keys} values, and {of_new} in a new store");
        assert!(store.check().unwrap().is_sound());
    }
}

/// Values longer than a quarter of an extent have blocks of their own, which return to the heap.
#[test]
fn long_values_have_blocks_of_their_own() {
    let options = StoreOptions::new().node_slots(4);
    let mut pmem = Arc::new(Region::anonymous(4 << 20).unwrap());
    let mut store = Store::format(any(Arc::clone(&pmem)), &options).unwrap();
    let mut random = fastrand::Rng::with_seed(3);
    let mut model = BTreeMap::new();
    for round in 0..6 {
        let table = store.table::<&[u8], &[u8]>("t").unwrap();
        for _ in 0..300 {
            let key = vec![7; random.usize(1..12) * 1000];
            if random.u8(..3) == 0 {
                assert_eq!(table.remove(&key).unwrap(), model.remove(&key).is_some());
            } else {
                let value = vec![random.u8(..); random.usize(..40_000)];
                let was_absent = table.insert(&key, &value).unwrap();
                assert_eq!(was_absent, model.insert(key, value).is_none());
            }
        }
        let found: BTreeMap<Vec<u8>, Vec<u8>> = table
            .range(..)
            .map(|entry| entry.map(|(key, value)| (key.value().to_vec(), value.value().to_vec())).unwrap())
            .collect();
        assert!(found == model, "round {round}");
        assert!(store.check().unwrap().is_sound());
        drop(table);
        if round % 2 == 0 {
            store.close().unwrap();
        } else {
            pmem = copy(&store);
        }
        store = Store::attach(any(Arc::clone(&pmem)), &options).unwrap();
        assert_eq!(store.heap().blocks(), store.blocks());
    }
    let table = store.table::<&[u8], &[u8]>("t").unwrap();
    table.retain(|_, _| false).unwrap();
    drop(table);
    store.compact().unwrap();
    assert!(store.stats().unwrap().extent_bytes < 300 << 10, "{:?}", store.stats().unwrap());
}

/// Threads that release and take records of few lengths, so that extents are returned while others look at them.
#[test]
fn extents_are_returned_beside_changes() {
    let options = StoreOptions::new().extent_bytes(4096);
    let store = Store::format(any(Region::anonymous(3 << 20).unwrap()), &options).unwrap();
    let table = store.table::<u64, &[u8]>("t").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let table = &table;
            scope.spawn(move || {
                for round in 0..60_u8 {
                    let len = [100, 250, 600, 1000, 1500][usize::from(round) % 5];
                    for key in 0..60 {
                        table.insert(thread << 32 | key, &vec![round; len]).unwrap();
                    }
                    for key in 0..60 {
                        let key = thread << 32 | key;
                        assert_eq!(table.get(key).unwrap().unwrap().value(), vec![round; len]);
                        assert!(round % 7 != 0 || table.remove(key).unwrap());
                    }
                }
            });
        }
    });
    assert!(store.check().unwrap().is_sound());
    assert_eq!(store.heap().blocks(), store.blocks());
}
