// A value with padding, whose undefined bytes would be written to the medium. Without `Persist` it is refused as a value of a heap,
// and `Persist` refuses the padding.
#![allow(unused)]
use pm_alloc::{Heap, TxError};
use pm_core::Persist;

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct Derived {
    flag: u8,
    value: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Plain {
    flag: u8,
    value: u64,
}

fn misuse(heap: &Heap) -> Result<(), TxError> {
    heap.transaction(|tx| tx.alloc(&Plain { flag: 1, value: 2 }).map(drop))
}

fn main() {}
