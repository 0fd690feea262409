//! Errors of creating and opening a disk.

use crate::buffer::BufferError;
use crate::engine::{GeometryError, WriteBackError};
use pm_core::emulation::EmulationError;
use pm_core::protection::ProtectionError;
use pm_core::{OpenError, PlaceError, PoolError, RootError};

/// An error of creating or opening a disk.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message names the fields")]
#[non_exhaustive]
pub enum DiskError {
    /// The pool below could not be created or opened.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The options open the medium read-only, so no disk can be created on it.
    #[error("a disk cannot be created on a read-only medium")]
    ReadOnly,
    /// The pool has no disk in it, and may belong to another program.
    #[error("the pool holds no disk")]
    NoDisk,
    /// The root of the disk could not be found or set.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The disk's descriptor is corrupted.
    #[error(
        "the disk's descriptor is corrupted: checksum {found:#010x} where its contents give {expected:#010x}"
    )]
    Checksum { found: u32, expected: u32 },
    /// The descriptor is sound but has an impossible range or sector.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The disk would exceed the pool's data area, be misaligned, or overlap the descriptor.
    #[error(
        "a disk of {capacity_bytes} bytes at {start_bytes} does not fit in the pool's data area, {data_start}..{data_end}"
    )]
    OutsidePool { start_bytes: u64, capacity_bytes: u64, data_start: u64, data_end: u64 },
    /// The disk or its descriptor would overlap the value of another root.
    #[error("the disk would overlap the value of the pool's root {name:?}: {len_bytes} bytes at {offset}")]
    Taken { name: String, offset: u64, len_bytes: u64 },
    /// Deferred or buffered writes on a raw disk.
    #[error("a raw disk has no place for the mark that deferred and buffered writes need")]
    RawDeferred,
    /// Read-only, or about to change, while buffers hold newer bytes.
    #[error("a killed server left buffered writes; serve the disk writable once, which stores them")]
    Buffered,
    /// The buffers of this server cannot be made.
    #[error("buffers cannot be made: {0}")]
    NewBuffers(BufferError),
    /// The last server's deferred writes could not be written back.
    #[error("the writes of the last server could not be written back: {0}")]
    WriteBack(#[from] WriteBackError),
    /// The memory cannot be emulated here.
    #[error(transparent)]
    Emulation(#[from] EmulationError),
    /// The region cannot be protected so.
    #[error(transparent)]
    Protection(#[from] ProtectionError),
}

impl From<OpenError> for DiskError {
    fn from(error: OpenError) -> Self {
        Self::Pool(error.into())
    }
}

impl From<PlaceError> for DiskError {
    fn from(error: PlaceError) -> Self {
        Self::Root(error.into())
    }
}
