//! The space against an oracle, reopened, corrupted, shared.

mod copies;
mod corruption;
#[cfg(not(loom))]
mod crash;
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
