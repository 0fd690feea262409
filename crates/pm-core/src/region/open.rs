//! Creating and opening regions.

use super::file::{self, UnbornFile};
use super::mapping::Mapping;
use super::medium::{self, Medium};
use super::{OpenError, Region};
use crate::Domain;
use crate::insn::{FlushInsn, Insns, NtWidth, PairInsn, UnsupportedInsn};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Whether to ask for huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum HugePages {
    /// Ask; take ordinary pages where there are none.
    #[default]
    Try,
    /// Do not ask.
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
    insns: Insns,
    flush_forced: bool,
    huge_pages: HugePages,
    populate: bool,
    access: Access,
    mode: u32,
}

/// What stores to a region do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// They panic.
    ReadOnly,
    /// They change pages of this process alone.
    Scratch,
    /// They change what is mapped.
    Writable,
}

impl Default for RegionOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl RegionOptions {
    /// Writable, with the best instructions that the CPU has, huge pages where offered.
    #[must_use]
    pub fn new() -> Self {
        Self {
            insns: Insns::detect(),
            flush_forced: false,
            huge_pages: HugePages::Try,
            populate: false,
            access: Access::Writable,
            mode: 0o600,
        }
    }

    /// Forces how lines are written back, also where the platform would need another way or none.
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
    /// When the CPU lacks it.
    pub fn nt_width(mut self, width: NtWidth) -> Result<Self, UnsupportedInsn> {
        self.insns = self.insns.with_nt_width(width)?;
        Ok(self)
    }

    /// Forces how pairs of words are stored in one piece.
    ///
    /// # Errors
    /// When the CPU lacks the instruction, or does not promise that it is atomic.
    pub fn pair_insn(mut self, insn: PairInsn) -> Result<Self, UnsupportedInsn> {
        self.insns = self.insns.with_pair(insn)?;
        Ok(self)
    }

    /// Whether to ask for huge pages.
    #[must_use]
    pub const fn huge_pages(mut self, huge_pages: HugePages) -> Self {
        self.huge_pages = huge_pages;
        self
    }

    /// Whether to fault every page in at once: opening takes longer, first accesses do not.
    #[must_use]
    pub const fn populate(mut self, populate: bool) -> Self {
        self.populate = populate;
        self
    }

    /// Opens for reading only: the seam's stores and flushes panic, and other readers are let in.
    #[must_use]
    pub const fn read_only(mut self) -> Self {
        self.access = Access::ReadOnly;
        self
    }

    /// Opens so that stores change copies of pages that this process alone sees, and that are gone with the region: for
    /// looking at what a recovery would leave, for one. The file is opened for reading only, other readers are let in, and
    /// writers kept out. The region is a [`Domain::Volatile`] one and cannot grow. A page costs memory once it is stored to.
    ///
    /// # Source
    /// mmap(2), `MAP_PRIVATE`.
    #[must_use]
    pub const fn scratch(mut self) -> Self {
        self.access = Access::Scratch;
        self
    }

    /// Permission bits of a created file, before the umask; 0600 unless said.
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

    /// Creates a file of `len_bytes` zero bytes at `path`, lets `prepare` write to it, and gives it its name.
    ///
    /// # Errors
    /// When the path exists, the size is zero or no multiple of the page, or the system says no. Nothing is left
    /// behind then.
    ///
    /// # Durability
    /// A crash leaves either no file at `path` or the whole of it, with everything that `prepare` made durable: the file
    /// is nameless until then.
    pub fn create_with<E: From<OpenError>>(
        &self,
        path: impl AsRef<Path>,
        len_bytes: u64,
        prepare: impl FnOnce(&Region) -> Result<(), E>,
    ) -> Result<Region, E> {
        let path = path.as_ref();
        check_size(len_bytes, 4096)?;
        let mut unborn = UnbornFile::new(path, len_bytes, self.mode)?;
        let (known, multiple_bytes) =
            medium::of_file_system(unborn.file()).map_err(OpenError::from_errno(path, "statfs"))?;
        check_size(len_bytes, multiple_bytes)?;
        let file = unborn.file().try_clone().map_err(|e| io_error(path, "dup", &e))?;
        let writable = Self { access: Access::Writable, ..self.clone() };
        let region = writable.map(file, path, len_bytes, known)?;
        prepare(&region)?;
        unborn.publish()?;
        Ok(region)
    }

    /// Opens an existing file, or a device-dax, in its whole length. Holes in a file that is opened for writing are filled,
    /// for a store to a hole could find the file system full.
    ///
    /// # Errors
    /// When there is nothing to map at `path`, somebody else has it open, there is no space for its holes, it is a device-dax to
    /// be opened as [`scratch`](Self::scratch), or the system says no.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Region, OpenError> {
        let path = path.as_ref();
        let stat = rustix::fs::stat(path).map_err(OpenError::from_errno(path, "stat"))?;
        if let Some(kind) = medium::unmappable_kind(&stat) {
            return Err(OpenError::NotMappable { path: path.to_path_buf(), kind });
        }
        if rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::CharacterDevice {
            let dir = medium::device_dax_dir(&stat).ok_or_else(|| OpenError::NotMappable {
                path: path.to_path_buf(),
                kind: "character device",
            })?;
            let (len_bytes, align_bytes) =
                medium::device_dax_geometry(&dir).map_err(|e| io_error(path, "reading sysfs", &e))?;
            check_size(len_bytes, align_bytes)?;
            if self.access == Access::Scratch {
                return Err(OpenError::NoScratch { path: path.to_path_buf() });
            }
            let file = file::open(path, self.is_writer())?;
            return self.map(file, path, len_bytes, Some(Medium::DeviceDax));
        }
        let file = file::open(path, self.is_writer())?;
        // The size under the lock: before it, a creator or a growing writer may have been at work.
        let stat = rustix::fs::fstat(&file).map_err(OpenError::from_errno(path, "stat"))?;
        let len_bytes = u64::try_from(stat.st_size).map_err(|_| OpenError::ZeroSize)?;
        let (known, multiple_bytes) =
            medium::of_file_system(&file).map_err(OpenError::from_errno(path, "statfs"))?;
        check_size(len_bytes, multiple_bytes)?;
        // On tmpfs the blocks of a file are its pages, and nothing else: to count them is enough. Asked to allocate what is there,
        // it looks at every page, and zeroes those that nobody has touched yet: seconds, for some gigabytes.
        let allocated_bytes = u64::try_from(stat.st_blocks).map_or(0, |blocks| blocks.saturating_mul(512));
        let is_whole = known == Some(Medium::Tmpfs) && allocated_bytes >= len_bytes;
        if self.is_writer() && !is_whole {
            file::fill_holes(&file, path, len_bytes)?;
        }
        self.map(file, path, len_bytes, known)
    }

    /// Makes a region of anonymous memory (memfd) of `len_bytes`: gone when the process ends.
    ///
    /// # Errors
    /// When the size is zero or no multiple of 4,096 bytes, or memory is short.
    pub fn anonymous(&self, len_bytes: u64) -> Result<Region, OpenError> {
        let path = Path::new("(anonymous memory)");
        check_size(len_bytes, 4096)?;
        let file = rustix::fs::memfd_create("pm-core", MemfdFlags::CLOEXEC)
            .map_err(OpenError::from_errno(path, "memfd_create"))?;
        file::allocate(&file, path, 0, len_bytes)?;
        self.map(file, path, len_bytes, Some(Medium::Tmpfs))
    }

    /// Whether stores are to reach the file.
    fn is_writer(&self) -> bool {
        self.access == Access::Writable
    }

    /// Maps `file`, finds out its medium if it is not `known`, and fits the instructions to the domain.
    fn map(
        &self,
        file: OwnedFd,
        path: &Path,
        len_bytes: u64,
        known: Option<Medium>,
    ) -> Result<Region, OpenError> {
        let len = usize::try_from(len_bytes)
            .map_err(|_| OpenError::NoSpace { path: path.to_path_buf(), len_bytes })?;
        let (mapping, medium) =
            self.map_pages(&file, len, known).map_err(OpenError::from_errno(path, "mmap"))?;
        let domain = match medium {
            _ if self.access == Access::Scratch => Domain::Volatile,
            Medium::DaxFile | Medium::DeviceDax => {
                medium::dax_domain(&rustix::fs::fstat(&file).map_err(OpenError::from_errno(path, "stat"))?)
            }
            Medium::Tmpfs | Medium::Hugetlbfs => Domain::Volatile,
            Medium::File => Domain::Page,
        };
        let insns = if domain == Domain::Eadr && !self.flush_forced {
            self.insns.with_flush(FlushInsn::Nothing).expect("no instruction is always to be had")
        } else {
            self.insns
        };
        Ok(Region::from_parts(mapping, file, path.to_path_buf(), self.access, medium, domain, insns))
    }

    fn map_pages(
        &self,
        file: impl AsFd,
        len: usize,
        known: Option<Medium>,
    ) -> Result<(Mapping, Medium), Errno> {
        let is_stored_to = self.access != Access::ReadOnly;
        let map = |flags| Mapping::new(file.as_fd(), len, is_stored_to, flags);
        if self.access == Access::Scratch {
            // Memory for the copies is not set aside: there are as many pages as the file has, and few are stored to. A DAX file
            // is not told from another here, and need not be, for its memory is not stored to.
            // Only huge pages are: where those run out, a store is a SIGBUS.
            let reserve =
                if known == Some(Medium::Hugetlbfs) { MapFlags::empty() } else { MapFlags::NORESERVE };
            let mapping = map(MapFlags::PRIVATE | reserve)?;
            return Ok((mapping, known.unwrap_or(Medium::File)));
        }
        let (mapping, medium) = match known {
            Some(medium) => (map(MapFlags::SHARED)?, medium),
            // MAP_SYNC makes the block map durable with the page fault that shows it; only DAX can promise that.
            // Where a kernel or a file system cannot, it must refuse, which is what SHARED_VALIDATE is for.
            None => match map(MapFlags::SHARED_VALIDATE | MapFlags::SYNC) {
                Ok(mapping) => (mapping, Medium::DaxFile),
                Err(Errno::OPNOTSUPP | Errno::INVAL) => (map(MapFlags::SHARED)?, Medium::File),
                Err(errno) => return Err(errno),
            },
        };
        if self.huge_pages == HugePages::Try && medium == Medium::Tmpfs {
            // DAX and hugetlbfs choose by themselves.
            advise_if_known(&mapping, Advice::LinuxHugepage)?;
        }
        if self.populate {
            // After the advice above, which holds for pages to come only.
            let access = if is_stored_to { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
            advise_if_known(&mapping, access)?;
        }
        Ok((mapping, medium))
    }
}

/// Gives advice that older kernels, and kernels built without huge pages, answer by INVAL: it is only advice.
fn advise_if_known(mapping: &Mapping, advice: Advice) -> Result<(), Errno> {
    match mapping.advise(advice) {
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(errno) => Err(errno),
    }
}

pub(super) const fn check_size(len_bytes: u64, multiple_bytes: u64) -> Result<(), OpenError> {
    if len_bytes == 0 {
        return Err(OpenError::ZeroSize);
    }
    if !len_bytes.is_multiple_of(multiple_bytes) {
        return Err(OpenError::SizeNotMultiple { len_bytes, multiple_bytes });
    }
    Ok(())
}

fn io_error(path: &Path, operation: &'static str, error: &std::io::Error) -> OpenError {
    let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
    OpenError::Io { path: PathBuf::from(path), operation, errno }
}
