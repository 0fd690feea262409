//! The lower tier: a file with slots for chunks. Which slots are in use is a map in the pool.

use crate::error::{ObjectError, OpenError, Structure};
use crate::format::{
    FILE_HEADER_BYTES, FILE_MAGIC, FileHeader, MAP_WORDS, MapBlock, RootHeader, VERSION, WORD_SLOTS, short,
};
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use pm_core::{Pmem, bytes_of, crc32c_bytes, from_bytes};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// A word of the map that is corrupted: none of its slots are used, and none are freed.
const UNREADABLE: u64 = u64::MAX;

/// A block of the map, with what its words say. They are changed by the thread that has the words' lock.
#[derive(Debug)]
struct Map {
    offset: u64,
    used: Box<[AtomicU64]>,
}

/// The slots that can be taken.
#[derive(Debug, Default)]
struct Free {
    /// A bit for each slot of each word of the map.
    words: Vec<u64>,
    /// The word from which the next search starts, so that slots that are taken one after the other are adjacent.
    next: usize,
}

/// The file with the lower tier.
#[derive(Debug)]
pub(crate) struct FileTier<P: Pmem> {
    /// `None` if the file is missing: then only the map is known.
    pmem: Option<P>,
    slots: u64,
    slot_bytes: u64,
    maps: RwLock<Vec<Arc<Map>>>,
    free: Mutex<Free>,
    /// Where the map cannot be followed: no block is added then.
    broken_at: Mutex<Option<u64>>,
    /// Whether a fence has failed. What is in the page cache may then differ from the file, so that no slot is used again until the next open.
    is_frozen: AtomicBool,
}

impl<P: Pmem> FileTier<P> {
    /// Makes the file of a new pool.
    ///
    /// # Durability
    /// Durable when this returns. One fence.
    pub(crate) fn format(pmem: P, root: &RootHeader) -> Result<Self, OpenError> {
        let header = FileHeader {
            magic: FILE_MAGIC,
            version: VERSION,
            slot_bytes: root.chunk_bytes,
            slots: root.file_slots,
            pool_uuid: root.pool_uuid,
            file_uuid: root.file_uuid,
            reserved: 0,
            crc: 0,
        };
        let header = FileHeader { crc: header.expected_crc(), ..header };
        for copy in [0, FILE_HEADER_BYTES] {
            pmem.try_store_nt(copy, bytes_of(&header)).map_err(|_| ObjectError::Tier)?;
        }
        let file = Self::new(Some(pmem), root);
        file.fence()?;
        Ok(file)
    }

    /// The number of slots in a file.
    pub(crate) fn slots_of(pmem: &P, slot_bytes: u32) -> u64 {
        pmem.len_bytes().saturating_sub(2 * FILE_HEADER_BYTES) / u64::from(slot_bytes)
    }

    /// Whether a region holds no more than what an interrupted creation has left.
    pub(crate) fn is_unused(pmem: &P) -> bool {
        let mut head = [0; FILE_MAGIC.len()];
        pmem.len_bytes() >= 2 * FILE_HEADER_BYTES
            && pmem.try_load(0, &mut head).is_ok()
            && [[0; FILE_MAGIC.len()], FILE_MAGIC].contains(&head)
    }

    /// Verifies that this is the file of a pool.
    pub(crate) fn open(pmem: P, root: &RootHeader) -> Result<Self, OpenError> {
        let is_its_own = |header: &FileHeader| {
            header.magic == FILE_MAGIC
                && header.crc == header.expected_crc()
                && (header.version, header.slot_bytes, header.slots)
                    == (VERSION, root.chunk_bytes, root.file_slots)
                && (header.pool_uuid, header.file_uuid) == (root.pool_uuid, root.file_uuid)
        };
        let load = |copy| {
            let mut loaded = Ok(());
            let header = from_bytes::<FileHeader>(|bytes| loaded = pmem.try_load(copy, bytes));
            loaded.ok().map(|()| header)
        };
        let has_room = pmem.len_bytes() >= 2 * FILE_HEADER_BYTES;
        let mut headers = [0, FILE_HEADER_BYTES].into_iter().filter(|_| has_room).filter_map(load);
        headers.find(is_its_own).ok_or(OpenError::ForeignFile)?;
        drop(headers);
        Ok(Self::new(Some(pmem), root))
    }

    /// The file of a pool, of which only the map is known.
    pub(crate) fn missing(root: &RootHeader) -> Self {
        Self::new(None, root)
    }

    fn new(pmem: Option<P>, root: &RootHeader) -> Self {
        Self {
            pmem,
            slots: root.file_slots,
            slot_bytes: u64::from(root.chunk_bytes),
            maps: RwLock::default(),
            free: Mutex::default(),
            broken_at: Mutex::default(),
            is_frozen: AtomicBool::new(false),
        }
    }

    /// Adds a block of the map, with what its words say, each with `None` if it is corrupted.
    pub(super) fn add(&self, offset: u64, words: &[Option<u64>]) {
        let mut maps = self.maps.write().unwrap_or_else(PoisonError::into_inner);
        let first = (maps.len() * MAP_WORDS) as u64;
        let known = |(word, bits): (u64, &Option<u64>)| {
            bits.filter(|bits| bits & !self.bits(word) == 0).unwrap_or(UNREADABLE)
        };
        let used: Vec<u64> = (first..).zip(words).map(known).collect();
        let free = (first..).zip(&used).map(|(word, used)| self.bits(word) & !used);
        lock(&self.free).words.extend(free);
        maps.push(Arc::new(Map { offset, used: used.into_iter().map(AtomicU64::new).collect() }));
    }

    /// Notes that the map cannot be followed from here.
    pub(super) fn break_at(&self, offset: u64) {
        *lock(&self.broken_at) = Some(offset);
    }

    /// The number of blocks that the map has.
    pub(super) fn blocks_needed(&self) -> usize {
        short(self.words().div_ceil(MAP_WORDS as u64))
    }

    /// The number of words of the map that can be followed.
    pub(crate) fn known_words(&self) -> u64 {
        ((self.blocks().len() * MAP_WORDS) as u64).min(self.words())
    }

    /// The number of words of the whole map.
    const fn words(&self) -> u64 {
        self.slots.div_ceil(WORD_SLOTS)
    }

    /// The slots that a word describes.
    fn bits(&self, word: u64) -> u64 {
        let slots = self.slots.saturating_sub(word * WORD_SLOTS).min(WORD_SLOTS);
        (1 << slots) - 1
    }

    /// The offsets of the blocks of the map.
    pub(crate) fn blocks(&self) -> Vec<u64> {
        self.maps.read().unwrap_or_else(PoisonError::into_inner).iter().map(|map| map.offset).collect()
    }

    /// Where the map cannot be followed.
    pub(crate) fn broken_at(&self) -> Option<u64> {
        *lock(&self.broken_at)
    }

    fn map_of(&self, word: u64) -> Option<(Arc<Map>, u64)> {
        let maps = self.maps.read().unwrap_or_else(PoisonError::into_inner);
        let map = maps.get(short(word / MAP_WORDS as u64))?;
        Some((Arc::clone(map), word % MAP_WORDS as u64))
    }

    /// The offset of a word. A slot in use or taken has one.
    pub(crate) fn word_at(&self, word: u64) -> u64 {
        let (map, word) = self.map_of(word).expect("the word of a slot in use");
        word_in(map.offset, word)
    }

    /// What a word says. `None` if it is corrupted. The caller has its lock, or nothing changes meanwhile.
    pub(crate) fn used_in(&self, word: u64) -> Option<u64> {
        let (map, word) = self.map_of(word)?;
        let bits = map.used[short(word)].load(Ordering::Relaxed);
        (bits != UNREADABLE).then_some(bits)
    }

    /// Notes what a word says now.
    pub(crate) fn set_used(&self, word: u64, bits: u64) {
        let (map, word) = self.map_of(word).expect("the word of a slot in use");
        map.used[short(word)].store(bits, Ordering::Relaxed);
    }

    /// Whether there is such a slot.
    pub(crate) fn has(&self, slot: u64) -> bool {
        slot < self.slots && self.map_of(slot / WORD_SLOTS).is_some()
    }

    /// The number of slots that are in use, and of all.
    pub(crate) fn usage(&self) -> (u64, u64) {
        let maps = self.maps.read().unwrap_or_else(PoisonError::into_inner);
        let words = maps.iter().flat_map(|map| map.used.iter()).map(|used| used.load(Ordering::Relaxed));
        let used = words.filter(|used| *used != UNREADABLE).map(|used| u64::from(used.count_ones())).sum();
        (used, self.slots)
    }

    /// Takes a free slot, if there is one and the file can be written.
    pub(crate) fn take(&self) -> Option<u64> {
        if self.pmem.is_none() || self.is_frozen.load(Ordering::Acquire) {
            return None;
        }
        let mut free = lock(&self.free);
        let count = free.words.len();
        let word = (free.next..count).chain(0..free.next).find(|word| free.words[*word] != 0)?;
        free.next = word;
        let bits = &mut free.words[word];
        let bit = u64::from(bits.trailing_zeros());
        *bits &= *bits - 1;
        Some(word as u64 * WORD_SLOTS + bit)
    }

    /// Makes a slot free, which is in use no more. No log entry stores to it.
    pub(crate) fn give_back(&self, slot: u64) {
        lock(&self.free).words[short(slot / WORD_SLOTS)] |= 1 << (slot % WORD_SLOTS);
    }

    /// The offset of a slot.
    const fn offset_of(&self, slot: u64) -> u64 {
        2 * FILE_HEADER_BYTES + slot * self.slot_bytes
    }

    /// The file, if it has so many bytes of a slot: it may have been truncated while it was closed.
    fn within(&self, slot: u64, len: usize) -> Result<&P, ObjectError> {
        let pmem = self.pmem.as_ref().ok_or(ObjectError::Tier)?;
        match self.offset_of(slot) + len as u64 <= pmem.len_bytes() {
            true => Ok(pmem),
            false => Err(ObjectError::Tier),
        }
    }

    /// Copies out the contents of a chunk, and verifies them.
    pub(crate) fn load(&self, slot: u64, crc: u32, out: &mut [u8]) -> Result<(), ObjectError> {
        let pmem = self.within(slot, out.len())?;
        pmem.try_load(self.offset_of(slot), out).map_err(|_| ObjectError::Tier)?;
        match crc32c_bytes(0, out) == crc {
            true => Ok(()),
            false => Err(ObjectError::corrupted(self.offset_of(slot), Structure::Contents)),
        }
    }

    /// Stores the contents of a chunk in a slot that was taken, and returns their checksum. [`fence`](Self::fence) makes them durable.
    pub(crate) fn store(&self, slot: u64, contents: &[u8]) -> Result<u32, ObjectError> {
        // The file may have no room for what was a hole.
        let pmem = self.within(slot, contents.len())?;
        pmem.try_store_nt(self.offset_of(slot), contents).map_err(|_| ObjectError::Tier)?;
        Ok(crc32c_bytes(0, contents))
    }

    /// Makes what was stored durable.
    ///
    /// # Durability
    /// One fence. If it fails, no slot is taken until the next open.
    pub(crate) fn fence(&self) -> Result<(), ObjectError> {
        let pmem = self.pmem.as_ref().ok_or(ObjectError::Tier)?;
        // DURABILITY POINT
        pmem.fence().map_err(|_| {
            self.is_frozen.store(true, Ordering::Release);
            ObjectError::Tier
        })
    }
}

/// The offset of a word of a block.
pub(super) const fn word_in(block: u64, word: u64) -> u64 {
    block + offset_of!(MapBlock, words) as u64 + 8 * word
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
