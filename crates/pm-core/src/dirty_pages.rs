//! The pages that were stored to and not written back since.

use core::ops::Range;

#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(all(loom, test)))]
use std::sync::atomic::{AtomicU64, Ordering};

/// The unit of the record: a page of 4 KiB.
const PAGE_BYTES: u64 = 4096;

/// The number of pages, or of words, that a word records.
const BITS: u64 = u64::BITS as u64;

/// A set of pages of 4 KiB, for stores whose write-back is deferred: any number of threads add the pages that they stored to, while one takes them out
/// and flushes them. One bit for each page, and one for each word of these bits, so that taking reads 512 KiB for each TiB.
///
/// A page that was added before [`take`](Self::take) began is taken.
///
/// ```
/// use pm_core::{DirtyPages, Pmem, Region};
/// let (region, dirty) = (Region::anonymous(1 << 20)?, DirtyPages::new(1 << 20));
/// region.store(5000, b"deferred");
/// dirty.add(5000, 8);
/// dirty.take(|range| region.flush(range.start, range.end - range.start));
/// region.fence()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DirtyPages {
    pages: Box<[AtomicU64]>,
    words: Box<[AtomicU64]>,
}

impl DirtyPages {
    /// The length of a page in bytes.
    pub const PAGE_BYTES: u64 = PAGE_BYTES;

    /// An empty set for `len_bytes` bytes.
    #[must_use]
    pub fn new(len_bytes: u64) -> Self {
        let zeroed = |bits: u64| (0..bits.div_ceil(BITS)).map(|_| AtomicU64::new(0)).collect();
        let pages: Box<[AtomicU64]> = zeroed(len_bytes.div_ceil(PAGE_BYTES));
        let words = zeroed(pages.len() as u64);
        Self { pages, words }
    }

    /// Adds the pages of `len_bytes` bytes at `offset`. Call it after the stores.
    ///
    /// # Panics
    /// If the range is not inside the length of the set, rounded up to 256 KiB.
    pub fn add(&self, offset: u64, len_bytes: u64) {
        if len_bytes == 0 {
            return;
        }
        let (mut page, end) = (offset / PAGE_BYTES, (offset + len_bytes).div_ceil(PAGE_BYTES));
        while page < end {
            let word = page / BITS;
            let next = ((word + 1) * BITS).min(end);
            let bits = (u64::MAX >> (BITS - (next - page))) << (page % BITS);
            // Never a load first: without the locked instruction, the stores could still be in the store buffer when another thread flushes their lines.
            self.pages[index(word)].fetch_or(bits, Ordering::AcqRel);
            // If a taker took the page before this thread added it, the exchanges synchronise, and this thread finds the word's bit cleared.
            let (above, bit) = (&self.words[index(word / BITS)], 1 << (word % BITS));
            if above.load(Ordering::Relaxed) & bit == 0 {
                above.fetch_or(bit, Ordering::AcqRel);
            }
            page = next;
        }
    }

    /// Takes all pages out, as ranges of bytes in ascending order. The last range may end beyond the length of the set.
    pub fn take(&self, mut with: impl FnMut(Range<u64>)) {
        for (first, above) in (0..).step_by(64).zip(&self.words) {
            if above.load(Ordering::Acquire) == 0 {
                continue;
            }
            let words = above.swap(0, Ordering::AcqRel);
            for word in bits(words).map(|bit| first + bit) {
                let mut taken = self.pages[index(word)].swap(0, Ordering::AcqRel);
                while taken != 0 {
                    let start = taken.trailing_zeros();
                    let count = (taken >> start).trailing_ones();
                    taken &= !((u64::MAX >> (u64::BITS - count)) << start);
                    let start = (word * BITS + u64::from(start)) * PAGE_BYTES;
                    with(start..start + u64::from(count) * PAGE_BYTES);
                }
            }
        }
    }
}

/// The numbers of the bits that are set.
fn bits(mut word: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| u64::from(word.trailing_zeros()))?;
        word &= word - 1;
        Some(bit)
    })
}

fn index(word: u64) -> usize {
    usize::try_from(word).expect("a bitmap in memory has at most 2^64 bits")
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const CAPACITY_PAGES: u64 = 64 * 64 * 2 + 130;

    fn taken(dirty: &DirtyPages) -> BTreeSet<u64> {
        let mut pages = BTreeSet::new();
        dirty.take(|range| {
            assert!(range.start.is_multiple_of(PAGE_BYTES) && range.end.is_multiple_of(PAGE_BYTES));
            for page in range.start / PAGE_BYTES..range.end / PAGE_BYTES {
                assert!(pages.insert(page), "page {page} was taken twice");
            }
        });
        pages
    }

    proptest! {
        #[test]
        fn taken_pages_are_the_added_ones(
            ranges in prop::collection::vec((0..CAPACITY_PAGES * PAGE_BYTES, 0_u64..1 << 20), 0..20),
        ) {
            let dirty = DirtyPages::new(CAPACITY_PAGES * PAGE_BYTES);
            let mut added = BTreeSet::new();
            for (offset, len) in ranges {
                let len = len.min(CAPACITY_PAGES * PAGE_BYTES - offset);
                dirty.add(offset, len);
                added.extend((offset..offset + len).step_by(512).map(|at| at / PAGE_BYTES));
                added.extend((len != 0).then(|| (offset + len - 1) / PAGE_BYTES));
            }
            prop_assert_eq!(taken(&dirty), added);
            prop_assert!(taken(&dirty).is_empty());
        }
    }
}

/// Interleavings of threads that add a page with one that takes it. Run by `cargo xtask test loom`.
#[cfg(all(loom, test))]
mod interleaved {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// A taker that begins after an addition finds the page, even if another taker is between the two levels at that moment.
    #[test]
    fn loom_page_added_before_take_is_taken() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            // The dirty page, the data in it, and the data as written back.
            let shared = Arc::new((DirtyPages::new(PAGE_BYTES), AtomicU64::new(0), AtomicU64::new(0)));
            let other = Arc::clone(&shared);
            let taker = thread::spawn(move || {
                let (dirty, data, written_back) = &*other;
                dirty.take(|_| {
                    written_back.fetch_max(data.load(Ordering::Relaxed), Ordering::Relaxed);
                });
            });
            let (dirty, data, written_back) = &*shared;
            for value in [1, 2] {
                data.store(value, Ordering::Relaxed);
                dirty.add(0, 8);
            }
            // Takers are serialised by the caller.
            taker.join().unwrap();
            dirty.take(|_| {
                written_back.fetch_max(data.load(Ordering::Relaxed), Ordering::Relaxed);
            });
            assert_eq!(written_back.load(Ordering::Relaxed), 2);
        });
    }
}
