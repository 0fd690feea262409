//! The mapping itself: the one place where an address range is made, moved and given back.

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

/// A mapping of a file from its start. Unmapped on drop.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    flags: MapFlags,
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
        Ok(Self { base, len, writable, flags })
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

    /// Maps the first `len` bytes of the same `file` instead, wherever there is room. Takes `&mut` because the base moves.
    /// (Not by mremap, which does not grow mappings of huge pages.)
    pub(super) fn replace(&mut self, file: BorrowedFd<'_>, len: usize) -> Result<(), Errno> {
        *self = Self::new(file, len, self.writable, self.flags)?;
        Ok(())
    }

    /// Gives advice for the whole mapping.
    pub(super) fn advise(&self, advice: Advice) -> Result<(), Errno> {
        // SAFETY: the range is this mapping's own, and none of the advice given here drops contents.
        unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.len, advice) }
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
        // SAFETY: the range is this mapping's own, and `&mut self` shows that nobody is using an address in it.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of a whole mapping cannot fail: {unmapped:?}");
    }
}
