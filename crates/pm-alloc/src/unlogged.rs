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
/// An `UnloggedHeap` takes ownership of a [`Heap`], because its blocks change without the log, and a replay of the log could overwrite them. All
/// committed changes are first made durable in place, and the heap accepts no more transactions ([`CommitError::Bypassed`]). After the `UnloggedHeap`
/// is dropped, the same heap can be opened for transactions, and its [`blocks`](Heap::blocks) can be listed.
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
/// [`durable`](Self::durable) the same holds after a crash of the machine. Dropping the `UnloggedHeap` makes all allocations and freeings durable,
/// unless a fence fails or a thread has panicked inside a call. The program itself makes the contents of blocks durable.
///
/// After a kill the next open reads all headers and makes them durable before it relies on any of them. So this open takes longer than others, by the
/// time of [`Heap::scan_ahead`] for all chunks.
///
/// # Source
/// NVMalloc 3.1 and 7.1.
#[derive(Debug)]
pub struct UnloggedHeap<P: Pmem = Region> {
    heap: Heap<P>,
    durable: bool,
}

/// Why a block could not be allocated, freed or resized.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnloggedError {
    /// There is no room for the block.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// The block cannot be freed.
    #[error(transparent)]
    Free(FreeError),
    /// A fence failed. The next open decides whether the block is allocated, freed or resized.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// An earlier fence failed, and nothing was stored. Or the fence of this call failed, in a [durable](UnloggedHeap::durable) `free`.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The caller's `ensure` returned false for each free extent: the medium has no room for any of them.
    #[error("the medium has no room for the block")]
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

/// A frozen heap: until the `FrozenHeap` is dropped, no block is allocated, freed or resized.
#[derive(Debug)]
pub struct FrozenHeap<'h> {
    space: Frozen<'h>,
    chunks_start: u64,
    /// The end of the pool's data area. The bytes between the last chunk and this end, less than a chunk, are unused.
    data_end: u64,
    len_bytes: u64,
}

impl FrozenHeap<'_> {
    /// Calls `visit` with each piece of a copy of the region. The copy has the same allocated blocks at the same offsets. Pieces of bytes are in
    /// ascending order. Bytes in no piece may have any value, so a copy costs the bytes of allocated blocks, and one word for each free extent.
    pub fn pieces(&self, mut visit: impl FnMut(Piece)) {
        visit(Piece::Bytes(0..self.chunks_start));
        self.space.live_pieces(&mut visit);
        visit(Piece::Bytes(self.data_end..self.len_bytes));
    }
}

impl<P: Pmem> UnloggedHeap<P> {
    /// Takes ownership of an open heap. If a fence fails in this call, each later call returns the error.
    ///
    /// # Durability
    /// This costs two fences, or one if no transaction was committed since the heap was opened.
    #[must_use]
    pub fn new(mut heap: Heap<P>) -> Self {
        let HeapParts { pool, log, .. } = &mut heap.parts;
        log.bypass(pool.pmem());
        Self { heap, durable: false }
    }

    /// Sets whether each header is flushed and fenced when stored: usually one or two fences for an allocation, one for a freeing. False by default.
    ///
    /// # Durability
    /// When `durable(true)` returns, earlier allocations and freeings are durable too, unless a fence failed: then each later call returns the error.
    /// If any chunks were scanned, this costs one fence, and a line for each of their headers.
    #[must_use]
    pub fn durable(mut self, durable: bool) -> Self {
        if durable && !self.durable {
            // A failed fence poisons the heap, and each later call returns its error.
            self.heap.parts.space.persist_headers(&self.heap.parts.pmem()).unwrap_or_default();
        }
        self.durable = durable;
        self
    }

    /// Allocates an uninitialized block of at least `bytes` bytes, and returns the offset of its payload: a multiple of 64 and of `align_bytes`.
    ///
    /// # Errors
    /// When there is still no room after the calls in progress have ended: nothing is allocated. When a fence fails or has failed: nothing more is
    /// stored, and the next open decides whether the block is allocated.
    ///
    /// # Panics
    /// When `align_bytes` is not a power of two.
    ///
    /// # Durability
    /// When this returns, the allocation survives a kill. With [`durable`](Self::durable) it also survives a power failure.
    pub fn alloc(&self, bytes: u64, align_bytes: u64) -> Result<u64, UnloggedError> {
        self.alloc_if(bytes, align_bytes, |_, _| true)
    }

    /// [Allocates](Self::alloc) in a sparse file, where a store fails if the medium is full. Before the first store, `ensure` is called with the
    /// offset and the number of the bytes that this call will store to, and returns whether they can be stored to. If not, `ensure` is called with
    /// another free extent, until none is left. Other threads may wait for this call, so `ensure` must neither allocate from the same heap nor wait
    /// for a thread that does.
    ///
    /// # Errors
    /// As for [`alloc`](Self::alloc), and [`UnloggedError::NoBacking`] when `ensure` returns false for each free extent.
    ///
    /// # Panics
    /// As for [`alloc`](Self::alloc).
    ///
    /// # Durability
    /// As for [`alloc`](Self::alloc).
    pub fn alloc_if(
        &self,
        bytes: u64,
        align_bytes: u64,
        ensure: impl Fn(u64, u64) -> bool,
    ) -> Result<u64, UnloggedError> {
        self.heap.parts.log.check_not_poisoned()?;
        let lines = Layout::lines_for(bytes).unwrap_or(u64::MAX);
        let pmem = &self.heap.parts.pmem();
        let unlogged = Unlogged::new(&self.heap.parts.space, pmem, self.durable);
        let mut block = unlogged.reserve(lines, align_bytes)?;
        // Refused extents stay reserved until another extent is accepted, so that each is tried once.
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

    /// Resizes a block without moving it: to `*bytes.end()` bytes if possible, and otherwise to at least `*bytes.start()`. Returns its capacity
    /// in bytes, which may be unchanged if it has room for `*bytes.start()` bytes. Returns `None`, and changes nothing, if the block cannot grow
    /// enough, or is a huge block that would become shorter than a chunk. `ensure` is called as in [`alloc_if`](Self::alloc_if).
    ///
    /// # Errors
    /// When no allocated block starts at `offset`, or its header is corrupted: nothing is changed. When a fence fails: nothing more is stored, and
    /// the block has its old or its new length.
    ///
    /// # Durability
    /// As for [`alloc`](Self::alloc). A kill, or with `durable` a crash of the machine, leaves the old length or the new one.
    pub fn resize(
        &self,
        offset: u64,
        bytes: RangeInclusive<u64>,
        ensure: impl Fn(u64, u64) -> bool,
    ) -> Result<Option<u64>, UnloggedError> {
        self.heap.parts.log.check_not_poisoned()?;
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

    /// Freezes the heap, for a copy of its allocated blocks or for a `fork`. While the `FrozenHeap` is alive, no other thread is inside a call:
    /// threads that allocate or free wait until it is dropped. If the calling thread allocates or frees before that, it deadlocks.
    #[must_use]
    pub fn freeze(&self) -> FrozenHeap<'_> {
        let layout = self.heap.layout();
        let pmem = &self.heap.parts.pmem();
        let space = self.heap.parts.space.freeze(pmem, self.heap.parts.log.check_not_poisoned().is_ok());
        let data_end = self.heap.parts.pool.data().end;
        FrozenHeap { space, chunks_start: layout.chunks_start, data_end, len_bytes: pmem.len_bytes() }
    }

    /// Frees a block, which may also have been allocated by a transaction.
    ///
    /// # Errors
    /// When no allocated block starts at `offset`, or its header is corrupted: nothing is changed. When a fence fails: the next open decides whether
    /// the block is free.
    ///
    /// # Durability
    /// As for [`alloc`](Self::alloc).
    pub fn free(&self, offset: u64) -> Result<(), UnloggedError> {
        self.heap.parts.log.check_not_poisoned()?;
        Unlogged::new(&self.heap.parts.space, &self.heap.parts.pmem(), self.durable).free(offset)?;
        if self.durable {
            self.heap.parts.log.fence(&self.heap.parts.pmem())?;
        }
        Ok(())
    }

    /// The capacity in bytes of the block at `offset`, according to its header. This acquires no locks, so it works in a child even if the `fork`
    /// interrupted a call.
    ///
    /// # Errors
    /// When the word before `offset` is a corrupted header, or not the header of an allocated block. A stale header, which lies inside a free or
    /// allocated block, is not distinguished from a current one.
    pub fn usable_bytes(&self, offset: u64) -> Result<u64, FreeError> {
        Unlogged::new(&self.heap.parts.space, &self.heap.parts.pmem(), self.durable).usable_bytes(offset)
    }

    /// The underlying heap.
    #[must_use]
    pub const fn heap(&self) -> &Heap<P> {
        &self.heap
    }
}

impl<P: Pmem> Drop for UnloggedHeap<P> {
    /// Makes allocations and freeings durable, unless each call has done so: one fence, and a line for each header. Changes nothing in a child of
    /// fork(2) that inherited the heap, or if a thread has panicked inside a call.
    fn drop(&mut self) {
        let is_consistent = self.heap.is_of_this_process()
            && self.heap.parts.log.check_not_poisoned().is_ok()
            && self.heap.parts.space.is_unlocked_and_unpoisoned();
        // Otherwise the heap stays as after a kill, and the next open makes the headers durable.
        if is_consistent
            && (self.durable || self.heap.parts.space.persist_headers(&self.heap.parts.pmem()).is_ok())
        {
            self.heap.parts.log.mark_headers_durable();
        }
    }
}
