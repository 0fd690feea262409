//! Changes of a damaged store: what is damaged stays so, and they make no more of it unreadable.

use pm_btree::{Store, StoreOptions, Table};
use pm_core::{Pmem, Region};
use pm_testkit::{AnyPmem, any};
use std::sync::Arc;

pub(super) type AnyStore = Store<AnyPmem<'static>>;

pub(super) fn small() -> StoreOptions {
    StoreOptions::new().node_slots(4).extent_bytes(4096)
}

/// The bytes of a store, after a close.
pub(super) fn closed_bytes(options: &StoreOptions, pool: u64, fill: impl Fn(&AnyStore)) -> Vec<u8> {
    let pmem = Arc::new(Region::anonymous(pool).unwrap());
    let store = Store::format(any(Arc::clone(&pmem)), options).unwrap();
    fill(&store);
    store.close().unwrap();
    let mut bytes = vec![0; pool as usize];
    pmem.load(0, &mut bytes);
    bytes
}

pub(super) fn region_of(bytes: &[u8]) -> Arc<Region> {
    let region = Arc::new(Region::anonymous(bytes.len() as u64).unwrap());
    region.store(0, bytes);
    region
}

/// A zeroed line of the table of extents is reported, and later changes do not make more of the store unreadable than it has.
#[test]
fn zeroed_line_of_the_extent_table_is_reported() {
    let options = small().sweep_at_open(0);
    let bytes = closed_bytes(&options, 1 << 20, |store| {
        let table = store.table::<u64, &[u8]>("t").unwrap();
        (0..300).for_each(|key| assert!(table.insert(key, &[key as u8; 500]).unwrap()));
    });
    let chunk = bytes.windows(8).position(|window| window == b"PMBTEXT\n").unwrap();
    let is_used = |line: &usize| bytes[chunk + 64 * line..][..64].iter().any(|byte| *byte != 0);
    let lines = (1..64).filter(is_used).count();
    assert!(lines > 3, "{lines} lines of rows");
    let (mut silent, mut spread) = (Vec::new(), Vec::new());
    for line in 1..=lines {
        let mut zeroed = bytes.clone();
        zeroed[chunk + 64 * line..][..64].fill(0);
        let pmem = region_of(&zeroed);
        let Ok(store) = Store::attach(any(Arc::clone(&pmem)), &options) else { continue };
        let Ok(table) = store.table::<u64, &[u8]>("t") else { continue };
        let readable = |table: &Table<u64, &[u8], AnyPmem<'static>>| {
            (0..300)
                .filter(|key| {
                    table
                        .get(*key)
                        .is_ok_and(|value| value.is_some_and(|value| value.value() == [*key as u8; 500]))
                })
                .count()
        };
        let before = readable(&table);
        let absent = (0..300).filter(|key| table.get(*key).is_ok_and(|value| value.is_none())).count();
        assert_eq!(absent, 0, "line {line}");
        if store.check().unwrap().is_sound() && table.len().is_ok() {
            silent.push(line);
        }
        // Changes for which extents are added, of keys that can be read.
        let other = store.table::<u64, &[u8]>("t").unwrap();
        for key in 1_000..1_060 {
            drop(other.insert(key, &[1; 700]));
        }
        drop((table, other));
        drop(store.close());
        let Ok(store) = Store::attach(any(pmem), &options) else {
            spread.push((line, before, None));
            continue;
        };
        let after = store.table::<u64, &[u8]>("t").map_or(0, |table| readable(&table));
        if after < before {
            spread.push((line, before, Some(after)));
        }
    }
    assert!(
        silent.is_empty() && spread.is_empty(),
        "of {lines} lines, not reported: {silent:?}; readable keys before and after changes: {spread:?}"
    );
}

/// A zeroed entry stays corruption when the other slot of its line is written again.
#[test]
fn zeroed_entry_is_not_emptied_by_a_change_of_its_line() {
    let options = small();
    let bytes = closed_bytes(&options, 1 << 20, |store| {
        let table = store.table::<u64, u64>("t").unwrap();
        (1..3).for_each(|key| assert!(table.insert(key, 0x1122_3344_5566_7700 + key).unwrap()));
    });
    let entry = [1_u64.to_le_bytes(), 0x1122_3344_5566_7701_u64.to_be_bytes()].concat();
    let at = bytes.windows(16).position(|window| window == entry).unwrap() as u64;
    let pmem = region_of(&bytes);
    pmem.store(at, &[0; 32]);
    let store = Store::attach(any(Arc::clone(&pmem)), &options).unwrap();
    let table = store.table::<u64, u64>("t").unwrap();
    assert!(table.get(1).is_err());
    // The first update takes a slot of the next line, the second one the slot beside the zeroed entry.
    (0..2).for_each(|value| assert!(!table.insert(2, value).unwrap()));
    assert!(table.get(1).is_err());
    drop(table);
    drop(store.close());
    let store = Store::attach(any(pmem), &options).unwrap();
    let found = store.table::<u64, u64>("t").unwrap().get(1).map(|value| value.map(|value| value.value()));
    assert!(
        found.is_err(),
        "{found:?} was found of the key whose entry was zeroed, and is reported before the changes"
    );
}
