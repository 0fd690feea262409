// A flush of one thread fenced by another, which would wait for nothing.
#![allow(unused)]
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

fn misuse(pool: &Pool<Region>) -> Result<(), Box<dyn std::error::Error>> {
    pool.scope(|pm| {
        let order = pm.flush(pm.write(pm.claim(8192)?, &Order { id: 1, previous: Link::NULL }));
        std::thread::scope(|threads| {
            threads.spawn(move || pm.fence(order).map(drop));
        });
        Ok(())
    })
}

fn main() {}
