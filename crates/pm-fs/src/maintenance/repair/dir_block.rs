//! A block of a directory: afterwards each of its entries is whole or free.

use crate::error::FsError;
use crate::format::{DIR_ENTRIES_BYTES, DIR_ENTRY_BYTES, DIR_TAG, DirBlock, DirEntry};
use crate::node::dir::{self, Place};
use crate::node::inode::{FileKind, InodeRef};
use crate::volume::{Source as _, Volume};
use core::mem::offset_of;
use pm_core::{Pmem, from_bytes};

/// The most entries that one transaction frees.
const FREED_MAX: usize = 32;

/// Whether a block is one of this directory.
pub(super) fn is_of<P: Pmem>(volume: &Volume<P>, dir: &InodeRef, block: u64) -> bool {
    let found = volume.load::<DirBlock>(block);
    found.is_ok_and(|found| (found.tag, found.owner, found.birth) == (DIR_TAG, dir.ino, dir.birth))
}

/// Frees the entries that are corrupted. Returns whether there were any.
pub(super) fn salvage<P: Pmem>(volume: &Volume<P>, dir: &InodeRef, block: u64) -> Result<bool, FsError> {
    let end_at = block + offset_of!(DirBlock, end) as u64;
    let entries_at = block + offset_of!(DirBlock, entries) as u64;
    let found: DirBlock = volume.load(block)?;
    let stored_end = volume.sealed(dir.owner(), end_at).ok().filter(|end| *end <= DIR_ENTRIES_BYTES);
    let limit = stored_end.unwrap_or(DIR_ENTRIES_BYTES);
    // Checksums cover the offset, so that an entry is recognized behind one whose length is lost.
    let mut gaps = Vec::new();
    let (mut at, mut gap) = (0, None);
    while at < limit {
        let len = entry_len(volume.seed, &found, entries_at, at, limit);
        let first = gap.unwrap_or(at);
        match len {
            Some(len) if gap.is_none() || at - first >= DIR_ENTRY_BYTES => {
                gaps.extend(gap.take().map(|first| (first, at - first)));
                at += len;
            }
            // What is too short for a free entry takes the next one with it.
            Some(len) => at += len,
            None => {
                gap = Some(first);
                at += 8;
            }
        }
    }
    let end = gap.unwrap_or(at.min(limit));
    for gaps in gaps.chunks(FREED_MAX) {
        volume.transaction(|change| {
            gaps.iter().try_for_each(|(first, len)| {
                let len_bytes = u16::try_from(*len).expect("a block is short");
                dir::free_entry(change, Place { offset: entries_at + first, len_bytes })
            })
        })?;
    }
    if stored_end != Some(end) {
        volume.transaction(|change| change.set_sealed(dir.owner(), end_at, end))?;
    }
    Ok(!gaps.is_empty() || stored_end != Some(end))
}

/// The length of the entry at this offset. `None` if there is none that is whole.
fn entry_len(seed: u64, block: &DirBlock, entries_at: u64, at: u64, limit: u64) -> Option<u64> {
    let start = usize::try_from(at).ok()?;
    let head = block.entries.get(start..start + 16)?;
    let entry: DirEntry = from_bytes(|bytes| bytes.copy_from_slice(head));
    let name = block.entries.get(start + 16..start + 16 + usize::from(entry.name_len))?;
    let len = u64::from(entry.len_bytes);
    let is_possible = len.is_multiple_of(8) && len >= DirEntry::len_for(name.len()) && at + len <= limit;
    let is_named =
        name.is_empty() || FileKind::from_number(entry.kind).is_some() && dir::check_name(name).is_ok();
    let is_whole = is_possible && is_named && entry.crc == entry.expected_crc(seed, entries_at + at, name);
    is_whole.then_some(len)
}
