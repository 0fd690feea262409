//! State that earlier processes left in a region: opening makes it durable before relying on it, or erases it.
//!
//! A process that is killed between a store and its flush leaves the stored data in the caches. The next process loads this data, and cannot
//! distinguish it from durable data. If the next process relied on it, a power failure could undo the store and keep data derived from it. So
//! everything that opening or formatting relies on is flushed and fenced first.

use super::format::{HEADER_BYTES, Header, MAGIC, ROOT_COUNT, ROOTS_START};
use super::header::{
    backup_candidate_ends, data_pages, extended, has_magic, inner_end_in_header, is_hole, is_zero,
    whole_bytes,
};
use super::root::SLOT_BYTES;
use crate::persist::bytes_of;
use crate::pmem::store_words;
use crate::{FenceError, Pmem};
use core::mem::{offset_of, size_of};
use core::ops::Range;

/// The parts of a header that its fields and its checksum fill, in whole words. The rest is zero.
const FILLED: [Range<u64>; 2] = [0..offset_of!(Header, reserved) as u64, HEADER_BYTES - 8..HEADER_BYTES];

/// Makes durable what opening a pool relies on: both copies of the header, and the roots. In a region longer than its pool, this includes those parts
/// of each page beyond the pool that a header would fill: an interrupted growth, or an open that erased the remains of one, may have stored to them.
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

/// Zeroes the remains of an interrupted growth: copies of a header beyond the end of the pool, in the region's last page, or before it if the region
/// has grown since. A complete copy there is newer than the two valid ones, and opening would accept it if the primary were corrupted later. A
/// partial copy, left by a crash or by a process killed while erasing it, would later lie in the data area, which must be zero.
///
/// # Durability
/// The caller must have made the two valid copies and the remains durable. Costs one fence if there are remains.
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

/// The pages of the region beyond the end of its pool, except holes.
fn pages_beyond<P: Pmem>(pmem: &P, header: &Header) -> impl Iterator<Item = u64> {
    data_pages(pmem, header.pool_bytes..whole_bytes(pmem))
}

/// Whether a growth of this pool to the end of this page could have stored every word of the page: each is zero, or equal to the same word of the
/// backup that such a growth stores.
fn is_part_of_growth<P: Pmem>(pmem: &P, header: &Header, at: u64) -> bool {
    let Ok(grown) = extended(header, at + HEADER_BYTES) else { return false };
    let words = bytes_of(&grown).as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    (at..).step_by(size_of::<u64>()).zip(words).all(|(at, word)| [0, word].contains(&pmem.load_u64(at)))
}

/// Erases every header that opening could find, so that interrupted formatting never leaves a mixture of the old pool and the new one. Nothing inside
/// the old pool is stored to before its headers are durably erased.
///
/// If neither end of the region has a valid header, opening searches the inside. An inner page that begins with the magic may be data of the old
/// pool, or the backup of an even older pool. Opening skips the search if the first page is zero and the last page has no magic. If the first page
/// has the magic, opening rejects inner copies with another identity. So if an inner page begins with the magic, the order is: erase the identity in
/// the first page, while the backup at the end is complete; then the backup; then the rest of the first page, its magic last. The inner pages are
/// erased before the new backup is stored: a crash may leave a part of the new backup, and opening would then search the inside.
///
/// At both ends the whole page is zeroed, not only the magic: the new header has the same magic, and a crash that kept only the magic of the new
/// header would restore the old one. Inner pages keep their magic, which marks them for the next process: if this process were killed with a zeroed
/// magic in the caches, the next process would not find the page, and a power failure could restore the old copy.
///
/// # Durability
/// When it returns, the headers at both ends are durably erased; the inner pages are erased durably at the next fence. Costs two fences, or four if
/// an inner page begins with the magic and the first page is not zero. Pages that read as zero are flushed too: a process may have been killed
/// between zeroing and flushing them, and the medium may still hold the header.
pub(super) fn erase_all<P: Pmem>(pmem: &P) -> Result<(), FenceError> {
    let end = pmem.len_bytes();
    if let Some(inner_end) = inner_end_in_header(pmem) {
        // A process that was killed during growth may have zeroed this page, magic included, without flushing it.
        flush_page(pmem, inner_end - HEADER_BYTES);
    }
    let inner_ends = backup_candidate_ends(pmem);
    let has_backup_candidates = !inner_ends.is_empty() && !is_zero(pmem, 0..HEADER_BYTES);
    if has_backup_candidates {
        erase_identity(pmem)?;
    }
    zero(pmem, end - HEADER_BYTES, end);
    pmem.fence()?;
    if has_backup_candidates {
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

/// Makes the first page a corrupted header without an identity. Opening then accepts no inner copy as the backup of this header.
fn erase_identity<P: Pmem>(pmem: &P) -> Result<(), FenceError> {
    store_words(pmem, 0, &MAGIC);
    store_words(pmem, offset_of!(Header, uuid) as u64, &[0; 16]);
    pmem.persist(0, offset_of!(Header, generation) as u64)
}

/// Zeroes a range inside one page, unless it is zero already, and flushes it in both cases.
fn zero<P: Pmem>(pmem: &P, start: u64, end: u64) {
    let (zeroes, mut found) = ([0; size_of::<Header>()], [0; size_of::<Header>()]);
    let len = usize::try_from(end - start).expect("at most a page");
    pmem.load(start, &mut found[..len]);
    if found != zeroes {
        store_words(pmem, start, &zeroes[..len]);
    }
    pmem.flush(start, end - start);
}

/// Flushes a page, unless it is a hole: on some file systems a flush fills holes.
fn flush_page<P: Pmem>(pmem: &P, at: u64) {
    if !is_hole(pmem, at) {
        pmem.flush(at, HEADER_BYTES);
    }
}
