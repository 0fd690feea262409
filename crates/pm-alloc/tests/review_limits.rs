//! What is promised for some heaps, at the limits of their parts.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

use pm_alloc::{Heap, HeapOptions, TxError, format};
use pm_core::{Pmem, PoolOptions, Region, Uuid};

fn options() -> HeapOptions {
    let pool = PoolOptions::new().uuid(Uuid::from_bytes([1; 16])).created_s(0);
    HeapOptions::new().pool(pool).seed(7).lanes(1).lane_entries(32).chunk_bytes(4096)
}

/// The root that names the heap "was lost to damage in the pool's root directory, and set again", also where all roots are in use.
#[test]
fn lost_root_of_a_heap_with_all_its_roots_is_set_again() {
    for roots in [1, 61, 62] {
        let region = Region::anonymous(1 << 16).unwrap();
        let heap = Heap::format(&region, &options()).unwrap();
        for number in 0..roots {
            let set: Result<(), TxError> = heap.transaction(|tx| {
                let word = tx.alloc(&number)?;
                tx.set_root(&format!("root {number}"), word)
            });
            set.unwrap();
        }
        drop(heap);
        let mut bytes = vec![0; 8192];
        region.load(0, &mut bytes);
        let name = format::ROOT.as_bytes();
        let found: Vec<usize> =
            (0..8192 - name.len()).filter(|at| bytes[*at..*at + name.len()] == *name).collect();
        assert_eq!(found.len(), 1);
        region.store(found[0] as u64, b"P");
        let heap = Heap::attach(&region, &options());
        let heap = heap.unwrap_or_else(|error| panic!("{roots} roots besides the heap's own: {error}"));
        assert!(heap.opened().root_restored);
        heap.view(|view| assert!(view.root::<i32>("root 0").unwrap().is_some()));
    }
}

/// A heap whose lost root was set again is as any other: a program that looks whether it was here before can begin.
#[test]
fn root_that_is_not_there_is_none_after_the_heaps_own_was_set_again() {
    let region = Region::anonymous(1 << 16).unwrap();
    drop(Heap::format(&region, &options()).unwrap());
    let mut bytes = vec![0; 8192];
    region.load(0, &mut bytes);
    let name = format::ROOT.as_bytes();
    let at = (0..8192 - name.len()).find(|at| bytes[*at..*at + name.len()] == *name).unwrap();
    region.store(at as u64, b"P");
    assert!(Heap::attach(&region, &options()).unwrap().opened().root_restored);
    let heap = Heap::attach(&region, &options()).unwrap();
    assert!(!heap.opened().root_restored);
    let found = heap.view(|view| view.root::<u64>("mine").map(|root| root.is_none()));
    assert!(found.is_ok(), "{found:?}, with {} damaged slots", heap.pool().damaged_root_count());
}
