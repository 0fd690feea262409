//! Refused operations change nothing: full stores, long values, wrong types, foreign and corrupted files, second writers.

use pm_alloc::{Heap, HeapError, HeapOptions};
use pm_btree::{OpenError, Store, StoreOptions, TableError, WriteError};
use pm_core::{Pmem, PoolError, Region};
use pm_testkit::any;
use std::sync::Arc;

fn anonymous(bytes: u64) -> Arc<Region> {
    Arc::new(Region::anonymous(bytes).unwrap())
}

#[test]
fn full_store_loses_nothing_and_goes_on() {
    let pmem = anonymous(512 << 10);
    let options = StoreOptions::new().node_slots(4);
    let store = Store::format(any(Arc::clone(&pmem)), &options).unwrap();
    let table = store.table::<u64, &[u8]>("t").unwrap();
    let mut count = 0;
    loop {
        match table.insert(count, &[7; 100]) {
            Ok(is_new) => assert!(is_new),
            Err(WriteError::Full) => break,
            Err(error) => panic!("{error}"),
        }
        count += 1;
    }
    assert!(count > 500, "{count}");
    // What fails takes no space: the same again and again.
    for _ in 0..5_000 {
        assert!(matches!(table.insert(count, &[7; 100]), Err(WriteError::Full)));
    }
    for key in 0..count {
        assert_eq!(table.get(key).unwrap().unwrap().value(), [7; 100]);
    }
    for key in (0..count).step_by(3) {
        assert!(table.remove(key).unwrap());
        assert!(table.insert(key, &[8; 100]).unwrap(), "there is room for what was removed");
    }
    assert_eq!(table.len().unwrap(), count);
    drop((store, table));
    let store = Store::attach(any(pmem), &options).unwrap();
    assert!(store.check().unwrap().is_sound());
    assert_eq!(store.table::<u64, &[u8]>("t").unwrap().range(..).count() as u64, count);
}

#[test]
fn long_value_is_refused() {
    let store = Store::format(any(anonymous(64 << 20)), &StoreOptions::new()).unwrap();
    let table = store.table::<&str, &[u8]>("t").unwrap();
    let Err(WriteError::TooLong { max_bytes, .. }) = table.insert("key", &vec![1; 16 << 20]) else {
        panic!("longer than the longest record")
    };
    assert!(table.is_empty().unwrap());
    let longest = vec![1; usize::try_from(max_bytes).unwrap() - 8 - "key".len()];
    assert!(table.insert("key", &longest).unwrap());
    assert!(table.get("key").unwrap().unwrap().value() == longest);
    assert!(matches!(table.insert("key", &[&longest[..], &[1]].concat()), Err(WriteError::TooLong { .. })));
}

#[test]
fn table_of_other_types_is_refused() {
    let store = Store::format(any(anonymous(1 << 20)), &StoreOptions::new()).unwrap();
    store.table::<u64, &str>("t").unwrap().insert(1, "one").unwrap();
    let error = store.table::<u64, u64>("t").unwrap_err();
    assert!(matches!(error, TableError::Type { .. }), "{error}");
    assert_eq!(error.to_string(), "table \"t\" maps u64 to str and was opened as u64 to u64");
    assert!(matches!(store.open_table::<i64, &str>("t"), Err(TableError::Type { .. })));
    assert!(store.open_table::<u64, &str>("other").unwrap().is_none());
    assert!(matches!(store.table::<u64, u64>(""), Err(TableError::Name { len_bytes: 0 })));
    assert!(matches!(store.table::<u64, u64>(&"n".repeat(256)), Err(TableError::Name { .. })));
    assert_eq!(store.tables().len(), 1);
}

#[test]
fn impossible_options_are_refused() {
    for options in [
        StoreOptions::new().node_slots(5),
        StoreOptions::new().node_slots(64),
        StoreOptions::new().node_slots(2),
        StoreOptions::new().extent_bytes(5000),
        StoreOptions::new().extent_bytes(2 << 20),
    ] {
        assert!(matches!(Store::format(any(anonymous(1 << 20)), &options), Err(OpenError::Layout { .. })));
    }
}

#[test]
fn foreign_file_is_refused() {
    let heap = anonymous(1 << 20);
    drop(Heap::format(any(Arc::clone(&heap)), &HeapOptions::new()).unwrap());
    assert!(matches!(Store::attach(any(heap), &StoreOptions::new()), Err(OpenError::NotAStore)));
    let zeros = Store::attach(any(anonymous(1 << 20)), &StoreOptions::new());
    assert!(matches!(zeros, Err(OpenError::Heap(HeapError::Pool(PoolError::NotAPool)))), "{zeros:?}");
    let missing = Store::open("/nonexistent/file.pm", &StoreOptions::new());
    assert!(matches!(missing, Err(OpenError::Heap(HeapError::Pool(PoolError::Region(_))))));
}

#[test]
fn newer_store_is_refused() {
    let pmem = anonymous(1 << 20);
    drop(Store::format(any(Arc::clone(&pmem)), &StoreOptions::new()).unwrap());
    let block = Heap::attach(any(Arc::clone(&pmem)), &HeapOptions::new()).unwrap().blocks();
    let block =
        block.into_iter().find(|block| pmem.load_u64(*block) == u64::from_le_bytes(*b"PMBTREE\n")).unwrap();
    let mut header = [0; 64];
    pmem.load(block, &mut header);
    header[8] += 1;
    pmem.store(block, &header);
    let refused = Store::attach(any(Arc::clone(&pmem)), &StoreOptions::new());
    assert!(matches!(refused, Err(OpenError::Corrupted(_))), "the checksum covers the version: {refused:?}");
    let crc = pm_core::crc32c_bytes(0, &header[..60]);
    // The checksum is that of the 60 bytes, padded with zeros to whole words.
    let crc = pm_core::crc32c_bytes(crc, &[0; 4]);
    header[60..].copy_from_slice(&crc.to_le_bytes());
    pmem.store(block, &header);
    let refused = Store::attach(any(pmem), &StoreOptions::new());
    assert!(matches!(refused, Err(OpenError::Version { found: 3, supported: 2 })), "{refused:?}");
}

#[test]
fn second_writer_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.pm");
    let store = Store::create(&path, 4 << 20, &StoreOptions::new()).unwrap();
    assert!(Store::open(&path, &StoreOptions::new()).is_err());
    assert!(Store::create(&path, 4 << 20, &StoreOptions::new()).is_err());
    store.table::<u64, u64>("t").unwrap().insert(1, 2).unwrap();
    drop(store);
    assert!(Store::create(&path, 4 << 20, &StoreOptions::new()).is_err(), "it is not empty");
    let store = Store::open(&path, &StoreOptions::new()).unwrap();
    assert_eq!(store.table::<u64, u64>("t").unwrap().get(1).unwrap().unwrap().value(), 2);
}

#[test]
fn creation_goes_on_in_an_empty_heap() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.pm");
    drop(Heap::create(&path, 4 << 20, &HeapOptions::new()).unwrap());
    drop(Store::create(&path, 4 << 20, &StoreOptions::new()).unwrap());
    drop(Store::open(&path, &StoreOptions::new()).unwrap());
}

/// A pool that is too short for a table is refused before its file is made.
#[test]
fn store_without_room_for_a_table_is_not_created() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut created = 0;
    for kib in (16..=256).step_by(8) {
        let path = dir.path().join(format!("{kib}.pm"));
        match Store::create(&path, kib << 10, &StoreOptions::new()) {
            Ok(store) => {
                store.table::<u64, u64>("t").unwrap().insert(1, 1).unwrap();
                created += 1;
            }
            Err(OpenError::Layout { pool_bytes, .. }) => assert_eq!(pool_bytes, kib << 10),
            Err(OpenError::Heap(_)) => {}
            Err(error) => panic!("{kib} KiB: {error}"),
        }
        assert_eq!(path.exists(), Store::open(&path, &StoreOptions::new()).is_ok(), "{kib} KiB");
    }
    assert!(created > 15, "{created}");
    let refused = Store::create(dir.path().join("64"), 64 << 10, &StoreOptions::new());
    assert!(matches!(refused, Err(OpenError::Layout { .. })), "{refused:?}");
}

/// What must not happen: a store is created in which no table fits, because its pool is not small, but its extents are long or its heap has much to
/// keep for itself. Whether there is room depends on all options, not on the length of the pool alone.
#[test]
fn store_with_long_extents_has_room_for_a_table_or_is_not_created() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut wrong = Vec::new();
    for extent in [256 << 10, 512 << 10, 1 << 20] {
        for pool in
            [1_u64 << 20, 1280 << 10, 1536 << 10, 1792 << 10, 2 << 20, 2304 << 10, 2560 << 10, 3 << 20]
        {
            let path = dir.path().join(format!("{extent}-{pool}.pm"));
            let options = StoreOptions::new().extent_bytes(extent);
            let Ok(store) = Store::create(&path, pool, &options) else { continue };
            let inserted = store.table::<u64, u64>("t").map(|table| table.insert(1, 1).is_ok());
            if !matches!(inserted, Ok(true)) {
                wrong.push((extent >> 10, pool >> 10));
            }
        }
    }
    assert_eq!(wrong, [], "KiB of an extent and of the pool: no table fits");
}
