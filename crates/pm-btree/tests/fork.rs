//! A store that a child of fork(2) inherits: the parent owns it, and the child's handles do not close it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use pm_alloc::{HeapError, HeapOptions};
use pm_btree::{CloseError, OpenError, Store, StoreOptions, WriteError};
use pm_core::{FenceError, OpenError as RegionError, PoolError, RegionOptions};

/// Forks. Returns whether `check` is true in the child.
fn in_child(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child has one thread, which waits for no other, and exits before the destructors of the parent's values would run.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        // SAFETY: no memory of ours is touched. A child that deadlocks is killed.
        unsafe { libc::alarm(10) };
        let is_true = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).unwrap_or(false);
        // SAFETY: ends the child without running the parent's destructors.
        unsafe { libc::_exit(i32::from(!is_true)) }
    }
    let mut status = 0;
    // SAFETY: waits for the child, and stores to the integer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

/// One child drops its copies of all handles, the last of which would close the store, and others call what needs the store for itself. The file is
/// unchanged, the parent goes on, and its last handle closes the store.
#[test]
fn handles_of_a_child_do_not_close_the_store() {
    for is_kept in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.pm");
        let region = if is_kept { RegionOptions::new().keep_on_fork() } else { RegionOptions::new() };
        let options = StoreOptions::new().heap(HeapOptions::new().region(region)).group_commits(4);
        let store = Store::create(&path, 1 << 20, &options).unwrap();
        let table = store.table::<u64, u64>("t").unwrap();
        table.insert(1, 1).unwrap();
        table.insert_grouped(2, 2).unwrap();
        let (range, batch) = (table.range(1..2), store.batch());
        table.insert_grouped(3, 3).unwrap();
        let before = std::fs::read(&path).unwrap();
        let mut handles = Some((store, table, range, batch));
        // What a child takes out is its own copy.
        assert!(in_child(|| {
            drop(handles.take());
            true
        }));
        assert!(in_child(|| {
            let (store, table, range, batch) = handles.take().unwrap();
            let in_use =
                |error: &OpenError| matches!(error, OpenError::Heap(HeapError::Pool(PoolError::InUse)));
            let with_handles = store.close().unwrap_err();
            let is_refused = matches!(&with_handles, CloseError::Failed(error) if in_use(error));
            drop((table, range, batch));
            is_refused
        }));
        assert!(in_child(|| {
            let (mut store, ..) = handles.take().unwrap();
            let grown = store.grow(2 << 20);
            let compacted = store.compact();
            matches!(grown, Err(OpenError::Heap(HeapError::Pool(PoolError::InUse))))
                && matches!(compacted, Err(WriteError::Fence(_)))
        }));
        // Each change is refused before it looks at the pool, which is not in the child's memory.
        assert!(in_child(|| {
            let (store, table, ..) = handles.take().unwrap();
            let mut batch = store.batch();
            batch.insert(&table, 5, 5).unwrap();
            let refused = [
                table.insert_grouped(5, 5),
                table.remove_grouped(2),
                table.insert(5, 5).map(drop),
                table.remove(1).map(drop),
                table.pop_first().map(drop),
                batch.commit(),
                store.sync(),
            ];
            refused.iter().all(|refused| matches!(refused, Err(WriteError::Fence(FenceError::Inherited))))
        }));
        if !is_kept {
            // The store is not open in the child.
            assert!(in_child(|| {
                let error = Store::open(&path, &options).unwrap_err();
                matches!(error, OpenError::Heap(HeapError::Pool(PoolError::Region(RegionError::Busy { .. }))))
            }));
        }
        assert!(std::fs::read(&path).unwrap() == before, "kept on fork: {is_kept}");
        let (store, table, range, batch) = handles.take().unwrap();
        assert_eq!((store.grouped_len(), range.count()), (1, 1), "kept on fork: {is_kept}");
        drop((store, batch));
        table.insert(4, 4).unwrap();
        drop(table);
        let store = Store::open(&path, &options).unwrap();
        assert_eq!(store.table_len("t").unwrap(), Some(4));
        store.close().unwrap();
    }
}

/// Every kind of change is an error in a child: none looks at the pool first, which is not in the child's memory.
#[test]
fn each_kind_of_change_is_refused_in_a_child() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.pm");
    let store = Store::create(&path, 1 << 20, &StoreOptions::new().group_commits(4)).unwrap();
    let table = store.table::<u64, u64>("t").unwrap();
    for key in 0..50 {
        table.insert(key, key).unwrap();
    }
    let inherited = |error: WriteError| matches!(error, WriteError::Fence(FenceError::Inherited));
    let (store, table) = (&store, &table);
    let changes: [(&str, &dyn Fn() -> bool); 12] = [
        ("replace", &|| inherited(table.replace(1, 2).map(drop).unwrap_err())),
        ("take", &|| inherited(table.take(1).map(drop).unwrap_err())),
        ("update", &|| inherited(table.update(1, |_| None).map(drop).unwrap_err())),
        ("compare_and_swap", &|| {
            inherited(table.compare_and_swap(1, Some(1), Some(2)).map(drop).unwrap_err())
        }),
        ("pop_last", &|| inherited(table.pop_last().map(drop).unwrap_err())),
        ("retain", &|| inherited(table.retain(|_, _| false).unwrap_err())),
        ("remove_range", &|| inherited(table.remove_range(1..3).unwrap_err())),
        ("extend_sorted", &|| table.extend_sorted([(100, 1)]).is_err()),
        ("table", &|| store.table::<u64, u64>("new").is_err()),
        ("sync_older", &|| inherited(store.sync_older(std::time::Duration::ZERO).map(drop).unwrap_err())),
        ("batch", &|| {
            let mut batch = store.batch();
            batch.remove(table, 1).unwrap();
            inherited(batch.commit().unwrap_err())
        }),
        ("remove_grouped", &|| inherited(table.remove_grouped(1).unwrap_err())),
    ];
    let not_refused: Vec<&str> =
        changes.iter().filter(|(_, change)| !in_child(change)).map(|(name, _)| *name).collect();
    assert!(not_refused.is_empty(), "{not_refused:?}");
}
