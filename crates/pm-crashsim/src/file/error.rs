//! Errors of trace files.

use std::io;

/// Why a trace file was not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// Reading failed.
    #[error("reading failed")]
    Io(#[from] io::Error),
    /// The file is not a trace.
    #[error("this is not a trace: it begins with {found:02x?}, not with \"PMCTRACE\"")]
    NotATrace {
        /// The first bytes, up to 8.
        found: Vec<u8>,
    },
    /// Another version of this library wrote it.
    #[error("the trace has version {found} of the format, and this library reads up to version {supported}")]
    UnsupportedVersion {
        /// The file's version.
        found: u16,
        /// The newest that is read.
        supported: u16,
    },
    /// The file ends too early.
    #[error("the trace ends at byte {offset}, where {expected} is expected")]
    Truncated {
        /// Where bytes are missing.
        offset: u64,
        /// What should be there.
        expected: &'static str,
    },
    /// A byte is corrupted.
    #[error("the checksum is {found:#010x} and should be {expected:#010x}: the file is corrupted")]
    Checksum {
        /// Computed from what was read.
        expected: u32,
        /// What stands in the file.
        found: u32,
    },
    /// The checksum is right and the contents are not: the program that wrote the file has a bug.
    #[error("at byte {offset}: expected {expected}, found {found}")]
    Invalid {
        /// Where.
        offset: u64,
        /// What should be there.
        expected: &'static str,
        /// What is there instead.
        found: u64,
    },
    /// The region is larger than the caller's limit.
    #[error("the region has {found} bytes, and the limit is {limit}")]
    TooLarge {
        /// Its length.
        found: u64,
        /// The longest that the caller allows.
        limit: u64,
    },
}

pub(super) const fn invalid(offset: u64, expected: &'static str, found: u64) -> TraceError {
    TraceError::Invalid { offset, expected, found }
}
