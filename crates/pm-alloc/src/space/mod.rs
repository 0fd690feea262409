//! The space of a heap: which of its lines are free, reserved, allocated and quarantined.
//!
//! The maps of the chunks are in DRAM, made from the headers of blocks when a chunk is first needed. A transaction gets the headers to be
//! stored from here, and commits them together with its own changes. What is stored here, without the log, are headers that no live log
//! entry aims at: those of an [`UnloggedHeap`](crate::UnloggedHeap), of free huge blocks that are joined or split, and of chains that are
//! restored during recovery.

mod arena;
mod bitmap;
mod chunk_map;
mod chunk_table;
mod error;
mod free_lists;
mod frozen;
mod headers;
mod heap_space;
mod held;
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
pub(crate) use heap_space::Space;
pub(crate) use held::Freeing;
pub(crate) use logged_headers::LoggedHeaders;
pub use report::{Block, CheckReport, ChunkReport, SpaceStats};
pub(crate) use reservation::Reservation;
pub(crate) use resize::Resize;
pub(crate) use unlogged::Unlogged;
