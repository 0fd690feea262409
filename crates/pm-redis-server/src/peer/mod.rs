//! The protocol between the nodes.

mod identity;
mod known;
mod link;
mod links;
mod network;
mod status;
mod wire;

pub(crate) use identity::Identity;
pub(crate) use link::{CallError, Link};
pub(crate) use links::Links;
pub(crate) use network::Network;
pub(crate) use status::{NodeStatus, Status};
pub(crate) use wire::{
    Body, Change, Description, Hello, Message, Outcome, Request, Response, Welcome, decode, encode,
    read_frame,
};
