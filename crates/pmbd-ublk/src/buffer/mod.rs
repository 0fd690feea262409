//! Buffers of writes in DRAM, after PMBD: a write is copied into a slot, and later, with others, to the device.
//!
//! One window, one fence and one long store then serve many writes. The device reports a write-back cache: Flush and FUA drain the buffers. The slots lie
//! in shared memory that outlives the server, so a server that is killed loses no completed write: the next one replays them. A power failure loses what
//! was not flushed, as with any write-back cache.

mod buffers;
mod error;
pub mod format;
mod options;
mod queue;
mod session;
mod slot_file;
mod slots;

pub(crate) use buffers::{Buffers, Device};
pub use error::BufferError;
pub use options::BufferOptions;
pub(crate) use session::Session;
pub(crate) use slot_file::DEFAULT_DIR;
pub(crate) use slots::DiskFile;
pub use slots::Slots;
