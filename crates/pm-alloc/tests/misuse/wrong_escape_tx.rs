// A link that leaves its transaction: after a rollback, it would point to a block that was never allocated.
#![allow(unused)]
use pm_alloc::Heap;

fn misuse(heap: &Heap) {
    let escaped = heap.transaction(|tx| tx.alloc(&7_u64)).unwrap();
}

fn main() {}
