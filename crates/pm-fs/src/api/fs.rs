//! An open file system.

use crate::api::handle::Handle;
use crate::error::FsError;
use crate::format::{KNOWN_INCOMPAT, MAGIC, ROOT, Superblock, VERSION};
use crate::maintenance::check::{self, CheckReport};
use crate::maintenance::repair::{self, RepairReport};
use crate::node::inode::{FileKind, InodeRef, NewInode, offset_of_ino};
use crate::session::open::OpenInode;
use crate::session::recovery;
use crate::session::shared::Shared;
use crate::volume::Volume;
use crate::volume::options::FsOptions;
use crate::volume::pages::Frame;
use pm_alloc::Heap;
use pm_core::protection::{Method, Protected, Protection};
use pm_core::{Pmem, Region};
use std::path::Path;
use std::sync::Arc;

/// The length of the smallest pool that a file system is created in.
pub const POOL_BYTES_MIN: u64 = 128 << 10;

/// An open file system. Threads may share it.
///
/// It need not be closed: every call is durable when it returns.
#[derive(Debug)]
pub struct Fs<P: Pmem = Region> {
    shared: Arc<Shared<P>>,
}

/// The size of a file system, and what is free: statfs(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FsStats {
    /// All pages for data, of 4,096 bytes.
    pub pages: u64,
    /// Those that are free.
    pub free_pages: u64,
    /// The bytes for metadata.
    pub metadata_bytes: u64,
}

impl Fs<Region> {
    /// Creates a file of `pool_bytes` at `path` with an empty file system in it.
    ///
    /// # Errors
    /// When the path exists, the pool is too small, or a system call fails.
    ///
    /// # Durability
    /// Durable when this returns, with the commit of one [`Heap::transaction`](pm_alloc::Heap::transaction) in the new heap. A crash before that
    /// leaves no file, a pool without a file system, or the file system.
    pub fn create(path: impl AsRef<Path>, pool_bytes: u64, options: &FsOptions) -> Result<Self, FsError> {
        let heap = Heap::create(path, pool_bytes, &heap_options(pool_bytes, options)?)?;
        Self::format_in(heap, options)
    }

    /// Opens the file system in the file or device-dax at `path`. The first change, or [`prepare`](Fs::prepare), finds the pages in use.
    ///
    /// # Errors
    /// When there is none, another process has it open, or a part that is needed is corrupted.
    ///
    /// # Durability
    /// All calls of earlier processes that have returned are durable, and those that were interrupted are whole or undone, with the recovery of
    /// [`Heap::open`]. If the options say [`read_only`](FsOptions::read_only), nothing is stored, and nothing that a killed process has left becomes
    /// durable.
    pub fn open(path: impl AsRef<Path>, options: &FsOptions) -> Result<Self, FsError> {
        Self::open_over(path, options, Ok)
    }
}

impl Fs<Protected<Region>> {
    /// As [`open`](Fs::open), over a region that is closed to stray stores of this process. Every store of the file system opens a window of the range
    /// that it stores to: those of recovery, of metadata and its log, of data, and of [maps](crate::Map). `docs/protection.md` compares the methods.
    ///
    /// A new file system is created in windows by [`format`](Fs::format) over a [`Protected`]; one that [`create`](Fs::create) makes is closed and then opened
    /// by this.
    ///
    /// # Errors
    /// As for [`open`](Fs::open). [`Protection`](FsError::Protection) when the machine or the file lacks what the method needs, and
    /// [`NothingToProtect`](FsError::NothingToProtect) when the options say [`read_only`](FsOptions::read_only): then nothing was stored.
    ///
    /// # Panics
    /// Later calls panic if the system refuses to open a window: see [`Protected`].
    ///
    /// # Durability
    /// As for [`open`](Fs::open).
    pub fn open_protected(
        path: impl AsRef<Path>,
        options: &FsOptions,
        protection: &Protection,
    ) -> Result<Self, FsError> {
        if options.read_only && protection.method() != Method::None {
            return Err(FsError::NothingToProtect);
        }
        Self::open_over(path, options, |region| Ok(Protected::new(region, protection)?))
    }
}

impl<P: Pmem> Fs<P> {
    /// As [`open`](Fs::open), over a wrapper of the region, such as [`Protected`] or [`Emulated`](pm_core::emulation::Emulated). `wrap` gets the region before
    /// anything is stored to it, so the wrapper makes every store and load from the recovery on. If the options say
    /// [`read_only`](FsOptions::read_only), the region is scratch.
    ///
    /// # Errors
    /// As for [`open`](Fs::open), and when `wrap` fails: then nothing was stored.
    ///
    /// # Durability
    /// As for [`open`](Fs::open).
    pub fn open_over(
        path: impl AsRef<Path>,
        options: &FsOptions,
        wrap: impl FnOnce(Region) -> Result<P, FsError>,
    ) -> Result<Self, FsError> {
        let heap = options.heap.clone();
        let heap = if options.read_only { heap.scratch() } else { heap };
        Self::open_in(Heap::open_over(path, &heap, wrap)?, options)
    }

    /// Creates an empty file system over a whole region.
    ///
    /// # Errors
    /// As for [`create`](Fs::create).
    ///
    /// # Durability
    /// Durable when this returns, with the commit of one [`Heap::transaction`](pm_alloc::Heap::transaction) in the new heap. A crash before that
    /// leaves no pool, a pool without a file system, or the file system.
    pub fn format(pmem: P, options: &FsOptions) -> Result<Self, FsError> {
        let pool_bytes = pmem.len_bytes();
        Self::format_in(Heap::format(pmem, &heap_options(pool_bytes, options)?)?, options)
    }

    /// Opens the file system in a region. If the options say [`read_only`](FsOptions::read_only), recovery stores to the region all the same, so that
    /// should be scratch.
    ///
    /// # Errors
    /// As for [`open`](Fs::open).
    ///
    /// # Durability
    /// As for [`open`](Fs::open), with the recovery of [`Heap::attach`].
    pub fn attach(pmem: P, options: &FsOptions) -> Result<Self, FsError> {
        Self::open_in(Heap::attach(pmem, &options.heap)?, options)
    }

    fn format_in(heap: Heap<P>, options: &FsOptions) -> Result<Self, FsError> {
        let now = (options.clock)();
        let (high, low) = heap.pool().uuid().as_u64_pair();
        let volume = Volume::new(heap, high ^ low, options);
        volume.pages.set_map(volume.pages.empty_map());
        let seed = volume.seed;
        volume.transaction(|change| {
            let dir = |parent| NewInode {
                kind: FileKind::Directory,
                mode: 0o755,
                uid: options.uid,
                gid: options.gid,
                rdev: 0,
                parent,
                nlink: 2,
            };
            let root = dir(0).create(change, now)?;
            root.set_parent(change, root.ino)?;
            let orphans = dir(0).create(change, now)?;
            let block = change.alloc()?;
            let nothing = recovery::nothing().sealed(seed, block.offset);
            let saved = change.init(block, &nothing);
            let superblock = Superblock {
                magic: MAGIC,
                version: VERSION,
                reserved_0: 0,
                features_incompat: 0,
                seed,
                root: root.ino,
                orphans: orphans.ino,
                created_ns: now,
                saved,
                reserved: [0; 21],
                crc: 0,
                reserved_1: 0,
            };
            change.set_root(&Superblock { crc: superblock.expected_crc(), ..superblock })
        })?;
        Self::open_in(volume.heap, options)
    }

    fn open_in(heap: Heap<P>, options: &FsOptions) -> Result<Self, FsError> {
        let superblock = heap.view(|view| match view.root::<Superblock>(ROOT)? {
            Some(link) => Ok(view.read(link)?),
            None => Err(FsError::NotAFileSystem),
        })?;
        if superblock.magic != MAGIC || superblock.crc != superblock.expected_crc() {
            return Err(FsError::corrupted(0, "the superblock"));
        }
        let unknown = superblock.features_incompat & !KNOWN_INCOMPAT;
        if superblock.version != VERSION || unknown != 0 {
            return Err(FsError::Unknown { version: superblock.version, features: unknown });
        }
        let volume = Volume::new(heap, superblock.seed, options);
        let root = InodeRef::find(&volume, superblock.root)?;
        let orphans = InodeRef::find(&volume, superblock.orphans)?;
        if root.ino == orphans.ino || [root, orphans].iter().any(|inode| inode.kind != FileKind::Directory) {
            return Err(FsError::corrupted(offset_of_ino(root.ino), "a directory of the superblock"));
        }
        let shared = Shared::new(volume, (root, orphans), superblock.saved, options.read_only);
        [root, orphans].iter().try_for_each(|inode| shared.persist_status(inode))?;
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Does what an open leaves to the first change: finds the pages in use, by a pass over all blocks of metadata unless the last
    /// [`close`](Self::close) has saved them, and frees the files that were open without a name. Reads do not wait for this.
    ///
    /// # Errors
    /// When a part that this needs is corrupted, among them any header of the heap: then all calls that change something return
    /// [`NoChanges`](FsError::NoChanges). When a fence fails.
    ///
    /// # Durability
    /// Durable when this returns: each step is one [`Heap::transaction`](pm_alloc::Heap::transaction). A crash before that leaves the file system as
    /// it was, without some of the files without a name.
    pub fn prepare(&self) -> Result<(), FsError> {
        self.shared.prepare().map(drop)
    }

    /// The root directory.
    pub fn root(&self) -> Handle<P> {
        Handle::new(OpenInode::root(&self.shared))
    }

    /// The file at a path, whose names are separated by slashes, from the root. `.` and `..` are no names here, and symbolic links are not followed.
    ///
    /// # Errors
    /// When a name is not found, or one before the last is no directory.
    pub fn lookup(&self, path: impl AsRef<[u8]>) -> Result<Handle<P>, FsError> {
        let names = path.as_ref().split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        names.into_iter().try_fold(self.root(), |dir, name| dir.lookup(name))
    }

    /// The size, and what is free. No page is, if [`prepare`](Self::prepare) fails because of corruption.
    ///
    /// # Errors
    /// When a fence fails.
    pub fn stats(&self) -> Result<FsStats, FsError> {
        let volume = &self.shared.volume;
        match self.shared.prepare() {
            Ok(_) | Err(FsError::Corrupted(_)) => {}
            Err(error) => return Err(error),
        }
        let heap = volume.heap.layout().chunks_start..volume.heap.space_behind().start;
        Ok(FsStats {
            pages: volume.pages.count(),
            free_pages: volume.pages.free_count(),
            metadata_bytes: heap.end - heap.start,
        })
    }

    /// The use of the pages, in frames of 2 MiB, in ascending order.
    ///
    /// # Errors
    /// As for [`prepare`](Self::prepare).
    pub fn frames(&self) -> Result<Vec<Frame>, FsError> {
        Ok(self.shared.prepare()?.pages.frames())
    }

    /// Walks through all directories, and checks that every block and every page is accounted for exactly once. Call this while nothing changes.
    pub fn check(&self) -> CheckReport {
        check::check(&self.shared)
    }

    /// Repairs what a [`check`](Self::check) finds: removes what cannot be verified, and gives files that have lost their names one in the directory
    /// `lost+found`. Pages in two files are copied.
    ///
    /// # Errors
    /// As for [`check_repairable`](Self::check_repairable), or when the file system is read only: then nothing is stored. When there is a handle to a file. When the root directory is
    /// corrupted, or that of files without a name. When there is no room for names in `lost+found`. When a fence fails.
    ///
    /// # Durability
    /// Durable when this returns: each step is one [`Heap::transaction`](pm_alloc::Heap::transaction). A crash before that leaves a part of it done,
    /// and the next repair does the rest.
    pub fn repair(&mut self) -> Result<RepairReport, FsError> {
        self.shared.check_writable()?;
        repair::repair(Arc::get_mut(&mut self.shared).ok_or(FsError::InUse)?)
    }

    /// Checks that a [`repair`](Self::repair) may store: it relies on the heap's list of blocks, and frees those that nothing uses. Stores nothing.
    ///
    /// # Errors
    /// [`NoRepair`](FsError::NoRepair) when a chain of headers of the heap is broken, or a root line of the pool is corrupted.
    pub fn check_repairable(&self) -> Result<(), FsError> {
        repair::blocks(&self.shared).map(drop)
    }

    /// The heap with the metadata.
    pub fn heap(&self) -> &Heap<P> {
        &self.shared.volume.heap
    }

    /// Closes the file system, and saves which pages are in use, so that the next open need not find them. Not needed for durability.
    ///
    /// # Errors
    /// When there is a handle to a file: then the file system stays open until it is dropped. When a fence fails or has failed.
    ///
    /// # Durability
    /// Durable when this returns: the pages with the commit of one [`Heap::transaction`](pm_alloc::Heap::transaction), the close with
    /// [`Heap::close`]. A crash before that leaves the file system as it is, with the pages saved or not. Four fences.
    pub fn close(self) -> Result<(), FsError> {
        let shared = Arc::try_unwrap(self.shared).map_err(|_| FsError::InUse)?;
        shared.save()?;
        Ok(shared.volume.heap.close()?)
    }
}

/// The options of the heap of a new file system.
fn heap_options(pool_bytes: u64, options: &FsOptions) -> Result<pm_alloc::HeapOptions, FsError> {
    if pool_bytes < POOL_BYTES_MIN {
        return Err(FsError::TooSmall(pool_bytes));
    }
    let heap_bytes = pool_bytes / u64::from(options.metadata_share.clamp(2, 256));
    // Short enough for a share of a small pool, and long enough for a node.
    let chunk_bytes: u64 = 1 << (heap_bytes / 16).max(1).ilog2().clamp(14, 20);
    let count = (heap_bytes / chunk_bytes).max(1);
    Ok(options.heap.clone().chunk_bytes(chunk_bytes).chunk_count(count).in_place_from_bytes(usize::MAX))
}
