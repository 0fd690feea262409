// A fence on something that was never flushed.
#![allow(unused)]
include!("shop.rs");

fn misuse(pool: &Pool<Region>) -> Result<(), Box<dyn std::error::Error>> {
    pool.scope(|pm| {
        let shop = pm.write(pm.claim(8192)?, &Shop { newest: Link::NULL, count: 0 });
        pm.fence(shop)?;
        Ok(())
    })
}

fn main() {}
