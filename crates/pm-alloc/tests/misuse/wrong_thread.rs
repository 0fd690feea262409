// A transaction moved to another thread: its lane belongs to its own thread, and a fence waits only for flushes of its thread.
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
