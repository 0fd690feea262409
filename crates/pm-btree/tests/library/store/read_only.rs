//! Stores that are open for reading only: nothing of the file changes.

use pm_alloc::HeapOptions;
use pm_btree::{OpenError, Store, StoreOptions, TableError, WriteError};
use pm_core::RegionOptions;
use pm_testkit::run_and_kill;
use rustix::fs::{MemfdFlags, SealFlags};
use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

fn options() -> StoreOptions {
    StoreOptions::new().node_slots(6).extent_bytes(4096)
}

/// Makes a file read-only. The test may run as root, which may write to it all the same: so its contents are compared, too.
fn protect(path: &Path) {
    std::fs::set_permissions(path, Permissions::from_mode(0o444)).unwrap();
}

/// The bytes of a file, and when it was last modified.
fn state(path: &Path) -> (Vec<u8>, (i64, i64)) {
    let metadata = std::fs::metadata(path).unwrap();
    (std::fs::read(path).unwrap(), (metadata.mtime(), metadata.mtime_nsec()))
}

/// Reads all, tries all changes, and closes.
fn use_store(path: &Path, options: &StoreOptions, keys: u64) {
    let mut store = Store::open_read_only(path, options).unwrap();
    let table = store.table::<u64, &str>("t").unwrap();
    assert_eq!(table.len().unwrap(), keys);
    assert_eq!(
        table.range(..).map(|entry| entry.unwrap().0.value()).collect::<Vec<_>>(),
        Vec::from_iter(0..keys)
    );
    assert_eq!(table.get(3).unwrap().unwrap().value(), "a value of key 3");
    assert!(store.check().unwrap().is_sound());
    assert!(store.stats().unwrap().used_bytes > 0);

    let refused = |error| matches!(error, WriteError::ReadOnly);
    assert!(refused(table.insert(1, "").unwrap_err()) && refused(table.remove(1).unwrap_err()));
    assert!(refused(table.replace(1, "").unwrap_err()) && refused(table.take(1).unwrap_err()));
    assert!(
        refused(table.insert_grouped(1, "").unwrap_err()) && refused(table.remove_grouped(1).unwrap_err())
    );
    assert!(refused(table.update(1, |_| None).unwrap_err()));
    assert!(refused(table.compare_and_swap(1, None, None).unwrap_err()));
    assert!(refused(table.pop_first().unwrap_err()) && refused(table.pop_last().unwrap_err()));
    assert!(refused(table.retain(|_, _| false).unwrap_err()) && refused(table.remove_range(..).unwrap_err()));
    let loaded = table.extend_sorted([(keys, "new")]).unwrap_err();
    assert!(loaded.durable == 0 && loaded.to_string().contains("for reading only"), "{loaded}");
    let mut batch = store.batch();
    batch.insert(&table, 1, "").unwrap();
    assert!(refused(batch.commit().unwrap_err()));
    let created = store.table::<u64, u64>("new").unwrap_err();
    assert!(matches!(created, TableError::Write(WriteError::ReadOnly)), "{created:?}");
    store.sync().unwrap();
    assert_eq!(table.len().unwrap(), keys);
    drop(table);
    assert!(refused(store.compact().unwrap_err()));
    assert!(matches!(store.grow(8 << 20), Err(OpenError::ReadOnly)));
    store.close().unwrap();
}

fn fill(store: &Store, keys: u64) {
    let table = store.table::<u64, &str>("t").unwrap();
    (0..keys).for_each(|key| assert!(table.insert(key, &format!("a value of key {key}")).unwrap()));
}

#[test]
fn closed_store_is_read_and_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.pm");
    let store = Store::create(&path, 4 << 20, &options()).unwrap();
    fill(&store, 200);
    store.close().unwrap();
    protect(&path);
    let before = state(&path);
    for options in [options(), options().group_commits(8), options().verify_reads(true).sweep_at_open(0)] {
        use_store(&path, &options, 200);
        assert!(state(&path) == before);
    }
    // The last handle is a table.
    let table = Store::open_read_only(&path, &options()).unwrap().table::<u64, &str>("t").unwrap();
    assert!(table.insert(1, "").is_err());
    drop(table);
    assert!(state(&path) == before);
    std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    let store = Store::open(&path, &options()).unwrap();
    assert!(store.table::<u64, &str>("t").unwrap().insert(200, "").unwrap());
}

/// A file that the kernel lets no process write to, whatever its privileges.
#[test]
fn sealed_file_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.pm");
    let store = Store::create(&path, 1 << 20, &options()).unwrap();
    fill(&store, 50);
    store.close().unwrap();
    let file = rustix::fs::memfd_create("sealed", MemfdFlags::ALLOW_SEALING).unwrap();
    let mut file = File::from(file);
    file.write_all(&std::fs::read(&path).unwrap()).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK).unwrap();
    let sealed = Path::new("/proc/self/fd").join(file.as_raw_fd().to_string());
    assert!(Store::open(&sealed, &options()).is_err());
    use_store(&sealed, &options(), 50);
}

/// Readers exclude a writer, and a writer readers.
#[test]
fn readers_exclude_a_writer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.pm");
    let store = Store::create(&path, 1 << 20, &options()).unwrap();
    fill(&store, 9);
    assert!(matches!(Store::open_read_only(&path, &options()), Err(OpenError::StillOpen { .. })));
    store.close().unwrap();
    let readers = [(); 2].map(|()| Store::open_read_only(&path, &options()).unwrap());
    assert!(readers.iter().all(|reader| reader.table_len("t").unwrap() == Some(9)));
    assert!(matches!(Store::open(&path, &options()), Err(OpenError::StillOpen { .. })));
    drop(readers);
    Store::open(&path, &options()).unwrap();
}

#[test]
fn what_is_no_store_is_refused() {
    let missing = Store::open_read_only("/nonexistent/file.pm", &options()).unwrap_err();
    assert!(matches!(missing, OpenError::Heap(_)), "{missing:?}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("heap.pm");
    drop(pm_alloc::Heap::create(&path, 1 << 20, &HeapOptions::new()).unwrap());
    let before = state(&path);
    assert!(matches!(Store::open_read_only(&path, &options()), Err(OpenError::NotAStore)));
    assert!(state(&path) == before);
}

const FILE: &str = "PM_BTREE_READ_ONLY_FILE";

/// In the child: inserts and removes without end, and acknowledges each pair of changes.
fn change(path: &Path) -> ! {
    let store = Store::open(path, &options()).unwrap();
    let table = store.table::<u64, &str>("t").unwrap();
    for key in table.len().unwrap().. {
        table.insert(key, &format!("a value of key {key}")).unwrap();
        table.insert(1 << 40, "a key that comes and goes").unwrap();
        table.remove(1 << 40).unwrap();
        std::io::stderr().write_all(&[0]).unwrap();
    }
    unreachable!("the loop does not end");
}

/// A killed store is recovered in memory: it has all that was acknowledged, the file is unchanged, and a later open recovers it again.
#[test]
fn killed_store_is_read_and_unchanged() {
    if let Some(path) = std::env::var_os(FILE) {
        change(Path::new(&path));
    }
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("store.pm");
    Store::create(&path, 64 << 20, &options()).unwrap().close().unwrap();
    let test = "store::read_only::killed_store_is_read_and_unchanged";
    let mut acknowledged = 0;
    for kill in 1..=4 {
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let variables: [(&str, &OsStr); 1] = [(FILE, path.as_os_str())];
        acknowledged += run_and_kill(test, &variables, Duration::from_millis(150)).len() as u64;
        protect(&path);
        let before = state(&path);
        let keep_pages = HeapOptions::new().region(RegionOptions::new().keep_pages(true));
        for options in [options(), options().heap(keep_pages)] {
            let store = Store::open_read_only(&path, &options).unwrap();
            let table = store.table::<u64, &str>("t").unwrap();
            let keys: Vec<u64> = table.range(..1 << 40).map(|entry| entry.unwrap().0.value()).collect();
            assert!(keys.len() as u64 >= acknowledged, "kill {kill}: {} of {acknowledged}", keys.len());
            assert_eq!(keys, Vec::from_iter(0..keys.len() as u64));
            assert!(store.check().unwrap().is_sound());
            assert!(table.insert(1, "").is_err());
            acknowledged = keys.len() as u64;
        }
        assert!(state(&path) == before, "kill {kill}");
        // The child starts from the number of keys.
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        Store::open(&path, &options()).unwrap().table::<u64, &str>("t").unwrap().remove(1 << 40).unwrap();
    }
    assert!(acknowledged > 100, "{acknowledged}");
}
