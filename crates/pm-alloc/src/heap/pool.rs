//! The pool of an open heap, restricted to calls that do not write.

use core::ops::Range;
use pm_core::{HeaderState, Pmem, Pool, Region, Root, RootError, Uuid};

/// The pool of an open heap, without the calls of [`Pool`] that write: recovery could replay an older transaction over their changes. A heap is
/// changed by [transactions](crate::Heap::transaction) and by the calls of a [`View`](crate::View).
#[derive(Debug)]
pub struct HeapPool<'h, P: Pmem = Region> {
    pool: &'h Pool<P>,
}

impl<P: Pmem> Clone for HeapPool<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Pmem> Copy for HeapPool<'_, P> {}

impl<'h, P: Pmem> HeapPool<'h, P> {
    pub(super) const fn new(pool: &'h Pool<P>) -> Self {
        Self { pool }
    }

    /// The underlying region, for loads, and for stores into blocks that no transaction has written to, such as
    /// [uninitialized](crate::Tx::alloc_uninit) ones. A failed fence does not poison the heap, unlike one of
    /// [`Heap::pmem`](crate::Heap::pmem). Bytes that a transaction has written may be stored to only after
    /// [`Heap::checkpoint`](crate::Heap::checkpoint), because until then recovery may replay the transaction over them.
    #[must_use]
    pub const fn pmem(&self) -> &'h P {
        self.pool.pmem()
    }

    /// The pool's data area.
    #[must_use]
    pub fn data(&self) -> Range<u64> {
        self.pool.data()
    }

    /// The pool's identity.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.pool.uuid()
    }

    /// The state of the pool's header when the pool was opened.
    #[must_use]
    pub fn header_state(&self) -> HeaderState {
        self.pool.header_state()
    }

    /// The root with this name, if there is one.
    ///
    /// # Errors
    /// As for [`Pool::find_root`].
    pub fn find_root(&self, name: &str) -> Result<Option<Root>, RootError> {
        self.pool.find_root(name)
    }

    /// All roots, sorted by name.
    #[must_use]
    pub fn roots(&self) -> Vec<Root> {
        self.pool.roots()
    }

    /// The number of corrupted slots of the root directory.
    #[must_use]
    pub fn corrupted_root_count(&self) -> usize {
        self.pool.corrupted_root_count()
    }
}
