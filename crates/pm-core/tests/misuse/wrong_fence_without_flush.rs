// A fence on something that was never flushed.
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
        let shop = pm.write(pm.claim(8192)?, &Shop { newest: Link::NULL, count: 0 });
        pm.fence(shop)?;
        Ok(())
    })
}

fn main() {}
