//! Tests on the sweep.

use pm_btree::{ReadError, Store, StoreOptions, WriteError};
use pm_core::{Pmem, Region};
use pm_testkit::any;
use std::sync::Arc;

// What must not happen: corruption spreads to a healthy entry. The sweep marks the record that a corrupted entry names, although its seal is wrong. If that is the
// record of another entry, in a leaf that is visited later, this other entry is held as corrupted, and its key is an error.
#[test]
fn corrupted_entry_does_not_hold_others() {
    let options = StoreOptions::new().node_slots(8);
    let pmem = Arc::new(Region::anonymous(4 << 20).unwrap());
    let store = Store::format(any(Arc::clone(&pmem)), &options).unwrap();
    let table = store.table::<u64, &[u8]>("t").unwrap();
    (0..100).for_each(|key| assert!(table.insert(key, &[key as u8; 50]).unwrap()));
    drop(table);
    store.close().unwrap();
    let mut bytes = vec![0; usize::try_from(pmem.len_bytes()).unwrap()];
    pmem.load(0, &mut bytes);
    let word = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap());
    let is_node = |line: &usize| bytes[*line..].starts_with(b"PMBN\0\0\x01\0");
    let nodes = (0..bytes.len()).step_by(64).filter(is_node);
    let slots = nodes.flat_map(|node| (0..8).map(move |slot| node + 64 + 32 * slot));
    // The payload of an entry begins with the offset of its record in units of 16 bytes; records have 64 bytes. The record of a key is 16 records in front
    // of that of a greater key.
    let entries: Vec<(u64, usize)> = slots.filter(|at| word(at + 24) != 0).map(|at| (word(at), at)).collect();
    let payload_of = |wanted: u64| entries.iter().find(|(key, _)| *key == wanted).map(|(_, at)| word(at + 8));
    let is_wanted =
        |(key, at): &&(u64, usize)| word(at + 8) & 64 == 0 && payload_of(key + 16) == Some(word(at + 8) | 64);
    let (corrupted, at) = *entries.iter().find(is_wanted).expect("such a key");
    pmem.store_u64(at as u64 + 8, word(at + 8) ^ 64);
    let mut store = Store::attach(any(pmem), &options).unwrap();
    let table = store.table::<u64, &[u8]>("t").unwrap();
    assert!(table.get(corrupted).is_err());
    // All leaves are visited, and the entry is not left out of the count in silence.
    assert!(matches!(table.len(), Err(ReadError::Corrupted(_))));
    let failed: Vec<u64> = (0..100).filter(|key| *key != corrupted && table.get(*key).is_err()).collect();
    assert!(failed.is_empty(), "{failed:?} fail, and only {corrupted} is corrupted");
    // The space that a repair needs is not released.
    drop(table);
    assert!(matches!(store.compact(), Err(WriteError::Corrupted(_))));
}
