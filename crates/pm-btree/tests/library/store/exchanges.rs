//! Changes that return the value that a key had.

use pm_btree::{EncodeError, Store, StoreOptions, WriteError};
use pm_core::{Counting, Pmem, Region};
use pm_testkit::{AnyPmem, any};
use std::collections::BTreeMap;
use std::sync::Arc;

fn create(options: &StoreOptions) -> Store<AnyPmem<'static>> {
    Store::format(any(Region::anonymous(16 << 20).unwrap()), options).unwrap()
}

/// Random exchanges behave like those of a map, with groups and without.
fn check_model(options: &StoreOptions) {
    let store = create(options);
    let words = store.table::<u64, u64>("words").unwrap();
    let names = store.table::<&str, &[u8]>("names").unwrap();
    let (mut map_of_words, mut map_of_names) = (BTreeMap::new(), BTreeMap::new());
    let mut random = fastrand::Rng::with_seed(3);
    for number in 0..4_000 {
        let key = random.u64(..150);
        let name = format!("a common prefix {key}");
        let value = vec![number as u8; random.usize(..60)];
        match random.u32(..6) {
            0 => assert_eq!(
                words.replace(key, number).unwrap().map(|old| old.value()),
                map_of_words.insert(key, number)
            ),
            1 => assert_eq!(words.take(key).unwrap().map(|old| old.value()), map_of_words.remove(&key)),
            2 => assert_eq!(
                names.replace(&name, &value).unwrap().map(|old| old.value().to_vec()),
                map_of_names.insert(name, value)
            ),
            3 => assert_eq!(
                names.take(&name).unwrap().map(|old| old.value().to_vec()),
                map_of_names.remove(&name)
            ),
            // Changes that wait are seen, if there are groups.
            4 => {
                names.insert_grouped(&name, &value).unwrap();
                map_of_names.insert(name, value);
            }
            _ => {
                words.remove_grouped(key).unwrap();
                map_of_words.remove(&key);
            }
        }
    }
    let found: Vec<_> = words.range(..).map(|entry| entry.unwrap()).collect();
    assert!(found.iter().map(|(key, value)| (key.value(), value.value())).eq(map_of_words));
    let found: Vec<_> = names.range(..).map(|entry| entry.unwrap()).collect();
    let found = found.iter().map(|(key, value)| (key.value().to_owned(), value.value().to_vec()));
    assert!(found.eq(map_of_names));
    assert!(store.check().unwrap().is_sound());
}

#[test]
fn exchanges_are_those_of_a_map() {
    check_model(&StoreOptions::new().node_slots(4));
    check_model(&StoreOptions::new().verify_reads(true));
    check_model(&StoreOptions::new().node_slots(4).group_commits(5));
}

/// Threads pass one token around: each replaces it by its own, and no token is returned twice or lost.
#[test]
fn replaced_values_are_returned_once() {
    const TURNS: u64 = 5_000;
    let store = create(&StoreOptions::new());
    let table = store.table::<&str, u64>("token").unwrap();
    table.insert("token", 0).unwrap();
    let threads = [1, 2].map(|thread| {
        let table = table.clone();
        std::thread::spawn(move || {
            let own = |turn: u64| 2 * turn + thread;
            (0..TURNS).map(|turn| table.replace("token", own(turn)).unwrap().unwrap().value()).collect()
        })
    });
    let mut returned: Vec<u64> =
        threads.into_iter().flat_map(|thread| -> Vec<u64> { thread.join().unwrap() }).collect();
    returned.push(table.take("token").unwrap().unwrap().value());
    returned.sort_unstable();
    assert_eq!(returned, Vec::from_iter(0..=2 * TURNS));
}

#[test]
fn taken_values_are_taken_by_one_thread() {
    let store = create(&StoreOptions::new());
    let table = store.table::<u64, u64>("jobs").unwrap();
    (0..3_000).for_each(|key| assert!(table.insert(key, !key).unwrap()));
    let threads = [1, 2].map(|_| {
        let table = table.clone();
        std::thread::spawn(move || -> Vec<u64> {
            (0..3_000).filter_map(|key| table.take(key).unwrap()).map(|value| !value.value()).collect()
        })
    });
    let mut taken: Vec<u64> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    taken.sort_unstable();
    assert_eq!(taken, Vec::from_iter(0..3_000));
    assert!(table.is_empty().unwrap());
}

/// The old value is of another type: the change is refused, and nothing has changed.
#[test]
fn value_that_cannot_be_decoded_stays() {
    let pmem = Arc::new(Region::anonymous(1 << 20).unwrap());
    let store = Store::format(any(Arc::clone(&pmem)), &StoreOptions::new()).unwrap();
    let table = store.table::<u64, &str>("t").unwrap();
    table.insert(1, "a string of more than eight bytes").unwrap();
    let mut bytes = vec![0; usize::try_from(pmem.len_bytes()).unwrap()];
    pmem.load(0, &mut bytes);
    let at = bytes.windows(8).position(|window| window == b"a string").unwrap() as u64;
    pmem.store(at, &[0xff]);
    assert!(matches!(table.replace(1, "b"), Err(WriteError::Decode(_))));
    assert!(matches!(table.take(1), Err(WriteError::Decode(_))));
    assert!(table.contains_key(1).unwrap());
    pmem.store(at, b"a");
    assert_eq!(table.take(1).unwrap().unwrap().value(), "a string of more than eight bytes");
}

#[test]
fn key_without_an_encoding_is_refused() {
    let store = create(&StoreOptions::new());
    let table = store.table::<(&str, u64), u64>("t").unwrap();
    let nul = |error| matches!(error, WriteError::Encode(EncodeError::Nul { position: 1 }));
    assert!(nul(table.replace(("a\0", 1), 1).unwrap_err()));
    assert!(nul(table.take(("a\0", 1)).unwrap_err()));
}

/// An exchange costs what an insertion or a removal costs.
#[test]
fn exchange_costs_one_fence() {
    let pmem = any(Counting::new(Region::anonymous(1 << 20).unwrap()));
    let store = Store::format(pmem, &StoreOptions::new()).unwrap();
    let table = store.table::<u64, [u8; 100]>("t").unwrap();
    table.insert(1, [1; 100]).unwrap();
    let count = |change: &dyn Fn()| store.heap().pool().pmem().counted().count(change).1;
    let changed = |cost: pm_core::Counts| (cost.lines, cost.fences);
    // The second change of each kind: the first one leaves a line of the leaf to be flushed.
    let insert = || assert!(!table.insert(1, [2; 100]).unwrap());
    let replace = || assert_eq!(table.replace(1, [3; 100]).unwrap().unwrap().value()[0], 2);
    insert();
    let inserted = changed(count(&insert));
    assert_eq!(changed(count(&replace)), inserted);
    assert_eq!(inserted.1, 1);
    for key in [2, 3] {
        table.insert(key, [1; 100]).unwrap();
    }
    let take = |key| assert_eq!(table.take(key).unwrap().unwrap().value(), [1; 100]);
    let remove = |key| assert!(table.remove(key).unwrap());
    remove(1);
    assert_eq!(changed(count(&|| remove(2))), (1, 1));
    assert_eq!(changed(count(&|| take(3))), (1, 1));
    assert_eq!(changed(count(&|| assert!(table.take(3).unwrap().is_none()))), (0, 0));
}
