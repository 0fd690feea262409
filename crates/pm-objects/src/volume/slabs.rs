//! Slabs: blocks of the heap with slots of one length, and before them their owners and the words that say which slots are in use.

use super::volume::Volume;
use crate::format::{CLASS_BITS, Owner, PLACE_BYTES, SLOT_BYTES, WORD_SLOTS, owner, seal, short, unseal};
use core::mem::size_of;
use core::sync::atomic::{AtomicU64, Ordering};
use pm_core::Pmem;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Where the parts of a slab are, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) slot_bytes: u64,
    pub(crate) slots: u64,
    owners_at: u64,
    slots_at: u64,
}

/// The class of the slots for a chunk of this length, at most 4 KiB.
pub(crate) fn class_of(len_bytes: u64) -> usize {
    SLOT_BYTES.iter().position(|slot| len_bytes <= *slot).expect("a chunk has at most 4 KiB")
}

impl Shape {
    /// The parts of a slab of this length: as many slots as fit. The heap needs eight bytes of each block.
    pub(crate) fn of(class: usize, slab_bytes: u64) -> Self {
        let slot_bytes = SLOT_BYTES[class];
        let with = |slots: u64| {
            let owners_at = (8 * slots.div_ceil(WORD_SLOTS)).next_multiple_of(PLACE_BYTES);
            let slots_at = owners_at + (slots * size_of::<Owner>() as u64).next_multiple_of(PLACE_BYTES);
            Self { slot_bytes, slots, owners_at, slots_at }
        };
        let fits = |slots: &u64| with(*slots).len_bytes() + 8 <= slab_bytes;
        let most = slab_bytes / slot_bytes;
        with((0..=most).rev().find(fits).unwrap_or(0))
    }

    /// The length of the block.
    pub(crate) const fn len_bytes(&self) -> u64 {
        self.slots_at + self.slots * self.slot_bytes
    }

    /// The number of words.
    pub(crate) const fn words(&self) -> u64 {
        self.slots.div_ceil(WORD_SLOTS)
    }

    /// The bits of the slots that a word describes.
    fn bits(&self, word: u64) -> u64 {
        let slots = (self.slots - word * WORD_SLOTS).min(WORD_SLOTS);
        (1 << slots) - 1
    }
}

/// A word that is corrupted: none of its slots are used, and none are freed.
const UNREADABLE: u64 = u64::MAX;

/// A slab.
#[derive(Debug)]
pub(crate) struct Slab {
    pub(crate) offset: u64,
    pub(crate) class: usize,
    pub(crate) shape: Shape,
    /// The offset of its row in the list of slabs.
    pub(crate) row_at: u64,
    /// What its words say, from the first need on: a bit for each slot in use. Changed by the thread that has the words' lock.
    used: OnceLock<Box<[AtomicU64]>>,
    /// The slots that can be taken, from the first need on: those in use, taken or quarantined have no bit.
    free: Mutex<Option<Box<[u64]>>>,
}

impl Slab {
    pub(crate) fn new<P: Pmem>(volume: &Volume<P>, offset: u64, class: usize, row_at: u64) -> Self {
        let shape = Shape::of(class, volume.slab_bytes);
        Self { offset, class, shape, row_at, used: OnceLock::new(), free: Mutex::new(None) }
    }

    /// The contents of its row in the list of slabs.
    pub(crate) fn row(&self) -> u64 {
        (self.offset / PLACE_BYTES) << CLASS_BITS | self.class as u64
    }

    /// The offset of a word.
    pub(crate) const fn word_at(&self, word: u64) -> u64 {
        self.offset + 8 * word
    }

    /// The words of a new slab.
    pub(crate) fn new_words(&self, seed: u64) -> Vec<u8> {
        let word = |word| seal(seed, owner::SLAB, self.word_at(word), 0).to_le_bytes();
        (0..self.shape.words()).flat_map(word).collect()
    }

    /// What the words say.
    fn used<P: Pmem>(&self, volume: &Volume<P>) -> &[AtomicU64] {
        self.used.get_or_init(|| {
            let load = |word| {
                let at = self.word_at(word);
                let contents = unseal(volume.seed, owner::SLAB, at, volume.pmem().load_u64(at));
                AtomicU64::new(
                    contents.filter(|bits| bits & !self.shape.bits(word) == 0).unwrap_or(UNREADABLE),
                )
            };
            (0..self.shape.words()).map(load).collect()
        })
    }

    /// What a word says. `None` if it is corrupted. The caller has its lock, or nothing changes meanwhile.
    pub(crate) fn used_in<P: Pmem>(&self, volume: &Volume<P>, word: u64) -> Option<u64> {
        let bits = self.used(volume)[index(word)].load(Ordering::Relaxed);
        (bits != UNREADABLE).then_some(bits)
    }

    /// Notes what a word says now.
    pub(crate) fn set_used<P: Pmem>(&self, volume: &Volume<P>, word: u64, bits: u64) {
        self.used(volume)[index(word)].store(bits, Ordering::Relaxed);
    }

    fn free<P: Pmem>(&self, volume: &Volume<P>) -> MutexGuard<'_, Option<Box<[u64]>>> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.is_none() {
            let used = self.used(volume);
            let bits =
                (0..).zip(used).map(|(word, used)| self.shape.bits(word) & !used.load(Ordering::Relaxed));
            *free = Some(bits.collect());
        }
        free
    }

    /// Finds out which slots are free, unless that is known.
    pub(crate) fn find_free<P: Pmem>(&self, volume: &Volume<P>) {
        drop(self.free(volume));
    }

    /// Takes a free slot.
    pub(crate) fn take<P: Pmem>(&self, volume: &Volume<P>) -> Option<u64> {
        let mut free = self.free(volume);
        let words = free.as_mut().expect("it was read");
        let (word, bits) = (0_u64..).zip(words.iter_mut()).find(|(_, bits)| **bits != 0)?;
        let bit = u64::from(bits.trailing_zeros());
        *bits &= *bits - 1;
        Some(word * WORD_SLOTS + bit)
    }

    /// Makes a slot free, which is in use no more.
    pub(crate) fn give_back<P: Pmem>(&self, volume: &Volume<P>, slot: u64) {
        let mut free = self.free(volume);
        let words = free.as_mut().expect("it was read");
        words[index(slot / WORD_SLOTS)] |= 1 << (slot % WORD_SLOTS);
    }

    /// Takes all slots, if all are free.
    pub(crate) fn take_all<P: Pmem>(&self, volume: &Volume<P>) -> bool {
        let mut free = self.free(volume);
        let words = free.as_mut().expect("it was read");
        let is_empty = (0..).zip(words.iter()).all(|(word, bits)| *bits == self.shape.bits(word));
        if is_empty {
            words.fill(0);
        }
        is_empty
    }

    /// Reverts [`take_all`](Self::take_all).
    pub(crate) fn give_all_back<P: Pmem>(&self, volume: &Volume<P>) {
        let mut free = self.free(volume);
        let words = free.as_mut().expect("it was read");
        (0..).zip(words.iter_mut()).for_each(|(word, bits)| *bits = self.shape.bits(word));
    }
}

/// A slot of a slab.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) slab: Arc<Slab>,
    pub(crate) index: u64,
}

impl Slot {
    /// The slot at this offset, if one with so many bytes begins there.
    pub(crate) fn at(slab: &Arc<Slab>, offset: u64, len_bytes: u64) -> Option<Self> {
        let Shape { slot_bytes, slots, slots_at, .. } = slab.shape;
        let within = offset.checked_sub(slab.offset + slots_at)?;
        let index = within / slot_bytes;
        let fits = within.is_multiple_of(slot_bytes) && index < slots && len_bytes <= slot_bytes;
        fits.then(|| Self { slab: Arc::clone(slab), index })
    }

    /// The offset of its contents.
    pub(crate) fn offset(&self) -> u64 {
        let shape = &self.slab.shape;
        self.slab.offset + shape.slots_at + self.index * shape.slot_bytes
    }

    /// The offset of its owner.
    pub(crate) fn owner_at(&self) -> u64 {
        self.slab.offset + self.slab.shape.owners_at + self.index * size_of::<Owner>() as u64
    }

    /// The word that describes it.
    pub(crate) const fn word(&self) -> u64 {
        self.index / WORD_SLOTS
    }

    /// Its bit in that word.
    pub(crate) const fn bit(&self) -> u64 {
        1 << (self.index % WORD_SLOTS)
    }
}

/// The index of a word: a slab has few.
fn index(word: u64) -> usize {
    short(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_are_filled_with_slots() {
        for (class, slot_bytes) in SLOT_BYTES.into_iter().enumerate() {
            for slab_bytes in [2 * 4096 + 200, 16 << 10, 194 << 10] {
                let shape = Shape::of(class, slab_bytes);
                assert!(shape.len_bytes() + 8 <= slab_bytes, "{shape:?}");
                assert!(shape.slots > 0 && shape.slots_at.is_multiple_of(PLACE_BYTES));
                assert!(8 * shape.words() <= shape.owners_at);
                // One more would not fit.
                assert!(shape.len_bytes() + slot_bytes + 24 + 8 + 64 + 64 > slab_bytes, "{shape:?}");
            }
        }
        assert_eq!(Shape::of(15, 194 << 10).slots, 48);
    }

    #[test]
    fn chunks_get_the_shortest_slots() {
        assert_eq!(
            [1, 64, 65, 1024, 1025, 4096].map(|len| SLOT_BYTES[class_of(len)]),
            [64, 64, 128, 1024, 1280, 4096]
        );
    }
}
