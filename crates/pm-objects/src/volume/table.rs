//! The entries of an object's chunks: in its block, in one table, or in leaves under a root of links.

use super::object::{ObjectRef, TableWord};
use super::slabs::Slot;
use super::slots::Slots;
use super::volume::{Change, Volume};
use crate::error::{ObjectError, Structure};
use crate::format::{Entry, LEAF_ENTRIES, Owner, PLACE_BYTES, seal, short, tier};
use core::mem::size_of;
use core::ops::Range;
use pm_core::{Pmem, bytes_of};

/// The length of an entry.
const ENTRY_BYTES: u64 = size_of::<Entry>() as u64;

/// Where a chunk is.
#[derive(Clone, Debug)]
pub(crate) enum Home {
    /// It is zeroes.
    Hole,
    /// In this slot.
    Slot(Slot),
    /// In a slot of the file, with this checksum.
    File { slot: u64, crc: u32 },
}

/// The table of an object, whose links are verified when they are followed. It is never made smaller.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Table {
    /// The entry of one chunk, in the block.
    Inline,
    /// So many entries, at this offset: a power of two.
    Entries { offset: u64, capacity: u64 },
    /// So many links to leaves, at this offset: a power of two.
    Leaves { offset: u64, capacity: u64 },
}

impl Table {
    /// The table of an object.
    pub(crate) fn of<P: Pmem>(volume: &Volume<P>, object: &ObjectRef) -> Result<Self, ObjectError> {
        let Some(word) = object.table(volume)? else { return Ok(Self::Inline) };
        let corrupted = ObjectError::corrupted(object.offset, Structure::Table);
        let capacity = 1 << word.log2_capacity;
        let bytes = if word.has_leaves { 8 } else { ENTRY_BYTES };
        let offset = volume.offset_of(word.place, capacity * bytes).ok_or(corrupted)?;
        Ok(if word.has_leaves {
            Self::Leaves { offset, capacity }
        } else {
            Self::Entries { offset, capacity }
        })
    }

    /// What the object's block says of it.
    pub(crate) const fn word(self) -> Option<TableWord> {
        let (offset, capacity, has_leaves) = match self {
            Self::Inline => return None,
            Self::Entries { offset, capacity } => (offset, capacity, false),
            Self::Leaves { offset, capacity } => (offset, capacity, true),
        };
        Some(TableWord { place: offset / PLACE_BYTES, log2_capacity: capacity.ilog2(), has_leaves })
    }

    /// The number of chunks that it has entries for.
    const fn chunks(self) -> u64 {
        match self {
            Self::Inline => 1,
            Self::Entries { capacity, .. } => capacity,
            Self::Leaves { capacity, .. } => capacity * LEAF_ENTRIES,
        }
    }

    /// Makes the table of a new object with so many chunks, of which the first have these entries, and the others are holes.
    pub(crate) fn create<P: Pmem>(
        change: &mut Change<'_, '_, P>,
        object: &ObjectRef,
        chunks: u64,
        first: &[Entry],
    ) -> Result<Self, ObjectError> {
        if chunks <= 1 {
            return Ok(Self::Inline);
        }
        if chunks <= LEAF_ENTRIES {
            let capacity = chunks.next_power_of_two();
            let offset = change.alloc(capacity * ENTRY_BYTES)?;
            let entries = entries(change.volume, object, 0..capacity, first);
            change.fill(offset, &entries);
            return Ok(Self::Entries { offset, capacity });
        }
        debug_assert!(first.is_empty(), "a table of leaves is made without entries");
        Self::create_leaves(change, object, chunks, &[])
    }

    /// Makes a table of leaves for so many chunks, of which the first leaves have these places.
    fn create_leaves<P: Pmem>(
        change: &mut Change<'_, '_, P>,
        object: &ObjectRef,
        chunks: u64,
        first: &[u64],
    ) -> Result<Self, ObjectError> {
        let capacity = chunks.div_ceil(LEAF_ENTRIES).next_power_of_two();
        let offset = change.alloc(capacity * 8)?;
        let place = |leaf: u64| first.get(short(leaf)).copied().unwrap_or(0);
        let link = |leaf| seal(change.volume.seed, object.number, offset + 8 * leaf, place(leaf));
        let links: Vec<u8> = (0..capacity).flat_map(|leaf| link(leaf).to_le_bytes()).collect();
        change.fill(offset, &links);
        Ok(Self::Leaves { offset, capacity })
    }

    /// Makes room for so many chunks, in another block if need be, which the object's block then names. Returns the table.
    pub(crate) fn grow<P: Pmem>(
        self,
        change: &mut Change<'_, '_, P>,
        object: &ObjectRef,
        chunks: u64,
    ) -> Result<Self, ObjectError> {
        if chunks <= self.chunks() {
            return Ok(self);
        }
        let volume = change.volume;
        let load = |at: u64, count: u64| -> Vec<Entry> {
            (at..).step_by(size_of::<Entry>()).take(short(count)).map(|at| volume.load(at)).collect()
        };
        let old = match self {
            Self::Inline => load(object.inline_entry(), 1),
            Self::Entries { offset, capacity } => load(offset, capacity),
            Self::Leaves { .. } => Vec::new(),
        };
        let new = match self {
            Self::Leaves { offset, capacity } => {
                let place = |leaf| volume.sealed(object.number, offset + 8 * leaf, Structure::Table);
                let places: Vec<u64> = (0..capacity).map(place).collect::<Result<_, _>>()?;
                Self::create_leaves(change, object, chunks, &places)?
            }
            _ if chunks <= LEAF_ENTRIES => Self::create(change, object, chunks, &old)?,
            // A block with as many entries as a leaf is one.
            Self::Entries { offset, capacity: LEAF_ENTRIES } => {
                let leaves = Self::create_leaves(change, object, chunks, &[offset / PLACE_BYTES])?;
                object.write_table(change, leaves.word())?;
                return Ok(leaves);
            }
            _ => {
                let leaf = change.alloc(LEAF_ENTRIES * ENTRY_BYTES)?;
                let entries = entries(volume, object, 0..LEAF_ENTRIES, &old);
                change.fill(leaf, &entries);
                Self::create_leaves(change, object, chunks, &[leaf / PLACE_BYTES])?
            }
        };
        match self.block() {
            Some(block) => change.free(block)?,
            None => {
                let hole = Entry::new(volume.seed, object.number, 0, tier::HOLE, 0);
                change.write(object.inline_entry(), &hole)?;
            }
        }
        object.write_table(change, new.word())?;
        Ok(new)
    }

    /// The offset of an entry. `None` if it is in a leaf that does not exist, where all are holes.
    fn entry_at<P: Pmem>(
        self,
        volume: &Volume<P>,
        object: &ObjectRef,
        index: u64,
    ) -> Result<Option<u64>, ObjectError> {
        if index >= self.chunks() {
            return Err(ObjectError::corrupted(object.offset, Structure::Table));
        }
        match self {
            Self::Inline => Ok(Some(object.inline_entry())),
            Self::Entries { offset, .. } => Ok(Some(offset + index * ENTRY_BYTES)),
            Self::Leaves { offset, .. } => {
                let leaf = leaf(volume, object, offset + 8 * (index / LEAF_ENTRIES))?;
                Ok(leaf.map(|leaf| leaf + index % LEAF_ENTRIES * ENTRY_BYTES))
            }
        }
    }

    /// Where a chunk of so many bytes is.
    pub(crate) fn home<P: Pmem>(
        self,
        volume: &Volume<P>,
        slots: &Slots,
        object: &ObjectRef,
        index: u64,
        len_bytes: u64,
    ) -> Result<Home, ObjectError> {
        let Some(at) = self.entry_at(volume, object, index)? else { return Ok(Home::Hole) };
        let corrupted = ObjectError::corrupted(at, Structure::Entry);
        let entry: Entry = volume.load(at);
        match entry.home(volume.seed, object.number, index) {
            Some((tier::HOLE, 0)) => Ok(Home::Hole),
            Some((tier::PM, place)) => {
                let slot = slots.find(place * PLACE_BYTES, len_bytes).ok_or(corrupted)?;
                // A checksum of 16 bits can be right by chance; that of the owner is of 32.
                let owner: Owner = volume.load(slot.owner_at());
                let is_its_own = owner.is_valid(volume.seed, slot.owner_at())
                    && (owner.number, u64::from(owner.index)) == (object.number, index)
                    && owner.object == object.offset / PLACE_BYTES;
                match is_its_own {
                    true => Ok(Home::Slot(slot)),
                    false => Err(ObjectError::corrupted(slot.owner_at(), Structure::Owner)),
                }
            }
            Some((tier::FILE, slot)) if volume.file.as_ref().is_some_and(|file| file.has(slot)) => {
                Ok(Home::File { slot, crc: entry.crc() })
            }
            _ => Err(corrupted),
        }
    }

    /// Writes entries of chunks, in their order. A leaf that does not exist is made.
    pub(crate) fn write<P: Pmem>(
        self,
        change: &mut Change<'_, '_, P>,
        object: &ObjectRef,
        new: &[(u64, Entry)],
    ) -> Result<(), ObjectError> {
        for of_leaf in new.chunk_by(|(one, _), (next, _)| one / LEAF_ENTRIES == next / LEAF_ENTRIES) {
            match self.entry_at(change.volume, object, of_leaf[0].0)? {
                Some(_) => self.write_existing(change, object, of_leaf)?,
                None => self.write_leaf(change, object, of_leaf)?,
            }
        }
        Ok(())
    }

    /// Writes entries of chunks, but those in leaves that do not exist.
    pub(crate) fn write_existing<P: Pmem>(
        self,
        change: &mut Change<'_, '_, P>,
        object: &ObjectRef,
        new: &[(u64, Entry)],
    ) -> Result<(), ObjectError> {
        for (index, entry) in new {
            if let Some(at) = self.entry_at(change.volume, object, *index)? {
                change.write(at, entry)?;
            }
        }
        Ok(())
    }

    /// Makes a leaf with these entries.
    fn write_leaf<P: Pmem>(
        self,
        change: &mut Change<'_, '_, P>,
        object: &ObjectRef,
        new: &[(u64, Entry)],
    ) -> Result<(), ObjectError> {
        let Self::Leaves { offset: links, .. } = self else { unreachable!("only leaves can be missing") };
        let leaf = new[0].0 / LEAF_ENTRIES;
        let range = leaf * LEAF_ENTRIES..(leaf + 1) * LEAF_ENTRIES;
        let block = change.alloc(LEAF_ENTRIES * ENTRY_BYTES)?;
        let mut bytes = entries(change.volume, object, range.clone(), &[]);
        for (index, entry) in new {
            let at = short((index - range.start) * ENTRY_BYTES);
            bytes[at..at + size_of::<Entry>()].copy_from_slice(bytes_of(entry));
        }
        change.fill(block, &bytes);
        change.set_sealed(object.number, links + 8 * leaf, block / PLACE_BYTES)
    }

    /// The leaves of the table. One whose link is corrupted is left out.
    pub(crate) fn leaves<P: Pmem>(self, volume: &Volume<P>, object: &ObjectRef) -> Vec<Leaf> {
        self.leaves_of(volume, object, &(0..self.chunks()))
    }

    /// As [`leaves`](Self::leaves), those with these chunks.
    pub(crate) fn leaves_of<P: Pmem>(
        self,
        volume: &Volume<P>,
        object: &ObjectRef,
        chunks: &Range<u64>,
    ) -> Vec<Leaf> {
        let Self::Leaves { offset, .. } = self else { return Vec::new() };
        (chunks.start / LEAF_ENTRIES..chunks.end.div_ceil(LEAF_ENTRIES))
            .filter_map(|leaf_index| {
                let link_at = offset + 8 * leaf_index;
                let block = leaf(volume, object, link_at).ok()??;
                Some(Leaf { first: leaf_index * LEAF_ENTRIES, link_at, block })
            })
            .collect()
    }

    /// The offset of its own block.
    pub(crate) const fn block(self) -> Option<u64> {
        match self {
            Self::Inline => None,
            Self::Entries { offset, .. } | Self::Leaves { offset, .. } => Some(offset),
        }
    }
}

/// A leaf of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaf {
    /// Its first chunk.
    pub(crate) first: u64,
    /// The offset of the link to it.
    pub(crate) link_at: u64,
    /// The offset of its block.
    pub(crate) block: u64,
}

/// The leaf that a link refers to.
fn leaf<P: Pmem>(volume: &Volume<P>, object: &ObjectRef, link_at: u64) -> Result<Option<u64>, ObjectError> {
    match volume.sealed(object.number, link_at, Structure::Table)? {
        0 => Ok(None),
        place => {
            let leaf = volume.offset_of(place, LEAF_ENTRIES * ENTRY_BYTES);
            leaf.map(Some).ok_or(ObjectError::corrupted(link_at, Structure::Table))
        }
    }
}

/// The bytes of the entries of these chunks: the first ones, and then holes.
fn entries<P: Pmem>(volume: &Volume<P>, object: &ObjectRef, chunks: Range<u64>, first: &[Entry]) -> Vec<u8> {
    let entry = |index: u64| {
        let known = usize::try_from(index - chunks.start).ok().and_then(|at| first.get(at));
        known.copied().unwrap_or_else(|| Entry::new(volume.seed, object.number, index, tier::HOLE, 0))
    };
    chunks.clone().flat_map(|index| bytes_of(&entry(index)).to_vec()).collect()
}
