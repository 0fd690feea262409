//! Messages between nodes, and their frames: a length of four bytes, big-endian, and postcard's encoding.

use super::status::Status;
use crate::program::{Answer, Command, Map};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, VoteRequest, VoteResponse};
use openraft::{BasicNode, SnapshotMeta, Vote};
use pm_openraft::Entries;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The length of a message. The first byte of a frame is thus zero, which no request of a Redis client starts with.
pub(crate) const FRAME_BYTES: usize = 8 << 20;

/// The version of the protocol.
pub(crate) const VERSION: u32 = 3;

/// The first message of a connection.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) version: u32,
    pub(crate) cluster: String,
    pub(crate) from: Introduction,
    /// The id of the node that is called.
    pub(crate) to: u64,
    pub(crate) password: Option<Vec<u8>>,
}

/// A node and its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Introduction {
    pub(crate) id: u64,
    /// The identity of the file.
    pub(crate) file: [u8; 16],
    pub(crate) open: Open,
    /// This open, and those before it that the receiver may have met.
    pub(crate) told: Vec<Open>,
    /// The number of the last open of the receiver's file that this node has met; zero if none.
    pub(crate) met: u64,
}

/// An open of a file. Those of copies differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Open {
    /// How often the file was opened.
    pub(crate) number: u64,
    /// A random number.
    pub(crate) nonce: u64,
}

/// The answer to the first message.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Welcome {
    Accepted(Introduction),
    Refused(String),
}

/// A message after the first ones. An answer has the number of its request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Message<B> {
    pub(crate) number: u64,
    pub(crate) body: B,
}

/// A request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    Append(AppendEntriesRequest<Map>),
    Vote(VoteRequest<u64>),
    SnapshotStart {
        vote: Vote<u64>,
        meta: SnapshotMeta<u64, BasicNode>,
    },
    SnapshotPart(Entries),
    SnapshotEnd,
    Propose(Command),
    /// The entry up to which a linearizable read needs the state.
    ReadIndex,
    Status,
    Change(Change),
    Describe,
    /// The file of a node, if the receiver has met it.
    FileOf(u64),
    /// The room of the receiver's store, when its state has an entry.
    Room {
        index: Option<u64>,
    },
}

/// A change of the members of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Change {
    Add { id: u64, address: String },
    Remove { id: u64 },
}

/// What a cluster needs to know of a node that it is to add.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Description {
    /// The identity of its file.
    pub(crate) file: [u8; 16],
    /// Whether it has never been a member of a cluster.
    pub(crate) is_new: bool,
}

/// The answer to a request, or why there is none.
pub(crate) type Response = Result<Body, String>;

/// The answer to a request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Body {
    Append(AppendEntriesResponse<u64>),
    Vote(VoteResponse<u64>),
    /// A part of a snapshot was received.
    Received,
    Installed(Vote<u64>),
    Outcome(Outcome),
    ReadIndex(Option<u64>),
    Status(Status),
    Changed,
    Description(Description),
    File(Option<[u8; 16]>),
    /// The length of the store, and of what serves values of any length in it.
    Room {
        store_bytes: u64,
        whole_bytes: u64,
    },
}

/// What became of a write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    Answer(Answer),
    /// It was not executed, and never is.
    NotExecuted(String),
    /// It was executed, or will be, or not.
    Unknown(String),
}

/// The frame of a message.
pub(crate) fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    frame = postcard::to_extend(message, frame).map_err(io::Error::other)?;
    let len_bytes = frame.len() - 4;
    if len_bytes > FRAME_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a message is too long"));
    }
    let length = u32::try_from(len_bytes).map_err(io::Error::other)?;
    frame[..4].copy_from_slice(&length.to_be_bytes());
    Ok(frame)
}

/// The message of all these bytes.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "bytes follow a message")),
        Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
    }
}

/// The bytes of the next message. `None` at the end of the connection.
pub(crate) async fn read_frame(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Vec<u8>>> {
    let length = match reader.read_u32().await {
        Ok(length) => usize::try_from(length).map_err(io::Error::other)?,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    if length > FRAME_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
    }
    // Memory is taken as bytes come, not as a length announces them.
    let mut bytes = Vec::new();
    let read = reader.take(length as u64).read_to_end(&mut bytes).await?;
    if read < length { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(Some(bytes)) }
}
