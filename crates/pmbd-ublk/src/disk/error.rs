//! Errors of making and opening a disk.

use crate::GeometryError;
use pm_core::{OpenError, PlaceError, PoolError, RootError};

/// Why a disk could not be made or opened.
#[derive(Debug, thiserror::Error)]
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
    Checksum {
        /// The descriptor's checksum.
        found: u32,
        /// The checksum of its contents.
        expected: u32,
    },
    /// The descriptor is sound but has an impossible range or sector.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The disk would exceed the pool's data area, be misaligned, or overlap the descriptor.
    #[error(
        "a disk of {capacity_bytes} bytes at {start_bytes} cannot be in the pool's data area, {data_start}..{data_end}"
    )]
    OutsidePool {
        /// The start of the disk.
        start_bytes: u64,
        /// Its length.
        capacity_bytes: u64,
        /// The start of the data area.
        data_start: u64,
        /// Its end.
        data_end: u64,
    },
    /// The disk or its descriptor would overlap the value of another root.
    #[error("the disk would overlap the value of the pool's root {name:?}: {len_bytes} bytes at {offset}")]
    Taken {
        /// The root's name.
        name: String,
        /// The offset of its value.
        offset: u64,
        /// The length of its value.
        len_bytes: u64,
    },
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
