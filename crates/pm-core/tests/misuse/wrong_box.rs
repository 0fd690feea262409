// A box is an address in this process, and owns what a restart forgets.
#![allow(unused)]
use pm_core::{Pool, Region};

fn misuse(pool: &Pool<Region>) {
    pool.scope(|pm| pm.claim::<Box<u64>>(8192).map(drop)).unwrap();
}

fn main() {}
