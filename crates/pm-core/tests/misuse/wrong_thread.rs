// A flush of one thread fenced by another, which would wait for nothing.
#![allow(unused)]
include!("shop.rs");

fn misuse(pool: &Pool<Region>) -> Result<(), Box<dyn std::error::Error>> {
    pool.scope(|pm| {
        let order = pm.flush(pm.write(pm.claim(8192)?, &Order { id: 1, previous: Link::NULL }));
        std::thread::scope(|threads| {
            threads.spawn(move || pm.fence(order).map(drop));
        });
        Ok(())
    })
}

fn main() {}
