//! Tests on full stores.

use pm_btree::{Store, StoreOptions, TableError, WriteError};
use pm_core::Region;
use std::sync::Arc;

// What must not happen: what fails takes space. A table that cannot be created because the catalogue has no room keeps its first leaf and its anchor until the next
// open, and each attempt takes two nodes more, until no leaf can be split.
#[test]
fn table_that_cannot_be_created_takes_no_space() {
    let pmem = Arc::new(Region::anonymous(1 << 20).unwrap());
    let options = StoreOptions::new().node_slots(4).extent_bytes(4096);
    let store = Store::format(pmem, &options).unwrap();
    let table = store.table::<u64, &[u8]>("t").unwrap();
    let mut keys = 0;
    while table.insert(keys, &[7; 900]).is_ok() {
        keys += 1;
    }
    // The description of a table has a record of 48 or 64 bytes. Updates need no nodes.
    let mut key = 0;
    for len in [48, 64] {
        while key < keys && table.insert(key, &vec![8; len]).is_ok() {
            key += 1;
        }
    }
    assert!(key < keys, "both classes are full");
    let before = store.stats().unwrap().used_bytes;
    for _ in 0..20 {
        let error = store.table::<u64, u64>("u").unwrap_err();
        assert!(matches!(error, TableError::Write(WriteError::Full)), "{error}");
    }
    assert_eq!(store.stats().unwrap().used_bytes, before);
}
