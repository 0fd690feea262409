//! The pool below a heap, as the heap's users may see it.

use super::Heap;
use core::ops::Range;
use pm_core::{HeaderState, Pmem, Pool, Region, Root, RootError, Uuid};

/// The pool below an open heap, to look at.
///
/// It has no calls that write, as [`Pool`] has: what they make durable would not be for the heap, whose log may replay an older
/// transaction over it. A heap changes by [transactions](Heap::transaction) and by the calls of a [`View`](crate::View).
#[derive(Debug)]
pub struct HeapPool<'h, P: Pmem = Region> {
    heap: &'h Heap<P>,
}

impl<P: Pmem> Clone for HeapPool<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Pmem> Copy for HeapPool<'_, P> {}

impl<'h, P: Pmem> HeapPool<'h, P> {
    pub(super) const fn new(heap: &'h Heap<P>) -> Self {
        Self { heap }
    }

    /// The region below: for reading, and for writing into blocks that no transaction has written to, be it to
    /// [fill](crate::Tx::alloc_uninit) them. Bytes that a transaction has written may be stored to here after
    /// [`Heap::checkpoint`] only; until then recovery may replay the transaction over them.
    #[must_use]
    pub const fn pmem(&self) -> &'h P {
        self.pool().pmem()
    }

    /// Where the pool's data area lies.
    #[must_use]
    pub fn data(&self) -> Range<u64> {
        self.pool().data()
    }

    /// The pool's identity.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.pool().uuid()
    }

    /// In which state the pool's header was found.
    #[must_use]
    pub fn header_state(&self) -> HeaderState {
        self.pool().header_state()
    }

    /// The root of this name, if there is one.
    ///
    /// # Errors
    /// As [`Pool::find_root`].
    pub fn find_root(&self, name: &str) -> Result<Option<Root>, RootError> {
        self.pool().find_root(name)
    }

    /// All roots, sorted by name.
    #[must_use]
    pub fn roots(&self) -> Vec<Root> {
        self.pool().roots()
    }

    /// How many slots of the root directory are corrupted.
    #[must_use]
    pub fn corrupted_root_count(&self) -> usize {
        self.pool().corrupted_root_count()
    }

    const fn pool(&self) -> &'h Pool<P> {
        self.heap.pool_parts()
    }
}
