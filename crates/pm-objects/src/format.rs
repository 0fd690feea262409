//! The bytes of a pool of objects. `docs/format/objects.md` documents them.

use core::mem::{offset_of, size_of};
use pm_core::{Persist, bytes_of, crc32c_bytes, crc32c_words};

/// The name of the heap's root that points to the first copy of the [`RootBlock`].
pub const ROOT: &str = "pm-objects";

/// The name of the heap's root that points to the second copy.
pub const ROOT_COPY: &str = "pm-objects.copy";

/// The table of the store that has the names.
pub const NAMES: &str = "pm-objects.names";

/// The first eight bytes of a [`RootBlock`].
pub const MAGIC: [u8; 8] = *b"PMOBJ\r\n\x1a";

/// The format version.
pub const VERSION: u32 = 2;

/// The features that a program must support to open the pool.
pub const KNOWN_INCOMPAT: u64 = 0;

/// The bits of a [sealed](seal) word that are its contents.
pub const CONTENTS_BITS: u32 = 48;

/// The greatest contents of a sealed word.
pub const CONTENTS_MAX: u64 = (1 << CONTENTS_BITS) - 1;

/// The length of the longest name.
pub const NAME_MAX: usize = 255;

/// The length of the longest element.
pub const ELEMENT_BYTES_MAX: usize = 64 << 10;

/// The length of the longest object.
pub const OBJECT_BYTES_MAX: u64 = 16 << 30;

/// The first byte of the name of an object that is not complete yet. The rest is its number, in hexadecimal.
pub const INCOMPLETE: char = '\0';

/// The unit of places: the number of a place is its offset divided by this.
pub const PLACE_BYTES: u64 = 64;

/// The number of slots that one word of a slab describes.
pub const WORD_SLOTS: u64 = 48;

/// The number of slabs that a [`Directory`] block lists.
pub const DIRECTORY_ROWS: usize = 510;

/// The number of entries in a table or in a leaf of one.
pub const LEAF_ENTRIES: u64 = 256;

/// The first bit of the base-2 logarithm of the number of entries or links in [`ObjectBlock::table`], which has five bits.
pub const TABLE_CAPACITY_SHIFT: u32 = 42;

/// The bit that says that [`ObjectBlock::table`] has links to leaves.
pub const TABLE_LEAVES_SHIFT: u32 = 47;

/// The first four bytes of an [`ObjectBlock`].
pub const OBJECT_TAG: u32 = u32::from_le_bytes(*b"OBJT");

/// The first word of a [`Directory`] block.
pub const DIRECTORY_TAG: u64 = u64::from_le_bytes(*b"PMOBSLAB");

/// What a sealed word belongs to, if it is no object. Numbers of objects are greater.
pub mod owner {
    /// The root block.
    pub const ROOT: u64 = 1;
    /// A [`Directory`](super::Directory) block.
    pub const DIRECTORY: u64 = 2;
    /// A slab.
    pub const SLAB: u64 = 3;
    /// A [`MapBlock`](super::MapBlock).
    pub const MAP: u64 = 4;
}

/// The lengths of slots in bytes: each slab has slots of one of them.
pub const SLOT_BYTES: [u64; 16] =
    [64, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096];

/// The word for these contents of `number` at `place`: an offset in the pool, or the index of a chunk. It changes atomically, together with its
/// checksum, and is never zero.
#[must_use]
pub fn seal(seed: u64, number: u64, place: u64, contents: u64) -> u64 {
    debug_assert!(contents <= CONTENTS_MAX, "{contents:#x}");
    let crc = crc32c_words(&[seed, number, place, contents]);
    let folded = (crc ^ (crc >> 16)) & 0xffff;
    u64::from(folded.max(1)) << CONTENTS_BITS | contents
}

/// The contents of a sealed word. `None` if its checksum is wrong.
#[must_use]
pub fn unseal(seed: u64, number: u64, place: u64, word: u64) -> Option<u64> {
    let contents = word & CONTENTS_MAX;
    (seal(seed, number, place, contents) == word).then_some(contents)
}

/// A length or a number in memory that is known to be short.
pub(crate) fn short(value: u64) -> usize {
    usize::try_from(value).expect("a length of something in memory")
}

/// Where everything begins. There are two copies, which every change writes alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[repr(C)]
pub struct RootBlock {
    /// What never changes.
    pub header: RootHeader,
    /// Sealed: the number of the current session, which every open increments.
    pub session: u64,
    /// Sealed: the place of the first [`Directory`] block, or 0.
    pub slabs: u64,
    /// Sealed: the place of the first [`MapBlock`], or 0.
    pub maps: u64,
    /// Zero.
    pub reserved: [u64; 5],
    /// The change of names in progress, or the last one.
    pub intent: Intent,
}

const _: () = {
    assert!(size_of::<RootBlock>() == 512);
    assert!(offset_of!(RootBlock, session) == 128);
    assert!(offset_of!(RootBlock, intent) == 192);
};

/// What never changes in a pool of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[repr(C)]
pub struct RootHeader {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: u32,
    /// The greatest length of a chunk.
    pub chunk_bytes: u32,
    /// Features that a program must support to open the pool.
    pub features_incompat: u64,
    /// Features that a program may ignore.
    pub features_compat: u64,
    /// The length of a slab.
    pub slab_bytes: u64,
    /// A random number that all checksums cover.
    pub seed: u64,
    /// The identity of the pool in which it was created.
    pub pool_uuid: [u8; 16],
    /// The identity of the file with the lower tier, or zero.
    pub file_uuid: [u8; 16],
    /// The number of slots of that file, or zero.
    pub file_slots: u64,
    /// Zero.
    pub reserved: [u64; 4],
    /// CRC-32C of all bytes before it.
    pub crc: u32,
    /// Zero.
    pub reserved_1: u32,
}

const _: () = assert!(size_of::<RootHeader>() == 128);

impl RootHeader {
    /// The checksum that its contents give.
    #[must_use]
    pub fn expected_crc(&self) -> u32 {
        crc32c_bytes(0, &bytes_of(self)[..offset_of!(Self, crc)])
    }
}

/// The change of names in progress, or the last one, which each later change replaces before it does anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[repr(C)]
pub struct Intent {
    /// CRC-32C of the seed, the other fields and the name.
    pub crc: u32,
    /// See [`intent_kind`].
    pub kind: u32,
    /// The offset of the object that gets the name, or 0.
    pub new: u64,
    /// The offset of the object that loses the name and is freed, or 0.
    pub old: u64,
    /// The length of the name.
    pub name_bytes: u32,
    /// Zero.
    pub reserved: u32,
    /// The name. The bytes behind it have no meaning.
    pub name: [u8; 256],
    /// Zero.
    pub reserved_1: [u64; 4],
}

const _: () = assert!(size_of::<Intent>() == 320);

/// The values of [`Intent::kind`].
pub mod intent_kind {
    /// Nothing is to be done.
    pub const NONE: u32 = 0;
    /// `new` has no name, and is to be freed.
    pub const BUILD: u32 = 1;
    /// The name is to be that of `new`, or of no object, and then `old` is to be freed.
    pub const SET: u32 = 2;
}

impl Intent {
    /// An intent without a checksum. A name has at most [`NAME_MAX`] bytes.
    #[must_use]
    pub(crate) fn of(kind: u32, new: u64, old: u64, name: &str) -> Self {
        let mut intent = Self {
            crc: 0,
            kind,
            new,
            old,
            name_bytes: u32::try_from(name.len()).unwrap_or(u32::MAX),
            reserved: 0,
            name: [0; 256],
            reserved_1: [0; 4],
        };
        intent.name[..name.len()].copy_from_slice(name.as_bytes());
        intent
    }

    /// The number of bytes up to the end of the name.
    pub(crate) fn used_bytes(&self) -> usize {
        offset_of!(Self, name) + (self.name_bytes as usize).min(NAME_MAX)
    }

    /// The checksum that its contents give.
    #[must_use]
    pub fn expected_crc(&self, seed: u64) -> u32 {
        let bytes = &bytes_of(self)[offset_of!(Self, kind)..self.used_bytes()];
        crc32c_bytes(crc32c_words(&[seed]), bytes)
    }
}

/// What an object is, but for its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[repr(C)]
pub struct ObjectBlock {
    /// [`OBJECT_TAG`].
    pub tag: u32,
    /// CRC-32C of the seed and the bytes from `number` to `reserved_1`.
    pub crc: u32,
    /// The number of the object, which no other object has had.
    pub number: u64,
    /// The fingerprint of the type of its elements.
    pub layout: u64,
    /// The length of an element.
    pub element_bytes: u32,
    /// In the lowest two bits how it is going to be used: 1 often, 2 rarely. In the next two the tier that it is pinned to: 1 DRAM, 2 the pool, 3 the file.
    pub flags: u32,
    /// Zero.
    pub reserved: u64,
    /// Zero.
    pub secret: u64,
    /// The epoch in which it got its name: 1.
    pub born: u32,
    /// Zero.
    pub reserved_1: u32,
    /// Sealed: the length of the contents in bytes.
    pub len_bytes: u64,
    /// Sealed: the place of the table of its chunks, the logarithm of its length, and whether it has leaves. 0 if there is none.
    pub table: u64,
    /// Sealed: 0.
    pub newest: u64,
    /// The entry of the chunk, if it has no table.
    pub entry: Entry,
    /// Zero.
    pub reserved_2: [u64; 3],
}

const _: () = {
    assert!(size_of::<ObjectBlock>() == 120);
    assert!(offset_of!(ObjectBlock, number) == 8);
    assert!(offset_of!(ObjectBlock, len_bytes) == 56);
    assert!(offset_of!(ObjectBlock, entry) == 80);
};

impl ObjectBlock {
    /// The checksum that its contents give.
    #[must_use]
    pub fn expected_crc(&self, seed: u64) -> u32 {
        let bytes = &bytes_of(self)[offset_of!(Self, number)..offset_of!(Self, len_bytes)];
        crc32c_bytes(crc32c_words(&[seed]), bytes)
    }
}

/// Where a chunk of an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[repr(C)]
pub struct Entry {
    /// Sealed over the object's number, the index of the chunk and `check`: the tier in the upper two bits, and the place.
    pub home: u64,
    /// In the lower half CRC-32C of the contents, if they are in the file, or 0; in the upper one the epoch in which the place was written: 1.
    pub check: u64,
}

/// The first bit of the tier in [`Entry::home`].
pub const TIER_SHIFT: u32 = 46;

/// The tiers of [`Entry::home`].
pub mod tier {
    /// The chunk is zeroes, and has no place.
    pub const HOLE: u64 = 0;
    /// The chunk is in a slot of a slab.
    pub const PM: u64 = 1;
    /// The chunk is in a slot of the file, whose number is the place.
    pub const FILE: u64 = 2;
}

/// The epoch of all entries.
pub const EPOCH: u32 = 1;

impl Entry {
    /// The entry of the chunk `index` of the object `number`, which is a hole or in a slab.
    #[must_use]
    pub fn new(seed: u64, number: u64, index: u64, tier: u64, place: u64) -> Self {
        Self::with_crc(seed, number, index, tier << TIER_SHIFT | place, 0)
    }

    /// The entry of a chunk in a slot of the file, with the checksum of its contents.
    #[must_use]
    pub fn in_file(seed: u64, number: u64, index: u64, slot: u64, crc: u32) -> Self {
        Self::with_crc(seed, number, index, tier::FILE << TIER_SHIFT | slot, crc)
    }

    fn with_crc(seed: u64, number: u64, index: u64, contents: u64, crc: u32) -> Self {
        let check = u64::from(EPOCH) << 32 | u64::from(crc);
        let home = seal(seed, number, index_seal(index, check), contents);
        Self { home, check }
    }

    /// The checksum of the contents.
    #[must_use]
    pub const fn crc(&self) -> u32 {
        let [a, b, c, d, ..] = self.check.to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    /// The tier and the place. `None` if the checksum is wrong.
    #[must_use]
    pub fn home(&self, seed: u64, number: u64, index: u64) -> Option<(u64, u64)> {
        let contents = unseal(seed, number, index_seal(index, self.check), self.home)?;
        Some((contents >> TIER_SHIFT, contents & ((1 << TIER_SHIFT) - 1)))
    }
}

/// What an entry's home is sealed over besides the number: both words, mixed so that no index is another check.
fn index_seal(index: u64, check: u64) -> u64 {
    u64::from(crc32c_words(&[index, check])) << 32 | index & u64::from(u32::MAX)
}

/// A slot's owner, in the slab before the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[repr(C)]
pub struct Owner {
    /// The number of the object.
    pub number: u64,
    /// The place of the object.
    pub object: u64,
    /// The index of the chunk.
    pub index: u32,
    /// CRC-32C of the seed, the offset of this owner, and the other fields.
    pub crc: u32,
}

const _: () = assert!(size_of::<Owner>() == 24);

impl Owner {
    /// The owner of a slot, at `offset`.
    #[must_use]
    pub fn new(seed: u64, offset: u64, number: u64, object: u64, index: u32) -> Self {
        let crc = crc32c_words(&[seed, offset, number, object, u64::from(index)]);
        Self { number, object, index, crc }
    }

    /// Whether its checksum is right.
    #[must_use]
    pub fn is_valid(&self, seed: u64, offset: u64) -> bool {
        Self::new(seed, offset, self.number, self.object, self.index) == *self
    }
}

/// A block of the list of slabs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[repr(C)]
pub struct Directory {
    /// [`DIRECTORY_TAG`].
    pub tag: u64,
    /// Sealed: the place of the next block, or 0.
    pub next: u64,
    /// Sealed: the place of a slab, and in the lower [`CLASS_BITS`] bits the index of its slots' length in [`SLOT_BYTES`]; or 0.
    pub slabs: [u64; DIRECTORY_ROWS],
}

/// The number of bits with the class of a slab in [`Directory::slabs`].
pub const CLASS_BITS: u32 = 5;

const _: () = {
    assert!(size_of::<Directory>() == 4096);
    assert!(SLOT_BYTES.len() <= 1 << CLASS_BITS);
};

/// The first eight bytes of a [`FileHeader`].
pub const FILE_MAGIC: [u8; 8] = *b"PMOBFIL\n";

/// The length of the room of each of the two copies of a [`FileHeader`], which are at the start of the file. Slots follow.
pub const FILE_HEADER_BYTES: u64 = 4096;

/// What the file with the lower tier says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[repr(C)]
pub struct FileHeader {
    /// [`FILE_MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: u32,
    /// The length of a slot.
    pub slot_bytes: u32,
    /// The number of slots.
    pub slots: u64,
    /// The identity of the pool.
    pub pool_uuid: [u8; 16],
    /// The identity of the file.
    pub file_uuid: [u8; 16],
    /// Zero.
    pub reserved: u32,
    /// CRC-32C of all bytes before it.
    pub crc: u32,
}

const _: () = assert!(size_of::<FileHeader>() == 64);

impl FileHeader {
    /// The checksum that its contents give.
    #[must_use]
    pub fn expected_crc(&self) -> u32 {
        crc32c_bytes(0, &bytes_of(self)[..offset_of!(Self, crc)])
    }
}

/// The first word of a [`MapBlock`].
pub const MAP_TAG: u64 = u64::from_le_bytes(*b"PMOBMAP\n");

/// The number of words of a [`MapBlock`], each of which describes [`WORD_SLOTS`] slots of the file.
pub const MAP_WORDS: usize = 510;

/// A block of the map of the file's slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[repr(C)]
pub struct MapBlock {
    /// [`MAP_TAG`].
    pub tag: u64,
    /// Sealed: the place of the next block, or 0.
    pub next: u64,
    /// Sealed: a bit for each slot that is in use.
    pub words: [u64; MAP_WORDS],
}

const _: () = assert!(size_of::<MapBlock>() == 4096);
