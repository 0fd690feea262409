//! Regions: the implementation of the seam on hardware, as bounds checks and instructions.

use super::lock::LockedFile;
use super::mapping::{Access, Mapping};
use super::page_sync::PageSync;
use super::{Medium, OpenError, blocks, copies, file, medium, reread};
use crate::fault::{CopyKind, MediumFault, guarded_copy};
use crate::insn::{self, FlushInsn, Insns};
use crate::{Domain, FenceError, GrowError, Pmem, WriterGuard, WriterLock};
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// A mapped region of persistent memory, and the seam's implementation on hardware.
///
/// Each method is a bounds check and the instructions; `tests/assembly.rs` checks the machine code of a persist. Created with
/// [`RegionOptions`](crate::RegionOptions). The file stays locked until the region is dropped.
#[derive(Debug)]
pub struct Region {
    pub(super) mapping: Mapping,
    /// Mapped length, the limit of loads.
    pub(super) len_bytes: AtomicU64,
    /// The limit of stores: the length, or zero in a read-only region. One comparison checks both the range and the access.
    pub(super) writable_bytes: AtomicU64,
    /// Held while the region grows in place.
    growing: Mutex<()>,
    insns: Insns,
    /// Set only in the page domain.
    pub(super) page_sync: Option<PageSync>,
    /// Whether this open, or an earlier one, received the report of a failed write-back.
    lost_writes: bool,
    access: Access,
    /// Whether growth leaves a hole.
    pub(super) sparse: bool,
    pub(super) medium: Medium,
    domain: Domain,
    path: PathBuf,
    /// Holds the lock.
    file: LockedFile,
    /// The writer's lock of the pool in the region.
    writer: WriterLock,
}

impl Region {
    pub(super) fn from_parts(
        mapping: Mapping,
        file: LockedFile,
        path: PathBuf,
        access: Access,
        medium: Medium,
        domain: Domain,
        insns: Insns,
    ) -> Self {
        let len_bytes = mapping.len() as u64;
        let page_sync = (domain == Domain::Page).then(PageSync::new);
        let writable_bytes = if access == Access::ReadOnly { 0 } else { len_bytes };
        Self {
            mapping,
            len_bytes: AtomicU64::new(len_bytes),
            writable_bytes: AtomicU64::new(writable_bytes),
            growing: Mutex::new(()),
            insns,
            page_sync,
            lost_writes: false,
            access,
            sparse: false,
            medium,
            domain,
            path,
            file,
            writer: WriterLock::default(),
        }
    }

    #[inline]
    fn load_guarded(&self, offset: u64, out: &mut [u8]) -> Result<(), MediumFault> {
        let from = self.address(offset, out.len() as u64, self.mapped_bytes());
        // SAFETY: the range was checked; `out` is an ordinary exclusive slice, so it is not in the mapping.
        let copied = unsafe { guarded_copy(CopyKind::Load, out.as_mut_ptr(), from, out.len()) };
        // An acquire fence, as in `load`.
        fence(Ordering::Acquire);
        copied
    }

    /// Loads a range page by page, after a load of the whole range faulted. On tmpfs a load from a hole allocates a page, and faults if no page is
    /// free; this function returns zeroes for such a hole. A load past the end of a truncated file is still an error.
    #[cold]
    fn load_around_holes(&self, offset: u64, mut out: &mut [u8]) -> Result<(), MediumFault> {
        let end = offset + out.len() as u64;
        let has_range = |stat: rustix::fs::Stat| stat.st_size.cast_unsigned() >= end;
        if self.medium != Medium::Tmpfs || !rustix::fs::fstat(self.file.fd()).is_ok_and(has_range) {
            return Err(MediumFault);
        }
        let (mut start, page_bytes) = (offset, rustix::param::page_size());
        while !out.is_empty() {
            let left =
                page_bytes - usize::try_from(start).expect("the offset is in the mapping") % page_bytes;
            let (page, rest) = out.split_at_mut(left.min(out.len()));
            let end = start + page.len() as u64;
            if self.next_data(start).is_none_or(|data| data.start >= end) {
                page.fill(0);
            } else {
                self.load_guarded(start, page)?;
            }
            (start, out) = (end, rest);
        }
        Ok(())
    }

    /// Makes the page cache equal to the medium; after a failed write-back they may differ. Drops the file's pages, or, for a writer with `keep`,
    /// writes them back again. Does so in the page domain, and for scratch over an ordinary file.
    pub(super) fn reread(&mut self, keep: bool) -> Result<(), OpenError> {
        let is_scratch_of_file = self.access == Access::Scratch && self.medium == Medium::File;
        if self.domain != Domain::Page && !is_scratch_of_file {
            return Ok(());
        }
        let writer = self.page_sync.as_ref().filter(|_| self.access == Access::Writable);
        self.lost_writes = reread::reread(self.file.fd(), &self.path, &self.mapping, writer, keep)?;
        Ok(())
    }

    /// For a writer with [`RegionOptions::keep_pages`](crate::RegionOptions::keep_pages): makes every later fence fail if this open, or an earlier
    /// one, received the report of a failed write-back. Returns true in that case, and false for all other regions. Opening has written back the lost
    /// writes that were still in the page cache. Call this after the last fence that must succeed.
    pub fn poison_if_writes_were_lost(&self) -> bool {
        if let Some(page_sync) = self.page_sync.as_ref().filter(|_| self.lost_writes) {
            page_sync.poison();
        }
        self.lost_writes
    }

    #[cfg(test)]
    pub(super) fn assume_lost_writes(&mut self) {
        self.lost_writes = true;
    }

    pub(super) const fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    pub(super) const fn locked_file(&self) -> &LockedFile {
        &self.file
    }

    pub(super) const fn access(&self) -> Access {
        self.access
    }

    /// Whether stores change copies of pages that only this process sees.
    pub(crate) fn is_scratch(&self) -> bool {
        self.access == Access::Scratch
    }

    /// The medium that holds the bytes.
    #[must_use]
    pub const fn medium(&self) -> Medium {
        self.medium
    }

    /// The instructions in use.
    #[must_use]
    pub const fn insns(&self) -> Insns {
        self.insns
    }

    /// The path of the region.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The address of offset 0, for code that returns addresses, such as a `malloc` over a heap. It is valid until the region is
    /// [grown](Region::grow) or dropped.
    ///
    /// Using the address is unsafe: bounds are not checked, a store to a read-only region faults, other threads and processes may store there, and an
    /// access bypasses the seam, so that counters and simulators do not see it. A store is durable after a [`Pmem::flush`] of its lines and a fence.
    #[must_use]
    pub const fn base_ptr(&self) -> NonNull<u8> {
        self.mapping.base_ptr()
    }

    /// The file, for calls that change neither its bytes nor its length, such as allocating its blocks or giving it a name.
    ///
    /// Do not sync it: the kernel reports a failed write-back once, and the next fence would not get the report. Use [`sync_file`](Self::sync_file).
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.fd().as_fd()
    }

    /// Grows the file and the mapping to `len_bytes`; the new bytes are zero, and allocated unless the region was created or opened as
    /// [sparse](crate::RegionOptions::sparse). Takes `&mut self`, because the mapping moves, unless
    /// addresses are [reserved](crate::RegionOptions::reserve): then [`Pmem::grow_in_place`] does the same.
    ///
    /// # Errors
    /// When the region or its file would shrink, or the size is not a multiple of the medium's page size. When the region is read-only, scratch or a
    /// device-dax, or belongs to the parent of this child of fork(2) ([`OpenError::Busy`]). When there is not enough space or address space. On
    /// error, the region and the file are unchanged, with one exception: if the file cannot be [synced](Self::sync_file) in its new length, the file
    /// is longer than the region. In the page domain the failed sync poisons the region, because the failure may concern data stored before.
    ///
    /// # Durability
    /// Before it returns, a crash leaves the old or the new length; after that, the new length.
    pub fn grow(&mut self, len_bytes: u64) -> Result<(), OpenError> {
        let len = self.check_growth(len_bytes)?;
        let old_bytes = self.mapped_bytes();
        if len_bytes == old_bytes {
            return Ok(());
        }
        if self.mapping.can_extend(len) {
            return self.grow_within_reserve(len_bytes);
        }
        let path = &self.path;
        let file = self.file.locked_fd(path)?.as_fd();
        // The file is mapped first, because mmap may fail. Nothing accesses the new part of the mapping until the file is longer.
        let mapping = self.mapping.resized(file, len).map_err(OpenError::from_errno(path, "mmap"))?;
        blocks::extend(file, path, old_bytes..len_bytes, self.sparse)?;
        // DURABILITY POINT
        self.sync_file()?;
        self.mapping = mapping;
        *self.len_bytes.get_mut() = len_bytes;
        *self.writable_bytes.get_mut() = len_bytes;
        Ok(())
    }

    /// [Grows](Self::grow) into the [reserved](crate::RegionOptions::reserve) addresses, while other threads use the region.
    fn grow_within_reserve(&self, len_bytes: u64) -> Result<(), OpenError> {
        // The lock guards no data: the lengths are stored last.
        let _growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let len = self.check_growth(len_bytes)?;
        let (old_bytes, path) = (self.mapped_bytes(), &self.path);
        if len_bytes == old_bytes {
            return Ok(());
        }
        if !self.mapping.can_extend(len) {
            return Err(OpenError::FixedSize { path: path.clone() });
        }
        let file = self.file.locked_fd(path)?.as_fd();
        // The file is extended first, with its blocks: an access to the new part of the mapping finds them.
        blocks::extend(file, path, old_bytes..len_bytes, self.sparse)?;
        // DURABILITY POINT
        self.sync_file()?;
        self.mapping.extend(file, len).map_err(OpenError::from_errno(path, "mmap"))?;
        // Another thread finds an offset in the new part only in what this thread stores after these lengths.
        self.len_bytes.store(len_bytes, Ordering::Release);
        self.writable_bytes.store(len_bytes, Ordering::Release);
        Ok(())
    }

    /// The mapped length, the limit of loads.
    #[inline(always)]
    fn mapped_bytes(&self) -> u64 {
        self.len_bytes.load(Ordering::Relaxed)
    }

    /// The limit of stores.
    #[inline(always)]
    fn writable_bytes(&self) -> u64 {
        self.writable_bytes.load(Ordering::Relaxed)
    }

    /// Checks the arguments of [`grow`](Self::grow). Returns the length of the new mapping.
    pub(crate) fn check_growth(&self, len_bytes: u64) -> Result<usize, OpenError> {
        let path = &self.path;
        if self.access != Access::Writable {
            return Err(OpenError::ReadOnly { path: path.to_path_buf() });
        }
        if self.medium == Medium::DeviceDax {
            return Err(OpenError::FixedSize { path: path.to_path_buf() });
        }
        let file = self.file.locked_fd(path)?;
        let (_, page_bytes) = medium::of_file_system(file).map_err(OpenError::from_errno(path, "statfs"))?;
        file::check_size(len_bytes, page_bytes)?;
        let mapped_bytes = self.mapped_bytes();
        if len_bytes < mapped_bytes {
            return Err(OpenError::Shrink { len_bytes: mapped_bytes, wanted_bytes: len_bytes });
        }
        usize::try_from(len_bytes).map_err(|_| OpenError::NoSpace { path: path.to_path_buf(), len_bytes })
    }

    /// Syncs the file: its length, its block map, and, in the page domain, all stores. The domain of the region does not change: that of a
    /// [nameless](crate::RegionOptions::open_file) file stays volatile, even if it has been given a name.
    ///
    /// # Errors
    /// When the system call fails. In the page domain a failure poisons the region, as a failed fence does, and a poisoned region returns an error.
    /// For a region of the parent of this child of fork(2), [`OpenError::Busy`]: the kernel reports a failed write-back once, and the parent needs
    /// the report.
    ///
    /// # Durability
    /// When it returns, the length of a file that has a name is durable, and in the page domain also its contents.
    pub fn sync_file(&self) -> Result<(), OpenError> {
        let file = self.file.locked_fd(self.path())?;
        match &self.page_sync {
            Some(page_sync) => page_sync.sync_file(|| rustix::fs::fsync(file))?,
            None => rustix::fs::fsync(file),
        }
        .map_err(OpenError::from_errno(self.path(), "fsync"))
    }

    /// Allocates and maps the pages that lie entirely in `range`, as if a byte of each page were stored to, so that later stores need no page
    /// faults. No byte changes. Nothing happens for a part of the range outside the region. Pages of ordinary files become dirty, and pages of
    /// [scratch](crate::RegionOptions::scratch) are copied.
    ///
    /// # Errors
    /// When the region is read-only, the pages cannot be allocated, or the kernel is older than Linux 5.14. Some of the pages may have been mapped.
    ///
    /// # Durability
    /// Changes nothing.
    ///
    /// # Source
    /// madvise(2), `MADV_POPULATE_WRITE`.
    pub fn populate_range(&self, range: Range<u64>) -> Result<(), OpenError> {
        if !self.is_writable() {
            return Err(OpenError::ReadOnly { path: self.path.clone() });
        }
        let (page_bytes, len_bytes) = (rustix::param::page_size(), self.mapping.len());
        let in_mapping =
            |offset: u64| usize::try_from(offset).map_or(len_bytes, |offset| offset.min(len_bytes));
        let start = in_mapping(range.start).next_multiple_of(page_bytes);
        let end = in_mapping(range.end) / page_bytes * page_bytes;
        if start >= end {
            return Ok(());
        }
        self.mapping.populate(start, end).map_err(OpenError::from_errno(&self.path, "madvise"))
    }

    /// Whether stores are allowed, including those to [scratch](crate::RegionOptions::scratch).
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable_bytes() != 0
    }

    /// The address of `offset`. Panics if the `len_bytes` bytes there do not end inside `limit_bytes`.
    #[inline(always)]
    #[track_caller]
    fn address(&self, offset: u64, len_bytes: u64, limit_bytes: u64) -> *mut u8 {
        if offset.checked_add(len_bytes).is_none_or(|end| end > limit_bytes) {
            self.out_of_range(offset, len_bytes);
        }
        // `offset` is at most the mapped length, which is a `usize`.
        #[expect(clippy::cast_possible_truncation, reason = "checked against the mapped length just above")]
        let offset = offset as usize;
        // SAFETY: `offset` is at most the mapping's length, so the sum stays inside or one past it.
        unsafe { self.mapping.base().add(offset) }
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn out_of_range(&self, offset: u64, len_bytes: u64) -> ! {
        let (path, end) = (self.path.display(), self.mapped_bytes());
        if offset.checked_add(len_bytes).is_some_and(|e| e <= end) {
            panic!(
                "store or flush of {len_bytes} bytes at offset {offset} in {path}, which is open read-only"
            );
        }
        panic!("{len_bytes} bytes at offset {offset} do not fit in {path}, which has {end} bytes");
    }

    #[inline(always)]
    #[track_caller]
    fn atomic(&self, offset: u64, limit_bytes: u64) -> &AtomicU64 {
        let address = self.address(offset, 8, limit_bytes);
        assert!(offset.is_multiple_of(8), "an atomic word must be aligned, and offset {offset} is not");
        // SAFETY: inside the mapping while `self` is borrowed; aligned, as mappings begin at a page; and every access to the mapping is atomic
        // or assembly.
        unsafe { AtomicU64::from_ptr(address.cast()) }
    }
}

impl Pmem for Region {
    #[inline(always)]
    fn len_bytes(&self) -> u64 {
        self.mapped_bytes()
    }

    fn grow_in_place(&self, len_bytes: u64) -> Result<(), GrowError> {
        self.grow_within_reserve(len_bytes).map_err(|error| match error {
            OpenError::FixedSize { .. } => GrowError::Fixed { len_bytes },
            OpenError::Shrink { len_bytes, wanted_bytes } => GrowError::Shrink { len_bytes, wanted_bytes },
            OpenError::NoSpace { len_bytes, .. } => GrowError::NoSpace { len_bytes },
            OpenError::Fence(error) => error.into(),
            error => GrowError::Other(Box::new(error)),
        })
    }

    #[inline(always)]
    fn domain(&self) -> Domain {
        self.domain
    }

    #[inline]
    fn is_writable(&self) -> bool {
        Self::is_writable(self)
    }

    fn lock_writer(&self) -> Option<WriterGuard> {
        // A child of fork(2) has its own copy of the lock, which does not exclude the parent.
        if self.file.is_own() { self.writer.try_lock() } else { None }
    }

    fn writer_lock(&self) -> Option<WriterLock> {
        Some(self.writer.clone())
    }

    fn next_data(&self, offset: u64) -> Option<Range<u64>> {
        let rest = (offset < self.mapped_bytes()).then(|| offset..self.mapped_bytes())?;
        if self.access == Access::Scratch {
            copies::next_data(self.file.fd(), &self.mapping, rest)
        } else {
            file::next_data(self.file.fd(), rest)
        }
    }

    #[inline]
    fn load(&self, offset: u64, out: &mut [u8]) {
        let from = self.address(offset, out.len() as u64, self.mapped_bytes());
        // SAFETY: the range was checked; `out` is an ordinary exclusive slice, so it is not in the mapping.
        unsafe { insn::copy_from_pmem(out.as_mut_ptr(), from, out.len()) };
        // An acquire fence, because the bytes may be a link to data that another thread stored before.
        fence(Ordering::Acquire);
    }

    #[inline]
    fn lend(&self, offset: u64, len_bytes: usize, with: &mut dyn FnMut(NonNull<[u8]>)) {
        let from = self.address(offset, len_bytes as u64, self.mapped_bytes());
        if self.access != Access::Writable {
            // Another process may be the writer.
            let mut bytes = vec![0; len_bytes];
            self.load(offset, &mut bytes);
            return with(NonNull::from(bytes.as_slice()));
        }
        // As in `load`.
        fence(Ordering::Acquire);
        let from = NonNull::new(from).expect("a mapping does not begin at address 0");
        with(NonNull::slice_from_raw_parts(from, len_bytes));
    }

    #[inline]
    fn store(&self, offset: u64, bytes: &[u8]) {
        let to = self.address(offset, bytes.len() as u64, self.writable_bytes());
        // SAFETY: the range was checked; `bytes` is not there, because lent bytes are not stored to.
        unsafe { insn::copy_to_pmem(to, bytes.as_ptr(), bytes.len()) }
    }

    #[inline]
    fn store_nt(&self, offset: u64, bytes: &[u8]) {
        let to = self.address(offset, bytes.len() as u64, self.writable_bytes());
        if let Some(page_sync) = &self.page_sync {
            // With a page cache, non-temporal stores have no advantage. SAFETY: the range was checked; `bytes` is not there, because lent bytes are
            // not stored to.
            unsafe { insn::copy_to_pmem(to, bytes.as_ptr(), bytes.len()) };
            page_sync.flush(offset, bytes.len() as u64);
            return;
        }
        // SAFETY: as above.
        unsafe { insn::copy_to_pmem_nt(self.insns, to, bytes.as_ptr(), bytes.len()) }
    }

    #[inline]
    fn try_load(&self, offset: u64, out: &mut [u8]) -> Result<(), MediumFault> {
        self.load_guarded(offset, out).or_else(|_| self.load_around_holes(offset, out))
    }

    #[inline]
    fn try_store_nt(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumFault> {
        let to = self.address(offset, bytes.len() as u64, self.writable_bytes());
        let kind = if self.page_sync.is_some() { CopyKind::Store } else { CopyKind::StoreNt(self.insns) };
        // SAFETY: the range was checked; `bytes` is not there, because lent bytes are not stored to.
        let copied = unsafe { guarded_copy(kind, to, bytes.as_ptr(), bytes.len()) };
        if let Some(page_sync) = &self.page_sync {
            // The range includes the bytes stored before a fault.
            page_sync.flush(offset, bytes.len() as u64);
        }
        copied
    }

    #[inline]
    fn try_store(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumFault> {
        let to = self.address(offset, bytes.len() as u64, self.writable_bytes());
        // SAFETY: as in `try_store_nt`.
        unsafe { guarded_copy(CopyKind::Store, to, bytes.as_ptr(), bytes.len()) }
    }

    #[inline]
    fn try_flush(&self, offset: u64, len_bytes: u64) -> Result<(), MediumFault> {
        let start = self.address(offset, len_bytes, self.writable_bytes());
        if let Some(page_sync) = &self.page_sync {
            page_sync.flush(offset, len_bytes);
            return Ok(());
        }
        if self.insns.flush() == FlushInsn::Nothing {
            return Ok(());
        }
        #[expect(clippy::cast_possible_truncation, reason = "checked against the mapped length by `address`")]
        let len = len_bytes as usize;
        // SAFETY: the range was checked, and a write-back reads no source.
        unsafe { guarded_copy(CopyKind::Flush(self.insns), start, start, len) }
    }

    #[inline]
    fn load_u64(&self, offset: u64) -> u64 {
        // The mapping may be read-only, where Rust only allows relaxed loads; the fence makes this an acquire load.
        let word = self.atomic(offset, self.mapped_bytes()).load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        word
    }

    #[inline]
    fn load_words(&self, offset: u64, out: &mut [u64]) {
        let from = self.address(offset, size_of_val(out) as u64, self.mapped_bytes());
        assert!(offset.is_multiple_of(8), "an atomic word must be aligned, and offset {offset} is not");
        for (index, word) in out.iter_mut().enumerate() {
            let from = from.cast::<u64>().wrapping_add(index);
            // SAFETY: as in `atomic`; the range of all words was checked.
            *word = unsafe { AtomicU64::from_ptr(from) }.load(Ordering::Relaxed);
        }
        // An acquire fence, as in `load_u64`.
        fence(Ordering::Acquire);
    }

    #[inline]
    fn store_u64(&self, offset: u64, value: u64) {
        self.atomic(offset, self.writable_bytes()).store(value, Ordering::Release);
    }

    #[inline]
    fn store_u128(&self, offset: u64, value: u128) {
        let to = self.address(offset, 16, self.writable_bytes());
        assert!(offset.is_multiple_of(16), "an atomic pair must be aligned, and offset {offset} is not");
        // SAFETY: the range was checked; aligned, as mappings begin at a page; every other access to the mapping is atomic or assembly. (In the
        // page domain this stores to the page cache, which is ordinary memory.)
        unsafe { self.insns.store_u128(to, value) }
    }

    #[inline]
    fn compare_exchange_u64(&self, offset: u64, current: u64, new: u64) -> Result<u64, u64> {
        let word = self.atomic(offset, self.writable_bytes());
        word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
    }

    #[inline]
    fn flush(&self, offset: u64, len_bytes: u64) {
        let start = self.address(offset, len_bytes, self.writable_bytes());
        if let Some(page_sync) = &self.page_sync {
            page_sync.flush(offset, len_bytes);
            return;
        }
        if self.insns.flush() == FlushInsn::Nothing {
            return;
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the range was checked against the mapped length"
        )]
        let len = len_bytes as usize;
        // SAFETY: the range was checked to lie inside the mapping, which lives as long as `self`.
        unsafe { self.insns.flush_range(start, len) }
    }

    #[inline]
    fn prefetch(&self, offset: u64) {
        // The address may lie outside the mapping. A prefetch never faults, and is not an access.
        #[expect(clippy::cast_possible_truncation, reason = "usize has 64 bits on both architectures")]
        insn::prefetch(self.mapping.base().wrapping_add(offset as usize));
    }

    #[inline]
    fn prefetch_read(&self, offset: u64) {
        // As in `prefetch`.
        #[expect(clippy::cast_possible_truncation, reason = "usize has 64 bits on both architectures")]
        insn::prefetch_read(self.mapping.base().wrapping_add(offset as usize));
    }

    fn populate(&self, offset: u64, len_bytes: u64) {
        // A hint: without the pages, the stores have page faults.
        drop(self.populate_range(offset..offset.saturating_add(len_bytes)));
    }

    #[inline]
    fn fence(&self) -> Result<(), FenceError> {
        match &self.page_sync {
            Some(page_sync) if self.file.is_own() => page_sync.fence(&self.mapping),
            Some(_) => Err(FenceError::Inherited),
            None => {
                insn::fence();
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RegionOptions;

    #[test]
    fn file_is_not_published_after_failed_fence() {
        // Not in the directory for temporary files, which may be in memory.
        let dir = tempfile::tempdir_in(".").unwrap();
        let path = dir.path().join("data.pm");
        let created = RegionOptions::new().create_with(&path, 4096, |region| {
            assert_eq!(region.page_sync.is_some(), region.domain == Domain::Page);
            if let Some(page_sync) = &region.page_sync {
                page_sync.poison();
            }
            Ok::<_, OpenError>(())
        });
        match created {
            Ok(region) => assert_eq!(region.domain, Domain::Volatile, "no fence can fail"),
            Err(error) => {
                assert!(matches!(error, OpenError::Fence(FenceError::Poisoned)), "{error}");
                assert!(!path.exists());
            }
        }
    }

    #[test]
    fn stores_before_a_fault_are_pending() {
        let mut region = Region::anonymous(8192).unwrap();
        region.page_sync = Some(PageSync::with_page(4096));
        rustix::fs::ftruncate(region.file.fd(), 4096).unwrap();
        assert_eq!(region.try_store_nt(0, &[9; 8192]), Err(MediumFault));
        assert_eq!(region.load_u64(4088), u64::from_le_bytes([9; 8]));
        assert_eq!(region.page_sync.unwrap().pending(), [(0, 8192)]);
    }

    #[test]
    fn failed_sync_of_file_poisons_region() {
        let mut region = Region::anonymous(4096).unwrap();
        region.page_sync = Some(PageSync::new());
        region.sync_file().unwrap();
        region.persist(0, 8).unwrap();
        // A socket is a file that cannot be synced.
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        region.file = LockedFile::new(socket.into(), Path::new("socket"), true).unwrap();
        assert!(matches!(region.sync_file(), Err(OpenError::Io { operation: "fsync", .. })));
        assert_eq!(region.persist(0, 8), Err(FenceError::Poisoned));
        assert!(matches!(region.sync_file(), Err(OpenError::Fence(FenceError::Poisoned))));
    }
}
