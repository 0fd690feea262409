//! Disks: a pool with a disk in it, or raw bytes, opened and turned into an engine.

mod error;
pub mod format;
mod open;
mod pending;

pub use error::DiskError;
pub use open::{Disk, DiskInfo, DiskKind, DiskOptions, read_geometry, write_geometry};
pub use pending::PendingWrites;
