//! Takes pages from files: at their end, and from a range of them.

use crate::error::FsError;
use crate::format::{HUGE_PAGE_PAGES, PAGE_BYTES};
use crate::node::contents::{ByteRange, PAGES_ADDED, SIZE_MAX, check_is_file, store_size, zero};
use crate::node::slot::PAGES_MAX;
use crate::node::tree;
use crate::node::walk::{self, Visited};
use crate::session::shared::Shared;
use crate::session::table::State;
use core::ops::Range;
use pm_core::Pmem;

/// Changes the length of a file. New bytes are zero.
///
/// # Durability
/// Durable when this returns, with the fence of `View::store_u64_pair` or the commit of a `Heap::transaction`; a crash before that leaves the old
/// length or the new one. One fence, two if bytes are zeroed, and one for each further 64 pages or node that are freed; a crash may leave pages
/// behind the end, which belong to the file. To free these, set the same length again.
pub(crate) fn truncate<P: Pmem>(shared: &Shared<P>, state: &State, new_size: u64) -> Result<(), FsError> {
    check_is_file(&state.inode)?;
    if new_size > SIZE_MAX {
        return Err(FsError::TooLong);
    }
    let (volume, inode) = (shared.prepared()?, &state.inode);
    let inner = state.write_existing()?;
    let size = inode.size(volume)?;
    let now = inode.wtime_for(volume, volume.now())?;
    if new_size > size {
        if zero(volume, inode, size..new_size)? {
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

/// Makes a range zero, and frees the pages that are wholly in it. The length stays.
///
/// # Durability
/// Durable when this returns, with the fence of `View::store_u64_pair`. A crash before that leaves each 8-byte word of the range old or zero. One
/// fence, and one for each 64 pages.
pub(crate) fn punch<P: Pmem>(shared: &Shared<P>, state: &State, range: ByteRange) -> Result<(), FsError> {
    check_is_file(&state.inode)?;
    let len_bytes = range.len_bytes.min(SIZE_MAX.saturating_sub(range.offset));
    let Range { start, end } = ByteRange { len_bytes, ..range }.checked()?;
    let (volume, inode) = (shared.prepared()?, &state.inode);
    let inner = state.write_existing()?;
    let whole = start.div_ceil(PAGE_BYTES)..end / PAGE_BYTES;
    // Pages of a mapped file stay.
    let whole = if inner.maps > 0 { 0..0 } else { whole };
    if whole.is_empty() {
        zero(volume, inode, start..end)?;
    } else {
        zero(volume, inode, start..whole.start * PAGE_BYTES)?;
        zero(volume, inode, whole.end * PAGE_BYTES..end)?;
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
