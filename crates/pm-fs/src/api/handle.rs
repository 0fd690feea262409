//! Handles to files and directories, and the calls on them.

use crate::error::FsError;
use crate::format::FLAG_STRICT;
use crate::node::acl;
use crate::node::attribute_block;
use crate::node::dir::Entry;
use crate::node::inode::{Attributes, FileKind, NewInode, PERMISSIONS, TYPE_MASK};
use crate::ops::data::{self, Allocation};
use crate::ops::namei;
use crate::ops::write;
use crate::ops::xattr::{self, SetXattr};
use crate::session::shared::Shared;
use crate::session::table::{Life, State};
use crate::volume::Source as _;
use core::fmt;
use pm_core::{Pmem, Region};
use std::sync::Arc;

/// A handle to a file, a directory or another inode. The file exists as long as a handle to it, with or without a name, and the file system stays open.
pub struct Handle<P: Pmem = Region> {
    shared: Arc<Shared<P>>,
    state: Arc<State>,
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

/// What an attribute is to become; `None` leaves it as it is. Times are in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in stat(2)")]
pub struct SetAttributes {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub atime_ns: Option<i64>,
    pub mtime_ns: Option<i64>,
}

impl<P: Pmem> fmt::Debug for Handle<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("inode", &self.state.inode).finish_non_exhaustive()
    }
}

impl<P: Pmem> Clone for Handle<P> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), state: self.shared.table.open_again(&self.state) }
    }
}

impl<P: Pmem> Drop for Handle<P> {
    /// Frees the file if it has no name and this was its last handle. If that fails, the next open frees it.
    fn drop(&mut self) {
        drop(self.shared.release(&self.state));
    }
}

impl<P: Pmem> Handle<P> {
    pub(crate) const fn new(shared: Arc<Shared<P>>, state: Arc<State>) -> Self {
        Self { shared, state }
    }

    pub(crate) fn shared(&self) -> &Shared<P> {
        &self.shared
    }

    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// The number of the inode.
    #[must_use]
    pub fn ino(&self) -> u64 {
        self.state.inode.ino
    }

    /// A number that tells the file apart from others that have had its number.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.state.inode.birth
    }

    /// The bytes of the pages of a file, without its holes: `st_blocks` of stat(2), in bytes. Takes longer for longer files: it counts.
    ///
    /// # Errors
    /// When this is no regular file, or its index is corrupted.
    pub fn allocated_bytes(&self) -> Result<u64, FsError> {
        data::allocated_bytes(&self.shared, &self.state)
    }

    /// The type.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.state.inode.kind
    }

    /// The attributes: stat(2).
    ///
    /// # Errors
    /// When the inode is corrupted.
    pub fn attributes(&self) -> Result<Attributes, FsError> {
        let _inner = self.state.read();
        self.state.inode.attributes(&self.shared.volume)
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// When the inode is corrupted, or a fence fails.
    ///
    /// # Durability
    /// Durable when this returns; a crash before that leaves the old ones or the new ones. One fence; up to four for the mode of a file with an access control list.
    pub fn set_attributes(&self, set: &SetAttributes) -> Result<(), FsError> {
        let volume = self.shared.prepared()?;
        let inode = &self.state.inode;
        let _inner = self.state.write();
        let now = volume.now();
        let old = inode.attributes(volume)?;
        let mut xattrs = if set.mode.is_some() {
            attribute_block::load(volume, inode)?
        } else {
            attribute_block::Attributes::new()
        };
        let changes_acl = set.mode.is_some_and(|mode| acl::change_mode(&mut xattrs, mode));
        volume.transaction(|change| {
            if changes_acl {
                attribute_block::replace(change, inode, &xattrs)?;
            }
            let stored_wtime = change.word(inode.wtime_at())?;
            inode.edit(change, |identity| {
                if let Some(mode) = set.mode {
                    identity.mode = identity.mode & TYPE_MASK | mode & PERMISSIONS;
                }
                identity.uid = set.uid.unwrap_or(identity.uid);
                identity.gid = set.gid.unwrap_or(identity.gid);
                if let Some(mtime) = set.mtime_ns {
                    (identity.mtime_set, identity.mtime_set_at) = (mtime.cast_unsigned(), stored_wtime);
                }
            })?;
            if let Some(atime) = set.atime_ns {
                change.set(inode.atime_at(), atime.cast_unsigned())?;
            }
            change.set(inode.ctime_at(), now.max(old.ctime_ns.cast_unsigned()))
        })
    }

    /// Makes writes to this file atomic, or only durable. In a strict file, of the bytes that a [`write_at`](Self::write_at) overwrites all are old after a crash, or all
    /// new, up to [`ATOMIC_WRITE_BYTES`](crate::ATOMIC_WRITE_BYTES); a longer write is several such writes, in ascending order. They go to new pages, and cost two fences.
    ///
    /// # Errors
    /// When this is no regular file, or a fence fails.
    ///
    /// # Durability
    /// Durable when this returns. One fence.
    pub fn set_strict(&self, is_strict: bool) -> Result<(), FsError> {
        if self.kind() != FileKind::File {
            return Err(FsError::Invalid);
        }
        let (volume, inode) = (self.shared.prepared()?, &self.state.inode);
        let inner = self.state.write();
        if inner.life == Life::Freed {
            return Err(FsError::NotFound);
        }
        let now = volume.now();
        volume.transaction(|change| {
            inode.edit(change, |identity| {
                identity.flags = identity.flags & !FLAG_STRICT | if is_strict { FLAG_STRICT } else { 0 };
            })?;
            change.set(inode.ctime_at(), now)
        })
    }

    /// Whether writes to this file are atomic, because of [`set_strict`](Self::set_strict) or [`FsOptions::strict`](crate::FsOptions::strict).
    ///
    /// # Errors
    /// When the inode is corrupted.
    pub fn is_strict(&self) -> Result<bool, FsError> {
        let _inner = self.state.read();
        self.state.inode.is_strict(&self.shared.volume)
    }

    /// The file with a name in this directory.
    ///
    /// # Errors
    /// When there is none, or this is no directory.
    pub fn lookup(&self, name: impl AsRef<[u8]>) -> Result<Self, FsError> {
        Ok(self.with(namei::lookup(&self.shared, &self.state, name.as_ref())?))
    }

    /// The entries of this directory behind the one with a cookie, all of them for 0. `.` and `..` are not among them.
    ///
    /// # Errors
    /// When this is no directory, or has no name any more.
    pub fn entries(&self, behind: u64) -> Result<Vec<Entry>, FsError> {
        namei::entries(&self.shared, &self.state, behind)
    }

    /// Creates a regular file.
    ///
    /// # Errors
    /// When the name exists or is invalid, this is no directory, or there is no room.
    ///
    /// # Durability
    /// Durable when this returns; a crash before that leaves the file or not. One fence; two if the directory gets a block.
    pub fn create(&self, name: impl AsRef<[u8]>, new: NewFile) -> Result<Self, FsError> {
        self.make(name.as_ref(), FileKind::File, new, 0, b"")
    }

    /// Creates a regular file without a name, which [`link`](Self::link) may give it: `O_TMPFILE` of open(2). It inherits the access control list of this directory.
    ///
    /// # Errors
    /// When this is no directory, or there is no room.
    ///
    /// # Durability
    /// The file is freed with its last handle, or after a crash, unless it has got a name. One fence; two if the list of such files gets a block.
    pub fn create_unnamed(&self, new: NewFile) -> Result<Self, FsError> {
        let NewFile { mode, uid, gid, umask } = new;
        let new = NewInode { kind: FileKind::File, mode, uid, gid, rdev: 0, parent: 0, nlink: 0 };
        Ok(self.with(namei::create_unnamed(&self.shared, &self.state, new, umask)?))
    }

    /// Creates a directory.
    ///
    /// # Errors
    /// As for [`create`](Self::create).
    ///
    /// # Durability
    /// As for [`create`](Self::create).
    pub fn mkdir(&self, name: impl AsRef<[u8]>, new: NewFile) -> Result<Self, FsError> {
        self.make(name.as_ref(), FileKind::Directory, new, 0, b"")
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
        self.make(name.as_ref(), FileKind::Symlink, NewFile { mode: 0o777, ..new }, 0, target)
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
            _ => self.make(name.as_ref(), kind, new, rdev, b""),
        }
    }

    fn make(
        &self,
        name: &[u8],
        kind: FileKind,
        new: NewFile,
        rdev: u32,
        target: &[u8],
    ) -> Result<Self, FsError> {
        let NewFile { mode, uid, gid, umask } = new;
        let is_dir = kind == FileKind::Directory;
        let (parent, nlink) = if is_dir { (self.ino(), 2) } else { (0, 1) };
        let new = NewInode { kind, mode, uid, gid, rdev, parent, nlink };
        Ok(self.with(namei::create(&self.shared, &self.state, name, new, (umask, target))?))
    }

    /// Gives a file a name in this directory.
    ///
    /// # Errors
    /// When the name exists or is invalid, the file is a directory or has no name any more, or there is no room. A file [without a name](Self::create_unnamed) may get
    /// its first one.
    ///
    /// # Durability
    /// Durable when this returns; a crash before that leaves the name or not. One fence; two if the directory gets a block.
    pub fn link(&self, file: &Self, name: impl AsRef<[u8]>) -> Result<(), FsError> {
        namei::link(&self.shared, &file.state, &self.state, name.as_ref())
    }

    /// Removes a name of a file that is no directory.
    ///
    /// # Errors
    /// When there is none, or it is a directory's.
    ///
    /// # Durability
    /// Durable when this returns; a crash before that leaves the name or not. One fence. A file that is open or has more than eight pages is freed later, or by
    /// further transactions.
    pub fn unlink(&self, name: impl AsRef<[u8]>) -> Result<(), FsError> {
        namei::unlink(&self.shared, &self.state, name.as_ref(), false)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// When there is none, it is no directory, or it has entries.
    ///
    /// # Durability
    /// As for [`unlink`](Self::unlink).
    pub fn rmdir(&self, name: impl AsRef<[u8]>) -> Result<(), FsError> {
        namei::unlink(&self.shared, &self.state, name.as_ref(), true)
    }

    /// Renames a file, from this directory to `to_dir`. A file that has the new name loses it, if it is no directory with entries.
    ///
    /// # Errors
    /// When there is no such file; when a directory would be below itself, would replace a file, or the other way round.
    ///
    /// # Durability
    /// Durable when this returns; a crash before that leaves the old state. One fence; two if the directory gets a block.
    pub fn rename(&self, from: impl AsRef<[u8]>, to_dir: &Self, to: impl AsRef<[u8]>) -> Result<(), FsError> {
        let (from, to) = ((&*self.state, from.as_ref()), (&*to_dir.state, to.as_ref()));
        namei::rename(&self.shared, from, to, false)
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
        let (from, to) = ((&*self.state, from.as_ref()), (&*to_dir.state, to.as_ref()));
        namei::rename(&self.shared, from, to, true)
    }

    /// Exchanges two files: each gets the other's name, in this directory and in `other_dir`, whatever their types.
    ///
    /// # Errors
    /// When one of them does not exist, or a directory would be below itself.
    ///
    /// # Durability
    /// Durable when this returns; a crash before that leaves the old state. One fence.
    pub fn exchange(
        &self,
        name: impl AsRef<[u8]>,
        other_dir: &Self,
        other: impl AsRef<[u8]>,
    ) -> Result<(), FsError> {
        let (one, other) = ((&*self.state, name.as_ref()), (&*other_dir.state, other.as_ref()));
        namei::exchange(&self.shared, one, other)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// When this is none.
    pub fn read_link(&self) -> Result<Vec<u8>, FsError> {
        let _inner = self.state.read();
        namei::read_link(&self.shared.volume, &self.state.inode)
    }

    /// Reads bytes from an offset, and returns their number: fewer at the end of the file.
    ///
    /// # Errors
    /// When this is no regular file.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize, FsError> {
        data::read(&self.shared, &self.state, offset, out)
    }

    /// Writes bytes at an offset, and returns their number: fewer if there is no room for all.
    ///
    /// # Errors
    /// When this is no regular file, it would be too long, or there is no room.
    ///
    /// # Durability
    /// Durable when this returns. A crash before that leaves the old length, the new one, or one between them, and never a length before its bytes; of bytes that
    /// are overwritten each 8-byte word is old or new, and in a [strict](Self::set_strict) file all are. One fence if the pages are there and the length stays, and else
    /// two; two more for each further 64 pages.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<usize, FsError> {
        write::write(&self.shared, &self.state, Some(offset), bytes)
    }

    /// Writes bytes at the end.
    ///
    /// # Errors
    /// As for [`write_at`](Self::write_at).
    ///
    /// # Durability
    /// As for [`write_at`](Self::write_at).
    pub fn append(&self, bytes: &[u8]) -> Result<usize, FsError> {
        write::write(&self.shared, &self.state, None, bytes)
    }

    /// Changes the length. New bytes are zero.
    ///
    /// # Errors
    /// When this is no regular file, or it would be too long.
    ///
    /// # Durability
    /// Durable when this returns; a crash before that leaves the old length or the new one.
    pub fn truncate(&self, size: u64) -> Result<(), FsError> {
        data::truncate(&self.shared, &self.state, size)
    }

    /// Gives the holes of a range pages, so that writes to it find room: fallocate(2). The file gets longer if it ends before the range, unless `keeps_size`. Where 2 MiB of holes
    /// begin at a multiple of 2 MiB, they get a huge page, if there is one.
    ///
    /// # Errors
    /// When this is no regular file, the range is empty, or there is no room: then a part of the range may have pages.
    ///
    /// # Durability
    /// Durable when this returns; a crash before that leaves the old length or the new one.
    pub fn allocate(&self, offset: u64, len_bytes: u64, keeps_size: bool) -> Result<(), FsError> {
        let how = Allocation { grows: !keeps_size, zeroes: false };
        data::allocate(&self.shared, &self.state, (offset, len_bytes), how)
    }

    /// As [`allocate`](Self::allocate), and makes the bytes that are there zero: `FALLOC_FL_ZERO_RANGE`.
    ///
    /// # Errors
    /// As for [`allocate`](Self::allocate).
    ///
    /// # Durability
    /// Durable when this returns; a crash before that leaves each 8-byte word of the range old or zero.
    pub fn zero_range(&self, offset: u64, len_bytes: u64, keeps_size: bool) -> Result<(), FsError> {
        let how = Allocation { grows: !keeps_size, zeroes: true };
        data::allocate(&self.shared, &self.state, (offset, len_bytes), how)
    }

    /// Makes a range zero, and frees the pages that are wholly in it: `FALLOC_FL_PUNCH_HOLE`. The length stays.
    ///
    /// # Errors
    /// When this is no regular file, or the range is empty.
    ///
    /// # Durability
    /// Durable when this returns; a crash before that leaves each 8-byte word of the range old or zero.
    pub fn punch_hole(&self, offset: u64, len_bytes: u64) -> Result<(), FsError> {
        data::punch(&self.shared, &self.state, (offset, len_bytes))
    }

    /// The first offset that has data, from `offset` on: `SEEK_DATA` of lseek(2).
    ///
    /// # Errors
    /// [`NoData`](FsError::NoData) when only a hole follows.
    pub fn seek_data(&self, offset: u64) -> Result<u64, FsError> {
        data::seek(&self.shared, &self.state, offset, true)
    }

    /// The first offset in a hole, from `offset` on, at last the end of the file: `SEEK_HOLE` of lseek(2).
    ///
    /// # Errors
    /// [`NoData`](FsError::NoData) when `offset` is behind the end.
    pub fn seek_hole(&self, offset: u64) -> Result<u64, FsError> {
        data::seek(&self.shared, &self.state, offset, false)
    }

    /// The value of an extended attribute: getxattr(2).
    ///
    /// # Errors
    /// [`NoAttribute`](FsError::NoAttribute) when there is none, or when the attributes are corrupted.
    pub fn xattr(&self, name: impl AsRef<[u8]>) -> Result<Vec<u8>, FsError> {
        self.all_xattrs()?.remove(name.as_ref()).ok_or(FsError::NoAttribute)
    }

    /// The names of all extended attributes, in ascending order.
    ///
    /// # Errors
    /// When the attributes are corrupted.
    pub fn xattrs(&self) -> Result<Vec<Vec<u8>>, FsError> {
        Ok(self.all_xattrs()?.into_keys().collect())
    }

    fn all_xattrs(&self) -> Result<attribute_block::Attributes, FsError> {
        let _inner = self.state.read();
        attribute_block::load(&self.shared.volume, &self.state.inode)
    }

    /// Sets an extended attribute. All attributes of a file have 64 KiB. `system.posix_acl_access` and `system.posix_acl_default` are access control lists: the first
    /// changes the permissions, which change it, and the second one is for directories, and inherited by new files in them.
    ///
    /// # Errors
    /// When it exists or does not, against `how`; when the name is empty or too long, an access control list is invalid, or there is no room.
    ///
    /// # Durability
    /// Durable when this returns; a crash before that leaves all attributes as they were. Two fences.
    pub fn set_xattr(
        &self,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        how: SetXattr,
    ) -> Result<(), FsError> {
        xattr::set(&self.shared, &self.state, (name.as_ref(), value.as_ref()), how)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`NoAttribute`](FsError::NoAttribute) when there is none.
    ///
    /// # Durability
    /// As for [`set_xattr`](Self::set_xattr).
    pub fn remove_xattr(&self, name: impl AsRef<[u8]>) -> Result<(), FsError> {
        xattr::remove(&self.shared, &self.state, name.as_ref())
    }

    fn with(&self, state: Arc<State>) -> Self {
        Self { shared: Arc::clone(&self.shared), state }
    }
}
