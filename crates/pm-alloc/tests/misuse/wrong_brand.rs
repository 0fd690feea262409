// A transaction writes to a link of a view: each has a brand of its own, and the transaction must look up the link itself.
#![allow(unused)]
use pm_alloc::{Heap, TxError};

fn misuse(heap: &Heap) -> Result<(), TxError> {
    heap.view(|view| {
        let count = view.root::<u64>("count")?.expect("the heap has a count");
        heap.transaction(|tx| tx.write(count, &1))
    })
}

fn main() {}
