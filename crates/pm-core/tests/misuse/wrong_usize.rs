// The size of usize is the host's.
#![allow(unused)]
use pm_core::Persist;

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct Counter {
    value: usize,
}

fn main() {}
