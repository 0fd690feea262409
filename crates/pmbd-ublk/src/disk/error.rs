//! Why a disk could not be made or opened.

use crate::GeometryError;
use pm_core::{OpenError, PlaceError, PoolError, RootError};

/// Why a disk could not be made or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// The pool below could not be made or opened.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The options say that the medium is only to be read, and a disk was to be made on it.
    #[error("a disk cannot be made on what is opened read-only")]
    ReadOnly,
    /// The pool has no disk in it: another program's, perhaps.
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
        /// What the descriptor says.
        found: u32,
        /// What its contents give.
        expected: u32,
    },
    /// The descriptor is sound but names a range or a sector that cannot be.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The disk that the descriptor names would leave the pool's data area, or lie at an odd place or on the descriptor.
    #[error(
        "a disk of {capacity_bytes} bytes at {start_bytes} cannot be in the pool's data area, {data_start}..{data_end}"
    )]
    OutsidePool {
        /// Where the disk would start.
        start_bytes: u64,
        /// How long it would be.
        capacity_bytes: u64,
        /// Where the data area starts.
        data_start: u64,
        /// Where it ends.
        data_end: u64,
    },
    /// The disk or its descriptor would lie on the value of a root of another program.
    #[error("the disk would lie on what the root {name:?} of the pool names: {len_bytes} bytes at {offset}")]
    Taken {
        /// The root's name.
        name: String,
        /// Where its value lies.
        offset: u64,
        /// How long it is.
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
