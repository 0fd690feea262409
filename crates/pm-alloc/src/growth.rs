//! Growth of a heap: by a call that has the heap alone, and by itself while threads use it.
//!
//! The order is the same: the file gets its length and its blocks, the pool its header, the new chunks their headers, and the number of chunks is stored
//! last. Each is durable before the next is stored. So a crash leaves a longer file, a longer pool in it, or chunks that the number does not count yet; the
//! next open adds what is there. Threads find a new chunk only after its number is durable.

use crate::format::{BLOCK_LINES_MAX, ChunkCount};
use crate::layout::Layout;
use crate::log::{CommitError, Log};
use crate::space::Space;
use core::sync::atomic::{AtomicU64, Ordering};
use pm_core::{GrowError, Pmem, Pool, PoolError};
use std::sync::{Mutex, PoisonError};

/// Why no heap of this layout can grow to `max_bytes`.
pub(crate) fn refusal(layout: &Layout, max_bytes: u64) -> Option<&'static str> {
    let chunks = Growth::new(max_bytes, 0).chunk_count_max(layout);
    (chunks >= 1 << 32).then_some("a pool of the greatest length has too many chunks")
}

/// A growth adds at most so much, so that it does not take long.
const STEP_BYTES_MAX: u64 = 256 << 20;

/// The lengths of pools are multiples of this, which is also the length of the backup of the header at a pool's end.
pub(crate) const POOL_UNIT_BYTES: u64 = 4096;

/// How far a heap has grown, and how far it may grow.
#[derive(Debug)]
pub(crate) struct Growth {
    /// The greatest length of the pool to which the heap grows by itself. 0 if it does not.
    max_bytes: u64,
    /// The end of the last chunk. (Not one of loom's atomics: each check of a link loads it.)
    chunks_end: AtomicU64,
    /// Held while the heap grows. Why it last could not.
    last_error: Mutex<Option<PoolError>>,
}

impl Growth {
    pub(crate) fn new(max_bytes: u64, chunks_end: u64) -> Self {
        Self { max_bytes, chunks_end: AtomicU64::new(chunks_end), last_error: Mutex::new(None) }
    }

    pub(crate) const fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// The number of chunks up to which the heap may grow by itself.
    pub(crate) const fn chunk_count_max(&self, layout: &Layout) -> u64 {
        layout.chunks_before(self.max_bytes.saturating_sub(POOL_UNIT_BYTES))
    }

    /// The end of the last chunk. A thread that has an offset in a new chunk has synchronized with the thread that has added it.
    #[inline]
    pub(crate) fn chunks_end(&self) -> u64 {
        self.chunks_end.load(Ordering::Relaxed)
    }

    pub(crate) fn take_error(&self) -> Option<PoolError> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Adds the chunks for which the pool has room. There is [room](Space::make_room) for them in `space`.
    ///
    /// # Errors
    /// When a fence fails or has failed.
    ///
    /// # Durability
    /// A crash leaves the old number of chunks or the new one. Costs two fences if chunks are added.
    pub(crate) fn extend<P: Pmem>(
        &self,
        pool: &Pool<P>,
        layout: &Layout,
        log: &Log,
        space: &Space,
    ) -> Result<(), CommitError> {
        let pmem = pool.pmem();
        let (old, new) = (space.chunk_count(), layout.chunks_before(pool.data().end));
        if new <= old {
            return Ok(());
        }
        log.check_not_poisoned()?;
        Space::format_chunks(pmem, layout, old..new);
        log.fence(pmem)?;
        store_chunk_count(pmem, layout, new);
        // DURABILITY POINT
        log.fence(pmem)?;
        self.chunks_end.store(layout.chunk_offset(new), Ordering::Release);
        space.extend(new);
        Ok(())
    }

    /// Grows the pool and the heap while threads use them, because there is no room for a block of `lines` lines in the first `chunk_count` chunks. Returns
    /// whether there are more chunks now: if another thread has added them meanwhile, nothing grows.
    ///
    /// # Errors
    /// When a fence fails or has failed. If there is no space for more, that is no error: the heap stays as it is.
    ///
    /// # Durability
    /// As for [`extend`](Self::extend) and [`Pool::grow_in_place`].
    pub(crate) fn grow<P: Pmem>(
        &self,
        pool: &Pool<P>,
        layout: &Layout,
        log: &Log,
        space: &Space,
        lines: u64,
        chunk_count: u64,
    ) -> Result<bool, CommitError> {
        let most = self.chunk_count_max(layout);
        if most <= chunk_count {
            return Ok(false);
        }
        let mut last_error = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
        if space.chunk_count() > chunk_count {
            return Ok(true);
        }
        // The two lines more are those of the first header and of the free block from which a block longer than a chunk is carved.
        let needed = lines.saturating_add(2).div_ceil(layout.chunk_lines());
        if lines >= u64::from(BLOCK_LINES_MAX) || needed > most {
            return Ok(false);
        }
        log.check_not_poisoned()?;
        let present = pool.pool_bytes();
        let end = |chunks: u64| layout.chunk_offset(chunks) + POOL_UNIT_BYTES;
        let mut least = end((chunk_count + needed).min(most)).clamp(present, self.max_bytes);
        let doubled = present.saturating_add(present.min(STEP_BYTES_MAX));
        let mut wanted = doubled.max(least).min(self.max_bytes);
        while let Err(error) = pool.grow_in_place(wanted) {
            match error {
                PoolError::Fence(error) | PoolError::Grow(GrowError::Fence(error)) => {
                    return Err(log.poison(error.into()));
                }
                // A growth that has failed has left the file longer: it gets no shorter, so at least that length is taken.
                PoolError::Grow(GrowError::Shrink { len_bytes, .. })
                    if (wanted + 1..=self.max_bytes).contains(&len_bytes) =>
                {
                    least = len_bytes.next_multiple_of(POOL_UNIT_BYTES).min(self.max_bytes);
                    wanted = least;
                }
                // With less there may be space.
                PoolError::Grow(GrowError::NoSpace { .. } | GrowError::Other(_)) if wanted > least => {
                    wanted = least + (wanted - least) / 4 / POOL_UNIT_BYTES * POOL_UNIT_BYTES;
                }
                error => {
                    *last_error = Some(error);
                    break;
                }
            }
        }
        self.extend(pool, layout, log, space)?;
        Ok(space.chunk_count() > chunk_count)
    }
}

/// Stores the number of chunks and its copy. After a crash before the caller's fence, each of them has the old number or the new one.
///
/// # Durability
/// Stores and flushes. The caller's next fence makes both durable.
pub(crate) fn store_chunk_count<P: Pmem>(pmem: &P, layout: &Layout, count: u64) {
    for offset in layout.chunk_count_offsets() {
        pmem.store_u128(offset, ChunkCount::new(count, layout.seed, offset).to_pair());
        pmem.flush(offset, size_of::<ChunkCount>() as u64);
    }
}
