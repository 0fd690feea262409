//! The space against an oracle, reopened, damaged, shared.

mod damage;
mod fixture;
mod fragmentation;
mod huge;
#[cfg(loom)]
mod interleaved;
mod misuse;
mod random;
mod threads;
mod waiting;
