//! The pages behind the heap: which of them are free.

use crate::error::FsError;
use crate::format::PAGE_BYTES;
use core::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The pages, by their numbers: offsets divided by 4,096.
#[derive(Debug)]
pub(crate) struct Pages {
    range: Range<u64>,
    map: Mutex<Map>,
}

/// A bit for each page, set if it is in use.
#[derive(Debug)]
struct Map {
    words: Vec<u64>,
    free: u64,
    /// The word at which the next search begins.
    cursor: usize,
}

/// Pages that were taken and are not in a file yet. They are given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Taken<'p> {
    pages: &'p Pages,
    numbers: Vec<u64>,
}

impl Pages {
    /// The pages between these offsets, all free.
    pub(crate) fn new(space: &Range<u64>) -> Self {
        let range = space.start.div_ceil(PAGE_BYTES)..space.end / PAGE_BYTES;
        let count = range.end.saturating_sub(range.start);
        let mut words = vec![0; usize::try_from(count.div_ceil(64)).expect("a pool is in memory")];
        if let Some(last) = words.last_mut()
            && !count.is_multiple_of(64)
        {
            *last = u64::MAX << (count % 64);
        }
        Self {
            range: range.start..range.start + count,
            map: Mutex::new(Map { words, free: count, cursor: 0 }),
        }
    }

    pub(crate) const fn count(&self) -> u64 {
        self.range.end - self.range.start
    }

    pub(crate) fn free_count(&self) -> u64 {
        self.lock().free
    }

    pub(crate) fn contains(&self, page: u64) -> bool {
        self.range.contains(&page)
    }

    /// Marks a page as in use. Returns false if it is, or is not one of these pages.
    pub(crate) fn mark(&self, page: u64) -> bool {
        if !self.contains(page) {
            return false;
        }
        let (word, bit) = place(page - self.range.start);
        let mut map = self.lock();
        let is_free = map.words[word] & bit == 0;
        if is_free {
            map.words[word] |= bit;
            map.free -= 1;
        }
        is_free
    }

    /// Whether a page is in use.
    pub(crate) fn is_used(&self, page: u64) -> bool {
        let (word, bit) = place(page - self.range.start);
        self.lock().words[word] & bit != 0
    }

    /// Takes free pages, adjacent ones if possible.
    pub(crate) fn take(&self, count: usize) -> Result<Taken<'_>, FsError> {
        if count == 0 {
            return Ok(Taken { pages: self, numbers: Vec::new() });
        }
        let mut map = self.lock();
        if map.free < count as u64 {
            return Err(FsError::NoSpace);
        }
        let mut numbers = Vec::with_capacity(count);
        let word_count = map.words.len();
        for step in 0..word_count {
            let at = (map.cursor + step) % word_count;
            while numbers.len() < count && map.words[at] != u64::MAX {
                let bit = map.words[at].trailing_ones();
                map.words[at] |= 1 << bit;
                numbers.push(self.range.start + at as u64 * 64 + u64::from(bit));
            }
            if numbers.len() == count {
                map.cursor = at;
                break;
            }
        }
        map.free -= numbers.len() as u64;
        debug_assert_eq!(numbers.len(), count, "there were so many");
        drop(map);
        Ok(Taken { pages: self, numbers })
    }

    /// Frees pages that no durable slot refers to. In a corrupted file system they may be free.
    pub(crate) fn give_back(&self, numbers: &[u64]) {
        if numbers.is_empty() {
            return;
        }
        let mut map = self.lock();
        for page in numbers {
            let (word, bit) = place(page - self.range.start);
            map.free += u64::from(map.words[word] & bit != 0);
            map.words[word] &= !bit;
        }
    }

    /// A panic under the lock is a bug of this module.
    fn lock(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The word and the bit of a page.
fn place(index: u64) -> (usize, u64) {
    (usize::try_from(index / 64).expect("a pool is in memory"), 1 << (index % 64))
}

impl Taken<'_> {
    pub(crate) fn numbers(&self) -> &[u64] {
        &self.numbers
    }

    /// The pages are in a file, durably.
    pub(crate) fn keep(mut self) {
        self.numbers.clear();
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.pages.give_back(&self.numbers);
    }
}
