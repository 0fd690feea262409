//! The protocol of Redis clients: requests, commands and replies.

mod command;
mod reply;
mod request;

pub(crate) use command::{Action, Read, parse};
pub(crate) use reply::Reply;
pub(crate) use request::{ProtocolError, REQUEST_BYTES, Requests};
