// The types of the cases that include this file.
use pm_core::{Link, Persist, Pool, Region, field};

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct Order<'p> {
    id: u64,
    previous: Link<'p, Order<'p>>,
}

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct Shop<'p> {
    newest: Link<'p, Order<'p>>,
    count: u64,
}
