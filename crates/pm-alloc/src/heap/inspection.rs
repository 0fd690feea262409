//! A heap looked at before it is opened: what opening it would find, and do.

use super::{chunk_count, header};
use crate::error::HeapError;
use crate::layout::Layout;
use crate::log::Inspection;
use pm_core::{Pmem, Pool};

/// What lies before the blocks of a heap. [`Heap::open`](crate::Heap::open) acts on it, and restores what is corrupted once.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapInspection {
    /// Where the parts of the heap lie.
    pub layout: Layout,
    /// Whether the header is corrupted, and whether its copy is.
    pub header_corrupted: [bool; 2],
    /// Whether the root that names the heap is lost to corruption in the pool's root directory.
    pub root_is_lost: bool,
    /// How many chunks the heap has. A pool that was grown may have room for more, which opening makes use of.
    pub chunk_count: u64,
    /// Corrupted copies of that number: 0 or 1.
    pub chunk_count_corrupted: u32,
    /// What is in the logs.
    pub log: Inspection,
}

impl HeapInspection {
    /// Looks at the heap in a pool, which may be [open read-only](Pool::attach_read_only). Changes nothing.
    ///
    /// # Errors
    /// As [`Heap::attach`](crate::Heap::attach).
    pub fn of<P: Pmem>(pool: &Pool<P>) -> Result<Self, HeapError> {
        let found = header::find(pool)?;
        let layout = Layout::of(&found.header);
        let log = Inspection::of(pool.pmem(), &layout)?;
        let found_count = chunk_count::read(pool.pmem(), &layout)?;
        let chunk_count = found_count.count.min(layout.chunks_before(pool.data().end));
        let (header_corrupted, root_is_lost) = (found.corrupted, found.root_is_lost);
        Ok(Self {
            layout,
            header_corrupted,
            root_is_lost,
            chunk_count,
            chunk_count_corrupted: found_count.corrupted,
            log,
        })
    }
}
