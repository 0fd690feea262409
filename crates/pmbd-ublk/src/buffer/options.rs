//! The shape of the buffers.

use super::error::BufferError;
use super::format::{BLOCK_BYTES, SLOTS_MAX};

/// How many buffers there are, and how they are drained.
///
/// # Source
/// PMBD (MSST 2014), III-B, "Buffering and batching", and Figs. 5 and 6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferOptions {
    /// The size of each buffer, a multiple of 4 KiB.
    pub buffer_bytes: u64,
    /// The number of buffers. Each has a lock of its own, so that writes to different buffers do not wait for each other.
    pub buffer_count: u64,
    /// Consecutive bytes of the device that have the same buffer, a multiple of 4 KiB.
    pub stride_bytes: u64,
    /// Whether a buffer is drained in batches: sorted by offset, with adjacent blocks in one store, and so in one window of a protected device; writes of
    /// 32 KiB or more pass the buffer, because they are batches already. Else each block is stored by itself, in the order of arrival.
    pub is_batched: bool,
}

impl Default for BufferOptions {
    /// One buffer of 16 MiB, drained in batches.
    fn default() -> Self {
        Self { buffer_bytes: 16 << 20, buffer_count: 1, stride_bytes: 256 << 10, is_batched: true }
    }
}

impl BufferOptions {
    /// Checks the sizes.
    ///
    /// # Errors
    /// [`BufferError::Shape`].
    pub fn check(&self) -> Result<(), BufferError> {
        let is_whole = |bytes: u64| bytes != 0 && bytes.is_multiple_of(BLOCK_BYTES);
        let slot_count = (self.buffer_bytes / BLOCK_BYTES).checked_mul(self.buffer_count);
        let fits = slot_count.is_some_and(|count| count <= SLOTS_MAX);
        match is_whole(self.buffer_bytes) && is_whole(self.stride_bytes) && self.buffer_count != 0 && fits {
            true => Ok(()),
            false => Err(BufferError::Shape),
        }
    }

    /// The slots of each buffer.
    pub(super) const fn slots_each(&self) -> u64 {
        self.buffer_bytes / BLOCK_BYTES
    }

    /// The slots of all buffers.
    #[must_use]
    pub const fn slot_count(&self) -> u64 {
        self.slots_each() * self.buffer_count
    }
}
