//! The readers of bytes from elsewhere, for the fuzz targets of this repository. No part of the interface.

use crate::peer::{self, Hello, Message, Request, Response, encode};
use crate::redis::{self, Action, ProtocolError, Reply, Requests};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// What a client's request is: an action, an error reply, or the end of the connection.
#[derive(Debug, PartialEq, Eq)]
pub struct Parsed(Result<Result<Action, Reply>, ProtocolError>);

impl Parsed {
    /// Whether the connection ends with it.
    #[must_use]
    pub const fn is_end(&self) -> bool {
        self.0.is_err()
    }
}

/// The parser of a client's requests.
#[derive(Debug, Default)]
pub struct Parser(Requests);

impl Parser {
    /// Adds bytes of the client.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.push(bytes);
    }

    /// The next request. `None` if it is incomplete.
    pub fn parse_next(&mut self) -> Option<Parsed> {
        let strings = self.0.next().transpose()?;
        Some(Parsed(strings.map(redis::parse)))
    }
}

/// The kinds of messages between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The first message of a connection.
    Hello,
    /// A request with its number.
    Request,
    /// An answer with the number of its request.
    Response,
}

/// A message between nodes.
#[derive(Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The message, for a comparison.
    pub text: String,
    /// Its frame.
    pub frame: Vec<u8>,
}

/// The frames of the bytes of a connection, up to the end or the first error.
///
/// # Errors
/// When the bytes end within a frame, or announce one that is too long.
///
/// # Panics
/// If bytes that are there are waited for.
pub fn read_frames(mut bytes: &[u8]) -> (Vec<Vec<u8>>, io::Result<()>) {
    let mut frames = Vec::new();
    loop {
        let read = pin!(peer::read_frame(&mut bytes));
        match read.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(Some(frame))) => frames.push(frame),
            Poll::Ready(Ok(None)) => return (frames, Ok(())),
            Poll::Ready(Err(error)) => return (frames, Err(error)),
            Poll::Pending => unreachable!("a slice has its bytes at once"),
        }
    }
}

/// The message of all these bytes, without the length before them, and its frame.
///
/// # Errors
/// When the bytes are no message of this kind.
///
/// # Panics
/// If a message that was decoded cannot be encoded.
pub fn decode(kind: Kind, bytes: &[u8]) -> io::Result<Decoded> {
    match kind {
        Kind::Hello => decode_as::<Hello>(bytes),
        Kind::Request => decode_as::<Message<Request>>(bytes),
        Kind::Response => decode_as::<Message<Response>>(bytes),
    }
}

fn decode_as<T: Serialize + DeserializeOwned + Debug>(bytes: &[u8]) -> io::Result<Decoded> {
    let message: T = peer::decode(bytes)?;
    let frame = encode(&message).expect("a message that was decoded is no longer than its bytes");
    Ok(Decoded { text: format!("{message:?}"), frame })
}
