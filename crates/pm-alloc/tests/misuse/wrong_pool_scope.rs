// A write through the pool below a heap, without the log, which may replay an older transaction over it: that pool is read-only.
#![allow(unused)]
use pm_alloc::Heap;

fn misuse(heap: &Heap) {
    heap.pool().scope(|pm| {
        let place = pm.claim(8192).unwrap();
        pm.set_root_in_flight("name", pm.flush(pm.write(place, &1_u64))).unwrap();
    });
}

fn main() {}
