// A value of one pool fenced by another, which does not wait for it.
#![allow(unused)]
use pm_core::{Pool, Region};

fn misuse(one: &Pool<Region>, other: &Pool<Region>) -> Result<(), Box<dyn std::error::Error>> {
    one.scope(|a| {
        other.scope(|b| {
            let value = b.flush(b.write(b.claim(8192)?, &7_u64));
            a.fence(value)?;
            Ok(())
        })
    })
}

fn main() {}
