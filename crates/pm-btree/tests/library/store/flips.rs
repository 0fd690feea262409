//! Flipped bits in a closed store: a read returns the right value or an error, and never reports a key as absent.

use pm_btree::{ReadError, Store, StoreOptions, TableError};
use pm_core::{Pmem, Region};
use pm_testkit::{AnyPmem, any};
use std::collections::BTreeMap;
use std::sync::Arc;

const REGION_BYTES: u64 = 256 << 10;

/// The number of flips of each test.
fn flip_count() -> u64 {
    std::env::var("PM_FLIPS").map_or(1_500, |count| count.parse().expect("PM_FLIPS is a number"))
}

fn options() -> StoreOptions {
    StoreOptions::new().node_slots(8).verify_reads(true)
}

fn load(pmem: &Region) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(pmem.len_bytes()).unwrap()];
    pmem.load(0, &mut bytes);
    bytes
}

/// Flips a bit of each image, and reads all keys. Flips lie in the store's own blocks: the headers of the heap have copies, and tests of their own.
fn check_flips(
    bytes: &[u8],
    blocks: &[u64],
    read_all: impl Fn(&Store<AnyPmem<'static>>) -> Result<(), String>,
) {
    let mut random = fastrand::Rng::with_seed(5);
    let (mut errors, mut silent) = (0, 0);
    for _ in 0..flip_count() {
        let mut flipped = bytes.to_vec();
        let start = usize::try_from(*random.choice(blocks).unwrap()).unwrap();
        let at = start + random.usize(..4096 - 128);
        flipped[at] ^= 1 << random.u32(..8);
        let pmem = Arc::new(Region::anonymous(REGION_BYTES).unwrap());
        pmem.store(0, &flipped);
        match Store::attach(any(pmem), &options()) {
            Ok(store) => match read_all(&store) {
                Ok(()) => silent += 1,
                Err(_) => errors += 1,
            },
            Err(_) => errors += 1,
        }
    }
    println!("{errors} flips were reported, {silent} did no harm");
    assert!(errors > 0 && silent > 0, "both happen: {errors} and {silent}");
}

/// Reads all entries by key and in order. An error is an answer; a wrong value or a missing key fails the test.
macro_rules! read_all {
    ($store:expr, $key:ty, $map:expr, $view:expr) => {{
        let table = match $store.open_table::<$key, &[u8]>("t") {
            Ok(table) => table.expect("the table is not absent"),
            Err(TableError::Corrupted(corruption)) => return Err(corruption.to_string()),
            Err(error) => panic!("{error}"),
        };
        let mut failed = None;
        for (key, value) in $map {
            match table.get($view(key)) {
                Ok(found) => assert_eq!(found.expect("the key is not absent").value(), value.as_slice()),
                Err(error) => failed = Some(error.to_string()),
            }
        }
        let mut scanned = 0;
        for entry in table.range(..) {
            match entry {
                Ok((_, value)) => {
                    scanned += 1;
                    assert!($map.values().any(|stored| stored == value.value()));
                }
                Err(error) => failed = Some(error.to_string()),
            }
        }
        assert!(failed.is_some() || scanned == $map.len(), "a scan without an error is complete");
        failed.map_or(Ok(()), Err)
    }};
}

/// The keys of a corrupted node are errors. Changes of another table overwrite nothing of it: with the bit flipped back, it is complete.
#[test]
fn corrupted_table_is_not_overwritten() {
    let pmem = Arc::new(Region::anonymous(4 << 20).unwrap());
    let store = Store::format(any(Arc::clone(&pmem)), &options()).unwrap();
    let table = store.table::<u64, &[u8]>("t").unwrap();
    (0..500).for_each(|key| assert!(table.insert(key, &[key as u8; 50]).unwrap()));
    drop(table);
    store.close().unwrap();
    // The low fence of a node: the second word of a line that starts with the magic number of nodes, in a leaf of table 1.
    let bytes = load(&pmem);
    let starts_node = |line: &&usize| bytes[**line..].starts_with(b"PMBN\0\0\x01\0");
    let lines: Vec<usize> = (0..bytes.len()).step_by(64).collect();
    let node = **lines.iter().filter(starts_node).nth(2).as_ref().unwrap() as u64;
    let low = pmem.load_u64(node + 16);
    pmem.store_u64(node + 16, low ^ 4);
    for is_closed in [true, false] {
        let store = Store::attach(any(Arc::clone(&pmem)), &options()).unwrap();
        let table = store.table::<u64, &[u8]>("t").unwrap();
        let failed = (0..500).filter(|key| match table.get(*key) {
            Ok(value) => value.unwrap().value() != [*key as u8; 50],
            Err(error) => !matches!(error, ReadError::Corrupted(_)),
        });
        assert_eq!(failed.count(), 0, "each key has its value, or is an error");
        assert!((0..500).any(|key| table.get(key).is_err()) && table.range(..).any(|entry| entry.is_err()));
        assert!(matches!(table.len(), Err(ReadError::Corrupted(_))));
        assert!(!store.check().unwrap().is_sound());
        let other = store.table::<u64, &[u8]>("other").unwrap();
        for key in 0..500 {
            other.insert(key, &[7; 50]).unwrap();
        }
        drop((table, other));
        if is_closed {
            store.close().unwrap();
        }
    }
    pmem.store_u64(node + 16, low);
    let store = Store::attach(any(pmem), &options()).unwrap();
    assert!(store.check().unwrap().is_sound());
    for name in ["t", "other"] {
        let table = store.table::<u64, &[u8]>(name).unwrap();
        assert_eq!((table.range(..).count(), table.len().unwrap()), (500, 500));
    }
    let table = store.table::<u64, &[u8]>("t").unwrap();
    assert!((0..500).all(|key| table.get(key).unwrap().unwrap().value() == [key as u8; 50]));
}

/// The places in an image of the entries of table 1 with this word key, and of the records that they name.
fn entries_of(bytes: &[u8], key: u64) -> (Vec<usize>, Vec<usize>) {
    let word = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap());
    let is_node = |line: &usize| bytes[*line..].starts_with(b"PMBN\0\0\x01\0");
    let nodes = (0..bytes.len()).step_by(64).filter(is_node);
    let slots = nodes.flat_map(|node| (0..8).map(move |slot| node + 64 + 32 * slot));
    let entries: Vec<usize> = slots.filter(|slot| word(*slot) == key && word(slot + 24) != 0).collect();
    let records = entries.iter().map(|entry| (word(entry + 8) & ((1 << 40) - 1)) as usize * 16).collect();
    (entries, records)
}

/// A corrupted entry of a leaf makes exactly one item of a scan an error, in each direction; all other entries are returned, in order.
#[test]
fn scan_returns_intact_entries_of_corrupted_leaf() {
    const KEYS: u64 = 100;
    const CORRUPTED: u64 = 41;
    let pmem = Arc::new(Region::anonymous(REGION_BYTES).unwrap());
    let store = Store::format(any(Arc::clone(&pmem)), &options()).unwrap();
    let table = store.table::<u64, &[u8]>("t").unwrap();
    (0..KEYS).for_each(|key| assert!(table.insert(key, &[key as u8; 30]).unwrap()));
    drop(table);
    store.close().unwrap();
    let bytes = load(&pmem);
    let (entries, records) = entries_of(&bytes, CORRUPTED);
    let mut random = fastrand::Rng::with_seed(6);
    let places = |starts: &[usize], len| starts.iter().flat_map(move |at| *at..at + len).collect::<Vec<_>>();
    for at in places(&entries, 32).into_iter().chain(places(&records, 30)) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << random.u32(..8);
        let pmem = Arc::new(Region::anonymous(REGION_BYTES).unwrap());
        pmem.store(0, &flipped);
        let store = Store::attach(any(pmem), &options()).unwrap();
        let table = store.table::<u64, &[u8]>("t").unwrap();
        let is_found = match table.get(CORRUPTED) {
            Ok(value) => value.expect("the key is not absent").value() == [CORRUPTED as u8; 30],
            Err(_) => false,
        };
        let expected: Vec<u64> = (0..KEYS).filter(|key| is_found || *key != CORRUPTED).collect();
        let mut both_ends = table.range(..);
        let mut upper = Vec::new();
        let mut lower: Vec<_> = core::iter::from_fn(|| {
            upper.extend(both_ends.next_back());
            both_ends.next()
        })
        .collect();
        lower.extend(upper.into_iter().rev());
        for items in [
            table.range(..).collect(),
            table.range(..).rev().collect::<Vec<_>>().into_iter().rev().collect(),
            lower,
        ] {
            let (found, errors): (Vec<_>, Vec<_>) = items.into_iter().partition(Result::is_ok);
            assert_eq!(errors.len(), 1, "a flip at {at}");
            let found: Vec<u64> = found.into_iter().map(|item| item.unwrap().0.value()).collect();
            assert_eq!(found, expected, "a flip at {at}");
        }
        let after = table.range(CORRUPTED + 20..).map(|item| item.unwrap().0.value());
        assert_eq!(after.collect::<Vec<u64>>(), (CORRUPTED + 20..KEYS).collect::<Vec<_>>());
    }
}

#[test]
fn flipped_bit_in_table_of_words() {
    let pmem = Arc::new(Region::anonymous(REGION_BYTES).unwrap());
    let store = Store::format(any(Arc::clone(&pmem)), &options()).unwrap();
    let table = store.table::<u64, &[u8]>("t").unwrap();
    let map: BTreeMap<u64, Vec<u8>> =
        (0..60).map(|key| (key * key, vec![key as u8; (key % 40) as usize])).collect();
    for (key, value) in &map {
        table.insert(*key, &[1; 20]).unwrap();
        table.insert(*key, value).unwrap();
    }
    table.insert(7777, b"removed").unwrap();
    table.remove(7777).unwrap();
    let blocks = store.blocks();
    drop(table);
    store.close().unwrap();
    check_flips(&load(&pmem), &blocks, |store| read_all!(store, u64, &map, |key: &u64| *key));
}

#[test]
fn flipped_bit_in_table_of_strings() {
    let pmem = Arc::new(Region::anonymous(REGION_BYTES).unwrap());
    let store = Store::format(any(Arc::clone(&pmem)), &options()).unwrap();
    let table = store.table::<&str, &[u8]>("t").unwrap();
    let name =
        |key: u64| if key.is_multiple_of(3) { format!("{key}") } else { format!("a common prefix {key}") };
    let map: BTreeMap<String, Vec<u8>> =
        (0..60).map(|key| (name(key), vec![key as u8; (key % 20) as usize])).collect();
    for (key, value) in &map {
        table.insert(key, value).unwrap();
    }
    let blocks = store.blocks();
    drop(table);
    store.close().unwrap();
    check_flips(&load(&pmem), &blocks, |store| read_all!(store, &str, &map, |key| key as &String));
}
