//! A crash-safe heap for persistent memory.

#![forbid(unsafe_code)]

pub mod format;
pub mod layout;

mod direct;
mod error;
mod heap;
mod log;
mod sealed;
mod space;
mod sync;
mod tx;

pub use direct::{DirectError, DirectHeap};
pub use error::{HeapError, TxError};
pub use heap::{Heap, HeapOptions, Opened};
pub use log::{CommitError, Inspection, LaneInspection, RecoverError, Recovery};
pub use space::{CheckReport, ChunkReport, Damage, DamageKind, FreeError, SpaceError, SpaceStats};
pub use tx::{Tx, View};
