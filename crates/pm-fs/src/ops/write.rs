//! Writes of file data.

use crate::error::FsError;
use crate::format::{HUGE_PAGE_BYTES, PAGE_BYTES};
use crate::node::contents::{
    PAGES_ADDED, SIZE_MAX, ZEROES, check_is_file, short, short_len, store_size, take_huge, zero,
};
use crate::node::inode::InodeRef;
use crate::node::slot::{self, Slot};
use crate::node::tree::{self, Lookup};
use crate::session::shared::Shared;
use crate::session::table::State;
use crate::volume::pages::Taken;
use crate::volume::{Change, Volume};
use core::ops::Range;
use pm_core::Pmem;

/// The most bytes that a write to a strict file overwrites atomically, wherever it begins.
pub const ATOMIC_WRITE_BYTES: u64 = (PAGES_ADDED as u64 - 1) * PAGE_BYTES;

/// Writes bytes at an offset, and returns their number: fewer if there is no room for all.
///
/// # Durability
/// Durable when this returns, with the fence of `View::store_u64_pair` or the commit of a `Heap::transaction`. A crash before that leaves the length
/// old or new, or new up to a part of the bytes, and never before the bytes; of bytes that are overwritten each 8-byte word is old or new, and in a
/// strict file all of a transaction's are. One fence if the pages are there and the length stays, and else two; two more for each further 64 pages,
/// or huge page where the file has none of its pages.
pub(crate) fn write<P: Pmem>(
    shared: &Shared<P>,
    state: &State,
    offset: Option<u64>,
    bytes: &[u8],
) -> Result<usize, FsError> {
    check_is_file(&state.inode)?;
    let inner = state.write_existing()?;
    let volume = shared.prepared()?;
    let size = state.inode.size(volume)?;
    let offset = offset.unwrap_or(size);
    if bytes.is_empty() {
        return Ok(0);
    }
    // As write(2): up to the greatest length.
    let bytes = &bytes[..short_len(SIZE_MAX.saturating_sub(offset), bytes.len())];
    if bytes.is_empty() {
        return Err(FsError::TooLong);
    }
    let end = offset + bytes.len() as u64;
    zero(volume, &state.inode, size..offset)?;
    let mut at = offset;
    while at < end {
        let rest = Piece { at, bytes: &bytes[short_len(at - offset, bytes.len())..] };
        match write_some(volume, &state.inode, rest, inner.maps > 0) {
            Ok(len) => at += len,
            Err(_) if at > offset => break,
            Err(error) => return Err(error),
        }
    }
    Ok(short_len(at - offset, bytes.len()))
}

/// Notes the time of a change, and with it makes durable what this thread has flushed.
///
/// # Durability
/// Durable when this returns, with the fence of `View::store_u64_pair`.
pub(crate) fn note_change<P: Pmem>(shared: &Shared<P>, state: &State) -> Result<(), FsError> {
    let (volume, inode) = (shared.prepared()?, &state.inode);
    let _inner = state.write();
    let now = inode.wtime_for(volume, volume.now())?;
    store_size(volume, inode, inode.size(volume)?, now)
}

/// Bytes, and where they are written: an offset in a file or in a page.
#[derive(Clone, Copy)]
struct Piece<'b> {
    at: u64,
    bytes: &'b [u8],
}

impl Piece<'_> {
    const fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    const fn end(&self) -> u64 {
        self.at + self.len()
    }
}

/// The pages that one transaction writes.
struct Plan {
    /// Pages that are written in place.
    present: Vec<Present>,
    /// Pages that the file gets.
    added: Vec<Added>,
    /// The end of what is written.
    end: u64,
}

/// A page that a file has.
struct Present {
    /// Its number in the file.
    index: u64,
    /// Its offset in the pool.
    page: u64,
}

/// A page that a file gets.
struct Added {
    /// Its number in the file.
    index: u64,
    /// The offset of its slot. `None` if no node leads to it, or the page is a part of a huge one.
    at: Option<u64>,
    /// The offset of the page that is replaced, if there is one.
    old: Option<u64>,
}

impl Plan {
    /// As many pages of a range as one transaction can write, and as there is room for. Bytes before `size` are overwritten in new pages if
    /// `is_copied`: then all or none.
    fn new<P: Pmem>(
        volume: &Volume<P>,
        inode: &InodeRef,
        bytes: Range<u64>,
        size: u64,
        is_copied: bool,
    ) -> Result<Self, FsError> {
        let mut plan = Self { present: Vec::new(), added: Vec::new(), end: bytes.end };
        // The most pages that the file gets. Counting free ones takes their lock.
        let most_added = || match usize::try_from(volume.pages.free_count()) {
            Ok(free) if !is_copied => free.min(PAGES_ADDED),
            _ => PAGES_ADDED,
        };
        let mut most = None;
        for index in bytes.start / PAGE_BYTES..bytes.end.div_ceil(PAGE_BYTES) {
            let Lookup { at, slot } = tree::find_slot(volume, inode, index)?;
            let old = slot.map(|slot| volume.page(slot.number)).transpose()?;
            match old {
                Some(page) if !is_copied || index * PAGE_BYTES >= size => {
                    plan.present.push(Present { index, page })
                }
                _ if plan.added.len() < *most.get_or_insert_with(most_added) => {
                    plan.added.push(Added { index, at, old });
                }
                _ => {
                    plan.end = index * PAGE_BYTES;
                    break;
                }
            }
        }
        Ok(plan)
    }
}

/// Writes as many bytes as one transaction can, and returns their number.
fn write_some<P: Pmem>(
    volume: &Volume<P>,
    inode: &InodeRef,
    piece: Piece<'_>,
    is_mapped: bool,
) -> Result<u64, FsError> {
    let Piece { at: offset, bytes } = piece;
    let size = inode.size(volume)?;
    if offset.is_multiple_of(HUGE_PAGE_BYTES) && piece.len() >= HUGE_PAGE_BYTES {
        let pages = offset / PAGE_BYTES..piece.end() / PAGE_BYTES;
        if let Some(taken) = take_huge(volume, inode, &pages)? {
            return write_huge(volume, inode, size, piece, taken);
        }
    }
    // An aligned word is stored atomically.
    let is_word = bytes.len() == 8 && offset.is_multiple_of(8);
    let is_copied = offset < size && !is_word && !is_mapped && inode.is_strict(volume)?;
    if !is_copied && let Some(at) = in_one_page(volume, inode, piece, size)? {
        volume.pmem().store_nt(at, bytes);
        finish_in_place(volume, inode, size, piece.end())?;
        return Ok(piece.len());
    }
    let plan = Plan::new(volume, inode, offset..piece.end(), size, is_copied)?;
    if plan.end <= offset {
        return Err(FsError::NoSpace);
    }
    write_pages(volume, inode, size, piece, &plan)
}

/// Writes the bytes of a plan: in place, and to new pages, which a transaction gives to the file. Returns their number.
fn write_pages<P: Pmem>(
    volume: &Volume<P>,
    inode: &InodeRef,
    size: u64,
    Piece { at: offset, bytes }: Piece<'_>,
    plan: &Plan,
) -> Result<u64, FsError> {
    let taken = volume.pages.take(plan.added.len())?;
    // The bytes of a page of the file.
    let part = |index: u64| {
        let start = (index * PAGE_BYTES).max(offset);
        let stop = ((index + 1) * PAGE_BYTES).min(plan.end);
        Piece { at: start % PAGE_BYTES, bytes: &bytes[short(start - offset)..short(stop - offset)] }
    };
    let overwrite = || {
        for Present { index, page } in &plan.present {
            let part = part(*index);
            volume.pmem().store_nt(page + part.at, part.bytes);
        }
    };
    for (added, number) in plan.added.iter().zip(taken.numbers()) {
        store_new(volume, volume.page(*number)?, part(added.index), added.old);
    }
    if plan.added.is_empty() {
        overwrite();
        finish_in_place(volume, inode, size, plan.end)?;
        return Ok(plan.end - offset);
    }
    let now = inode.wtime_for(volume, volume.now())?;
    volume.transaction(|change| {
        change.note_data();
        set_slots(change, inode, &plan.added, taken.numbers())?;
        plan.added.iter().filter_map(|added| added.old).for_each(|old| change.free_page(old / PAGE_BYTES));
        inode.set_size(change, size.max(plan.end))?;
        change.set(inode.wtime_at(), now)?;
        // After all that may fail for want of room.
        overwrite();
        Ok(())
    })?;
    taken.keep();
    Ok(plan.end - offset)
}

/// Where bytes are that are in one page of the file. `None` if they are in several, or if it has hardly got that page.
fn in_one_page<P: Pmem>(
    volume: &Volume<P>,
    inode: &InodeRef,
    piece: Piece<'_>,
    size: u64,
) -> Result<Option<u64>, FsError> {
    let (index, within) = (piece.at / PAGE_BYTES, piece.at % PAGE_BYTES);
    if within + piece.len() > PAGE_BYTES || index * PAGE_BYTES >= size {
        return Ok(None);
    }
    let slot = tree::find(volume, inode, index)?;
    slot.map(|slot| Ok(volume.page(slot.number)? + within)).transpose()
}

/// Makes bytes that were stored in place durable, with the time and a length that covers them.
fn finish_in_place<P: Pmem>(
    volume: &Volume<P>,
    inode: &InodeRef,
    size: u64,
    end: u64,
) -> Result<(), FsError> {
    if end > size {
        // The length must not be durable before the bytes.
        volume.pmem().fence()?;
    }
    store_size(volume, inode, size.max(end), inode.wtime_for(volume, volume.now())?)
}

/// Writes the first bytes of a piece to a huge page, and gives it to the file there. Returns their number.
fn write_huge<P: Pmem>(
    volume: &Volume<P>,
    inode: &InodeRef,
    size: u64,
    Piece { at: offset, bytes }: Piece<'_>,
    taken: Taken<'_>,
) -> Result<u64, FsError> {
    let first = taken.numbers()[0];
    volume.pmem().store_nt(volume.page(first)?, &bytes[..short(HUGE_PAGE_BYTES)]);
    let now = inode.wtime_for(volume, volume.now())?;
    volume.transaction(|change| {
        change.note_data();
        tree::set_huge(change, inode, offset / PAGE_BYTES, first)?;
        inode.set_size(change, size.max(offset + HUGE_PAGE_BYTES))?;
        change.set(inode.wtime_at(), now)
    })?;
    taken.keep();
    Ok(HUGE_PAGE_BYTES)
}

/// Sets the slots of pages that a file gets: adjacent ones at once, if nodes lead to them.
fn set_slots<P: Pmem>(
    change: &mut Change<'_, '_, P>,
    inode: &InodeRef,
    added: &[Added],
    numbers: &[u64],
) -> Result<(), FsError> {
    let mut slots = numbers.iter().map(|number| Slot::page(*number));
    for run in added.chunk_by(|one, next| one.at.map(|at| at + 8) == next.at && next.at.is_some()) {
        let run_slots: Vec<Slot> = slots.by_ref().take(run.len()).collect();
        match run[0].at {
            Some(at) => slot::store_run(change, inode, at, &run_slots)?,
            None => tree::set(change, inode, run[0].index, run_slots[0])?,
        }
    }
    Ok(())
}

/// Stores a part of a new page, and around it what is in the old one, or zeroes: the whole page becomes visible.
fn store_new<P: Pmem>(volume: &Volume<P>, page: u64, part: Piece<'_>, old: Option<u64>) {
    let pmem = volume.pmem();
    let (within, stop) = (part.at, part.end());
    let around = |rest: &[u8; 4096]| {
        pmem.store_nt(page, &rest[..short(within)]);
        pmem.store_nt(page + within, part.bytes);
        pmem.store_nt(page + stop, &rest[short(stop)..]);
    };
    match old {
        Some(old) if (within, stop) != (0, PAGE_BYTES) => {
            let mut rest = [0; 4096];
            pmem.load(old, &mut rest);
            around(&rest);
        }
        _ => around(&ZEROES),
    }
}
