//! What earlier processes left in a region: made durable before anything relies on it, or erased.
//!
//! A process that is killed between a store and its flush leaves the store in the caches. The next process reads it, and cannot
//! tell it from what is durable; if it relied on it, a power failure could take the store back and keep what was built on it. So
//! all that opening or formatting relies on is flushed and fenced first, whether it needs it or not.

use super::format::{HEADER_BYTES, Header, ROOT_COUNT, ROOTS_START};
use super::header::{erase_copy, has_magic, inner_end_said, inner_ends_with_magic};
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
    if header.pool_bytes < pmem.len_bytes() {
        pmem.flush(pmem.len_bytes() - HEADER_BYTES, HEADER_BYTES);
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
    let at = pmem.len_bytes() - HEADER_BYTES;
    if at >= header.pool_bytes && has_magic(pmem, at) { erase_copy(pmem, at) } else { Ok(()) }
}

/// Zeroes every header that opening could find, so that formatting over an old pool cannot be interrupted into a mixture of the
/// two.
///
/// All of each, not the magic alone: the new header begins with the same magic, and a crash that keeps no more of it would
/// bring the old one back.
///
/// # Durability
/// One fence for each place, the two ends and what is inside. The copies inside go first, for with the ones at the ends half
/// erased they would be found, and an older pool than the one at the start would be there again. What is zero already is flushed
/// too: the process that zeroed it may have been killed before it flushed, and then the header is still on the medium.
pub(super) fn erase_all<P: Pmem>(pmem: &P) -> Result<(), FenceError> {
    let said = inner_end_said(pmem);
    let others = inner_ends_with_magic(pmem).filter(|end| Some(*end) != said);
    let inner = said.into_iter().chain(others).map(|end| end - HEADER_BYTES);
    for at in inner.chain([pmem.len_bytes() - HEADER_BYTES, 0]) {
        let mut page = [0; size_of::<Header>()];
        pmem.load(at, &mut page);
        if page != [0; size_of::<Header>()] {
            store_words(pmem, at, &[0; size_of::<Header>()]);
        }
        pmem.persist(at, HEADER_BYTES)?;
    }
    Ok(())
}
