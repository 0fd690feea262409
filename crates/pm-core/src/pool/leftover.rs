//! What earlier processes left in a region: made durable before anything relies on it, or erased.
//!
//! A process that is killed between a store and its flush leaves the store in the caches. The next process reads it, and cannot
//! tell it from what is durable; if it relied on it, a power failure could take the store back and keep what was built on it. So
//! all that opening or formatting relies on is flushed and fenced first, whether it needs it or not.

use super::format::{HEADER_BYTES, Header, MAGIC, ROOT_COUNT, ROOTS_START};
use super::header::{erase_copy, has_magic, inner_end_said, inner_ends_with_magic, whole_bytes};
use super::roots::SLOT_BYTES;
use super::words::store_words;
use crate::{FenceError, Pmem};

/// Makes durable what opening a pool relies on: both copies of the header, and the roots. And the page at the end of a region
/// that is longer than its pool, for an interrupted growing may have been storing to it.
///
/// # Durability
/// One fence.
pub(super) fn persist<P: Pmem>(pmem: &P, header: &Header) -> Result<(), FenceError> {
    pmem.flush(0, HEADER_BYTES);
    pmem.flush(header.pool_bytes - HEADER_BYTES, HEADER_BYTES);
    if header.pool_bytes < whole_bytes(pmem) {
        pmem.flush(whole_bytes(pmem) - HEADER_BYTES, HEADER_BYTES);
    }
    pmem.flush(ROOTS_START, ROOT_COUNT * SLOT_BYTES);
    pmem.fence()
}

/// Zeroes the copy that an interrupted growing left at the end of a region that is longer than its pool. It is sound and newer
/// than the two that count: should the first one be damaged later, it would be taken for the pool.
///
/// # Durability
/// The other two are durable before. Costs one fence, where there is such a copy.
pub(super) fn erase_abandoned<P: Pmem>(pmem: &P, header: &Header) -> Result<(), FenceError> {
    let at = whole_bytes(pmem) - HEADER_BYTES;
    if at >= header.pool_bytes && has_magic(pmem, at) { erase_copy(pmem, at) } else { Ok(()) }
}

/// Erases every header that opening could find, so that formatting over an old pool cannot be interrupted into a mixture of the
/// two.
///
/// At the two ends all of each is zeroed, not the magic alone: the new header begins with the same magic, and a crash that keeps no
/// more of it would bring the old one back. Inside, all but the magic is: by the magic alone a copy inside is found, so it must be
/// there for as long as the rest may still be on the medium. A process that is killed meanwhile would else hide from the next one a
/// copy that a power failure brings back.
///
/// # Durability
/// One fence for each place. The copies inside go first, for with the ones at the ends half
/// erased they would be found, and an older pool than the one at the start would be there again. What is zero already is flushed
/// too: the process that zeroed it may have been killed before it flushed, and then the header is still on the medium.
pub(super) fn erase_all<P: Pmem>(pmem: &P) -> Result<(), FenceError> {
    let said = inner_end_said(pmem);
    let others = inner_ends_with_magic(pmem).into_iter().filter(|end| Some(*end) != said);
    for end in said.into_iter().chain(others) {
        zero(pmem, end - HEADER_BYTES + MAGIC.len() as u64, end)?;
    }
    let end = pmem.len_bytes();
    zero(pmem, end - HEADER_BYTES, end)?;
    zero(pmem, 0, HEADER_BYTES)
}

/// Zeroes what is not zero of a range inside one page, and flushes all of it.
fn zero<P: Pmem>(pmem: &P, start: u64, end: u64) -> Result<(), FenceError> {
    let (zeroes, mut found) = ([0; size_of::<Header>()], [0; size_of::<Header>()]);
    let len = usize::try_from(end - start).expect("at most a page");
    pmem.load(start, &mut found[..len]);
    if found != zeroes {
        store_words(pmem, start, &zeroes[..len]);
    }
    pmem.persist(start, end - start)
}
