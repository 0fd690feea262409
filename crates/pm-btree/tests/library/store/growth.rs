//! Stores that grow by themselves, while tables are in use.

use pm_btree::{Store, StoreOptions, WriteError};
use pm_core::Pmem;
use std::fs;
use std::path::Path;

const MIB: u64 = 1 << 20;

fn options(max_bytes: u64) -> StoreOptions {
    StoreOptions::new().extent_bytes(16 << 10).max_bytes(max_bytes)
}

fn value(key: u64) -> Vec<u8> {
    let len = 300 + key % 400;
    (0..len).map(|at| (key + at) as u8).collect()
}

/// Four threads fill a store, each with two tables that it keeps, until it is full at its greatest length. Each reads what it has written meanwhile.
fn fill(dir: &Path, first_bytes: u64, max_bytes: u64, batch: u64) {
    let path = dir.join("store.pm");
    let store = Store::create(&path, first_bytes, &options(max_bytes)).unwrap();
    let names = ["a", "b", "c", "d"];
    let counts: Vec<u64> = std::thread::scope(|scope| {
        let threads = names.map(|name| {
            let (table, sums) = (
                store.table::<u64, &[u8]>(name).unwrap(),
                store.table::<u64, u64>(&format!("{name}s")).unwrap(),
            );
            let store = &store;
            scope.spawn(move || {
                let mut count = 0;
                loop {
                    let mut changes = store.batch();
                    for key in count..count + batch {
                        changes.insert(&table, key, &value(key)).unwrap();
                        changes.insert(&sums, key, 3 * key).unwrap();
                    }
                    match changes.commit() {
                        Ok(()) => count += batch,
                        Err(WriteError::Full) => break count,
                        Err(error) => panic!("{error}"),
                    }
                    let seen = count / 2;
                    assert_eq!(table.get(seen).unwrap().unwrap().value(), value(seen));
                }
            })
        });
        threads.map(|thread| thread.join().unwrap()).into()
    });
    assert_eq!(
        (store.heap().pool().pmem().len_bytes(), fs::metadata(&path).unwrap().len()),
        (max_bytes, max_bytes)
    );
    assert!(store.growth_error().is_none(), "the greatest length is no error");
    assert!(counts.iter().sum::<u64>() * 400 > max_bytes / 2, "{counts:?}");
    check(&store, names, &counts);
    store.close().unwrap();
    let store = Store::open(&path, &StoreOptions::new()).unwrap();
    check(&store, names, &counts);
    assert_eq!(store.heap().blocks(), store.blocks());
}

/// The store is sound, and each pair of tables has all that was acknowledged, and nothing else.
fn check(store: &Store, names: [&str; 4], counts: &[u64]) {
    assert!(store.check().unwrap().is_sound());
    for (name, count) in names.into_iter().zip(counts) {
        let table = store.table::<u64, &[u8]>(name).unwrap();
        let sums = store.table::<u64, u64>(&format!("{name}s")).unwrap();
        assert_eq!((table.len().unwrap(), sums.len().unwrap()), (*count, *count));
        for key in 0..*count {
            assert_eq!(table.get(key).unwrap().unwrap().value(), value(key));
            assert_eq!(sums.get(key).unwrap().unwrap().value(), 3 * key);
        }
    }
}

#[test]
fn store_grows_from_1_to_64_mib_under_four_threads() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    fill(dir.path(), MIB, 64 * MIB, 1);
}

/// On a disk, where each fence is a system call.
#[test]
fn store_in_an_ordinary_file_grows() {
    let dir = tempfile::tempdir_in(".").unwrap();
    fill(dir.path(), MIB, 9 * MIB + 4096, 200);
}

/// No longer file can be made, in a child process that has a limit for it: the store is full, keeps all that was acknowledged, says why it does not grow, and
/// grows when it can again.
#[test]
fn store_that_cannot_grow_is_full() {
    const IN: &str = "PM_BTREE_TEST_GROWTH";
    const LIMIT: u64 = 3 * MIB;
    if let Some(path) = std::env::var_os(IN) {
        let limit_files = |bytes| {
            let mut limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
            limit.current = bytes;
            rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
        };
        limit_files(Some(LIMIT));
        let store = Store::create(&path, MIB, &options(8 * MIB)).unwrap();
        let table = store.table::<u64, &[u8]>("t").unwrap();
        let mut count = 0;
        let mut fill = || loop {
            match table.insert(count, &value(count)) {
                Ok(_) => count += 1,
                Err(WriteError::Full) => return count,
                Err(error) => panic!("{error}"),
            }
        };
        let inserted = fill();
        let pool_bytes = store.stats().unwrap().pool_bytes;
        assert!((LIMIT - LIMIT / 8..=LIMIT).contains(&pool_bytes), "{pool_bytes}");
        assert_eq!(fs::metadata(&path).unwrap().len(), pool_bytes);
        let error = store.growth_error().expect("the limit");
        assert!(error.to_string().contains("RLIMIT_FSIZE"), "{error}");
        assert!(store.growth_error().is_none(), "taken");
        assert!(inserted * 400 > pool_bytes / 2, "{inserted}");
        // Removing gives room without growth.
        table.remove(0).unwrap();
        table.insert(0, &value(0)).unwrap();
        limit_files(None);
        assert!(fill() > 2 * inserted);
        assert_eq!(store.stats().unwrap().pool_bytes, 8 * MIB);
        (0..inserted).for_each(|key| assert_eq!(table.get(key).unwrap().unwrap().value(), value(key)));
        assert!(store.check().unwrap().is_sound());
        return;
    }
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    let test = "store::growth::store_that_cannot_grow_is_full";
    let output = child.args([test, "--exact"]).env(IN, dir.path().join("store.pm")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
}

/// The greatest length may be below the present one, and no multiple of a page; without one a store does not grow.
#[test]
fn greatest_length_is_a_bound() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    for (name, max_bytes, expected) in [
        ("a", Some(MIB + 65_536 + 17), MIB + 65_536),
        ("b", Some(MIB), MIB),
        ("c", Some(4096), MIB),
        ("d", None, MIB),
    ] {
        let path = dir.path().join(name);
        let options = StoreOptions::new().extent_bytes(4096);
        let options = max_bytes.map_or_else(|| options.clone(), |bytes| options.clone().max_bytes(bytes));
        let store = Store::create(&path, MIB, &options).unwrap();
        let table = store.table::<u64, &[u8]>("t").unwrap();
        let filled = (0..u64::MAX).find_map(|key| table.insert(key, &value(key)).err()).unwrap();
        assert!(matches!(filled, WriteError::Full), "{filled}");
        assert_eq!(
            (store.stats().unwrap().pool_bytes, fs::metadata(&path).unwrap().len()),
            (expected, expected)
        );
    }
}

/// Growth is on or off at each open, and groups, long records and the call that grows a store without handles go together with it.
#[test]
fn store_grows_at_each_open_that_lets_it() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("store.pm");
    drop(Store::create(&path, MIB, &StoreOptions::new()).unwrap());
    let mut store = Store::open(&path, &StoreOptions::new().group_commits(64).max_bytes(4 * MIB)).unwrap();
    let table = store.table::<u64, &[u8]>("t").unwrap();
    let long = vec![5; 1_500_000];
    table.insert(0, &long).unwrap();
    assert!(store.stats().unwrap().pool_bytes > 2 * MIB);
    for key in 1..3000 {
        table.insert_grouped(key, &value(key)).unwrap();
    }
    store.sync().unwrap();
    drop(table);
    store.grow(16 * MIB).unwrap();
    let table = store.table::<u64, &[u8]>("t").unwrap();
    for key in 3000..20_000 {
        table.insert(key, &value(key)).unwrap();
    }
    drop(table);
    store.close().unwrap();
    let store = Store::open_read_only(&path, &StoreOptions::new().max_bytes(64 * MIB)).unwrap();
    let table = store.table::<u64, &[u8]>("t").unwrap();
    assert_eq!(table.get(0).unwrap().unwrap().value(), long);
    (1..20_000).for_each(|key| assert_eq!(table.get(key).unwrap().unwrap().value(), value(key)));
    assert_eq!(store.stats().unwrap().pool_bytes, 16 * MIB);
}

/// What must not happen: each session takes a new extent for its first record, because the sweep has not ended, until the file has its greatest length
/// although nearly all of it is free.
#[test]
fn short_sessions_do_not_grow_the_file() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("store.pm");
    let store = Store::create(&path, MIB, &options(8 * MIB)).unwrap();
    let many = store.table::<u64, u64>("many").unwrap();
    (0..3000).for_each(|key| assert!(many.insert(key, key).unwrap()));
    drop(many);
    store.close().unwrap();
    for session in 0..150_u64 {
        let store = Store::open(&path, &options(8 * MIB)).unwrap();
        let table = store.table::<u64, &[u8]>("t").unwrap();
        assert_eq!(table.insert(7, &[session as u8; 100]).unwrap(), session == 0);
        drop(table);
        store.close().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), MIB, "after {session} sessions");
    }
    let store = Store::open(&path, &options(8 * MIB)).unwrap();
    assert_eq!(store.table::<u64, &[u8]>("t").unwrap().get(7).unwrap().unwrap().value(), [149; 100]);
    assert_eq!(store.table_len("many").unwrap(), Some(3000));
    assert!(store.check().unwrap().is_sound());
}

/// A corrupted entry keeps the sweep from ending. The space of before the open is not used again then, and the store grows: by single changes, groups,
/// batches, and new tables.
#[test]
fn store_with_a_corrupted_entry_grows() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("store.pm");
    let store = Store::create(&path, MIB, &options(0)).unwrap();
    let many = store.table::<u64, u64>("many").unwrap();
    (0..3000).for_each(|key| assert!(many.insert(key, key).unwrap()));
    drop(many);
    let full = store.table::<u64, &[u8]>("full").unwrap();
    let mut keys = (0..).map_while(|key| full.insert(key, &value(key)).ok());
    assert!(keys.by_ref().count() > 100);
    drop(full);
    store.close().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let word = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap());
    let is_value = |at: &usize| word(*at) == 1500 && word(at + 24) & 7 == 1;
    let entry = (0..bytes.len()).step_by(32).find(is_value).unwrap();
    bytes[entry + 8] ^= 1;
    for number in 0..4 {
        fs::write(&path, &bytes).unwrap();
        let options = options(8 * MIB).sweep_at_open(0).group_commits(8);
        let store = Store::open(&path, &options).unwrap();
        let full = store.table::<u64, &[u8]>("full").unwrap();
        match number {
            0 => (10_000..10_300).for_each(|key| assert!(full.insert(key, &value(key)).unwrap())),
            1 => (10_000..10_300).for_each(|key| full.insert_grouped(key, &value(key)).unwrap()),
            2 => {
                let mut batch = store.batch();
                (10_000..10_300).for_each(|key| batch.insert(&full, key, &value(key)).unwrap());
                batch.commit().unwrap();
            }
            _ => (0..300).for_each(|table| drop(store.table::<u64, u64>(&table.to_string()).unwrap())),
        }
        store.sync().unwrap();
        store.table_len("many").expect_err("the corrupted entry was found");
        assert!(fs::metadata(&path).unwrap().len() > MIB, "{number}");
    }
}
