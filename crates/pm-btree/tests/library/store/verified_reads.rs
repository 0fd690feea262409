//! Tests on `verify_reads`: bits that flip while the store is open.

use pm_btree::{Store, StoreOptions};
use pm_core::{Pmem, Region};
use pm_testkit::any;
use std::sync::Arc;

/// The places of these bytes.
fn find_all(pmem: &Region, wanted: &[u8]) -> Vec<u64> {
    let mut bytes = vec![0; usize::try_from(pmem.len_bytes()).unwrap()];
    pmem.load(0, &mut bytes);
    (0..bytes.len() - wanted.len())
        .step_by(8)
        .filter(|at| bytes[*at..].starts_with(wanted))
        .map(|at| at as u64)
        .collect()
}

fn flip(pmem: &Region, at: u64, bit: u32) {
    let mut byte = [0];
    pmem.load(at, &mut byte);
    pmem.store(at, &[byte[0] ^ 1 << bit]);
}

// What must not happen: with `verify_reads` a key that a corrupted entry may have held is an error, and never absent. `get` verifies only the record of an entry whose
// key is equal: if the bit flips in the key in the record, the key is reported as absent.
#[test]
fn flipped_key_in_record_is_not_absent() {
    let pmem = Arc::new(Region::anonymous(1 << 20).unwrap());
    let store = Store::format(any(Arc::clone(&pmem)), &StoreOptions::new().verify_reads(true)).unwrap();
    let table = store.table::<&str, u64>("t").unwrap();
    table.insert("a common prefix 1", 1).unwrap();
    let places = find_all(&pmem, b"a common prefix 1");
    assert_eq!(places.len(), 1);
    flip(&pmem, places[0] + 16, 3);
    let found = table.get("a common prefix 1").map(|value| value.map(|value| value.value()));
    assert!(found.is_err(), "{found:?}");
    assert!(table.contains_key("a common prefix 1").is_err());
}

// What must not happen: with `verify_reads` each read verifies the checksums of what it reads; but searches rely on the records of fences without verifying them. A bit
// that flips in one leads them to another leaf, where the key is reported as absent.
#[test]
fn flipped_fence_does_not_hide_keys() {
    let pmem = Arc::new(Region::anonymous(1 << 20).unwrap());
    let options = StoreOptions::new().node_slots(4).verify_reads(true);
    let store = Store::format(any(Arc::clone(&pmem)), &options).unwrap();
    let table = store.table::<&str, u64>("t").unwrap();
    let name = |key: u64| format!("a common prefix {key:02}");
    (0..100).for_each(|key| assert!(table.insert(&name(key), key).unwrap()));
    // A fence's record begins with the fence; an entry's record has its lengths before the key.
    let is_fence = |at: &u64| at.is_multiple_of(16);
    let fences: Vec<u64> = find_all(&pmem, b"a common prefix ").into_iter().filter(is_fence).collect();
    assert!(fences.len() > 20);
    let mut hidden = Vec::new();
    for fence in fences {
        for bit in 0..3 {
            flip(&pmem, fence + 16, bit);
            hidden.extend((0..100).filter(|key| matches!(table.get(&name(*key)), Ok(None))));
            flip(&pmem, fence + 16, bit);
        }
    }
    assert!(hidden.is_empty(), "absent: {hidden:?}");
}
