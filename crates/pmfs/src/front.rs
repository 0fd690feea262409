//! The file system as the kernel sees it: requests of FUSE, answered by `pm-fs`.

use crate::attribute_names::{ACLS, TRUSTED, is_kept};
use crate::known_files::KnownFiles;
use crate::long_calls::LongCalls;
use crate::times::{time, time_ns};
use crate::warning::warn;
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, Notifier, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use pm_core::Pmem;
use pm_fs::{Attributes, Entry, FileKind, Fs, FsError, Handle, NewFile, SetAttributes, SetXattr};
use rustix::fs::{FallocateFlags, XattrFlags};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The kernel may keep names and attributes for long: this server is the only writer.
const TTL: Duration = Duration::from_secs(3600);

/// `whence` of lseek(2).
const SEEK_DATA: i32 = 3;
/// See [`SEEK_DATA`].
const SEEK_HOLE: i32 = 4;

/// The set-group-ID bit: files in such a directory have its group.
const SET_GID: u32 = 0o2000;
const SET_UID: u32 = 0o4000;
const GROUP_EXECUTE: u32 = 0o010;

/// A mounted file system.
pub(crate) struct Mounted<P: Pmem> {
    fs: Arc<Fs<P>>,
    known: KnownFiles<P>,
    /// The entries of open directories.
    listings: Mutex<Listings>,
    /// The kernel has one call for a file at a time, so the order of calls stays.
    long_calls: LongCalls,
    /// Whether this server clears set-user-ID bits, and not the kernel.
    clears_set_id: bool,
    /// Tells the kernel that attributes have changed which it has not changed.
    notifier: Arc<OnceLock<Notifier>>,
}

#[derive(Default)]
struct Listings {
    last: u64,
    open: HashMap<u64, Arc<Vec<Entry>>>,
}

/// A panic under a lock leaves nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn errno(error: &FsError) -> Errno {
    if error.errno() == rustix::io::Errno::IO {
        warn(format_args!("pmfs: {error}"));
    }
    Errno::from_i32(error.errno().raw_os_error())
}

const fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Pipe => FileType::NamedPipe,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::Directory => FileType::Directory,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::File => FileType::RegularFile,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Socket => FileType::Socket,
    }
}

impl<P: Pmem> Mounted<P> {
    /// The session that serves this sets `notifier`.
    pub(crate) fn new(fs: Arc<Fs<P>>, notifier: Arc<OnceLock<Notifier>>) -> Self {
        let (known, listings, long_calls) = (KnownFiles::default(), Mutex::default(), LongCalls::default());
        Self { fs, known, listings, long_calls, clears_set_id: false, notifier }
    }

    /// A file that the kernel knows.
    fn file(&self, ino: INodeNo) -> Result<Handle<P>, FsError> {
        if ino == INodeNo::ROOT {
            return Ok(self.fs.root());
        }
        self.known.find(ino.0).ok_or(FsError::NotFound)
    }

    /// Clears the set-user-ID bit of a file, and its set-group-ID bit, if that is left to this server. The second one stays if the group may not execute
    /// the file, and the caller is in the group or is root.
    ///
    /// # Source
    /// `setattr_should_drop_suidgid` of Linux.
    fn clear_set_id(&self, request: &Request, file: &Handle<P>, is_chown: bool) -> Result<(), FsError> {
        let kind = file.kind();
        let may_have = if is_chown { kind != FileKind::Directory } else { kind == FileKind::File };
        if !self.clears_set_id || !may_have {
            return Ok(());
        }
        let Attributes { mode, gid, .. } = file.attributes()?;
        let keeps_set_gid = mode & GROUP_EXECUTE == 0 && is_of_group(request, gid);
        let cleared = mode & !(if keeps_set_gid { SET_UID } else { SET_UID | SET_GID });
        if cleared == mode {
            return Ok(());
        }
        file.set_attributes(&SetAttributes { mode: Some(cleared), ..SetAttributes::default() })?;
        if let Some(notifier) = self.notifier.get() {
            // Fails if the kernel has just forgotten the file. A negative offset is that of no data, only of the attributes.
            drop(notifier.inval_inode(INodeNo(file.ino()), -1, 0));
        }
        Ok(())
    }

    /// The kernel's number of an inode.
    fn number(&self, ino: u64) -> INodeNo {
        if ino == self.fs.root().ino() { INodeNo::ROOT } else { INodeNo(ino) }
    }

    fn for_kernel(&self, file: &Handle<P>) -> Result<FileAttr, FsError> {
        let attributes = file.attributes()?;
        let Attributes { ino, kind, mode, uid, gid, rdev, nlink, size, .. } = attributes;
        let blocks = if kind == FileKind::File { file.allocated_bytes()? } else { size }.div_ceil(512);
        // Programs such as tar take a file without blocks for one hole and do not read it, but a program may have stored to a map of it.
        let blocks = blocks.max(u64::from(size > 0));
        Ok(FileAttr {
            ino: self.number(ino),
            size,
            blocks,
            atime: time(attributes.atime_ns),
            mtime: time(attributes.mtime_ns),
            ctime: time(attributes.ctime_ns),
            crtime: UNIX_EPOCH,
            kind: file_type(kind),
            perm: u16::try_from(mode).unwrap_or(0),
            nlink: u32::try_from(nlink).unwrap_or(u32::MAX),
            uid,
            gid,
            rdev,
            blksize: 4096,
            flags: 0,
        })
    }

    /// Notes that the kernel has another reference to a file, and returns what it gets.
    fn remember(&self, handle: Handle<P>) -> Result<(FileAttr, Generation), FsError> {
        let generation = Generation(handle.generation());
        let attributes = self.for_kernel(&handle)?;
        if attributes.ino != INodeNo::ROOT {
            self.known.add(handle);
        }
        Ok((attributes, generation))
    }

    fn reply_entry(&self, found: Result<Handle<P>, FsError>, reply: ReplyEntry) {
        match found.and_then(|handle| self.remember(handle)) {
            Ok((attributes, generation)) => reply.entry(&TTL, &attributes, generation),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn reply_attributes(&self, handle: Result<Handle<P>, FsError>, reply: ReplyAttr) {
        match handle.and_then(|handle| self.for_kernel(&handle)) {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(error) => reply.error(errno(&error)),
        }
    }

    /// The attributes of a new file in a directory.
    fn new_file(
        dir: &Handle<P>,
        request: &Request,
        (mode, umask): (u32, u32),
        is_dir: bool,
    ) -> Result<NewFile, FsError> {
        let parent = dir.attributes()?;
        let inherits = parent.mode & SET_GID != 0;
        let gid = if inherits { parent.gid } else { request.gid() };
        let mode = mode & 0o7777 | if inherits && is_dir { SET_GID } else { 0 };
        Ok(NewFile { mode, uid: request.uid(), gid, umask })
    }
}

/// Whether a caller is in a group as far as the kernel says: not by a supplementary group. Root counts as a member of all.
fn is_of_group(request: &Request, gid: u32) -> bool {
    request.uid() == 0 || request.gid() == gid
}

fn reply_empty(done: Result<(), FsError>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(&error)),
    }
}

/// Answers with the bytes, or with their number if `size` is 0.
fn reply_xattr(found: Result<Vec<u8>, FsError>, size: u32, reply: ReplyXattr) {
    match found {
        Err(error) => reply.error(errno(&error)),
        Ok(bytes) if size == 0 => reply.size(u32::try_from(bytes.len()).unwrap_or(u32::MAX)),
        Ok(bytes) if bytes.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(bytes) => reply.data(&bytes),
    }
}

impl<P: Pmem + Send + Sync + 'static> Filesystem for Mounted<P> {
    /// The kernel leaves clearing set-user-ID bits to this server. Otherwise it would ask for the capabilities of a file before each write to it.
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // An older kernel clears them itself.
        self.clears_set_id = config.add_capabilities(InitFlags::FUSE_HANDLE_KILLPRIV_V2).is_ok();
        // The kernel checks access control lists, and leaves it to this server to inherit them, for which it needs the umask.
        let inherits = InitFlags::FUSE_POSIX_ACL | InitFlags::FUSE_DONT_MASK;
        if let Err(missing) = config.add_capabilities(inherits) {
            return Err(io::Error::other(format!("the kernel's FUSE has no {missing:?}")));
        }
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.reply_entry(self.file(parent).and_then(|dir| dir.lookup(name.as_bytes())), reply);
    }

    fn forget(&self, _: &Request, ino: INodeNo, count: u64) {
        self.known.forget(ino.0, count);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.reply_attributes(self.file(ino), reply);
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = || {
            let handle = self.file(ino)?;
            // The kernel does not say whether the caller of truncate(2) has CAP_FSETID; root has.
            let truncates = size.is_some() && request.uid() != 0;
            if mode.is_none() && (truncates || uid.is_some() || gid.is_some()) {
                self.clear_set_id(request, &handle, uid.is_some() || gid.is_some())?;
            }
            if let Some(size) = size {
                handle.truncate(size)?;
            }
            let set =
                SetAttributes { mode, uid, gid, atime_ns: atime.map(time_ns), mtime_ns: mtime.map(time_ns) };
            if set != SetAttributes::default() {
                handle.set_attributes(&set)?;
            }
            Ok(handle)
        };
        self.reply_attributes(set(), reply);
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        match self.file(ino).and_then(|handle| handle.read_link()) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let make = || {
            let dir = self.file(parent)?;
            let new = Self::new_file(&dir, request, (mode, umask), false)?;
            let number = u8::try_from(mode >> 12 & 0o17).unwrap_or(0);
            let kind = FileKind::from_number(number).ok_or(FsError::Invalid)?;
            dir.mknod(name.as_bytes(), kind, new, rdev)
        };
        self.reply_entry(make(), reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let make = || {
            let dir = self.file(parent)?;
            dir.mkdir(name.as_bytes(), Self::new_file(&dir, request, (mode, umask), true)?)
        };
        self.reply_entry(make(), reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(self.file(parent).and_then(|dir| dir.unlink(name.as_bytes())), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(self.file(parent).and_then(|dir| dir.rmdir(name.as_bytes())), reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let make = || {
            let dir = self.file(parent)?;
            let new = Self::new_file(&dir, request, (0o777, 0), false)?;
            dir.symlink(name.as_bytes(), target.as_os_str().as_bytes(), new)
        };
        self.reply_entry(make(), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let rename = || {
            let (from, to) = (self.file(parent)?, self.file(newparent)?);
            if flags == RenameFlags::RENAME_EXCHANGE {
                from.exchange(name.as_bytes(), &to, newname.as_bytes())
            } else if flags == RenameFlags::RENAME_NOREPLACE {
                from.rename_to_new(name.as_bytes(), &to, newname.as_bytes())
            } else if flags.is_empty() {
                from.rename(name.as_bytes(), &to, newname.as_bytes())
            } else {
                Err(FsError::Invalid)
            }
        };
        reply_empty(rename(), reply);
    }

    fn link(&self, _: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let link = || {
            let handle = self.file(ino)?;
            self.file(newparent)?.link(&handle, newname.as_bytes())?;
            Ok(handle)
        };
        self.reply_entry(link(), reply);
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(self.known.open(ino.0, flags), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        open: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.known.release(ino.0, open);
        reply.ok();
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut bytes = vec![0; size as usize];
        match self.file(ino).and_then(|handle| handle.read_at(offset, &mut bytes)) {
            Ok(len) => reply.data(&bytes[..len]),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let write = || {
            let handle = self.file(ino)?;
            if flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
                self.clear_set_id(request, &handle, false)?;
            }
            handle.write_at(offset, data)
        };
        match write() {
            Ok(len) => reply.written(u32::try_from(len).unwrap_or(u32::MAX)),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let mode = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        let keeps_size = mode.contains(FallocateFlags::KEEP_SIZE);
        let how = mode - FallocateFlags::KEEP_SIZE;
        let file = self.file(ino).and_then(|file| {
            // As for truncate(2).
            if request.uid() != 0 {
                self.clear_set_id(request, &file, false)?;
            }
            Ok(file)
        });
        let is_punch = how == FallocateFlags::PUNCH_HOLE && keeps_size;
        if !how.is_empty() && how != FallocateFlags::ZERO_RANGE && !is_punch {
            return reply.error(Errno::EOPNOTSUPP);
        }
        // What is allocated is zeroed: 0.2 s for a gigabyte.
        self.long_calls.run(move || {
            let done = file.and_then(|file| {
                if is_punch {
                    file.punch_hole(offset, length)
                } else if how.is_empty() {
                    file.allocate(offset, length, keeps_size)
                } else {
                    file.zero_range(offset, length, keeps_size)
                }
            });
            reply_empty(done, reply);
        });
    }

    /// Where the kernel may have data that it has not written yet, all of the file is data: a hole is not copied.
    fn lseek(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let seek = || {
            // The kernel has refused a negative one.
            let offset = u64::try_from(offset).map_err(|_| FsError::NoData)?;
            let file = self.file(ino)?;
            let is_mappable = self.known.is_mappable(ino.0);
            let size = if is_mappable { file.attributes()?.size } else { 0 };
            let found = match whence {
                SEEK_DATA | SEEK_HOLE if is_mappable && offset >= size => return Err(FsError::NoData),
                SEEK_DATA if is_mappable => offset,
                SEEK_HOLE if is_mappable => size,
                SEEK_DATA => file.seek_data(offset)?,
                SEEK_HOLE => file.seek_hole(offset)?,
                _ => return Err(FsError::Invalid),
            };
            i64::try_from(found).map_err(|_| FsError::TooLong)
        };
        match seek() {
            Ok(offset) => reply.offset(offset),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        if !is_kept(name) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let flags = XattrFlags::from_bits_retain(flags.cast_unsigned());
        let how = match (flags.contains(XattrFlags::CREATE), flags.contains(XattrFlags::REPLACE)) {
            (true, _) => SetXattr::Create,
            (false, true) => SetXattr::Replace,
            (false, false) => SetXattr::Any,
        };
        let set = || {
            let file = self.file(ino)?;
            file.set_xattr(name.as_bytes(), value, how)?;
            let attributes = file.attributes()?;
            let keeps_set_gid = is_of_group(request, attributes.gid);
            if name.as_bytes() == ACLS[0] && attributes.mode & SET_GID != 0 && !keeps_set_gid {
                let mode = Some(attributes.mode & !SET_GID);
                file.set_attributes(&SetAttributes { mode, ..SetAttributes::default() })?;
            }
            Ok(())
        };
        reply_empty(set(), reply);
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if !is_kept(name) {
            return reply.error(Errno::NO_XATTR);
        }
        reply_xattr(self.file(ino).and_then(|file| file.xattr(name.as_bytes())), size, reply);
    }

    /// Without the names that only root may use: xattr(7).
    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.file(ino).and_then(|file| file.xattrs());
        let is_shown = |name: &Vec<u8>| request.uid() == 0 || !name.starts_with(TRUSTED);
        let join = |names: Vec<Vec<u8>>| {
            names.into_iter().filter(is_shown).flat_map(|name| [name, vec![0]].concat()).collect()
        };
        let list = names.map(join);
        reply_xattr(list, size, reply);
    }

    fn removexattr(&self, _: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if !is_kept(name) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let removed = match self.file(ino).and_then(|file| file.remove_xattr(name.as_bytes())) {
            // The kernel sets no list by removing it.
            Err(FsError::NoAttribute) if ACLS.contains(&name.as_bytes()) => Ok(()),
            removed => removed,
        };
        reply_empty(removed, reply);
    }

    /// Nothing is left to do when a file is closed.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    /// Every call was durable when it returned.
    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.file(ino).and_then(|dir| dir.entries(0)) {
            Ok(entries) => {
                let mut listings = lock(&self.listings);
                listings.last += 1;
                let number = listings.last;
                listings.open.insert(number, Arc::new(entries));
                drop(listings);
                reply.opened(FileHandle(number), FopenFlags::empty());
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    /// The entries that were there when the directory was opened, or was read from its start again.
    fn readdir(&self, _: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let entries = || {
            if offset == 0 {
                let entries = Arc::new(self.file(ino)?.entries(0)?);
                lock(&self.listings).open.insert(fh.0, Arc::clone(&entries));
                return Ok(entries);
            }
            lock(&self.listings).open.get(&fh.0).cloned().ok_or(FsError::NotFound)
        };
        let entries = match entries() {
            Ok(entries) => entries,
            Err(error) => return reply.error(errno(&error)),
        };
        // Of a directory that was removed meanwhile, it is not known.
        let parent = self.file(ino).and_then(|dir| dir.parent_ino());
        let parent = parent.map_or(ino, |parent| self.number(parent));
        // The cookies of entries are greater than these.
        for (cookie, number, name) in [(1, ino, "."), (2, parent, "..")] {
            if offset < cookie && reply.add(number, cookie, FileType::Directory, name) {
                return reply.ok();
            }
        }
        let start = entries.partition_point(|entry| entry.cookie <= offset);
        for entry in &entries[start..] {
            let name = OsStr::from_bytes(&entry.name);
            if reply.add(INodeNo(entry.ino), entry.cookie, file_type(entry.kind), name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, fh: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        lock(&self.listings).open.remove(&fh.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let stats = match self.fs.stats() {
            Ok(stats) => stats,
            Err(error) => return reply.error(errno(&error)),
        };
        // The most files that the metadata has room for.
        let files = stats.metadata_bytes / 320;
        reply.statfs(stats.pages, stats.free_pages, stats.free_pages, files, files, 4096, 255, 4096);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let create = || {
            let dir = self.file(parent)?;
            let new = Self::new_file(&dir, request, (mode, umask), false)?;
            self.remember(dir.create(name.as_bytes(), new)?)
        };
        match create() {
            Ok((attributes, generation)) => {
                let open = self.known.open(attributes.ino.0, OpenFlags(flags));
                reply.created(&TTL, &attributes, generation, open, FopenFlags::FOPEN_KEEP_CACHE);
            }
            Err(error) => reply.error(errno(&error)),
        }
    }
}
