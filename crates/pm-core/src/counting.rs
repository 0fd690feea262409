//! Counts the cost of an operation at the seam: lines and fences.

use crate::fault::MediumFault;
use crate::{FenceError, Pmem, forward_pmem, line::lines_spanned};
use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Numbers of lines and fences, counted by a [`Counting`] in total or between two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lines sent towards the medium: flushed lines and lines of non-temporal stores.
    pub lines: u64,
    /// Calls of [`fence`](Pmem::fence).
    pub fences: u64,
}

impl core::ops::Sub for Counts {
    type Output = Self;
    fn sub(self, earlier: Self) -> Self {
        Self { lines: self.lines - earlier.lines, fences: self.fences - earlier.fences }
    }
}

/// A wrapper of an implementation of [`Pmem`] that counts lines and fences, and forwards all calls.
///
/// Code that does not use this wrapper pays nothing, not even a branch.
///
/// ```
/// use pm_core::{Counting, Counts, Pmem, Region};
/// let pmem = Counting::new(Region::anonymous(1 << 20)?);
/// let (_, cost) = pmem.count(|| {
///     pmem.store(60, b"straddles");
///     pmem.persist(60, 9)
/// });
/// assert_eq!(cost, Counts { lines: 2, fences: 1 });
/// # Ok::<(), pm_core::OpenError>(())
/// ```
#[derive(Debug, Default)]
pub struct Counting<P> {
    inner: P,
    lines: CachePadded<AtomicU64>,
    fences: CachePadded<AtomicU64>,
}

impl<P: Pmem> Counting<P> {
    /// Wraps `inner`, with all counts at zero.
    #[must_use]
    pub const fn new(inner: P) -> Self {
        Self {
            inner,
            lines: CachePadded::new(AtomicU64::new(0)),
            fences: CachePadded::new(AtomicU64::new(0)),
        }
    }

    /// All lines and fences since this wrapper was created, over all threads.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts { lines: self.lines.load(Relaxed), fences: self.fences.load(Relaxed) }
    }

    /// Runs `operation`, and returns its result and its cost. Calls that other threads make at the same time are counted too.
    pub fn count<R>(&self, operation: impl FnOnce() -> R) -> (R, Counts) {
        let before = self.counts();
        let result = operation();
        (result, self.counts() - before)
    }

    /// The wrapped implementation.
    pub const fn get_ref(&self) -> &P {
        &self.inner
    }
}

impl<P: Pmem> Pmem for Counting<P> {
    forward_pmem!(|this| this.inner => len_bytes, grow_in_place, domain, is_writable, lock_writer, writer_lock, next_data, load, store);
    forward_pmem!(|this| this.inner => try_load, load_u64, load_words, store_u64, store_words, store_u128, compare_exchange_u64);
    forward_pmem!(|this| this.inner => try_store, lend, prefetch, prefetch_read, populate);

    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        self.inner.store_nt(offset, bytes);
        self.lines.fetch_add(lines_spanned(offset, bytes.len() as u64), Relaxed);
    }
    fn try_store_nt(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumFault> {
        self.inner.try_store_nt(offset, bytes)?;
        self.lines.fetch_add(lines_spanned(offset, bytes.len() as u64), Relaxed);
        Ok(())
    }
    fn try_flush(&self, offset: u64, len_bytes: u64) -> Result<(), MediumFault> {
        self.inner.try_flush(offset, len_bytes)?;
        self.lines.fetch_add(lines_spanned(offset, len_bytes), Relaxed);
        Ok(())
    }
    fn flush(&self, offset: u64, len_bytes: u64) {
        self.inner.flush(offset, len_bytes);
        self.lines.fetch_add(lines_spanned(offset, len_bytes), Relaxed);
    }
    fn fence(&self) -> Result<(), FenceError> {
        self.fences.fetch_add(1, Relaxed);
        self.inner.fence()
    }
}
