//! The space of a heap: which of its lines are free, reserved, allocated and quarantined.
//!
//! The map of a chunk is in DRAM, and is built from the chunk's block headers when the chunk is first needed. The space returns the headers that a
//! transaction must store, and the transaction commits them together with its own changes. The space itself stores only headers that no live log
//! entry targets: those of an [`UnloggedHeap`](crate::UnloggedHeap), of free huge blocks that are joined or split, and of chains that are restored
//! during recovery.

mod arena;
mod bitmap;
mod chunk_map;
mod chunk_table;
mod error;
mod free_lists;
mod frozen;
mod headers;
mod heap_space;
mod huge;
mod logged_headers;
mod quarantine;
mod repair;
mod report;
mod reservation;
mod resize;
mod scanner;
#[cfg(test)]
mod tests;
mod unlogged;

pub(crate) use chunk_table::SpaceOptions;
pub(crate) use error::ResizeError;
pub use error::{Corruption, CorruptionKind, FreeError, SpaceError};
pub(crate) use frozen::Frozen;
pub use frozen::Piece;
pub(crate) use heap_space::{Freeing, Space};
pub(crate) use logged_headers::LoggedHeaders;
pub use report::{Block, CheckReport, ChunkReport, SpaceStats};
pub(crate) use reservation::Reservation;
pub(crate) use resize::Resize;
pub(crate) use unlogged::Unlogged;
