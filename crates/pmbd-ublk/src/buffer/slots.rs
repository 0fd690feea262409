//! The slots of all buffers, in memory that outlives the server. `docs/format/slots.md` documents the bytes.

#![expect(unsafe_code, reason = "makes slices of lent slots")]

use super::error::BufferError;
use super::format::{BLOCK, BLOCK_BYTES, HEADERS_OFFSET, MAGIC, SLOTS_MAX, SlotHeader, SlotsHeader};
use pm_core::{Pmem, RegionOptions, Uuid};
use std::io;
use std::path::{Path, PathBuf};

/// The slots, all of them: the buffers share them out.
pub struct Slots {
    memory: Box<dyn Pmem + Send + Sync>,
    /// Where the slots begin in the memory, a multiple of 4,096.
    start_bytes: u64,
    slot_count: u64,
    session: u64,
    /// Their file, if they have one.
    file: Option<SlotFile>,
}

/// The file of slots. A new one has a temporary name until the slots that are there no longer count.
#[derive(Debug)]
struct SlotFile {
    path: PathBuf,
    is_temporary: bool,
}

impl SlotFile {
    fn temporary(path: &Path) -> PathBuf {
        path.with_extension("new")
    }
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
        let slots = Self { memory, start_bytes, slot_count, session, file: None };
        (0..slot_count).for_each(|slot| slots.free(slot));
        slots.memory.store(
            start_bytes,
            pm_core::bytes_of(&SlotsHeader { magic: MAGIC, session, slot_count, reserved: 0 }),
        );
        Ok(slots)
    }

    /// The slots that are at `start_bytes` of `memory`.
    ///
    /// # Errors
    /// [`BufferError::NoSlots`].
    pub fn open(memory: Box<dyn Pmem + Send + Sync>, start_bytes: u64) -> Result<Self, BufferError> {
        if start_bytes + HEADERS_OFFSET > memory.len_bytes() {
            return Err(BufferError::NoSlots);
        }
        let head: SlotsHeader = pm_core::from_bytes(|bytes| memory.load(start_bytes, bytes));
        let fits = head.slot_count <= SLOTS_MAX
            && start_bytes + Self::len_bytes(head.slot_count) <= memory.len_bytes();
        if head.magic != MAGIC || !fits {
            return Err(BufferError::NoSlots);
        }
        Ok(Self { memory, start_bytes, slot_count: head.slot_count, session: head.session, file: None })
    }

    /// New, free slots in a new file on a file system in memory, for a new session. The file has a temporary name until an engine takes the slots.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn create_file(path: &Path, slot_count: u64) -> Result<Self, BufferError> {
        let temporary = SlotFile::temporary(path);
        // Of a server that was killed before it published its slots.
        remove(&temporary)?;
        let region = RegionOptions::new().populate(true).create(&temporary, Self::len_bytes(slot_count))?;
        // Odd, so not zero.
        let session = Uuid::new_v4().as_u64_pair().0 | 1;
        let mut slots = Self::create(Box::new(region), 0, slot_count, session)?;
        slots.file = Some(SlotFile { path: path.to_path_buf(), is_temporary: true });
        Ok(slots)
    }

    /// The slots in the file at `path`; `None` if there is no file.
    ///
    /// # Errors
    /// When it cannot be opened, or holds no slots.
    pub fn open_file(path: &Path) -> Result<Option<Self>, BufferError> {
        if !path.try_exists()? {
            return Ok(None);
        }
        let region = RegionOptions::new().open(path)?;
        let mut slots = Self::open(Box::new(region), 0)?;
        slots.file = Some(SlotFile { path: path.to_path_buf(), is_temporary: false });
        Ok(Some(slots))
    }

    /// The number that the device's mark has while these slots belong to it.
    #[must_use]
    pub const fn session(&self) -> u64 {
        self.session
    }

    /// Gives the file of new slots its name, in place of that of older ones.
    pub(crate) fn publish(&mut self) -> Result<(), BufferError> {
        if let Some(file) = self.file.as_mut().filter(|file| file.is_temporary) {
            std::fs::rename(SlotFile::temporary(&file.path), &file.path)?;
            file.is_temporary = false;
        }
        Ok(())
    }

    /// Removes the file: nothing in the slots counts any more.
    pub(crate) fn discard(&mut self) -> Result<(), BufferError> {
        match self.file.take() {
            Some(file) if file.is_temporary => remove(&SlotFile::temporary(&file.path)),
            Some(file) => remove(&file.path),
            None => Ok(()),
        }
    }

    /// Fills a free slot. A process that is killed in the middle leaves it free.
    pub(super) fn fill(&self, slot: u64, block: u64, sequence: u64, bytes: &[u8]) {
        let len_bytes = u32::try_from(bytes.len()).expect("at most a block");
        let head = SlotHeader {
            block_plus_one: 0,
            sequence,
            len_bytes,
            crc: crc(block, sequence, bytes),
            reserved: 0,
        };
        self.memory.store(self.data(slot), bytes);
        self.memory.store(self.head(slot), pm_core::bytes_of(&head));
        self.memory.store_u64(self.head(slot), block + 1);
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
            let Some(block) = self.memory.load_u64(self.head(slot)).checked_sub(1) else { continue };
            let head = self.head_of(slot);
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

impl Drop for Slots {
    /// Slots that were never published leave no file.
    fn drop(&mut self) {
        if self.file.as_ref().is_some_and(|file| file.is_temporary)
            && let Err(error) = self.discard()
        {
            tracing::warn!(%error, "a file of buffers stays");
        }
    }
}

/// Removes a file if it exists.
fn remove(path: &Path) -> Result<(), BufferError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => Ok(other?),
    }
}

fn crc(block: u64, sequence: u64, bytes: &[u8]) -> u32 {
    let crc = pm_core::crc32c_words(&[block, sequence]);
    pm_core::crc32c_bytes(crc, bytes)
}
