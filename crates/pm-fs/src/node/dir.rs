//! Directories: blocks of entries, and an index to them in DRAM that is made at the first use.

use crate::error::FsError;
use crate::format::{
    DIR_ENTRIES_BYTES, DIR_ENTRY_BYTES, DIR_TAG, DirBlock, DirEntry, NAME_MAX, PAGE_BYTES, SlotKind,
};
use crate::node::inode::{FileKind, InodeRef};
use crate::node::slot::Slot;
use crate::node::tree;
use crate::node::walk::{self, Visited};
use crate::volume::seal::seal;
use crate::volume::{Change, Source as _, Volume};
use core::hash::BuildHasher as _;
use core::mem::offset_of;
use hashbrown::hash_table::Entry as TableEntry;
use hashbrown::{DefaultHashBuilder, HashTable};
use pm_core::{Pmem, bytes_of, from_bytes};
use std::collections::HashSet;

const END_AT: u64 = offset_of!(DirBlock, end) as u64;
const ENTRIES_AT: u64 = offset_of!(DirBlock, entries) as u64;

/// The most blocks of a directory, so that cookies have 64 bits.
const BLOCKS_MAX: u64 = u64::MAX / PAGE_BYTES;

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) ino: u64,
    pub(crate) kind: FileKind,
    place: Place,
    /// The hash of its name.
    hash: u32,
}

/// An entry of a directory, for its users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where to go on: [`Handle::entries`](crate::Handle::entries) returns the entries behind it. The number of its block and its offset in the
    /// block.
    pub cookie: u64,
    /// The name.
    pub name: Vec<u8>,
    /// The number of the inode.
    pub ino: u64,
    /// Its type.
    pub kind: FileKind,
}

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The offset in the pool.
    pub(crate) offset: u64,
    pub(crate) len_bytes: u16,
}

/// Where the entries of a directory are, in DRAM, by the hashes of their names. The names are on the medium only.
#[derive(Debug, Default)]
pub(crate) struct DirIndex {
    places: HashTable<Hashed>,
    /// With random keys: names may be chosen so that their hashes under known keys are the same.
    hasher: DefaultHashBuilder,
    /// Free entries, by [`class_of`] their lengths.
    free: Vec<Vec<Place>>,
    last: Option<LastBlock>,
    block_count: u64,
}

/// The last block of a directory, behind whose entries there is room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastBlock {
    /// The offset in the pool.
    offset: u64,
    /// The length of its entries.
    end: u64,
}

/// A block of a directory.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// Its number in the directory.
    number: u64,
    /// The offset in the pool.
    offset: u64,
}

/// An entry in an index.
#[derive(Clone, Copy, Debug)]
struct Hashed {
    offset: u64,
    hash: u32,
}

impl Hashed {
    const fn of(found: &Found) -> Self {
        Self { offset: found.place.offset, hash: found.hash }
    }

    /// The hash in the table, whose lower and upper bits the table uses.
    fn spread(hash: u32) -> u64 {
        u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// What a transaction does to a directory. It is done to the index when the transaction is durable.
#[derive(Debug)]
pub(crate) enum DirChange {
    /// An entry was added: in a free place, behind the last entry, or in a new block.
    Added { found: Found, source: AddedTo },
    /// An entry became free.
    Removed { found: Found },
    /// A first block was added, without entries.
    Reserved { block: u64 },
}

/// Where an entry was added.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AddedTo {
    /// The last free entry of this class.
    Free(usize),
    /// The end of the last block, which is this one now.
    End { last: LastBlock, is_new: bool },
}

/// The class of free entries of this length, a multiple of 8. Each one has a class of its own up to the longest that a name needs, which longer ones
/// share.
fn class_of(len_bytes: u64) -> usize {
    usize::try_from(len_bytes.min(DirEntry::len_for(NAME_MAX)) / 8).expect("an entry is short")
}

/// Checks a name.
pub(crate) fn check_name(name: &[u8]) -> Result<(), FsError> {
    match name {
        _ if name.len() > NAME_MAX => Err(FsError::NameTooLong),
        b"" | b"." | b".." => Err(FsError::Invalid),
        _ if name.contains(&b'/') || name.contains(&0) => Err(FsError::Invalid),
        _ => Ok(()),
    }
}

impl DirIndex {
    /// Reads all entries of a directory, and verifies them.
    pub(crate) fn load<P: Pmem>(volume: &Volume<P>, dir: &InodeRef) -> Result<Self, FsError> {
        let mut index = Self::default();
        let mut blocks = Vec::new();
        for visited in walk::walk(volume, dir)? {
            let Visited { index, slot, .. } = visited?;
            if slot.kind == SlotKind::DirBlock {
                blocks.push(Block { number: index, offset: slot.offset() });
            }
        }
        let distinct: HashSet<u64> = blocks.iter().map(|block| block.offset).collect();
        if distinct.len() != blocks.len() {
            return Err(FsError::corrupted(dir.slots_at(), "a directory whose block is there twice"));
        }
        let mut named = Vec::new();
        for block in blocks {
            let end = read_block(volume, dir, block, |place, entry| match entry {
                Some(entry) => named.push(Hashed { offset: place.offset, hash: index.hash(entry.name) }),
                None => index.push_free(place),
            })?;
            index.last = Some(LastBlock { offset: block.offset, end });
            index.block_count = block.number + 1;
        }
        // At once: a table that grows would move its entries several times.
        index.places.reserve(named.len(), |_| unreachable!("it is empty"));
        named.into_iter().try_for_each(|hashed| index.insert_new(volume, hashed))?;
        Ok(index)
    }

    /// Adds an entry, unless there is one with its name.
    fn insert_new<P: Pmem>(&mut self, volume: &Volume<P>, hashed: Hashed) -> Result<(), FsError> {
        let mut is_new = Ok(true);
        let entry = self.places.entry(
            Hashed::spread(hashed.hash),
            |other| {
                if other.hash == hashed.hash && matches!(is_new, Ok(true)) {
                    is_new = has_same_name(volume, other.offset, hashed.offset).map(|is_same| !is_same);
                }
                !matches!(is_new, Ok(true))
            },
            |hashed| Hashed::spread(hashed.hash),
        );
        match (is_new?, entry) {
            (true, TableEntry::Vacant(vacant)) => drop(vacant.insert(hashed)),
            _ => return Err(FsError::corrupted(hashed.offset, "a name that is there twice")),
        }
        Ok(())
    }

    fn push_free(&mut self, place: Place) {
        let class = class_of(place.len_bytes.into());
        if self.free.len() <= class {
            self.free.resize_with(class + 1, Vec::new);
        }
        self.free[class].push(place);
    }

    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    fn hash(&self, name: &[u8]) -> u32 {
        self.hasher.hash_one(name) as u32
    }

    fn insert(&mut self, found: &Found) {
        let hashed = Hashed::of(found);
        self.places.insert_unique(Hashed::spread(hashed.hash), hashed, |hashed| Hashed::spread(hashed.hash));
    }

    /// The entry with this name.
    pub(crate) fn find<P: Pmem>(&self, volume: &Volume<P>, name: &[u8]) -> Result<Option<Found>, FsError> {
        let hash = self.hash(name);
        let mut found = Ok(None);
        self.places.find(Hashed::spread(hash), |hashed| {
            if hashed.hash != hash {
                return false;
            }
            found = read_named(volume, hashed, name);
            !matches!(found, Ok(None))
        });
        found
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Adds an entry, in a transaction. The name is not in the directory.
    pub(crate) fn add<P: Pmem>(
        &self,
        change: &mut Change<'_, '_, P>,
        dir: &InodeRef,
        name: &[u8],
        target: &InodeRef,
    ) -> Result<DirChange, FsError> {
        let needed = DirEntry::len_for(name.len());
        let mut classes = self.free.iter().enumerate().skip(class_of(needed));
        if let Some((class, place)) =
            classes.find_map(|(class, free)| free.last().map(|place| (class, *place)))
        {
            write_entry(change, place, name, target)?;
            return Ok(self.added(name, target, place, AddedTo::Free(class)));
        }
        let len_bytes = u16::try_from(needed).expect("a name is short");
        if let Some(last) = self.last.filter(|last| last.end + needed <= DIR_ENTRIES_BYTES) {
            let place = Place { offset: last.offset + ENTRIES_AT + last.end, len_bytes };
            write_entry(change, place, name, target)?;
            let last = LastBlock { end: last.end + needed, ..last };
            change.set_sealed(dir.owner(), last.offset + END_AT, last.end)?;
            return Ok(self.added(name, target, place, AddedTo::End { last, is_new: false }));
        }
        let seed = change.seed();
        let block = self.add_block(change, dir, needed, |block| {
            let place = Place { offset: block + ENTRIES_AT, len_bytes };
            let mut entries = [0; 4048];
            let bytes = entry_bytes(seed, place, name, target);
            entries[..bytes.len()].copy_from_slice(&bytes);
            entries
        })?;
        let place = Place { offset: block + ENTRIES_AT, len_bytes };
        Ok(self.added(
            name,
            target,
            place,
            AddedTo::End { last: LastBlock { offset: block, end: needed }, is_new: true },
        ))
    }

    fn added(&self, name: &[u8], target: &InodeRef, place: Place, source: AddedTo) -> DirChange {
        let found = Found { ino: target.ino, kind: target.kind, place, hash: self.hash(name) };
        DirChange::Added { found, source }
    }

    /// Adds a block without entries to a directory that has none, in a transaction: then the next names need no room. `None` if it has one.
    pub(crate) fn reserve<P: Pmem>(
        &self,
        change: &mut Change<'_, '_, P>,
        dir: &InodeRef,
    ) -> Result<Option<DirChange>, FsError> {
        match self.last {
            Some(_) => Ok(None),
            None => {
                self.add_block(change, dir, 0, |_| [0; 4048]).map(|block| Some(DirChange::Reserved { block }))
            }
        }
    }

    /// Adds a block whose entries have this length, and are made from its offset.
    fn add_block<P: Pmem>(
        &self,
        change: &mut Change<'_, '_, P>,
        dir: &InodeRef,
        end: u64,
        entries: impl FnOnce(u64) -> [u8; 4048],
    ) -> Result<u64, FsError> {
        let block = change.alloc()?;
        let contents = DirBlock {
            tag: DIR_TAG,
            reserved: 0,
            owner: dir.ino,
            birth: dir.birth,
            end: seal(change.seed(), dir.owner(), block.offset + END_AT, end),
            entries: entries(block.offset),
        };
        let block = change.init(block, &contents);
        tree::set(change, dir, self.block_count, Slot::block(SlotKind::DirBlock, block))?;
        dir.set_size(change, (self.block_count + 1) * PAGE_BYTES)?;
        Ok(block)
    }

    /// Makes an entry free, in a transaction.
    pub(crate) fn remove<P: Pmem>(
        change: &mut Change<'_, '_, P>,
        found: Found,
    ) -> Result<DirChange, FsError> {
        free_entry(change, found.place)?;
        Ok(DirChange::Removed { found })
    }

    /// Gives an entry another inode, in a transaction. The index stays as it is.
    pub(crate) fn replace<P: Pmem>(
        change: &mut Change<'_, '_, P>,
        name: &[u8],
        found: Found,
        target: &InodeRef,
    ) -> Result<(), FsError> {
        retarget(change, found.place, name, target)
    }

    /// Does to the index what a transaction has done to the directory.
    pub(crate) fn apply(&mut self, change: DirChange) {
        match change {
            DirChange::Added { found, source } => {
                match source {
                    AddedTo::Free(class) => drop(self.free[class].pop()),
                    AddedTo::End { last, is_new } => {
                        self.last = Some(last);
                        self.block_count += u64::from(is_new);
                    }
                }
                self.insert(&found);
            }
            DirChange::Reserved { block } => {
                self.last = Some(LastBlock { offset: block, end: 0 });
                self.block_count += 1;
            }
            DirChange::Removed { found } => {
                let is_it = |hashed: &Hashed| hashed.offset == found.place.offset;
                if let Ok(entry) = self.places.find_entry(Hashed::spread(found.hash), is_it) {
                    entry.remove();
                    self.push_free(found.place);
                }
            }
        }
    }
}

/// Makes an entry free, in a transaction.
pub(crate) fn free_entry<P: Pmem>(change: &mut Change<'_, '_, P>, place: Place) -> Result<(), FsError> {
    let entry = DirEntry { ino: 0, len_bytes: place.len_bytes, name_len: 0, kind: 0, crc: 0 };
    let crc = entry.expected_crc(change.seed(), place.offset, b"");
    change.write(place.offset, &DirEntry { crc, ..entry })
}

/// Gives an entry another inode, in a transaction.
pub(crate) fn retarget<P: Pmem>(
    change: &mut Change<'_, '_, P>,
    place: Place,
    name: &[u8],
    target: &InodeRef,
) -> Result<(), FsError> {
    let entry = head(change.seed(), place, name, target);
    change.write(place.offset, &entry)
}

/// All entries of a directory behind the one with this cookie, in ascending order of their cookies.
pub(crate) fn entries<P: Pmem>(
    volume: &Volume<P>,
    dir: &InodeRef,
    behind: u64,
) -> Result<Vec<Entry>, FsError> {
    let placed = placed_entries(volume, dir, behind)?;
    Ok(placed.into_iter().map(|placed| placed.entry).collect())
}

/// An entry of a directory, and where it is.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) entry: Entry,
    pub(crate) place: Place,
}

/// As [`entries`], and where they are.
pub(crate) fn placed_entries<P: Pmem>(
    volume: &Volume<P>,
    dir: &InodeRef,
    behind: u64,
) -> Result<Vec<Placed>, FsError> {
    let mut entries = Vec::new();
    let mut from = behind / PAGE_BYTES;
    while let Some(Visited { index: number, slot, .. }) = walk::next(volume, dir, from)? {
        from = number + 1;
        let block = Block { number, offset: slot.offset() };
        read_block(volume, dir, block, |place, entry| {
            let cookie = number * PAGE_BYTES + (place.offset - block.offset);
            if let Some(Named { ino, kind, name }) = entry.filter(|_| cookie > behind) {
                entries.push(Placed { entry: Entry { cookie, name: name.to_vec(), ino, kind }, place });
            }
        })?;
    }
    Ok(entries)
}

/// An entry that is not free.
#[derive(Clone, Copy, Debug)]
struct Named<'b> {
    ino: u64,
    kind: FileKind,
    name: &'b [u8],
}

/// Reads and verifies a block of a directory. Calls `each` with every entry, or with `None` for a free one. Returns the length of the entries.
fn read_block<P: Pmem>(
    volume: &Volume<P>,
    dir: &InodeRef,
    Block { number, offset: block }: Block,
    mut each: impl FnMut(Place, Option<Named<'_>>),
) -> Result<u64, FsError> {
    let loaded: DirBlock = volume.load(block)?;
    if (loaded.tag, loaded.owner, loaded.birth) != (DIR_TAG, dir.ino, dir.birth) || number > BLOCKS_MAX {
        return Err(FsError::corrupted(block, "a directory block"));
    }
    let end = volume.sealed(dir.owner(), block + END_AT)?;
    if end > DIR_ENTRIES_BYTES {
        return Err(FsError::corrupted(block + END_AT, "the length of a directory block"));
    }
    let mut at = 0;
    while at < end {
        let offset = block + ENTRIES_AT + at;
        let corrupted = FsError::corrupted(offset, "an entry of a directory");
        let start = usize::try_from(at).expect("a block is short");
        let Some(head) = loaded.entries.get(start..start + 16) else { return Err(corrupted) };
        let entry: DirEntry = from_bytes(|bytes| bytes.copy_from_slice(head));
        let name = loaded.entries.get(start + 16..start + 16 + usize::from(entry.name_len));
        let is_long_enough = u64::from(entry.len_bytes) >= DirEntry::len_for(entry.name_len.into());
        let Some(name) = name.filter(|_| is_long_enough && at + u64::from(entry.len_bytes) <= end) else {
            return Err(corrupted);
        };
        if entry.crc != entry.expected_crc(volume.seed, offset, name) {
            return Err(corrupted);
        }
        let place = Place { offset, len_bytes: entry.len_bytes };
        if entry.name_len == 0 {
            each(place, None);
        } else {
            let kind = FileKind::from_number(entry.kind).filter(|_| check_name(name).is_ok());
            let Some(kind) = kind else { return Err(corrupted) };
            each(place, Some(Named { ino: entry.ino, kind, name }));
        }
        at += u64::from(entry.len_bytes);
    }
    Ok(end)
}

/// Whether two entries that were verified have the same name.
fn has_same_name<P: Pmem>(volume: &Volume<P>, one: u64, other: u64) -> Result<bool, FsError> {
    let [one_len, other_len] =
        [one, other].map(|offset| volume.load::<DirEntry>(offset).map(|entry| entry.name_len));
    let len = usize::from(one_len?);
    let [mut name, mut other_name] = [[0; NAME_MAX]; 2];
    volume.bytes(one + DIR_ENTRY_BYTES, &mut name[..len])?;
    volume.bytes(other + DIR_ENTRY_BYTES, &mut other_name[..len])?;
    Ok(other_len? as usize == len && name[..len] == other_name[..len])
}

/// Reads and verifies an entry that has this name by its hash. `None` if its name is another one.
fn read_named<P: Pmem>(volume: &Volume<P>, hashed: &Hashed, name: &[u8]) -> Result<Option<Found>, FsError> {
    let Hashed { offset, hash } = *hashed;
    let entry: DirEntry = volume.load(offset)?;
    let mut bytes = [0; NAME_MAX];
    let found = &mut bytes[..entry.name_len.into()];
    volume.bytes(offset + DIR_ENTRY_BYTES, found)?;
    let kind = FileKind::from_number(entry.kind);
    let Some(kind) = kind.filter(|_| entry.crc == entry.expected_crc(volume.seed, offset, found)) else {
        return Err(FsError::corrupted(offset, "an entry of a directory"));
    };
    let place = Place { offset, len_bytes: entry.len_bytes };
    Ok((found == name).then_some(Found { ino: entry.ino, kind, place, hash }))
}

/// An entry without its name.
fn head(seed: u64, place: Place, name: &[u8], target: &InodeRef) -> DirEntry {
    let name_len = u8::try_from(name.len()).expect("a name is short");
    let (ino, kind) = (target.ino, target.kind as u8);
    let entry = DirEntry { ino, len_bytes: place.len_bytes, name_len, kind, crc: 0 };
    DirEntry { crc: entry.expected_crc(seed, place.offset, name), ..entry }
}

/// An entry with its name.
fn entry_bytes(seed: u64, place: Place, name: &[u8], target: &InodeRef) -> Vec<u8> {
    let mut bytes = bytes_of(&head(seed, place, name, target)).to_vec();
    debug_assert_eq!(bytes.len() as u64, DIR_ENTRY_BYTES);
    bytes.extend_from_slice(name);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

fn write_entry<P: Pmem>(
    change: &mut Change<'_, '_, P>,
    place: Place,
    name: &[u8],
    target: &InodeRef,
) -> Result<(), FsError> {
    let bytes = entry_bytes(change.seed(), place, name, target);
    change.write_bytes(place.offset, &bytes)
}
