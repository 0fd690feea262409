//! Errors of buffers.

use pm_core::fault::MediumFault;
use pm_core::{FenceError, OpenError};
use std::io;
use std::path::PathBuf;

/// Buffers could not be made, or those of a killed server not replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the message names the fields")]
pub enum BufferError {
    /// The sizes are impossible.
    #[error(
        "buffers and strides are multiples of 4 KiB, at least one of each, and all buffers together at most 16 TiB"
    )]
    Shape,
    /// The memory is too small for the slots.
    #[error("the slots need {needed_bytes} bytes, and their memory has {found_bytes}")]
    TooSmall { needed_bytes: u64, found_bytes: u64 },
    /// The memory holds no slots, or their header is corrupted.
    #[error("the memory of the buffered writes does not begin with a valid header")]
    NoSlots,
    /// The slots of a server that was killed since the system started are not there.
    #[error("a killed server left completed writes in {path}, which does not exist")]
    Missing { path: PathBuf },
    /// The disk is an older copy of the one whose writes are in the slots.
    #[error(
        "the disk has generation {found} where the buffered writes need {expected}: it is an older copy, to which they must not be stored"
    )]
    OlderCopy { found: u64, expected: u64 },
    /// The file of the slots may be another user's.
    #[error("{path} {what}, so its writes are not stored")]
    Foreign { path: PathBuf, what: &'static str },
    /// The directory of the slots is not on a file system in memory.
    #[error("{path} is not in memory, so buffers there would outlive a power failure in part")]
    NotInMemory { path: PathBuf },
    /// No file can be created in the directory of the slots.
    #[error("buffers cannot be created in {path}: {source}")]
    Directory { path: PathBuf, source: io::Error },
    /// A slot is corrupted: a write that was acknowledged is lost.
    #[error(
        "slot {slot} of the buffered writes is corrupted: checksum {found:#010x} where its contents give {expected:#010x}"
    )]
    Checksum { slot: u64, found: u32, expected: u32 },
    /// A slot belongs to a block outside the device.
    #[error("slot {slot} of the buffered writes is for block {block}, which the device does not have")]
    OutOfRange { slot: u64, block: u64 },
    /// The file of the slots could not be opened or created.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Nor be named or removed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The device cannot be accessed.
    #[error("the buffered writes cannot be stored: {0}")]
    Fault(#[from] MediumFault),
    /// Other bytes were found on the device than were stored.
    #[error("the buffered writes cannot be stored: other bytes were found after them")]
    Mismatch,
    /// Nor fenced.
    #[error("the buffered writes cannot be made durable: {0}")]
    Fence(#[from] FenceError),
}
