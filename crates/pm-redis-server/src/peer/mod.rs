//! The protocol between the nodes.

mod identity;
mod link;
mod network;
mod wire;

pub(crate) use identity::Identity;
pub(crate) use link::{CallError, Link};
pub(crate) use network::Network;
pub(crate) use wire::{
    Body, Hello, Message, Outcome, Request, Response, Welcome, decode, encode, read_frame,
};
