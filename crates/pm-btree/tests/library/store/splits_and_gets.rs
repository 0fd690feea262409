//! Tests by threads that race.

use pm_btree::{Store, StoreOptions};
use pm_core::Region;
use pm_testkit::any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

// What must not happen: a key whose insertion has returned is silently absent for a reader. A split stores the sibling of a leaf before its upper fence, and a
// reader that comes between finds the new sibling and the old fence, 0 in a last leaf: it goes to the sibling. The version of the frame does not
// show that, because it was odd before, and `live` does not change if no entry is moved.
#[test]
fn inserted_key_is_found_during_splits() {
    let pmem = Arc::new(Region::anonymous(256 << 20).unwrap());
    let store = Store::format(any(pmem), &StoreOptions::new().node_slots(4)).unwrap();
    let count = std::env::var("PM_SPLIT_KEYS").map_or(100_000, |count| count.parse().expect("a number"));
    let (last, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let table = store.table::<u64, u64>("t").unwrap();
            for key in 1..=count {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                table.insert(key, key).unwrap();
                last.store(key, Ordering::Release);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let missed = scope.spawn(|| {
            let table = store.table::<u64, u64>("t").unwrap();
            let mut found = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                let key = last.load(Ordering::Acquire);
                if key == 0 {
                    continue;
                }
                if table.get(key).unwrap().is_none() {
                    is_over.store(true, Ordering::Relaxed);
                    return Some((key, found));
                }
                found += 1;
            }
            None
        });
        let missed = missed.join().unwrap();
        assert_eq!(missed, None, "an acknowledged key was absent, after so many that were found");
    });
}
