//! The slots of all buffers, in memory that outlives the server. `docs/format/slots.md` documents the bytes.

#![expect(unsafe_code, reason = "makes slices of lent slots")]

use super::error::BufferError;
use super::format::{BLOCK, BLOCK_BYTES, FILLED, HEADERS_OFFSET, MAGIC, SLOTS_MAX, SlotHeader, SlotsHeader};
use super::session::Session;
use super::slot_file::SlotFile;
use pm_core::Pmem;
use std::path::Path;

/// The file of a disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiskFile {
    /// The device number of its file system, and its inode number there, in which a copy differs.
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// The number of the user that it belongs to.
    pub(crate) owner: u32,
}

/// The slots, all of them: the buffers share them out.
pub struct Slots {
    memory: Box<dyn Pmem + Send + Sync>,
    /// Where the slots begin in the memory, a multiple of 4,096.
    start_bytes: u64,
    slot_count: u64,
    session: u64,
    /// Their file, if they have one that belongs to this disk.
    file: Option<SlotFile>,
}

impl core::fmt::Debug for Slots {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Slots").field("slot_count", &self.slot_count).finish_non_exhaustive()
    }
}

impl Slots {
    /// The bytes that this many slots need.
    #[must_use]
    pub const fn len_bytes(slot_count: u64) -> u64 {
        Self::data_offset(slot_count) + slot_count * BLOCK_BYTES
    }

    /// New, free slots at `start_bytes` of `memory`, a multiple of 4,096, for the device whose mark is `session`.
    ///
    /// # Errors
    /// [`BufferError::TooSmall`].
    pub fn create(
        memory: Box<dyn Pmem + Send + Sync>,
        start_bytes: u64,
        slot_count: u64,
        session: u64,
    ) -> Result<Self, BufferError> {
        let (needed_bytes, found_bytes) = (start_bytes + Self::len_bytes(slot_count), memory.len_bytes());
        if needed_bytes > found_bytes {
            return Err(BufferError::TooSmall { needed_bytes, found_bytes });
        }
        Ok(Self::create_for(memory, start_bytes, slot_count, session, (0, 0)))
    }

    /// As [`create`](Self::create), in memory that is long enough, for the disk with these device and inode numbers.
    fn create_for(
        memory: Box<dyn Pmem + Send + Sync>,
        start_bytes: u64,
        slot_count: u64,
        session: u64,
        (disk_device, disk_inode): (u64, u64),
    ) -> Self {
        let slots = Self { memory, start_bytes, slot_count, session, file: None };
        (0..slot_count).for_each(|slot| slots.free(slot));
        let mut head = SlotsHeader {
            magic: MAGIC,
            session,
            slot_count,
            disk_device,
            disk_inode,
            crc: 0,
            reserved: 0,
            generation_next: 0,
            generation: 0,
        };
        head.crc = head.expected_crc();
        slots.memory.store(start_bytes, pm_core::bytes_of(&head));
        slots
    }

    /// The slots that are at `start_bytes` of `memory`.
    ///
    /// # Errors
    /// [`BufferError::NoSlots`].
    pub fn open(memory: Box<dyn Pmem + Send + Sync>, start_bytes: u64) -> Result<Self, BufferError> {
        if start_bytes + HEADERS_OFFSET > memory.len_bytes() {
            return Err(BufferError::NoSlots);
        }
        let head = head_of_all(&*memory, start_bytes);
        let fits = head.slot_count <= SLOTS_MAX
            && start_bytes + Self::len_bytes(head.slot_count) <= memory.len_bytes();
        if head.magic != MAGIC || head.crc != head.expected_crc() || !fits {
            return Err(BufferError::NoSlots);
        }
        Ok(Self { memory, start_bytes, slot_count: head.slot_count, session: head.session, file: None })
    }

    /// New, free slots for a new session of the disk with these device and inode numbers, in a file in the directory `dir`. The file has no name until an
    /// engine takes the slots.
    ///
    /// # Errors
    /// When the file cannot be created, or is not in memory.
    pub(crate) fn create_file(dir: &Path, slot_count: u64, disk: DiskFile) -> Result<Self, BufferError> {
        let session = Session::new()?;
        let (file, region) = SlotFile::create(dir, session, Self::len_bytes(slot_count))?;
        let disk = (disk.device, disk.inode);
        let mut slots = Self::create_for(Box::new(region), 0, slot_count, session.number(), disk);
        slots.file = Some(file);
        Ok(slots)
    }

    /// The slots of a killed server in the directory `dir`. Their file stays when they are discarded, if they belong to another disk, of which this one is
    /// a copy, or if `is_scratch`: what is stored to this disk then does not reach its file.
    ///
    /// # Errors
    /// When they are missing or corrupted, or another server uses them.
    pub(crate) fn open_file(
        dir: &Path,
        session: Session,
        disk: DiskFile,
        is_scratch: bool,
    ) -> Result<Self, BufferError> {
        let (file, region) = SlotFile::open(dir, session, disk.owner, is_scratch)?;
        let mut slots = Self::open(Box::new(region), 0)?;
        if slots.session != session.number() {
            return Err(BufferError::NoSlots);
        }
        let head = head_of_all(&*slots.memory, 0);
        let is_of_disk = (head.disk_device, head.disk_inode) == (disk.device, disk.inode);
        slots.file = (!is_scratch && is_of_disk).then_some(file);
        Ok(slots)
    }

    /// The number of blocks that are not stored on the disk.
    pub(crate) fn block_count(&self) -> Result<u64, BufferError> {
        let mut filled = self.filled()?;
        filled.dedup_by_key(|(block, ..)| *block);
        Ok(filled.len() as u64)
    }

    /// Checks that there are at least `needed` slots.
    pub(crate) fn check_count(&self, needed: u64) -> Result<(), BufferError> {
        match needed <= self.slot_count {
            true => Ok(()),
            false => Err(BufferError::TooSmall {
                needed_bytes: Self::len_bytes(needed),
                found_bytes: Self::len_bytes(self.slot_count),
            }),
        }
    }

    /// The number that the device's mark has while these slots belong to it.
    #[must_use]
    pub const fn session(&self) -> u64 {
        self.session
    }

    /// Checks that the slots belong to the present contents of a disk with this generation: a copy of the disk that was made before the last stores to
    /// it has another. Between the stores of the two words the disk has one of them, and nothing was stored since.
    pub(crate) fn check_generation(&self, found: u64) -> Result<(), BufferError> {
        let head = head_of_all(&*self.memory, self.start_bytes);
        let is_present = found == head.generation || found == head.generation_next;
        match is_present && head.generation_next.wrapping_sub(head.generation) <= 1 {
            true => Ok(()),
            false => Err(BufferError::OlderCopy { found, expected: head.generation }),
        }
    }

    /// Announces the disk's next generation.
    pub(super) fn announce_generation(&self, next: u64) {
        let at = core::mem::offset_of!(SlotsHeader, generation_next) as u64;
        self.memory.store_u64(self.start_bytes + at, next);
    }

    /// Notes that the disk has this generation.
    pub(super) fn note_generation(&self, generation: u64) {
        let at = core::mem::offset_of!(SlotsHeader, generation) as u64;
        self.memory.store_u64(self.start_bytes + at, generation);
    }

    /// Gives the file of new slots its name. They are for a disk of this generation.
    pub(crate) fn publish(&mut self, generation: u64) -> Result<(), BufferError> {
        self.announce_generation(generation);
        self.note_generation(generation);
        Ok(self.file.as_mut().map_or(Ok(()), SlotFile::publish)?)
    }

    /// Whether the next server would find the slots if this one were killed; true without a file.
    pub(super) fn is_found(&self) -> bool {
        self.file.as_ref().is_none_or(SlotFile::is_found)
    }

    /// Removes the file: nothing in the slots counts any more.
    pub(crate) fn discard(&mut self) -> Result<(), BufferError> {
        // Another file may have its name by now.
        Ok(self.file.take().filter(SlotFile::is_found).map_or(Ok(()), SlotFile::remove)?)
    }

    /// Fills a free slot. A process that is killed in the middle leaves it free.
    pub(super) fn fill(&self, slot: u64, block: u64, sequence: u64, bytes: &[u8]) {
        let len_bytes = u32::try_from(bytes.len()).expect("at most a block");
        let head = SlotHeader {
            filled_block: 0,
            sequence,
            len_bytes,
            crc: crc(block, sequence, bytes),
            reserved: 0,
        };
        self.memory.store(self.data(slot), bytes);
        self.memory.store(self.head(slot), pm_core::bytes_of(&head));
        self.memory.store_u64(self.head(slot), block | FILLED);
    }

    /// Frees a slot.
    pub(super) fn free(&self, slot: u64) {
        self.memory.store_u64(self.head(slot), 0);
    }

    /// Loads a part of a slot's block.
    pub(super) fn load(&self, slot: u64, offset: usize, out: &mut [u8]) {
        self.memory.load(self.data(slot) + offset as u64, out);
    }

    /// Calls `with` with the bytes of adjacent slots, which no thread fills before it returns: the caller has the lock of their buffer.
    pub(super) fn with_bytes<R>(&self, slot: u64, len: usize, with: impl FnOnce(&[u8]) -> R) -> R {
        let (mut with, mut result) = (Some(with), None);
        self.memory.lend(self.data(slot), len, &mut |lent| {
            // SAFETY: a slot is stored to under the lock of its buffer only, and by this process only: the file is locked.
            let bytes = unsafe { lent.as_ref() };
            result = with.take().map(|with| with(bytes));
        });
        result.expect("the bytes are lent once")
    }

    /// All slots that hold a block: (block, sequence, slot), oldest first for each block. Checks their checksums.
    pub(super) fn filled(&self) -> Result<Vec<(u64, u64, u64)>, BufferError> {
        let mut filled = Vec::new();
        let mut buffer = [0; BLOCK];
        for slot in 0..self.slot_count {
            let head = self.head_of(slot);
            if head.filled_block == 0 {
                continue;
            }
            // A flipped bit of FILLED gives another checksum too.
            let block = head.filled_block ^ FILLED;
            let len = usize::try_from(head.len_bytes).unwrap_or(usize::MAX).min(BLOCK);
            self.load(slot, 0, &mut buffer[..len]);
            let expected = crc(block, head.sequence, &buffer[..len]);
            if head.crc != expected || u64::from(head.len_bytes) > BLOCK_BYTES {
                return Err(BufferError::Checksum { slot, found: head.crc, expected });
            }
            filled.push((block, head.sequence, slot));
        }
        filled.sort_unstable();
        Ok(filled)
    }

    /// The length of a slot's block.
    pub(super) fn block_len(&self, slot: u64) -> usize {
        usize::try_from(self.head_of(slot).len_bytes).unwrap_or(usize::MAX).min(BLOCK)
    }

    fn head_of(&self, slot: u64) -> SlotHeader {
        pm_core::from_bytes(|bytes| self.memory.load(self.head(slot), bytes))
    }

    fn head(&self, slot: u64) -> u64 {
        debug_assert!(slot < self.slot_count, "there are {} slots", self.slot_count);
        self.start_bytes + HEADERS_OFFSET + slot * size_of::<SlotHeader>() as u64
    }

    fn data(&self, slot: u64) -> u64 {
        debug_assert!(slot < self.slot_count, "there are {} slots", self.slot_count);
        self.start_bytes + Self::data_offset(self.slot_count) + slot * BLOCK_BYTES
    }

    const fn data_offset(slot_count: u64) -> u64 {
        (HEADERS_OFFSET + slot_count * size_of::<SlotHeader>() as u64).next_multiple_of(BLOCK_BYTES)
    }
}

/// The header of all slots at `start_bytes`.
fn head_of_all(memory: &dyn Pmem, start_bytes: u64) -> SlotsHeader {
    pm_core::from_bytes(|bytes| memory.load(start_bytes, bytes))
}

fn crc(block: u64, sequence: u64, bytes: &[u8]) -> u32 {
    let crc = pm_core::crc32c_words(&[block, sequence]);
    pm_core::crc32c_bytes(crc, bytes)
}
