//! Errors of a request, and of a device's geometry.

use crate::buffer::BufferError;
use pm_core::FenceError;
use pm_core::fault::MediumFault;

/// The error of a block request. A request that fails with any error except [`Medium`](Self::Medium), [`Fault`](Self::Fault),
/// [`Mismatch`](Self::Mismatch) and [`Discarded`](Self::Discarded) has changed nothing.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "the message names the fields")]
#[non_exhaustive]
pub enum BlockError {
    /// The request ends beyond the device's last byte.
    #[error("{len_bytes} bytes at {offset_bytes} end beyond the device's capacity of {capacity_bytes} bytes")]
    OutOfRange { offset_bytes: u64, len_bytes: u64, capacity_bytes: u64 },
    /// The request's start or length is not a multiple of the sector.
    #[error("{len_bytes} bytes at {offset_bytes} are not whole sectors of {sector_bytes} bytes")]
    Unaligned { offset_bytes: u64, len_bytes: u64, sector_bytes: u64 },
    /// The device is exported read-only.
    #[error("the device is read-only")]
    ReadOnly,
    /// The bytes cannot be accessed at present: the file was truncated, or the memory is poisoned. A write may have been made in part, as by a
    /// crash; other ranges are unaffected.
    #[error("{len_bytes} bytes at {offset_bytes} cannot be accessed: {source}")]
    Fault { offset_bytes: u64, len_bytes: u64, source: MediumFault },
    /// Other bytes were found after the write than were written: see [`WritePolicy::verify`](super::WritePolicy::verify).
    #[error("other bytes were found after a write of {len_bytes} bytes at {offset_bytes}")]
    Mismatch { offset_bytes: u64, len_bytes: u64 },
    /// Completed writes of the last server were discarded: see [`Engine::fail_flushes`](super::Engine::fail_flushes). Nothing that a client has written is
    /// known to be there until it has begun anew.
    #[error(
        "completed writes of the last server were discarded, and no flush succeeds until the device is removed"
    )]
    Discarded,
    /// The medium could not make the data durable. The state of the range is unknown, and every later request that needs durability fails too.
    #[error(transparent)]
    Medium(#[from] FenceError),
}

/// What an earlier engine left could not be written back, or new buffers not be made.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum WriteBackError {
    /// It cannot be accessed at present.
    Fault(#[from] MediumFault),
    /// A fence failed.
    Fence(#[from] FenceError),
    /// The buffers of an earlier engine, or the new ones.
    Buffer(#[from] BufferError),
}

/// The error of a range of memory that an engine cannot serve.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "the message names the fields")]
#[non_exhaustive]
pub enum GeometryError {
    /// Sectors are 512 or 4,096 bytes.
    #[error("sectors of {0} bytes are not supported: choose 512 or 4096")]
    SectorSize(u64),
    /// A device has at least one sector.
    #[error("a device of zero bytes has no sectors")]
    ZeroCapacity,
    /// The capacity is not a multiple of the sector.
    #[error("the capacity of {capacity_bytes} bytes is not a multiple of the sector of {sector_bytes} bytes")]
    CapacityNotMultiple { capacity_bytes: u64, sector_bytes: u64 },
    /// The device would exceed the region.
    #[error(
        "{capacity_bytes} bytes at offset {start_bytes} do not fit in the region, which has {region_bytes} bytes"
    )]
    OutsideRegion { start_bytes: u64, capacity_bytes: u64, region_bytes: u64 },
}
