//! A heap for a plain `malloc`: no transactions, no log, no names.

use crate::heap::Heap;
use crate::layout::Layout;
use crate::log::CommitError;
use crate::space::{FreeError, Frozen, Piece, Resize, ResizeError, SpaceError, Unlogged};
use core::ops::RangeInclusive;
use pm_core::{FenceError, Pmem, Region};

/// A heap whose blocks are allocated and freed one by one, as `malloc` and `free` do, with no transaction around them.
///
/// It takes the heap for itself: the log's guarantees do not hold for blocks that are handed out past it. So what transactions have
/// committed is applied durably first, and the heap takes no further ones ([`CommitError::Bypassed`]). Once this is dropped, the same
/// heap can be opened for transactions, and its [`blocks`](Heap::blocks) listed.
///
/// ```
/// use pm_alloc::{UnloggedHeap, Heap, HeapOptions};
/// use pm_core::{Pmem, Region};
/// let heap = UnloggedHeap::new(Heap::format(Region::anonymous(1 << 20)?, &HeapOptions::new())?);
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
/// allocated or not. Whether a crash of the machine does so too is up to [`durable`](Self::durable). When this is dropped, all that was
/// allocated or freed is durable in any case. What is in the blocks is the program's to make durable.
///
/// If the process is killed, the next opening reads all headers and makes them durable, before it relies on any. So it takes longer than
/// other openings: as long as [`Heap::scan_ahead`] of all chunks.
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
    /// There is no room for it, or never was.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// It is no block that can be freed.
    #[error(transparent)]
    Free(#[from] FreeError),
    /// It was freed, or has another length, and that could not be made durable.
    #[error(transparent)]
    Fence(#[from] FenceError),
    /// A fence failed before. Nothing was stored.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The caller said that its lines cannot be stored to.
    #[error("the medium has no room for it")]
    NoBacking,
}

impl From<ResizeError> for UnloggedError {
    fn from(error: ResizeError) -> Self {
        match error {
            ResizeError::Free(error) => Self::Free(error),
            ResizeError::Fence(error) => Self::Fence(error),
        }
    }
}

/// A heap held still: no block of it is allocated, freed or made longer before this is dropped.
#[derive(Debug)]
pub struct FrozenHeap<'h> {
    space: Frozen<'h>,
    chunks_start: u64,
    /// Where the pool's data end. Between the last chunk and here is less than a chunk, which nothing uses.
    data_end: u64,
    len_bytes: u64,
}

impl FrozenHeap<'_> {
    /// Names the parts of a copy, as long as the heap's region, that is a heap with the same blocks at the same offsets, in
    /// ascending order but for the words. Nothing else of the copy means anything, so it costs what is allocated, and a word for
    /// each place where something is free.
    pub fn pieces(&self, mut visit: impl FnMut(Piece)) {
        visit(Piece::Bytes(0..self.chunks_start));
        self.space.live_pieces(&mut visit);
        visit(Piece::Bytes(self.data_end..self.len_bytes));
    }
}

impl<P: Pmem> UnloggedHeap<P> {
    /// Of a heap that was opened or made. If what its transactions committed cannot be applied, each call says so.
    ///
    /// # Durability
    /// Two fences, or one if no transaction was committed since the heap was opened.
    #[must_use]
    pub fn new(mut heap: Heap<P>) -> Self {
        heap.bypass_log();
        Self { heap, durable: false }
    }

    /// Whether each header is flushed and fenced when it is stored: one or two fences to allocate, one to free. Not unless
    /// said.
    ///
    /// # Durability
    /// What was allocated or freed before is durable, too, when this returns, unless a fence fails: then each call says so. One fence, if
    /// anything was, and a line for each header of the chunks that were looked at.
    #[must_use]
    pub fn durable(mut self, durable: bool) -> Self {
        if durable && !self.durable {
            // A fence that fails stops the heap, and each later call returns its error.
            self.heap.space.persist_headers(&self.heap.pmem()).unwrap_or_default();
        }
        self.durable = durable;
        self
    }

    /// Allocates a block of at least `bytes` bytes, whose contents are whatever was there, and returns where it starts: at a
    /// multiple of 64, or of `align_bytes`, if that is more.
    ///
    /// # Errors
    /// When there is no room, and other calls under way give none back; nothing is allocated then. When a fence fails, or failed before:
    /// nothing more is stored, and whether the block is allocated the next opening knows.
    ///
    /// # Panics
    /// When `align_bytes` is no power of two.
    ///
    /// # Durability
    /// If [`durable`](Self::durable), the block is allocated after any crash when this returns; otherwise after a crash of the
    /// process.
    pub fn alloc(&self, bytes: u64, align_bytes: u64) -> Result<u64, UnloggedError> {
        self.alloc_if(bytes, align_bytes, |_, _| true)
    }

    /// As [`alloc`](Self::alloc), where a store may find the medium full: in a sparse file. Before anything is stored, `ensure` is
    /// told from which offset on how many bytes will be, and says whether they can be. If not, it is asked about another place, until
    /// there is none. Other threads that find no other room wait for this call to end, so `ensure` must neither allocate from the same
    /// heap nor wait for a thread that does.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc), and [`UnloggedError::NoBacking`] when `ensure` says no to each free place.
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
        self.heap.log.check()?;
        let lines = Layout::lines_for(bytes).unwrap_or(u64::MAX);
        let pmem = &self.heap.pmem();
        let unlogged = Unlogged::new(&self.heap.space, pmem, self.durable);
        let mut block = unlogged.reserve(lines, align_bytes)?;
        // Kept until one is accepted, so that each is tried once.
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

    /// Makes a block longer or shorter without moving it: as long as `bytes` ends with if that can be, otherwise at least as long
    /// as it begins with. Says how many bytes it has room for then, or `None` if it is as it was, because there is no room behind
    /// it. A block that is as long as the range begins with, or longer, may stay as it is. `ensure` as in [`alloc_if`](Self::alloc_if).
    ///
    /// # Errors
    /// When no allocated block starts there, or its header is corrupted: then it is left alone. When a fence fails, nothing more is
    /// stored, and the block may have its new length.
    ///
    /// # Durability
    /// As [`alloc`](Self::alloc): the block is as long as before, or as it is when this returns.
    pub fn resize(
        &self,
        offset: u64,
        bytes: RangeInclusive<u64>,
        ensure: impl Fn(u64, u64) -> bool,
    ) -> Result<Option<u64>, UnloggedError> {
        self.heap.log.check()?;
        let lines = |bytes: &u64| Layout::lines_for(*bytes).unwrap_or(u64::MAX);
        let lines = lines(bytes.start())..=lines(bytes.end());
        let pmem = &self.heap.pmem();
        let mut step = Resize::begin(Unlogged::new(&self.heap.space, pmem, self.durable), offset, lines)?;
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

    /// Holds the heap still, to copy what is live in it, or for a `fork`: no other thread is in the middle of anything then. Others
    /// that allocate or free wait for as long as this is kept; the same thread waits for ever.
    #[must_use]
    pub fn freeze(&self) -> FrozenHeap<'_> {
        let layout = self.heap.layout();
        let pmem = &self.heap.pmem();
        let space = self.heap.space.freeze(pmem, self.heap.log.check().is_ok());
        let data_end = self.heap.pool_parts().data().end;
        FrozenHeap { space, chunks_start: layout.chunks_start, data_end, len_bytes: pmem.len_bytes() }
    }

    /// Frees a block, however it was allocated.
    ///
    /// # Errors
    /// When no allocated block starts there, or its header is corrupted: then it is left alone. When a fence fails, it is freed.
    ///
    /// # Durability
    /// As [`alloc`](Self::alloc).
    pub fn free(&self, offset: u64) -> Result<(), UnloggedError> {
        self.heap.log.check()?;
        Unlogged::new(&self.heap.space, &self.heap.pmem(), self.durable).free(offset)?;
        if self.durable {
            self.heap.log.fence(&self.heap.pmem())?;
        }
        Ok(())
    }

    /// How many bytes the block at `offset` has room for, by its header alone: no lock is taken, and a `fork` in the middle
    /// of anything is survived.
    ///
    /// # Errors
    /// When no allocated block starts there, or its header is corrupted.
    pub fn usable_bytes(&self, offset: u64) -> Result<u64, FreeError> {
        Unlogged::new(&self.heap.space, &self.heap.pmem(), self.durable).usable_bytes(offset)
    }

    /// The heap, to look at.
    #[must_use]
    pub const fn heap(&self) -> &Heap<P> {
        &self.heap
    }
}

impl<P: Pmem> Drop for UnloggedHeap<P> {
    /// Makes durable what was allocated and freed: one fence, and a line for each header, unless that was so at each call. A child of
    /// fork(2) that drops a heap it inherited changes nothing, nor does a process in which a thread panicked in the middle of a call.
    fn drop(&mut self) {
        let is_sound =
            self.heap.is_of_this_process() && self.heap.log.check().is_ok() && self.heap.space.is_intact();
        // Otherwise the heap is left as by a process that was killed, and the next opening does this.
        if is_sound && (self.durable || self.heap.space.persist_headers(&self.heap.pmem()).is_ok()) {
            self.heap.log.mark_headers_durable();
        }
    }
}
