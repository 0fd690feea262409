//! Allocating the blocks that a file lacks.
//!
//! Only missing blocks are requested. XFS reserves space for the whole range of a fallocate(2), including allocated blocks. A request for the whole
//! file would fail whenever less space than the file's length is free, even if the file is fully allocated.
//!
//! FIEMAP reports the missing blocks. `SEEK_HOLE` cannot: it treats extents that are allocated but not yet written as holes.

use super::{OpenError, file};
use core::mem::offset_of;
use core::ops::Range;
use rustix::fs::FallocateFlags;
use rustix::io::{Errno, retry_on_intr};
use rustix::ioctl::{Opcode, Updater, opcode};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

/// The part of a shared extent that one fallocate(2) copies. XFS reserves as much space for the copy.
const UNSHARE_STEP_BYTES: u64 = 1 << 20;

/// Extends a file to the end of `new`, with all blocks of `new` allocated unless `sparse` is set. The length changes atomically, after the
/// allocation. If the process is killed or the file system is full, the file has its old length, or the new length with all blocks. This does not
/// hold on file systems that move the end when they allocate (NFS). A process killed before the length changes leaves blocks past the end, which the
/// next growth uses. A file that is already longer than `new.end` is an error: another program may have extended it.
pub(super) fn extend(file: impl AsFd, path: &Path, new: Range<u64>, sparse: bool) -> Result<(), OpenError> {
    let stat = rustix::fs::fstat(&file).map_err(OpenError::from_errno(path, "stat"))?;
    let found_bytes = stat.st_size.cast_unsigned();
    if found_bytes > new.end {
        return Err(OpenError::Shrink { len_bytes: found_bytes, wanted_bytes: new.end });
    }
    file::check_length(path, new.end)?;
    if new.end > found_bytes {
        file::check_limit(path, new.end)?;
    }
    let extended = match sparse {
        true => Ok(()),
        false => allocate(&file, path, new.clone()),
    };
    extended.and_then(|()| file::set_length(&file, path, new.end)).or_else(|error| {
        // Setting the length also frees the blocks past the end.
        file::set_length(&file, path, found_bytes)?;
        Err(error)
    })
}

/// Allocates every block of `range`, so that a later store cannot fault for lack of space. Blocks that the file shares with a copy are copied,
/// if the file system supports that. A file system that does not support allocation is accepted.
///
/// The range may lie past the end of the file. The end of the file does not move, unless the file system always moves it when it allocates (NFS).
///
/// # Errors
/// [`OpenError::NoSpace`] when more blocks are missing than are free, or the error of a system call. If the file system supports FIEMAP, this
/// function frees the blocks that it has allocated, except copies of shared blocks.
pub(super) fn allocate(file: impl AsFd, path: &Path, range: Range<u64>) -> Result<(), OpenError> {
    let file = file.as_fd();
    let missing = match BlockNeeds::of(file, &range) {
        Ok(missing) => missing,
        // No FIEMAP: tmpfs, hugetlbfs, and file systems in user space or on the network.
        Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS | Errno::INVAL) => {
            return allocate_range(file, path, &range);
        }
        Err(errno) => return Err(OpenError::from_errno(path, "FIEMAP")(errno)),
    };
    if missing.holes.is_empty() && missing.shared.is_empty() {
        return Ok(());
    }
    let BlockNeeds { holes, shared } = with_room(file, path, missing, || BlockNeeds::of(file, &range))?;
    let allocated = holes.iter().try_for_each(|hole| allocate_range(file, path, hole));
    allocated.and_then(|()| unshare(file, path, &shared)).inspect_err(|_| {
        if let Err(errno) = free(file, &holes) {
            eprintln!("pm-core: could not free blocks of {}: {errno}", path.display());
        }
    })
}

/// Returns the missing blocks if that many blocks are free. Without this check, ext4 would allocate all free blocks before it reports that they
/// do not suffice. Until then, other programs would find no space.
fn with_room(
    file: BorrowedFd<'_>,
    path: &Path,
    missing: BlockNeeds,
    look_again: impl FnOnce() -> Result<BlockNeeds, Errno>,
) -> Result<BlockNeeds, OpenError> {
    match check_free(file, path, sum(&missing.holes)) {
        Ok(()) => return Ok(missing),
        Err(OpenError::NoSpace { .. }) => {}
        Err(error) => return Err(error),
    }
    // Because of delayed allocation, data of this file that had not been written back had no blocks yet, although its space counted as used.
    // `check_free` has synced the file system, so these blocks are allocated now.
    let missing = look_again().map_err(OpenError::from_errno(path, "FIEMAP"))?;
    check_free(file, path, sum(&missing.holes))?;
    Ok(missing)
}

/// Allocates a range. Where fallocate(2) cannot keep the file's length, the length may grow. Where it is not supported, nothing is allocated.
fn allocate_range(file: BorrowedFd<'_>, path: &Path, range: &Range<u64>) -> Result<(), OpenError> {
    let unsupported = |errno: &Errno| matches!(*errno, Errno::OPNOTSUPP | Errno::NOSYS);
    let allocated = match fallocate(file, FallocateFlags::KEEP_SIZE, range) {
        Err(errno) if unsupported(&errno) => fallocate(file, FallocateFlags::empty(), range),
        other => other,
    };
    match allocated {
        Err(errno) if !unsupported(&errno) => Err(failed(path, range.end - range.start, errno)),
        _ => Ok(()),
    }
}

/// Copies shared blocks, because a store to a shared block needs a new block.
fn unshare(file: BorrowedFd<'_>, path: &Path, shared: &[Range<u64>]) -> Result<(), OpenError> {
    let mut left_bytes = sum(shared);
    for extent in shared {
        let mut start = extent.start;
        while start < extent.end {
            let piece = start..extent.end.min(start + UNSHARE_STEP_BYTES);
            match fallocate(file, FallocateFlags::UNSHARE_RANGE, &piece) {
                Ok(()) => {}
                // btrfs does not support this, but each write-back needs new blocks there anyway.
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => return Ok(()),
                Err(errno) => return Err(failed(path, left_bytes, errno)),
            }
            left_bytes -= piece.end - piece.start;
            check_free(file, path, left_bytes)?;
            start = piece.end;
        }
    }
    Ok(())
}

/// Frees the blocks that were allocated in `holes`, but keeps data that another program has stored there since then.
fn free(file: BorrowedFd<'_>, holes: &[Range<u64>]) -> Result<(), Errno> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for hole in holes {
        let mut start = hole.start;
        while start < hole.end {
            let data = file::next_data(file, start..hole.end).unwrap_or(hole.end..hole.end);
            if start < data.start {
                fallocate(file, flags, &(start..data.start))?;
            }
            start = data.end;
        }
    }
    Ok(())
}

/// Retries after EINTR. On hugetlbfs, a pending signal or pending io_uring work of this thread interrupts fallocate(2) between two pages.
fn fallocate(file: BorrowedFd<'_>, flags: FallocateFlags, range: &Range<u64>) -> Result<(), Errno> {
    retry_on_intr(|| rustix::fs::fallocate(file, flags, range.start, range.end - range.start))
}

fn failed(path: &Path, len_bytes: u64, errno: Errno) -> OpenError {
    match errno {
        Errno::NOSPC | Errno::FBIG | Errno::DQUOT => {
            OpenError::NoSpace { path: path.to_path_buf(), len_bytes }
        }
        errno => OpenError::from_errno(path, "fallocate")(errno),
    }
}

/// Returns an error if fewer than `len_bytes` bytes are free. Blocks reserved for root count as free.
fn check_free(file: BorrowedFd<'_>, path: &Path, len_bytes: u64) -> Result<(), OpenError> {
    let look = || rustix::fs::fstatvfs(file).map_err(OpenError::from_errno(path, "statvfs"));
    let mut found = look()?;
    let suffices = |count: u64, bytes: u64| count.saturating_mul(bytes) >= len_bytes;
    if !suffices(found.f_bfree, found.f_frsize) && suffices(found.f_blocks, found.f_frsize) {
        // Blocks of removed files may become free only at the next journal commit.
        rustix::fs::syncfs(file).map_err(OpenError::from_errno(path, "syncfs"))?;
        found = look()?;
    }
    if suffices(found.f_bfree, found.f_frsize) {
        Ok(())
    } else {
        Err(OpenError::NoSpace { path: path.to_path_buf(), len_bytes })
    }
}

fn sum(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// The parts of a file in which a store needs new blocks.
#[derive(Debug, Default, PartialEq, Eq)]
struct BlockNeeds {
    /// Ranges without blocks of their own, in order.
    holes: Vec<Range<u64>>,
    /// Extents that the file shares with a copy.
    shared: Vec<Range<u64>>,
}

impl BlockNeeds {
    fn of(file: BorrowedFd<'_>, range: &Range<u64>) -> Result<Self, Errno> {
        let mut missing = Self::default();
        // The end of the last extent with blocks, before which all holes have been recorded, and the end of the extents read so far.
        let (mut recorded_end, mut known_end) = (range.start, range.start);
        while known_end < range.end {
            let mut map = ExtentMap::new(known_end..range.end);
            // SAFETY: for this opcode the kernel expects this structure, with the number of extents in its field.
            let request = unsafe { Updater::<FIEMAP, _>::new(&mut map) };
            // SAFETY: as above; the call writes only to the structure.
            unsafe { rustix::ioctl::ioctl(file, request) }?;
            let extents = &map.extents[..(map.found_count as usize).min(EXTENT_COUNT)];
            recorded_end = missing.add(extents, recorded_end, range.end);
            // Without `next <= known_end`, a file system that returns an earlier extent again would cause an endless loop.
            let next = extents.last().map_or(range.end, Extent::end);
            let is_last = extents.last().is_none_or(|extent| extent.flags & LAST != 0);
            known_end = if is_last || next <= known_end { range.end } else { next };
        }
        if recorded_end < range.end {
            missing.holes.push(recorded_end..range.end);
        }
        Ok(missing)
    }

    /// Adds the missing parts between `start` and the end of the last extent with blocks, and returns that end. Earlier calls have found no blocks
    /// at or after `start`. The extents are in order.
    fn add(&mut self, extents: &[Extent], mut start: u64, end: u64) -> u64 {
        for extent in extents.iter().filter(|extent| extent.flags & NO_BLOCK == 0) {
            let own = extent.start.max(start)..extent.end().min(end);
            if own.is_empty() {
                continue;
            }
            if start < own.start {
                self.holes.push(start..own.start);
            }
            if extent.flags & SHARED != 0 {
                self.shared.push(own.clone());
            }
            start = own.end;
        }
        start
    }
}

/// The number of extents that one call requests.
const EXTENT_COUNT: usize = EXTENTS as usize;
const EXTENTS: u32 = 128;

/// The kernel's `struct fiemap`.
///
/// # Source
/// linux/fiemap.h; Documentation/filesystems/fiemap.rst.
#[repr(C)]
struct ExtentMap {
    start: u64,
    len_bytes: u64,
    flags: u32,
    found_count: u32,
    extent_count: u32,
    reserved: u32,
    extents: [Extent; EXTENT_COUNT],
}

/// The kernel's `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    start: u64,
    physical: u64,
    len_bytes: u64,
    reserved_words: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

const HEADER_BYTES: usize = offset_of!(ExtentMap, extents);
const _: () = assert!(HEADER_BYTES == 32 && size_of::<Extent>() == 56);

const FIEMAP: Opcode = opcode::from_components(rustix::ioctl::Direction::ReadWrite, b'f', 11, HEADER_BYTES);

/// `FIEMAP_EXTENT_LAST`.
const LAST: u32 = 0x1;
/// `FIEMAP_EXTENT_UNKNOWN`, `_DELALLOC`, `_DATA_INLINE` and `_DATA_TAIL`: the extent has no block to which a page could be written in place.
const NO_BLOCK: u32 = 0x2 | 0x4 | 0x200 | 0x400;
/// `FIEMAP_EXTENT_SHARED`.
const SHARED: u32 = 0x2000;

impl Extent {
    const fn end(&self) -> u64 {
        self.start.saturating_add(self.len_bytes)
    }
}

impl ExtentMap {
    fn new(range: Range<u64>) -> Self {
        Self {
            start: range.start,
            len_bytes: range.end - range.start,
            flags: 0,
            found_count: 0,
            extent_count: EXTENTS,
            reserved: 0,
            extents: [Extent::default(); EXTENT_COUNT],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn extent(range: Range<u64>, flags: u32) -> Extent {
        Extent { start: range.start, len_bytes: range.end - range.start, flags, ..Extent::default() }
    }

    /// On ext4 and XFS blocks are allocated when the file is written back, but count as used before that.
    #[test]
    fn missing_blocks_are_counted_again_before_refusal() {
        let file = tempfile::tempfile().unwrap();
        let more_than_free = || BlockNeeds { holes: core::iter::once(0..1 << 62).collect(), shared: vec![] };
        let with_room =
            |then: BlockNeeds| with_room(file.as_fd(), Path::new("x"), more_than_free(), || Ok(then));
        assert_eq!(with_room(BlockNeeds::default()).unwrap(), BlockNeeds::default());
        assert!(matches!(with_room(more_than_free()), Err(OpenError::NoSpace { .. })));
    }

    #[test]
    fn ranges_without_own_blocks_are_missing() {
        const UNWRITTEN: u32 = 0x800;
        const DELAYED: u32 = 0x2 | 0x4;
        let mut missing = BlockNeeds::default();
        // The first extent begins before the requested range, and the last extent ends after it.
        let first = [extent(0..20, 0), extent(30..40, UNWRITTEN), extent(40..45, DELAYED)];
        assert_eq!(missing.add(&first, 10, 100), 40);
        let second = [extent(50..60, SHARED), extent(60..70, 0), extent(90..200, SHARED | LAST)];
        assert_eq!(missing.add(&second, 40, 100), 100);
        assert_eq!(missing.holes, [20..30, 40..50, 70..90]);
        assert_eq!(missing.shared, [50..60, 90..100]);
    }

    /// The file has so many extents that several calls are needed. Without FIEMAP the whole file is allocated.
    #[test]
    fn file_of_many_extents_is_allocated_and_freed() {
        const STEP_BYTES: u64 = 1 << 16;
        const COUNT: u64 = EXTENT_COUNT as u64 * 2 + 1;
        for dir in [tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap()] {
            let path = dir.path().join("x.pm");
            let file = std::fs::File::create_new(&path).unwrap();
            file.set_len(COUNT * STEP_BYTES).unwrap();
            (0..COUNT).for_each(|i| file.write_all_at(&[7; 4096], i * STEP_BYTES).unwrap());
            file.sync_all().unwrap();
            let range = 0..COUNT * STEP_BYTES;
            let found = BlockNeeds::of(file.as_fd(), &range);
            allocate(&file, &path, range.clone()).unwrap();
            let allocated_bytes = || {
                use std::os::unix::fs::MetadataExt;
                file.metadata().unwrap().blocks() * 512
            };
            assert!(allocated_bytes() >= range.end);
            let Ok(found) = found else {
                assert_eq!(found, Err(Errno::OPNOTSUPP));
                continue;
            };
            let holes: Vec<_> = (0..COUNT).map(|i| i * STEP_BYTES + 4096..(i + 1) * STEP_BYTES).collect();
            assert_eq!(found, BlockNeeds { holes, shared: Vec::new() });
            assert_eq!(
                BlockNeeds::of(file.as_fd(), &range),
                Ok(BlockNeeds::default()),
                "unwritten extents have blocks"
            );
            file.write_all_at(&[8; 4096], STEP_BYTES / 2).unwrap();
            free(file.as_fd(), &found.holes).unwrap();
            assert_eq!(sum(&BlockNeeds::of(file.as_fd(), &range).unwrap().holes), sum(&found.holes) - 4096);
            let mut stored = [0; 4096];
            file.read_exact_at(&mut stored, STEP_BYTES / 2).unwrap();
            assert_eq!(stored, [8; 4096]);
        }
    }

    /// The regular file in /proc stands for a file on ramfs: it can be written, but its blocks cannot be allocated.
    #[test]
    fn file_system_without_allocation_is_accepted() {
        let path = Path::new("/proc/self/comm");
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        assert_eq!(rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 4096), Err(Errno::OPNOTSUPP));
        allocate(&file, path, 0..4096).unwrap();
    }

    #[test]
    fn too_large_request_allocates_no_blocks() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.pm");
        let file = std::fs::File::create_new(&path).unwrap();
        let len_bytes = 1 << 43;
        file.set_len(len_bytes).unwrap();
        let refused = allocate(&file, &path, 0..len_bytes);
        assert!(matches!(refused, Err(OpenError::NoSpace { .. })), "{refused:?}");
        assert_eq!(file.metadata().unwrap().blocks(), 0);
    }
}
