// A link that a view found, written to by a transaction: each has a brand of its own, and the transaction finds it itself.
#![allow(unused)]
use pm_alloc::{Heap, TxError};

fn misuse(heap: &Heap) -> Result<(), TxError> {
    heap.view(|view| {
        let count = view.root::<u64>("count")?.expect("the heap has a count");
        heap.transaction(|tx| tx.write(count, &1))
    })
}

fn main() {}
