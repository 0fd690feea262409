//! Flush and fence of the page domain: the set of flushed pages, and their write-back.

use super::mapping::Mapping;
use crate::FenceError;
use rustix::io::Errno;
use std::sync::{Mutex, PoisonError};

/// Above this number of ranges, the two nearest ones are joined: writing back more pages costs less than another msync(2).
const RANGES_MAX: usize = 32;

#[derive(Debug)]
struct Pending {
    /// Page-aligned, sorted, disjoint.
    ranges: Vec<(u64, u64)>,
    poisoned: bool,
}

/// The page size of the host, which is the unit of `msync`.
pub(super) fn host_page_bytes() -> usize {
    rustix::param::page_size()
}

/// The pages of a mapping that any thread has flushed and no thread has fenced yet.
///
/// The lock is held during the write-back. If one thread writes back pages that another thread has flushed, the other thread's fence waits
/// until they are durable, and does not write them back again.
#[derive(Debug)]
pub(super) struct PageSync {
    page_bytes: u64,
    pending: Mutex<Pending>,
}

impl PageSync {
    pub(super) fn new() -> Self {
        Self::with_page(host_page_bytes() as u64)
    }

    pub(super) fn with_page(page_bytes: u64) -> Self {
        Self { page_bytes, pending: Mutex::new(Pending { ranges: Vec::new(), poisoned: false }) }
    }

    /// Runs `sync`, which syncs the file, while no fence runs. The kernel reports a failed write-back once, so if `sync` fails, all later fences must
    /// fail.
    pub(super) fn sync_file(
        &self,
        sync: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<Result<(), Errno>, FenceError> {
        let mut pending = self.lock();
        if pending.poisoned {
            return Err(FenceError::Poisoned);
        }
        let synced = sync();
        pending.poisoned = synced.is_err();
        Ok(synced)
    }

    /// Makes every later fence fail: opening received the report of a failed write-back, so no fence will receive it.
    pub(super) fn poison(&self) {
        self.lock().poisoned = true;
    }

    /// Adds the pages of the range to those that the next fence writes back.
    pub(super) fn flush(&self, offset: u64, len_bytes: u64) {
        if len_bytes == 0 {
            return;
        }
        let start = offset & !(self.page_bytes - 1);
        let end = (offset + len_bytes).next_multiple_of(self.page_bytes);
        self.lock().insert(start, end);
    }

    /// Writes back the flushed pages, with `msync(MS_SYNC)`.
    ///
    /// A failure poisons permanently: since Linux 4.13 a write-back error is reported once, and the pages are marked clean, so a retry would
    /// succeed without a write.
    pub(super) fn fence(&self, mapping: &Mapping) -> Result<(), FenceError> {
        let mut pending = self.lock();
        if pending.poisoned {
            return Err(FenceError::Poisoned);
        }
        for (start, end) in std::mem::take(&mut pending.ranges) {
            let end = end.min(mapping.len() as u64);
            if let Err(errno) = mapping.sync(to_usize(start), to_usize(end)) {
                pending.poisoned = true;
                return Err(FenceError::WriteBack { offset: start, len_bytes: end - start, errno });
            }
        }
        Ok(())
    }

    /// The ranges that the next fence will write back.
    #[cfg(test)]
    pub(super) fn pending(&self) -> Vec<(u64, u64)> {
        self.lock().ranges.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Pending> {
        // No code that holds the lock can panic while `Pending` is inconsistent.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Offsets inside a mapping fit the address space.
fn to_usize(offset: u64) -> usize {
    usize::try_from(offset).expect("offsets inside a mapping fit the address space")
}

impl Pending {
    fn insert(&mut self, start: u64, end: u64) {
        // Joins the new range with those that it touches or overlaps.
        let first = self.ranges.partition_point(|&(_, e)| e < start);
        let last = self.ranges.partition_point(|&(s, _)| s <= end);
        let joined = self.ranges[first..last].iter().fold((start, end), |(s, e), r| (s.min(r.0), e.max(r.1)));
        self.ranges.splice(first..last, [joined]);
        if self.ranges.len() > RANGES_MAX {
            let nearest = (1..self.ranges.len())
                .min_by_key(|&i| self.ranges[i].0 - self.ranges[i - 1].1)
                .expect("there are at least two ranges");
            let (_, end) = self.ranges.remove(nearest);
            self.ranges[nearest - 1].1 = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn failed_sync_of_file_fails_later_fences() {
        let region = crate::Region::anonymous(4096).unwrap();
        let sync = PageSync::new();
        sync.flush(0, 8);
        assert_eq!(sync.sync_file(|| Ok(())), Ok(Ok(())));
        sync.fence(region.mapping()).unwrap();
        sync.flush(0, 8);
        assert_eq!(sync.sync_file(|| Err(Errno::IO)), Ok(Err(Errno::IO)));
        assert_eq!(sync.fence(region.mapping()), Err(FenceError::Poisoned));
        assert_eq!(sync.sync_file(|| Ok(())), Err(FenceError::Poisoned), "also after a failed sync");
    }

    proptest! {
        #[test]
        fn flushed_pages_are_pending_in_few_sorted_ranges(
            flushes in prop::collection::vec((0_u64..1 << 24, 1_u64..20_000), 1..200),
            page_bytes in prop::sample::select(&[4096_u64, 16_384, 65_536]),
        ) {
            let sync = PageSync::with_page(page_bytes);
            for &(offset, len) in &flushes {
                sync.flush(offset, len);
            }
            let ranges = sync.pending();
            prop_assert!(ranges.len() <= RANGES_MAX);
            prop_assert!(ranges.iter().all(|&(s, e)| s.is_multiple_of(page_bytes) && e.is_multiple_of(page_bytes)));
            prop_assert!(ranges.windows(2).all(|w| w[0].1 < w[1].0), "disjoint, sorted, not adjacent: {ranges:?}");
            for (offset, len) in flushes {
                prop_assert!(ranges.iter().any(|&(s, e)| s <= offset && offset + len <= e));
            }
        }
    }
}
