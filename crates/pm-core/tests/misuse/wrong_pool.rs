// A link of one pool stored in another.
#![allow(unused)]
include!("shop.rs");

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
