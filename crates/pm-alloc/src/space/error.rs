//! Errors of allocating, freeing and resizing blocks, and reports of corrupted headers.

use core::ops::Range;
use pm_core::FenceError;

/// Why no space can be reserved for a block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpaceError {
    /// No free extent is long enough.
    #[error("there is no free extent of {lines} lines of 64 bytes{}", Later { quarantined: *quarantined, held: *held })]
    Full {
        /// The number of requested lines.
        lines: u64,
        /// Whether freed blocks are quarantined. If so, a later attempt may succeed.
        quarantined: bool,
        /// Whether transactions in progress hold extents of which a part may remain unused. If so, an attempt after they end may succeed.
        held: bool,
    },
    /// The block is longer than a header can represent, or than the heap.
    #[error("a block of {lines} lines of 64 bytes exceeds the maximum of {max_lines} lines")]
    TooLong {
        /// The number of requested lines.
        lines: u64,
        /// The longest possible block.
        max_lines: u64,
    },
    /// The block cannot have this alignment: a block longer than a chunk starts at the second line of a chunk, and a shorter block must fit into one.
    #[error("a block of {lines} lines of 64 bytes cannot be aligned to {align_bytes} bytes in this heap")]
    Alignment {
        /// The number of requested lines.
        lines: u64,
        /// The requested alignment.
        align_bytes: u64,
    },
    /// A fence failed while chunks were joined for a huge block, while a freed huge block was split into chunks, or while headers were made durable.
    #[error(transparent)]
    Fence(#[from] FenceError),
}

/// Whether space may become free later, for the message.
struct Later {
    quarantined: bool,
    held: bool,
}

impl core::fmt::Display for Later {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match (self.quarantined, self.held) {
            (false, false) => Ok(()),
            (true, _) => f.write_str("; recently freed blocks are still quarantined"),
            (false, true) => f.write_str("; a transaction in progress holds more space than it may need"),
        }
    }
}

/// Why a block cannot be freed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FreeError {
    /// The offset is outside the heap's chunks.
    #[error("offset {offset} is outside the heap's chunks")]
    OutsideHeap {
        /// The given offset.
        offset: u64,
    },
    /// The offset is not a multiple of 64, so no block starts there.
    #[error("offset {offset} is not a multiple of 64, so no block starts there")]
    Misaligned {
        /// The given offset.
        offset: u64,
    },
    /// The offset lies inside an allocated block, or before the first block of a chunk.
    #[error("no block starts at offset {offset}")]
    NotABlock {
        /// The given offset.
        offset: u64,
    },
    /// The block is free, is being freed by a transaction in progress, or was never allocated.
    #[error("the block at offset {offset} is already free")]
    AlreadyFree {
        /// The given offset.
        offset: u64,
    },
    /// The block's header is corrupted, or the block lies in the extent of a corrupted header.
    #[error(
        "the block at offset {offset} cannot be freed: the header at offset {header_offset} is corrupted"
    )]
    Corrupted {
        /// The given offset.
        offset: u64,
        /// The offset of the corrupted header.
        header_offset: u64,
    },
    /// The headers of the block's chunk could not be made durable, because a fence failed.
    #[error(transparent)]
    Fence(#[from] FenceError),
}

/// Why a block could not be resized.
#[derive(Debug)]
pub(crate) enum ResizeError {
    /// The block could not be looked up.
    Free(FreeError),
    /// A fence failed. The block has its old or its new length.
    Fence(FenceError),
}

impl From<FreeError> for ResizeError {
    fn from(error: FreeError) -> Self {
        Self::Free(error)
    }
}

impl From<FenceError> for ResizeError {
    fn from(error: FenceError) -> Self {
        Self::Fence(error)
    }
}

/// A corrupted header. Its block is lost, that is, never allocated again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Corruption {
    /// The offset of the header in the region.
    pub header_offset: u64,
    /// The lost bytes of the region: the block, or, if its length is unknown, all bytes that it may have covered. Allocated blocks in this range that
    /// a [check](crate::Heap::check_with) lists are not lost. The range is empty if the header ends a chunk.
    pub extent: Range<u64>,
    /// The word that was found instead of a valid header.
    pub found: u64,
    /// What is known about the extent.
    pub kind: CorruptionKind,
}

/// What is known about the extent of a corrupted header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CorruptionKind {
    /// The extent is the block: the header was corrupted while the heap was open, and the block's length was known from DRAM.
    LengthKnown,
    /// The length of the block is unknown: the header was corrupted before the heap was opened. The extent is the rest of the chunk, or several
    /// chunks if the block may have been longer than one chunk. No line of the extent is allocated again, even after a repair, because the end of the
    /// block is unknown. Other blocks in the extent are not lost: those with intact headers are listed, and can be freed. Some listed blocks may have
    /// been freed long ago, because an old header can survive inside a later block.
    LengthUnknown,
    /// The header ends a chunk. No block is lost.
    End,
}
