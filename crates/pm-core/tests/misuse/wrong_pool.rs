// A link of one pool stored in another.
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
            let to = b.root::<Shop>("shop")?.ok_or("no shop")?;
            let newest = b.store_link(to.field(field!(Shop, newest)), a.read(from)?.newest)?;
            b.fence(b.flush(newest))?;
            Ok(())
        })
    })
}

fn main() {}
