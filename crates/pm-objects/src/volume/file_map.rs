//! The map of the file's slots, in the pool.

use super::file::{FileTier, word_in};
use super::root::Roots;
use super::volume::Volume;
use crate::error::ObjectError;
use crate::format::{MAP_TAG, MAP_WORDS, MapBlock, PLACE_BYTES, owner, seal, unseal};
use core::mem::{offset_of, size_of};
use pm_core::{Pmem, bytes_of};

/// Reads the map of a pool with a file. Where a link is corrupted, the slots behind it are not used.
pub(crate) fn read<P: Pmem>(volume: &Volume<P>, roots: &Roots) -> Result<(), ObjectError> {
    let file = volume.file();
    let mut place = roots.maps(volume)?;
    let mut link_at = roots.offsets()[0];
    while place != 0 {
        let offset = volume.offset_of(place, size_of::<MapBlock>() as u64);
        let offset = offset.filter(|offset| volume.pmem().load_u64(*offset) == MAP_TAG);
        let Some(offset) = offset.filter(|_| file.blocks().len() < file.blocks_needed()) else {
            file.break_at(link_at);
            return Ok(());
        };
        add(volume, file, offset);
        link_at = next_at(offset);
        match unseal(volume.seed, owner::MAP, link_at, volume.pmem().load_u64(link_at)) {
            Some(next) => place = next,
            None => {
                file.break_at(link_at);
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Adds the blocks that the map lacks, for a crash may have left it incomplete. They are made at once, because a full pool has no room for them.
///
/// # Durability
/// A crash leaves each block in the map, or free. Two fences each.
pub(crate) fn complete<P: Pmem>(volume: &Volume<P>, roots: &Roots) -> Result<(), ObjectError> {
    let file = volume.file();
    while file.broken_at().is_none() && file.blocks().len() < file.blocks_needed() {
        let last = file.blocks().last().copied();
        let added = volume.transaction(|change| {
            let offset = change.alloc(size_of::<MapBlock>() as u64)?;
            let sealed = |at| seal(volume.seed, owner::MAP, at, 0);
            let words = core::array::from_fn(|word| sealed(word_in(offset, word as u64)));
            change.fill(offset, bytes_of(&MapBlock { tag: MAP_TAG, next: sealed(next_at(offset)), words }));
            let place = offset / PLACE_BYTES;
            match last {
                Some(last) => change.set_sealed(owner::MAP, next_at(last), place)?,
                None => roots.set_maps(change, place)?,
            }
            Ok(offset)
        })?;
        add(volume, file, added);
    }
    Ok(())
}

/// Adds a block that exists.
fn add<P: Pmem>(volume: &Volume<P>, file: &FileTier<P>, offset: u64) {
    let load = |word| {
        let at = word_in(offset, word);
        unseal(volume.seed, owner::MAP, at, volume.pmem().load_u64(at))
    };
    let words: Vec<Option<u64>> = (0..MAP_WORDS as u64).map(load).collect();
    file.add(offset, &words);
}

/// The offset of the link to the next block.
const fn next_at(block: u64) -> u64 {
    block + offset_of!(MapBlock, next) as u64
}
