//! The wrapper that opens a window for each store.

use super::choice::{Method, Protection, ProtectionError};
use super::region_windows::RegionWindows;
use super::timed_windows::TimedWindows;
use super::windows::{Access, Windows};
use crate::fault::MediumFault;
use crate::{FenceError, Pmem, Region, forward_pmem};
use core::ops::Range;
use core::ptr::NonNull;

/// A wrapper of an implementation of [`Pmem`] that keeps it closed, and opens a window for each store. [The module](super) compares the methods.
///
/// What a call promises does not change: its atomicity, order and durability are those of the wrapped implementation, with one exception. A long store
/// that the kernel makes ([`Method::Unmapped`](super::Method::Unmapped)) may be split into other pieces than [`Pmem`] documents. A concurrent reader may
/// then see a part of a word; a power failure leaves each aligned 8-byte word old or new.
///
/// Calls that return no error panic if the system refuses to open a window, which it does when the process has too many mappings (`vm.max_map_count`).
#[derive(Debug)]
pub struct Protected<P, W = RegionWindows> {
    /// Dropped first.
    windows: W,
    inner: P,
}

impl Protected<Region> {
    /// Closes `region`. Its threads need nothing: each call opens what it needs.
    ///
    /// # Errors
    /// See [`ProtectionError`].
    pub fn new(region: Region, protection: &Protection) -> Result<Self, ProtectionError> {
        let windows = RegionWindows::new(&region, protection)?;
        Ok(Self { inner: region, windows })
    }
}

impl Protected<Region, TimedWindows<RegionWindows>> {
    /// As [`new`](Protected::new); measures the time of opening and closing windows if `is_on`.
    ///
    /// # Errors
    /// See [`ProtectionError`].
    pub fn timed(region: Region, protection: &Protection, is_on: bool) -> Result<Self, ProtectionError> {
        let has_windows = protection.method() != Method::None;
        let windows = TimedWindows::new(RegionWindows::new(&region, protection)?, is_on && has_windows);
        Ok(Self { inner: region, windows })
    }
}

impl<P: Pmem, W: Windows<P>> Protected<P, W> {
    /// Wraps `inner`, which `windows` opens and closes.
    pub const fn with_windows(inner: P, windows: W) -> Self {
        Self { inner, windows }
    }

    /// The wrapped implementation. Its stores are not in windows.
    pub const fn get_ref(&self) -> &P {
        &self.inner
    }

    /// The windows.
    pub const fn windows(&self) -> &W {
        &self.windows
    }

    /// Runs `access` in a window.
    #[inline]
    fn within<R>(
        &self,
        range: Range<u64>,
        access: Access,
        run: impl FnOnce(&P) -> R,
    ) -> Result<R, MediumFault> {
        let window = Window::open(self, range, access)?;
        let result = run(&self.inner);
        drop(window);
        Ok(result)
    }

    /// Runs a store in a window.
    #[inline]
    #[track_caller]
    fn store_in<R>(&self, offset: u64, len_bytes: u64, run: impl FnOnce(&P) -> R) -> R {
        self.check(offset, len_bytes);
        opened(self.within(offset..offset + len_bytes, Access::Write, run))
    }

    /// Runs a load or a flush, in a window if it needs one.
    #[inline]
    #[track_caller]
    fn load_in<R>(&self, offset: u64, len_bytes: u64, run: impl FnOnce(&P) -> R) -> Result<R, MediumFault> {
        if !self.windows.guards_reads() {
            return Ok(run(&self.inner));
        }
        self.check_range(offset, len_bytes);
        self.within(offset..offset + len_bytes, Access::Read, run)
    }

    /// Panics for a store that the wrapped implementation would refuse.
    #[inline]
    #[track_caller]
    fn check(&self, offset: u64, len_bytes: u64) {
        self.check_range(offset, len_bytes);
        assert!(
            self.inner.is_writable(),
            "store of {len_bytes} bytes at offset {offset} in a read-only region"
        );
    }

    #[inline]
    #[track_caller]
    fn check_range(&self, offset: u64, len_bytes: u64) {
        let end = self.inner.len_bytes();
        let is_inside = offset.checked_add(len_bytes).is_some_and(|last| last <= end);
        assert!(is_inside, "{len_bytes} bytes at offset {offset} do not fit in a region of {end} bytes");
    }

    /// Stores by the windows' own way, or in a window.
    #[inline]
    #[track_caller]
    fn put(
        &self,
        offset: u64,
        bytes: &[u8],
        store: impl FnOnce(&P) -> Result<(), MediumFault>,
    ) -> Result<(), MediumFault> {
        let len_bytes = bytes.len() as u64;
        self.check(offset, len_bytes);
        match self.windows.copy_in(&self.inner, offset, bytes) {
            Some(copied) => copied,
            None => self.within(offset..offset + len_bytes, Access::Write, store)?,
        }
    }
}

/// The result of a call that cannot report that its window was refused.
#[inline]
#[track_caller]
fn opened<R>(result: Result<R, MediumFault>) -> R {
    result.expect("the system refuses to open a window, or the file was truncated")
}

/// An open window.
struct Window<'a, P: Pmem, W: Windows<P>> {
    of: &'a Protected<P, W>,
    range: Range<u64>,
    access: Access,
    opened: W::Opened,
}

impl<'a, P: Pmem, W: Windows<P>> Window<'a, P, W> {
    #[inline]
    fn open(of: &'a Protected<P, W>, range: Range<u64>, access: Access) -> Result<Self, MediumFault> {
        let opened = of.windows.open(&of.inner, range.clone(), access)?;
        Ok(Self { of, range, access, opened })
    }
}

impl<P: Pmem, W: Windows<P>> Drop for Window<'_, P, W> {
    #[inline]
    fn drop(&mut self) {
        self.of.windows.close(&self.of.inner, self.range.clone(), self.access, self.opened);
    }
}

impl<P: Pmem, W: Windows<P>> Pmem for Protected<P, W> {
    forward_pmem!(|this| this.inner => len_bytes, domain, is_writable, lock_writer, writer_lock, next_data);
    forward_pmem!(|this| this.inner => prefetch, prefetch_read);

    fn load(&self, offset: u64, out: &mut [u8]) {
        if self.windows.guards_reads() {
            return opened(self.try_load(offset, out));
        }
        self.inner.load(offset, out);
    }
    fn try_load(&self, offset: u64, out: &mut [u8]) -> Result<(), MediumFault> {
        if !self.windows.guards_reads() {
            return self.inner.try_load(offset, out);
        }
        let len_bytes = out.len() as u64;
        self.check_range(offset, len_bytes);
        match self.windows.copy_out(&self.inner, offset, out) {
            Some(copied) => copied,
            None => {
                self.within(offset..offset + len_bytes, Access::Read, |pmem| pmem.try_load(offset, out))?
            }
        }
    }
    fn lend(&self, offset: u64, len_bytes: usize, with: &mut dyn FnMut(NonNull<[u8]>)) {
        opened(self.load_in(offset, len_bytes as u64, |pmem| pmem.lend(offset, len_bytes, with)));
    }
    fn load_u64(&self, offset: u64) -> u64 {
        opened(self.load_in(offset, 8, |pmem| pmem.load_u64(offset)))
    }
    fn load_words(&self, offset: u64, out: &mut [u64]) {
        opened(self.load_in(offset, size_of_val(out) as u64, |pmem| pmem.load_words(offset, out)));
    }
    fn store(&self, offset: u64, bytes: &[u8]) {
        let store = |pmem: &P| {
            pmem.store(offset, bytes);
            Ok(())
        };
        opened(self.put(offset, bytes, store));
    }
    fn try_store(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumFault> {
        self.put(offset, bytes, |pmem| pmem.try_store(offset, bytes))
    }
    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        let store = |pmem: &P| {
            pmem.store_nt(offset, bytes);
            Ok(())
        };
        opened(self.put(offset, bytes, store));
    }
    fn try_store_nt(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumFault> {
        self.put(offset, bytes, |pmem| pmem.try_store_nt(offset, bytes))
    }
    fn store_u64(&self, offset: u64, value: u64) {
        self.store_in(offset, 8, |pmem| pmem.store_u64(offset, value));
    }
    fn store_words(&self, offset: u64, words: &[u64]) {
        self.store_in(offset, size_of_val(words) as u64, |pmem| pmem.store_words(offset, words));
    }
    fn store_u128(&self, offset: u64, value: u128) {
        self.store_in(offset, 16, |pmem| pmem.store_u128(offset, value));
    }
    fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.store_in(offset, 8, |pmem| pmem.compare_exchange_u64(offset, current, new))
    }
    fn flush(&self, offset: u64, len_bytes: u64) {
        opened(self.load_in(offset, len_bytes, |pmem| pmem.flush(offset, len_bytes)));
    }
    fn try_flush(&self, offset: u64, len_bytes: u64) -> Result<(), MediumFault> {
        self.load_in(offset, len_bytes, |pmem| pmem.try_flush(offset, len_bytes))?
    }
    fn populate(&self, offset: u64, len_bytes: u64) {
        let end = offset.saturating_add(len_bytes).min(self.inner.len_bytes());
        if offset < end && self.inner.is_writable() {
            // A hint: refused without consequence.
            self.within(offset..end, Access::Write, |pmem| pmem.populate(offset, len_bytes)).ok();
        }
    }
    fn fence(&self) -> Result<(), FenceError> {
        self.inner.fence()
    }
}
