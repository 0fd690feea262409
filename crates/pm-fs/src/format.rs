//! The bytes of a file system. `docs/format/fs.md` documents them.

use core::mem::{offset_of, size_of};
use pm_core::{Persist, bytes_of, crc32c_bytes, crc32c_words};

/// The name of the pool's root that points to the [`Superblock`].
pub const ROOT: &str = "pm-fs";

/// The first eight bytes of a superblock.
pub const MAGIC: [u8; 8] = *b"PMFS\r\n\x1a\n";

/// The format version.
pub const VERSION: u32 = 3;

/// The known features that a program must support to open the file system. None exist yet.
pub const KNOWN_INCOMPAT: u64 = 0;

/// The length of a page, the unit of file data.
pub const PAGE_BYTES: u64 = 4096;

/// The number of pages of a huge page, 2 MiB. They are adjacent, and the number of the first is a multiple of this.
pub const HUGE_PAGE_PAGES: u64 = NODE_SLOTS;

/// The length of a huge page.
pub const HUGE_PAGE_BYTES: u64 = HUGE_PAGE_PAGES * PAGE_BYTES;

/// The number of slots in an inode.
pub const ROOT_SLOTS: u64 = 8;

/// The number of slots in a node.
pub const NODE_SLOTS: u64 = 512;

/// The height of an inode that has no slots yet.
pub const NO_TREE: u64 = 15;

/// The greatest height of a file index.
pub const HEIGHT_MAX: u64 = 3;

/// The length of the longest name.
pub const NAME_MAX: usize = 255;

/// The length of the longest symbolic link that is kept in its inode: the slots and the reserved bytes.
pub const INLINE_LINK_MAX: usize = 112;

/// The first four bytes of an inode, a node and a directory block.
pub const INODE_TAG: u32 = u32::from_le_bytes(*b"INOD");
/// See [`INODE_TAG`].
pub const NODE_TAG: u32 = u32::from_le_bytes(*b"NODE");
/// See [`INODE_TAG`].
pub const XATTR_TAG: u32 = u32::from_le_bytes(*b"XATT");
/// See [`INODE_TAG`].
pub const DIR_TAG: u32 = u32::from_le_bytes(*b"DIRB");
/// See [`INODE_TAG`].
pub const SAVED_TAG: u32 = u32::from_le_bytes(*b"SAVD");

/// Where the file system begins: it never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[repr(C)]
pub struct Superblock {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: u32,
    /// Zero.
    pub reserved_0: u32,
    /// Features that a program must support to open the file system.
    pub features_incompat: u64,
    /// A random number that all checksums cover.
    pub seed: u64,
    /// The number of the root directory.
    pub root: u64,
    /// The number of the directory of files without a name that are still open.
    pub orphans: u64,
    /// The time of creation, in nanoseconds since 1970.
    pub created_ns: u64,
    /// The offset of the [`Saved`].
    pub saved: u64,
    /// Zero.
    pub reserved: [u64; 21],
    /// CRC-32C of all bytes before it.
    pub crc: u32,
    /// Zero.
    pub reserved_1: u32,
}

impl Superblock {
    /// The checksum that its contents give.
    #[must_use]
    pub fn expected_crc(&self) -> u32 {
        crc32c_bytes(0, &bytes_of(self)[..offset_of!(Self, crc)])
    }
}

/// What closing a file system saves, so that the next open need not look for it. It is forgotten before anything changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[repr(C)]
pub struct Saved {
    /// [`SAVED_TAG`].
    pub tag: u32,
    /// CRC-32C of the seed, the offset, and the other bytes.
    pub crc: u32,
    /// The offset of a block with the map of pages, a bit for each, set if it is in use. Zero if nothing is saved; then the fields below are zero.
    pub map: u64,
    /// The length of the map.
    pub map_bytes: u64,
    /// The last birth of an inode.
    pub birth: u64,
    /// CRC-32C of the map.
    pub map_crc: u32,
    /// Zero.
    pub reserved: u32,
    /// Zero.
    pub reserved_1: [u64; 3],
}

impl Saved {
    /// The checksum that its contents give at `offset`.
    #[must_use]
    pub fn expected_crc(&self, seed: u64, offset: u64) -> u32 {
        let without = Self { crc: 0, ..*self };
        crc32c_bytes(crc32c_words(&[seed, offset]), bytes_of(&without))
    }

    /// The same with the right checksum.
    #[must_use]
    pub fn sealed(self, seed: u64, offset: u64) -> Self {
        Self { crc: self.expected_crc(seed, offset), ..self }
    }
}

/// Writes to the file are atomic.
pub const FLAG_STRICT: u32 = 1;

/// What an inode is: the line that changes as a whole. Its number is its offset divided by 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[repr(C)]
pub struct Identity {
    /// [`INODE_TAG`].
    pub tag: u32,
    /// CRC-32C of the seed, the inode's number, and the other bytes of this line.
    pub crc: u32,
    /// The type and the permissions, as `st_mode`.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// [`FLAG_STRICT`], or zero.
    pub flags: u32,
    /// The device number of a device file.
    pub rdev: u32,
    /// Zero.
    pub reserved: u32,
    /// A number that no other inode has had.
    pub birth: u64,
    /// The parent of a directory; zero for other files.
    pub parent: u64,
    /// The modification time, while `wtime` equals `mtime_set_at`.
    pub mtime_set: u64,
    /// See `mtime_set`.
    pub mtime_set_at: u64,
}

impl Identity {
    /// The checksum that its contents give.
    #[must_use]
    pub fn expected_crc(&self, seed: u64, ino: u64) -> u32 {
        let without = Self { crc: 0, ..*self };
        crc32c_bytes(crc32c_words(&[seed, ino]), bytes_of(&without))
    }

    /// The same with the right checksum.
    #[must_use]
    pub fn sealed(self, seed: u64, ino: u64) -> Self {
        Self { crc: self.expected_crc(seed, ino), ..self }
    }
}

/// What changes with each use of an inode. Words that are sealed have a checksum in their upper 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[repr(C)]
pub struct Status {
    /// The length in bytes, sealed. With `wtime` a pair that is stored atomically.
    pub size: u64,
    /// The time of the last change of the contents, in nanoseconds since 1970.
    pub wtime: u64,
    /// The time of the last change of the inode.
    pub ctime: u64,
    /// The time of access that was set, at first that of creation.
    pub atime: u64,
    /// The number of names, sealed; of a directory, two and the number of its subdirectories.
    pub nlink: u64,
    /// The height of the file index, sealed: [`NO_TREE`], or the number of levels of nodes.
    pub height: u64,
    /// Zero, or sealed: the offset of the [`AttributeBlock`] divided by 64.
    pub xattr: u64,
    /// Zero.
    pub reserved: u64,
}

/// An inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[repr(C)]
pub struct Inode {
    /// What it is.
    pub identity: Identity,
    /// How it is.
    pub status: Status,
    /// The slots of the file index's root, unless the height is [`NO_TREE`]. With the reserved words, the target of a short symbolic link.
    pub slots: [u64; 8],
    /// Zero, or the rest of a short symbolic link.
    pub reserved: [u64; 6],
}

/// A node of a file index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[repr(C)]
pub struct Node {
    /// [`NODE_TAG`].
    pub tag: u32,
    /// CRC-32C of the seed, the node's offset, owner, birth and level.
    pub crc: u32,
    /// The number of its inode.
    pub owner: u64,
    /// The birth of its inode.
    pub birth: u64,
    /// 1 if its slots are those of pages or directory blocks, else the level of its children plus one.
    pub level: u64,
    /// Zero.
    pub reserved: [u64; 2],
    /// Its slots: zero for a hole, or sealed: a number of 40 bits, and above it 8 bits with a [`SlotKind`].
    pub slots: [u64; 512],
}

impl Node {
    /// The checksum of a node at `offset`.
    #[must_use]
    pub fn expected_crc(&self, seed: u64, offset: u64) -> u32 {
        crc32c_words(&[seed, offset, self.owner, self.birth, self.level])
    }
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SlotKind {
    /// A page: its offset divided by 4,096.
    Page = 1,
    /// A node: its offset divided by 64.
    Node = 2,
    /// A directory block: its offset divided by 64.
    DirBlock = 3,
    /// A huge page, in the place of a node of level 1: its offset divided by 4,096.
    HugePage = 4,
}

impl SlotKind {
    /// The kind with this number.
    #[must_use]
    pub const fn from_number(number: u64) -> Option<Self> {
        match number {
            1 => Some(Self::Page),
            2 => Some(Self::Node),
            3 => Some(Self::DirBlock),
            4 => Some(Self::HugePage),
            _ => None,
        }
    }
}

/// The bytes of entries in a directory block.
pub const DIR_ENTRIES_BYTES: u64 = 4048;

/// A block of a directory: entries, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[repr(C)]
pub struct DirBlock {
    /// [`DIR_TAG`].
    pub tag: u32,
    /// Zero.
    pub reserved: u32,
    /// The number of its directory.
    pub owner: u64,
    /// The birth of its directory.
    pub birth: u64,
    /// The length of its entries, sealed.
    pub end: u64,
    /// The entries, which do not move.
    pub entries: [u8; 4048],
}

/// An entry of a directory, before its name, which is padded with zeros to a multiple of 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[repr(C)]
pub struct DirEntry {
    /// The number of the inode.
    pub ino: u64,
    /// The length of the entry with its name.
    pub len_bytes: u16,
    /// The length of the name; zero if the entry is free.
    pub name_len: u8,
    /// The type of the file, the upper four bits of `st_mode`.
    pub kind: u8,
    /// CRC-32C of the seed, the entry's offset, its other fields and its name.
    pub crc: u32,
}

/// The length of a [`DirEntry`].
pub const DIR_ENTRY_BYTES: u64 = size_of::<DirEntry>() as u64;

impl DirEntry {
    /// The length of an entry with a name of this length.
    #[must_use]
    pub const fn len_for(name_len: usize) -> u64 {
        DIR_ENTRY_BYTES + (name_len as u64).next_multiple_of(8)
    }

    /// The checksum of this entry at `offset` with this name.
    #[must_use]
    pub fn expected_crc(&self, seed: u64, offset: u64, name: &[u8]) -> u32 {
        let without = Self { crc: 0, ..*self };
        crc32c_bytes(crc32c_bytes(crc32c_words(&[seed, offset]), bytes_of(&without)), name)
    }
}

/// The most bytes of the entries of an [`AttributeBlock`].
pub const ATTRIBUTES_MAX: u64 = 64 << 10;

/// The extended attributes of an inode: this head, and entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[repr(C)]
pub struct AttributeBlock {
    /// [`XATTR_TAG`].
    pub tag: u32,
    /// CRC-32C of the seed, the block's offset, this head without it, and the entries.
    pub crc: u32,
    /// The number of the inode.
    pub owner: u64,
    /// The birth of the inode.
    pub birth: u64,
    /// The length of the entries.
    pub len_bytes: u32,
    /// Zero.
    pub reserved: u32,
}

impl AttributeBlock {
    /// The checksum of a block at `offset` with these entries.
    #[must_use]
    pub fn expected_crc(&self, seed: u64, offset: u64, entries: &[u8]) -> u32 {
        let without = Self { crc: 0, ..*self };
        crc32c_bytes(crc32c_bytes(crc32c_words(&[seed, offset]), bytes_of(&without)), entries)
    }
}

/// An extended attribute, before its name and its value, which are padded with zeros to a multiple of 8 together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[repr(C)]
pub struct AttributeEntry {
    /// The length of the value.
    pub value_len: u32,
    /// The length of the name.
    pub name_len: u8,
    /// Zero.
    pub reserved: [u8; 3],
}

const _: () = {
    assert!(size_of::<Superblock>() == 240);
    assert!(size_of::<Saved>() == 64);
    assert!(size_of::<Identity>() == 64);
    assert!(size_of::<Status>() == 64);
    assert!(size_of::<Inode>() == 240);
    assert!(offset_of!(Inode, status) == 64);
    assert!(offset_of!(Inode, slots) == 128);
    assert!(size_of::<Node>() == 48 + 4096);
    assert!(size_of::<DirBlock>() == 4080);
    assert!(offset_of!(DirBlock, entries) as u64 + DIR_ENTRIES_BYTES == size_of::<DirBlock>() as u64);
    assert!(size_of::<DirEntry>() == 16);
    assert!(size_of::<AttributeBlock>() == 32);
    assert!(size_of::<AttributeEntry>() == 8);
};
