// A value of one pool, written to another with its link.
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
fn misuse(one: &Pool<Region>, other: &Pool<Region>) -> Result<(), Box<dyn std::error::Error>> {
    one.scope(|a| {
        other.scope(|b| {
            let from = a.root::<Shop>("shop")?.ok_or("no shop")?;
            let order = Order { id: 1, previous: a.read(from)?.newest };
            let order = b.write(b.claim(8192)?, &order);
            b.fence(b.flush(order))?;
            Ok(())
        })
    })
}

fn main() {}
