//! The interface between [`Protected`](super::Protected) and a way of opening memory.

use crate::fault::MediumFault;
use core::ops::Range;

/// The accesses that a window admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// Loads, and write-backs of lines.
    Read,
    /// Loads and stores.
    Write,
}

/// Opens and closes ranges of `P`, for any number of threads at once.
pub trait Windows<P> {
    /// What [`close`](Self::close) needs to know.
    type Opened: Copy;

    /// Opens `range` of `pmem` to this thread; other threads may get access too. The range is inside the region.
    ///
    /// # Errors
    /// When the system refuses. Nothing was opened.
    fn open(&self, pmem: &P, range: Range<u64>, access: Access) -> Result<Self::Opened, MediumFault>;

    /// Closes a range that this thread has opened, with the same arguments. Windows of one thread are closed in the reverse order. Parts that are also in another open window stay open.
    fn close(&self, pmem: &P, range: Range<u64>, access: Access, opened: Self::Opened);

    /// Whether loads need a window.
    fn guards_reads(&self) -> bool {
        false
    }

    /// Copies `bytes` to `offset` by a way of its own, around the cache or through it. `None` if stores need a window. The range is inside the region.
    ///
    /// # Durability
    /// As [`store_nt`](crate::Pmem::store_nt).
    fn copy_in(&self, pmem: &P, offset: u64, bytes: &[u8]) -> Option<Result<(), MediumFault>> {
        let _ = (pmem, offset, bytes);
        None
    }

    /// Copies from `offset` by a way of its own. `None` if loads need a window, or none. The range is inside the region.
    fn copy_out(&self, pmem: &P, offset: u64, out: &mut [u8]) -> Option<Result<(), MediumFault>> {
        let _ = (pmem, offset, out);
        None
    }
}
