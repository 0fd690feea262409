//! A log and a state machine for openraft 0.9, in one store of persistent memory.
//!
//! A [`Program`] says what its commands do to a state, a map of bytes to bytes. [`Storage`] has openraft's two halves over a store of `pm-btree`.

#![forbid(unsafe_code)]

mod api;
mod changes;
mod codec;
mod error;
mod program;
mod snapshot;
mod storage;

pub use api::{LogStore, SnapshotBuilder, StateMachine, StateReader, Storage};
pub use changes::Changes;
pub use error::StorageError;
pub use program::Program;
pub use snapshot::{Entries, SnapshotData};
pub use storage::Applied;
