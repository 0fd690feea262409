//! The engine over the network block device protocol: a Unix socket, and TCP on the loopback if asked.
//!
//! # The life of a request
//!
//! 1. [`NbdServer::run`] accepts a client (`server.rs`). One of a bounded number of slots must be free; if none is,
//!    the client is hung up on at once.
//! 2. An async task shakes hands with it (`handshake.rs`): a bounded time, bounded messages, and at its end one bit
//!    of agreement, whether replies are structured.
//! 3. The socket leaves the async runtime and gets a thread of its own (`transmission.rs`) until the client leaves.
//!    From here on there is no task switch, no lock and no allocation between a request and its reply.
//! 4. The thread receives as much as there is into one buffer (`input.rs`): a client with sixteen requests under way
//!    often costs one system call for all of them.
//! 5. Each whole request is checked against the protocol, and [`Engine::execute`](crate::Engine::execute) runs it:
//!    a write from the receive buffer, a read straight into the send buffer. **When `execute` returns, the write is
//!    as durable as the engine promises**; nothing here postpones or repeats that.
//! 6. Replies gather in the send buffer (`output.rs`), which is sent when no whole request is left or it is full.
//!
//! # What a client can rely on
//!
//! - A reply to a write, trim or write-zeroes means what [`Engine::write_cache`](crate::Engine::write_cache) says.
//!   `NBD_CMD_FLUSH` and `NBD_CMD_FLAG_FUA` are offered and served in either case.
//! - A flush covers every write that any client has had a reply to, so `NBD_FLAG_CAN_MULTI_CONN` is set.
//! - Requests of one connection run in the order in which they came, and are answered in that order.
//! - Requests of a connection that its client has closed run before any that are received afterwards, or not at all
//!   (`departures.rs`), so that a client that sends unanswered requests again elsewhere does not find an old copy over newer
//!   data. Over TCP this holds for what had come when the connection was closed.
//! - Requests may start and end at any byte; whole sectors are fastest. A request changes the bytes of its range and no
//!   others: nothing is read, modified and written back, so that clients that write neighbouring bytes of one sector at the
//!   same time do not undo each other's writes. Where requests that run at the same time overlap, each aligned 8-byte word,
//!   and each part of one at a request's ragged end, is one client's or the other's.
//! - A read or write has at most 64 MiB.
//! - A write whose client disconnects in its middle was never acknowledged and may have happened in part. Short ones
//!   (the payload fits the receive buffer) happen as a whole or not at all.
//!
//! # What a client cannot do
//!
//! Allocate: buffers are per connection, of fixed size, and payloads longer than them stream through. Hold others
//! up: a client that does not read its replies blocks its own thread only; one that has closed its sending direction besides holds
//! the others up for [`NbdOptions::shutdown_grace`] at most. Confuse: a message that makes the
//! position in the stream uncertain ends its connection; every other fault has an error reply.

pub mod protocol;

mod clients;
mod departures;
mod error;
mod export;
mod handshake;
mod input;
mod listen;
mod options;
mod output;
mod server;
mod stats;
mod transmission;

pub use clients::{NbdClient, NbdClients, NbdPeer};
pub use error::NbdError;
pub use options::NbdOptions;
pub use server::NbdServer;
pub use stats::{NbdCounts, NbdStats};
