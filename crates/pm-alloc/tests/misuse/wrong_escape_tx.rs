// A link that leaves its transaction: should that be given up, the link would be to a block that never was.
#![allow(unused)]
use pm_alloc::{Heap, TxError};

fn misuse(heap: &Heap) {
    let escaped = heap.transaction::<_, TxError>(|tx| tx.alloc(&7_u64)).unwrap();
}

fn main() {}
