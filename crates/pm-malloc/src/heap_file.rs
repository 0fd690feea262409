//! The file of a heap: opened, created, replaced; without a name, and named later.

use crate::settings::Settings;
use core::sync::atomic::{AtomicU64, Ordering};
use pm_alloc::{FrozenHeap, Heap, HeapError, HeapOptions, Piece};
use pm_core::{Medium, OpenError, Pmem as _, Region, RegionOptions};
use rustix::fs::{AtFlags, CWD, FallocateFlags, MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// A sparse file is allocated in units of this size, so that few allocations wait for the system.
const BACKED_BYTES: u64 = 256 << 10;

/// The free space that a new file requires, in addition to two pages for each chunk.
const BEGINNING_BYTES: u64 = 1 << 20;

/// The options for making and opening the heap.
pub(crate) fn options(settings: &Settings) -> HeapOptions {
    // Lanes are for transactions. Chunks are long, so that few blocks are longer.
    HeapOptions::new()
        .lanes(2)
        .lane_entries(30)
        .chunk_bytes(chunk_bytes(settings.file_bytes))
        .quarantine(settings.quarantine)
        .region(region_options(settings))
}

/// The options for mapping a file. A child inherits the mapping, and copies from it.
pub(crate) fn region_options(settings: &Settings) -> RegionOptions {
    RegionOptions::new().sparse(settings.sparse).keep_on_fork()
}

fn chunk_bytes(file_bytes: u64) -> u64 {
    1 << (file_bytes / 64).clamp(64 << 10, 4 << 20).ilog2()
}

/// Opens or makes the heap that the settings name.
pub(crate) fn open(settings: &Settings) -> Result<Heap, HeapError> {
    let options = options(settings);
    if !settings.keep {
        let failed = |errno| OpenError::Io { path: settings.file.clone(), operation: "making a file", errno };
        let file = nameless(&settings.file, settings.file_bytes).map_err(failed)?;
        has_room(file.as_fd(), settings)?;
        let region = region_options(settings).open_file(file, &settings.file)?;
        return Heap::format(region, &options);
    }
    let path = match settings.file.exists() {
        false => settings.file.clone(),
        true if settings.fresh => remove(&settings.file)?,
        true => return Heap::open(&settings.file, &options),
    };
    if settings.sparse {
        let parent = path.parent().unwrap_or(Path::new("/"));
        let failed = |errno| OpenError::Io { path: parent.to_path_buf(), operation: "open", errno };
        let directory = rustix::fs::open(parent, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        has_room(directory.map_err(failed)?.as_fd(), settings)?;
    }
    Heap::create(&path, settings.file_bytes, &options)
}

/// Removes the heap in a file, sound or corrupted, unless another process has it open. Refuses other pools, such as disks of `pmbd`, and files that
/// are not recognized as a heap: a truncated file, another version, or a pool with two corrupted headers. Returns the real path of the file.
fn remove(path: &Path) -> Result<PathBuf, HeapError> {
    // Locked until it is removed.
    let region = RegionOptions::new().sparse(true).open(path)?;
    let failed = |operation| move |errno| OpenError::Io { path: path.to_path_buf(), operation, errno };
    if region.medium() == Medium::DeviceDax {
        return Err(failed("replacing a device")(Errno::NOTSUP).into());
    }
    if !pm_core::Pool::attach_read_only(&region)?.has_logged_roots() {
        return Err(HeapError::NotAHeap);
    }
    // Not a symbolic link to it.
    let found = rustix::fs::readlink(format!("/proc/self/fd/{}", region.file().as_raw_fd()), Vec::new());
    let found = found.map_err(failed("readlink in /proc"))?;
    let real = PathBuf::from(OsString::from_vec(found.into_bytes()));
    rustix::fs::unlink(&real).map_err(failed("unlink"))?;
    Ok(real)
}

/// Whether there is space for making a heap. A sparse file is not allocated before.
fn has_room(file: impl AsFd, settings: &Settings) -> Result<(), OpenError> {
    let path = &settings.file;
    let failed = |errno| OpenError::Io { path: path.clone(), operation: "statfs", errno };
    let found = rustix::fs::fstatvfs(file).map_err(failed)?;
    let wanted = settings.file_bytes / chunk_bytes(settings.file_bytes) * 8192 + BEGINNING_BYTES;
    if found.f_bavail.saturating_mul(found.f_frsize) < wanted {
        return Err(OpenError::NoSpace { path: path.clone(), len_bytes: wanted });
    }
    Ok(())
}

/// An empty sparse file without a name, in the file system of this path.
fn nameless(beside: &Path, len_bytes: u64) -> Result<OwnedFd, Errno> {
    let directory = beside.parent().unwrap_or(Path::new("/"));
    let (flags, mode) = (OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
    let file = match rustix::fs::open(directory, flags | OFlags::TMPFILE, mode) {
        // File systems without nameless files answer one of these (open(2), O_TMPFILE).
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
            let mut name = beside.as_os_str().to_os_string();
            name.push(format!(".making-{}", std::process::id()));
            let file = rustix::fs::open(&name, flags | OFlags::CREATE | OFlags::EXCL, mode)?;
            rustix::fs::unlink(&name)?;
            file
        }
        other => other?,
    };
    rustix::fs::ftruncate(&file, len_bytes)?;
    Ok(file)
}

/// A file for a forked child: without a name, in the directory of the parent's. If that fails, memory, with a message.
pub(crate) fn for_child(
    beside: &Path,
    len_bytes: u64,
    copy: &FrozenHeap<'_>,
    from: Read<'_>,
) -> Result<OwnedFd, Errno> {
    let in_file = nameless(beside, len_bytes).and_then(|file| write_copy(file, copy, from));
    in_file.or_else(|errno| {
        let directory = beside.parent().unwrap_or(Path::new("/")).display();
        crate::say(&format_args!(
            "no file for a forked child in {directory}: {errno}; its memory is volatile"
        ));
        let file = rustix::fs::memfd_create("pm-malloc", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, len_bytes)?;
        write_copy(file, copy, from)
    })
}

/// Reads from a file. Whether it read all bytes. Unlike a load from its mapping, this allocates nothing for a hole, which on a full file system
/// would cause SIGBUS.
pub(crate) fn read_exactly(file: impl AsFd, mut offset: u64, mut buffer: &mut [u8]) -> bool {
    while !buffer.is_empty() {
        match rustix::io::retry_on_intr(|| rustix::io::pread(&file, &mut *buffer, offset)) {
            Ok(0) | Err(_) => return false,
            Ok(count) => {
                buffer = &mut buffer[count..];
                offset += count as u64;
            }
        }
    }
    true
}

/// The memory that a copy is made from: loads bytes at an offset into a buffer.
pub(crate) type Read<'r> = &'r dyn Fn(u64, &mut [u8]);

/// Writes the pieces of a copy, adjacent ones in one call. A write to a full file system fails, where a store would cause SIGBUS.
fn write_copy(file: OwnedFd, copy: &FrozenHeap<'_>, read: Read<'_>) -> Result<OwnedFd, Errno> {
    let mut writer = Writer { file: &file, buffer: Vec::with_capacity(Writer::MOST), start: 0, failed: None };
    copy.pieces(|piece| match piece {
        Piece::Bytes(range) => {
            let mut offset = range.start;
            while offset < range.end {
                let buffer = writer.room_for(offset, range.end - offset);
                read(offset, buffer);
                offset += buffer.len() as u64;
            }
        }
        Piece::Word { offset, word } => {
            writer.room_for(offset, size_of::<u64>() as u64).copy_from_slice(&word.to_le_bytes());
        }
        _ => writer.failed = Some(Errno::NOTSUP),
    });
    writer.flush();
    match writer.failed {
        None => Ok(file),
        Some(errno) => Err(errno),
    }
}

/// Gathers pieces in ascending order.
struct Writer<'f> {
    file: &'f OwnedFd,
    buffer: Vec<u8>,
    /// The offset of the buffer's first byte.
    start: u64,
    failed: Option<Errno>,
}

impl Writer<'_> {
    const MOST: usize = 256 << 10;
    /// A gap of up to so many bytes is filled with zeroes: its bytes have no meaning, and its page is written anyway.
    const GAP: usize = 1024;

    /// The buffer for up to so many bytes at this offset; at least for eight, if there are as many.
    fn room_for(&mut self, offset: u64, len_bytes: u64) -> &mut [u8] {
        let end = self.start + self.buffer.len() as u64;
        let gap = offset.checked_sub(end).and_then(|gap| usize::try_from(gap).ok());
        match gap.filter(|gap| *gap <= Self::GAP && self.buffer.len() + gap + 8 <= Self::MOST) {
            Some(gap) if !self.buffer.is_empty() => self.buffer.resize(self.buffer.len() + gap, 0),
            _ => {
                self.flush();
                self.start = offset;
            }
        }
        let at = self.buffer.len();
        let most = Self::MOST - at;
        let len = usize::try_from(len_bytes).map_or(most, |len| len.min(most));
        self.buffer.resize(at + len, 0);
        &mut self.buffer[at..]
    }

    fn flush(&mut self) {
        let buffer = core::mem::take(&mut self.buffer);
        self.write(self.start, &buffer);
        self.buffer = buffer;
        self.buffer.clear();
    }

    fn write(&mut self, mut offset: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.failed.is_none() {
            match rustix::io::retry_on_intr(|| rustix::io::pwrite(self.file, bytes, offset)) {
                Ok(0) => self.failed = Some(Errno::NOSPC),
                Ok(count) => {
                    bytes = &bytes[count..];
                    offset += count as u64;
                }
                Err(errno) => self.failed = Some(errno),
            }
        }
    }
}

/// The file of a descriptor. A program may close descriptors that it did not open, and open others with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId(u64, u64);

impl FileId {
    pub(crate) fn of(file: impl AsFd) -> Option<Self> {
        rustix::fs::fstat(file).ok().map(|stat| Self(stat.st_dev, stat.st_ino))
    }
}

/// The allocated parts of a sparse file.
#[derive(Debug)]
pub(crate) struct Backing {
    /// One bit for each [`BACKED_BYTES`]; none if the file has no holes.
    done: Box<[AtomicU64]>,
    file_id: Option<FileId>,
}

impl Backing {
    pub(crate) fn new(region: &Region, is_sparse: bool) -> Self {
        let has_holes =
            is_sparse && matches!(region.medium(), Medium::File | Medium::DaxFile | Medium::Tmpfs);
        let units = if has_holes { region.len_bytes().div_ceil(BACKED_BYTES) } else { 0 };
        let words = usize::try_from(units.div_ceil(64)).unwrap_or(0);
        Self { done: (0..words).map(|_| AtomicU64::new(0)).collect(), file_id: FileId::of(region.file()) }
    }

    pub(crate) fn file_id(&self) -> Option<FileId> {
        self.file_id
    }

    /// Allocates the file's blocks in this range, if necessary. `false` when the file system is full.
    #[inline]
    pub(crate) fn ensure(&self, region: &Region, offset: u64, len_bytes: u64) -> bool {
        let mut units = offset / BACKED_BYTES..(offset + len_bytes).div_ceil(BACKED_BYTES);
        units.all(|unit| self.is_done(unit)) || self.allocate(region, offset, len_bytes)
    }

    #[inline]
    fn is_done(&self, unit: u64) -> bool {
        let word = usize::try_from(unit / 64).ok().and_then(|word| self.done.get(word));
        word.is_none_or(|word| word.load(Ordering::Relaxed) >> (unit % 64) & 1 == 1)
    }

    #[cold]
    fn allocate(&self, region: &Region, offset: u64, len_bytes: u64) -> bool {
        let start = offset / BACKED_BYTES * BACKED_BYTES;
        let end = (offset + len_bytes).next_multiple_of(BACKED_BYTES).min(region.len_bytes());
        // If the program closed the descriptor, allocation is no longer possible.
        if FileId::of(region.file()) == self.file_id {
            let allocate =
                || rustix::fs::fallocate(region.file(), FallocateFlags::KEEP_SIZE, start, end - start);
            // Other errors mean that the file system does not support it.
            if let Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) = rustix::io::retry_on_intr(allocate) {
                return false;
            }
        }
        for unit in start / BACKED_BYTES..end.div_ceil(BACKED_BYTES) {
            let word = usize::try_from(unit / 64).ok().and_then(|word| self.done.get(word));
            if let Some(word) = word {
                word.fetch_or(1 << (unit % 64), Ordering::Relaxed);
            }
        }
        true
    }
}

/// Gives a file its name, unless a file of this name exists.
pub(crate) fn give_name(region: &Region, file_id: Option<FileId>, name: &PathBuf) -> Result<(), Errno> {
    let file = region.file();
    if FileId::of(file) != file_id {
        // The program closed it.
        return Err(Errno::BADF);
    }
    // Later stores are not synced: the region was opened without a name, and keeps its domain.
    region.sync_file().map_err(|error| match error {
        OpenError::Io { errno, .. } => errno,
        _ => Errno::IO,
    })?;
    let nameless = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, nameless, CWD, name, AtFlags::SYMLINK_FOLLOW)
}

/// Opens those of the first three descriptors that are closed, until the result is dropped, so that no file of this library gets their numbers.
pub(crate) fn hold_standard_descriptors() -> Vec<OwnedFd> {
    let mut held = Vec::new();
    loop {
        match rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) if file.as_raw_fd() < 3 => held.push(file),
            Ok(_) | Err(_) => return held,
        }
    }
}
