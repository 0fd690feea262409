//! A heap for a plain `malloc`: no transactions, no log, no roots.

use crate::heap::Heap;
use crate::layout::Layout;
use crate::log::CommitError;
use crate::parts::HeapParts;
use crate::space::{FreeError, Frozen, Piece, Resize, ResizeError, SpaceError, Unlogged};
use core::ops::RangeInclusive;
use pm_core::{FenceError, Pmem, Region};

/// A heap whose blocks are allocated and freed one by one, as by `malloc` and `free`, without transactions.
///
/// It owns the heap, because replaying the log could overwrite blocks that change without it. Everything committed is first made durable in
/// place, and the heap accepts no further transactions ([`CommitError::Bypassed`]). After this is dropped, the same heap can be opened for
/// transactions, and its [`blocks`](Heap::blocks) listed.
///
/// ```
/// use pm_alloc::{UnloggedHeap, Heap, HeapOptions};
/// use pm_core::{Pmem, Region};
/// let heap = UnloggedHeap::new(Heap::format(Region::anonymous(1 << 20)?, &HeapOptions::new())?);
/// let block = heap.alloc(100, 64)?;
/// assert!(block % 64 == 0 && heap.usable_bytes(block)? >= 100);
/// heap.heap().pool().pmem().store(block, b"anything");
/// heap.free(block)?;
/// assert!(heap.free(block).is_err(), "it is already free");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Durability
/// After a kill at any time the chains of headers are intact, and the block of an interrupted call is allocated or free. With
/// [`durable`](Self::durable) the same holds after a crash of the machine. When this is dropped, all allocations and freeings become durable
/// in any case. The program makes the contents of blocks durable.
///
/// After a kill the next open reads all headers and makes them durable before it relies on any of them. So it takes longer than other opens:
/// as long as [`Heap::scan_ahead`] of all chunks.
///
/// # Source
/// NVMalloc 3.1 and 7.1.
#[derive(Debug)]
pub struct UnloggedHeap<P: Pmem = Region> {
    heap: Heap<P>,
    durable: bool,
}

/// Why a block could not be allocated or freed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnloggedError {
    /// There is no room for it.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// It cannot be freed.
    #[error(transparent)]
    Free(FreeError),
    /// A fence failed. The next open decides whether the block is freed or resized.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// An earlier fence failed. Nothing was stored.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The caller's `ensure` returned false for each free extent: none can be stored to.
    #[error("the medium has no room for it")]
    NoBacking,
}

impl From<FreeError> for UnloggedError {
    fn from(error: FreeError) -> Self {
        match error {
            FreeError::Fence(error) => Self::Fence(error),
            error => Self::Free(error),
        }
    }
}

impl From<ResizeError> for UnloggedError {
    fn from(error: ResizeError) -> Self {
        match error {
            ResizeError::Free(error) => error.into(),
            ResizeError::Fence(error) => Self::Fence(error),
        }
    }
}

/// A frozen heap: no block of it is allocated, freed or resized before this is dropped.
#[derive(Debug)]
pub struct FrozenHeap<'h> {
    space: Frozen<'h>,
    chunks_start: u64,
    /// The end of the pool's data area. Less than a chunk before it is unused.
    data_end: u64,
    len_bytes: u64,
}

impl FrozenHeap<'_> {
    /// Lists the parts that make up a copy of the heap's region, with the same blocks at the same offsets. Parts of bytes come in ascending
    /// order. All other bytes of the copy may have any value, so a copy costs the allocated bytes, and a word for each free extent.
    pub fn pieces(&self, mut visit: impl FnMut(Piece)) {
        visit(Piece::Bytes(0..self.chunks_start));
        self.space.live_pieces(&mut visit);
        visit(Piece::Bytes(self.data_end..self.len_bytes));
    }
}

impl<P: Pmem> UnloggedHeap<P> {
    /// Takes over an open heap. If a fence fails here, each later call returns the error.
    ///
    /// # Durability
    /// Two fences, or one if no transaction was committed since the heap was opened.
    #[must_use]
    pub fn new(mut heap: Heap<P>) -> Self {
        let HeapParts { pool, log, .. } = &mut heap.parts;
        log.bypass(pool.pmem());
        Self { heap, durable: false }
    }

    /// Sets whether each header is flushed and fenced when it is stored: one or two fences to allocate, one to free. False by default.
    ///
    /// # Durability
    /// When this returns, earlier allocations and freeings are durable, too, unless a fence failed: then each later call returns the error.
    /// Costs one fence, and a line for each header of the chunks that were scanned, if there are any.
    #[must_use]
    pub fn durable(mut self, durable: bool) -> Self {
        if durable && !self.durable {
            // A failed fence poisons the heap, and each later call returns its error.
            self.heap.parts.space.persist_headers(&self.heap.parts.pmem()).unwrap_or_default();
        }
        self.durable = durable;
        self
    }

    /// Allocates an uninitialized block of at least `bytes` bytes, and returns the offset of its payload: a multiple of 64 and of
    /// `align_bytes`.
    ///
    /// # Errors
    /// When there is no room, even after the calls in progress have ended; nothing is allocated then. When a fence fails, or failed before:
    /// nothing more is stored, and the next open decides whether the block is allocated.
    ///
    /// # Panics
    /// When `align_bytes` is no power of two.
    ///
    /// # Durability
    /// When this returns, the allocation survives a kill; with [`durable`](Self::durable), a power failure, too.
    pub fn alloc(&self, bytes: u64, align_bytes: u64) -> Result<u64, UnloggedError> {
        self.alloc_if(bytes, align_bytes, |_, _| true)
    }

    /// As [`alloc`](Self::alloc), for a sparse file, where a store may find the medium full. Before anything is stored, `ensure` is called with
    /// the offset and the number of the bytes that the call will store to, and returns whether they can be stored to. If it returns false, it
    /// is called with another free extent, until there is none. Other threads may wait for this call, so `ensure` must neither allocate from
    /// the same heap nor wait for a thread that does.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc), and [`UnloggedError::NoBacking`] when `ensure` returns false for each free extent.
    ///
    /// # Panics
    /// As [`alloc`](Self::alloc).
    ///
    /// # Durability
    /// As [`alloc`](Self::alloc).
    pub fn alloc_if(
        &self,
        bytes: u64,
        align_bytes: u64,
        ensure: impl Fn(u64, u64) -> bool,
    ) -> Result<u64, UnloggedError> {
        self.heap.parts.log.check()?;
        let lines = Layout::lines_for(bytes).unwrap_or(u64::MAX);
        let pmem = &self.heap.parts.pmem();
        let unlogged = Unlogged::new(&self.heap.parts.space, pmem, self.durable);
        let mut block = unlogged.reserve(lines, align_bytes)?;
        // Kept until an extent is accepted, so that each is tried once.
        let mut refused = Vec::new();
        loop {
            let stored = block.stored_range();
            if ensure(stored.start, stored.end - stored.start) {
                drop(refused);
                return Ok(block.allocate()?);
            }
            refused.push(block);
            block = match unlogged.reserve_another(lines, align_bytes) {
                Err(SpaceError::Full { .. }) => return Err(UnloggedError::NoBacking),
                found => found?,
            };
        }
    }

    /// Resizes a block without moving it: to the end of the range `bytes` if possible, otherwise at least to its start. Returns the number of
    /// bytes that the block has room for then, or `None` if it is unchanged because there is no room after it. A block that already has room
    /// for the start of the range may stay unchanged. `ensure` is called as by [`alloc_if`](Self::alloc_if).
    ///
    /// # Errors
    /// When no allocated block starts there, or its header is corrupted: then it is unchanged. When a fence fails: nothing more is
    /// stored, and the block may have its new length.
    ///
    /// # Durability
    /// As [`alloc`](Self::alloc): the block has its old length or the new one.
    pub fn resize(
        &self,
        offset: u64,
        bytes: RangeInclusive<u64>,
        ensure: impl Fn(u64, u64) -> bool,
    ) -> Result<Option<u64>, UnloggedError> {
        self.heap.parts.log.check()?;
        let lines = |bytes: &u64| Layout::lines_for(*bytes).unwrap_or(u64::MAX);
        let lines = lines(bytes.start())..=lines(bytes.end());
        let pmem = &self.heap.parts.pmem();
        let mut step =
            Resize::begin(Unlogged::new(&self.heap.parts.space, pmem, self.durable), offset, lines)?;
        loop {
            step = match step {
                Resize::Done(lines) => return Ok(lines.map(Layout::usable_bytes)),
                Resize::Grow(growth) => {
                    let added = growth.added_range();
                    match ensure(added.start, added.end - added.start) {
                        true => growth.commit()?,
                        false => growth.refuse(),
                    }
                }
            };
        }
    }

    /// Freezes the heap, to copy its allocated blocks, or for a `fork`: no other thread is inside a call meanwhile. Other threads that allocate
    /// or free wait until the result is dropped. If the calling thread does so, it deadlocks.
    #[must_use]
    pub fn freeze(&self) -> FrozenHeap<'_> {
        let layout = self.heap.layout();
        let pmem = &self.heap.parts.pmem();
        let space = self.heap.parts.space.freeze(pmem, self.heap.parts.log.check().is_ok());
        let data_end = self.heap.parts.pool.data().end;
        FrozenHeap { space, chunks_start: layout.chunks_start, data_end, len_bytes: pmem.len_bytes() }
    }

    /// Frees a block, whether a transaction allocated it or not.
    ///
    /// # Errors
    /// When no allocated block starts there, or its header is corrupted: then it is unchanged. When a fence fails: the next open decides whether
    /// it is freed.
    ///
    /// # Durability
    /// As [`alloc`](Self::alloc).
    pub fn free(&self, offset: u64) -> Result<(), UnloggedError> {
        self.heap.parts.log.check()?;
        Unlogged::new(&self.heap.parts.space, &self.heap.parts.pmem(), self.durable).free(offset)?;
        if self.durable {
            self.heap.parts.log.fence(&self.heap.parts.pmem())?;
        }
        Ok(())
    }

    /// The number of bytes that the block at `offset` has room for, by its header alone. Acquires no locks, so it works in a child of a `fork`
    /// that interrupted a call.
    ///
    /// # Errors
    /// When there is no header of an allocated block there, or a corrupted one. The header of a former block, inside a free block or another
    /// one, is not distinguished from a current one.
    pub fn usable_bytes(&self, offset: u64) -> Result<u64, FreeError> {
        Unlogged::new(&self.heap.parts.space, &self.heap.parts.pmem(), self.durable).usable_bytes(offset)
    }

    /// The heap below.
    #[must_use]
    pub const fn heap(&self) -> &Heap<P> {
        &self.heap
    }
}

impl<P: Pmem> Drop for UnloggedHeap<P> {
    /// Makes allocations and freeings durable, unless each call did: one fence, and a line for each header. In a child of fork(2) that inherited
    /// the heap, or if a thread panicked inside a call, changes nothing.
    fn drop(&mut self) {
        let is_consistent = self.heap.is_of_this_process()
            && self.heap.parts.log.check().is_ok()
            && self.heap.parts.space.is_free_and_unpoisoned();
        // Otherwise the heap is left as after a kill, and the next open does this.
        if is_consistent
            && (self.durable || self.heap.parts.space.persist_headers(&self.heap.parts.pmem()).is_ok())
        {
            self.heap.parts.log.mark_headers_durable();
        }
    }
}
