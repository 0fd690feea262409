// Values that are valid in this process only: an address, and a length whose size depends on the host.
#![allow(unused)]
use pm_alloc::{Heap, TxError};

fn misuse(heap: &Heap) -> Result<(), TxError> {
    heap.transaction(|tx| {
        tx.alloc(&Box::new(7_u64))?;
        tx.alloc(&7_usize)?;
        Ok(())
    })
}

fn main() {}
