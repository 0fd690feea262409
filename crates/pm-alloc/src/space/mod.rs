//! Who may have which lines of the heap.
//!
//! All of it is in DRAM: maps of the chunks, made from the headers of blocks when a chunk is first needed. The headers
//! are read here, and the words to be stored there are handed to the caller, who commits them.

mod arena;
mod bitmap;
mod check;
mod chunk;
mod clock;
mod corruption;
mod discarded;
mod error;
mod finding;
mod free;
mod frozen;
mod heap_space;
mod hints;
mod huge;
mod open;
mod pool;
mod published;
mod reservation;
mod resize;
mod runs;
mod scan;
mod stats;
mod supply;
#[cfg(test)]
mod tests;
mod unlogged;

pub use check::{Block, CheckReport, ChunkReport};
pub use corruption::{Corruption, CorruptionKind};
pub(crate) use discarded::LoggedHeaders;
pub use error::{FreeError, SpaceError};
pub(crate) use frozen::Frozen;
pub use frozen::Piece;
pub(crate) use heap_space::Space;
pub(crate) use open::SpaceOptions;
pub(crate) use reservation::{Freeing, Reservation};
pub(crate) use resize::ResizeError;
pub use stats::SpaceStats;
