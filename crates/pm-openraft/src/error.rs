//! Errors of the storage.

use openraft::{AnyError, ErrorSubject, ErrorVerb, StorageError as RaftError, StorageIOError};
use pm_btree::{LoadError, ReadError, TableError, WriteError};
use std::io;
use std::sync::Arc;

/// Why a read or a write of the storage fails.
///
/// It is `Clone`, because a batch that fails fails for all writes in it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// The store refuses a write.
    #[error(transparent)]
    Write(Arc<WriteError>),
    /// The store cannot be read.
    #[error(transparent)]
    Read(Arc<ReadError>),
    /// A table cannot be opened.
    #[error(transparent)]
    Table(Arc<TableError>),
    /// A value of the store or of a message is not what this version writes.
    #[error("the {what} cannot be decoded: {error}")]
    Decode {
        /// What is decoded.
        what: &'static str,
        /// The reason.
        error: postcard::Error,
    },
    /// A value cannot be encoded.
    #[error("the {what} cannot be encoded: {error}")]
    Encode {
        /// What is encoded.
        what: &'static str,
        /// The reason.
        error: postcard::Error,
    },
    /// The number of the present set of tables is neither 0 nor 1.
    #[error("the state is in the set of tables {found}, and there are 0 and 1")]
    Set {
        /// The number.
        found: u8,
    },
    /// A truncation of entries that were purged.
    #[error("entries from {from} on cannot be truncated: those up to {purged} were purged")]
    Purged {
        /// The first entry to truncate.
        from: u64,
        /// The last purged entry.
        purged: u64,
    },
    /// The entries of an append do not follow the log.
    #[error("the entry {found} does not follow the log, which continues with {expected}")]
    Hole {
        /// The index that would follow.
        expected: u64,
        /// The index of the entry.
        found: u64,
    },
    /// The values that are read together are too long.
    #[error("the values together have more than {limit_bytes} bytes")]
    TooLong {
        /// The limit.
        limit_bytes: usize,
    },
    /// Entries of a snapshot are no longer there: too many keys were changed while it was read, or it was replaced.
    #[error("the snapshot is outdated")]
    Outdated,
    /// A snapshot that is installed holds nothing, or was received by another storage.
    #[error("the snapshot was not received by this storage")]
    ForeignSnapshot,
    /// The keys of a snapshot are not in ascending order.
    #[error("the keys of the snapshot are not in ascending order")]
    OutOfOrder,
    /// The writer has ended.
    #[error("the storage is closed")]
    Closed,
}

macro_rules! from {
    ($($variant:ident($error:ty))+) => {$(
        impl From<$error> for StorageError {
            fn from(error: $error) -> Self {
                Self::$variant(Arc::new(error))
            }
        }
    )+};
}
from! { Write(WriteError) Read(ReadError) Table(TableError) }

impl From<LoadError> for StorageError {
    fn from(error: LoadError) -> Self {
        match error.failure {
            pm_btree::LoadFailure::Write(error) => error.into(),
            _ => Self::OutOfOrder,
        }
    }
}

impl StorageError {
    /// The error as openraft reports it.
    pub(crate) fn of(self, subject: ErrorSubject<u64>, verb: ErrorVerb) -> RaftError<u64> {
        StorageIOError::new(subject, verb, AnyError::new(&self)).into()
    }

    /// The error as openraft takes it from an append.
    pub(crate) fn into_io(self) -> io::Error {
        io::Error::other(self)
    }
}
