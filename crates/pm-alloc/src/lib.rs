//! A crash-safe heap for persistent memory.

#![forbid(unsafe_code)]

pub mod format;
pub mod layout;

mod error;
mod heap;
mod log;
mod sealed;
mod space;
mod sync;
mod tx;

pub use error::{HeapError, TxError};
pub use heap::{Heap, HeapInspection, HeapOptions, Opened};
pub use log::{CommitError, Inspection, LaneInspection, RecoverError, Recovery};
pub use space::{Block, CheckReport, ChunkReport, Damage, DamageKind, FreeError, SpaceError, SpaceStats};
pub use tx::{Tx, View};
