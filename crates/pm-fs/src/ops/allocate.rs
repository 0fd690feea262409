//! Gives holes of files pages.

use crate::error::FsError;
use crate::format::{HUGE_PAGE_BYTES, HUGE_PAGE_PAGES, PAGE_BYTES};
use crate::node::contents::{ByteRange, PAGES_ADDED, ZEROES, check_is_file, store_size, take_huge, zero};
use crate::node::inode::InodeRef;
use crate::node::slot::Slot;
use crate::node::tree;
use crate::node::walk::{self, Visited};
use crate::session::shared::Shared;
use crate::session::table::{Inner, Life, State};
use crate::volume::Volume;
use crate::volume::pages::Taken;
use core::ops::Range;
use pm_core::Pmem;

/// The zeroes of a huge page are stored in pieces of this length.
static MANY_ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// What [`allocate`] does besides giving holes pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    /// Whether a file that ends before the range gets longer.
    pub(crate) grows: bool,
    /// Whether bytes that are there become zero.
    pub(crate) zeroes: bool,
}

/// Gives the holes of a range pages, full of zeroes.
///
/// # Durability
/// Durable when this returns, with the fence of `View::store_u64_pair`. A crash before that leaves the old length or the new one, and pages in a part
/// of the holes. Two fences for each huge page, else for each 64 pages, and one for the length.
pub(crate) fn allocate<P: Pmem>(
    shared: &Shared<P>,
    state: &State,
    range: ByteRange,
    how: Allocation,
) -> Result<(), FsError> {
    check_is_file(&state.inode)?;
    let range = range.checked()?;
    let (volume, inode) = (shared.prepared()?, &state.inode);
    let _inner = state.write_existing()?;
    let size = inode.size(volume)?;
    let new_size = if how.grows { size.max(range.end) } else { size };
    let pages = pages_of(&range);
    check_room(volume, inode, &pages)?;
    // Before holes get pages, which are zero already.
    let has_zeroes = zero(volume, inode, size..new_size)?;
    fill(volume, inode, pages)?;
    if how.zeroes {
        // After all that may fail.
        zero(volume, inode, range.start..range.end.min(size))?;
    }
    let now = inode.wtime_for(volume, volume.now())?;
    if has_zeroes {
        // The length must not be durable before the zeroes.
        volume.pmem().fence()?;
    }
    store_size(volume, inode, new_size, now)
}

/// The offsets of the pages of a range of a file, after its holes have got pages. The range is in the file, and not empty. The caller has the lock of
/// the file.
///
/// # Durability
/// Durable when this returns, with the commit of the last `Heap::transaction`; a crash before that leaves pages in a part of the holes. Two fences
/// for each huge page, else for each 64 pages; none if there are no holes.
pub(crate) fn present_pages<P: Pmem>(
    shared: &Shared<P>,
    state: &State,
    inner: &Inner,
    range: &Range<u64>,
) -> Result<Vec<u64>, FsError> {
    check_is_file(&state.inode)?;
    let (volume, inode) = (shared.prepared()?, &state.inode);
    if inner.life == Life::Freed {
        return Err(FsError::NotFound);
    }
    if range.is_empty() || range.end > inode.size(volume)? {
        return Err(FsError::Invalid);
    }
    let pages = pages_of(range);
    check_room(volume, inode, &pages)?;
    fill(volume, inode, pages.clone())?;
    let page = |index| match tree::find(volume, inode, index)? {
        Some(slot) => volume.page(slot.number),
        None => Err(FsError::corrupted(inode.slots_at(), "a file index")),
    };
    pages.map(page).collect()
}

/// The numbers of the pages that a range of bytes is in.
const fn pages_of(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES)
}

/// Gives the holes of a range of pages zeroed ones, in several transactions.
fn fill<P: Pmem>(volume: &Volume<P>, inode: &InodeRef, pages: Range<u64>) -> Result<(), FsError> {
    let Range { start: mut index, end: stop } = pages;
    while index < stop {
        if let Some(taken) = take_huge(volume, inode, &(index..stop))? {
            add_huge_zeroed(volume, inode, index, taken)?;
            index += HUGE_PAGE_PAGES;
            continue;
        }
        let end = (index + 1).next_multiple_of(PAGES_ADDED as u64).min(stop);
        let mut missing = Vec::new();
        for index in index..end {
            if tree::find(volume, inode, index)?.is_none() {
                missing.push(index);
            }
        }
        add_zeroed(volume, inode, &missing)?;
        index = end;
    }
    Ok(())
}

/// Gives a file a huge page full of zeroes.
fn add_huge_zeroed<P: Pmem>(
    volume: &Volume<P>,
    inode: &InodeRef,
    index: u64,
    taken: Taken<'_>,
) -> Result<(), FsError> {
    let first = taken.numbers()[0];
    let page = volume.page(first)?;
    for at in (page..page + HUGE_PAGE_BYTES).step_by(MANY_ZEROES.len()) {
        volume.pmem().store_nt(at, &MANY_ZEROES);
    }
    volume.transaction(|change| {
        change.note_data();
        tree::set_huge(change, inode, index, first)
    })?;
    taken.keep();
    Ok(())
}

/// Refuses a range with more holes than there are free pages, before anything changes. Other files may take the pages all the same.
fn check_room<P: Pmem>(volume: &Volume<P>, inode: &InodeRef, pages: &Range<u64>) -> Result<(), FsError> {
    let free = volume.pages.free_count();
    let mut holes = pages.end - pages.start;
    let mut from = pages.start;
    while holes > free {
        match walk::next(volume, inode, from)? {
            Some(Visited { index, .. }) if pages.contains(&index) => (holes, from) = (holes - 1, index + 1),
            _ => return Err(FsError::NoSpace),
        }
    }
    Ok(())
}

/// Gives these holes pages full of zeroes, in one transaction.
fn add_zeroed<P: Pmem>(volume: &Volume<P>, inode: &InodeRef, missing: &[u64]) -> Result<(), FsError> {
    if missing.is_empty() {
        return Ok(());
    }
    let taken = volume.pages.take(missing.len())?;
    for number in taken.numbers() {
        volume.pmem().store_nt(volume.page(*number)?, &ZEROES);
    }
    volume.transaction(|change| {
        change.note_data();
        for (index, number) in missing.iter().zip(taken.numbers()) {
            tree::set(change, inode, *index, Slot::page(*number))?;
        }
        Ok(())
    })?;
    taken.keep();
    Ok(())
}
