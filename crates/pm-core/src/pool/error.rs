//! The errors of creating, opening and changing pools.

use crate::{FenceError, OpenError};
use core::fmt;
use uuid::Uuid;

/// An error of creating, opening or growing a pool. Nothing has been changed, unless the variant is [`Fence`](Self::Fence) or the documentation of
/// the operation states an exception.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The region has not grown in place.
    #[error(transparent)]
    Grow(#[from] crate::GrowError),
    /// The region could not be created, opened or grown.
    #[error(transparent)]
    Region(#[from] OpenError),
    /// Neither the start nor the end of the region has the magic number of a pool's header, or the region is too short for a pool.
    #[error("this is not a pool: no header at its start or its end")]
    NotAPool,
    /// The region holds a pool or its remains. This includes a pool whose headers are both corrupted, and a pool that was being created when the
    /// power failed.
    #[error("the region already holds a pool, possibly a corrupted one; formatting would destroy it")]
    AlreadyAPool,
    /// The region or the pool's handle is read-only, but the call writes to the pool.
    #[error("the region is read-only, so its pool cannot be written")]
    ReadOnly,
    /// Another [`Pool`](crate::Pool) of this process has the region open for writing; read-only handles are allowed besides it. Or this process is a
    /// child of fork(2), and the region belongs to its parent.
    #[error("another handle has the pool open for writing, or this is a child of the process that opened it")]
    InUse,
    /// The header and its backup are both corrupted.
    #[error("both headers are corrupted: the one at the start {primary}, the backup at the end {backup}")]
    HeadersCorrupted {
        /// The corruption of the primary, the header at the start.
        primary: HeaderCorruption,
        /// The corruption of the backup, the header at the end.
        backup: HeaderCorruption,
    },
    /// The pool was created by a newer version of this software.
    #[error("the pool has format version {found}, and this program supports versions up to {supported}")]
    FutureVersion {
        /// The version of the pool.
        found: u32,
        /// The newest version that this program supports.
        supported: u32,
    },
    /// The pool was created by an older version of this software, in a format that this version does not read.
    #[error(
        "the pool has format version {found}, and this program supports only version {supported}; create it again"
    )]
    OldVersion {
        /// The version of the pool.
        found: u32,
        /// The only version that this program supports.
        supported: u32,
    },
    /// The pool uses features that this program does not support, and that are required to open or to write the pool.
    #[error("{needed_for} this pool requires features {unknown:#x}, which this program does not support")]
    UnknownFeatures {
        /// The bits of these features.
        unknown: u64,
        /// What the features are required for: "opening" or "writing".
        needed_for: &'static str,
    },
    /// The region is shorter than the pool.
    #[error("the pool is truncated: it has {found_bytes} bytes of {expected_bytes}")]
    Truncated {
        /// The length recorded in the header.
        expected_bytes: u64,
        /// The length of the region.
        found_bytes: u64,
    },
    /// The requested layout is impossible.
    #[error("a pool of {pool_bytes} bytes with its data at {data_start} is impossible: {reason}")]
    Layout {
        /// The requested length of the pool.
        pool_bytes: u64,
        /// The requested start of its data area.
        data_start: u64,
        /// The reason.
        reason: &'static str,
    },
    /// One half of the requested identity is zero. In a header, a zero half counts as erased.
    #[error("a pool cannot have the identity {uuid}: neither half may be zero")]
    Identity {
        /// The requested identity.
        uuid: Uuid,
    },
    /// A fence failed. The change may be partly done, as after a crash.
    #[error(transparent)]
    Fence(#[from] FenceError),
}

/// An error of finding, setting or removing a root. The root directory is unchanged, unless a fence failed.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum RootError {
    /// The name is invalid. A valid name has 1 to 24 bytes of UTF-8 and no zero byte.
    #[error("{name:?} cannot name a root: names have 1 to 24 bytes and no zero byte")]
    Name {
        /// The requested name.
        name: String,
    },
    /// The name is that of a root which the structure in the pool needs for itself.
    #[error("{name:?} cannot name a root: it is that of the pool's own structure")]
    Reserved {
        /// The requested name.
        name: String,
    },
    /// The pool is open read-only, but the call changes the root directory.
    #[error("the pool is read-only, so no root can be changed")]
    ReadOnly,
    /// The pool has logged roots: only transactions of its log can change them, because a replay could undo any other change.
    #[error("the roots of this pool can be changed only by transactions of its heap")]
    Logged,
    /// The root directory is full.
    #[error("the root directory is full: it holds {root_count_max} roots, corrupted ones included")]
    Full {
        /// The largest number of roots.
        root_count_max: u64,
    },
    /// The root was not found, but slots of the directory are corrupted, and the root may have been in one of them.
    #[error(
        "no such root, but {slots} slots of the root directory are corrupted, and it may have been in one of them"
    )]
    Corrupted {
        /// The number of corrupted slots.
        slots: usize,
    },
    /// The root's value has another type than the requested one.
    #[error(
        "root {name:?} holds another type: {found_bytes} bytes with layout {found_layout:#018x}, \
         expected {expected_bytes} bytes with {expected_layout:#018x}"
    )]
    Type {
        /// The root's name.
        name: String,
        /// The layout fingerprint in the pool.
        found_layout: u64,
        /// The layout fingerprint of the requested type.
        expected_layout: u64,
        /// The length of the value in the pool.
        found_bytes: u64,
        /// The length of the requested type.
        expected_bytes: u64,
    },
    /// The root's value lies outside the data area or is misaligned: the directory is corrupted.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A fence failed, during this change of the directory or during an earlier one.
    #[error(transparent)]
    Fence(#[from] FenceError),
}

/// An offset or a link that is not valid in the pool's data area.
///
/// If such a link was read from the pool and is not null, the medium or a program has corrupted it.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlaceError {
    /// The link is null.
    #[error("the link is null")]
    Null,
    /// The pool is open read-only, but the call writes.
    #[error("the pool is read-only, so no value can be written")]
    ReadOnly,
    /// The value does not fit in the data area.
    #[error(
        "{size_bytes} bytes at offset {offset} do not fit in the pool's data area, {data_start}..{data_end}"
    )]
    OutOfRange {
        /// The offset of the value.
        offset: u64,
        /// The size of the value.
        size_bytes: u64,
        /// The start of the data area.
        data_start: u64,
        /// The end of the data area.
        data_end: u64,
    },
    /// The offset is not a multiple of the type's alignment.
    #[error("offset {offset} is not a multiple of the type's alignment, {align_bytes}")]
    Misaligned {
        /// The offset of the value.
        offset: u64,
        /// The alignment.
        align_bytes: u64,
    },
}

/// The corruption of one copy of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderCorruption {
    /// The first eight bytes are not the magic number.
    NoMagic,
    /// The checksum does not match the contents.
    Checksum {
        /// The checksum recorded in the header.
        found: u32,
        /// The checksum of the header's contents.
        expected: u32,
    },
    /// The checksum matches, but the layout is impossible.
    Layout,
    /// The backup differs from the primary: it belongs to another pool, has another format version, or holds an older header of this pool.
    Mismatch,
}

impl fmt::Display for HeaderCorruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMagic => f.write_str("has no magic number"),
            Self::Checksum { found, expected } => {
                write!(f, "has checksum {found:#010x}, but its contents have {expected:#010x}")
            }
            Self::Layout => f.write_str("describes an impossible layout"),
            Self::Mismatch => f.write_str("differs from the other copy"),
        }
    }
}
