// A root removed through the pool below a heap, without the log, which may replay an older transaction over it: that pool is read-only.
#![allow(unused)]
use pm_alloc::Heap;

fn misuse(heap: &Heap) {
    heap.pool().remove_root("name").unwrap();
}

fn main() {}
