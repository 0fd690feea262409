//! The engine over the network block device protocol: a Unix socket, and TCP on the loopback if asked.
//!
//! # The life of a request
//!
//! 1. [`NbdServer::run`] accepts a client (`server.rs`), if one of a bounded number of slots is free, and else disconnects it.
//! 2. An async task runs the handshake (`handshake.rs`) in a bounded time, with bounded messages. Its result is one bit: whether replies
//!    are structured.
//! 3. The socket leaves the async runtime and gets a thread of its own (`transmission.rs`) until the client disconnects. From here on there
//!    is no task switch, no lock and no allocation between a request and its reply.
//! 4. The thread receives as much as there is into one buffer (`input.rs`): sixteen pipelined requests often cost one system call.
//! 5. Each whole request is checked against the protocol, and [`Engine::execute_bytes`](crate::Engine::execute_bytes) runs it: a write from
//!    the receive buffer, a read into the send buffer. **When it returns, the write is as durable as the engine promises**; nothing here
//!    postpones or repeats that.
//! 6. Replies gather in the send buffer (`output.rs`), which is sent when no whole request is left or it is full.
//!
//! # What a client can rely on
//!
//! - The meaning of a reply to a write, trim or write-zeroes is [`Engine::write_cache`](crate::Engine::write_cache). `NBD_CMD_FLUSH` and
//!   `NBD_CMD_FLAG_FUA` are offered and served in either case.
//! - A flush covers every write that any client has had a reply to, so `NBD_FLAG_CAN_MULTI_CONN` is set.
//! - Requests of one connection run, and are answered, in the order of sending.
//! - Requests of a connection that its client has closed run before any that are received afterwards, or not at all (`order.rs`), so a
//!   client that sends unanswered requests again elsewhere never finds an old copy over newer data. Over TCP this holds for data that had
//!   arrived when the connection was closed.
//! - Requests may start and end at any byte; whole sectors are fastest. A request changes only the bytes of its range: nothing is read,
//!   modified and written back, so clients that write neighbouring bytes of one sector at the same time keep each other's writes. Where
//!   concurrent requests overlap, each aligned 8-byte word, and each part of one at a request's unaligned end, is one client's or the
//!   other's.
//! - A read or write has at most 64 MiB.
//! - A write whose client disconnects in its middle was never acknowledged and may have happened in part. A short one (the payload fits the
//!   receive buffer) happens as a whole or not at all.
//!
//! # What a client cannot do
//!
//! - Allocate memory: each connection has buffers of fixed size, and longer payloads stream through them.
//! - Delay other clients: a client that does not read its replies blocks its own thread only. One that has also closed its sending direction
//!   delays the others by [`NbdOptions::shutdown_grace`] at most.
//! - Desynchronize the server: a message after which the position in the stream is unknown ends its connection; every other fault has an
//!   error reply.

pub mod protocol;

mod clients;
mod error;
mod handshake;
mod input;
mod listen;
mod options;
mod order;
mod output;
mod server;
mod stats;
mod transmission;

pub use clients::{NbdClient, NbdClients, NbdPeer};
pub use error::NbdError;
pub use options::NbdOptions;
pub use server::NbdServer;
pub use stats::{NbdCounts, NbdStats};
