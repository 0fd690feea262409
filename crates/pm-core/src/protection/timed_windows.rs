//! Measures the time that windows take.

use super::windows::{Access, Windows};
use crate::fault::MediumFault;
use crate::stopwatch::Stopwatch;
use core::ops::Range;
use std::time::Duration;

/// A wrapper of [`Windows`] that measures the time of opening and closing them. Copies that windows make themselves
/// ([`copy_in`](Windows::copy_in), [`copy_out`](Windows::copy_out)) are copies, and are not measured.
#[derive(Debug)]
pub struct TimedWindows<W> {
    inner: W,
    changes: Stopwatch,
}

impl<W> TimedWindows<W> {
    /// Wraps `inner`; measures if `is_on`.
    #[must_use]
    pub const fn new(inner: W, is_on: bool) -> Self {
        Self { inner, changes: Stopwatch::new(is_on) }
    }

    /// The time so far, over all threads.
    #[must_use]
    pub fn spent(&self) -> Duration {
        self.changes.spent()
    }

    /// The wrapped windows.
    pub const fn get_ref(&self) -> &W {
        &self.inner
    }
}

impl<P, W: Windows<P>> Windows<P> for TimedWindows<W> {
    type Opened = W::Opened;

    #[inline]
    fn open(&self, pmem: &P, range: Range<u64>, access: Access) -> Result<Self::Opened, MediumFault> {
        self.changes.time(|| self.inner.open(pmem, range, access))
    }
    #[inline]
    fn close(&self, pmem: &P, range: Range<u64>, access: Access, opened: Self::Opened) {
        self.changes.time(|| self.inner.close(pmem, range, access, opened));
    }
    #[inline]
    fn guards_reads(&self) -> bool {
        self.inner.guards_reads()
    }
    #[inline]
    fn copy_in(&self, pmem: &P, offset: u64, bytes: &[u8]) -> Option<Result<(), MediumFault>> {
        self.inner.copy_in(pmem, offset, bytes)
    }
    #[inline]
    fn copy_out(&self, pmem: &P, offset: u64, out: &mut [u8]) -> Option<Result<(), MediumFault>> {
        self.inner.copy_out(pmem, offset, out)
    }
}
