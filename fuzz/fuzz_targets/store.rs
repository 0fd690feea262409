//! Changes bytes of a store, opens it and uses it. The result of each call is an error or a value; none panics or hangs.
//!
//! The input is a byte that says whether the store was closed, and then changes of 13 bytes: an offset (4 bytes), a kind and a word (8 bytes). Some kinds
//! correct the checksum of what they change, as few mutations would keep it valid.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pm_btree::format::{NodeHeader, checked};
use pm_btree::{Store, StoreOptions, Table};
use pm_core::{Pmem, Region, bytes_of, from_bytes};
use std::sync::{Arc, OnceLock};

const REGION_BYTES: u64 = 256 << 10;
const CHANGE_BYTES: usize = 13;
/// More changes than a few only cost time.
const CHANGES_MAX: usize = 64;
/// No more entries than this are in the store.
const ENTRIES_MAX: usize = 4_096;

fn options() -> StoreOptions {
    StoreOptions::new().node_slots(6).extent_bytes(4096)
}

/// A store with several levels, of which some entries were replaced and removed: closed, and as a kill leaves it.
fn image(is_closed: bool) -> &'static [u8] {
    static IMAGES: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
    let images = IMAGES.get_or_init(|| {
        let pmem = Arc::new(Region::anonymous(REGION_BYTES).expect("memory"));
        let store = Store::format(Arc::clone(&pmem), &options()).expect("a new store");
        let words = store.table::<u64, &[u8]>("words").expect("a new table");
        let names = store.table::<&str, u64>("names").expect("a new table");
        let mut batch = store.batch();
        for number in 0..120 {
            words.insert(number * 7 % 120, &[1; 20]).expect("room");
            words.insert(number, &vec![2; number as usize % 40]).expect("room");
            names.insert(&format!("a long name {number}"), number).expect("room");
            batch.insert(&words, 1_000 + number, b"of a batch").expect("an encoding");
        }
        batch.commit().expect("room");
        (0..120).step_by(5).for_each(|number| assert!(words.remove(number).is_ok(), "an intact leaf"));
        let load = || {
            let mut bytes = vec![0; REGION_BYTES as usize];
            pmem.load(0, &mut bytes);
            bytes
        };
        let killed = load();
        drop((words, names));
        store.close().expect("an open store");
        [killed, load()]
    });
    &images[usize::from(is_closed)]
}

fn change(pmem: &Region, change: &[u8]) {
    let offset = u64::from(u32::from_le_bytes(change[..4].try_into().expect("four bytes")));
    let word = u64::from_le_bytes(change[5..].try_into().expect("eight bytes"));
    let place = offset % (REGION_BYTES - 64) & !7;
    let line = place & !63;
    match change[4] % 4 {
        0 => pmem.store_u64(place, pmem.load_u64(place) ^ 1 << (word % 64)),
        1 => pmem.store_u64(place, word),
        2 => pmem.store_u64(place, checked(word >> 16, place)),
        _ => {
            let header: NodeHeader = from_bytes(|bytes| pmem.load(line, bytes));
            let header = NodeHeader { crc: header.expected_crc(line), ..header };
            pmem.store(line, bytes_of(&header));
        }
    }
}

fn use_words(table: &Table<u64, &'static [u8], Arc<Region>>) {
    for key in (0..130).chain(1_000..1_010) {
        drop(table.get(key));
    }
    drop(table.len());
    assert!(table.range(..).take(ENTRIES_MAX).count() < ENTRIES_MAX, "a range ends");
    assert!(table.range(..).rev().take(ENTRIES_MAX).count() < ENTRIES_MAX, "a range ends");
    for key in (0..130).step_by(3) {
        drop(table.insert(key, &[3; 30]));
        drop(table.remove(key + 1));
    }
    drop(table.pop_first());
    drop(table.pop_last());
}

fuzz_target!(|input: &[u8]| {
    let Some((first, changes)) = input.split_first() else { return };
    let pmem = Arc::new(Region::anonymous(REGION_BYTES).expect("memory"));
    pmem.store(0, image(first.is_multiple_of(2)));
    changes.chunks_exact(CHANGE_BYTES).take(CHANGES_MAX).for_each(|bytes| change(&pmem, bytes));
    for _ in 0..2 {
        let options = options().verify_reads(first & 2 != 0).sweep_at_open(u64::from(first >> 2));
        let Ok(store) = Store::attach(Arc::clone(&pmem), &options) else { return };
        if let Ok(words) = store.table("words") {
            use_words(&words);
        }
        if let Ok(names) = store.table::<&str, u64>("names") {
            assert!(names.range("a".."b").take(ENTRIES_MAX).count() < ENTRIES_MAX, "a range ends");
            for number in 0..40 {
                drop(names.insert(&format!("a long name {}", 5 * number), number));
                drop(names.remove(&format!("a long name {number}")));
            }
            let mut batch = store.batch();
            for number in 0..20 {
                drop(batch.insert(&names, &format!("a name of a batch {number}"), number));
            }
            drop(batch.commit());
        }
        drop(store.check());
        drop(store.stats());
        drop(store.close());
    }
});
