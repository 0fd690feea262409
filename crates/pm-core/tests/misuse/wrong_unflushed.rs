// A link to something that was not flushed.
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
        let shop = pm.root::<Shop>("shop")?.ok_or("no shop")?;
        let order = pm.write(pm.claim(8192)?, &Order { id: 1, previous: Link::NULL });
        let newest = pm.store_link(shop.field(field!(Shop, newest)), order.link())?;
        pm.fence(pm.flush(newest))?;
        Ok(())
    })
}

fn main() {}
