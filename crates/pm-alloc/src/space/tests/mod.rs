//! Tests of the space, also when it is reopened, corrupted, or shared by threads. Most compare it with an oracle.

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
