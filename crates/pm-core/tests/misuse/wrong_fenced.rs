// A value taken for durable without a fence.
#![allow(unused)]
use pm_core::{Durable, Fenceable, Pool, Region};

fn misuse(pool: &Pool<Region>) -> Result<(), Box<dyn std::error::Error>> {
    pool.scope(|pm| {
        let value = pm.flush(pm.write(pm.claim(8192)?, &7_u64));
        let value: Durable<'_, u64> = value.fenced();
        pm.set_root("value", &value)?;
        Ok(())
    })
}

fn main() {}
