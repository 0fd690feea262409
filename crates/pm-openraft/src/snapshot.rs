//! What a snapshot holds: a view of the state, or entries that are received.

use crate::error::StorageError;
use std::fmt;

/// Keys with their values, in ascending order.
pub type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// Entries of a state at a moment.
pub(crate) trait Source: Send {
    /// The next entries, some hundred KiB of them. None at the end.
    fn next_entries(&mut self) -> Result<Entries, StorageError>;
}

/// Tables that receive a state.
pub(crate) trait Sink: Send {
    /// Adds entries, with keys above all before.
    fn add(&mut self, entries: &[(Vec<u8>, Vec<u8>)]) -> Result<(), StorageError>;

    /// The number of this reception in its storage.
    fn reception(&self) -> u64;

    /// Whether no other reception has begun since, and this is not installed.
    fn is_present(&self) -> bool;
}

enum Contents {
    Source(Box<dyn Source>),
    Sink(Box<dyn Sink>),
}

/// The contents of a snapshot. One that was built is a view of the state, which is read while commands change the state. One that is received is in the
/// tables that are not in use, until it is installed.
pub struct SnapshotData(Contents);

impl fmt::Debug for SnapshotData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.0 {
            Contents::Source(_) => "built",
            Contents::Sink(_) => "received",
        };
        f.debug_tuple("SnapshotData").field(&kind).finish()
    }
}

impl SnapshotData {
    pub(crate) fn of_source(source: impl Source + 'static) -> Self {
        Self(Contents::Source(Box::new(source)))
    }

    pub(crate) fn of_sink(sink: impl Sink + 'static) -> Self {
        Self(Contents::Sink(Box::new(sink)))
    }

    /// The next entries of a snapshot that was built, to be sent. None at the end.
    ///
    /// # Errors
    /// When the snapshot is outdated, or the store cannot be read.
    pub fn next_entries(&mut self) -> Result<Entries, StorageError> {
        match &mut self.0 {
            Contents::Source(source) => source.next_entries(),
            Contents::Sink(_) => Err(StorageError::ForeignSnapshot),
        }
    }

    /// Adds entries to a snapshot that is received, in the order in which they were read.
    ///
    /// # Errors
    /// When the entries are not in order, another snapshot is received meanwhile, or the store refuses them.
    pub fn add(&mut self, entries: &[(Vec<u8>, Vec<u8>)]) -> Result<(), StorageError> {
        match &mut self.0 {
            Contents::Source(_) => Err(StorageError::ForeignSnapshot),
            Contents::Sink(sink) => sink.add(entries),
        }
    }

    /// Whether this is received, and can be installed: no other reception has begun since, of which a storage has one at a time. openraft ends a node that
    /// installs another one, so the network of a program asks before it calls `install_full_snapshot`, and begins no reception until that returns.
    #[must_use]
    pub fn is_present(&self) -> bool {
        match &self.0 {
            Contents::Source(_) => false,
            Contents::Sink(sink) => sink.is_present(),
        }
    }

    /// The number of the reception, if this was received.
    pub(crate) fn reception(&self) -> Option<u64> {
        match &self.0 {
            Contents::Source(_) => None,
            Contents::Sink(sink) => Some(sink.reception()),
        }
    }
}
