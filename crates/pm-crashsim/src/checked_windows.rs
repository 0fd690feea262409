//! A wrapper that panics at stores outside windows.

use core::ops::Range;
use core::ptr::NonNull;
use pm_core::fault::MediumFault;
use pm_core::protection::{Access, Windows};
use pm_core::{FenceError, Pmem, forward_pmem};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};

/// Checks the windows of a [`Protected`](pm_core::protection::Protected): wraps an implementation of [`Pmem`], such as
/// [`SimPmem`](crate::SimPmem), and panics at a load or store for which its thread has no window, at a window that is closed without being open, and on drop
/// while a window is open.
///
/// ```
/// use pm_core::protection::Protected;
/// use pm_core::{Pmem, Region};
/// use pm_crashsim::{CheckedWindows, Windowed};
/// let pmem = Protected::with_windows(CheckedWindows::new(Region::anonymous(4096)?), Windowed);
/// pmem.store(0, b"in a window");
/// let stray = std::panic::AssertUnwindSafe(|| pmem.get_ref().store(0, b"stray"));
/// assert!(std::panic::catch_unwind(stray).is_err());
/// # Ok::<(), pm_core::OpenError>(())
/// ```
#[derive(Debug)]
pub struct CheckedWindows<P> {
    inner: P,
    open: Mutex<Vec<(ThreadId, Range<u64>, Access)>>,
}

/// The windows of a [`CheckedWindows`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Windowed;

impl<P: Pmem> CheckedWindows<P> {
    /// Wraps `inner`, with no window open.
    #[must_use]
    pub const fn new(inner: P) -> Self {
        Self { inner, open: Mutex::new(Vec::new()) }
    }

    /// The wrapped implementation.
    pub const fn get_ref(&self) -> &P {
        &self.inner
    }

    #[track_caller]
    fn check(&self, offset: u64, len_bytes: u64, access: Access) {
        let (thread, end) = (thread::current().id(), offset + len_bytes);
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let is_open = open.iter().any(|(owner, range, admitted)| {
            *owner == thread && range.start <= offset && end <= range.end && access <= *admitted
        });
        let windows = open.clone();
        drop(open);
        assert!(
            is_open,
            "{access:?} of {len_bytes} bytes at offset {offset} outside the windows {windows:?}"
        );
    }
}

impl<P> Drop for CheckedWindows<P> {
    fn drop(&mut self) {
        let open = self.open.get_mut().unwrap_or_else(PoisonError::into_inner);
        assert!(open.is_empty() || thread::panicking(), "windows were not closed: {open:?}");
    }
}

impl<P: Pmem> Windows<CheckedWindows<P>> for Windowed {
    type Opened = ();

    fn open(&self, pmem: &CheckedWindows<P>, range: Range<u64>, access: Access) -> Result<(), MediumFault> {
        let mut open = pmem.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.push((thread::current().id(), range, access));
        Ok(())
    }

    fn close(&self, pmem: &CheckedWindows<P>, range: Range<u64>, access: Access, (): ()) {
        let window = (thread::current().id(), range, access);
        let mut open = pmem.open.lock().unwrap_or_else(PoisonError::into_inner);
        let index = open.iter().rposition(|found| *found == window);
        assert!(index.map(|index| open.remove(index)).is_some(), "{window:?} is not open");
    }

    fn guards_reads(&self) -> bool {
        true
    }
}

impl<P: Pmem> Windows<Arc<CheckedWindows<P>>> for Windowed {
    type Opened = ();

    fn open(
        &self,
        pmem: &Arc<CheckedWindows<P>>,
        range: Range<u64>,
        access: Access,
    ) -> Result<(), MediumFault> {
        self.open(&**pmem, range, access)
    }

    fn close(&self, pmem: &Arc<CheckedWindows<P>>, range: Range<u64>, access: Access, (): ()) {
        self.close(&**pmem, range, access, ());
    }

    fn guards_reads(&self) -> bool {
        true
    }
}

impl<P: Pmem> Pmem for CheckedWindows<P> {
    forward_pmem!(|this| this.inner => len_bytes, domain, is_writable, lock_writer, writer_lock, next_data);
    forward_pmem!(|this| this.inner => prefetch, prefetch_read, populate);

    #[track_caller]
    fn load(&self, offset: u64, out: &mut [u8]) {
        self.check(offset, out.len() as u64, Access::Read);
        self.inner.load(offset, out);
    }
    #[track_caller]
    fn lend(&self, offset: u64, len_bytes: usize, with: &mut dyn FnMut(NonNull<[u8]>)) {
        self.check(offset, len_bytes as u64, Access::Read);
        self.inner.lend(offset, len_bytes, with);
    }
    #[track_caller]
    fn load_u64(&self, offset: u64) -> u64 {
        self.check(offset, 8, Access::Read);
        self.inner.load_u64(offset)
    }
    #[track_caller]
    fn store(&self, offset: u64, bytes: &[u8]) {
        self.check(offset, bytes.len() as u64, Access::Write);
        self.inner.store(offset, bytes);
    }
    #[track_caller]
    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        self.check(offset, bytes.len() as u64, Access::Write);
        self.inner.store_nt(offset, bytes);
    }
    #[track_caller]
    fn store_u64(&self, offset: u64, value: u64) {
        self.check(offset, 8, Access::Write);
        self.inner.store_u64(offset, value);
    }
    #[track_caller]
    fn store_u128(&self, offset: u64, value: u128) {
        self.check(offset, 16, Access::Write);
        self.inner.store_u128(offset, value);
    }
    #[track_caller]
    fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.check(offset, 8, Access::Write);
        self.inner.compare_exchange_u64(offset, current, new)
    }
    #[track_caller]
    fn flush(&self, offset: u64, len_bytes: u64) {
        self.check(offset, len_bytes, Access::Read);
        self.inner.flush(offset, len_bytes);
    }
    #[track_caller]
    fn fence(&self) -> Result<(), FenceError> {
        self.inner.fence()
    }
}
