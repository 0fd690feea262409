//! Reads that lend values: what they find, and that the space of lent values is not used again.

use core::ops::ControlFlow;
use pm_btree::{Key, ReadError, Store, StoreOptions, Table, Value, WriteError};
use pm_core::{Pmem, Region};
use pm_crashsim::SimPmem;
use pm_testkit::any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// All entries in a range, as [`Table::visit`] finds them.
fn visited<K: Key, V: Value, P: Pmem, T>(
    table: &Table<K, V, P>,
    own: impl Fn(K::View<'_>, V::View<'_>) -> T,
) -> Vec<T> {
    let mut entries = Vec::new();
    let flow = table.visit(.., |entry| match entry {
        Ok((key, value)) => {
            entries.push(own(key, value));
            ControlFlow::Continue(())
        }
        Err(error) => ControlFlow::Break(error),
    });
    assert!(flow.is_continue(), "{flow:?}");
    entries
}

#[test]
fn lent_values_are_those_of_a_map() {
    let options = StoreOptions::new().node_slots(8);
    let store = Store::format(Region::anonymous(16 << 20).unwrap(), &options).unwrap();
    let words = store.table::<u64, &[u8]>("words").unwrap();
    let names = store.table::<&str, &[u8]>("names").unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    let (mut of_words, mut of_names) = (BTreeMap::new(), BTreeMap::new());
    for _ in 0..3_000 {
        let number = random.u64(..1_000);
        // Clustered and scattered keys.
        let key = if number < 500 { number } else { number << 50 };
        let value = vec![random.u8(..); [0, 5, 8, 9, 200, 3_000][random.usize(..6)]];
        let name = format!("a common prefix {number}");
        if random.u32(..3) == 0 {
            words.remove(key).unwrap();
            names.remove(&name).unwrap();
            of_words.remove(&key);
            of_names.remove(&name);
        } else {
            words.insert(key, &value).unwrap();
            names.insert(&name, &value).unwrap();
            of_words.insert(key, value.clone());
            of_names.insert(name, value);
        }
    }
    for number in 0..1_000 {
        let key = if number < 500 { number } else { number << 50 };
        assert_eq!(words.get_with(key, <[u8]>::to_vec).unwrap().as_ref(), of_words.get(&key));
        let name = format!("a common prefix {number}");
        assert_eq!(names.get_with(&name, <[u8]>::to_vec).unwrap().as_ref(), of_names.get(&name));
    }
    assert_eq!(visited(&words, |key, value| (key, value.to_vec())), Vec::from_iter(of_words));
    assert_eq!(visited(&names, |key, value| (key.to_owned(), value.to_vec())), Vec::from_iter(of_names));
    let flow = words.visit(7..=9, |entry| ControlFlow::Break(entry.unwrap().0));
    assert!(matches!(flow, ControlFlow::Break(7..=9)), "{flow:?}");
}

/// The simulator panics if lent bytes are stored to. Every value is replaced while one is lent, and all space is used again afterwards.
#[test]
fn space_of_lent_value_is_used_after_it() {
    let options = StoreOptions::new().node_slots(4).extent_bytes(4096);
    let store = Store::format(any(Arc::new(SimPmem::new(96 << 10))), &options).unwrap();
    let table = store.table::<u64, &[u8]>("t").unwrap();
    let replace = |value: u8| (0..6).try_for_each(|key| table.insert(key, &[value; 900]).map(drop));
    replace(1).unwrap();
    let is_full = table
        .get_with(3, |lent| {
            // Many more than there is space for, if nothing is released.
            let replaced = (2..30).try_for_each(replace);
            assert_eq!(lent, [1; 900]);
            matches!(replaced, Err(pm_btree::WriteError::Full))
        })
        .unwrap();
    assert_eq!(is_full, Some(true), "space waits for the reader");
    (30..100).try_for_each(replace).unwrap();
    let mut visits = 0;
    let flow: ControlFlow<()> = table.visit(.., |entry| {
        let (key, lent) = entry.unwrap();
        table.remove(5 - key).unwrap();
        table.insert(key, &[7; 900]).unwrap();
        assert_eq!(lent, [99; 900]);
        visits += 1;
        ControlFlow::Continue(())
    });
    assert!(flow.is_continue());
    assert_eq!(visits, 3, "the second half is removed before it is visited");
    assert!(store.check().unwrap().is_sound());
}

#[test]
fn values_stay_while_other_threads_replace_them() {
    let store = Store::format(Region::anonymous(8 << 20).unwrap(), &StoreOptions::new()).unwrap();
    let table = store.table::<u64, &[u8]>("t").unwrap();
    (0..200).for_each(|key| assert!(table.insert(key, &[1; 500]).unwrap()));
    let is_over = AtomicBool::new(false);
    let is_whole = |value: &[u8]| value.len() == 500 && value.iter().all(|byte| *byte == value[0]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = fastrand::Rng::with_seed(2);
            let _over = SetOnDrop(&is_over);
            for _ in 0..30_000 {
                let (key, value) = (random.u64(..200), [random.u8(..); 500]);
                // While the reader does not get a processor, no space is used again.
                while let Err(error) = table.insert(key, &value) {
                    assert!(matches!(error, WriteError::Full), "{error}");
                    std::thread::yield_now();
                }
            }
        });
        let mut random = fastrand::Rng::with_seed(3);
        while !is_over.load(Ordering::Relaxed) {
            assert_eq!(table.get_with(random.u64(..200), is_whole).unwrap(), Some(true));
            let mut keys = 0;
            let flow: ControlFlow<()> = table.visit(.., |entry| {
                assert!(is_whole(entry.unwrap().1));
                keys += 1;
                ControlFlow::Continue(())
            });
            assert!(flow.is_continue() && keys == 200, "{keys}");
        }
    });
}

/// Tells the reader that the writer has ended, by a panic too.
struct SetOnDrop<'f>(&'f AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A table of another type of the same width: the bytes are no string.
#[test]
fn bytes_that_are_no_value_are_an_error() {
    let pmem = Arc::new(Region::anonymous(1 << 20).unwrap());
    let store = Store::format(any(Arc::clone(&pmem)), &StoreOptions::new()).unwrap();
    let table = store.table::<u64, &str>("t").unwrap();
    table.insert(1, "a string of more than eight bytes").unwrap();
    drop((store, table));
    let mut bytes = vec![0; usize::try_from(pmem.len_bytes()).unwrap()];
    pmem.load(0, &mut bytes);
    let at = bytes.windows(8).position(|window| window == b"a string").unwrap() as u64;
    pmem.store(at, &[0xff]);
    let store = Store::attach(any(pmem), &StoreOptions::new()).unwrap();
    let table = store.table::<u64, &str>("t").unwrap();
    assert!(matches!(table.get_with(1, str::len), Err(ReadError::Decode(_))));
    let flow = table.visit(.., |entry| ControlFlow::Break(entry.map(|(key, _)| key)));
    assert!(matches!(flow, ControlFlow::Break(Err(ReadError::Decode(_)))), "{flow:?}");
    let store = {
        drop((store, table));
        let bytes = bytes.clone();
        let pmem = Arc::new(Region::anonymous(1 << 20).unwrap());
        pmem.store(0, &bytes);
        pmem.store(at, &[0xff]);
        Store::attach(any(pmem), &StoreOptions::new().verify_reads(true)).unwrap()
    };
    let table = store.table::<u64, &str>("t").unwrap();
    assert!(matches!(table.get_with(1, str::len), Err(ReadError::Corrupted(_))));
    let flow = table.visit(.., |entry| ControlFlow::Break(entry.map(|(key, _)| key)));
    assert!(matches!(flow, ControlFlow::Break(Err(ReadError::Corrupted(_)))), "{flow:?}");
}

/// The sweep ends while a value of an unvisited leaf is lent that was removed: its space is in use until the reader ends, and then released once.
#[test]
fn sweep_does_not_free_space_of_lent_value() {
    let options = StoreOptions::new().node_slots(4).extent_bytes(4096).sweep_at_open(0);
    let sim = Arc::new(SimPmem::new(256 << 10));
    let store = Store::format(any(Arc::clone(&sim)), &options).unwrap();
    let table = store.table::<u64, &[u8]>("t").unwrap();
    (0..8).for_each(|key| assert!(table.insert(key, &[1; 900]).unwrap()));
    drop(table);
    store.close().unwrap();
    let store = Store::attach(any(sim), &options).unwrap();
    let table = store.table::<u64, &[u8]>("t").unwrap();
    let mut map: BTreeMap<u64, u8> = (0..8).map(|key| (key, 1)).collect();
    let mut insert = |key: u64, value: u8| {
        table.insert(key, &[value; 900]).unwrap();
        map.insert(key, value);
    };
    table
        .get_with(3, |lent| {
            assert!(table.remove(3).unwrap());
            assert_eq!(table.len().unwrap(), 7);
            (100..112).for_each(|key| insert(key, 2));
            assert_eq!(lent, [1; 900]);
        })
        .unwrap();
    (200..212).for_each(|key| insert(key, 3));
    map.remove(&3);
    let expected: Vec<(u64, Vec<u8>)> = map.into_iter().map(|(key, value)| (key, vec![value; 900])).collect();
    assert_eq!(visited(&table, |key, value| (key, value.to_vec())), expected);
    assert!(store.check().unwrap().is_sound());
}

/// The medium corrupts entries of a leaf that was read before: what their payloads lead to is not lent.
#[test]
fn record_of_corrupted_entry_is_not_lent() {
    let pmem = Arc::new(Region::anonymous(1 << 20).unwrap());
    let store = Store::format(any(Arc::clone(&pmem)), &StoreOptions::new()).unwrap();
    let table = store.table::<u64, &[u8]>("t").unwrap();
    (1..9).for_each(|key| assert!(table.insert(key << 40, &[key as u8; 50]).unwrap()));
    let mut bytes = vec![0; usize::try_from(pmem.len_bytes()).unwrap()];
    pmem.load(0, &mut bytes);
    // Entries are at multiples of their length. Elsewhere other data may look like a key.
    let is_of = |entry: &[u8], key: u64| entry[..8] == (key << 40).to_le_bytes();
    let place = |key: u64| 32 * bytes.chunks(32).position(|entry| is_of(entry, key)).unwrap() as u64;
    // A record of another key, and one beyond the region.
    pmem.store_u64(place(3) + 8, pmem.load_u64(place(4) + 8));
    pmem.store_u64(place(5) + 8, pmem.load_u64(place(5) + 8) | 1 << 39);
    let mut found = Vec::new();
    let flow: ControlFlow<()> = table.visit(.., |entry| {
        found.push(entry.map(|(key, value)| (key >> 40, value[0])).ok());
        ControlFlow::Continue(())
    });
    assert!(flow.is_continue());
    let expected = (1..9).map(|key| (key != 3 && key != 5).then_some((key, key as u8)));
    assert_eq!(found, Vec::from_iter(expected));
    for key in [3, 5] {
        assert!(matches!(table.get_with(key << 40, <[u8]>::len), Err(ReadError::Corrupted(_))));
    }
    assert_eq!(table.get_with(4 << 40, <[u8]>::len).unwrap(), Some(50));
}
