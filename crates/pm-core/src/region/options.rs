//! How a region is to be created or opened.

use crate::insn::{FlushInsn, Insns, NtWidth, PairInsn, UnsupportedInsn};

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
    /// The caller promised that what is mapped here may be replaced.
    pub(super) address: Option<usize>,
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
            any_length: false,
            access: Access::Writable,
            mode: 0o600,
            keep_on_fork: false,
            sparse: false,
            keep_pages: false,
            address: None,
        }
    }

    /// Forces how lines are written back, also where the platform would need another way or none. With [`FlushInsn::Nothing`] a
    /// region whose domain would be [`Domain::Adr`](crate::Domain::Adr) is a [`Domain::Volatile`](crate::Domain::Volatile) one.
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

    /// Whether [`open`](Self::open) takes files whose length is no multiple of the page, 4,096 bytes: the region ends where the
    /// file does. Pools are never such files.
    #[must_use]
    pub const fn any_length(mut self, any_length: bool) -> Self {
        self.any_length = any_length;
        self
    }

    /// Opens for reading only: the seam's stores and flushes panic, and other readers are let in.
    #[must_use]
    pub const fn read_only(mut self) -> Self {
        self.access = Access::ReadOnly;
        self
    }

    /// Whether stores are to reach the file: neither [`read_only`](Self::read_only) nor [`scratch`](Self::scratch) is set.
    #[must_use]
    pub const fn is_writer(&self) -> bool {
        matches!(self.access, Access::Writable)
    }

    /// Opens so that stores change copies of pages that this process alone sees, and that are gone with the region: for
    /// looking at what a recovery would leave, for one. The file is opened for reading only, other readers are let in, and
    /// writers kept out. The region is a [`Domain::Volatile`](crate::Domain::Volatile) one and cannot grow. A page costs memory once
    /// it is stored to. On tmpfs, to read or store in a hole of the file takes a page of the file as well, and is a SIGBUS on a full file
    /// system. [`Pmem::next_data`](crate::Pmem::next_data) tells what is a hole; without /proc it takes all of the region for data.
    ///
    /// # Source
    /// mmap(2), `MAP_PRIVATE`.
    #[must_use]
    pub const fn scratch(mut self) -> Self {
        self.access = Access::Scratch;
        self
    }

    /// Leaves the mapping to children of fork(2), which share it. Without this a child does not have it, and an access of its
    /// ends it: a second writer that no lock keeps out would destroy what the first one does. A child that has the mapping may read
    /// it, or put something else in its place, and must not store to it nor drop the region. A child may not
    /// [grow](crate::Region::grow) or [sync](crate::Region::sync_file) it, fence it in the page domain, or open its pool for writing.
    ///
    /// What hides a root or a header that is being changed is in ordinary memory, of which a child has a copy. If the parent changes
    /// roots after the fork, or was changing them at that moment, a child may fail to find a root that is always there, or may find it
    /// damaged or not durable. The same holds for the header if the parent extends its pool. A child waits for no thread of its parent.
    ///
    /// # Source
    /// madvise(2), `MADV_DONTFORK`.
    #[must_use]
    pub const fn keep_on_fork(mut self) -> Self {
        self.keep_on_fork = true;
        self
    }

    /// Whether a file is left with holes where nothing was stored yet. It takes only the space that it needs then. A store to a
    /// hole, or to a block that the file shares with a copy, is a SIGBUS on a full file system. Unless this is said, a file is allocated
    /// as a whole when it is created, opened or grown, where the file system can be asked to: ramfs and some network file systems
    /// cannot. Blocks that the file shares with a copy are copied too, where the file system can; a copy that is made while it is open, as
    /// cp(1) does on XFS and btrfs, shares again.
    ///
    /// On btrfs a file that was created here is written in place (`chattr +C`) until a snapshot or a copy shares its blocks, and has no
    /// checksums of its data. Any other file there needs new blocks for each write-back, so that it is like a sparse one; and so does every file
    /// before Linux 6.17, which looks for free space before it looks whether it needs any.
    ///
    /// On tmpfs a load from a hole takes space as well, even if the file is open for reading only, and is a SIGBUS on a full file system.
    /// [`Pmem::try_load`](crate::Pmem::try_load) finds zeroes there, and [`Pmem::next_data`](crate::Pmem::next_data) tells what is a hole.
    #[must_use]
    pub const fn sparse(mut self, sparse: bool) -> Self {
        self.sparse = sparse;
        self
    }

    /// Whether opening keeps what the page cache has of an ordinary file, and for writing writes it back again. Without this it
    /// drops it, and what an earlier process stored is lost if its write-back failed. That is for a program that takes over the
    /// duties of a process that was killed and had promised to write back what it had accepted: see
    /// [`poison_if_writes_were_lost`](crate::Region::poison_if_writes_were_lost). It costs the writing of all pages that are in
    /// the cache. Opened for reading, the file is left as it is: what is read may not be durable, and the next writer can still
    /// keep it.
    ///
    /// An opening that is told of a failed write-back marks the file, by the extended attribute `user.pm.lost_writes`, where the file
    /// system has those, and the process may set them. An opening for reading that keeps the pages does not ask. Later openings that keep
    /// the pages learn from the mark that writes may be lost, until an opening for writing that does not keep them removes it. What the
    /// kernel itself forgets is in no mark: it may evict the inode of a file that no process has open, and its failed write-back.
    #[must_use]
    pub const fn keep_pages(mut self, keep_pages: bool) -> Self {
        self.keep_pages = keep_pages;
        self
    }

    /// Maps at this address, in the place of whatever is mapped there: for the child of a `fork`, where pointers into a region
    /// must lead into a copy of it.
    ///
    /// # Safety
    /// What is mapped there, as long as the region will be, is the caller's to replace; nothing uses it any more that is not to find
    /// the new region there. These options are used for one region.
    #[must_use]
    pub const unsafe fn at_address(mut self, address: usize) -> Self {
        self.address = Some(address);
        self
    }

    /// Permission bits of a created file, before the umask; 0600 unless said.
    #[must_use]
    pub const fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }
}
