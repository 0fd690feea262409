//! Errors of another tool's log.

use std::io;

/// Why a log was not imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// Reading failed.
    #[error("reading failed")]
    Io(#[from] io::Error),
    /// The log is of another kind, or was made without `--log-stores=yes`.
    #[error("the log has no START")]
    NoStart,
    /// A second program ran, which has other addresses.
    #[error(
        "a second START in line {line}: each process that runs a program of its own needs a log of its own"
    )]
    SeveralStarts {
        /// The line.
        line: u64,
    },
    /// The program did not end, or the log was cut.
    #[error("the log ends in line {line} without STOP")]
    NoStop {
        /// The last line.
        line: u64,
    },
    /// The log and the options leave open which addresses are persistent memory.
    #[error("the log registers no file, and no region was given")]
    NoRegion,
    /// More than one file was registered, and the options choose none.
    #[error("the log registers {first:?} and {second:?}: one of them must be chosen")]
    SeveralFiles {
        /// The one that came first.
        first: String,
        /// Another one.
        second: String,
    },
    /// The region is too long.
    #[error("the region would have {found} bytes, and the limit is {limit}")]
    TooLarge {
        /// How long it would be.
        found: u64,
        /// The longest.
        limit: u64,
    },
    /// The region is empty.
    #[error("the region would be empty")]
    Empty,
    /// Lines of memory are not lines of the region.
    #[error(
        "address {address:#x} is mapped to offset {offset:#x}, which is not as far into a line of 64 bytes"
    )]
    Unaligned {
        /// Where in the process.
        address: u64,
        /// Where in the region.
        offset: u64,
    },
    /// A record is invalid.
    #[error("line {line}, record {record} ({text:?})")]
    Record {
        /// The line of the log, from 1.
        line: u64,
        /// Which record after START, from 1.
        record: u64,
        /// How the record begins.
        text: String,
        /// What is wrong with it.
        #[source]
        error: RecordError,
    },
}

/// What is wrong with a record of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The kind of the record is unknown.
    #[error("it is of no known kind")]
    Unknown,
    /// The record is too short.
    #[error("its {0} is missing")]
    Missing(&'static str),
    /// The record is too long.
    #[error("it has more fields than it should")]
    Extra,
    /// A field is not a number.
    #[error("its {0} is not a hexadecimal number of at most 64 bits")]
    NotANumber(&'static str),
    /// A store of no bytes, or of more than an instruction can store.
    #[error("a store of {found} bytes, and one has 1 to {most}")]
    StoreSize {
        /// How many.
        found: u64,
        /// The most.
        most: u64,
    },
    /// The value has more bytes than are stored.
    #[error("its value does not fit into {0} bytes")]
    Value(u64),
    /// The range ends after the last address.
    #[error("its range ends after the last address")]
    Range,
}
