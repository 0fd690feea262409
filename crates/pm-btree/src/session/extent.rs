//! A place for an extent, and the map of its units in DRAM.
//!
//! Places are never freed while the store is open, because threads look at them without a lock. An extent whose records are all released is closed and
//! returned to the heap, and later another one is opened at its place, perhaps of another class. The *generation* of the place changes with each of
//! these steps: it is odd while an extent is open. A thread that takes a unit knows the generation in which it has chosen the extent. It marks
//! the unit, and then checks the generation. Closing changes the generation, and then checks that no unit is marked. So either the thread finds
//! that the extent is closed, and undoes its mark, or the extent is found in use, and stays.

use super::classes::Class;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::OnceLock;

/// The words in the first segment of a [`Bitmap`], as a power of two. Each of the others has as many words as all before it.
const FIRST_SEGMENT_BITS: u32 = 4;
/// Segments for 65,536 units, the number of records of 16 bytes in an extent of 1 MiB.
const SEGMENTS: usize = 7;

/// A map of units, as long as the class of the extent that needed most.
#[derive(Debug, Default)]
struct Bitmap {
    segments: [OnceLock<Box<[AtomicU64]>>; SEGMENTS],
}

impl Bitmap {
    /// The segment of a word, the first word of the segment, and the number of its words.
    fn place(word: usize) -> (usize, usize, usize) {
        let segment = (usize::BITS - (word >> FIRST_SEGMENT_BITS).leading_zeros()) as usize;
        match segment {
            0 => (0, 0, 1 << FIRST_SEGMENT_BITS),
            _ => {
                let first = 1 << (FIRST_SEGMENT_BITS as usize + segment - 1);
                (segment, first, first)
            }
        }
    }

    #[inline]
    fn word(&self, word: usize) -> &AtomicU64 {
        let (segment, first, len) = Self::place(word);
        let words = self.segments[segment]
            .get_or_init(|| (0..len).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().into_boxed_slice());
        &words[word - first]
    }

    /// Whether no unit is marked.
    fn is_zero(&self) -> bool {
        let mut words = self.segments.iter().filter_map(OnceLock::get).flatten();
        words.all(|word| word.load(Ordering::SeqCst) == 0)
    }
}

/// An extent as a thread has chosen it: its place, and the generation of the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    pub(super) place: u32,
    pub(super) generation: u32,
}

/// What an extent is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    pub(super) start: u64,
    pub(super) class: Class,
    pub(super) unit_bytes: u64,
    pub(super) unit_count: u32,
    /// The number of its row in the table of extents.
    pub(super) row: u32,
    /// Whether the extent is new: all its units are free, and its nodes are zero.
    pub(super) is_fresh: bool,
}

/// A place for an extent.
#[derive(Debug)]
pub(super) struct Extent {
    /// Odd while an extent is open.
    generation: AtomicU32,
    /// [`VACANT`](Self::VACANT) while no extent is open.
    start: AtomicU64,
    class: AtomicU32,
    unit_bytes: AtomicU64,
    unit_count: AtomicU32,
    row: AtomicU32,
    /// A bit for each unit: 1 if it is in use.
    used: Bitmap,
    /// The number of free units. A released unit is counted before its bit is cleared.
    free: AtomicU32,
    /// A bit for each node: 1 if it may not be zero, because it was used. An extent of nodes is never closed.
    not_zero: OnceLock<Box<[AtomicU64]>>,
    /// Whether it may have units in use that are not marked: it existed at the open, and no sweep has ended since. Nothing is taken from it.
    is_sealed: AtomicBool,
    /// Whether it is among the extents that may be returned to the heap.
    is_queued: AtomicBool,
}

impl Extent {
    const VACANT: u64 = u64::MAX;

    pub(super) fn vacant() -> Self {
        Self {
            generation: AtomicU32::new(0),
            start: AtomicU64::new(Self::VACANT),
            class: AtomicU32::new(0),
            unit_bytes: AtomicU64::new(1),
            unit_count: AtomicU32::new(0),
            row: AtomicU32::new(0),
            used: Bitmap::default(),
            free: AtomicU32::new(0),
            not_zero: OnceLock::new(),
            is_sealed: AtomicBool::new(false),
            is_queued: AtomicBool::new(false),
        }
    }

    /// Opens an extent at a vacant place. The caller has the lock of growth.
    pub(super) fn open(&self, opened: &Opened) {
        #[expect(clippy::cast_possible_truncation, reason = "fewer than 100 classes")]
        self.class.store(opened.class.number() as u32, Ordering::Relaxed);
        self.unit_bytes.store(opened.unit_bytes, Ordering::Relaxed);
        self.unit_count.store(opened.unit_count, Ordering::Relaxed);
        self.row.store(opened.row, Ordering::Relaxed);
        self.free.store(opened.unit_count, Ordering::Relaxed);
        self.is_sealed.store(!opened.is_fresh, Ordering::Relaxed);
        if opened.class == Class::NODES {
            let bits = if opened.is_fresh { 0 } else { u64::MAX };
            let words = opened.unit_count.div_ceil(64);
            self.not_zero.get_or_init(|| (0..words).map(|_| AtomicU64::new(bits)).collect());
        }
        // A thread that sees the start sees the rest, too.
        self.start.store(opened.start, Ordering::Release);
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    /// Closes the extent if it is open and no unit is in use, unless it is sealed or has nodes. The caller has the lock of growth, and then either
    /// [vacates](Self::vacate) the place or [opens the extent again](Self::reopen).
    pub(super) fn close_if_empty(&self) -> bool {
        if !self.may_close() || self.free() != self.unit_count() {
            return false;
        }
        self.generation.fetch_add(1, Ordering::SeqCst);
        let is_empty = self.used.is_zero();
        if !is_empty {
            self.reopen();
        }
        is_empty
    }

    /// Opens the extent that was closed.
    pub(super) fn reopen(&self) {
        self.generation.fetch_sub(1, Ordering::SeqCst);
    }

    /// Makes the place of a closed extent that of no extent.
    pub(super) fn vacate(&self) {
        self.start.store(Self::VACANT, Ordering::Release);
    }

    pub(super) fn is_vacant(&self) -> bool {
        self.start() == Self::VACANT
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    pub(super) fn start(&self) -> u64 {
        self.start.load(Ordering::Acquire)
    }

    pub(super) fn class(&self) -> Class {
        Class::from_number(self.class.load(Ordering::Relaxed).into()).expect("the number of a class")
    }

    pub(super) fn unit_bytes(&self) -> u64 {
        self.unit_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn unit_count(&self) -> u32 {
        self.unit_count.load(Ordering::Relaxed)
    }

    pub(super) fn row(&self) -> u32 {
        self.row.load(Ordering::Relaxed)
    }

    pub(super) fn free(&self) -> u32 {
        self.free.load(Ordering::Relaxed)
    }

    /// Whether an eighth is free: of others, units are taken only if no extent can be added.
    pub(super) fn has_many_free(&self) -> bool {
        self.free() * 8 >= self.unit_count()
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.is_sealed.load(Ordering::Acquire)
    }

    /// Lets free units be taken: everything in use is marked.
    pub(super) fn unseal(&self) {
        self.is_sealed.store(false, Ordering::Release);
    }

    /// Whether the extent can be closed once it is empty. Nodes stay nodes: searches may look at a node that nothing refers to any more.
    pub(super) fn may_close(&self) -> bool {
        !self.is_vacant() && self.class() != Class::NODES && !self.is_sealed()
    }

    /// Whether all units of an extent that can be closed are free, and it was not queued since it left the queue. The caller queues it.
    pub(super) fn enters_queue(&self) -> bool {
        self.free() == self.unit_count() && self.may_close() && !self.is_queued.swap(true, Ordering::AcqRel)
    }

    /// Notes that the extent has left the queue. A unit that is released after this queues it again.
    pub(super) fn leave_queue(&self) {
        self.is_queued.swap(false, Ordering::AcqRel);
    }

    /// The unit that starts at `offset`.
    pub(super) fn unit_at(&self, offset: u64) -> Option<u32> {
        let distance = offset.checked_sub(self.start())?;
        let unit_bytes = self.unit_bytes();
        let unit = u32::try_from(distance / unit_bytes).ok()?;
        (distance.is_multiple_of(unit_bytes) && unit < self.unit_count()).then_some(unit)
    }

    pub(super) fn offset_of(&self, unit: u32) -> u64 {
        self.start() + u64::from(unit) * self.unit_bytes()
    }

    /// Marks a unit of an extent that is not closed as used. Returns false if it was.
    pub(super) fn mark(&self, unit: u32) -> bool {
        let bit = 1 << (unit % 64);
        let was_free = self.used.word(unit as usize / 64).fetch_or(bit, Ordering::Relaxed) & bit == 0;
        if was_free {
            self.free.fetch_sub(1, Ordering::Relaxed);
        }
        was_free
    }

    /// Notes that a node is used, and returns whether it may not be zero.
    pub(super) fn use_node(&self, unit: u32) -> bool {
        let words = self.not_zero.get().expect("an extent of nodes");
        let bit = 1 << (unit % 64);
        words[unit as usize / 64].fetch_or(bit, Ordering::Relaxed) & bit != 0
    }

    /// Releases a unit, if it is marked: one of a leaf that no sweep has visited is not.
    pub(super) fn release(&self, unit: u32) {
        let (word, bit) = (self.used.word(unit as usize / 64), 1 << (unit % 64));
        if word.load(Ordering::Relaxed) & bit != 0 {
            self.free.fetch_add(1, Ordering::Relaxed);
            // Another thread may take the unit at once, and store to it.
            word.fetch_and(!bit, Ordering::Release);
        }
    }

    /// Marks a unit as used, if it is free and the place has this generation.
    fn take(&self, unit: u32, generation: u32) -> bool {
        let (word, bit) = (self.used.word(unit as usize / 64), 1 << (unit % 64));
        if word.fetch_or(bit, Ordering::SeqCst) & bit != 0 {
            return false;
        }
        let is_open = self.generation.load(Ordering::SeqCst) == generation;
        if is_open {
            self.free.fetch_sub(1, Ordering::Relaxed);
        } else {
            word.fetch_and(!bit, Ordering::Release);
        }
        is_open
    }

    /// Takes a free unit, the first one at or after `from`, or else the first. `None` also if the place has another generation.
    pub(super) fn take_from(&self, generation: u32, from: u32) -> Option<u32> {
        let unit_count = self.unit_count();
        if self.generation() != generation || self.free() == 0 {
            return None;
        }
        let words = unit_count.div_ceil(64) as usize;
        let first = from as usize / 64;
        for step in 0..=words {
            let index = (first + step) % words;
            let mut seen = self.used.word(index).load(Ordering::Acquire);
            if step == 0 {
                seen |= (1 << (from % 64)) - 1;
            }
            while seen != u64::MAX {
                #[expect(clippy::cast_possible_truncation, reason = "a number of units fits in u32")]
                let unit = (index * 64) as u32 + seen.trailing_ones();
                if unit >= unit_count {
                    break;
                }
                if self.take(unit, generation) {
                    return Some(unit);
                }
                if self.generation() != generation {
                    return None;
                }
                seen |= 1 << (unit % 64);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(class: u64, unit_count: u32) -> Opened {
        let class = Class::from_number(class).unwrap();
        let unit_bytes = class.record_bytes().unwrap();
        Opened { start: 4096, class, unit_bytes, unit_count, row: 0, is_fresh: true }
    }

    #[test]
    fn words_of_bitmap_are_distinct() {
        let bitmap = Bitmap::default();
        for word in 0..1024 {
            assert_eq!(bitmap.word(word).swap(1, Ordering::Relaxed), 0, "{word}");
        }
        assert!(!bitmap.is_zero());
    }

    #[test]
    fn closed_extent_gives_no_unit_of_its_old_generation() {
        let extent = Extent::vacant();
        extent.open(&opened(1, 100));
        let generation = extent.generation();
        let unit = extent.take_from(generation, 70).unwrap();
        assert_eq!(unit, 70);
        assert!(!extent.close_if_empty(), "a unit is in use");
        assert_eq!(extent.generation(), generation);
        extent.release(unit);
        assert!(extent.enters_queue() && !extent.enters_queue());
        assert!(extent.close_if_empty());
        assert_eq!(extent.take_from(generation, 0), None);
        extent.vacate();
        extent.open(&opened(4, 50));
        assert_eq!(extent.take_from(generation, 0), None);
        assert!(extent.used.is_zero() && extent.free() == 50);
        assert_eq!(extent.take_from(generation + 2, 49), Some(49));
        assert_eq!(extent.take_from(generation + 2, 49), Some(0));
    }
}
