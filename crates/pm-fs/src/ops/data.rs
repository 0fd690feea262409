//! File data: reads, and changes of the length and of the pages.

use crate::error::FsError;
use crate::format::{HUGE_PAGE_BYTES, HUGE_PAGE_PAGES, PAGE_BYTES};
use crate::node::inode::{FileKind, InodeRef};
use crate::node::slot::{PAGES_MAX, Slot};
use crate::node::tree;
use crate::node::walk::{self, Visited};
use crate::session::shared::Shared;
use crate::session::table::{Inner, Life, State};
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

pub(crate) static ZEROES: [u8; 4096] = [0; 4096];
const _: () = assert!(ZEROES.len() as u64 == PAGE_BYTES);

/// Those of a huge page are stored in pieces of this length.
static MANY_ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// The length of a part of a page.
pub(crate) fn short(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a part of a page")
}

pub(crate) fn check_is_file(inode: &InodeRef) -> Result<(), FsError> {
    match inode.kind {
        FileKind::File => Ok(()),
        FileKind::Directory => Err(FsError::IsADirectory),
        _ => Err(FsError::Invalid),
    }
}

/// Reads bytes from an offset, and returns their number: fewer at the end of the file.
pub(crate) fn read<P: Pmem>(
    shared: &Shared<P>,
    state: &State,
    offset: u64,
    out: &mut [u8],
) -> Result<usize, FsError> {
    check_is_file(&state.inode)?;
    let volume = &shared.volume;
    let _inner = state.read();
    let size = state.inode.size(volume)?;
    let len = short_len(size.saturating_sub(offset), out.len());
    let mut rest = &mut out[..len];
    let mut at = offset;
    while !rest.is_empty() {
        let within = at % PAGE_BYTES;
        let (part, after) = rest.split_at_mut(short_len(PAGE_BYTES - within, rest.len()));
        match tree::find(volume, &state.inode, at / PAGE_BYTES)? {
            Some(slot) => volume.pmem().load(volume.page(slot.number)? + within, part),
            None => part.fill(0),
        }
        at += part.len() as u64;
        rest = after;
    }
    Ok(len)
}

/// At most `bytes`, and at most `len`.
pub(crate) fn short_len(bytes: u64, len: usize) -> usize {
    usize::try_from(bytes).map_or(len, |bytes| bytes.min(len))
}

/// The offsets of the pages of a range of a file, after its holes have got pages. The range is in the file, and not empty.
pub(crate) fn pages_of<P: Pmem>(
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
    let pages = range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES);
    check_room(volume, inode, &pages)?;
    fill(volume, inode, pages.clone())?;
    let page = |index| match tree::find(volume, inode, index)? {
        Some(slot) => volume.page(slot.number),
        None => Err(FsError::corrupted(inode.slots_at(), "a file index")),
    };
    pages.map(page).collect()
}

/// Notes the time of a change, durably, and with it what this thread has flushed. Takes the lock of the file.
pub(crate) fn note_change<P: Pmem>(shared: &Shared<P>, state: &State) -> Result<(), FsError> {
    let (volume, inode) = (shared.prepared()?, &state.inode);
    let _inner = state.write();
    let now = inode.wtime_for(volume, volume.now())?;
    store_size(volume, inode, inode.size(volume)?, now)
}

/// Stores the length and the time of the last change, atomically and durably.
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
    from: u64,
    to: u64,
) -> Result<bool, FsError> {
    let mut has_stored = false;
    if from >= to {
        return Ok(has_stored);
    }
    let pages = from / PAGE_BYTES..to.div_ceil(PAGE_BYTES);
    let mut zero_page = |index: u64, slot: Slot| {
        let start = (index * PAGE_BYTES).max(from);
        let stop = ((index + 1) * PAGE_BYTES).min(to);
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
    for visited in walk::walk(volume, inode)? {
        let Visited { index: first, slot, .. } = visited?;
        let mut found = (first..).zip(slot.pages()).filter(|(index, _)| pages.contains(index));
        found.try_for_each(|(index, page)| zero_page(index, Slot::page(page)))?;
    }
    Ok(has_stored)
}

/// What [`allocate`] does besides giving holes pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    /// Whether a file that ends before the range gets longer.
    pub(crate) grows: bool,
    /// Whether bytes that are there become zero.
    pub(crate) zeroes: bool,
}

/// The end of a range that is not empty and not behind the longest file.
fn checked_end(offset: u64, len_bytes: u64) -> Result<u64, FsError> {
    if len_bytes == 0 {
        return Err(FsError::Invalid);
    }
    offset.checked_add(len_bytes).filter(|end| *end <= SIZE_MAX).ok_or(FsError::TooLong)
}

/// Gives the holes of a range pages, full of zeroes.
///
/// # Durability
/// Durable when this returns. A crash before that leaves the old length or the new one, and pages in a part of the holes. Two fences for each huge page, else
/// for each 64 pages, and one for the length.
pub(crate) fn allocate<P: Pmem>(
    shared: &Shared<P>,
    state: &State,
    (offset, len_bytes): (u64, u64),
    how: Allocation,
) -> Result<(), FsError> {
    check_is_file(&state.inode)?;
    let end = checked_end(offset, len_bytes)?;
    let (volume, inode) = (shared.prepared()?, &state.inode);
    let inner = state.write();
    if inner.life == Life::Freed {
        return Err(FsError::NotFound);
    }
    let size = inode.size(volume)?;
    let new_size = if how.grows { size.max(end) } else { size };
    let pages = offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES);
    check_room(volume, inode, &pages)?;
    // Before holes get pages, which are zero already.
    let has_zeroes = zero(volume, inode, size, new_size)?;
    fill(volume, inode, pages)?;
    if how.zeroes {
        // After all that may fail.
        zero(volume, inode, offset, end.min(size))?;
    }
    let now = inode.wtime_for(volume, volume.now())?;
    if has_zeroes {
        // The length must not be durable before the zeroes.
        volume.pmem().fence()?;
    }
    store_size(volume, inode, new_size, now)
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

/// Takes a huge page for the start of a range of a file. `None` if it would not fit there, the file has pages there, or there is none.
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

/// Makes a range zero, and frees the pages that are wholly in it. The length stays.
///
/// # Durability
/// Durable when this returns. A crash before that leaves each 8-byte word of the range old or zero. One fence, and one for each 64 pages.
pub(crate) fn punch<P: Pmem>(
    shared: &Shared<P>,
    state: &State,
    (offset, len_bytes): (u64, u64),
) -> Result<(), FsError> {
    check_is_file(&state.inode)?;
    let end = checked_end(offset, len_bytes.min(SIZE_MAX.saturating_sub(offset)))?;
    let (volume, inode) = (shared.prepared()?, &state.inode);
    let inner = state.write();
    if inner.life == Life::Freed {
        return Err(FsError::NotFound);
    }
    let whole = offset.div_ceil(PAGE_BYTES)..end / PAGE_BYTES;
    // Pages of a mapped file stay.
    let whole = if inner.maps > 0 { 0..0 } else { whole };
    if whole.is_empty() {
        zero(volume, inode, offset, end)?;
    } else {
        zero(volume, inode, offset, whole.start * PAGE_BYTES)?;
        zero(volume, inode, whole.end * PAGE_BYTES, end)?;
    }
    let mut from = whole.start;
    while let Some(Visited { index, .. }) = walk::next(volume, inode, from)?
        && whole.contains(&index)
    {
        // No further than the node, or the huge page, of the first one.
        let end = whole.end.min((index + 1).next_multiple_of(HUGE_PAGE_PAGES));
        from = volume.transaction(|change| {
            let mut at = index;
            for _ in 0..PAGES_ADDED {
                let rest = tree::clear(change, inode, &(at..end))?;
                match walk::next(change, inode, rest)? {
                    Some(Visited { index, .. }) if index < end => at = index,
                    _ => {
                        tree::prune(change, inode, index)?;
                        return Ok(end);
                    }
                }
            }
            Ok(at)
        })?;
    }
    let (size, now) = (inode.size(volume)?, inode.wtime_for(volume, volume.now())?);
    // Its fence is that of the zeroes, too.
    store_size(volume, inode, size, now)
}

/// The first byte at an offset or behind it that is data, or in a hole. The end of the file is a hole.
pub(crate) fn seek<P: Pmem>(
    shared: &Shared<P>,
    state: &State,
    offset: u64,
    for_data: bool,
) -> Result<u64, FsError> {
    check_is_file(&state.inode)?;
    let (volume, inode) = (&shared.volume, &state.inode);
    let _inner = state.read();
    let size = inode.size(volume)?;
    if offset >= size {
        return Err(FsError::NoData);
    }
    let mut index = offset / PAGE_BYTES;
    if for_data {
        let found = walk::next(volume, inode, index)?.map(|next| (next.index * PAGE_BYTES).max(offset));
        return found.filter(|at| *at < size).ok_or(FsError::NoData);
    }
    let first = index;
    while index * PAGE_BYTES < size && tree::find(volume, inode, index)?.is_some() {
        if index - first >= volume.pages.count() {
            return Err(FsError::corrupted(inode.slots_at(), "a file with more pages than there are"));
        }
        index += 1;
    }
    Ok((index * PAGE_BYTES).clamp(offset, size))
}

/// The bytes of the pages of a file.
pub(crate) fn allocated_bytes<P: Pmem>(shared: &Shared<P>, state: &State) -> Result<u64, FsError> {
    check_is_file(&state.inode)?;
    let _inner = state.read();
    Ok(walk::page_count(&shared.volume, &state.inode)? * PAGE_BYTES)
}

/// Changes the length of a file. New bytes are zero.
///
/// # Durability
/// Durable when this returns; a crash before that leaves the old length or the new one. One fence, two if bytes are zeroed, and one for each further 64 pages or
/// node that are freed; a crash may leave pages behind the end, which belong to the file. To free these, set the same length again.
pub(crate) fn truncate<P: Pmem>(shared: &Shared<P>, state: &State, new_size: u64) -> Result<(), FsError> {
    check_is_file(&state.inode)?;
    if new_size > SIZE_MAX {
        return Err(FsError::TooLong);
    }
    let (volume, inode) = (shared.prepared()?, &state.inode);
    let inner = state.write();
    if inner.life == Life::Freed {
        return Err(FsError::NotFound);
    }
    let size = inode.size(volume)?;
    let now = inode.wtime_for(volume, volume.now())?;
    if new_size > size {
        if zero(volume, inode, size, new_size)? {
            // The length must not be durable before the zeroes.
            volume.pmem().fence()?;
        }
        return store_size(volume, inode, new_size, now);
    }
    // Pages of a mapped file stay, behind its end.
    let keep = if inner.maps > 0 { PAGES_MAX } else { new_size.div_ceil(PAGE_BYTES) };
    let mut has_more = volume.transaction(|change| {
        inode.set_size(change, new_size)?;
        change.set(inode.wtime_at(), now)?;
        tree::cut(change, inode, keep)
    })?;
    while has_more {
        has_more = volume.transaction(|change| tree::cut(change, inode, keep))?;
    }
    Ok(())
}
