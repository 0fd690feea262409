// A change after the flush, which the fence would not cover.
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
        let order = pm.write(pm.claim(8192)?, &Order { id: 1, previous: Link::NULL });
        let flushed = pm.flush(order);
        let changed = pm.rewrite(order, &Order { id: 2, previous: Link::NULL });
        pm.fence((flushed, pm.flush(changed)))?;
        Ok(())
    })
}

fn main() {}
