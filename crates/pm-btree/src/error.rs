//! Why operations on a store fail.

use core::fmt;
use pm_alloc::{HeapError, SpaceError, TxError};
use pm_core::{FenceError, PlaceError, RootError};
use std::path::PathBuf;

/// Corruption of a store: bytes that no operation and no crash leaves.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store is corrupted at offset {offset}: {kind}")]
#[non_exhaustive]
pub struct Corruption {
    /// The offset of the corrupted structure in the pool.
    pub offset: u64,
    /// What is corrupted.
    pub kind: CorruptionKind,
}

impl Corruption {
    pub(crate) const fn new(offset: u64, kind: CorruptionKind) -> Self {
        Self { offset, kind }
    }
}

/// The structure that is corrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CorruptionKind {
    /// The constants in the store's root block.
    Header,
    /// A state word in the store's root block.
    State,
    /// The table of extents.
    ExtentTable,
    /// The header of a node.
    NodeHeader,
    /// The link of a node to its right sibling.
    Sibling,
    /// An entry of a node: its checksum is wrong.
    Entry,
    /// The record of an entry: its checksum is wrong, or it is not in the store.
    Record,
    /// An entry of the catalogue of tables.
    Catalogue,
}

impl fmt::Display for CorruptionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Header => "the header of the store",
            Self::State => "a state word of the store",
            Self::ExtentTable => "the table of extents",
            Self::NodeHeader => "the header of a node",
            Self::Sibling => "the link of a node to its right sibling",
            Self::Entry => "an entry of a node",
            Self::Record => "a record",
            Self::Catalogue => "the catalogue of tables",
        })
    }
}

/// Why a store cannot be created, opened or closed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The heap that holds the store could not be created, opened or closed.
    #[error(transparent)]
    Heap(#[from] HeapError),
    /// The store in the file is open in this process: a store that was dropped is open until its tables, iterators and batches are dropped, too.
    #[error(
        "{path} is still open in this process: the store, or a table, iterator or batch of it, exists",
        path = .path.display()
    )]
    StillOpen {
        /// The requested path.
        path: PathBuf,
    },
    /// The call needs a store that has no handles.
    #[error("the store has {handles} tables, iterators or batches, and must have none")]
    InUse {
        /// The number of tables, iterators and batches.
        handles: usize,
    },
    /// The store was opened with [`Store::open_read_only`](crate::Store::open_read_only), and cannot grow.
    #[error("the store is open for reading only")]
    ReadOnly,
    /// The heap holds no store.
    #[error("the heap holds no store: it has no root `pm-btree`")]
    NotAStore,
    /// The store was created by another version of this software.
    #[error("the store has format version {found}, and this program opens only version {supported}")]
    Version {
        /// The store's version.
        found: u32,
        /// The only version that this program opens.
        supported: u32,
    },
    /// The store uses features that this program does not know.
    #[error("the store uses features {unknown:#x} that this program does not know")]
    UnknownFeatures {
        /// The bits of these features.
        unknown: u64,
    },
    /// The requested layout is impossible.
    #[error("no store can have {pool_bytes} bytes: {reason}")]
    Layout {
        /// The length of the pool.
        pool_bytes: u64,
        /// The reason why it is impossible.
        reason: &'static str,
    },
    /// A structure that the whole store needs is corrupted.
    #[error(transparent)]
    Corrupted(#[from] Corruption),
    /// The root of the store could not be found or set.
    #[error(transparent)]
    Root(#[from] RootError),
    /// A change of a group could not be made when the store was closed.
    #[error("changes of a group are lost: {0}")]
    Group(#[from] WriteError),
    /// A transaction of the heap failed.
    #[error(transparent)]
    Tx(#[from] TxError),
    /// A fence failed.
    #[error(transparent)]
    Fence(#[from] FenceError),
}

impl From<PlaceError> for OpenError {
    fn from(error: PlaceError) -> Self {
        Self::Tx(error.into())
    }
}

/// Why a leaf cannot be used.
#[derive(Debug)]
pub(crate) enum LeafError {
    Corrupted(Corruption),
    Fence(FenceError),
}

impl From<Corruption> for LeafError {
    fn from(corruption: Corruption) -> Self {
        Self::Corrupted(corruption)
    }
}

impl From<FenceError> for LeafError {
    fn from(error: FenceError) -> Self {
        Self::Fence(error)
    }
}

macro_rules! from_leaf_error {
    ($($error:ty),*) => {$(
        impl From<LeafError> for $error {
            fn from(error: LeafError) -> Self {
                match error {
                    LeafError::Corrupted(corruption) => Self::Corrupted(corruption),
                    LeafError::Fence(error) => Self::Fence(error),
                }
            }
        }
    )*};
}
from_leaf_error!(OpenError, ReadError, WriteError);

/// Why a read failed.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadError {
    /// The key cannot be encoded.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The stored bytes are no value of the type.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The entry is corrupted, or the key was not found and a corrupted entry may have held it.
    #[error(transparent)]
    Corrupted(#[from] Corruption),
    /// A fence failed. A leaf that is read for the first time after a crash is made durable first.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// The read needs the changes of a group to be committed, which fails for this reason.
    #[error("changes of a group cannot be committed: {0}")]
    Group(String),
}

impl ReadError {
    /// The group cannot be committed.
    pub(crate) fn of_group(error: WriteError) -> Self {
        match error {
            WriteError::Corrupted(corruption) => Self::Corrupted(corruption),
            WriteError::Fence(error) => Self::Fence(error),
            other => Self::Group(other.to_string()),
        }
    }
}

/// Why a change failed. Nothing was changed, unless a fence failed: then the next open decides whether the change is durable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The key or the value cannot be encoded.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The key and the value together are too long.
    #[error("a record of {len_bytes} bytes is too long: the limit is {max_bytes}")]
    TooLong {
        /// The length of the record.
        len_bytes: u64,
        /// The length of the longest record in this store.
        max_bytes: u64,
    },
    /// The store was opened with [`Store::open_read_only`](crate::Store::open_read_only).
    #[error("the store is open for reading only")]
    ReadOnly,
    /// The pool has no room.
    #[error("the store is full")]
    Full,
    /// The leaf of the key has a corrupted entry, which may have held the key.
    #[error(transparent)]
    Corrupted(#[from] Corruption),
    /// The stored bytes of a key or value that the change depends on are no encoding of the type.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The call needs a store that has no handles.
    #[error("the store has {handles} tables, iterators or batches, and must have none")]
    InUse {
        /// The number of tables, iterators and batches.
        handles: usize,
    },
    /// The table of a batch's operation belongs to another store.
    #[error("a table of another store")]
    OtherStore,
    /// The store was opened eight times or more without verifying all tables, because one of them is corrupted: batches need that.
    #[error("batches need a verified store, and for {sessions} sessions a corrupted leaf could not be read")]
    Unverified {
        /// The number of sessions.
        sessions: u64,
    },
    /// A transaction of the heap, which allocates space, failed.
    #[error(transparent)]
    Tx(TxError),
    /// A fence failed. The store accepts no more changes until it is opened again.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// The change depends on a read that needs the changes of a group to be committed, which fails for this reason.
    #[error("changes of a group cannot be committed: {0}")]
    Group(String),
    /// Changes of a group could not be made when it was committed, although there was no reason against them when they joined it. They are not there any
    /// more; all others of the group are durable.
    #[error("{}", LostChange::describe(.0))]
    Lost(Vec<LostChange>),
    /// An earlier fence failed: the store accepts no more changes until it is opened again.
    #[error("an earlier fence failed: the store accepts no more changes until it is opened again")]
    Poisoned,
}

impl From<ReadError> for WriteError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Encode(error) => Self::Encode(error),
            ReadError::Decode(error) => Self::Decode(error),
            ReadError::Corrupted(error) => Self::Corrupted(error),
            ReadError::Fence(error) => Self::Fence(error),
            ReadError::Group(reason) => Self::Group(reason),
        }
    }
}

impl From<TxError> for WriteError {
    fn from(error: TxError) -> Self {
        match error {
            TxError::Space(SpaceError::Full { .. } | SpaceError::TooLong { .. }) => Self::Full,
            error => Self::Tx(error),
        }
    }
}

/// A change of a group that could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostChange {
    /// The table.
    pub table: String,
    /// The encoded key.
    pub key: Vec<u8>,
    /// Why it could not be made.
    pub reason: String,
}

impl LostChange {
    fn describe(lost: &[Self]) -> String {
        let Some(Self { table, key, reason }) = lost.first() else { return "no change is lost".to_owned() };
        let key = key.escape_ascii();
        format!(
            "{} changes of a group are lost, first that of key {key} of table {table:?}: {reason}",
            lost.len()
        )
    }
}

/// Why a table cannot be opened or created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The name is empty, or longer than 255 bytes.
    #[error("a table's name has 1 to 255 bytes, and this one has {len_bytes}")]
    Name {
        /// The length of the name.
        len_bytes: usize,
    },
    /// The table holds other types.
    #[error("table {name:?} maps {stored} and was opened as {wanted}")]
    Type {
        /// The table.
        name: String,
        /// The types with which it was created.
        stored: String,
        /// The types with which it was opened.
        wanted: String,
    },
    /// There are 65,535 tables.
    #[error("the store has 65,535 tables, and cannot have more")]
    TooMany,
    /// A part of the table that all operations need is corrupted.
    #[error(transparent)]
    Corrupted(#[from] Corruption),
    /// The catalogue could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The table could not be created.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A fence failed.
    #[error(transparent)]
    Fence(#[from] FenceError),
}

/// A key or value that has no encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// A string stands before other elements in a tuple of keys, where a zero byte ends it, and contains a zero byte itself.
    #[error("a string before other elements of a key must not contain a zero byte, as at byte {position}")]
    Nul {
        /// The offset of the first zero byte in the string.
        position: usize,
    },
    /// An element of a tuple of values is longer than its length prefix can say.
    #[error(
        "an element of {found} bytes before other elements of a value is too long; the limit is {limit} bytes"
    )]
    TooLong {
        /// The length of the element in bytes.
        found: usize,
        /// The greatest length in bytes.
        limit: usize,
    },
}

/// Bytes that are no encoding of a type: the record is corrupted, or was written as another type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The type has a fixed width, and the bytes have another.
    #[error("{found} bytes instead of {expected}")]
    Width {
        /// The width of the type in bytes.
        expected: usize,
        /// The number of bytes.
        found: usize,
    },
    /// The bytes end inside an element of a tuple.
    #[error("an element of {expected} bytes is cut off after {found}")]
    Truncated {
        /// The length of the element in bytes.
        expected: usize,
        /// The number of bytes from the start of the element.
        found: usize,
    },
    /// The zero byte after a string in a tuple of keys is missing.
    #[error("no zero byte ends the string, in {found} bytes")]
    Unterminated {
        /// The number of bytes from the start of the string.
        found: usize,
    },
    /// The bytes of a string are not UTF-8.
    #[error("not UTF-8 after {valid_bytes} bytes")]
    Utf8 {
        /// The number of bytes up to which they are UTF-8.
        valid_bytes: usize,
    },
    /// The bytes of a type that does not use all bit patterns have an unused one.
    #[error("{found:#x} is no value of {of}")]
    Pattern {
        /// The type, or the part of an encoding.
        of: &'static str,
        /// The bit pattern.
        found: u32,
    },
}
