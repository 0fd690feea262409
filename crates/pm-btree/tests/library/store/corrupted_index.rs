//! Tests on the index and its hint_nodes.

use pm_btree::format::checked;
use pm_btree::{Store, StoreOptions};
use pm_core::{Pmem, Region};
use pm_testkit::any;
use std::sync::Arc;

fn load(pmem: &Region) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(pmem.len_bytes()).unwrap()];
    pmem.load(0, &mut bytes);
    bytes
}

/// The offsets of the nodes of table 1, a table of word keys, at this level, with their low fences, in ascending order of the fences.
fn nodes(bytes: &[u8], level: u8) -> Vec<(u64, u64)> {
    let magic = [b'P', b'M', b'B', b'N', level, 0, 1, 0];
    let lines = (0..bytes.len()).step_by(64).filter(|line| bytes[*line..].starts_with(&magic));
    let low = |line: usize| u64::from_le_bytes(*bytes[line + 16..].first_chunk().unwrap());
    let mut nodes: Vec<(u64, u64)> = lines.map(|line| (low(line), line as u64)).collect();
    nodes.sort_unstable();
    nodes
}

/// A closed store with small nodes, whose table "t" has the keys below 300.
fn closed_store() -> (Arc<Region>, StoreOptions) {
    let options = StoreOptions::new().node_slots(4).sweep_at_open(0);
    let pmem = Arc::new(Region::anonymous(4 << 20).unwrap());
    let store = Store::format(any(Arc::clone(&pmem)), &options).unwrap();
    let table = store.table::<u64, u64>("t").unwrap();
    (0..300).for_each(|key| assert!(table.insert(key, key).unwrap()));
    drop(table);
    store.close().unwrap();
    (pmem, options)
}

// What must not happen: `open` promises that if a leaf is corrupted, only operations that come to it fail. A search that comes to a hint node whose first child is the
// corrupted leaf throws the whole index away, and makes a new one that ends before the corrupted leaf: all keys behind it fail from then on.
#[test]
fn corrupted_leaf_fails_only_its_own_operations() {
    let (pmem, options) = closed_store();
    let bytes = load(&pmem);
    let hint_nodes = nodes(&bytes, 1);
    let (low, _) = hint_nodes[hint_nodes.len() / 2];
    let (_, leaf) = *nodes(&bytes, 0).iter().find(|leaf| leaf.0 == low).unwrap();
    pmem.store_u64(leaf + 40, pmem.load_u64(leaf + 40) ^ 1);
    let store = Store::attach(any(pmem), &options).unwrap();
    let table = store.table::<u64, u64>("t").unwrap();
    let of_others = |when: &str| {
        let failed: Vec<u64> = (low + 50..300).filter(|key| table.get(*key).is_err()).collect();
        assert!(failed.is_empty(), "{when}: {failed:?} fail, and the corrupted leaf begins with {low}");
    };
    of_others("before a search for a key of the leaf");
    assert!(table.get(low).is_err());
    of_others("after it");
}

// What must not happen: a panic in an insertion. There is room for inner nodes in proportion to the leaves, with 32 leaves or more for each, but each table with two
// leaves has an inner node.
#[test]
fn many_small_tables_have_inner_nodes() {
    let pmem = Region::anonymous(24 << 20).unwrap();
    let store = Store::format(any(pmem), &StoreOptions::new()).unwrap();
    for number in 0..2_400 {
        let table = store.table::<u64, u64>(&number.to_string()).unwrap();
        let loaded = table.extend_sorted((0..63).map(|key| (key, key)));
        assert_eq!(loaded.unwrap(), 63);
    }
}

/// An anchor names a leaf in the middle: after a new index was made and a crash, the space of the old root can be a leaf's.
#[test]
fn leaf_in_the_middle_is_no_root() {
    let (pmem, options) = closed_store();
    let bytes = load(&pmem);
    let (anchor, leaves) = (nodes(&bytes, 255)[0].1 + 64, nodes(&bytes, 0));
    pmem.store_u64(anchor, checked(leaves[leaves.len() / 2].1, anchor));
    let store = Store::attach(any(pmem), &options).unwrap();
    let table = store.table::<u64, u64>("t").unwrap();
    (0..300).for_each(|key| assert_eq!(table.get(key).unwrap().unwrap().value(), key));
}

/// A crash inside a compaction can leave an anchor that names the first leaf. The open makes an index, so that a search does not go from leaf to leaf.
#[test]
fn open_makes_an_index_for_many_leaves() {
    let (pmem, options) = closed_store();
    let bytes = load(&pmem);
    let (anchor, first) = (nodes(&bytes, 255)[0].1, nodes(&bytes, 0)[0].1);
    pmem.store_u64(anchor + 64, checked(first, anchor + 64));
    let store = Store::attach(any(Arc::clone(&pmem)), &options).unwrap();
    let table = store.table::<u64, u64>("t").unwrap();
    (0..300).rev().for_each(|key| assert_eq!(table.get(key).unwrap().unwrap().value(), key));
    assert_eq!(store.steps_right(), 0);
    drop(table);
    store.close().unwrap();
    // The third leaf is corrupted: the others are read.
    let third = nodes(&bytes, 0)[2];
    pmem.store_u64(anchor + 64, checked(first, anchor + 64));
    pmem.store_u64(third.1 + 40, pmem.load_u64(third.1 + 40) ^ 1);
    let store = Store::attach(any(pmem), &options).unwrap();
    let table = store.table::<u64, u64>("t").unwrap();
    assert_eq!(table.get(0).unwrap().unwrap().value(), 0);
    assert!(table.get(third.0).is_err());
}
