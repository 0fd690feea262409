//! Directories: blocks of entries, and an index to them in DRAM that is made at the first use.

use crate::error::FsError;
use crate::format::{
    DIR_ENTRIES_BYTES, DIR_ENTRY_BYTES, DIR_TAG, DirBlock, DirEntry, NAME_MAX, PAGE_BYTES, SlotKind,
};
use crate::inode::{FileKind, InodeRef};
use crate::seal::seal;
use crate::tree::{self, Slot};
use crate::volume::{Change, Source as _, Volume};
use core::mem::offset_of;
use pm_core::{Pmem, bytes_of, from_bytes};
use std::collections::{HashMap, HashSet};

const END_AT: u64 = offset_of!(DirBlock, end) as u64;
const ENTRIES_AT: u64 = offset_of!(DirBlock, entries) as u64;

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) ino: u64,
    pub(crate) kind: FileKind,
    place: Place,
}

/// An entry of a directory, for its users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where to go on: [`Handle::entries`](crate::Handle::entries) returns the entries behind it.
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
struct Place {
    /// The offset in the pool.
    offset: u64,
    len_bytes: u16,
    /// The number of its block, and its offset in the block: entries are listed in this order.
    cookie: u64,
}

/// The entries of a directory, in DRAM.
#[derive(Debug, Default)]
pub(crate) struct DirIndex {
    names: HashMap<Box<[u8]>, Found>,
    /// Free entries.
    free: Vec<Place>,
    /// The offset of the last block, and the length of its entries.
    last: Option<(u64, u64)>,
    block_count: u64,
}

/// What a transaction does to a directory. It is done to the index when the transaction is durable.
#[derive(Debug)]
pub(crate) enum DirChange {
    /// An entry was added: in a free place, behind the last entry, or in a new block.
    Added { name: Box<[u8]>, found: Found, source: AddedTo },
    /// An entry became free.
    Removed { name: Box<[u8]> },
    /// A first block was added, without entries.
    Reserved { block: u64 },
    /// An entry has another inode.
    Replaced { name: Box<[u8]>, found: Found },
}

/// Where an entry was added.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AddedTo {
    /// A free entry with this position in the list.
    Free(usize),
    /// The end of the last block, which is this one; its entries have this length now.
    End { block: u64, end: u64, is_new: bool },
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
        tree::visit(volume, dir, &mut |number, slot| {
            if slot.kind == SlotKind::DirBlock {
                blocks.push((number, slot.offset()));
            }
            Ok(())
        })?;
        let distinct: HashSet<u64> = blocks.iter().map(|(_, block)| *block).collect();
        if distinct.len() != blocks.len() {
            return Err(FsError::corrupted(dir.slots_at(), "a directory whose block is there twice"));
        }
        for (number, block) in blocks {
            index.load_block(volume, dir, number, block)?;
        }
        Ok(index)
    }

    fn load_block<P: Pmem>(
        &mut self,
        volume: &Volume<P>,
        dir: &InodeRef,
        number: u64,
        block: u64,
    ) -> Result<(), FsError> {
        let found: DirBlock = volume.load(block)?;
        if (found.tag, found.owner, found.birth) != (DIR_TAG, dir.ino, dir.birth) {
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
            let Some(head) = found.entries.get(start..start + 16) else { return Err(corrupted) };
            let entry: DirEntry = from_bytes(|bytes| bytes.copy_from_slice(head));
            let name = found.entries.get(start + 16..start + 16 + usize::from(entry.name_len));
            let is_long_enough = u64::from(entry.len_bytes) >= DirEntry::len_for(entry.name_len.into());
            let Some(name) = name.filter(|_| is_long_enough && at + u64::from(entry.len_bytes) <= end) else {
                return Err(corrupted);
            };
            if entry.crc != entry.expected_crc(volume.seed, offset, name) {
                return Err(corrupted);
            }
            let place =
                Place { offset, len_bytes: entry.len_bytes, cookie: number * PAGE_BYTES + ENTRIES_AT + at };
            if entry.name_len == 0 {
                self.free.push(place);
            } else {
                let kind = FileKind::from_number(entry.kind).filter(|_| check_name(name).is_ok());
                let Some(kind) = kind else { return Err(corrupted) };
                let found = Found { ino: entry.ino, kind, place };
                if self.names.insert(name.into(), found).is_some() {
                    return Err(FsError::corrupted(offset, "a name that is there twice"));
                }
            }
            at += u64::from(entry.len_bytes);
        }
        self.last = Some((block, end));
        self.block_count = number + 1;
        Ok(())
    }

    pub(crate) fn find(&self, name: &[u8]) -> Option<Found> {
        self.names.get(name).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// All entries behind the one with this cookie, in ascending order of their cookies.
    pub(crate) fn entries(&self, behind: u64) -> Vec<Entry> {
        let mut entries = Vec::new();
        for (name, found) in self.names.iter().filter(|(_, found)| found.place.cookie > behind) {
            let (cookie, name) = (found.place.cookie, name.to_vec());
            entries.push(Entry { cookie, name, ino: found.ino, kind: found.kind });
        }
        entries.sort_unstable_by_key(|entry| entry.cookie);
        entries
    }

    /// The inodes of all entries.
    pub(crate) fn found(&self) -> impl Iterator<Item = &Found> {
        self.names.values()
    }

    /// Adds an entry, in a transaction. The name is not in the directory.
    pub(crate) fn add<P: Pmem>(
        &self,
        change: &mut Change<'_, '_, P>,
        dir: &InodeRef,
        name: &[u8],
        target: (u64, FileKind),
    ) -> Result<DirChange, FsError> {
        let needed = DirEntry::len_for(name.len());
        let fits = |place: &Place| u64::from(place.len_bytes) >= needed;
        if let Some(at) = self.free.iter().rposition(fits) {
            let place = self.free[at];
            write_entry(change, place, name, target)?;
            return Ok(DirChange::added(name, target, place, AddedTo::Free(at)));
        }
        let len_bytes = u16::try_from(needed).expect("a name is short");
        if let Some((block, end)) = self.last.filter(|(_, end)| end + needed <= DIR_ENTRIES_BYTES) {
            let cookie = (self.block_count - 1) * PAGE_BYTES + ENTRIES_AT + end;
            let place = Place { offset: block + ENTRIES_AT + end, len_bytes, cookie };
            write_entry(change, place, name, target)?;
            let end = end + needed;
            change.set_sealed(dir.owner(), block + END_AT, end)?;
            return Ok(DirChange::added(name, target, place, AddedTo::End { block, end, is_new: false }));
        }
        let seed = change.seed();
        let block = self.add_block(change, dir, needed, |block| {
            let place = Place { offset: block + ENTRIES_AT, len_bytes, cookie: 0 };
            let mut entries = [0; 4048];
            let bytes = entry_bytes(seed, place, name, target);
            entries[..bytes.len()].copy_from_slice(&bytes);
            entries
        })?;
        let cookie = self.block_count * PAGE_BYTES + ENTRIES_AT;
        let place = Place { offset: block + ENTRIES_AT, len_bytes, cookie };
        Ok(DirChange::added(name, target, place, AddedTo::End { block, end: needed, is_new: true }))
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
        let (seed, owner) = (change.seed(), dir.owner());
        let block = change.alloc(|block| DirBlock {
            tag: DIR_TAG,
            reserved: 0,
            owner: dir.ino,
            birth: dir.birth,
            end: seal(seed, owner, block + END_AT, end),
            entries: entries(block),
        })?;
        tree::set(change, dir, self.block_count, Slot::block(SlotKind::DirBlock, block))?;
        dir.set_size(change, (self.block_count + 1) * PAGE_BYTES)?;
        Ok(block)
    }

    /// Makes an entry free, in a transaction.
    pub(crate) fn remove<P: Pmem>(
        change: &mut Change<'_, '_, P>,
        name: &[u8],
        found: Found,
    ) -> Result<DirChange, FsError> {
        let entry = DirEntry { ino: 0, len_bytes: found.place.len_bytes, name_len: 0, kind: 0, crc: 0 };
        let crc = entry.expected_crc(change.seed(), found.place.offset, b"");
        change.write(found.place.offset, &DirEntry { crc, ..entry })?;
        Ok(DirChange::Removed { name: name.into() })
    }

    /// Gives an entry another inode, in a transaction.
    pub(crate) fn replace<P: Pmem>(
        change: &mut Change<'_, '_, P>,
        name: &[u8],
        found: Found,
        target: (u64, FileKind),
    ) -> Result<DirChange, FsError> {
        let entry = head(change.seed(), found.place, name, target);
        change.write(found.place.offset, &entry)?;
        let found = Found { ino: target.0, kind: target.1, place: found.place };
        Ok(DirChange::Replaced { name: name.into(), found })
    }

    /// Does to the index what a transaction has done to the directory.
    pub(crate) fn apply(&mut self, change: DirChange) {
        match change {
            DirChange::Added { name, found, source } => {
                match source {
                    AddedTo::Free(at) => drop(self.free.swap_remove(at)),
                    AddedTo::End { block, end, is_new } => {
                        self.last = Some((block, end));
                        self.block_count += u64::from(is_new);
                    }
                }
                self.names.insert(name, found);
            }
            DirChange::Reserved { block } => {
                self.last = Some((block, 0));
                self.block_count += 1;
            }
            DirChange::Removed { name } => {
                if let Some(found) = self.names.remove(&name) {
                    self.free.push(found.place);
                }
            }
            DirChange::Replaced { name, found } => drop(self.names.insert(name, found)),
        }
    }
}

impl DirChange {
    fn added(name: &[u8], (ino, kind): (u64, FileKind), place: Place, source: AddedTo) -> Self {
        Self::Added { name: name.into(), found: Found { ino, kind, place }, source }
    }
}

/// An entry without its name.
fn head(seed: u64, place: Place, name: &[u8], (ino, kind): (u64, FileKind)) -> DirEntry {
    let name_len = u8::try_from(name.len()).expect("a name is short");
    let entry = DirEntry { ino, len_bytes: place.len_bytes, name_len, kind: kind as u8, crc: 0 };
    DirEntry { crc: entry.expected_crc(seed, place.offset, name), ..entry }
}

/// An entry with its name.
fn entry_bytes(seed: u64, place: Place, name: &[u8], target: (u64, FileKind)) -> Vec<u8> {
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
    target: (u64, FileKind),
) -> Result<(), FsError> {
    let bytes = entry_bytes(change.seed(), place, name, target);
    change.write_bytes(place.offset, &bytes)
}
