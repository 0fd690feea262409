// A change after the flush, which the fence would not cover.
#![allow(unused)]
include!("shop.rs");

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
