//! Options of regions, and how regions are created and opened with them.

use super::blocks;
use super::lock::LockedFile;
use super::mapping::{Access, Mapping, Sharing};
use super::medium::{self, Medium};
use super::new_file::NewFile;
use super::{OpenError, Region, file, reread};
use crate::insn::{FlushInsn, Insns, NtWidth, PairInsn, UnsupportedInsn};
use crate::{Domain, Pmem};
use rustix::fs::{MemfdFlags, Stat};
use rustix::io::Errno;
use rustix::mm::Advice;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Whether to request huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum HugePages {
    /// Request them; use ordinary pages if no huge pages are available.
    #[default]
    Try,
    /// Do not request them.
    Never,
}

/// How to create or open a region.
///
/// ```
/// use pm_core::{Pmem, RegionOptions};
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("data.pm");
/// let region = RegionOptions::new().create(&path, 1 << 20)?;
/// println!("{}: {} ({})", path.display(), region.medium(), region.domain().promise());
/// # Ok::<(), pm_core::OpenError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RegionOptions {
    pub(super) insns: Insns,
    pub(super) flush_forced: bool,
    pub(super) huge_pages: HugePages,
    pub(super) populate: bool,
    pub(super) any_length: bool,
    pub(super) access: Access,
    pub(super) mode: u32,
    pub(super) keep_on_fork: bool,
    pub(super) sparse: bool,
    pub(super) keep_pages: bool,
    /// The address to map at. The caller of `at_address` has allowed the mapping there to be replaced.
    pub(super) address: Option<usize>,
    /// Addresses are reserved for a region of this length.
    pub(super) reserved_bytes: u64,
}

impl Default for RegionOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl RegionOptions {
    /// Writable, with the best instructions of the CPU, and huge pages if available.
    #[must_use]
    pub fn new() -> Self {
        Self {
            insns: Insns::detect(),
            flush_forced: false,
            huge_pages: HugePages::Try,
            populate: false,
            any_length: false,
            access: Access::Writable,
            mode: 0o600,
            keep_on_fork: false,
            sparse: false,
            keep_pages: false,
            address: None,
            reserved_bytes: 0,
        }
    }

    /// Forces the instruction for flushes, even if the platform needs a different instruction or no flushes. With [`FlushInsn::Nothing`], a region
    /// that would have the domain [`Domain::Adr`](crate::Domain::Adr) has [`Domain::Volatile`](crate::Domain::Volatile).
    ///
    /// # Errors
    /// When the CPU lacks the instruction.
    pub fn flush_insn(mut self, insn: FlushInsn) -> Result<Self, UnsupportedInsn> {
        self.insns = self.insns.with_flush(insn)?;
        self.flush_forced = true;
        Ok(self)
    }

    /// Forces the width of non-temporal stores.
    ///
    /// # Errors
    /// When the CPU lacks stores of this width.
    pub fn nt_width(mut self, width: NtWidth) -> Result<Self, UnsupportedInsn> {
        self.insns = self.insns.with_nt_width(width)?;
        Ok(self)
    }

    /// Forces the instruction that stores pairs of words atomically.
    ///
    /// # Errors
    /// When the CPU lacks the instruction, or does not document it as atomic.
    pub fn pair_insn(mut self, insn: PairInsn) -> Result<Self, UnsupportedInsn> {
        self.insns = self.insns.with_pair(insn)?;
        Ok(self)
    }

    /// Whether to request huge pages.
    #[must_use]
    pub const fn huge_pages(mut self, huge_pages: HugePages) -> Self {
        self.huge_pages = huge_pages;
        self
    }

    /// Whether creating or opening a region faults in every page. That makes opening slower and first accesses faster.
    #[must_use]
    pub const fn populate(mut self, populate: bool) -> Self {
        self.populate = populate;
        self
    }

    /// Whether [`open`](Self::open) accepts files whose length is not a multiple of the page size of 4,096 bytes. The region ends where the file
    /// ends. The length of a pool is always a multiple.
    #[must_use]
    pub const fn any_length(mut self, any_length: bool) -> Self {
        self.any_length = any_length;
        self
    }

    /// Opens for reading only: stores and flushes panic, and other readers can open the file too.
    #[must_use]
    pub const fn read_only(mut self) -> Self {
        self.access = Access::ReadOnly;
        self
    }

    /// Whether stores change the file: neither [`read_only`](Self::read_only) nor [`scratch`](Self::scratch) is set.
    #[must_use]
    pub const fn is_writer(&self) -> bool {
        matches!(self.access, Access::Writable)
    }

    /// Opens with copy-on-write: stores change copies of pages that only this process sees and that are dropped with the region. This is useful, for
    /// example, to inspect the result of a recovery. The file is opened for reading only; other readers can open it too, but no writer can. The
    /// domain of the region is [`Domain::Volatile`](crate::Domain::Volatile), and it cannot grow. A page takes memory only after a store to it. On
    /// tmpfs, a load or store in a hole of the file also allocates a page of the file, and raises SIGBUS on a full file system.
    /// [`Pmem::next_data`](crate::Pmem::next_data) reports holes; without /proc it reports all of the region as data.
    ///
    /// # Source
    /// mmap(2), `MAP_PRIVATE`.
    #[must_use]
    pub const fn scratch(mut self) -> Self {
        self.access = Access::Scratch;
        self
    }

    /// Children of fork(2) inherit the mapping and share it. Without this option a child does not inherit the mapping, because the lock does not
    /// exclude a child as a second writer; an access to its addresses ends the child with SIGSEGV. (A [scratch](Self::scratch) mapping is always
    /// inherited, as a copy.) A child that has the mapping may read or replace it, but must not store to it or drop the region. It cannot
    /// [grow](crate::Region::grow), [sync](crate::Region::sync_file) or (in the page domain) fence the region, or open its pool for writing.
    ///
    /// While a root or a header changes, it is hidden from readers by state in ordinary memory, of which a child has a separate copy. If the parent
    /// changes roots during or after the fork, the child may miss a root that exists throughout, or find it corrupted or not durable. The same holds
    /// for the header if the parent extends its pool. A child never waits for a thread of its parent.
    ///
    /// # Source
    /// madvise(2), `MADV_DONTFORK`.
    #[must_use]
    pub const fn keep_on_fork(mut self) -> Self {
        self.keep_on_fork = true;
        self
    }

    /// Whether the file may have holes, which get blocks only when they are stored to. Such a file takes no more space than needed. A store to a
    /// hole, or to a block that the file shares with a copy, raises SIGBUS on a full file system. Without this option a file is allocated completely
    /// when it is created, opened for writing or grown, except on ramfs and some network file systems. Blocks that the file shares with a copy are
    /// copied too, if supported; a copy that is made while the file is open, for example by cp(1) on XFS and btrfs, shares blocks again.
    ///
    /// On btrfs a file that this crate created is written in place (`chattr +C`) until a snapshot or a copy shares its blocks, and has no checksums
    /// of its data. Any other file on btrfs needs new blocks for each write-back, even if it is not sparse. Before Linux 6.17, a write-back needs
    /// free space even if it needs no new blocks, because btrfs checks for free space first.
    ///
    /// On tmpfs a load from a hole allocates space too, even if the file is open for reading only, and raises SIGBUS on a full file system.
    /// [`Pmem::try_load`](crate::Pmem::try_load) returns zeroes there, and [`Pmem::next_data`](crate::Pmem::next_data) reports holes.
    #[must_use]
    pub const fn sparse(mut self, sparse: bool) -> Self {
        self.sparse = sparse;
        self
    }

    /// Whether opening an ordinary file keeps its pages in the page cache. Without this option, opening drops the pages, and stores of an earlier
    /// process are lost if their write-back failed. With it, opening for writing writes all cached pages back again, even those that the kernel has
    /// marked clean after a failed write-back. Use it to take over from a killed process, together with
    /// [`poison_if_writes_were_lost`](crate::Region::poison_if_writes_were_lost). Opening for reading with this option does not change the page
    /// cache: data that is read may not be durable, and a later open for writing can still keep the pages.
    ///
    /// The kernel reports a failed write-back once. An open that receives the report marks the file with the extended attribute
    /// `user.pm.lost_writes`, if the file system has attributes and the process may set them. (An open for reading with this option does not sync,
    /// and receives no report.) A later open for writing with this option finds the mark; an open for writing without it removes the mark. The kernel
    /// may evict the inode of a file that no process has open, and forget the failed write-back: no open then receives a report.
    #[must_use]
    pub const fn keep_pages(mut self, keep_pages: bool) -> Self {
        self.keep_pages = keep_pages;
        self
    }

    /// Maps the region at this address, and replaces any mapping there. This is for a child of fork(2) whose pointers into a region must point into a
    /// copy of the region.
    ///
    /// # Safety
    /// The caller owns every mapping that the region replaces, over the region's whole length. All code that still uses these addresses expects the
    /// new region there. The options must be used for one region only.
    #[must_use]
    pub const unsafe fn at_address(mut self, address: usize) -> Self {
        self.address = Some(address);
        self
    }

    /// Reserves addresses for a region of `len_bytes`, up to which it can [grow in place](crate::Pmem::grow_in_place) while threads use it. This takes no
    /// memory. It has no effect on a region that cannot grow (one that is read-only, [scratch](Self::scratch), a device-dax), on huge pages (hugetlbfs),
    /// and together with [`at_address`](Self::at_address).
    #[must_use]
    pub const fn reserve(mut self, len_bytes: u64) -> Self {
        self.reserved_bytes = len_bytes;
        self
    }

    /// Permission bits of a created file, before the umask. The default is 0600.
    #[must_use]
    pub const fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// Creates a file of `len_bytes` zero bytes at `path`.
    ///
    /// # Errors
    /// As [`create_with`](Self::create_with).
    ///
    /// # Durability
    /// As [`create_with`](Self::create_with).
    pub fn create(&self, path: impl AsRef<Path>, len_bytes: u64) -> Result<Region, OpenError> {
        self.create_with(path, len_bytes, |_| Ok(()))
    }

    /// Creates a file of `len_bytes` zero bytes at `path`, lets `prepare` write to it, and then gives the file its name.
    ///
    /// # Errors
    /// When the path exists, the size is zero or not a multiple of the page size, `prepare` or one of its fences fails, or a system call fails. No
    /// new file remains.
    ///
    /// # Durability
    /// A crash leaves no file at `path`, or the complete file with everything that `prepare` made durable: the file gets its name only after that.
    pub fn create_with<E: From<OpenError>>(
        &self,
        path: impl AsRef<Path>,
        len_bytes: u64,
        prepare: impl FnOnce(&Region) -> Result<(), E>,
    ) -> Result<Region, E> {
        let path = path.as_ref();
        file::check_size(len_bytes, 4096)?;
        let mut new_file = NewFile::new(path, self.mode)?;
        let (known, multiple_bytes) =
            medium::of_file_system(new_file.file()).map_err(OpenError::from_errno(path, "statfs"))?;
        file::check_size(len_bytes, multiple_bytes)?;
        new_file.extend(len_bytes, self.sparse)?;
        let file = new_file.file().try_clone().map_err(|e| io_error(path, "dup", &e))?;
        let writable = Self { access: Access::Writable, ..self.clone() };
        let region = writable.map(LockedFile::new(file, path, true)?, path, len_bytes, known, false)?;
        writable.populate_pages(&region)?;
        prepare(&region)?;
        // Synced through the region, which records whether a fence of `prepare` has failed.
        region.sync_file()?;
        new_file.publish()?;
        Ok(region)
    }

    /// Opens an existing file, or a device-dax, over its full length. Holes in a file that is opened for writing are filled, unless the option
    /// [sparse](Self::sparse) is set, because a store to a hole needs a block of the file system.
    ///
    /// # Errors
    /// * `path` is missing, cannot be mapped, or is removed during the call.
    /// * The file is open elsewhere. A child that a killed process has forked keeps the file open until the child ends or executes another program.
    /// * There is no space for the holes of the file.
    /// * A device-dax is to be opened as [`scratch`](Self::scratch).
    /// * In the page domain, stores of an earlier process cannot be written back.
    /// * A system call fails.
    ///
    /// A device-dax that is open in another container through another device node is not detected: only a node, and the sysfs of a network
    /// namespace, can be locked. Containers that share a device must share its node, with a bind mount.
    ///
    /// # Durability
    /// In the page domain, data read from a region that was opened for writing is durable: stores of an earlier process are written back, and pages
    /// lost by a failed write-back are read from the medium (or, with [`keep_pages`](Self::keep_pages), written back). This costs a write-back, and
    /// drops the file's pages from the cache. For a region opened for reading, the same holds except for pages that another program has mapped. In
    /// the other domains, data that was stored and not flushed may still be only in the CPU caches. Code that relies on such data must flush it
    /// first, as [`Pool`](crate::Pool) does. For a file without a name, to which a path in /proc can lead, see [`open_file`](Self::open_file).
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Region, OpenError> {
        self.open_with(path, |_| Ok(()))
    }

    /// Like [`open`](Self::open), but passes the region to `check` before its holes are filled or its pages populated: a file that `check` refuses
    /// is unchanged. `check` must not store to it, because the holes have no blocks.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), and that of `check`.
    ///
    /// # Durability
    /// As [`open`](Self::open).
    pub fn open_with<E: From<OpenError>>(
        &self,
        path: impl AsRef<Path>,
        check: impl FnOnce(&Region) -> Result<(), E>,
    ) -> Result<Region, E> {
        let path = path.as_ref();
        let (found, stat) = file::stat_path(path)?;
        let region = self.open_found(&found, &stat, path)?;
        check(&region)?;
        self.fill(&region)?;
        Ok(region)
    }

    /// Opens the file that was found at a path.
    fn open_found(&self, found: &OwnedFd, stat: &Stat, path: &Path) -> Result<Region, OpenError> {
        if let Some(kind) = medium::unmappable_kind(stat) {
            return Err(OpenError::NotMappable { path: path.to_path_buf(), kind });
        }
        if rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::CharacterDevice {
            let dir = medium::device_dax_dir(stat).ok_or_else(|| OpenError::NotMappable {
                path: path.to_path_buf(),
                kind: "character device",
            })?;
            let (len_bytes, align_bytes) =
                medium::device_dax_geometry(&dir).map_err(|e| io_error(path, "reading sysfs", &e))?;
            file::check_size(len_bytes, align_bytes)?;
            if self.access == Access::Scratch {
                return Err(OpenError::NoScratch { path: path.to_path_buf() });
            }
            let file = file::open(found, path, self.is_writer())?;
            let file =
                LockedFile::new(file, path, self.is_writer())?.with_device(&dir, path, self.is_writer())?;
            return self.map(file, path, len_bytes, Some(Medium::DeviceDax), false);
        }
        let file = LockedFile::new(file::open(found, path, self.is_writer())?, path, self.is_writer())?;
        if file::has_no_name(file.fd(), path)? {
            // The file was removed before it was locked, for example by a process that failed to create it, so stores to it would be lost. But a path
            // in /proc can denote an open file that never had a name.
            let (_, now) = file::stat_path(path)?;
            if (now.st_dev, now.st_ino) != (stat.st_dev, stat.st_ino) {
                return Err(OpenError::NotFound { path: path.to_path_buf() });
            }
        }
        self.map_file(file, path)
    }

    /// Like [`open`](Self::open), for a file that is already open, in any mode, with or without a name. `path` names the file in messages. A file
    /// without a name does not survive a crash of the machine, so the domain of its region is [`Domain::Volatile`], even on a DAX file system.
    /// Giving the file a name does not change the domain; opening it again does.
    ///
    /// The file is opened again through /proc, and `file` is closed: a lock belongs to an open file description, and that of `file` may belong
    /// to an open region already.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), and an error if /proc is not mounted.
    pub fn open_file(&self, file: OwnedFd, path: impl AsRef<Path>) -> Result<Region, OpenError> {
        let path = path.as_ref();
        let stat = rustix::fs::fstat(&file).map_err(OpenError::from_errno(path, "stat"))?;
        if let Some(kind) = medium::unmappable_kind(&stat) {
            return Err(OpenError::NotMappable { path: path.to_path_buf(), kind });
        }
        let file = LockedFile::new(file::open(&file, path, self.is_writer())?, path, self.is_writer())?;
        let region = self.map_file(file, path)?;
        self.fill(&region)?;
        Ok(region)
    }

    /// Maps a regular file that is locked.
    fn map_file(&self, file: LockedFile, path: &Path) -> Result<Region, OpenError> {
        // The size is read under the lock: until then, a process that creates or writes the file may still change the size.
        let stat = rustix::fs::fstat(file.fd()).map_err(OpenError::from_errno(path, "stat"))?;
        let len_bytes = u64::try_from(stat.st_size).map_err(|_| OpenError::ZeroSize)?;
        let (known, multiple_bytes) =
            medium::of_file_system(file.fd()).map_err(OpenError::from_errno(path, "statfs"))?;
        let is_page = multiple_bytes <= 4096;
        file::check_size(len_bytes, if self.any_length && is_page { 1 } else { multiple_bytes })?;
        let nameless = file::has_no_name(file.fd(), path)?;
        let mut region = self.map(file, path, len_bytes, known, nameless)?;
        region.reread(self.keep_pages)?;
        Ok(region)
    }

    /// The last step of opening: fills the holes of a file that was opened for writing, populates its pages if requested, and, unless the pages were
    /// kept, removes the mark of lost writes: the lost pages have been dropped.
    fn fill(&self, region: &Region) -> Result<(), OpenError> {
        let (file, path, len_bytes) = (region.locked_file().fd(), region.path(), region.len_bytes());
        if region.access() == Access::Writable && region.medium() != Medium::DeviceDax && !self.sparse {
            // On tmpfs the blocks of a file are its pages: if the count equals the length, there are no holes. Before the count is read, setting the
            // length frees pages past the end. fallocate(2) would visit every page and zero untouched ones, which takes seconds for a few gigabytes.
            if region.medium() == Medium::Tmpfs {
                file::set_length(file, path, len_bytes)?;
            }
            let stat = rustix::fs::fstat(file).map_err(OpenError::from_errno(path, "stat"))?;
            let allocated_bytes =
                u64::try_from(stat.st_blocks).map_or(0, |blocks| blocks.saturating_mul(512));
            let is_whole = region.medium() == Medium::Tmpfs && allocated_bytes >= len_bytes;
            if !is_whole {
                blocks::allocate(file, path, 0..len_bytes)?;
            }
        }
        self.populate_pages(region)?;
        // A writer's open drops pages only in the page domain.
        if region.domain() == Domain::Page && region.access() == Access::Writable && !self.keep_pages {
            reread::unmark(file, path)?;
        }
        Ok(())
    }

    /// Creates a region of `len_bytes` of anonymous memory (memfd). It does not outlive the process.
    ///
    /// # Errors
    /// When the size is zero or not a multiple of 4,096 bytes, or there is not enough memory.
    pub fn anonymous(&self, len_bytes: u64) -> Result<Region, OpenError> {
        let path = Path::new("(anonymous memory)");
        file::check_size(len_bytes, 4096)?;
        let file = rustix::fs::memfd_create("pm-core", MemfdFlags::CLOEXEC)
            .map_err(OpenError::from_errno(path, "memfd_create"))?;
        blocks::extend(&file, path, 0..len_bytes, false)?;
        let file = LockedFile::new(file, path, true)?;
        let region = self.map(file, path, len_bytes, Some(Medium::Tmpfs), true)?;
        self.populate_pages(&region)?;
        Ok(region)
    }

    /// Maps `file`, detects its medium if it is not `known`, and chooses the instructions for the domain. A `nameless` file is deleted when the
    /// process ends.
    fn map(
        &self,
        file: LockedFile,
        path: &Path,
        len_bytes: u64,
        known: Option<Medium>,
        nameless: bool,
    ) -> Result<Region, OpenError> {
        let len = usize::try_from(len_bytes)
            .map_err(|_| OpenError::NoSpace { path: path.to_path_buf(), len_bytes })?;
        let (mapping, medium) =
            self.map_pages(file.fd(), len, known).map_err(OpenError::from_errno(path, "mmap"))?;
        let can_grow = self.access == Access::Writable && self.address.is_none();
        let mapping = match medium {
            Medium::DeviceDax | Medium::Hugetlbfs => mapping,
            _ if can_grow && self.reserved_bytes > len_bytes => {
                let reserved = usize::try_from(self.reserved_bytes).unwrap_or(usize::MAX);
                mapping
                    .with_reserve(file.fd().as_fd(), reserved)
                    .map_err(OpenError::from_errno(path, "mmap"))?
            }
            _ => mapping,
        };
        // A region that does not survive a crash needs no write-back.
        let is_kept = self.access != Access::Scratch && !nameless;
        let domain = if is_kept { domain_of(medium, file.fd(), path)? } else { Domain::Volatile };
        let insns = if domain == Domain::Eadr && !self.flush_forced {
            self.insns.with_flush(FlushInsn::Nothing).expect("`FlushInsn::Nothing` is always supported")
        } else {
            self.insns
        };
        let domain = domain_with(insns.flush(), domain);
        let mut region =
            Region::from_parts(mapping, file, path.to_path_buf(), self.access, medium, domain, insns);
        region.sparse = self.sparse;
        Ok(region)
    }

    fn map_pages(
        &self,
        file: impl AsFd,
        len: usize,
        known: Option<Medium>,
    ) -> Result<(Mapping, Medium), Errno> {
        let writable = self.access != Access::ReadOnly;
        let (file, address) = (file.as_fd(), self.address.map(core::ptr::without_provenance_mut));
        let map = |sharing| match address {
            // SAFETY: the caller of `at_address` has allowed it.
            Some(address) => unsafe { Mapping::at(address, file, len, writable, sharing) },
            None => Mapping::new(file, len, writable, sharing),
        };
        if self.access == Access::Scratch {
            // Memory is reserved for huge pages only: without that, a store that finds no free one raises SIGBUS. For ordinary pages a reservation
            // would count every page of the file, of which few are stored to. DAX files are not detected here, because stores do not reach the file.
            let mapping = map(Sharing::Private { is_reserved: known == Some(Medium::Hugetlbfs) })?;
            return Ok((mapping, known.unwrap_or(Medium::File)));
        }
        let (mut mapping, medium) = match known {
            Some(medium) => (map(Sharing::Shared)?, medium),
            // Only a DAX file can be mapped with `MAP_SYNC`.
            None => match map(Sharing::Synchronous) {
                Ok(mapping) => (mapping, Medium::DaxFile),
                Err(Errno::OPNOTSUPP | Errno::INVAL) => (map(Sharing::Shared)?, Medium::File),
                Err(errno) => return Err(errno),
            },
        };
        if !self.keep_on_fork {
            mapping.advise(Advice::LinuxDontFork)?;
        }
        if self.huge_pages == HugePages::Try && medium == Medium::Tmpfs {
            // DAX and hugetlbfs choose their pages themselves.
            allow_unknown(mapping.advise(Advice::LinuxHugepage))?;
        }
        if self.sparse && medium == Medium::File {
            // With this advice a fault reads one page. Read-ahead would create large folios, and a store to a folio allocates blocks for all of it.
            allow_unknown(mapping.advise(Advice::Random))?;
        }
        Ok((mapping, medium))
    }

    /// Faults in every page, if requested. Called after the other advice, which affects only later faults.
    fn populate_pages(&self, region: &Region) -> Result<(), OpenError> {
        if !self.populate {
            return Ok(());
        }
        let access =
            if region.is_writable() { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
        allow_unknown(region.mapping().advise_once(access))
            .map_err(OpenError::from_errno(region.path(), "madvise"))
    }
}

/// These functions are defined here because `RegionOptions` creates regions.
impl Region {
    /// Opens an existing file or device-dax with default options.
    ///
    /// # Errors
    /// As [`RegionOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        RegionOptions::new().open(path)
    }

    /// Creates a region of anonymous memory with default options.
    ///
    /// # Errors
    /// As [`RegionOptions::anonymous`].
    pub fn anonymous(len_bytes: u64) -> Result<Self, OpenError> {
        RegionOptions::new().anonymous(len_bytes)
    }
}

/// Ignores EINVAL, which older kernels and kernels without huge pages return: the call only gives advice.
const fn allow_unknown(answer: Result<(), Errno>) -> Result<(), Errno> {
    match answer {
        Err(Errno::INVAL) => Ok(()),
        answer => answer,
    }
}

/// The domain of a medium, for a file that a crash does not remove.
fn domain_of(medium: Medium, file: &OwnedFd, path: &Path) -> Result<Domain, OpenError> {
    Ok(match medium {
        Medium::DaxFile | Medium::DeviceDax => {
            medium::dax_domain(&rustix::fs::fstat(file).map_err(OpenError::from_errno(path, "stat"))?)
        }
        Medium::Tmpfs | Medium::Hugetlbfs => Domain::Volatile,
        Medium::File => {
            let is_volatile = medium::is_on_volatile_overlay(file);
            if is_volatile.map_err(|e| io_error(path, "reading its mount options", &e))? {
                Domain::Volatile
            } else {
                Domain::Page
            }
        }
    })
}

/// The domain that results from this flush instruction: without flushes, an ADR region is volatile, because its caches are not written back.
const fn domain_with(flush: FlushInsn, domain: Domain) -> Domain {
    match (flush, domain) {
        (FlushInsn::Nothing, Domain::Adr) => Domain::Volatile,
        (_, domain) => domain,
    }
}

fn io_error(path: &Path, operation: &'static str, error: &std::io::Error) -> OpenError {
    let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
    OpenError::Io { path: PathBuf::from(path), operation, errno }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_removed_before_lock_is_not_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.pm");
        for is_recreated in [false, true] {
            for options in
                [RegionOptions::new(), RegionOptions::new().read_only(), RegionOptions::new().scratch()]
            {
                std::fs::write(&path, [0; 4096]).unwrap();
                let (found, stat) = file::stat_path(&path).unwrap();
                std::fs::remove_file(&path).unwrap();
                if is_recreated {
                    std::fs::write(&path, [0; 4096]).unwrap();
                }
                let opened = options.open_found(&found, &stat, &path);
                assert!(matches!(opened, Err(OpenError::NotFound { .. })), "{opened:?}");
            }
        }
    }

    /// The test treats an ordinary file as if it had been mapped with `MAP_SYNC`.
    #[test]
    fn nameless_dax_file_is_volatile() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.pm");
        std::fs::write(&path, [0; 4096]).unwrap();
        for nameless in [false, true] {
            let (found, _) = file::stat_path(&path).unwrap();
            let file = LockedFile::new(file::open(&found, &path, true).unwrap(), &path, true).unwrap();
            let region =
                RegionOptions::new().map(file, &path, 4096, Some(Medium::DaxFile), nameless).unwrap();
            assert_eq!(region.domain() == Domain::Volatile, nameless, "{}", region.domain());
        }
    }

    #[test]
    fn adr_without_flushes_is_volatile() {
        assert_eq!(domain_with(FlushInsn::Nothing, Domain::Adr), Domain::Volatile);
        for domain in [Domain::Eadr, Domain::Page, Domain::Volatile] {
            assert_eq!(domain_with(FlushInsn::Nothing, domain), domain);
        }
        assert_eq!(domain_with(FlushInsn::Clflush, Domain::Adr), Domain::Adr);
    }
}
