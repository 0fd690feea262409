//! What can go wrong with space, except for corruption, which is told of separately.

use pm_core::FenceError;

/// There is no space for a block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpaceError {
    /// No free extent is long enough.
    #[error("no {lines} lines of 64 bytes are free in one piece{}", Later { waiting: *waiting, held: *held })]
    Full {
        /// Lines that were asked for.
        lines: u64,
        /// Freed blocks are still waiting, for the checkpoint LSN or for their time: trying again once it is higher may help.
        waiting: bool,
        /// Transactions under way hold extents of which they may not need all: trying again once they are done may
        /// help.
        held: bool,
    },
    /// A header cannot say that many lines.
    #[error("a block of {lines} lines of 64 bytes is longer than the longest, {max_lines} lines")]
    TooLong {
        /// Lines that were asked for.
        lines: u64,
        /// The most that a block can have.
        max_lines: u64,
    },
    /// Blocks longer than a chunk start at its second line, and smaller ones lie inside one.
    #[error("a block of {lines} lines of 64 bytes cannot be aligned to {align_bytes} bytes in this heap")]
    Alignment {
        /// Lines that were asked for.
        lines: u64,
        /// Alignment that was asked for.
        align_bytes: u64,
    },
    /// Chunks were to be joined for a long block, or to be parted after one, and that could not be made durable.
    #[error(transparent)]
    Fence(#[from] FenceError),
}

/// Whether there may be space later.
struct Later {
    waiting: bool,
    held: bool,
}

impl core::fmt::Display for Later {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match (self.waiting, self.held) {
            (false, false) => Ok(()),
            (true, _) => f.write_str("; blocks freed lately are not to be had yet"),
            (false, true) => f.write_str("; a transaction under way holds more than it may need"),
        }
    }
}

/// This is no block that can be freed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FreeError {
    /// It does not lie where blocks are.
    #[error("offset {offset} is outside of the heap's chunks")]
    OutsideHeap {
        /// What was given.
        offset: u64,
    },
    /// Blocks start at multiples of 64.
    #[error("offset {offset} is no multiple of 64, where blocks start")]
    Misaligned {
        /// What was given.
        offset: u64,
    },
    /// It lies inside an allocated block, or in front of the first block of a chunk.
    #[error("no block starts at offset {offset}")]
    NotABlock {
        /// What was given.
        offset: u64,
    },
    /// It was freed, or is being freed by a transaction under way, or was never allocated.
    #[error("what lies at offset {offset} is free already")]
    AlreadyFree {
        /// What was given.
        offset: u64,
    },
    /// Its header is corrupted, or it lies where a header was corrupted, so that nobody knows how long it is.
    #[error(
        "the block at offset {offset} cannot be freed: the header at offset {header_offset} is corrupted"
    )]
    Corrupted {
        /// What was given.
        offset: u64,
        /// Where the corrupted header lies.
        header_offset: u64,
    },
    /// What was learned of its chunk could not be made durable.
    #[error(transparent)]
    Fence(#[from] FenceError),
}
