//! A heap for a plain `malloc`: no transactions, no log, no names.

use crate::heap::Heap;
use crate::layout::Layout;
use crate::space::{FreeError, SpaceError};
use pm_core::{FenceError, Pmem, Region};

/// A heap whose blocks are allocated and freed one by one, as `malloc` and `free` do, with no transaction around them.
///
/// It takes the heap for itself: the log's guarantees do not hold for blocks that are handed out past it, so the same open heap is not
/// for both. Once this is dropped, the same heap can be opened for transactions, and its [`blocks`](Heap::blocks) listed.
///
/// ```
/// use pm_alloc::{DirectHeap, Heap, HeapOptions};
/// use pm_core::{Pmem, Region};
/// let heap = DirectHeap::new(Heap::format(Region::anonymous(1 << 20)?, &HeapOptions::new())?);
/// let block = heap.alloc(100, 64)?;
/// assert!(block % 64 == 0 && heap.usable_bytes(block)? >= 100);
/// heap.heap().pool().pmem().store(block, b"anything");
/// heap.free(block)?;
/// assert!(heap.free(block).is_err(), "it is free already");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Durability
/// A process that is killed at any moment leaves a heap whose chain of headers is whole; the block that it was about is
/// allocated or not. Whether a crash of the machine does so too is up to [`durable`](Self::durable). What is in the
/// blocks is the program's to make durable.
///
/// # Source
/// NVMalloc 3.1 and 7.1.
#[derive(Debug)]
pub struct DirectHeap<P: Pmem = Region> {
    heap: Heap<P>,
    durable: bool,
}

/// Why a block could not be allocated or freed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DirectError {
    /// There is no room for it, or never was.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// It is no block that can be freed.
    #[error(transparent)]
    Free(#[from] FreeError),
    /// It was freed, and that could not be made durable.
    #[error(transparent)]
    Fence(#[from] FenceError),
}

impl<P: Pmem> DirectHeap<P> {
    /// Of a heap that was opened or made.
    #[must_use]
    pub const fn new(heap: Heap<P>) -> Self {
        Self { heap, durable: false }
    }

    /// Whether each header is flushed and fenced when it is stored: one or two fences to allocate, one to free. Not unless
    /// said.
    #[must_use]
    pub const fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// Allocates a block of at least `bytes` bytes, whose contents are whatever was there, and returns where it starts: at a
    /// multiple of 64, or of `align_bytes`, if that is more.
    ///
    /// # Errors
    /// When there is no room, or a fence fails; nothing is allocated then.
    ///
    /// # Panics
    /// When `align_bytes` is no power of two.
    ///
    /// # Durability
    /// If [`durable`](Self::durable), the block is allocated after any crash when this returns; otherwise after a crash of the
    /// process.
    pub fn alloc(&self, bytes: u64, align_bytes: u64) -> Result<u64, DirectError> {
        let lines = Layout::lines_for(bytes).unwrap_or(u64::MAX);
        let payload = self.heap.space.allocate_direct(self.heap.pmem(), lines, align_bytes, self.durable)?;
        Ok(payload)
    }

    /// Frees a block, however it was allocated.
    ///
    /// # Errors
    /// When no allocated block starts there, or its header is damaged: then it is left alone. When a fence fails, it is freed.
    ///
    /// # Durability
    /// As [`alloc`](Self::alloc).
    pub fn free(&self, offset: u64) -> Result<(), DirectError> {
        self.heap.space.free_direct(self.heap.pmem(), offset, self.durable)?;
        if self.durable {
            self.heap.pmem().fence()?;
        }
        Ok(())
    }

    /// How many bytes the block at `offset` has room for, by its header alone: no lock is taken, and a `fork` in the middle
    /// of anything is survived.
    ///
    /// # Errors
    /// When no allocated block starts there, or its header is damaged.
    pub fn usable_bytes(&self, offset: u64) -> Result<u64, FreeError> {
        self.heap.space.usable_by_header(self.heap.pmem(), offset)
    }

    /// The heap, to look at.
    #[must_use]
    pub const fn heap(&self) -> &Heap<P> {
        &self.heap
    }
}
