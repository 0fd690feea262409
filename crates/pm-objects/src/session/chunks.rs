//! What is known of each chunk of an object that has handles: where it is, and how often it is used.

use crate::format::short;
use crate::volume::table::Home;
#[cfg(not(all(loom, test)))]
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::OnceLock;

/// The number of chunks of a segment, but of the first ones, which are shorter.
const SEGMENT: u64 = 256;

/// The number of levels. The longest object has 2^28 chunks of the shortest length.
const LEVELS: usize = 29;

/// Where a chunk is: not known yet.
const UNKNOWN: u64 = 0;

/// It is zeroes. Offsets are multiples of 64.
const HOLE: u64 = 1;

/// The lowest bit of a slot of the file, of which the number is above it.
const IN_FILE: u64 = 2;

/// The lowest bit of the offset of a frame.
const IN_DRAM: u64 = 4;

/// Where a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It is zeroes.
    Hole,
    /// At this offset.
    At(u64),
    /// In this slot of the file.
    InFile(u64),
    /// Copied to the frame at this offset, which knows its home.
    InDram(u64),
}

impl Place {
    const fn encode(self) -> u64 {
        match self {
            Self::Hole => HOLE,
            Self::At(offset) => offset,
            Self::InFile(slot) => slot << 2 | IN_FILE,
            Self::InDram(frame) => frame | IN_DRAM,
        }
    }

    #[inline]
    const fn decode(word: u64) -> Option<Self> {
        match word {
            UNKNOWN => None,
            HOLE => Some(Self::Hole),
            word if word & IN_FILE != 0 => Some(Self::InFile(word >> 2)),
            word if word & IN_DRAM != 0 => Some(Self::InDram(word & !IN_DRAM)),
            offset => Some(Self::At(offset)),
        }
    }
}

impl From<&Home> for Place {
    fn from(home: &Home) -> Self {
        match home {
            Home::Hole => Self::Hole,
            Home::Slot(slot) => Self::At(slot.offset()),
            Home::File { slot, .. } => Self::InFile(*slot),
        }
    }
}

/// A chunk.
#[derive(Debug)]
pub(crate) struct Chunk {
    place: AtomicU64,
    /// A [heat](super::placement::Heat).
    pub(crate) heat: AtomicU32,
}

impl Chunk {
    fn new() -> Self {
        Self { place: AtomicU64::new(UNKNOWN), heat: AtomicU32::new(0) }
    }

    /// Where it is, if that is known.
    #[inline]
    pub(crate) fn place(&self) -> Option<Place> {
        Place::decode(self.place.load(Ordering::Acquire))
    }

    /// Notes where it is now. The caller has the object's lock.
    pub(super) fn set_place(&self, place: Place) {
        self.place.store(place.encode(), Ordering::Release);
    }

    /// Forgets where it is. The caller has the object's lock.
    pub(super) fn forget_place(&self) {
        self.place.store(UNKNOWN, Ordering::Release);
    }
}

type Segment = Box<[Chunk]>;
type Level = OnceLock<Box<[OnceLock<Segment>]>>;

/// The chunks of an object, by their indices. They are added when they are first asked for, and never move. The level `n` has those from 2^n on.
#[derive(Debug)]
pub(crate) struct Chunks {
    first: Chunk,
    others: OnceLock<Box<[Level; LEVELS]>>,
}

impl Chunks {
    pub(super) fn new() -> Self {
        Self { first: Chunk::new(), others: OnceLock::new() }
    }

    #[inline]
    pub(super) fn get(&self, index: u64) -> &Chunk {
        if index == 0 { &self.first } else { self.other(index) }
    }

    fn other(&self, index: u64) -> &Chunk {
        let level = index.ilog2();
        let (count, within) = (1 << level, index - (1 << level));
        let segment = SEGMENT.min(count);
        let levels = self.others.get_or_init(|| Box::new(core::array::from_fn(|_| Level::new())));
        let segments =
            levels[level as usize].get_or_init(|| (0..count / segment).map(|_| OnceLock::new()).collect());
        let chunks =
            segments[short(within / segment)].get_or_init(|| (0..segment).map(|_| Chunk::new()).collect());
        &chunks[short(within % segment)]
    }

    /// Those that were asked for, and their neighbors, with their indices.
    pub(super) fn known(&self) -> impl Iterator<Item = (u64, &Chunk)> {
        let levels = self.others.get().into_iter().flat_map(|levels| (0_u32..).zip(levels.iter()));
        let segments = levels.flat_map(|(level, segments)| {
            let segments = segments.get().into_iter().flatten();
            (0_u64..).zip(segments).map(move |(at, segment)| ((1 << level) + at * SEGMENT, segment))
        });
        let others = segments
            .flat_map(|(start, segment)| (start..).zip(segment.get().into_iter().flat_map(|s| s.iter())));
        core::iter::once((0, &self.first)).chain(others)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_that_were_noted() {
        let chunks = Chunks::new();
        let places = [Place::Hole, Place::At(64), Place::InFile(0), Place::InFile(3), Place::InDram(0)];
        for (index, place) in [0, 1, 255, 256, 1 << 28].into_iter().zip(places) {
            assert_eq!(chunks.get(index).place(), None);
            chunks.get(index).set_place(Place::At(128));
            chunks.get(index).set_place(place);
            assert_eq!(chunks.get(index).place(), Some(place));
        }
        let known = chunks.known().filter_map(|(index, chunk)| Some((index, chunk.place()?)));
        let noted = [0, 1, 255, 256, 1 << 28].into_iter().zip(places);
        assert!(known.eq(noted));
    }
}
