//! A log and a state machine for openraft 0.9, in one store of persistent memory.
//!
//! A [`Program`] says what its commands do to a state, a map of bytes to bytes. [`Storage`] has openraft's two halves over a store of `pm-btree`: the
//! [log](Storage::log) and the [state machine](Storage::state_machine), which `openraft::Raft::new` takes. A network is the program's own.
//! `examples/counters.rs` is a whole program.
//!
//! # Durability
//! An append, a vote, a truncation and a purge are durable when openraft learns that they are done. All that wait are committed in one batch.
//! The entries of an apply change the state in one batch, together with the id of the last of them: after a crash each was applied once, or is
//! applied again from the log. A snapshot that is received replaces the state in one batch.
//!
//! # Errors
//! A store that is full, and a fence that fails, are errors that openraft gets: the node stops, and nothing that was acknowledged is lost. After more room
//! was made (`pm store grow`), it starts again.
//!
//! # Limits
//! openraft's ids of nodes are `u64`, and its nodes [`BasicNode`](openraft::BasicNode). The log and the state share a store, which has no other use. A program that gives an id
//! to another file than before, or serves an old copy of a file, breaks what openraft relies on; `pm-redis-server` refuses both.

#![forbid(unsafe_code)]

mod api;
mod changes;
mod codec;
mod error;
mod program;
mod snapshot;
mod storage;

pub use api::{LogStore, Room, SnapshotBuilder, StateMachine, StateReader, Storage};
pub use changes::Changes;
pub use error::StorageError;
pub use program::Program;
pub use snapshot::{Entries, SnapshotData};
pub use storage::Applied;
