// Values that mean something to this process only: an address, and a length that is as long as the host's.
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
