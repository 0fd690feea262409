// A link to something that was not flushed.
#![allow(unused)]
include!("shop.rs");

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
