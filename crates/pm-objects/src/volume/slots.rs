//! All slots: which are free, and the transactions that take and free them.

use super::object::ObjectRef;
use super::root::Roots;
use super::slabs::{Shape, Slab, Slot, class_of};
use super::volume::{Change, Volume};
use crate::error::{ObjectError, Structure};
use crate::format::{
    CLASS_BITS, DIRECTORY_ROWS, DIRECTORY_TAG, Directory, Owner, PLACE_BYTES, SLOT_BYTES, WORD_SLOTS, owner,
    seal, short, unseal,
};
use core::mem::{offset_of, size_of};
use pm_core::{Pmem, bytes_of};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// The number of locks for words of slabs.
const STRIPES: usize = 64;

/// The number of slots for which a checkpoint of the heap is made, if a slab has so many.
const QUARANTINE_SLOTS: u64 = 32;

/// The slots of all slabs.
#[derive(Debug)]
pub(crate) struct Slots {
    /// By their offsets.
    slabs: RwLock<BTreeMap<u64, Arc<Slab>>>,
    classes: [Mutex<Class>; SLOT_BYTES.len()],
    /// Each word of a slab has one of these locks. Transactions of the heap are not isolated, so a thread that changes words has their locks until
    /// its transaction has returned.
    stripes: [Mutex<()>; STRIPES],
    directory: Mutex<Tail>,
    /// Of the thread that has slots or slabs in its hands, which are not free yet, and no longer in use.
    releasing: Mutex<()>,
}

/// The slots of one length.
#[derive(Debug, Default)]
struct Class {
    /// Slabs that may have free slots.
    with_room: Vec<Arc<Slab>>,
    /// Slots that were freed since the last checkpoint of the heap. A live log entry may store to them.
    quarantine: Vec<Slot>,
}

/// The list of slabs.
#[derive(Debug, Default)]
struct Tail {
    /// The offset of the last block, if there is one.
    last: Option<u64>,
    /// The offsets of rows that list no slab.
    free_rows: Vec<u64>,
    /// Where the list cannot be followed.
    broken_at: Option<u64>,
    /// The offsets of all blocks.
    blocks: Vec<u64>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Slots {
    /// Reads the list of slabs. What their slots hold is read when it is needed.
    pub(crate) fn open<P: Pmem>(volume: &Volume<P>, roots: &Roots) -> Result<Self, ObjectError> {
        let mut tail = Tail::default();
        let mut slabs = BTreeMap::new();
        let mut place = roots.slabs(volume)?;
        let blocks_max = volume.pmem().len_bytes() / size_of::<Directory>() as u64;
        while place != 0 {
            let offset = volume.offset_of(place, size_of::<Directory>() as u64);
            let offset = offset.filter(|offset| volume.pmem().load_u64(*offset) == DIRECTORY_TAG);
            let Some(offset) = offset.filter(|_| (tail.blocks.len() as u64) < blocks_max) else {
                tail.broken_at = Some(tail.last.unwrap_or(roots.offsets()[0]));
                break;
            };
            tail.blocks.push(offset);
            tail.last = Some(offset);
            for row in 0..DIRECTORY_ROWS as u64 {
                let row_at = offset + offset_of!(Directory, slabs) as u64 + 8 * row;
                let word = volume.pmem().load_u64(row_at);
                match unseal(volume.seed, owner::DIRECTORY, row_at, word) {
                    Some(0) => tail.free_rows.push(row_at),
                    Some(contents) => {
                        let class = (contents & ((1 << CLASS_BITS) - 1)) as usize;
                        let fits = |class: &usize| *class < SLOT_BYTES.len();
                        let shape = Some(class).filter(fits).map(|class| Shape::of(class, volume.slab_bytes));
                        let len_bytes = shape.map_or(u64::MAX, |shape| shape.len_bytes());
                        if let Some(offset) = volume.offset_of(contents >> CLASS_BITS, len_bytes) {
                            slabs.insert(offset, Arc::new(Slab::new(volume, offset, class, row_at)));
                        }
                    }
                    None => {}
                }
            }
            let next_at = offset + offset_of!(Directory, next) as u64;
            match unseal(volume.seed, owner::DIRECTORY, next_at, volume.pmem().load_u64(next_at)) {
                Some(next) => place = next,
                None => {
                    tail.broken_at = Some(next_at);
                    break;
                }
            }
        }
        // The rows of the first block are used first.
        tail.free_rows.reverse();
        let mut classes: [Class; SLOT_BYTES.len()] = core::array::from_fn(|_| Class::default());
        for slab in slabs.values() {
            classes[slab.class].with_room.push(Arc::clone(slab));
        }
        Ok(Self {
            slabs: RwLock::new(slabs),
            classes: classes.map(Mutex::new),
            stripes: core::array::from_fn(|_| Mutex::new(())),
            directory: Mutex::new(tail),
            releasing: Mutex::new(()),
        })
    }

    /// The slot at an offset, if there is one with so many bytes.
    pub(crate) fn find(&self, offset: u64, len_bytes: u64) -> Option<Slot> {
        let slabs = self.slabs.read().unwrap_or_else(PoisonError::into_inner);
        let (_, slab) = slabs.range(..=offset).next_back()?;
        Slot::at(slab, offset, len_bytes)
    }

    /// A slot, perhaps a free one, of the slab at this random number.
    pub(crate) fn at_random(&self, random: u64) -> Option<Slot> {
        let slabs = self.slabs.read().unwrap_or_else(PoisonError::into_inner);
        let (first, last) = (slabs.first_key_value()?.0, slabs.last_key_value()?.0);
        let (_, slab) = slabs.range(first + random % (last - first + 1)..).next()?;
        Some(Slot { slab: Arc::clone(slab), index: (random >> 20) % slab.shape.slots })
    }

    /// All slabs.
    pub(crate) fn slabs(&self) -> Vec<Arc<Slab>> {
        self.slabs.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// The length of all slots that are in use, and of all slabs.
    pub(crate) fn usage<P: Pmem>(&self, volume: &Volume<P>) -> (u64, u64) {
        self.slabs().iter().fold((0, 0), |(in_use, of_slabs), slab| {
            let bits = |word| slab.used_in(volume, word).map_or(0, |bits| u64::from(bits.count_ones()));
            let slots: u64 = (0..slab.shape.words()).map(bits).sum();
            (in_use + slots * slab.shape.slot_bytes, of_slabs + slab.shape.len_bytes())
        })
    }

    /// The offsets of the blocks of the list of slabs, and where it is broken.
    pub(crate) fn directory(&self) -> (Vec<u64>, Option<u64>) {
        let tail = lock(&self.directory);
        (tail.blocks.clone(), tail.broken_at)
    }

    /// Begins a change of slots.
    pub(crate) const fn change<'s, P: Pmem>(
        &'s self,
        volume: &'s Volume<P>,
        roots: &'s Roots,
    ) -> SlotChange<'s, P> {
        SlotChange {
            slots: self,
            volume,
            roots,
            taken: Vec::new(),
            freed: Vec::new(),
            taken_in_file: Vec::new(),
            freed_in_file: Vec::new(),
            locks: Vec::new(),
            words: Vec::new(),
        }
    }

    /// Takes a slot of a class, out of a new slab if need be. A checkpoint is worth its fences for some slots only, so that few of them wait for a new slab.
    fn take<P: Pmem>(&self, volume: &Volume<P>, roots: &Roots, class: usize) -> Result<Slot, ObjectError> {
        let enough = (Shape::of(class, volume.slab_bytes).slots / 2).clamp(1, QUARANTINE_SLOTS) as usize;
        if let Some(slot) = self.take_known(volume, class) {
            return Ok(slot);
        }
        if lock(&self.classes[class]).quarantine.len() < enough
            && let Some(slot) = self.take_new(volume, roots, class)?
        {
            return Ok(slot);
        }
        // Waits for a thread that has slots or slabs in its hands, to make them free.
        let _releasing = lock(&self.releasing);
        if let Some(slot) = self.take_known(volume, class) {
            return Ok(slot);
        }
        self.end_quarantine(volume, class)?;
        match self.take_known(volume, class) {
            Some(slot) => Ok(slot),
            None => self.take_new(volume, roots, class)?.ok_or(ObjectError::Full),
        }
    }

    /// Takes a slot out of a new slab, if there is room for one.
    fn take_new<P: Pmem>(
        &self,
        volume: &Volume<P>,
        roots: &Roots,
        class: usize,
    ) -> Result<Option<Slot>, ObjectError> {
        loop {
            match self.add_slab(volume, roots, class) {
                Err(ObjectError::Full) => return Ok(None),
                added => added?,
            }
            // Other threads may have taken all of its slots.
            if let Some(slot) = self.take_known(volume, class) {
                return Ok(Some(slot));
            }
        }
    }

    fn take_known<P: Pmem>(&self, volume: &Volume<P>, class: usize) -> Option<Slot> {
        let mut class = lock(&self.classes[class]);
        while let Some(slab) = class.with_room.last() {
            if let Some(index) = slab.take(volume) {
                return Some(Slot { slab: Arc::clone(slab), index });
            }
            class.with_room.pop();
        }
        None
    }

    /// Makes the slots of a class free that have waited for a checkpoint. The caller has the lock of releasing.
    fn end_quarantine<P: Pmem>(&self, volume: &Volume<P>, class: usize) -> Result<(), ObjectError> {
        let waiting = core::mem::take(&mut lock(&self.classes[class]).quarantine);
        if !waiting.is_empty() {
            volume.heap().checkpoint()?;
            self.give_back(volume, class, &waiting);
        }
        Ok(())
    }

    /// Makes slots of a class free at once.
    fn give_back<P: Pmem>(&self, volume: &Volume<P>, class: usize, slots: &[Slot]) {
        let mut class = lock(&self.classes[class]);
        for slot in slots {
            slot.slab.give_back(volume, slot.index);
            if !class.with_room.iter().rev().any(|slab| Arc::ptr_eq(slab, &slot.slab)) {
                class.with_room.push(Arc::clone(&slot.slab));
            }
        }
    }

    /// Adds a slab, by one transaction.
    ///
    /// # Durability
    /// A crash leaves the slab in the list, or its block free. Two fences.
    fn add_slab<P: Pmem>(&self, volume: &Volume<P>, roots: &Roots, class: usize) -> Result<(), ObjectError> {
        let mut tail = lock(&self.directory);
        if let Some(offset) = tail.broken_at {
            return Err(ObjectError::corrupted(offset, Structure::Directory));
        }
        let shape = Shape::of(class, volume.slab_bytes);
        let added = volume.transaction(|change| {
            let (row_at, block) = match tail.free_rows.last() {
                Some(row_at) => (*row_at, None),
                None => {
                    let block = change.alloc(size_of::<Directory>() as u64)?;
                    (block + offset_of!(Directory, slabs) as u64, Some(block))
                }
            };
            let offset = change.alloc(shape.len_bytes())?;
            let slab = Slab::new(volume, offset, class, row_at);
            change.fill(offset, &slab.new_words(volume.seed));
            match block {
                None => change.set_sealed(owner::DIRECTORY, row_at, slab.row())?,
                Some(block) => {
                    let sealed = |at, contents| seal(volume.seed, owner::DIRECTORY, at, contents);
                    let next_at = |block| block + offset_of!(Directory, next) as u64;
                    let row =
                        |row: usize| sealed(row_at + 8 * row as u64, if row == 0 { slab.row() } else { 0 });
                    let (tag, next) = (DIRECTORY_TAG, sealed(next_at(block), 0));
                    change.fill(block, bytes_of(&Directory { tag, next, slabs: core::array::from_fn(row) }));
                    let place = block / PLACE_BYTES;
                    match tail.last {
                        Some(last) => change.set_sealed(owner::DIRECTORY, next_at(last), place)?,
                        None => roots.set_slabs(change, place)?,
                    }
                }
            }
            Ok((slab, block))
        });
        let (slab, block) = added?;
        match block {
            None => drop(tail.free_rows.pop()),
            Some(block) => {
                tail.last = Some(block);
                tail.blocks.push(block);
                tail.free_rows.extend((1..DIRECTORY_ROWS as u64).rev().map(|row| slab.row_at + 8 * row));
            }
        }
        let slab = Arc::new(slab);
        self.slabs.write().unwrap_or_else(PoisonError::into_inner).insert(slab.offset, Arc::clone(&slab));
        lock(&self.classes[class]).with_room.push(slab);
        Ok(())
    }

    /// Returns slabs without contents to the heap, so that it has room for other blocks. Returns whether there were any.
    ///
    /// # Durability
    /// Each is in the list, or its block is free. One fence each.
    pub(crate) fn reclaim<P: Pmem>(&self, volume: &Volume<P>) -> Result<bool, ObjectError> {
        let _releasing = lock(&self.releasing);
        for class in 0..self.classes.len() {
            self.end_quarantine(volume, class)?;
        }
        let mut has_freed = false;
        for slab in self.slabs() {
            if !slab.take_all(volume) {
                continue;
            }
            // No thread uses its words any more: none of its slots are in use, taken or quarantined.
            let mut tail = lock(&self.directory);
            let freed = volume.transaction(|change| {
                change.set_sealed(owner::DIRECTORY, slab.row_at, 0)?;
                change.free(slab.offset)
            });
            if let Err(error) = freed {
                slab.give_all_back(volume);
                return Err(error);
            }
            tail.free_rows.push(slab.row_at);
            self.slabs.write().unwrap_or_else(PoisonError::into_inner).remove(&slab.offset);
            lock(&self.classes[slab.class]).with_room.retain(|other| !Arc::ptr_eq(other, &slab));
            has_freed = true;
        }
        Ok(has_freed)
    }
}

/// Slots that a transaction takes and frees. If it is dropped before the transaction has [returned](Self::complete), the taken ones are free again.
pub(crate) struct SlotChange<'s, P: Pmem> {
    slots: &'s Slots,
    volume: &'s Volume<P>,
    roots: &'s Roots,
    taken: Vec<Slot>,
    freed: Vec<Slot>,
    taken_in_file: Vec<u64>,
    freed_in_file: Vec<u64>,
    locks: Vec<MutexGuard<'s, ()>>,
    /// What the words will say.
    words: Vec<(Word, u64)>,
}

/// A word that says which slots are in use.
#[derive(Clone, Debug)]
enum Word {
    OfSlab(Arc<Slab>, u64),
    OfFile(u64),
}

impl Word {
    fn of(slot: &Slot) -> Self {
        Self::OfSlab(Arc::clone(&slot.slab), slot.word())
    }

    const fn of_file(slot: u64) -> Self {
        Self::OfFile(slot / WORD_SLOTS)
    }

    /// Its offset.
    fn at<P: Pmem>(&self, volume: &Volume<P>) -> u64 {
        match self {
            Self::OfSlab(slab, word) => slab.word_at(*word),
            Self::OfFile(word) => volume.file().word_at(*word),
        }
    }

    const fn owner(&self) -> u64 {
        match self {
            Self::OfSlab(..) => owner::SLAB,
            Self::OfFile(_) => owner::MAP,
        }
    }

    fn used<P: Pmem>(&self, volume: &Volume<P>) -> Option<u64> {
        match self {
            Self::OfSlab(slab, word) => slab.used_in(volume, *word),
            Self::OfFile(word) => volume.file().used_in(*word),
        }
    }

    fn set_used<P: Pmem>(&self, volume: &Volume<P>, bits: u64) {
        match self {
            Self::OfSlab(slab, word) => slab.set_used(volume, *word, bits),
            Self::OfFile(word) => volume.file().set_used(*word, bits),
        }
    }
}

impl<P: Pmem> SlotChange<'_, P> {
    /// Takes a slot for a chunk, and stores the contents around the cache.
    pub(crate) fn fill(&mut self, contents: &[u8]) -> Result<Slot, ObjectError> {
        let slot = self.slots.take(self.volume, self.roots, class_of(contents.len() as u64))?;
        self.taken.push(slot.clone());
        self.volume.pmem().store_nt(slot.offset(), contents);
        Ok(slot)
    }

    /// Takes the slot of the file, which another change has taken and filled.
    pub(crate) fn adopt_in_file(&mut self, slot: u64) {
        self.taken_in_file.push(slot);
    }

    /// Stores the owner of a slot that was filled, around the cache.
    pub(crate) fn own(&self, slot: &Slot, object: &ObjectRef, index: u64) {
        let index = u32::try_from(index).expect("an object has fewer chunks");
        let place = object.offset / PLACE_BYTES;
        let owner = Owner::new(self.volume.seed, slot.owner_at(), object.number, place, index);
        self.volume.pmem().store_nt(slot.owner_at(), bytes_of(&owner));
    }

    /// Frees a slot.
    pub(crate) fn free(&mut self, slot: Slot) {
        // What is free is known before the slot's bit is cleared: otherwise the slot would be found free, and again when its quarantine ends.
        slot.slab.find_free(self.volume);
        self.freed.push(slot);
    }

    /// Frees a slot of the file.
    pub(crate) fn free_in_file(&mut self, slot: u64) {
        self.freed_in_file.push(slot);
    }

    /// Writes the words in a transaction, which publishes what was filled and has owners. Takes their locks.
    pub(crate) fn write(&mut self, change: &mut Change<'_, '_, P>) -> Result<(), ObjectError> {
        let mut words: BTreeMap<u64, (Word, [u64; 2])> = BTreeMap::new();
        let bit_in_file = |slot: u64| 1_u64 << (slot % WORD_SLOTS);
        let taken = self.taken.iter().map(|slot| (Word::of(slot), slot.bit(), 0));
        let freed = self.freed.iter().map(|slot| (Word::of(slot), slot.bit(), 1));
        let taken_in_file =
            self.taken_in_file.iter().map(|slot| (Word::of_file(*slot), bit_in_file(*slot), 0));
        let freed_in_file =
            self.freed_in_file.iter().map(|slot| (Word::of_file(*slot), bit_in_file(*slot), 1));
        for (word, bit, kind) in taken.chain(freed).chain(taken_in_file).chain(freed_in_file) {
            words.entry(word.at(self.volume)).or_insert_with(|| (word, [0; 2])).1[kind] |= bit;
        }
        let mut stripes: Vec<usize> = words.keys().map(|at| short(at / 8) % STRIPES).collect();
        stripes.sort_unstable();
        stripes.dedup();
        self.locks = stripes.into_iter().map(|stripe| lock(&self.slots.stripes[stripe])).collect();
        for (at, (word, [set, clear])) in words {
            // Of a corrupted word nothing was taken, and what it says of others is unknown.
            if let Some(used) = word.used(self.volume) {
                let used = (used | set) & !clear;
                change.set_sealed(word.owner(), at, used)?;
                self.words.push((word, used));
            }
        }
        if !self.taken.is_empty() {
            change.note_filled();
        }
        Ok(())
    }

    /// The transaction is durable. What it has freed waits for a checkpoint, but for slots of the file, to which no log entry stores.
    pub(crate) fn complete(mut self) {
        for (word, used) in self.words.drain(..) {
            word.set_used(self.volume, used);
        }
        self.taken.clear();
        self.taken_in_file.clear();
        for slot in self.freed.drain(..) {
            // A slot of a corrupted word stays in use.
            if slot.slab.used_in(self.volume, slot.word()).is_none() {
                continue;
            }
            lock(&self.slots.classes[slot.slab.class]).quarantine.push(slot);
        }
        for slot in self.freed_in_file.drain(..) {
            if Word::of_file(slot).used(self.volume).is_some() {
                self.volume.file().give_back(slot);
            }
        }
    }
}

impl<P: Pmem> Drop for SlotChange<'_, P> {
    fn drop(&mut self) {
        for slot in self.taken.drain(..) {
            self.slots.give_back(self.volume, slot.slab.class, core::slice::from_ref(&slot));
        }
        self.taken_in_file.drain(..).for_each(|slot| self.volume.file().give_back(slot));
    }
}
