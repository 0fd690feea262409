//! Errors of making and opening a disk.

use crate::engine::GeometryError;
use pm_core::{OpenError, PlaceError, PoolError, RootError};

/// Why a disk could not be made or opened.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message names the fields")]
#[non_exhaustive]
pub enum DiskError {
    /// The pool below could not be made or opened.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A disk was to be made on a medium that the options open read-only.
    #[error("a disk cannot be made on a read-only medium")]
    ReadOnly,
    /// The pool has no disk in it, and may be another program's.
    #[error("the pool holds no disk")]
    NoDisk,
    /// The root directory is corrupted.
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
        "a disk of {capacity_bytes} bytes at {start_bytes} cannot be in the pool's data area, {data_start}..{data_end}"
    )]
    OutsidePool { start_bytes: u64, capacity_bytes: u64, data_start: u64, data_end: u64 },
    /// The disk or its descriptor would overlap the value of another root.
    #[error("the disk would overlap the value of the pool's root {name:?}: {len_bytes} bytes at {offset}")]
    Taken { name: String, offset: u64, len_bytes: u64 },
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
