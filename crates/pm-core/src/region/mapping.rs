//! Mappings of regions.
//!
//! memmap2 maps a file at an address that the kernel chooses. It supports neither a fixed address, which [`ALIGN_BYTES`] and
//! [`RegionOptions::at_address`](super::RegionOptions::at_address) need, nor `MAP_SYNC`; rustix supports both.

use super::process::ProcessId;
use crate::fault::{CopyKind, MediumFault, guarded_copy};
use core::sync::atomic::{AtomicUsize, Ordering};
use memmap2::{MmapOptions, MmapRaw};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags};
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};

/// The alignment of the start of each mapping whose address the caller does not choose. The address of an offset is aligned like the offset, up to
/// this alignment. The kernel can also use huge pages for such a mapping.
pub(super) const ALIGN_BYTES: usize = 4 << 20;

/// The effect of a store to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// The store panics.
    ReadOnly,
    /// The store changes a copy of the page that only this process sees.
    Scratch,
    /// The store changes the file.
    Writable,
}

/// How a mapping shares its pages with the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// Stores change the file.
    Shared,
    /// Like [`Shared`](Self::Shared), with `MAP_SYNC`: the page fault that maps a block makes the file system's record of the block durable.
    /// Kernels and file systems that do not support `MAP_SYNC` refuse the mapping.
    Synchronous,
    /// Stores change copies of pages. Memory for the copies is either reserved in advance, or allocated at the first store to each page.
    Private { is_reserved: bool },
}

impl Sharing {
    fn flags(self) -> MapFlags {
        match self {
            Self::Shared => MapFlags::SHARED,
            Self::Synchronous => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
            Self::Private { is_reserved: true } => MapFlags::PRIVATE,
            Self::Private { is_reserved: false } => MapFlags::PRIVATE | MapFlags::NORESERVE,
        }
    }
}

/// A mapping of a file from its start. Unmapped on drop.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    /// Only increases, up to `reserved`.
    len: AtomicUsize,
    /// The length of the addresses that this mapping owns: at least `len`, and more if addresses are reserved for growth.
    reserved: AtomicUsize,
    writable: bool,
    sharing: Sharing,
    /// The advice given so far, to be repeated for a mapping that replaces this one.
    advice: Vec<Advice>,
    /// The process that created the mapping. A child may have no mapping, or a different one, at this address.
    process: ProcessId,
    /// The value that unmaps the addresses on drop, if memmap2 has mapped them.
    owner: Option<MmapRaw>,
}

// SAFETY: the mapping belongs to the process, not to a thread, and all access goes through raw pointers whose
// users are responsible for races.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` exposes only an address and a length.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `file`, for reading, and for writing too if `writable`.
    pub(super) fn new(
        file: BorrowedFd<'_>,
        len: usize,
        writable: bool,
        sharing: Sharing,
    ) -> Result<Self, Errno> {
        let mapping = if sharing == Sharing::Synchronous {
            // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
            unsafe { Self::at(null_mut(), file, len, writable, sharing) }?
        } else {
            Self::anywhere(file, len, writable, sharing)?
        };
        if mapping.base.addr().get().is_multiple_of(ALIGN_BYTES) {
            return Ok(mapping);
        }
        drop(mapping);
        let base = reserve_aligned(len)?;
        // On failure the reservation is leaked: the failed call may have unmapped it already, and another thread may have mapped the addresses
        // since.
        // SAFETY: the range was reserved just now, and nothing else is mapped there.
        unsafe { Self::at(base.as_ptr(), file, len, writable, sharing) }
    }

    /// Maps with memmap2, at an address that the kernel chooses.
    fn anywhere(file: BorrowedFd<'_>, len: usize, writable: bool, sharing: Sharing) -> Result<Self, Errno> {
        let mut options = MmapOptions::new();
        options.len(len);
        if sharing == (Sharing::Private { is_reserved: false }) {
            options.no_reserve_swap();
        }
        let pages = match sharing {
            // SAFETY: other processes may change the file, but there is no reference to its bytes.
            Sharing::Private { .. } => unsafe { options.map_copy(&file) }.map(MmapRaw::from),
            _ if writable => options.map_raw(&file),
            _ => options.map_raw_read_only(&file),
        };
        let pages = pages.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let base = NonNull::new(pages.as_mut_ptr()).ok_or(Errno::NOMEM)?;
        Ok(Self::of(base, len, writable, sharing, Some(pages)))
    }

    /// Maps with rustix at `address`, or where the kernel chooses if `address` is null.
    ///
    /// # Safety
    /// The caller owns any mapping that exists in the `len` bytes at `address`, and nothing uses that mapping.
    pub(super) unsafe fn at(
        address: *mut u8,
        file: BorrowedFd<'_>,
        len: usize,
        writable: bool,
        sharing: Sharing,
    ) -> Result<Self, Errno> {
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let fixed = if address.is_null() { MapFlags::empty() } else { MapFlags::FIXED };
        // SAFETY: the caller's contract.
        let base = unsafe { rustix::mm::mmap(address.cast(), len, prot, sharing.flags() | fixed, file, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self::of(base, len, writable, sharing, None))
    }

    /// Maps the `len` bytes at `offset` of `file`, the file of this mapping, at another address, and maps their pages at once. `offset` must be a multiple
    /// of the page.
    pub(super) fn part(
        &self,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        writable: bool,
    ) -> Result<Self, Errno> {
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let flags = self.sharing.flags() | MapFlags::POPULATE;
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let base = unsafe { rustix::mm::mmap(null_mut(), len, prot, flags, file, offset) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self::of(base, len, writable, self.sharing, None))
    }

    fn of(base: NonNull<u8>, len: usize, writable: bool, sharing: Sharing, owner: Option<MmapRaw>) -> Self {
        let process = ProcessId::current();
        let (len, reserved) = (AtomicUsize::new(len), AtomicUsize::new(len));
        Self { base, len, reserved, writable, sharing, advice: Vec::new(), process, owner }
    }

    pub(super) const fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub(super) const fn base_ptr(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// The length up to which the mapping can be [extended](Self::extend).
    pub(super) fn reserved(&self) -> usize {
        self.reserved.load(Ordering::Relaxed)
    }

    /// Maps the same bytes of `file`, the file of this mapping, where addresses for `reserved` bytes are free, with the same advice. No memory is
    /// allocated for those behind the mapping, and an access to them faults.
    pub(super) fn with_reserve(self, file: BorrowedFd<'_>, reserved: usize) -> Result<Self, Errno> {
        let reserved = reserved.checked_next_multiple_of(rustix::param::page_size()).ok_or(Errno::NOMEM)?;
        if reserved <= self.len() {
            return Ok(self);
        }
        let base = reserve_aligned(reserved)?;
        // On failure the reservation is leaked, as in `new`.
        // SAFETY: the range was reserved just now, and nothing else is mapped there.
        let mut mapping = unsafe { Self::at(base.as_ptr(), file, self.len(), self.writable, self.sharing) }?;
        *mapping.reserved.get_mut() = reserved;
        for advice in &self.advice {
            mapping.advise(*advice)?;
        }
        Ok(mapping)
    }

    /// Whether the reserved addresses have room for `len` bytes, and the new part would start with a page.
    pub(super) fn can_extend(&self, len: usize) -> bool {
        len <= self.reserved() && self.len().is_multiple_of(rustix::param::page_size())
    }

    /// Extends the mapping in place to the first `len` bytes of `file`, the file of this mapping, which is that long. Bytes that were mapped before keep
    /// their addresses, and may be accessed meanwhile. Only one thread at a time may extend a mapping.
    ///
    /// # Errors
    /// When the mapping [cannot](Self::can_extend) be extended, or a system call fails. If that is the one that maps, the reserved addresses are given up.
    pub(super) fn extend(&self, file: BorrowedFd<'_>, len: usize) -> Result<(), Errno> {
        let old = self.len();
        if !self.can_extend(len) {
            return Err(Errno::NOMEM);
        }
        let prot = if self.writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: `old` is inside the reserved addresses.
        let address = unsafe { self.base.as_ptr().add(old) };
        let (flags, added) = (self.sharing.flags() | MapFlags::FIXED, len - old);
        // SAFETY: the addresses belong to this mapping, and nothing was mapped there.
        let mapped = unsafe { rustix::mm::mmap(address.cast(), added, prot, flags, file, old as u64) };
        if let Err(errno) = mapped {
            // The failed call may have unmapped the addresses, and another thread may have mapped something there since.
            self.reserved.store(old, Ordering::Relaxed);
            return Err(errno);
        }
        for advice in &self.advice {
            // SAFETY: the range was mapped just now, and no advice given here drops contents.
            unsafe { rustix::mm::madvise(address.cast(), added, *advice) }?;
        }
        self.len.store(len, Ordering::Release);
        Ok(())
    }

    /// Maps the first `len` bytes of `file`, the file of this mapping, a second time, at another address, with the same advice. The file may end
    /// before `len`. (mremap(2) does not grow mappings of huge pages.)
    pub(super) fn resized(&self, file: BorrowedFd<'_>, len: usize) -> Result<Self, Errno> {
        let mut mapping = Self::new(file, len, self.writable, self.sharing)?;
        for advice in &self.advice {
            mapping.advise(*advice)?;
        }
        Ok(mapping)
    }

    /// Gives advice for the whole mapping, and for mappings from [`resized`](Self::resized).
    pub(super) fn advise(&mut self, advice: Advice) -> Result<(), Errno> {
        self.advise_once(advice)?;
        self.advice.push(advice);
        Ok(())
    }

    /// Gives advice for this mapping only: [`resized`](Self::resized) does not repeat it.
    pub(super) fn advise_once(&self, advice: Advice) -> Result<(), Errno> {
        // SAFETY: the range is this mapping's own, and no advice given here drops contents.
        unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.len(), advice) }
    }

    /// Returns, for each page of `start..end`, whether the file's page is in memory. Both bounds must be page-aligned and inside the mapping.
    pub(super) fn are_resident(&self, start: usize, end: usize, page: usize) -> Result<Vec<bool>, Errno> {
        debug_assert!(start <= end && end <= self.len(), "only this mapping's own pages can be queried");
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

    /// Rewrites the byte at `offset` with its present value, which marks the page dirty. No other thread may store there during the call.
    ///
    /// # Errors
    /// When the page has no block and none can be allocated, or the page cannot be read.
    pub(super) fn touch(&self, offset: usize) -> Result<(), MediumFault> {
        debug_assert!(self.writable && offset < self.len(), "only this mapping's own pages can be touched");
        // SAFETY: `offset` is inside the mapping.
        let byte = unsafe { self.base.as_ptr().add(offset) };
        let mut value = 0;
        // SAFETY: inside the mapping, and there are no references to mapped memory.
        unsafe { guarded_copy(CopyKind::Load, &raw mut value, byte, 1) }?;
        // SAFETY: as above, and the mapping is writable. The copy is assembly, so the compiler cannot drop the store of an unchanged value.
        unsafe { guarded_copy(CopyKind::Store, byte, &raw const value, 1) }
    }

    /// Whether the `len` bytes at `offset` are all zero. No other thread may store there during the call.
    ///
    /// # Errors
    /// When the bytes cannot be read.
    pub(super) fn is_zero(&self, offset: usize, len: usize) -> Result<bool, MediumFault> {
        debug_assert!(offset + len <= self.len(), "only this mapping's own pages can be read");
        let mut buffer = [0; 4096];
        for start in (offset..offset + len).step_by(buffer.len()) {
            let part = &mut buffer[..(offset + len - start).min(4096)];
            // SAFETY: the range is inside the mapping.
            let from = unsafe { self.base.as_ptr().add(start) };
            // SAFETY: as above, and there are no references to mapped memory.
            unsafe { guarded_copy(CopyKind::Load, part.as_mut_ptr(), from, part.len()) }?;
            if part.iter().any(|&byte| byte != 0) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Allocates and maps the pages of `start..end` for stores. Both bounds must be page-aligned and inside the mapping.
    pub(super) fn populate(&self, start: usize, end: usize) -> Result<(), Errno> {
        debug_assert!(start <= end && end <= self.len(), "only this mapping's own pages can be populated");
        // SAFETY: `start` is inside the mapping, so the sum stays in it.
        let address = unsafe { self.base.as_ptr().add(start) };
        // SAFETY: the range is inside this mapping, and the call changes no bytes.
        retry_on_intr(|| unsafe {
            rustix::mm::madvise(address.cast(), end - start, Advice::LinuxPopulateWrite)
        })
    }

    /// Writes back the pages of `start..end`, and waits. Both bounds must be page-aligned and inside the mapping.
    pub(super) fn sync(&self, start: usize, end: usize) -> Result<(), Errno> {
        debug_assert!(start <= end && end <= self.len(), "only this mapping's own pages can be synced");
        // SAFETY: `start` is inside the mapping, so the sum stays in it.
        let address = unsafe { self.base.as_ptr().add(start) };
        // SAFETY: the range is inside this mapping, and a write-back changes no bytes.
        unsafe { rustix::mm::msync(address.cast(), end - start, MsyncFlags::SYNC) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let owner = self.owner.take();
        if !self.process.is_current() {
            // In a child of fork(2) another mapping may be at this address by now. A mapping inherited because of `keep_on_fork` is unmapped when
            // the child ends.
            core::mem::forget(owner);
            return;
        }
        if owner.is_some() {
            return;
        }
        // SAFETY: the range is this mapping's own, and `&mut self` shows that no address in it is in use.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.reserved()) };
        debug_assert!(unmapped.is_ok(), "munmap of a whole mapping cannot fail: {unmapped:?}");
    }
}

/// Reserves a range of addresses that starts at a multiple of [`ALIGN_BYTES`], without allocating memory. (memmap2 maps anonymous memory as
/// writable, and a kernel that does not overcommit counts such memory as used.)
fn reserve_aligned(len: usize) -> Result<NonNull<u8>, Errno> {
    let page_len = len.checked_next_multiple_of(rustix::param::page_size()).ok_or(Errno::NOMEM)?;
    let all = page_len.checked_add(ALIGN_BYTES).ok_or(Errno::NOMEM)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a null hint lets the kernel choose an unused range.
    let start = unsafe { rustix::mm::mmap_anonymous(null_mut(), all, ProtFlags::empty(), flags) }?;
    let start: *mut u8 = start.cast();
    let front = start.addr().next_multiple_of(ALIGN_BYTES) - start.addr();
    let base = start.wrapping_add(front);
    release(start, front);
    release(base.wrapping_add(page_len), ALIGN_BYTES - front);
    NonNull::new(base).ok_or(Errno::NOMEM)
}

/// Unmaps a part of a range that [`reserve_aligned`] has mapped.
fn release(start: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: the range was reserved by this module, and nothing uses it.
        let unmapped = unsafe { rustix::mm::munmap(start.cast(), len) };
        debug_assert!(unmapped.is_ok(), "munmap of a reserved range cannot fail: {unmapped:?}");
    }
}
