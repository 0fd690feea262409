//! The entries of an object's chunks: in its block, in one table, or in leaves under a root of links.

use super::object::ObjectRef;
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

/// The table of an object, whose links are verified when they are followed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Table {
    /// One chunk or none: the entry in the block.
    Inline,
    /// Up to 256 entries, at this offset.
    Entries(u64),
    /// Links to leaves of 256 entries, at this offset.
    Leaves(u64),
}

impl Table {
    /// The table of an object with so many chunks.
    pub(crate) fn of<P: Pmem>(
        volume: &Volume<P>,
        object: &ObjectRef,
        chunks: u64,
    ) -> Result<Self, ObjectError> {
        let table = object.table(volume)?;
        let bytes = Self::block_bytes(chunks);
        if bytes == 0 {
            return Ok(Self::Inline);
        }
        let offset = volume.offset_of(table / PLACE_BYTES, bytes);
        let offset = offset.ok_or(ObjectError::corrupted(object.offset, Structure::Table))?;
        Ok(if chunks <= LEAF_ENTRIES { Self::Entries(offset) } else { Self::Leaves(offset) })
    }

    /// The length of the block for so many chunks.
    const fn block_bytes(chunks: u64) -> u64 {
        if chunks <= 1 {
            0
        } else if chunks <= LEAF_ENTRIES {
            chunks * ENTRY_BYTES
        } else {
            chunks.div_ceil(LEAF_ENTRIES) * 8
        }
    }

    /// Makes the table of a new object with so many chunks, of which the first have these entries, and the others are holes. Returns the offset of
    /// its block, or 0.
    pub(crate) fn create<P: Pmem>(
        change: &mut Change<'_, '_, P>,
        object: &ObjectRef,
        chunks: u64,
        first: &[Entry],
    ) -> Result<u64, ObjectError> {
        let bytes = Self::block_bytes(chunks);
        if bytes == 0 {
            return Ok(0);
        }
        let offset = change.alloc(bytes)?;
        if chunks <= LEAF_ENTRIES {
            let entries = entries(change.volume, object, 0..chunks, first);
            change.fill(offset, &entries);
        } else {
            debug_assert!(first.is_empty(), "a table of leaves is made without entries");
            let link = |leaf: u64| seal(change.volume.seed, object.number, offset + 8 * leaf, 0);
            let links: Vec<u8> =
                (0..chunks.div_ceil(LEAF_ENTRIES)).flat_map(|leaf| link(leaf).to_le_bytes()).collect();
            change.fill(offset, &links);
        }
        Ok(offset)
    }

    /// The offset of an entry. `None` if it is in a leaf that does not exist, where all are holes.
    fn entry_at<P: Pmem>(
        self,
        volume: &Volume<P>,
        object: &ObjectRef,
        index: u64,
    ) -> Result<Option<u64>, ObjectError> {
        match self {
            Self::Inline => Ok(Some(object.inline_entry())),
            Self::Entries(offset) => Ok(Some(offset + index * ENTRY_BYTES)),
            Self::Leaves(offset) => {
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

    /// Writes the entries of adjacent chunks, all of one leaf, of an object with so many chunks.
    pub(crate) fn write<P: Pmem>(
        self,
        change: &mut Change<'_, '_, P>,
        object: &ObjectRef,
        chunks: u64,
        start: u64,
        new: &[Entry],
    ) -> Result<(), ObjectError> {
        let volume = change.volume;
        if let Some(at) = self.entry_at(volume, object, start)? {
            return (at..)
                .step_by(size_of::<Entry>())
                .zip(new)
                .try_for_each(|(at, entry)| change.write(at, entry));
        }
        let Self::Leaves(links) = self else { unreachable!("only leaves can be missing") };
        let leaf = start / LEAF_ENTRIES;
        let range = leaf * LEAF_ENTRIES..((leaf + 1) * LEAF_ENTRIES).min(chunks);
        let block = change.alloc(LEAF_ENTRIES * ENTRY_BYTES)?;
        let at = short((start - range.start) * ENTRY_BYTES);
        let mut bytes = entries(volume, object, range, &[]);
        let new: Vec<u8> = new.iter().flat_map(|entry| bytes_of(entry).iter().copied()).collect();
        bytes[at..at + new.len()].copy_from_slice(&new);
        change.fill(block, &bytes);
        change.set_sealed(object.number, links + 8 * leaf, block / PLACE_BYTES)
    }

    /// The blocks of the table, with the first chunk of each leaf, and the offset of the link to it. A leaf whose link is corrupted is left out.
    pub(crate) fn leaves<P: Pmem>(self, volume: &Volume<P>, object: &ObjectRef, chunks: u64) -> Vec<Leaf> {
        let Self::Leaves(links) = self else { return Vec::new() };
        (0..chunks.div_ceil(LEAF_ENTRIES))
            .filter_map(|leaf_index| {
                let link_at = links + 8 * leaf_index;
                let block = leaf(volume, object, link_at).ok()??;
                Some(Leaf { first: leaf_index * LEAF_ENTRIES, link_at, block })
            })
            .collect()
    }

    /// The offset of its own block.
    pub(crate) const fn block(self) -> Option<u64> {
        match self {
            Self::Inline => None,
            Self::Entries(offset) | Self::Leaves(offset) => Some(offset),
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
