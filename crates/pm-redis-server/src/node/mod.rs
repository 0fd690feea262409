//! A node: writes and reads, connections of clients and of other nodes.

mod client;
mod cluster;
mod listen;
mod member;
mod peer;

pub(crate) use listen::serve;
pub(crate) use member::{Limits, Member};
