// A root that was flushed, but not fenced.
#![allow(unused)]
include!("shop.rs");

fn misuse(pool: &Pool<Region>) -> Result<(), Box<dyn std::error::Error>> {
    pool.scope(|pm| {
        let shop = pm.flush(pm.write(pm.claim(8192)?, &Shop { newest: Link::NULL, count: 0 }));
        pm.set_root("shop", &shop)?;
        Ok(())
    })
}

fn main() {}
