//! Why a pool could not be made, opened or changed.

use crate::{FenceError, OpenError};
use core::fmt;
use uuid::Uuid;

/// Why a pool could not be made, opened or grown. Nothing has been changed then, unless the variant is [`Fence`](Self::Fence) or
/// the operation's own documentation says more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The region below could not be made or opened.
    #[error(transparent)]
    Region(#[from] OpenError),
    /// Neither the start nor the end of the region looks like a pool's header.
    #[error("this is not a pool: no header at its start or its end")]
    NotAPool,
    /// The region holds a pool already, or what is left of one: also a pool whose headers are both corrupted, or that was being made
    /// when the power failed.
    #[error("the region holds a pool already, sound or not; formatting would destroy it")]
    AlreadyAPool,
    /// The region or the pool is read-only, and the pool was to be written.
    #[error("the region is read-only, and the pool was to be written")]
    ReadOnly,
    /// Another [`Pool`](crate::Pool) of this process writes the region; reading it meanwhile is allowed. Or this process is a
    /// child of fork(2), and its parent opened the region, or what is to be closed.
    #[error("another handle has the pool open for writing, or this is a child of the process that opened it")]
    InUse,
    /// The header and its backup are both corrupted.
    #[error("both headers are corrupted: the one at the start {primary}, the backup at the end {backup}")]
    HeadersCorrupted {
        /// What is wrong with the header at the start.
        primary: HeaderCorruption,
        /// What is wrong with the backup.
        backup: HeaderCorruption,
    },
    /// The pool was made by a newer version of this software.
    #[error("the pool has format version {found}, and this program knows versions up to {supported}")]
    FutureVersion {
        /// The pool's.
        found: u32,
        /// This program's.
        supported: u32,
    },
    /// The pool was made by an older version of this software, whose format this one does not read.
    #[error(
        "the pool has format version {found}, and this program knows version {supported} only; it must be made anew"
    )]
    OldVersion {
        /// The pool's.
        found: u32,
        /// This program's.
        supported: u32,
    },
    /// The pool uses features that this program must know to open or to write it.
    #[error("the pool uses features {unknown:#x} that this program does not know and needs for {needed_for}")]
    UnknownFeatures {
        /// Their bits.
        unknown: u64,
        /// "opening" or "writing".
        needed_for: &'static str,
    },
    /// The region is shorter than the pool.
    #[error("the pool is truncated: it has {found_bytes} bytes of {expected_bytes}")]
    Truncated {
        /// What the header says.
        expected_bytes: u64,
        /// What is there.
        found_bytes: u64,
    },
    /// The layout asked for cannot be.
    #[error("a pool of {pool_bytes} bytes with its data at {data_start} cannot be: {reason}")]
    Layout {
        /// The pool's length.
        pool_bytes: u64,
        /// Where its data would start.
        data_start: u64,
        /// Why not.
        reason: &'static str,
    },
    /// One half of the requested identity is zero, which would count as erased.
    #[error("a pool cannot have the identity {uuid}: no half of it may be zero")]
    Identity {
        /// What was asked for.
        uuid: Uuid,
    },
    /// A fence failed. What was to be changed is in part, as a crash would leave it.
    #[error(transparent)]
    Fence(#[from] FenceError),
}

/// Why a root could not be found or set. The directory is as it was, unless a fence failed.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum RootError {
    /// Names have 1 to 24 bytes of UTF-8 and no zero byte.
    #[error("{name:?} cannot name a root: names have 1 to 24 bytes and no zero byte")]
    Name {
        /// The name asked for.
        name: String,
    },
    /// The pool is open read-only, and a root was to be set or removed.
    #[error("the pool is read-only, and a root was to be changed")]
    ReadOnly,
    /// The roots of the pool are changed by the transactions of its log only, which may undo any other change.
    #[error("the roots of this pool are changed by the transactions of a heap only")]
    Logged,
    /// As many roots have names as can.
    #[error("all {names} roots of the pool are taken")]
    Full {
        /// How many there can be.
        names: u64,
    },
    /// The root is not there, but some of the directory is corrupted: it may have been there.
    #[error(
        "no such root, but {slots} slots of the root directory are corrupted, and it may have been in one of them"
    )]
    Corrupted {
        /// How many slots.
        slots: usize,
    },
    /// The root holds another type than the one asked for.
    #[error(
        "root {name:?} holds another type: {found_bytes} bytes with layout {found_layout:#018x}, \
         expected {expected_bytes} bytes with {expected_layout:#018x}"
    )]
    Type {
        /// The root's name.
        name: String,
        /// The fingerprint in the pool.
        found_layout: u64,
        /// That of the type asked for.
        expected_layout: u64,
        /// The length in the pool.
        found_bytes: u64,
        /// That of the type asked for.
        expected_bytes: u64,
    },
    /// The root's value does not lie in the data area: the directory is corrupted.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A fence failed.
    #[error(transparent)]
    Fence(#[from] FenceError),
}

/// A place or a link that does not lie in the pool's data area.
///
/// From a link that was read out of the pool this means that the medium, or a program, has corrupted it.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlaceError {
    /// The link is null.
    #[error("the link is null")]
    Null,
    /// The pool is open read-only, and the place was to be written.
    #[error("the pool is read-only, and a place in it was to be written")]
    ReadOnly,
    /// The value would not lie inside the data area.
    #[error("{size_bytes} bytes at offset {offset} leave the pool's data area, {data_start}..{data_end}")]
    OutOfRange {
        /// Where the value would be.
        offset: u64,
        /// Its size.
        size_bytes: u64,
        /// Where the data area starts.
        data_start: u64,
        /// Where it ends.
        data_end: u64,
    },
    /// The offset is not a multiple of the type's alignment.
    #[error("offset {offset} is not a multiple of the type's alignment, {align_bytes}")]
    Misaligned {
        /// Where the value would be.
        offset: u64,
        /// What it must be a multiple of.
        align_bytes: u64,
    },
}

/// What is wrong with one copy of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderCorruption {
    /// The first eight bytes are not a pool's.
    NoMagic,
    /// The checksum does not fit the contents.
    Checksum {
        /// What the header says.
        found: u32,
        /// What its contents give.
        expected: u32,
    },
    /// The checksum fits, but the layout is impossible.
    Layout,
    /// It belongs to another pool, or is older than the other copy: a crash during an update, or a stale copy.
    Stale,
}

impl fmt::Display for HeaderCorruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMagic => f.write_str("does not begin like one"),
            Self::Checksum { found, expected } => {
                write!(f, "has checksum {found:#010x} where its contents give {expected:#010x}")
            }
            Self::Layout => f.write_str("describes an impossible layout"),
            Self::Stale => f.write_str("is older than the other copy"),
        }
    }
}
