//! Groups in stores that are nearly full, and beside corrupted entries and failed fences.

use super::changes_of_damaged::{AnyStore, closed_bytes, region_of, small};
use pm_btree::{Store, StoreOptions, WriteError};
use pm_core::{Pmem, Region};
use pm_testkit::any;
use std::sync::Arc;

fn format(bytes: u64, options: &StoreOptions) -> AnyStore {
    Store::format(any(Arc::new(Region::anonymous(bytes).unwrap())), options).unwrap()
}

/// Inserts ascending keys without records until no leaf can be split.
fn use_up_nodes(store: &AnyStore) {
    let filler = store.table::<u64, u64>("filler").unwrap();
    let error = (0_u64..).find_map(|key| filler.insert(key, key).err()).unwrap();
    assert!(matches!(error, WriteError::Full), "{error}");
}

/// A grouped update that cannot have nodes set aside is made at once. What was set aside for it before that was noticed must be free again.
#[test]
fn grouped_update_in_a_store_without_nodes_takes_no_space() {
    for is_grouped in [false, true] {
        let store = format(256 << 10, &small().group_commits(8));
        let table = store.table::<u64, &[u8]>("t").unwrap();
        // A leaf with three of four slots taken: a fourth key would split it.
        (0..3).for_each(|key| assert!(table.insert(key, &[1; 900]).unwrap()));
        // Space for a second record of the key.
        let spare = store.table::<u64, &[u8]>("spare").unwrap();
        (0..12).for_each(|key| assert!(spare.insert(key, &[1; 900]).unwrap()));
        use_up_nodes(&store);
        (0..12).for_each(|key| assert!(spare.remove(key).unwrap()));
        for round in 0..100_u8 {
            // An update of a key needs no node.
            let updated = match is_grouped {
                false => table.insert(1, &[round; 900]).map(drop),
                true => table.insert_grouped(1, &[round; 900]),
            };
            updated.unwrap_or_else(|error| panic!("grouped: {is_grouped}, round {round}: {error}"));
            store.sync().unwrap();
            assert_eq!(table.get(1).unwrap().unwrap().value(), [round; 900]);
        }
    }
}

/// Long keys join a group while their leaf has room, and then short ones, for which the leaf must be split between the long ones. What joins is made.
#[test]
fn long_separator_of_a_group_has_room() {
    let long = |last: u8| [[b'm'; 700].as_slice(), &[last]].concat();
    let mut store = format(256 << 10, &small().group_commits(16));
    {
        let table = store.table::<&[u8], &[u8]>("t").unwrap();
        table.insert(b"a", b"1").unwrap();
        let nodes = store.table::<u64, u64>("nodes").unwrap();
        (0..100).for_each(|key| assert!(nodes.insert(key, key).unwrap()));
        let filler = store.table::<u64, &[u8]>("filler").unwrap();
        (1_000..1_050).for_each(|key| assert!(filler.insert(key, &[1; 12]).unwrap()));
        // Records of the class of the long keys with their values use up the pool.
        let error = (0..1_000).find_map(|key| filler.insert(key, &[1; 760]).err()).unwrap();
        assert!(matches!(error, WriteError::Full), "{error}");
        // There is room for nodes, for short separators, and for the records of the long keys; none for their separator.
        assert_eq!(nodes.remove_range(..).unwrap(), 100);
        assert_eq!(filler.remove_range(1_000..1_050).unwrap(), 50);
        (0..4).for_each(|key| assert!(filler.remove(key * 5).unwrap()));
    }
    store.compact().unwrap();
    let table = store.table::<&[u8], &[u8]>("t").unwrap();
    let mut joined = vec![(b"a".to_vec(), b"1".to_vec())];
    for key in [long(1), long(2), b"b".to_vec(), b"z".to_vec()] {
        match table.insert_grouped(&key, b"2") {
            Ok(()) => joined.push((key, b"2".to_vec())),
            Err(error) => assert!(matches!(error, WriteError::Full), "{error}"),
        }
    }
    let waiting = store.grouped_len();
    let synced = store.sync();
    assert!(
        synced.is_ok(),
        "{waiting} changes waited: {}",
        format!("{synced:?}").chars().take(300).collect::<String>()
    );
    joined.sort();
    let found: Vec<_> = table
        .range(..)
        .map(|entry| entry.map(|(key, value)| (key.value().to_vec(), value.value().to_vec())).unwrap())
        .collect();
    assert!(found == joined);
}

/// Long keys, with separators of nearly their length, in groups, batches and by themselves: the longest ones that have no block of their own, and longer ones.
#[test]
fn long_keys_are_changed_in_groups() {
    for (limit, len) in [(1, 984), (2, 984), (7, 984), (100, 984), (2, 985), (100, 5_000)] {
        let store = format(if len < 985 { 4 << 20 } else { 16 << 20 }, &small().group_commits(limit));
        let table = store.table::<&[u8], &[u8]>("t").unwrap();
        let too_long = table.insert_grouped(&vec![7; 16 << 20], b"");
        assert!(matches!(too_long, Err(WriteError::TooLong { .. })), "{too_long:?}");
        let key = |number: u16| [vec![7; len - 2].as_slice(), &number.to_be_bytes()].concat();
        for number in 0..400_u16 {
            let key = key((u32::from(number) * 7919 % 400) as u16);
            match number % 5 {
                0 => drop(table.insert(&key, b"").unwrap()),
                1 => {
                    let mut batch = store.batch();
                    batch.insert(&table, &key, b"").unwrap();
                    batch.remove(&table, &key[..len - 1]).unwrap();
                    batch.commit().unwrap();
                }
                _ => table.insert_grouped(&key, b"").unwrap(),
            }
        }
        store.sync().unwrap();
        assert_eq!(table.len().unwrap(), 400);
        assert!(table.range(..).zip(0..).all(|(entry, number)| entry.unwrap().0.value() == key(number)));
        assert!(store.check().unwrap().is_sound());
        (0..400).for_each(|number| table.remove_grouped(&key(number)).unwrap());
        store.sync().unwrap();
        assert_eq!(table.len().unwrap(), 0);
    }
}

/// A leaf with a corrupted entry takes updates of its other keys, in a group as without one.
#[test]
fn grouped_update_beside_a_corrupted_entry_is_made() {
    let options = small().group_commits(8);
    let bytes = closed_bytes(&options, 1 << 20, |store| {
        let table = store.table::<u64, u64>("t").unwrap();
        (1..4).for_each(|key| assert!(table.insert(key, 0x1122_3344_5566_7700 + key).unwrap()));
    });
    // The value of key 2.
    let entry = [2_u64.to_le_bytes(), 0x1122_3344_5566_7702_u64.to_be_bytes()].concat();
    let at = bytes.windows(16).position(|window| window == entry).unwrap() as u64;
    for is_grouped in [false, true] {
        let pmem = region_of(&bytes);
        pmem.store(at + 8, &[0xff]);
        let store = Store::attach(any(pmem), &options).unwrap();
        let table = store.table::<u64, u64>("t").unwrap();
        assert!(table.get(2).is_err());
        let updated = if is_grouped { table.insert_grouped(1, 5) } else { table.insert(1, 5).map(drop) };
        assert!(updated.is_ok(), "grouped: {is_grouped}: {updated:?}");
        store.sync().unwrap();
        assert_eq!(table.get(1).unwrap().unwrap().value(), 5);
    }
}

/// After a failed fence the store accepts no more changes, also if the fence was one of the heap's transaction that adds an extent.
#[test]
fn no_change_joins_a_group_after_a_failed_fence_of_the_heap() {
    use pm_testkit::SampledPmem;
    let mut tried = 0;
    for events in 0..60 {
        let sampled = Arc::new(SampledPmem::new(1 << 20));
        let store = Store::format(any(Arc::clone(&sampled)), &small().group_commits(8)).unwrap();
        let words = store.table::<u64, u64>("words").unwrap();
        let records = store.table::<u64, &[u8]>("records").unwrap();
        words.insert(1, 1).unwrap();
        sampled.fail_at(sampled.events() + events);
        // The first record of its class.
        if records.insert(1, &[7; 100]).is_ok() || !sampled.has_failed() {
            continue;
        }
        tried += 1;
        let joined = words.insert_grouped(2, 2);
        assert!(
            joined.is_err(),
            "{events} events: a change was accepted after a failed fence; a sync says {:?}",
            store.sync()
        );
    }
    assert!(tried > 10, "{tried}");
}

/// Space that is set aside for a group is no reason to refuse a table: a commit of the group makes it free.
#[test]
fn table_is_created_in_space_that_a_group_does_not_need() {
    let mut wrong = Vec::new();
    for (waiting, removed) in
        (2..24_u64).flat_map(|waiting| (1..12).map(move |removed| (waiting, 6 * removed)))
    {
        let mut store = format(256 << 10, &small().group_commits(100));
        drop(store.table::<u64, u64>("t").unwrap());
        (0..5).for_each(|number| drop(store.table::<u64, u64>(&format!("table {number}")).unwrap()));
        use_up_nodes(&store);
        let filler = store.table::<u64, u64>("filler").unwrap();
        assert_eq!(filler.remove_range(..removed).unwrap(), removed);
        drop(filler);
        store.compact().unwrap();
        let table = store.table::<u64, u64>("t").unwrap();
        (0..waiting).for_each(|key| drop(table.insert_grouped(key, key)));
        if store.grouped_len() as u64 != waiting {
            continue;
        }
        let first = store.table::<u64, u64>("new").map(drop);
        store.sync().unwrap();
        let second = store.table::<u64, u64>("new").map(drop);
        if first.is_err() && second.is_ok() {
            wrong.push((waiting, removed, format!("{first:?}")));
        }
    }
    assert!(wrong.is_empty(), "refused while so many changes waited, and created after a sync: {wrong:?}");
}

/// Threads that do everything at once, in a store with groups. It ends.
#[test]
fn threads_with_groups_do_not_wait_for_one_another_forever() {
    use core::time::Duration;
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for round in 0..20_u64 {
            let mut store = format(
                if round % 2 == 0 { 1 << 20 } else { 8 << 20 },
                &small().group_commits(if round % 3 == 0 { 1 } else { 9 }),
            );
            for part in 0..3 {
                std::thread::scope(|scope| {
                    for thread in 0..4_u64 {
                        let store = &store;
                        scope.spawn(move || {
                            let mut random = fastrand::Rng::with_seed(round * 100 + part * 10 + thread);
                            let words = store.table::<u64, u64>("words").unwrap();
                            let names = store.table::<&str, &[u8]>("names").unwrap();
                            for number in 0..800_u64 {
                                let key = random.u64(..200);
                                let name = format!("a name of {key:020}");
                                let name = name.as_str();
                                let full =
                                    |error: WriteError| assert!(matches!(error, WriteError::Full), "{error}");
                                match random.u32(..22) {
                                    0 => drop(words.insert(key, number).map_err(full)),
                                    1..5 => drop(words.insert_grouped(key, number).map_err(full)),
                                    5..8 => drop(names.insert_grouped(name, &[7; 90]).map_err(full)),
                                    8 => names.remove_grouped(name).unwrap(),
                                    9 => store.sync().unwrap(),
                                    10 => drop(store.sync_older(Duration::ZERO).unwrap()),
                                    11 => drop(store.table::<u64, u64>(&format!("table {}", key % 30))),
                                    12 => drop(store.table_len("names").unwrap()),
                                    13 => drop(store.stats().unwrap()),
                                    14 => drop(names.range(..).take(20).map(Result::unwrap).count()),
                                    15 => drop(
                                        words
                                            .update(key, |old| {
                                                Some(pm_btree::Encoded::new(old.unwrap_or(0) + 1))
                                            })
                                            .map_err(full),
                                    ),
                                    16 => drop(
                                        names
                                            .get_with(name, |_| words.insert_grouped(key, 1).map_err(full))
                                            .unwrap(),
                                    ),
                                    17 => {
                                        let _visited = names.visit(.., |_| {
                                            words.insert(key, 1).map_err(full).unwrap_or_default();
                                            core::ops::ControlFlow::Break(())
                                        });
                                    }
                                    18 => drop(words.remove_range(key..key + 9).unwrap()),
                                    19 => drop(names.pop_first().unwrap()),
                                    20 => drop(words.take(key).unwrap()),
                                    _ => {
                                        let mut batch = store.batch();
                                        batch.insert(&words, key, 3).unwrap();
                                        batch.remove(&names, name).unwrap();
                                        batch.commit().map_err(full).unwrap_or_default();
                                    }
                                }
                            }
                        });
                    }
                });
                store.compact().unwrap();
                assert!(store.check().unwrap().is_sound());
            }
            store.close().unwrap();
        }
        sender.send(()).unwrap();
    });
    receiver.recv_timeout(Duration::from_secs(100)).expect("the threads end");
}
