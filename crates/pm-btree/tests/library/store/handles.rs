//! Handles: tables, iterators and batches that live without a borrow of the store, and what an owner of the store can do while they exist.

use pm_alloc::{Heap, HeapError, HeapOptions};
use pm_btree::format::{ROOT, StoreBlock, unchecked};
use pm_btree::{
    CloseError, Encoded, Guard, KeyValue, OpenError, Range, Store, StoreOptions, Table, WriteBatch,
    WriteError,
};
use pm_core::{Counting, OpenError as RegionError, Pmem, PoolError, Region};
use pm_testkit::any;
use std::mem::offset_of;
use std::path::Path;
use std::sync::Arc;
use std::thread;

const fn assert_shared<T: Send + Sync + 'static>() {}
const fn assert_clone<T: Clone>() {}
const _: () = {
    assert_shared::<Store>();
    assert_shared::<Table<&str, &[u8]>>();
    assert_shared::<Table<u64, u64, Arc<Counting<Region>>>>();
    assert_shared::<Range<&str, u64>>();
    assert_shared::<WriteBatch>();
    assert_shared::<Guard<&str>>();
    assert_shared::<KeyValue<u64, &str>>();
    assert_shared::<Encoded<u64>>();
    assert_shared::<CloseError>();
    assert_clone::<Table<&str, &[u8]>>();
};

fn options() -> StoreOptions {
    StoreOptions::new().node_slots(4).extent_bytes(4096)
}

/// A file with an empty store.
fn create(dir: &tempfile::TempDir) -> (std::path::PathBuf, Store) {
    let path = dir.path().join("store.pm");
    let store = Store::create(&path, 1 << 20, &options()).unwrap();
    (path, store)
}

/// Whether the last session on the store in a file has ended with a close.
fn is_clean(path: &Path) -> bool {
    let heap = Heap::open(path, &HeapOptions::new()).unwrap();
    heap.view(|view| {
        let block = view.root::<StoreBlock<'_>>(ROOT).unwrap().unwrap();
        let place = block.offset() + offset_of!(StoreBlock<'_>, state) as u64 + 8 * 3;
        unchecked(heap.pmem().load_u64(place), place) == Some(0)
    })
}

/// A program's own struct: the store, its tables, and an iterator.
struct Words {
    counts: Table<&'static str, u64>,
    lengths: Table<u64, &'static str>,
    rest: Range<&'static str, u64>,
    batch: WriteBatch,
    store: Store,
}

#[test]
fn struct_with_store_and_tables_moves_between_threads() {
    let dir = tempfile::tempdir().unwrap();
    let (path, store) = create(&dir);
    let counts: Table<&str, u64> = store.table("counts").unwrap();
    counts.insert("ada", 1).unwrap();
    counts.insert("grace", 2).unwrap();
    let mut rest = counts.range(..);
    assert_eq!(rest.next().unwrap().unwrap().0.value(), "ada");
    let (lengths, batch) = (store.table("lengths").unwrap(), store.batch());
    let words = Words { counts, lengths, rest, batch, store };
    let words = thread::spawn(move || {
        let mut words = words;
        words.batch.insert(&words.lengths, 5, "grace").unwrap();
        words.counts.insert("ada", 3).unwrap();
        words
    });
    let words = thread::spawn(move || {
        let words = words.join().unwrap();
        let Words { counts, rest, batch, store, lengths } = words;
        let rest: Vec<u64> = rest.map(|entry| entry.unwrap().1.value()).collect();
        assert_eq!(rest, [2]);
        assert_eq!(counts.get("ada").unwrap().unwrap().value(), 3);
        batch.commit().unwrap();
        assert_eq!(lengths.get(5).unwrap().unwrap().value(), "grace");
        drop((counts, lengths));
        store
    });
    words.join().unwrap().close().unwrap();
    assert!(is_clean(&path));
}

/// A pair of threads uses clones of one table, and the store is dropped meanwhile.
#[test]
fn table_works_after_its_store_was_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let (path, store) = create(&dir);
    let table = store.table::<u64, u64>("t").unwrap();
    let writers = [0, 1].map(|thread| {
        let table = table.clone();
        thread::spawn(move || (0..200).for_each(|key| assert!(table.insert(2 * key + thread, key).unwrap())))
    });
    drop(store);
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    assert_eq!(table.len().unwrap(), 400);
    drop(table);
    assert!(is_clean(&path));
    let store = Store::open(&path, &options()).unwrap();
    let table = store.table::<u64, u64>("t").unwrap();
    assert!((0..400).all(|key| table.get(key).unwrap().unwrap().value() == key / 2));
    assert!(store.check().unwrap().is_sound());
}

/// What a table changes after its store was dropped is durable when the call returns: a copy of the file that a kill would leave has it.
#[test]
fn change_after_the_store_was_dropped_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let (path, store) = create(&dir);
    let table = store.table::<u64, u64>("t").unwrap();
    drop(store);
    table.insert(7, 8).unwrap();
    let killed = dir.path().join("killed.pm");
    std::fs::copy(&path, &killed).unwrap();
    assert!(!is_clean(&killed), "the store is open");
    let store = Store::open(&killed, &options()).unwrap();
    assert_eq!(store.table::<u64, u64>("t").unwrap().get(7).unwrap().unwrap().value(), 8);
}

#[test]
fn last_handle_of_any_kind_closes_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let (path, store) = create(&dir);
    store.table::<u64, u64>("t").unwrap().insert(1, 1).unwrap();
    assert!(matches!(Store::open(&path, &options()), Err(OpenError::StillOpen { .. })));
    drop(store);
    assert!(is_clean(&path));
    let open = || {
        let store = Store::open(&path, &options()).unwrap();
        store.table::<u64, u64>("t").unwrap()
    };
    let still_open = || {
        let error = Store::open(&path, &options()).unwrap_err();
        assert!(matches!(&error, OpenError::StillOpen { path: found } if *found == path), "{error:?}");
        assert!(error.to_string().contains("still open in this process"), "{error}");
        let error = Store::open_read_only(&path, &options()).unwrap_err();
        assert!(matches!(error, OpenError::StillOpen { .. }), "{error:?}");
    };
    let table = open();
    let range = table.range(..);
    drop(table);
    still_open();
    assert_eq!(range.count(), 1);
    assert!(is_clean(&path));

    let batch = {
        let store = Store::open(&path, &options()).unwrap();
        let mut batch = store.batch();
        batch.insert(&store.table::<u64, u64>("t").unwrap(), 2, 2).unwrap();
        batch
    };
    still_open();
    batch.commit().unwrap();
    assert!(is_clean(&path));
    let table = open();
    assert_eq!(table.len().unwrap(), 2);
    let value = table.get(2).unwrap().unwrap();
    drop(table);
    assert!(is_clean(&path), "a value that was read is no handle");
    assert_eq!(value.value(), 2);
}

const BUSY_FILE: &str = "PM_BTREE_BUSY_FILE";

/// A store that another process has open is busy, and not still open here.
#[test]
fn store_of_another_process_is_not_still_open() {
    if let Some(path) = std::env::var_os(BUSY_FILE) {
        let error = Store::open(path, &options()).unwrap_err();
        let busy = |error: &OpenError| match error {
            OpenError::Heap(HeapError::Pool(PoolError::Region(error))) => {
                matches!(error, RegionError::Busy { .. })
            }
            _ => false,
        };
        assert!(busy(&error), "{error:?}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (path, _store) = create(&dir);
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child
        .args(["store::handles::store_of_another_process_is_not_still_open", "--exact"])
        .env(BUSY_FILE, &path);
    let output = child.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// A close that is refused changes nothing, and hands the store back; nothing is lost if the error is dropped.
#[test]
fn close_with_handles_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (path, store) = create(&dir);
    let table = store.table::<u64, u64>("t").unwrap();
    let (clone, range, batch) = (table.clone(), table.range(..), store.batch());
    table.insert(1, 10).unwrap();
    let Err(CloseError::InUse { handles: 4, store }) = store.close() else {
        panic!("there are four handles")
    };
    drop((clone, range, batch));
    let error = store.close().unwrap_err();
    assert!(error.to_string().contains("1 tables, iterators or batches"), "{error}");
    let CloseError::InUse { handles: 1, store } = error else { panic!("{error:?}") };
    assert_eq!(store.table::<u64, u64>("t").unwrap().get(1).unwrap().unwrap().value(), 10);
    let error = OpenError::from(store.close().unwrap_err());
    assert!(matches!(error, OpenError::InUse { handles: 1 }), "{error:?}");
    // The store was dropped with the error.
    table.insert(2, 20).unwrap();
    drop(table);
    assert!(is_clean(&path));
    let store = Store::open(&path, &options()).unwrap();
    assert_eq!(store.table_len("t").unwrap(), Some(2));
    store.close().unwrap();
}

/// Growing and compacting need a store without handles. With some, they name their number, and change nothing.
#[test]
fn grow_and_compact_with_handles_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (path, mut store) = create(&dir);
    let table = store.table::<u64, u64>("t").unwrap();
    (0..100).for_each(|key| assert!(table.insert(key, key).unwrap()));
    (0..90).for_each(|key| assert!(table.remove(key).unwrap()));
    let bytes = |path| std::fs::read(path).unwrap();
    let before = bytes(&path);
    assert!(matches!(store.grow(2 << 20), Err(OpenError::InUse { handles: 1 })));
    let range = table.range(..);
    assert!(matches!(store.compact(), Err(WriteError::InUse { handles: 2 })));
    assert!(bytes(&path) == before, "nothing is stored");
    let keys = |table: &Table<u64, u64>| -> Vec<u64> {
        table.range(..).map(|entry| entry.unwrap().0.value()).collect()
    };
    assert_eq!(keys(&table), Vec::from_iter(90..100));
    drop((table, range));
    assert!(store.compact().unwrap() > 0);
    store.grow(2 << 20).unwrap();
    assert_eq!(store.stats().unwrap().pool_bytes, 2 << 20);
    assert_eq!(keys(&store.table("t").unwrap()), Vec::from_iter(90..100));
}

/// Groups wait while only a table is left. Its drop, the last one, commits them.
#[test]
fn last_handle_commits_the_group() {
    let pmem = Arc::new(Region::anonymous(1 << 20).unwrap());
    let options = options().group_commits(8);
    let store = Store::format(any(Arc::clone(&pmem)), &options).unwrap();
    let table = store.table::<u64, u64>("t").unwrap();
    drop(store);
    table.insert_grouped(1, 2).unwrap();
    drop(table);
    let store = Store::attach(any(pmem), &options).unwrap();
    assert_eq!(store.table::<u64, u64>("t").unwrap().get(1).unwrap().unwrap().value(), 2);
}

/// A table of a thread that panics is dropped before the store: that does not end the session.
#[test]
fn panic_of_a_thread_with_a_table_does_not_close_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let (path, store) = create(&dir);
    let table = store.table::<u64, u64>("t").unwrap();
    let panicked = thread::spawn(move || {
        table.insert(1, 1).unwrap();
        panic!("expected by the test");
    });
    assert!(panicked.join().is_err());
    store.table::<u64, u64>("t").unwrap().insert(2, 2).unwrap();
    store.close().unwrap();
    assert!(is_clean(&path));

    // The last handle is dropped by a panic: as after a kill, nothing is lost.
    let table = Store::open(&path, &options()).unwrap().table::<u64, u64>("t").unwrap();
    let panicked = thread::spawn(move || {
        table.insert(3, 3).unwrap();
        panic!("expected by the test");
    });
    assert!(panicked.join().is_err());
    assert!(!is_clean(&path));
    let store = Store::open(&path, &options()).unwrap();
    assert_eq!(store.table::<u64, u64>("t").unwrap().len().unwrap(), 3);
}

#[test]
fn table_of_another_store_is_refused_also_if_that_was_dropped() {
    let [one, other] =
        [0, 1].map(|_| Store::format(any(Region::anonymous(1 << 20).unwrap()), &options()).unwrap());
    let table = other.table::<u64, u64>("t").unwrap();
    drop(other);
    assert!(matches!(one.batch().insert(&table, 1, 1), Err(WriteError::OtherStore)));
}
