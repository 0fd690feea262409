//! Inodes: their words, what they say, and how they change.

use crate::error::FsError;
use crate::format::{FLAG_STRICT, HEIGHT_MAX, INODE_TAG, Identity, Inode, NO_TREE, Status};
use crate::volume::seal::{self, CONTENTS_MAX, Owner};
use crate::volume::{Change, Source, Volume};
use core::mem::{offset_of, size_of};
use pm_core::Pmem;
use pm_core::line::LINE_BYTES;

/// The type bits of a mode.
pub(crate) const TYPE_MASK: u32 = 0o170_000;

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// A named pipe.
    Pipe = 0o1,
    /// A character device.
    CharDevice = 0o2,
    /// A directory.
    Directory = 0o4,
    /// A block device.
    BlockDevice = 0o6,
    /// A regular file.
    File = 0o10,
    /// A symbolic link.
    Symlink = 0o12,
    /// A socket.
    Socket = 0o14,
}

impl FileKind {
    /// The kind with this number, the upper four bits of `st_mode`.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0o1 => Self::Pipe,
            0o2 => Self::CharDevice,
            0o4 => Self::Directory,
            0o6 => Self::BlockDevice,
            0o10 => Self::File,
            0o12 => Self::Symlink,
            0o14 => Self::Socket,
            _ => return None,
        })
    }

    /// Its bits of a mode.
    #[must_use]
    pub const fn bits(self) -> u32 {
        (self as u32) << 12
    }

    pub(crate) fn of_mode(mode: u32) -> Option<Self> {
        Self::from_number(u8::try_from((mode & TYPE_MASK) >> 12).unwrap_or(0))
    }
}

/// The attributes of a file: stat(2). Times are in nanoseconds since 1970; those before that are negative. Reads do not change `atime_ns`, as with
/// `noatime` of mount(8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in stat(2)")]
pub struct Attributes {
    pub ino: u64,
    /// Tells files apart that have had the same number.
    pub generation: u64,
    pub kind: FileKind,
    /// The permissions, the lower twelve bits of `st_mode`.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub nlink: u64,
    pub size: u64,
    pub atime_ns: i64,
    pub mtime_ns: i64,
    pub ctime_ns: i64,
}

/// An inode that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InodeRef {
    pub(crate) ino: u64,
    pub(crate) birth: u64,
    pub(crate) kind: FileKind,
}

/// A new inode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewInode {
    pub(crate) kind: FileKind,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u32,
    pub(crate) parent: u64,
    pub(crate) nlink: u64,
}

/// The bits of a mode that are permissions.
pub(crate) const PERMISSIONS: u32 = 0o7777;

/// The offset of an inode with this number.
pub(crate) const fn offset_of_ino(ino: u64) -> u64 {
    ino.saturating_mul(LINE_BYTES)
}

const STATUS: u64 = offset_of!(Inode, status) as u64;

impl InodeRef {
    /// Finds the inode with this number.
    pub(crate) fn find<P: Pmem>(volume: &Volume<P>, ino: u64) -> Result<Self, FsError> {
        let identity = load_identity(volume, ino)?;
        let kind = FileKind::of_mode(identity.mode);
        let kind = kind.ok_or(FsError::corrupted(offset_of_ino(ino), "the type of an inode"))?;
        Ok(Self { ino, birth: identity.birth, kind })
    }

    pub(crate) const fn owner(&self) -> Owner {
        Owner { ino: self.ino, birth: self.birth }
    }

    const fn at(&self, field: usize) -> u64 {
        offset_of_ino(self.ino) + STATUS + field as u64
    }

    /// The offset of the pair of size and time.
    pub(crate) const fn size_at(&self) -> u64 {
        self.at(offset_of!(Status, size))
    }

    pub(crate) const fn ctime_at(&self) -> u64 {
        self.at(offset_of!(Status, ctime))
    }

    pub(crate) const fn atime_at(&self) -> u64 {
        self.at(offset_of!(Status, atime))
    }

    pub(crate) const fn wtime_at(&self) -> u64 {
        self.at(offset_of!(Status, wtime))
    }

    const fn nlink_at(&self) -> u64 {
        self.at(offset_of!(Status, nlink))
    }

    const fn xattr_at(&self) -> u64 {
        self.at(offset_of!(Status, xattr))
    }

    pub(crate) const fn height_at(&self) -> u64 {
        self.at(offset_of!(Status, height))
    }

    /// The offset of the slots, and of the target of a short symbolic link.
    pub(crate) const fn slots_at(&self) -> u64 {
        offset_of_ino(self.ino) + offset_of!(Inode, slots) as u64
    }

    pub(crate) fn size(&self, source: &impl Source) -> Result<u64, FsError> {
        source.sealed(self.owner(), self.size_at())
    }

    pub(crate) fn nlink(&self, source: &impl Source) -> Result<u64, FsError> {
        source.sealed(self.owner(), self.nlink_at())
    }

    pub(crate) fn height(&self, source: &impl Source) -> Result<u64, FsError> {
        match source.sealed(self.owner(), self.height_at())? {
            height @ (0..=HEIGHT_MAX | NO_TREE) => Ok(height),
            _ => Err(FsError::corrupted(self.height_at(), "the height of a file index")),
        }
    }

    /// The offset of the block of its extended attributes.
    pub(crate) fn xattr(&self, source: &impl Source) -> Result<Option<u64>, FsError> {
        if source.word(self.xattr_at())? == 0 {
            return Ok(None);
        }
        Ok(Some(source.sealed(self.owner(), self.xattr_at())?.saturating_mul(LINE_BYTES)))
    }

    /// Frees the block of its extended attributes, if it has one.
    pub(crate) fn free_xattr<P: Pmem>(&self, change: &mut Change<'_, '_, P>) -> Result<(), FsError> {
        match self.xattr(change)? {
            Some(offset) => change.free(offset),
            None => Ok(()),
        }
    }

    pub(crate) fn set_xattr<P: Pmem>(
        &self,
        change: &mut Change<'_, '_, P>,
        block: Option<u64>,
    ) -> Result<(), FsError> {
        match block {
            Some(offset) => change.set_sealed(self.owner(), self.xattr_at(), offset / LINE_BYTES),
            None => change.set(self.xattr_at(), 0),
        }
    }

    /// The number of names after some were gained and lost: `nlink`, from the medium, may be corrupted.
    pub(crate) fn changed_nlink(&self, nlink: u64, gained: u64, lost: u64) -> Result<u64, FsError> {
        let changed = nlink.saturating_add(gained).checked_sub(lost).filter(|nlink| *nlink <= CONTENTS_MAX);
        changed.ok_or(FsError::corrupted(self.nlink_at(), "the number of links"))
    }

    pub(crate) fn set_nlink<P: Pmem>(
        &self,
        change: &mut Change<'_, '_, P>,
        nlink: u64,
    ) -> Result<(), FsError> {
        change.set_sealed(self.owner(), self.nlink_at(), nlink)
    }

    pub(crate) fn set_size<P: Pmem>(&self, change: &mut Change<'_, '_, P>, size: u64) -> Result<(), FsError> {
        change.set_sealed(self.owner(), self.size_at(), size)
    }

    /// Notes a change of the contents, and so of the inode.
    pub(crate) fn touch<P: Pmem>(&self, change: &mut Change<'_, '_, P>, now: u64) -> Result<(), FsError> {
        let now = self.wtime_for(change.volume, now)?;
        change.set(self.wtime_at(), now)?;
        change.set(self.ctime_at(), now)
    }

    /// The time to store as `wtime`: another one than the time at which the modification time was set.
    pub(crate) fn wtime_for<P: Pmem>(&self, volume: &Volume<P>, now: u64) -> Result<u64, FsError> {
        let at = offset_of_ino(self.ino) + offset_of!(Identity, mtime_set_at) as u64;
        let set_at = volume.word(at)?;
        Ok(if now == set_at { now + 1 } else { now })
    }

    /// Whether writes to the file are atomic.
    pub(crate) fn is_strict<P: Pmem>(&self, volume: &Volume<P>) -> Result<bool, FsError> {
        // Not verified again: it was when the inode was opened, and every write asks.
        const { assert!(offset_of!(Identity, flags) == offset_of!(Identity, gid) + 4) };
        let gid_and_flags = volume.word(offset_of_ino(self.ino) + offset_of!(Identity, gid) as u64)?;
        Ok(volume.is_strict || gid_and_flags >> 32 & u64::from(FLAG_STRICT) != 0)
    }

    pub(crate) fn attributes<P: Pmem>(&self, volume: &Volume<P>) -> Result<Attributes, FsError> {
        let identity = load_identity(volume, self.ino)?;
        let status: Status = volume.load(offset_of_ino(self.ino) + STATUS)?;
        let is_set = status.wtime == identity.mtime_set_at;
        Ok(Attributes {
            ino: self.ino,
            generation: self.birth,
            kind: self.kind,
            mode: identity.mode & !TYPE_MASK,
            uid: identity.uid,
            gid: identity.gid,
            rdev: identity.rdev,
            nlink: self.nlink(volume)?,
            size: self.size(volume)?,
            atime_ns: status.atime.cast_signed(),
            mtime_ns: if is_set { identity.mtime_set } else { status.wtime }.cast_signed(),
            ctime_ns: status.ctime.max(status.wtime).cast_signed(),
        })
    }

    /// What the inode is, with the changes of a transaction.
    pub(crate) fn identity<P: Pmem>(&self, change: &Change<'_, '_, P>) -> Result<Identity, FsError> {
        verified(change.load(offset_of_ino(self.ino))?, change.volume.seed, self.ino)
    }

    /// Changes what the inode is. The checksum of `identity` may be wrong.
    pub(crate) fn set_identity<P: Pmem>(
        &self,
        change: &mut Change<'_, '_, P>,
        identity: Identity,
    ) -> Result<(), FsError> {
        change.write(offset_of_ino(self.ino), &identity.sealed(change.volume.seed, self.ino))
    }

    /// Gives a directory another parent.
    pub(crate) fn set_parent<P: Pmem>(
        &self,
        change: &mut Change<'_, '_, P>,
        parent: u64,
    ) -> Result<(), FsError> {
        let identity = self.identity(change)?;
        self.set_identity(change, Identity { parent, ..identity })
    }
}

impl NewInode {
    /// Allocates it.
    pub(crate) fn create<P: Pmem>(
        &self,
        change: &mut Change<'_, '_, P>,
        now: u64,
    ) -> Result<InodeRef, FsError> {
        let offset = change.alloc_uninit(size_of::<Inode>() as u64)?;
        let (ino, birth, seed) = (offset / LINE_BYTES, change.volume.next_birth(), change.volume.seed);
        let inode = InodeRef { ino, birth, kind: self.kind };
        let identity = Identity {
            tag: INODE_TAG,
            crc: 0,
            mode: self.kind.bits() | self.mode & PERMISSIONS,
            uid: self.uid,
            gid: self.gid,
            flags: 0,
            rdev: self.rdev,
            reserved: 0,
            birth,
            parent: self.parent,
            mtime_set: 0,
            mtime_set_at: 0,
        };
        change.write(offset, &identity.sealed(seed, ino))?;
        let seal = |at, contents| seal::seal(seed, inode.owner(), at, contents);
        let status = Status {
            size: seal(inode.size_at(), 0),
            wtime: now,
            ctime: now,
            atime: now,
            nlink: seal(inode.nlink_at(), self.nlink),
            height: seal(inode.height_at(), NO_TREE),
            xattr: 0,
            reserved: 0,
        };
        change.write(offset + STATUS, &status)?;
        Ok(inode)
    }
}

/// Loads the birth of an inode, a word that never changes; not verified.
pub(crate) fn load_birth<P: Pmem>(volume: &Volume<P>, ino: u64) -> Result<u64, FsError> {
    volume.word(offset_of_ino(ino).saturating_add(offset_of!(Identity, birth) as u64))
}

/// Loads the parent of a directory, not verified.
pub(crate) fn load_parent<P: Pmem>(volume: &Volume<P>, ino: u64) -> Result<u64, FsError> {
    volume.word(offset_of_ino(ino).saturating_add(offset_of!(Identity, parent) as u64))
}

/// Loads what an inode is, and verifies it.
pub(crate) fn load_identity<P: Pmem>(volume: &Volume<P>, ino: u64) -> Result<Identity, FsError> {
    verified(volume.load(offset_of_ino(ino))?, volume.seed, ino)
}

fn verified(identity: Identity, seed: u64, ino: u64) -> Result<Identity, FsError> {
    let is_right = identity.tag == INODE_TAG && identity.crc == identity.expected_crc(seed, ino);
    if is_right { Ok(identity) } else { Err(FsError::corrupted(offset_of_ino(ino), "an inode")) }
}
