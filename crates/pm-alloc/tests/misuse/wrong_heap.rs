// A link of one heap stored in another, where it would point to unrelated data at that offset.
#![allow(unused)]
use pm_alloc::{Heap, TxError};
use pm_core::{Link, Persist, field};

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct Order<'p> {
    id: u64,
    previous: Link<'p, Order<'p>>,
}

fn misuse(one: &Heap, other: &Heap) -> Result<(), TxError> {
    one.transaction(|a| {
        let order = a.alloc(&Order { id: 1, previous: Link::NULL })?;
        other.transaction(|b| b.alloc(&Order { id: 2, previous: order }).map(drop))
    })
}

fn main() {}
