//! Errors of buffers.

use pm_core::fault::MediumFault;
use pm_core::{FenceError, OpenError};
use std::io;

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
    /// The memory holds no slots.
    #[error("the file holds no buffered writes")]
    NoSlots,
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
    /// Nor be renamed or removed.
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
