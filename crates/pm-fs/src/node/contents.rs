//! The bytes of a regular file: what writing, truncating and allocating have in common.

use crate::error::FsError;
use crate::format::{HUGE_PAGE_PAGES, PAGE_BYTES};
use crate::node::inode::{FileKind, InodeRef};
use crate::node::slot::{PAGES_MAX, Slot};
use crate::node::tree;
use crate::node::walk::{self, Visited};
use crate::volume::Volume;
use crate::volume::pages::Taken;
use crate::volume::seal::{CONTENTS_MAX, seal};
use core::ops::Range;
use pm_core::Pmem;

/// The most pages that one transaction adds to a file.
pub(crate) const PAGES_ADDED: usize = 64;

/// The longest file.
pub(crate) const SIZE_MAX: u64 = {
    let by_pages = PAGES_MAX * PAGE_BYTES;
    if by_pages < CONTENTS_MAX { by_pages } else { CONTENTS_MAX }
};

/// A page of zeroes.
pub(crate) static ZEROES: [u8; 4096] = [0; 4096];
const _: () = assert!(ZEROES.len() as u64 == PAGE_BYTES);

/// The length of a part of a page.
pub(crate) fn short(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a part of a page")
}

/// At most `bytes`, and at most `len`.
pub(crate) fn short_len(bytes: u64, len: usize) -> usize {
    usize::try_from(bytes).map_or(len, |bytes| bytes.min(len))
}

/// Checks that an inode is a regular file.
pub(crate) fn check_is_file(inode: &InodeRef) -> Result<(), FsError> {
    match inode.kind {
        FileKind::File => Ok(()),
        FileKind::Directory => Err(FsError::IsADirectory),
        _ => Err(FsError::Invalid),
    }
}

/// A range of a file, as a caller gives it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByteRange {
    pub(crate) offset: u64,
    pub(crate) len_bytes: u64,
}

impl ByteRange {
    /// The range, after checks that it is not empty and not behind the longest file.
    pub(crate) fn checked(self) -> Result<Range<u64>, FsError> {
        let Self { offset, len_bytes } = self;
        if len_bytes == 0 {
            return Err(FsError::Invalid);
        }
        let end = offset.checked_add(len_bytes).filter(|end| *end <= SIZE_MAX).ok_or(FsError::TooLong)?;
        Ok(offset..end)
    }
}

/// Stores the length and the time of the last change, atomically.
///
/// # Durability
/// Durable when this returns, and with it all that this thread has flushed or stored around the cache: with the fence of `View::store_u64_pair`.
pub(crate) fn store_size<P: Pmem>(
    volume: &Volume<P>,
    inode: &InodeRef,
    size: u64,
    wtime: u64,
) -> Result<(), FsError> {
    let at = inode.size_at();
    volume.store_pair(at, [seal(volume.seed, inode.owner(), at, size), wtime])
}

/// Zeroes a range behind the end of a file, where its pages may hold anything. Returns whether there were pages: then the caller fences.
pub(crate) fn zero<P: Pmem>(
    volume: &Volume<P>,
    inode: &InodeRef,
    range: Range<u64>,
) -> Result<bool, FsError> {
    let mut has_stored = false;
    if range.is_empty() {
        return Ok(has_stored);
    }
    let pages = range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES);
    let mut zero_page = |index: u64, slot: Slot| {
        let start = (index * PAGE_BYTES).max(range.start);
        let stop = ((index + 1) * PAGE_BYTES).min(range.end);
        let page = volume.page(slot.number)?;
        volume.pmem().store_nt(page + start % PAGE_BYTES, &ZEROES[..short(stop - start)]);
        has_stored = true;
        Ok::<_, FsError>(())
    };
    if pages.end - pages.start <= 64 {
        for index in pages {
            if let Some(slot) = tree::find(volume, inode, index)? {
                zero_page(index, slot)?;
            }
        }
        return Ok(has_stored);
    }
    // Mostly holes.
    let (mut index, mut left) = (pages.start, volume.pages.count());
    while let Some(Visited { index: found, slot, .. }) = walk::next(volume, inode, index)? {
        if found >= pages.end {
            break;
        }
        // If nodes of a corrupted index are in it twice, this would hardly end.
        left = left
            .checked_sub(1)
            .ok_or(FsError::corrupted(inode.slots_at(), "a file index with shared nodes"))?;
        zero_page(found, slot)?;
        index = found + 1;
    }
    Ok(has_stored)
}

/// Takes a huge page for the start of a range of pages of a file. `None` if it would not fit there, the file has pages there, or there is none.
pub(crate) fn take_huge<'v, P: Pmem>(
    volume: &'v Volume<P>,
    inode: &InodeRef,
    range: &Range<u64>,
) -> Result<Option<Taken<'v>>, FsError> {
    if !tree::is_whole_huge(range) {
        return Ok(None);
    }
    let next = walk::next(volume, inode, range.start)?;
    let is_hole = next.is_none_or(|next| next.index >= range.start + HUGE_PAGE_PAGES);
    Ok(if is_hole { volume.pages.take_huge() } else { None })
}
