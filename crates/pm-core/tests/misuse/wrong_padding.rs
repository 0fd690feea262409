// Padding bytes are undefined in memory, and a checksum over them lies.
#![allow(unused)]
use pm_core::Persist;

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct Flagged {
    flag: u8,
    value: u64,
}

fn main() {}
