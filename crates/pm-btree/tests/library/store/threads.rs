//! Threads that read and change one table at the same time.

use pm_btree::{Key, Store, StoreOptions, Table, Value};
use pm_core::Region;
use pm_testkit::{AnyPmem, any};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The number of changes of each writer.
const CHANGES: u64 = 30_000;
const KEYS: u64 = 3_000;
const WRITERS: u64 = 2;

/// A value of which each part shows the key and the version.
fn value_of(key: u64, version: u64) -> Vec<u8> {
    let len = 16 + (key * 7 + version) % 20 * 8;
    let word = key << 32 | version;
    (0..len / 8).flat_map(|_| word.to_le_bytes()).collect()
}

/// The version of a value of a key.
fn version_of(key: u64, value: &[u8]) -> u64 {
    let word = u64::from_le_bytes(*value.first_chunk().expect("at least eight bytes"));
    assert_eq!(word >> 32, key, "the value belongs to the key");
    let version = word & 0xffff_ffff;
    assert_eq!(value, value_of(key, version), "no part of another value");
    version
}

/// Each writer changes its own keys, to ever greater versions; readers look up and scan all keys. A value that was returned is one that was
/// written, versions do not go back, keys that are never removed are always found, and scans are in order.
fn run<K: Key>(
    options: &StoreOptions,
    view: impl Fn(u64) -> Vec<u8> + Sync,
    get: impl Fn(&Table<K, &'static [u8], AnyPmem<'static>>, u64, &[u8]) -> Option<Vec<u8>> + Sync,
    put: impl Fn(&Table<K, &'static [u8], AnyPmem<'static>>, u64, &[u8], &[u8]) + Sync,
    remove: impl Fn(&Table<K, &'static [u8], AnyPmem<'static>>, u64, &[u8]) -> bool + Sync,
) where
    &'static [u8]: Value,
{
    let pmem = Arc::new(Region::anonymous(64 << 20).unwrap());
    let store = Store::format(any(Arc::clone(&pmem)), options).unwrap();
    let is_over = AtomicBool::new(false);
    let written: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let finals: Vec<BTreeMap<u64, u64>> = std::thread::scope(|scope| {
        let (store, is_over, written) = (&store, &is_over, &written);
        let (view, get, put, remove) = (&view, &get, &put, &remove);
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                scope.spawn(move || {
                    let table = store.table::<K, &[u8]>("t").unwrap();
                    let mut random = fastrand::Rng::with_seed(writer);
                    let mut map = BTreeMap::new();
                    for version in 1..=CHANGES {
                        let key = random.u64(..KEYS / WRITERS) * WRITERS + writer;
                        // Keys that are multiples of three are never removed.
                        if !key.is_multiple_of(3) && random.u32(..3) == 0 {
                            assert_eq!(remove(&table, key, &view(key)), map.remove(&key).is_some());
                        } else {
                            put(&table, key, &view(key), &value_of(key, version));
                            map.insert(key, version);
                            written[key as usize].store(version, Ordering::Release);
                        }
                    }
                    map
                })
            })
            .collect();
        for reader in 0..2 {
            scope.spawn(move || {
                let table = store.table::<K, &[u8]>("t").unwrap();
                let mut random = fastrand::Rng::with_seed(100 + reader);
                while !is_over.load(Ordering::Relaxed) {
                    let key = random.u64(..KEYS);
                    let before = written[key as usize].load(Ordering::Acquire);
                    let found = get(&table, key, &view(key)).map(|value| version_of(key, &value));
                    if let Some(version) = found {
                        assert!(version >= before, "version {version} of {key} after {before}");
                    } else {
                        assert!(before == 0 || !key.is_multiple_of(3), "{key} is never removed");
                    }
                    if random.u32(..50) == 0 {
                        let mut last: Option<Vec<u8>> = None;
                        for entry in table.range(..).take(200) {
                            let (key, _) = entry.unwrap();
                            let key = key.bytes().to_vec();
                            assert!(last.as_ref().is_none_or(|last| *last < key), "ascending");
                            last = Some(key);
                        }
                        let mut last: Option<Vec<u8>> = None;
                        for entry in table.range(..).rev().take(200) {
                            let key = entry.unwrap().0.bytes().to_vec();
                            assert!(last.as_ref().is_none_or(|last| *last > key), "descending");
                            last = Some(key);
                        }
                    }
                }
            });
        }
        let finals = writers.into_iter().map(|writer| writer.join()).collect::<Vec<_>>();
        is_over.store(true, Ordering::Relaxed);
        finals.into_iter().map(|map| map.expect("no writer panics")).collect()
    });
    let report = store.check().unwrap();
    assert!(report.is_sound(), "{report:?}");
    drop(store);
    let store = Store::attach(any(pmem), options).unwrap();
    let table = store.table::<K, &[u8]>("t").unwrap();
    let expected: BTreeMap<u64, u64> = finals.into_iter().flatten().collect();
    assert_eq!(table.len().unwrap(), expected.len() as u64);
    for (key, version) in expected {
        let found = get(&table, key, &view(key)).map(|value| version_of(key, &value));
        assert_eq!(found, Some(version));
    }
}

fn of_words(options: &StoreOptions) {
    run::<u64>(
        options,
        |_| Vec::new(),
        |table, key, _| table.get(key).unwrap().map(|guard| guard.value().to_vec()),
        |table, key, _, value| {
            table.insert(key, value).unwrap();
        },
        |table, key, _| table.remove(key).unwrap(),
    );
}

#[test]
fn threads_share_a_table_of_words() {
    of_words(&StoreOptions::new());
}

#[test]
fn threads_share_small_nodes() {
    of_words(&StoreOptions::new().node_slots(4));
}

#[test]
fn threads_share_a_table_of_strings() {
    run::<&'static [u8]>(
        &StoreOptions::new().node_slots(8),
        |key| format!("a common prefix {key}").into_bytes(),
        |table, _, key| table.get(key).unwrap().map(|guard| guard.value().to_vec()),
        |table, _, key, value| {
            table.insert(key, value).unwrap();
        },
        |table, _, key| table.remove(key).unwrap(),
    );
}
