//! The pages behind the heap: which of them are free.

use crate::error::FsError;
use crate::format::{HUGE_PAGE_PAGES, PAGE_BYTES};
use core::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A frame of 2 MiB of the pool, or that part of the first and the last one that is for data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Frame {
    /// Its pages, of 4,096 bytes.
    pub pages: u64,
    /// Those that are in use.
    pub used: u64,
}

/// The pages of a frame: what one entry of a page directory of x86-64 maps.
const FRAME_PAGES: u64 = (2 << 20) / PAGE_BYTES;

/// The pages, by their numbers: offsets divided by 4,096.
#[derive(Debug)]
pub(crate) struct Pages {
    range: Range<u64>,
    map: Mutex<PageMap>,
}

/// A bit for each page, set if it is in use. Bits behind the last page are set.
#[derive(Clone, Debug)]
pub(crate) struct PageMap {
    range: Range<u64>,
    words: Vec<u64>,
    free: u64,
    /// The word at which the next search begins.
    cursor: usize,
    /// The place for a huge page at which the next search for one begins, counted from the end down.
    huge_cursor: u64,
}

/// Pages that were taken and are not in a file yet. They are given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Taken<'p> {
    pages: &'p Pages,
    numbers: Vec<u64>,
}

impl PageMap {
    /// A map in which all pages are free.
    fn new(range: Range<u64>) -> Self {
        let count = range.end - range.start;
        let mut words = vec![0; word(count.div_ceil(64))];
        if let Some(last) = words.last_mut() {
            *last = bits_behind(count);
        }
        Self { range, words, free: count, cursor: 0, huge_cursor: 0 }
    }

    /// Marks a page as in use. Returns false if it is, or is not one of these pages.
    pub(crate) fn mark(&mut self, page: u64) -> bool {
        if !self.range.contains(&page) {
            return false;
        }
        let Bit { word, mask } = Bit::of(page - self.range.start);
        let is_free = self.words[word] & mask == 0;
        self.words[word] |= mask;
        self.free -= u64::from(is_free);
        is_free
    }

    /// Whether one of these pages is in use.
    pub(crate) fn is_used(&self, page: u64) -> bool {
        let Bit { word, mask } = Bit::of(page - self.range.start);
        self.words[word] & mask != 0
    }

    /// Whether adjacent pages, a multiple of 64, are free.
    fn has_free(&self, from: u64, count: u64) -> bool {
        (from..from + count).step_by(64).all(|page| {
            let (at, shift) = (page - self.range.start, (page - self.range.start) % 64);
            let low = self.words[word(at / 64)] >> shift;
            // Behind the last word there are no pages of the range.
            low == 0 && (shift == 0 || self.words[word(at / 64) + 1] << (64 - shift) == 0)
        })
    }

    /// The bits, as they are saved.
    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    /// The map with these bits. `None` if they are not those of a map of as many pages.
    pub(crate) fn with_words(self, words: Vec<u64>) -> Option<Self> {
        let behind = bits_behind(self.range.end - self.range.start);
        let is_right =
            words.len() == self.words.len() && words.last().is_none_or(|last| last & behind == behind);
        let free = words.iter().map(|word| u64::from(word.count_zeros())).sum();
        is_right.then_some(Self { words, free, ..self })
    }
}

/// The bits of the last word of a map that are behind its last page.
const fn bits_behind(count: u64) -> u64 {
    if count.is_multiple_of(64) { 0 } else { u64::MAX << (count % 64) }
}

impl Pages {
    /// The pages between these offsets. None is free until [`set_map`](Self::set_map) says so.
    pub(crate) fn new(space: &Range<u64>) -> Self {
        let first = space.start.div_ceil(PAGE_BYTES);
        let range = first..(space.end / PAGE_BYTES).max(first);
        let mut map = PageMap::new(range.clone());
        map.words.fill(u64::MAX);
        map.free = 0;
        Self { range, map: Mutex::new(map) }
    }

    /// A map of these pages in which all are free.
    pub(crate) fn empty_map(&self) -> PageMap {
        PageMap::new(self.range.clone())
    }

    /// Sets which pages are in use.
    pub(crate) fn set_map(&self, map: PageMap) {
        *self.lock() = map;
    }

    /// Which pages are in use.
    pub(crate) fn map(&self) -> PageMap {
        self.lock().clone()
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

    /// Whether a page is in use.
    pub(crate) fn is_used(&self, page: u64) -> bool {
        self.lock().is_used(page)
    }

    /// The use of the pages in each frame, from the frame of the first page on.
    pub(crate) fn frames(&self) -> Vec<Frame> {
        let map = self.lock();
        let is_used = |page: &u64| map.is_used(*page);
        let mut frames = Vec::new();
        let mut from = self.range.start;
        while from < self.range.end {
            let end = ((from / FRAME_PAGES + 1) * FRAME_PAGES).min(self.range.end);
            frames.push(Frame { pages: end - from, used: (from..end).filter(is_used).count() as u64 });
            from = end;
        }
        frames
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

    /// Takes the pages of a huge page. `None` if there are none.
    pub(crate) fn take_huge(&self) -> Option<Taken<'_>> {
        let mut map = self.lock();
        let first = self.range.start.div_ceil(HUGE_PAGE_PAGES);
        let count = (self.range.end / HUGE_PAGE_PAGES).saturating_sub(first);
        // From the end down: single pages are taken from the start.
        let page_of = |step| (first + count - 1 - step % count) * HUGE_PAGE_PAGES;
        let step = (map.huge_cursor..map.huge_cursor + count)
            .find(|step| map.has_free(page_of(*step), HUGE_PAGE_PAGES))?;
        map.huge_cursor = (step + 1) % count;
        let numbers: Vec<u64> = (page_of(step)..page_of(step) + HUGE_PAGE_PAGES).collect();
        let marked = numbers.iter().filter(|page| map.mark(**page)).count();
        debug_assert_eq!(marked, numbers.len(), "they were free");
        drop(map);
        Some(Taken { pages: self, numbers })
    }

    /// Frees pages that no durable slot refers to. In a corrupted file system they may be free.
    pub(crate) fn give_back(&self, numbers: &[u64]) {
        if numbers.is_empty() {
            return;
        }
        let mut map = self.lock();
        for page in numbers {
            let Bit { word, mask } = Bit::of(page - self.range.start);
            map.free += u64::from(map.words[word] & mask != 0);
            map.words[word] &= !mask;
        }
    }

    /// A panic under the lock is a bug of this module.
    fn lock(&self) -> MutexGuard<'_, PageMap> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the bit of a page is.
struct Bit {
    /// The index of its word.
    word: usize,
    /// The bit in the word.
    mask: u64,
}

impl Bit {
    fn of(index: u64) -> Self {
        Self { word: word(index / 64), mask: 1 << (index % 64) }
    }
}

/// The index of a word.
fn word(index: u64) -> usize {
    usize::try_from(index).expect("a pool is in memory")
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
