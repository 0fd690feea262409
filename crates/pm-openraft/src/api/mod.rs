//! The public types.

mod log_store;
mod machine;
mod room;
mod storage;

pub use log_store::LogStore;
pub use machine::{SnapshotBuilder, StateMachine};
pub use room::Room;
pub use storage::{StateReader, Storage};
