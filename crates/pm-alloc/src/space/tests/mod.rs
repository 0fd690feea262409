//! Tests that compare the space with an oracle: reopened, corrupted, and shared by threads.

mod copies;
mod corruption;
#[cfg(not(loom))]
mod crash;
mod fixture;
mod fragmentation;
mod huge;
#[cfg(loom)]
mod interleaved;
mod logged_headers;
mod misuse;
mod opening;
mod quarantine;
mod random;
mod resize;
mod threads;
