//! How many chunks a heap has: a number, and its copy.

use crate::error::HeapError;
use crate::format::ChunkCount;
use crate::layout::Layout;
use pm_core::{FenceError, Pmem};

/// The number as it was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// How many chunks there are.
    pub(super) count: u64,
    /// How many of the two copies are corrupted.
    pub(super) corrupted: u32,
}

/// Reads the number. Of two copies that differ, as after a crash in the middle of growing, the higher one counts: chunks are made
/// durably before either copy is stored, and their number never falls. With the lower one, chunks in use could be made anew.
pub(super) fn read<P: Pmem>(pmem: &P, layout: &Layout) -> Result<Found, HeapError> {
    let offsets = layout.chunk_count_offsets();
    let copies = offsets.map(|offset| {
        let words = [pmem.load_u64(offset), pmem.load_u64(offset + 8)];
        ChunkCount::from_words(words, layout.seed, offset).map(|copy| copy.count)
    });
    let count = copies.into_iter().flatten().max();
    let corrupted = copies.iter().map(|copy| u32::from(copy.is_none())).sum();
    count.map(|count| Found { count, corrupted }).ok_or(HeapError::ChunkCountCorrupted { offset: offsets[0] })
}

/// Stores the number, and its copy. A crash before the caller's fence leaves each of them with the old number or the new one.
///
/// # Durability
/// Stores and flushes. Durable with the caller's next fence.
pub(super) fn write<P: Pmem>(pmem: &P, layout: &Layout, count: u64) {
    for offset in layout.chunk_count_offsets() {
        pmem.store_u128(offset, ChunkCount::new(count, layout.seed, offset).to_pair());
        pmem.flush(offset, size_of::<ChunkCount>() as u64);
    }
}

/// Makes the copies of the number equal, and durable: what is visible may not be, if the process that stored it was killed.
///
/// # Durability
/// One fence. A crash leaves each copy as it was or with the number that counts.
///
/// # Errors
/// When the fence fails.
pub(super) fn settle<P: Pmem>(pmem: &P, layout: &Layout, found: Found) -> Result<(), FenceError> {
    let is_right = |offset: u64| {
        let words = [pmem.load_u64(offset), pmem.load_u64(offset + 8)];
        ChunkCount::from_words(words, layout.seed, offset).is_some_and(|copy| copy.count == found.count)
    };
    if layout.chunk_count_offsets().into_iter().all(is_right) {
        for offset in layout.chunk_count_offsets() {
            pmem.flush(offset, size_of::<ChunkCount>() as u64);
        }
    } else {
        write(pmem, layout, found.count);
    }
    pmem.fence()
}
