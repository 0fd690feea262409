// A transaction in the hands of another thread: its lane is its thread's, whose fences wait for that thread's flushes only.
#![allow(unused)]
use pm_alloc::{Heap, TxError};

fn misuse(heap: &Heap) -> Result<(), TxError> {
    heap.transaction(|tx| {
        std::thread::scope(|threads| {
            threads.spawn(|| tx.alloc(&7_u64).map(drop));
        });
        Ok(())
    })
}

fn main() {}
