//! What transactions and views work on: the parts of an open heap, and what a thread keeps from one transaction to the next.

use crate::format::BLOCK_HEADER_BYTES;
use crate::layout::Layout;
use crate::links::link_to;
use crate::log::{CommitError, Log, Writes};
use crate::space::{Freeing, Reservation, Space};
use core::mem::{align_of, size_of};
use core::ops::Range;
use pm_core::{Domain, FenceError, InPool, Link, PlaceError, Pmem, Pool, Root, RootError, RootWrite};
use std::cell::RefCell;

/// The parts of an open heap.
#[derive(Debug)]
pub(crate) struct HeapParts<P: Pmem> {
    pub(crate) pool: Pool<P>,
    pub(crate) layout: Layout,
    pub(crate) log: Log,
    pub(crate) space: Space,
    /// Writes of at least this length are made in place.
    pub(crate) in_place_from_bytes: usize,
}

impl<P: Pmem> HeapParts<P> {
    /// The region, for all stores to an open heap. A failed fence poisons the log.
    #[inline]
    pub(crate) const fn pmem(&self) -> Fenced<'_, P> {
        Fenced { pmem: self.pool.pmem(), log: &self.log }
    }

    /// Identifies the heap, as long as it is open and not moved.
    #[inline]
    pub(crate) fn id(&self) -> HeapId {
        HeapId(core::ptr::from_ref(self).addr())
    }

    /// The offset of `count` values of type `T`, the first of which `link` points to.
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
        self.check_place(link.offset(), size_bytes, align_of::<T>() as u64)
    }

    /// Checks that `size_bytes` at `offset` lie in the heap's chunks, and that `offset` is aligned.
    fn check_place(&self, offset: u64, size_bytes: u64, align_bytes: u64) -> Result<u64, PlaceError> {
        let data_start = self.layout.chunks_start;
        let data_end = self.layout.chunk_offset(self.space.chunk_count());
        if offset < data_start || offset.checked_add(size_bytes).is_none_or(|end| end > data_end) {
            return Err(PlaceError::OutOfRange { offset, size_bytes, data_start, data_end });
        }
        if !offset.is_multiple_of(align_bytes) {
            return Err(PlaceError::Misaligned { offset, align_bytes });
        }
        Ok(offset)
    }

    /// The link of a root, if its value has this type.
    pub(crate) fn typed_root<'p, T: InPool<'p>>(&self, root: &Root) -> Result<Link<'p, T>, RootError> {
        root.expect_type(T::LAYOUT, size_of::<T>() as u64)?;
        self.check_place(root.offset(), size_of::<T>() as u64, align_of::<T>() as u64)?;
        Ok(link_to(root.offset()))
    }

    /// Stores a block header in place, durably, and without a commit, because the calling transaction may hold the only lane. The
    /// checkpoint LSN is raised first if a live entry stores to the header.
    pub(crate) fn store_header(&self, offset: u64, word: u64) -> Result<(), CommitError> {
        let (log, pmem) = (&self.log, &self.pmem());
        let last = log.last_lsn(offset, BLOCK_HEADER_BYTES);
        if !log.is_reached(last) {
            log.raise_checkpoint(pmem, last)?;
        }
        // A transaction whose fence failed may have committed, and owned the extent.
        log.check()?;
        pmem.store_u64(offset, word);
        pmem.flush(offset, BLOCK_HEADER_BYTES);
        log.fence(pmem)
    }
}

/// The region below an open heap. After a failed fence the log accepts no commits, whichever part of the heap fenced and whatever it does
/// with the error.
#[derive(Debug)]
pub(crate) struct Fenced<'h, P> {
    pmem: &'h P,
    log: &'h Log,
}

impl<P: Pmem> Pmem for Fenced<'_, P> {
    #[inline]
    fn len_bytes(&self) -> u64 {
        self.pmem.len_bytes()
    }
    #[inline]
    fn domain(&self) -> Domain {
        self.pmem.domain()
    }
    #[inline]
    fn load(&self, offset: u64, out: &mut [u8]) {
        self.pmem.load(offset, out);
    }
    #[inline]
    fn store(&self, offset: u64, bytes: &[u8]) {
        self.pmem.store(offset, bytes);
    }
    #[inline]
    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        self.pmem.store_nt(offset, bytes);
    }
    #[inline]
    fn load_u64(&self, offset: u64) -> u64 {
        self.pmem.load_u64(offset)
    }
    #[inline]
    fn store_u64(&self, offset: u64, value: u64) {
        self.pmem.store_u64(offset, value);
    }
    #[inline]
    fn store_u128(&self, offset: u64, value: u128) {
        self.pmem.store_u128(offset, value);
    }
    #[inline]
    fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.pmem.compare_exchange_u64(offset, current, new)
    }
    #[inline]
    fn flush(&self, offset: u64, len_bytes: u64) {
        self.pmem.flush(offset, len_bytes);
    }
    #[inline]
    fn prefetch(&self, offset: u64) {
        self.pmem.prefetch(offset);
    }
    #[inline]
    fn fence(&self) -> Result<(), FenceError> {
        let fenced = self.pmem.fence();
        if let Err(error) = &fenced {
            self.log.fail(error.clone().into());
        }
        fenced
    }
}

/// Identifies an open heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeapId(usize);

impl HeapId {
    /// Whether this thread is in a transaction on the heap.
    #[inline]
    pub(crate) fn is_in_transaction(self) -> bool {
        with_thread(|thread| thread.within.contains(&self)).unwrap_or_default()
    }

    /// Notes that this thread's transaction on the heap has changed these bytes in place.
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

/// One transaction of a thread on a heap at a time. A nested one would commit on its own, without the changes that the outer one has
/// not applied yet, and stay when the outer one is rolled back.
pub(crate) struct InTransaction {
    heap: HeapId,
    work: Option<Box<Work>>,
}

impl InTransaction {
    /// `None`: this thread is in a transaction on the heap already.
    #[inline]
    pub(crate) fn begin(heap: HeapId) -> Option<Self> {
        let begin = |thread: &mut Thread| {
            let is_nested = thread.within.contains(&heap);
            if is_nested {
                return (is_nested, None);
            }
            thread.within.push(heap);
            (is_nested, thread.spare.take())
        };
        let (is_nested, work) = with_thread(begin).unwrap_or_default();
        (!is_nested).then_some(Self { heap, work })
    }

    /// The lists of the transaction: empty at its beginning.
    #[inline]
    pub(crate) fn work(&mut self) -> &mut Work {
        self.work.get_or_insert_default()
    }
}

impl Drop for InTransaction {
    #[inline]
    fn drop(&mut self) {
        let work = self.work.take().filter(|work| work.is_kept()).map(Work::emptied);
        with_thread(|thread| {
            let at = thread.within.iter().rposition(|&heap| heap == self.heap);
            at.map(|at| thread.within.swap_remove(at));
            thread.in_place.retain(|(heap, _)| *heap != self.heap);
            thread.spare = work;
        })
        .unwrap_or_default();
    }
}

/// What a transaction collects until it commits. A thread keeps the empty lists for its next transaction, so that most transactions
/// allocate no memory.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(crate) writes: Writes,
    /// The extents that new blocks are carved from.
    pub(crate) reservations: Vec<Reservation>,
    /// The payloads of new blocks.
    pub(crate) fresh: Vec<Range<u64>>,
    pub(crate) freeing: Vec<Freeing>,
    pub(crate) roots: Vec<StagedRoot>,
}

/// A root that the transaction sets or removes.
#[derive(Debug)]
pub(crate) struct StagedRoot {
    pub(crate) name: String,
    /// Offset, length and layout of its value; `None` to remove it.
    pub(crate) target: Option<(u64, u64, u64)>,
    /// The new contents of a slot, if anything changes. The commit may choose another slot.
    pub(crate) write: Option<RootWrite>,
}

impl Work {
    /// Whether it is small enough to be kept by the thread.
    #[inline]
    fn is_kept(&self) -> bool {
        const KEPT_MAX: usize = 1024;
        let Self { writes, reservations, fresh, freeing, roots } = self;
        let most = [reservations.capacity(), fresh.capacity(), freeing.capacity(), roots.capacity()];
        most.into_iter().all(|capacity| capacity <= KEPT_MAX / 8) && writes.capacity() <= 64 * KEPT_MAX
    }

    /// The same memory without contents. The transaction has committed or returned its reservations and freed blocks.
    #[inline]
    fn emptied(mut self: Box<Self>) -> Box<Self> {
        let Self { writes, reservations, fresh, freeing, roots } = &mut *self;
        writes.clear();
        reservations.clear();
        fresh.clear();
        freeing.clear();
        roots.clear();
        self
    }
}

thread_local! {
    static THREAD: RefCell<Thread> = const { RefCell::new(Thread { within: Vec::new(), in_place: Vec::new(), spare: None }) };
}

struct Thread {
    /// The heaps on which this thread is in a transaction: rarely more than one.
    within: Vec<HeapId>,
    /// The bytes that these transactions have changed in place, which a rollback restores.
    in_place: Vec<(HeapId, Range<u64>)>,
    /// Empty lists of an earlier transaction.
    spare: Option<Box<Work>>,
}

/// Runs `f` with the state of this thread. `None` while the thread exits and the state is gone: destructors of other thread-locals may
/// still use a heap. Nested transactions, and stores to bytes that are changed in place, are not detected then.
#[inline]
fn with_thread<R>(f: impl FnOnce(&mut Thread) -> R) -> Option<R> {
    THREAD.try_with(|thread| f(&mut thread.borrow_mut())).ok()
}
