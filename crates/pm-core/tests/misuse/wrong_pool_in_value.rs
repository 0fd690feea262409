// A value of one pool, written to another with its link.
#![allow(unused)]
include!("shop.rs");
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
