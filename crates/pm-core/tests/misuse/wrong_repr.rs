// Rust's own layout may change with the compiler.
#![allow(unused)]
use pm_core::Persist;

#[derive(Clone, Copy, Persist)]
struct Pair {
    first: u64,
    second: u64,
}

fn main() {}
