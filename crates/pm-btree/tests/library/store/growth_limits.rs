//! Stores whose greatest length is not possible.

use pm_btree::{Store, StoreOptions};

const MIB: u64 = 1 << 20;

/// A greatest length that no store of these extents can have is refused before the file has its name.
#[test]
fn refused_greatest_length_leaves_no_store() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("store.pm");
    let options = StoreOptions::new().max_bytes(16 << 30);
    let refused = Store::create(&path, MIB, &options);
    assert!(refused.is_err() && !path.exists(), "a file is left behind: {:?}", refused.err());
}

/// A store that is read only does not grow, so its greatest length is of no concern.
#[test]
fn greatest_length_does_not_concern_readers() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("store.pm");
    Store::create(&path, MIB, &StoreOptions::new()).unwrap().close().unwrap();
    let opened = Store::open_read_only(&path, &StoreOptions::new().max_bytes(16 << 30));
    assert!(opened.is_ok(), "{:?}", opened.err());
}
