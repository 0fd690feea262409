// A root removed through the pool below a heap, past the log, which may replay an older transaction over it: that pool is there to look at.
#![allow(unused)]
use pm_alloc::Heap;

fn misuse(heap: &Heap) {
    heap.pool().remove_root("name").unwrap();
}

fn main() {}
