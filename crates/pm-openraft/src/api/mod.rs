//! The public types.

mod log_store;
mod machine;
mod storage;

pub use log_store::LogStore;
pub use machine::{SnapshotBuilder, StateMachine};
pub use storage::{StateReader, Storage};
