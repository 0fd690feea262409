//! The mapping itself: the one place where an address range is made, moved and given back.

use super::process::ProcessId;
use crate::fault::{self, MediumFault};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

/// Every mapping starts at a multiple of this, so that what is aligned by its offset, up to this, is so by its address. Also,
/// the kernel can then use its huge pages.
pub(super) const ALIGN_BYTES: usize = 4 << 20;

/// A mapping of a file from its start. Unmapped on drop.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    flags: MapFlags,
    /// Advice that was given, for a mapping that takes this one's place.
    advice: Vec<Advice>,
    /// The process that has the mapping. A child of it may not have it, and something else at its address.
    process: ProcessId,
}

// SAFETY: the mapping belongs to the process, not to a thread, and all access goes through raw pointers whose
// users are responsible for races.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives away nothing but an address and a length.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `file`, for reading, and for writing too if `writable`.
    pub(super) fn new(
        file: BorrowedFd<'_>,
        len: usize,
        writable: bool,
        flags: MapFlags,
    ) -> Result<Self, Errno> {
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a null hint lets the kernel choose an unused range, so no existing mapping is replaced.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, file, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        let mapping = Self::of(base, len, writable, flags);
        if mapping.base.addr().get().is_multiple_of(ALIGN_BYTES) {
            return Ok(mapping);
        }
        drop(mapping);
        let base = reserve_aligned(len)?;
        // SAFETY: the range was reserved just now, and nothing else is mapped there.
        match unsafe { rustix::mm::mmap(base.as_ptr().cast(), len, prot, flags | MapFlags::FIXED, file, 0) } {
            Ok(_) => Ok(Self::of(base, len, writable, flags)),
            // The range is not given back: the failed call may have unmapped it, and another thread mapped something there. What is
            // lost is addresses, not memory.
            Err(errno) => Err(errno),
        }
    }

    /// As [`new`](Self::new), at an address of the caller's choice.
    ///
    /// # Safety
    /// What is mapped in these `len` bytes is the caller's to replace, and nothing uses it.
    pub(super) unsafe fn at(
        address: usize,
        file: BorrowedFd<'_>,
        len: usize,
        writable: bool,
        flags: MapFlags,
    ) -> Result<Self, Errno> {
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let hint = std::ptr::without_provenance_mut(address);
        // SAFETY: the caller's promise.
        let base = unsafe { rustix::mm::mmap(hint, len, prot, flags | MapFlags::FIXED, file, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self::of(base, len, writable, flags))
    }

    /// What was mapped here just now.
    fn of(base: NonNull<u8>, len: usize, writable: bool, flags: MapFlags) -> Self {
        Self { base, len, writable, flags, advice: Vec::new(), process: ProcessId::current() }
    }

    pub(super) const fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub(super) const fn base_ptr(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Maps the first `len` bytes of the same `file`, which may end before, once more, wherever there is room, with the same
    /// advice. (Not by mremap, which does not grow mappings of huge pages.)
    pub(super) fn resized(&self, file: BorrowedFd<'_>, len: usize) -> Result<Self, Errno> {
        let mut mapping = Self::new(file, len, self.writable, self.flags)?;
        for advice in &self.advice {
            mapping.advise(*advice)?;
        }
        Ok(mapping)
    }

    /// Gives advice for the whole mapping, and for those made by [`resized`](Self::resized).
    pub(super) fn advise(&mut self, advice: Advice) -> Result<(), Errno> {
        self.advise_once(advice)?;
        self.advice.push(advice);
        Ok(())
    }

    /// Gives advice for the pages as they are now.
    pub(super) fn advise_once(&self, advice: Advice) -> Result<(), Errno> {
        // SAFETY: the range is this mapping's own, and none of the advice given here drops contents.
        unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.len, advice) }
    }

    /// For each page of `start..end`, whether its file's page is in memory. Both must be page-aligned and inside.
    pub(super) fn are_resident(&self, start: usize, end: usize, page: usize) -> Result<Vec<bool>, Errno> {
        debug_assert!(start <= end && end <= self.len, "only this mapping's own pages can be asked for");
        let mut answers = vec![0_u8; (end - start).div_ceil(page)];
        // SAFETY: `start` is inside the mapping, so the sum stays in it.
        let address = unsafe { self.base.as_ptr().add(start) };
        // SAFETY: the range is this mapping's own, and the vector has a byte for each of its pages.
        let failed = unsafe { libc::mincore(address.cast(), end - start, answers.as_mut_ptr()) };
        if failed != 0 {
            return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
        }
        Ok(answers.into_iter().map(|answer| answer & 1 != 0).collect())
    }

    /// Stores a byte of the page at `offset` again, so that the kernel takes the page for changed. While no other thread
    /// stores there.
    ///
    /// # Errors
    /// When there is no block for the page, or it cannot be read.
    pub(super) fn touch(&self, offset: usize) -> Result<(), MediumFault> {
        debug_assert!(self.writable && offset < self.len, "only this mapping's own pages can be touched");
        // SAFETY: `offset` is inside the mapping.
        let byte = unsafe { self.base.as_ptr().add(offset) };
        let again = || {
            // SAFETY: inside the mapping, and there are no references to mapped memory.
            let value = unsafe { byte.read_volatile() };
            // SAFETY: as above, and the mapping is writable. Volatile, for a compiler may drop a store of what is there.
            unsafe { byte.write_volatile(value) };
        };
        // SAFETY: it does not panic, and holds nothing.
        unsafe { fault::guarded(again) }
    }

    /// Whether the `len` bytes at `offset` are all zero. While no other thread stores there.
    ///
    /// # Errors
    /// When they cannot be read.
    pub(super) fn is_zero(&self, offset: usize, len: usize) -> Result<bool, MediumFault> {
        debug_assert!(offset + len <= self.len, "only this mapping's own pages can be read");
        // SAFETY: `offset` is inside the mapping.
        let bytes = unsafe { self.base.as_ptr().add(offset) };
        let mut is_zero = true;
        let look = || {
            is_zero = (0..len).all(|index| {
                // SAFETY: the caller's range is inside the mapping.
                let byte = unsafe { bytes.add(index) };
                // SAFETY: inside the mapping, and there are no references to mapped memory.
                unsafe { byte.read_volatile() == 0 }
            });
        };
        // SAFETY: it does not panic, and holds nothing.
        unsafe { fault::guarded(look) }?;
        Ok(is_zero)
    }

    /// Writes the pages of `start..end` back and waits. Both must be page-aligned and inside.
    pub(super) fn sync(&self, start: usize, end: usize) -> Result<(), Errno> {
        debug_assert!(start <= end && end <= self.len, "only this mapping's own pages can be synced");
        // SAFETY: `start` is inside the mapping, so the sum stays in it.
        let address = unsafe { self.base.as_ptr().add(start) };
        // SAFETY: the range is inside this mapping, and a write-back changes no bytes.
        unsafe { rustix::mm::msync(address.cast(), end - start, MsyncFlags::SYNC) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // A child of fork(2). It has no such mapping, and perhaps another one at this address by now; what it inherited on
            // request ends with it.
            return;
        }
        // SAFETY: the range is this mapping's own, and `&mut self` shows that nobody is using an address in it.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of a whole mapping cannot fail: {unmapped:?}");
    }
}

/// Takes a range of addresses that starts at a multiple of [`ALIGN_BYTES`], with nothing in it.
fn reserve_aligned(len: usize) -> Result<NonNull<u8>, Errno> {
    let page_len = len.checked_next_multiple_of(rustix::param::page_size()).ok_or(Errno::NOMEM)?;
    let all = page_len.checked_add(ALIGN_BYTES).ok_or(Errno::NOMEM)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a null hint lets the kernel choose an unused range.
    let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), all, ProtFlags::empty(), flags) }?;
    let start: *mut u8 = start.cast();
    let front = start.addr().next_multiple_of(ALIGN_BYTES) - start.addr();
    let base = start.wrapping_add(front);
    release(start, front);
    release(base.wrapping_add(page_len), ALIGN_BYTES - front);
    NonNull::new(base).ok_or(Errno::NOMEM)
}

/// Gives back addresses of [`reserve_aligned`].
fn release(start: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: the range was reserved by this module, and nothing uses it.
        let unmapped = unsafe { rustix::mm::munmap(start.cast(), len) };
        debug_assert!(unmapped.is_ok(), "munmap of a reserved range cannot fail: {unmapped:?}");
    }
}
