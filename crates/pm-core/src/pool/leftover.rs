//! What earlier processes left in a region: made durable before anything relies on it, or erased.
//!
//! A process that is killed between a store and its flush leaves the store in the caches. The next process reads it, and cannot
//! tell it from what is durable; if it relied on it, a power failure could take the store back and keep what was built on it. So
//! all that opening or formatting relies on is flushed and fenced first, whether it needs it or not.

use super::format::{HEADER_BYTES, Header, MAGIC, ROOT_COUNT, ROOTS_START};
use super::header::{
    data_pages, extended, has_magic, inner_end_said, inner_ends_with_magic, is_hole, is_zero, whole_bytes,
};
use super::root::SLOT_BYTES;
use crate::persist::bytes_of;
use crate::pmem::store_words;
use crate::{FenceError, Pmem};
use core::mem::{offset_of, size_of};
use core::ops::Range;

/// Where a header has anything but zeroes.
const FILLED: [Range<u64>; 2] = [0..offset_of!(Header, reserved) as u64, HEADER_BYTES - 8..HEADER_BYTES];

/// Makes durable what opening a pool relies on: both copies of the header, and the roots. In a region longer than its pool, also the parts of
/// the pages beyond it that a header fills: an interrupted growing, or the erasing of its remains, may have stored to them.
///
/// # Durability
/// One fence.
pub(super) fn persist<P: Pmem>(pmem: &P, header: &Header) -> Result<(), FenceError> {
    pmem.flush(0, HEADER_BYTES);
    pmem.flush(header.pool_bytes - HEADER_BYTES, HEADER_BYTES);
    for at in pages_beyond(pmem, header) {
        FILLED.into_iter().for_each(|part| pmem.flush(at + part.start, part.end - part.start));
    }
    pmem.flush(ROOTS_START, ROOT_COUNT * SLOT_BYTES);
    pmem.fence()
}

/// Zeroes what an interrupted growing left beyond a pool that is shorter than its region: in the last page, or inside where the region has
/// grown since. A whole copy is sound and newer than the two that count: should the first one be corrupted later, it would be taken for the
/// pool. A part of one, as a crash or a killed erasing leaves it, would become data, which must be zero.
///
/// # Durability
/// The other two are durable before, and so is what is found here. Costs one fence, where anything is.
pub(super) fn erase_abandoned<P: Pmem>(pmem: &P, header: &Header) -> Result<(), FenceError> {
    let is_filled = |at: &u64| FILLED.into_iter().any(|part| !is_zero(pmem, at + part.start..at + part.end));
    let is_abandoned =
        |at: &u64| is_filled(at) && (has_magic(pmem, *at) || is_part_of_growth(pmem, header, *at));
    let abandoned: Vec<u64> = pages_beyond(pmem, header).filter(is_abandoned).collect();
    if abandoned.is_empty() {
        return Ok(());
    }
    for at in abandoned {
        zero(pmem, at, at + HEADER_BYTES);
    }
    pmem.fence()
}

/// The pages of the region behind the end of its pool, but for holes.
fn pages_beyond<P: Pmem>(pmem: &P, header: &Header) -> impl Iterator<Item = u64> {
    data_pages(pmem, header.pool_bytes..whole_bytes(pmem))
}

/// Whether a page holds nothing but words of the backup that growing the pool up to there stores. A page with
/// anything else is not the pool's.
fn is_part_of_growth<P: Pmem>(pmem: &P, header: &Header, at: u64) -> bool {
    let Ok(grown) = extended(header, at + HEADER_BYTES) else { return false };
    let words = bytes_of(&grown).as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    (at..).step_by(size_of::<u64>()).zip(words).all(|(at, word)| [0, word].contains(&pmem.load_u64(at)))
}

/// Erases every header that opening could find, so that formatting over an old pool cannot be interrupted into a mixture of the
/// two; and stores nothing inside the old pool before that is durably gone.
///
/// A page inside that begins like a header may be data of the old pool, or the backup of an even older one, which opening may find
/// when neither end of the region is a sound header. It does not look inside where the page at the start is zero, and believes no
/// copy there of another identity than the corrupted header's at the start, if that begins like one. So where there is such a page, the
/// header at the start loses its identity first, while the backup at the end is whole, and its magic last. What lies inside is
/// erased then, before the new backup is stored, of which a crash may leave a part.
///
/// At the ends all of each is zeroed, not the magic alone: the new header begins with the same magic, and a crash that keeps no
/// more of it would bring the old one back. Inside, all but the magic is: by the magic alone a copy inside is found, so it must be
/// there for as long as the rest may still be on the medium. A process that is killed meanwhile would else hide from the next one a
/// copy that a power failure brings back.
///
/// # Durability
/// When it returns, the old pool is durably gone, and what was inside is at the next fence. Costs two fences, and four where a page
/// inside begins like a header. What is zero already is flushed too: the process that zeroed it may have been killed before it flushed,
/// and then the header is still on the medium.
pub(super) fn erase_all<P: Pmem>(pmem: &P) -> Result<(), FenceError> {
    let end = pmem.len_bytes();
    if let Some(inner_end) = inner_end_said(pmem) {
        // A growing that was killed may have erased it, with its magic.
        flush_page(pmem, inner_end - HEADER_BYTES);
    }
    let inner_ends = inner_ends_with_magic(pmem);
    let may_find_others = !inner_ends.is_empty() && !is_zero(pmem, 0..HEADER_BYTES);
    if may_find_others {
        disown(pmem)?;
    }
    zero(pmem, end - HEADER_BYTES, end);
    pmem.fence()?;
    if may_find_others {
        zero(pmem, MAGIC.len() as u64, HEADER_BYTES);
        pmem.fence()?;
    }
    zero(pmem, 0, HEADER_BYTES);
    pmem.fence()?;
    for inner_end in inner_ends {
        zero(pmem, inner_end - HEADER_BYTES + MAGIC.len() as u64, inner_end);
    }
    Ok(())
}

/// Makes the page at the start a corrupted header of no pool, which no copy inside is the backup of.
fn disown<P: Pmem>(pmem: &P) -> Result<(), FenceError> {
    store_words(pmem, 0, &MAGIC);
    store_words(pmem, offset_of!(Header, uuid) as u64, &[0; 16]);
    pmem.persist(0, offset_of!(Header, generation) as u64)
}

/// Zeroes what is not zero of a range inside one page, and flushes all of it.
fn zero<P: Pmem>(pmem: &P, start: u64, end: u64) {
    let (zeroes, mut found) = ([0; size_of::<Header>()], [0; size_of::<Header>()]);
    let len = usize::try_from(end - start).expect("at most a page");
    pmem.load(start, &mut found[..len]);
    if found != zeroes {
        store_words(pmem, start, &zeroes[..len]);
    }
    pmem.flush(start, end - start);
}

/// Flushes a page, unless it is a hole: a flush fills holes on some file systems.
fn flush_page<P: Pmem>(pmem: &P, at: u64) {
    if !is_hole(pmem, at) {
        pmem.flush(at, HEADER_BYTES);
    }
}
