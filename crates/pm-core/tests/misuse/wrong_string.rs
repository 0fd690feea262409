// A string is an address in this process.
#![allow(unused)]
use pm_core::Persist;

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct Customer {
    name: String,
}

fn main() {}
