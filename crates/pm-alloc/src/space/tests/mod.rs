//! The space against an oracle, reopened, damaged, shared.

mod copies;
#[cfg(not(loom))]
mod crash;
mod damage;
mod discarded;
mod fixture;
mod fragmentation;
mod huge;
#[cfg(loom)]
mod interleaved;
mod misuse;
mod opening;
mod random;
mod resize;
mod threads;
mod waiting;
