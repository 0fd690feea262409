//! The parts of an open heap that transactions and views use, and the state of a thread: its transactions in progress, and spare lists.

use crate::format::BLOCK_HEADER_BYTES;
use crate::growth::Growth;
use crate::layout::Layout;
use crate::links::link_to;
use crate::log::{CommitError, Log, PoisoningPmem, Writes};
use crate::space::{Freeing, Reservation, Space};
use core::mem::{align_of, size_of};
use core::ops::Range;
use pm_core::{InPool, Link, PlaceError, Pmem, Pool, Root, RootError, RootWrite};
use std::cell::RefCell;

#[derive(Debug)]
pub(crate) struct HeapParts<P: Pmem> {
    pub(crate) pool: Pool<P>,
    pub(crate) layout: Layout,
    pub(crate) log: Log,
    pub(crate) space: Space,
    pub(crate) growth: Growth,
    /// Writes of at least this many bytes to old blocks are made in place.
    pub(crate) in_place_from_bytes: usize,
}

impl<P: Pmem> HeapParts<P> {
    /// The region, for all stores to an open heap. A failed fence poisons the log.
    #[inline]
    pub(crate) const fn pmem(&self) -> PoisoningPmem<'_, P> {
        PoisoningPmem::new(self.pool.pmem(), &self.log)
    }

    /// See [`Growth::extend`].
    pub(crate) fn extend(&self) -> Result<(), CommitError> {
        self.growth.extend(&self.pool, &self.layout, &self.log, &self.space)
    }

    /// See [`Growth::grow`].
    #[cold]
    pub(crate) fn grow_for(&self, lines: u64, chunk_count: u64) -> Result<bool, CommitError> {
        let Self { pool, layout, log, space, growth, .. } = self;
        growth.grow(pool, layout, log, space, lines, chunk_count)
    }

    /// Identifies the heap while it is open and not moved.
    #[inline]
    pub(crate) fn id(&self) -> HeapId {
        HeapId(core::ptr::from_ref(self).addr())
    }

    /// Checks a link to the first of `count` values of type `T`, and returns its offset.
    ///
    /// # Errors
    /// When the link is null, or the values do not lie in the heap's chunks.
    pub(crate) fn check_link<'p, T: InPool<'p>>(
        &self,
        link: Link<'p, T>,
        count: u64,
    ) -> Result<u64, PlaceError> {
        if link.is_null() {
            return Err(PlaceError::Null);
        }
        let size_bytes = (size_of::<T>() as u64).saturating_mul(count);
        self.check_range(link.offset(), size_bytes, align_of::<T>() as u64)
    }

    /// Checks that `size_bytes` bytes at `offset` lie in the heap's chunks, and that `offset` is aligned.
    fn check_range(&self, offset: u64, size_bytes: u64, align_bytes: u64) -> Result<u64, PlaceError> {
        let (data_start, data_end) = (self.layout.chunks_start, self.growth.chunks_end());
        if offset < data_start || offset.checked_add(size_bytes).is_none_or(|end| end > data_end) {
            return Err(PlaceError::OutOfRange { offset, size_bytes, data_start, data_end });
        }
        if !offset.is_multiple_of(align_bytes) {
            return Err(PlaceError::Misaligned { offset, align_bytes });
        }
        Ok(offset)
    }

    /// The link to a value at `offset`, if it fits into the heap's chunks.
    pub(crate) fn link_at<'p, T: InPool<'p>>(&self, offset: u64) -> Result<Link<'p, T>, PlaceError> {
        self.check_range(offset, size_of::<T>() as u64, align_of::<T>() as u64)?;
        Ok(link_to(offset))
    }

    /// The link of a root, if its value has this type.
    pub(crate) fn typed_root<'p, T: InPool<'p>>(&self, root: &Root) -> Result<Link<'p, T>, RootError> {
        root.expect_type(T::LAYOUT, size_of::<T>() as u64)?;
        self.check_range(root.offset(), size_of::<T>() as u64, align_of::<T>() as u64)?;
        Ok(link_to(root.offset()))
    }

    /// Durably stores a block header in place. It does not use a commit, because the calling transaction may own the only lane. If a live entry may
    /// store to the header's line, the checkpoint LSN is raised first.
    pub(crate) fn store_header(&self, offset: u64, word: u64) -> Result<(), CommitError> {
        let (log, pmem) = (&self.log, &self.pmem());
        let last = log.live_lsn_bound(offset, BLOCK_HEADER_BYTES);
        if !log.has_checkpoint_reached(last) {
            log.raise_checkpoint(pmem, last)?;
        }
        // A transaction of another thread whose fence failed may nevertheless be durable, and may have allocated blocks in this extent.
        log.check_not_poisoned()?;
        pmem.store_u64(offset, word);
        pmem.flush(offset, BLOCK_HEADER_BYTES);
        // DURABILITY POINT
        log.fence(pmem)
    }
}

/// Identifies an open heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeapId(usize);

impl HeapId {
    /// Whether this thread is in a transaction on the heap.
    #[inline]
    pub(crate) fn is_in_transaction(self) -> bool {
        with_thread(|thread| thread.in_transaction.contains(&self)).unwrap_or_default()
    }

    /// Records that this thread's transaction on the heap changes these bytes in place.
    pub(crate) fn note_in_place(self, written: Range<u64>) {
        with_thread(|thread| thread.in_place.push((self, written))).unwrap_or_default();
    }

    /// Whether this thread's transaction on the heap has changed any of these bytes in place.
    #[inline]
    pub(crate) fn is_changed_in_place(self, offset: u64, len: u64) -> bool {
        let overlaps = |(heap, written): &(Self, Range<u64>)| {
            *heap == self && offset < written.end && written.start < offset + len
        };
        with_thread(|thread| thread.in_place.iter().any(overlaps)).unwrap_or_default()
    }
}

/// A thread's transaction in progress on a heap. There is at most one, because a nested transaction would commit independently: it would not see the
/// changes of the outer transaction, which are not applied yet, and its own changes would survive a rollback of the outer one.
pub(crate) struct InTransaction {
    heap: HeapId,
    lists: Option<Box<TxLists>>,
}

impl InTransaction {
    /// Returns `None` if this thread is already in a transaction on the heap.
    #[inline]
    pub(crate) fn begin(heap: HeapId) -> Option<Self> {
        let begin = |thread: &mut Thread| {
            if thread.in_transaction.contains(&heap) {
                return None;
            }
            thread.in_transaction.push(heap);
            Some(Self { heap, lists: thread.spare.take() })
        };
        // Not `unwrap_or`, which would always create a second value: dropping it would end the transaction.
        with_thread(begin).unwrap_or_else(|| Some(Self { heap, lists: None }))
    }

    /// The transaction's lists, which are empty at its beginning.
    #[inline]
    pub(crate) fn lists(&mut self) -> &mut TxLists {
        self.lists.get_or_insert_default()
    }
}

impl Drop for InTransaction {
    #[inline]
    fn drop(&mut self) {
        let lists = self.lists.take().filter(|lists| lists.is_small()).map(TxLists::emptied);
        with_thread(|thread| {
            thread.in_transaction.retain(|&heap| heap != self.heap);
            thread.in_place.retain(|(heap, _)| *heap != self.heap);
            thread.spare = lists;
        })
        .unwrap_or_default();
    }
}

/// The lists of a transaction in progress: its writes, reservations, new and freed blocks, and roots. The thread keeps the emptied lists for its
/// next transaction, so that most transactions need no allocation in DRAM.
#[derive(Debug, Default)]
pub(crate) struct TxLists {
    pub(crate) writes: Writes,
    /// The extents from which new blocks are carved.
    pub(crate) reservations: Vec<Reservation>,
    /// The payloads of new blocks.
    pub(crate) new_blocks: Vec<Range<u64>>,
    pub(crate) freeing: Vec<Freeing>,
    pub(crate) roots: Vec<StagedRoot>,
}

/// A root that the transaction sets or removes.
#[derive(Debug)]
pub(crate) struct StagedRoot {
    pub(crate) name: String,
    /// The offset, length and layout of its value; `None` if the root is removed.
    pub(crate) target: Option<(u64, u64, u64)>,
    /// The new contents of the slot that was found when the root was staged; `None` if no slot changes. The commit may choose another slot.
    pub(crate) write: Option<RootWrite>,
}

impl TxLists {
    /// Whether the lists are small enough for the thread to keep.
    #[inline]
    fn is_small(&self) -> bool {
        const LIST_MAX: usize = 128;
        const WRITES_BYTES_MAX: usize = 64 << 10;
        let Self { writes, reservations, new_blocks, freeing, roots } = self;
        let most = [reservations.capacity(), new_blocks.capacity(), freeing.capacity(), roots.capacity()];
        most.into_iter().all(|capacity| capacity <= LIST_MAX) && writes.capacity_bytes() <= WRITES_BYTES_MAX
    }

    /// Empties the lists, and keeps their memory. The transaction has already settled or returned its reservations and freed blocks.
    #[inline]
    fn emptied(mut self: Box<Self>) -> Box<Self> {
        let Self { writes, reservations, new_blocks, freeing, roots } = &mut *self;
        writes.clear();
        reservations.clear();
        new_blocks.clear();
        freeing.clear();
        roots.clear();
        self
    }
}

thread_local! {
    static THREAD: RefCell<Thread> = const { RefCell::new(Thread { in_transaction: Vec::new(), in_place: Vec::new(), spare: None }) };
}

struct Thread {
    /// The heaps on which this thread is in a transaction. There is rarely more than one.
    in_transaction: Vec<HeapId>,
    /// The bytes that these transactions have changed in place, and that a rollback restores.
    in_place: Vec<(HeapId, Range<u64>)>,
    /// The emptied lists of an earlier transaction.
    spare: Option<Box<TxLists>>,
}

/// Runs `f` with the state of this thread. `None` if the thread is exiting and its state was dropped: destructors of other thread-locals may still
/// use a heap. In that case nested transactions, and stores to bytes that are changed in place, go undetected.
#[inline]
fn with_thread<R>(f: impl FnOnce(&mut Thread) -> R) -> Option<R> {
    THREAD.try_with(|thread| f(&mut thread.borrow_mut())).ok()
}
