//! Why operations on objects fail.

use core::fmt;
use pm_alloc::{CommitError, HeapError, SpaceError, TxError};
use pm_btree::{ReadError, TableError, WriteError};
use pm_core::{FenceError, PlaceError, RootError};
use std::io;
use std::path::PathBuf;

/// Bytes that no operation and no crash leaves.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is corrupted at offset {offset}")]
#[non_exhaustive]
pub struct Corruption {
    /// The offset of the corrupted structure in the pool.
    pub offset: u64,
    /// The structure.
    pub what: Structure,
}

/// A structure that can be corrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Structure {
    /// Both copies of the root block.
    Root,
    /// Both copies of the intent.
    Intent,
    /// The list of slabs.
    Directory,
    /// A word of a slab.
    Slab,
    /// The map of the file's slots.
    Map,
    /// Contents in the file.
    Contents,
    /// The block of an object.
    Object,
    /// The table of an object's chunks.
    Table,
    /// An entry of such a table.
    Entry,
    /// The owner of a slot.
    Owner,
    /// A name in the table of names.
    Name,
}

impl fmt::Display for Structure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Root => "the root block",
            Self::Intent => "the record of the last change of names",
            Self::Directory => "the list of slabs",
            Self::Slab => "a word of a slab",
            Self::Map => "the map of the file's slots",
            Self::Contents => "a chunk in the file",
            Self::Object => "an object's block",
            Self::Table => "the table of an object's chunks",
            Self::Entry => "the entry of a chunk",
            Self::Owner => "the owner of a slot",
            Self::Name => "a name",
        })
    }
}

/// Why objects cannot be created, opened or closed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The store that has the names could not be created, opened or closed.
    #[error(transparent)]
    Store(#[from] pm_btree::OpenError),
    /// The pool holds no objects.
    #[error("the pool holds no objects: it has no root `pm-objects`")]
    NoObjects,
    /// The pool was made by another version of this software.
    #[error("the objects have format version {found}, and this program opens only version {supported}")]
    Version {
        /// The pool's version.
        found: u32,
        /// The only version that this program opens.
        supported: u32,
    },
    /// The pool uses features that this program does not know.
    #[error("the objects use features {unknown:#x} that this program does not know")]
    UnknownFeatures {
        /// The bits of these features.
        unknown: u64,
    },
    /// The options are impossible.
    #[error("no pool of objects can have these options: {reason}")]
    Layout {
        /// The reason.
        reason: &'static str,
    },
    /// The pool has a file with the lower tier, which is missing, or not readable.
    #[error("the file with the lower tier, {}, cannot be opened", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: pm_core::OpenError,
    },
    /// The file with the lower tier is that of another pool, or none at all.
    #[error("the file with the lower tier is that of another pool, or is corrupted")]
    ForeignFile,
    /// There is not enough memory for [copies of chunks](crate::ObjectsOptions::dram_bytes).
    #[error("there is not enough memory for {bytes} bytes of copies of chunks")]
    Dram {
        /// The length of the copies.
        bytes: u64,
        /// The reason.
        #[source]
        source: pm_core::OpenError,
    },
    /// There are objects or iterators, and the call needs that there are none.
    #[error("{handles} objects or iterators are in use, and none may be")]
    InUse {
        /// Their number.
        handles: usize,
    },
    /// The pool is open for reading only.
    #[error("the objects are open for reading only")]
    ReadOnly,
    /// What all objects need cannot be used.
    #[error(transparent)]
    Object(#[from] ObjectError),
}

impl From<TxError> for OpenError {
    fn from(error: TxError) -> Self {
        Self::Object(error.into())
    }
}

impl From<Corruption> for OpenError {
    fn from(corruption: Corruption) -> Self {
        Self::Object(corruption.into())
    }
}

impl From<HeapError> for OpenError {
    fn from(error: HeapError) -> Self {
        Self::Store(error.into())
    }
}

/// Why a call on an object, or on its name, has failed. Nothing has changed, unless the error says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// There is no object with this name.
    #[error("there is no such object")]
    NotFound,
    /// There is an object with this name.
    #[error("there is an object with this name")]
    Exists,
    /// The name has no byte, too many, or a zero byte.
    #[error("a name has 1 to {max} bytes, and no zero byte", max = crate::format::NAME_MAX)]
    Name,
    /// The object holds elements of another type.
    #[error(
        "the object holds elements of {stored_bytes} bytes with layout {stored:016x}, and not of {wanted_bytes} bytes with layout {wanted:016x}"
    )]
    Type {
        /// The fingerprint of the object's type.
        stored: u64,
        /// The length of its elements.
        stored_bytes: u32,
        /// The fingerprint of the requested type.
        wanted: u64,
        /// The length of its elements.
        wanted_bytes: u32,
    },
    /// The type has no bytes, or too many.
    #[error("an element has 1 to {max} bytes, and not {bytes}", max = crate::format::ELEMENT_BYTES_MAX)]
    Element {
        /// The length of the type.
        bytes: usize,
    },
    /// The object would be too long, or the call would change too much at once.
    #[error("{bytes} bytes are too many for one {of}: the limit is {max}")]
    TooLong {
        /// The requested length.
        bytes: u64,
        /// What has the limit.
        of: &'static str,
        /// The limit.
        max: u64,
    },
    /// The elements are not all in the object.
    #[error("elements {start} to {end} are not all in the object, which has {len}")]
    Range {
        /// The first element.
        start: u64,
        /// The element behind the last one.
        end: u64,
        /// The number of elements in the object.
        len: u64,
    },
    /// The object was deleted, or replaced by another one.
    #[error("the object was deleted or replaced")]
    Deleted,
    /// A structure on the medium is corrupted.
    #[error(transparent)]
    Corrupted(#[from] Corruption),
    /// A part of the contents is in the file with the lower tier, which was not opened, or cannot be read.
    #[error("a part of the contents is in the file with the lower tier, which cannot be read")]
    Tier,
    /// There is no room.
    #[error("the pool is full")]
    Full,
    /// The pool is open for reading only.
    #[error("the objects are open for reading only")]
    ReadOnly,
    /// A call that changes objects was made by the closure of another call on the same objects.
    #[error("a closure that changes an object calls what changes objects")]
    Nested,
    /// The source of the contents could not be read to its end.
    #[error("the contents could not be read")]
    Input(#[source] io::Error),
    /// The names could not be read.
    #[error(transparent)]
    NamesRead(ReadError),
    /// The names could not be changed.
    #[error(transparent)]
    NamesWrite(WriteError),
    /// The table of names could not be opened.
    #[error(transparent)]
    NamesTable(#[from] TableError),
    /// A fence failed. The next open decides whether the change is durable, and until then nothing more changes.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// The object is not one of those that the transaction has locked, or is one of another pool.
    #[error("the object is not one of the transaction's")]
    NotLocked,
    /// The pool has no such tier: [no file](crate::ObjectsOptions::file_bytes), or [no DRAM](crate::ObjectsOptions::dram_bytes).
    #[error("the pool has no such tier")]
    NoTier,
    /// An earlier change failed, so that nothing more changes, and objects that were being changed are not read: open them again.
    #[error("an earlier change failed: open the objects again")]
    Poisoned,
    /// A transaction of the heap failed for another reason.
    #[error(transparent)]
    Tx(TxError),
}

impl ObjectError {
    pub(crate) const fn corrupted(offset: u64, what: Structure) -> Self {
        Self::Corrupted(Corruption { offset, what })
    }
}

impl From<TxError> for ObjectError {
    fn from(error: TxError) -> Self {
        match error {
            TxError::Space(SpaceError::Full { .. } | SpaceError::TooLong { .. }) => Self::Full,
            TxError::Commit(error) => error.into(),
            TxError::Fence(error) => Self::Fence(error),
            error => Self::Tx(error),
        }
    }
}

impl From<CommitError> for ObjectError {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Fence(FenceError::Poisoned) | CommitError::Abandoned => Self::Poisoned,
            CommitError::Fence(error) => Self::Fence(error),
            error => Self::Tx(error.into()),
        }
    }
}

impl From<PlaceError> for ObjectError {
    fn from(error: PlaceError) -> Self {
        Self::Tx(error.into())
    }
}

impl From<RootError> for ObjectError {
    fn from(error: RootError) -> Self {
        Self::Tx(error.into())
    }
}

impl From<ReadError> for ObjectError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Fence(error) => Self::Fence(error),
            error => Self::NamesRead(error),
        }
    }
}

impl From<WriteError> for ObjectError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Full => Self::Full,
            WriteError::ReadOnly => Self::ReadOnly,
            WriteError::Poisoned => Self::Poisoned,
            WriteError::Fence(error) => Self::Fence(error),
            WriteError::Tx(error) => error.into(),
            error => Self::NamesWrite(error),
        }
    }
}
