//! Handles to files and directories, and the calls on them.

use crate::api::map::Map;
use crate::error::FsError;
use crate::node::contents::ByteRange;
use crate::node::dir::Entry;
use crate::node::inode::{Attributes, FileKind, NewInode};
use crate::ops::allocate::{self, Allocation};
use crate::ops::attributes::{self, SetAttributes};
use crate::ops::create::{self, NewNode};
use crate::ops::lookup::{self, DirName};
use crate::ops::xattr::{self, SetXattr};
use crate::ops::{link, read, rename, truncate, unlink, write};
use crate::session::open::OpenInode;
use crate::session::shared::Shared;
use crate::session::table::State;
use core::fmt;
use pm_core::{Pmem, Region};
use std::sync::Arc;

/// A handle to a file, a directory or another inode. The file exists as long as a handle to it, with or without a name, and the file system stays
/// open.
pub struct Handle<P: Pmem = Region> {
    open: OpenInode<P>,
}

/// The attributes of a new file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewFile {
    /// The permissions, the lower twelve bits of `st_mode`.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Permissions that it does not get, unless the directory has a default access control list: umask(2).
    pub umask: u32,
}

impl NewFile {
    /// An inode of this kind with one name.
    const fn node(self, kind: FileKind) -> NewNode<'static> {
        let Self { mode, uid, gid, umask } = self;
        let inode = NewInode { kind, mode, uid, gid, rdev: 0, parent: 0, nlink: 1 };
        NewNode { inode, umask, target: b"" }
    }
}

impl<P: Pmem> fmt::Debug for Handle<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.open, f)
    }
}

impl<P: Pmem> Clone for Handle<P> {
    fn clone(&self) -> Self {
        Self { open: self.open.clone() }
    }
}

impl<P: Pmem> Handle<P> {
    pub(crate) const fn new(open: OpenInode<P>) -> Self {
        Self { open }
    }

    fn shared(&self) -> &Shared<P> {
        self.open.shared()
    }

    fn state(&self) -> &State {
        self.open.state()
    }

    fn named<'s>(&'s self, name: &'s impl AsRef<[u8]>) -> DirName<'s> {
        DirName { dir: self.state(), name: name.as_ref() }
    }

    /// The number of the inode.
    #[must_use]
    pub fn ino(&self) -> u64 {
        self.open.inode().ino
    }

    /// The number of the directory that a directory is in; of the root, its own.
    ///
    /// # Errors
    /// When this is no directory, or has no name any more.
    pub fn parent_ino(&self) -> Result<u64, FsError> {
        lookup::parent_ino(self.shared(), self.state())
    }

    /// A number that tells the file apart from others that have had its number.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.open.inode().birth
    }

    /// The bytes of the pages of a file, without its holes: `st_blocks` of stat(2), in bytes. Takes longer for longer files: it counts.
    ///
    /// # Errors
    /// When this is no regular file, or its index is corrupted.
    pub fn allocated_bytes(&self) -> Result<u64, FsError> {
        read::allocated_bytes(self.shared(), self.state())
    }

    /// The type.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.open.inode().kind
    }

    /// The attributes: stat(2).
    ///
    /// # Errors
    /// When the inode is corrupted.
    pub fn attributes(&self) -> Result<Attributes, FsError> {
        attributes::get(self.shared(), self.state())
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// When the inode is corrupted, or a fence fails.
    ///
    /// # Durability
    /// Durable when this returns, with the commit of one [`Heap::transaction`](pm_alloc::Heap::transaction); a crash before that leaves the old ones
    /// or the new ones. One fence; up to four for the mode of a file with an access control list.
    pub fn set_attributes(&self, set: &SetAttributes) -> Result<(), FsError> {
        attributes::set(self.shared(), self.state(), set)
    }

    /// Makes writes to this file atomic, or only durable. In a strict file, of the bytes that a [`write_at`](Self::write_at) overwrites all are old
    /// after a crash, or all new, up to [`ATOMIC_WRITE_BYTES`](crate::ATOMIC_WRITE_BYTES); a longer write is several such writes, in ascending order.
    /// They go to new pages, and cost two fences.
    ///
    /// # Errors
    /// When this is no regular file, or a fence fails.
    ///
    /// # Durability
    /// Durable when this returns, with the commit of one [`Heap::transaction`](pm_alloc::Heap::transaction). One fence.
    pub fn set_strict(&self, is_strict: bool) -> Result<(), FsError> {
        attributes::set_strict(self.shared(), self.state(), is_strict)
    }

    /// Whether writes to this file are atomic, because of [`set_strict`](Self::set_strict) or [`FsOptions::strict`](crate::FsOptions::strict).
    ///
    /// # Errors
    /// When the inode is corrupted.
    pub fn is_strict(&self) -> Result<bool, FsError> {
        attributes::is_strict(self.shared(), self.state())
    }

    /// The file with a name in this directory.
    ///
    /// # Errors
    /// When there is none, or this is no directory.
    pub fn lookup(&self, name: impl AsRef<[u8]>) -> Result<Self, FsError> {
        Ok(self.with(lookup::lookup(self.shared(), self.named(&name))?))
    }

    /// The entries of this directory behind the one with a cookie, all of them for 0. `.` and `..` are not among them.
    ///
    /// # Errors
    /// When this is no directory, or has no name any more.
    pub fn entries(&self, behind: u64) -> Result<Vec<Entry>, FsError> {
        lookup::entries(self.shared(), self.state(), behind)
    }

    /// Creates a regular file.
    ///
    /// # Errors
    /// When the name exists or is invalid, this is no directory, or there is no room.
    ///
    /// # Durability
    /// Durable when this returns, with the commit of one [`Heap::transaction`](pm_alloc::Heap::transaction); a crash before that leaves the file or
    /// not. One fence; two if the directory gets a block.
    pub fn create(&self, name: impl AsRef<[u8]>, new: NewFile) -> Result<Self, FsError> {
        self.make(name.as_ref(), new.node(FileKind::File))
    }

    /// Creates a regular file without a name, which [`link`](Self::link) may give it: `O_TMPFILE` of open(2). It inherits the access control list of
    /// this directory.
    ///
    /// # Errors
    /// When this is no directory, or there is no room.
    ///
    /// # Durability
    /// Durable when this returns, with the commit of one [`Heap::transaction`](pm_alloc::Heap::transaction). The file is freed with its last handle,
    /// or after a crash, unless it has got a name. One fence; two if the list of such files gets a block.
    pub fn create_unnamed(&self, new: NewFile) -> Result<Self, FsError> {
        let NewNode { inode, umask, .. } = new.node(FileKind::File);
        let inode = NewInode { nlink: 0, ..inode };
        Ok(self.with(create::create_unnamed(self.shared(), self.state(), inode, umask)?))
    }

    /// Creates a directory.
    ///
    /// # Errors
    /// As for [`create`](Self::create).
    ///
    /// # Durability
    /// As for [`create`](Self::create).
    pub fn mkdir(&self, name: impl AsRef<[u8]>, new: NewFile) -> Result<Self, FsError> {
        let mut node = new.node(FileKind::Directory);
        (node.inode.parent, node.inode.nlink) = (self.ino(), 2);
        self.make(name.as_ref(), node)
    }

    /// Creates a symbolic link.
    ///
    /// # Errors
    /// As for [`create`](Self::create), and when the target is empty or longer than 4,095 bytes.
    ///
    /// # Durability
    /// As for [`create`](Self::create); two fences if the target has more than 112 bytes.
    pub fn symlink(
        &self,
        name: impl AsRef<[u8]>,
        target: impl AsRef<[u8]>,
        new: NewFile,
    ) -> Result<Self, FsError> {
        let target = target.as_ref();
        if target.is_empty() {
            return Err(FsError::NotFound);
        }
        let new = NewFile { mode: 0o777, ..new };
        self.make(name.as_ref(), NewNode { target, ..new.node(FileKind::Symlink) })
    }

    /// Creates a pipe, a socket, or a device file with a device number.
    ///
    /// # Errors
    /// As for [`create`](Self::create), and for a directory or a symbolic link.
    ///
    /// # Durability
    /// As for [`create`](Self::create).
    pub fn mknod(
        &self,
        name: impl AsRef<[u8]>,
        kind: FileKind,
        new: NewFile,
        rdev: u32,
    ) -> Result<Self, FsError> {
        match kind {
            FileKind::Directory | FileKind::Symlink => Err(FsError::Invalid),
            _ => {
                let mut node = new.node(kind);
                node.inode.rdev = rdev;
                self.make(name.as_ref(), node)
            }
        }
    }

    /// Gives a file a name in this directory.
    ///
    /// # Errors
    /// When the name exists or is invalid, the file is a directory or has no name any more, or there is no room. A file [without a
    /// name](Self::create_unnamed) may get its first one.
    ///
    /// # Durability
    /// Durable when this returns, with the commit of one [`Heap::transaction`](pm_alloc::Heap::transaction); a crash before that leaves the name or
    /// not. One fence; two if the directory gets a block.
    pub fn link(&self, file: &Self, name: impl AsRef<[u8]>) -> Result<(), FsError> {
        link::link(self.shared(), file.state(), self.named(&name))
    }

    /// Removes a name of a file that is no directory.
    ///
    /// # Errors
    /// When there is none, or it is a directory's.
    ///
    /// # Durability
    /// Durable when this returns, with the commit of one [`Heap::transaction`](pm_alloc::Heap::transaction); a crash before that leaves the name or
    /// not. One fence. A file that is open or has more than eight pages is freed later, or by further transactions.
    pub fn unlink(&self, name: impl AsRef<[u8]>) -> Result<(), FsError> {
        unlink::unlink(self.shared(), self.named(&name), false)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// When there is none, it is no directory, or it has entries.
    ///
    /// # Durability
    /// As for [`unlink`](Self::unlink).
    pub fn rmdir(&self, name: impl AsRef<[u8]>) -> Result<(), FsError> {
        unlink::unlink(self.shared(), self.named(&name), true)
    }

    /// Renames a file, from this directory to `to_dir`. A file that has the new name loses it, if it is no directory with entries.
    ///
    /// # Errors
    /// When there is no such file; when a directory would be below itself, would replace a file, or the other way round.
    ///
    /// # Durability
    /// Durable when this returns, with the commit of one [`Heap::transaction`](pm_alloc::Heap::transaction); a crash before that leaves the old
    /// state. One fence; two if the directory gets a block.
    pub fn rename(&self, from: impl AsRef<[u8]>, to_dir: &Self, to: impl AsRef<[u8]>) -> Result<(), FsError> {
        rename::rename(self.shared(), self.named(&from), to_dir.named(&to), false)
    }

    /// As [`rename`](Self::rename), but a name that exists is an error.
    ///
    /// # Errors
    /// As for [`rename`](Self::rename), and when the new name exists.
    ///
    /// # Durability
    /// As for [`rename`](Self::rename).
    pub fn rename_to_new(
        &self,
        from: impl AsRef<[u8]>,
        to_dir: &Self,
        to: impl AsRef<[u8]>,
    ) -> Result<(), FsError> {
        rename::rename(self.shared(), self.named(&from), to_dir.named(&to), true)
    }

    /// Exchanges two files: each gets the other's name, in this directory and in `other_dir`, whatever their types.
    ///
    /// # Errors
    /// When one of them does not exist, or a directory would be below itself.
    ///
    /// # Durability
    /// Durable when this returns, with the commit of one [`Heap::transaction`](pm_alloc::Heap::transaction); a crash before that leaves the old
    /// state. One fence.
    pub fn exchange(
        &self,
        name: impl AsRef<[u8]>,
        other_dir: &Self,
        other: impl AsRef<[u8]>,
    ) -> Result<(), FsError> {
        rename::exchange(self.shared(), self.named(&name), other_dir.named(&other))
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// When this is none.
    pub fn read_link(&self) -> Result<Vec<u8>, FsError> {
        read::read_link(self.shared(), self.state())
    }

    /// Reads bytes from an offset, and returns their number: fewer at the end of the file.
    ///
    /// # Errors
    /// When this is no regular file.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize, FsError> {
        read::read(self.shared(), self.state(), offset, out)
    }

    /// Writes bytes at an offset, and returns their number: fewer if there is no room for all.
    ///
    /// # Errors
    /// When this is no regular file, it would be too long, or there is no room.
    ///
    /// # Durability
    /// Durable when this returns: in pages that are there with the fence of [`View::store_u64_pair`](pm_alloc::View::store_u64_pair), else with the
    /// commit of the last [`Heap::transaction`](pm_alloc::Heap::transaction). A crash before that leaves the old length, the new one, or one between
    /// them, and never a length before its bytes; of bytes that are overwritten each 8-byte word is old or new, and in a [strict](Self::set_strict)
    /// file all are. One fence if the pages are there and the length stays, and else two; two more for each further 64 pages.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<usize, FsError> {
        write::write(self.shared(), self.state(), Some(offset), bytes)
    }

    /// Writes bytes at the end.
    ///
    /// # Errors
    /// As for [`write_at`](Self::write_at).
    ///
    /// # Durability
    /// As for [`write_at`](Self::write_at).
    pub fn append(&self, bytes: &[u8]) -> Result<usize, FsError> {
        write::write(self.shared(), self.state(), None, bytes)
    }

    /// Changes the length. New bytes are zero.
    ///
    /// # Errors
    /// When this is no regular file, or it would be too long.
    ///
    /// # Durability
    /// Durable when this returns: a greater length with the fence of [`View::store_u64_pair`](pm_alloc::View::store_u64_pair), a smaller one with the
    /// commit of the first [`Heap::transaction`](pm_alloc::Heap::transaction), after which others free pages. A crash before that leaves the old
    /// length or the new one.
    pub fn truncate(&self, size: u64) -> Result<(), FsError> {
        truncate::truncate(self.shared(), self.state(), size)
    }

    /// Gives the holes of a range pages, so that writes to it find room: fallocate(2). The file gets longer if it ends before the range, unless
    /// `keeps_size`. Where 2 MiB of holes begin at a multiple of 2 MiB, they get a huge page, if there is one.
    ///
    /// # Errors
    /// When this is no regular file, the range is empty, or there is no room: then a part of the range may have pages.
    ///
    /// # Durability
    /// Durable when this returns: the pages with the commits of several [`Heap::transaction`](pm_alloc::Heap::transaction)s, the length with the
    /// fence of [`View::store_u64_pair`](pm_alloc::View::store_u64_pair). A crash before that leaves the old length or the new one.
    pub fn allocate(&self, offset: u64, len_bytes: u64, keeps_size: bool) -> Result<(), FsError> {
        let how = Allocation { grows: !keeps_size, zeroes: false };
        allocate::allocate(self.shared(), self.state(), ByteRange { offset, len_bytes }, how)
    }

    /// As [`allocate`](Self::allocate), and makes the bytes that are there zero: `FALLOC_FL_ZERO_RANGE`.
    ///
    /// # Errors
    /// As for [`allocate`](Self::allocate).
    ///
    /// # Durability
    /// Durable when this returns, with the fence of [`View::store_u64_pair`](pm_alloc::View::store_u64_pair); a crash before that leaves each 8-byte
    /// word of the range old or zero.
    pub fn zero_range(&self, offset: u64, len_bytes: u64, keeps_size: bool) -> Result<(), FsError> {
        let how = Allocation { grows: !keeps_size, zeroes: true };
        allocate::allocate(self.shared(), self.state(), ByteRange { offset, len_bytes }, how)
    }

    /// Makes a range zero, and frees the pages that are wholly in it: `FALLOC_FL_PUNCH_HOLE`. The length stays.
    ///
    /// # Errors
    /// When this is no regular file, or the range is empty.
    ///
    /// # Durability
    /// Durable when this returns, with the fence of [`View::store_u64_pair`](pm_alloc::View::store_u64_pair); a crash before that leaves each 8-byte
    /// word of the range old or zero.
    pub fn punch_hole(&self, offset: u64, len_bytes: u64) -> Result<(), FsError> {
        truncate::punch(self.shared(), self.state(), ByteRange { offset, len_bytes })
    }

    /// The first offset that has data, from `offset` on: `SEEK_DATA` of lseek(2).
    ///
    /// # Errors
    /// [`NoData`](FsError::NoData) when only a hole follows.
    pub fn seek_data(&self, offset: u64) -> Result<u64, FsError> {
        read::seek(self.shared(), self.state(), offset, true)
    }

    /// The first offset in a hole, from `offset` on, at last the end of the file: `SEEK_HOLE` of lseek(2).
    ///
    /// # Errors
    /// [`NoData`](FsError::NoData) when `offset` is behind the end.
    pub fn seek_hole(&self, offset: u64) -> Result<u64, FsError> {
        read::seek(self.shared(), self.state(), offset, false)
    }

    /// The value of an extended attribute: getxattr(2).
    ///
    /// # Errors
    /// [`NoAttribute`](FsError::NoAttribute) when there is none, or when the attributes are corrupted.
    pub fn xattr(&self, name: impl AsRef<[u8]>) -> Result<Vec<u8>, FsError> {
        xattr::all(self.shared(), self.state())?.remove(name.as_ref()).ok_or(FsError::NoAttribute)
    }

    /// The names of all extended attributes, in ascending order.
    ///
    /// # Errors
    /// When the attributes are corrupted.
    pub fn xattrs(&self) -> Result<Vec<Vec<u8>>, FsError> {
        Ok(xattr::all(self.shared(), self.state())?.into_keys().collect())
    }

    /// Sets an extended attribute. All attributes of a file have 64 KiB. `system.posix_acl_access` and `system.posix_acl_default` are access control
    /// lists: the first changes the permissions, which change it, and the second one is for directories, and inherited by new files in them.
    ///
    /// # Errors
    /// When it exists or does not, against `how`; when the name is empty or too long, an access control list is invalid, or there is no room.
    ///
    /// # Durability
    /// Durable when this returns, with the commit of one [`Heap::transaction`](pm_alloc::Heap::transaction); a crash before that leaves all
    /// attributes as they were. Two fences.
    pub fn set_xattr(
        &self,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        how: SetXattr,
    ) -> Result<(), FsError> {
        xattr::set(self.shared(), self.state(), name.as_ref(), value.as_ref(), how)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`NoAttribute`](FsError::NoAttribute) when there is none.
    ///
    /// # Durability
    /// As for [`set_xattr`](Self::set_xattr).
    pub fn remove_xattr(&self, name: impl AsRef<[u8]>) -> Result<(), FsError> {
        xattr::remove(self.shared(), self.state(), name.as_ref())
    }

    /// Maps a range of this file: mmap(2). Holes in it get pages, which are zero. A range of huge pages, as [`allocate`](Self::allocate) makes them,
    /// is the fastest.
    ///
    /// # Errors
    /// When this is no regular file, the range is empty or ends behind the file, or there is no room.
    ///
    /// # Durability
    /// Durable when this returns: the pages of the holes with the commits of several [`Heap::transaction`](pm_alloc::Heap::transaction)s. Nothing is
    /// stored if there are no holes; else two fences for each 64 pages.
    pub fn map(&self, offset: u64, len_bytes: u64) -> Result<Map<P>, FsError> {
        Map::new(&self.open, ByteRange { offset, len_bytes })
    }

    fn make(&self, name: &[u8], new: NewNode<'_>) -> Result<Self, FsError> {
        let at = DirName { dir: self.state(), name };
        Ok(self.with(create::create(self.shared(), at, new)?))
    }

    fn with(&self, state: Arc<State>) -> Self {
        Self { open: self.open.another(state) }
    }
}
