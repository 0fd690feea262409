//! The chunks of a heap: which arena owns each chunk, and the chunks that no arena owns.
//!
//! Each chunk is owned by an arena, shared, or covered by a huge block, which is a block longer than a chunk. A thread allocates from its own arena
//! first. A thread that frees a block locks the arena that owns the block's chunk. A chunk changes owners only while the lock of the shared chunks is
//! held ([`LockedChunks`]). That lock is acquired before the lock of any arena. Only [`Frozen`](super::Frozen) holds several arena locks at once.

use super::arena::{Arena, HeldBlock, HeldFreeing, Purpose};
use super::chunk_map::ChunkMap;
use super::error::{Corruption, FreeError};
use super::headers::{chunk_lines, end_of, header_offset, read, split_inner, split_off_first};
use super::quarantine::{Quarantine, QuarantineClock};
use super::reservation::ArenaSlot;
use super::scanner::{ChunkCursor, Content, Scanner, Start};
use crate::format::{BLOCK_HEADER_BYTES, BlockHeader, BlockState, LINE_BYTES, Lsn};
use crate::layout::Layout;
use crate::locks::{PoisonMutex, PoisonMutexGuard, SpinGuard, SpinLock};
use crate::log::LaneGuard;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::cell::Cell;
use core::ops::Range;
use core::time::Duration;
use pm_core::{FenceError, Pmem};
use std::collections::{BTreeMap, BTreeSet};

/// The minimum number of chunks for each arena of a heap, if the number of arenas is not given.
const CHUNKS_PER_ARENA: u64 = 8;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SpaceOptions {
    /// The minimum time for which freed blocks are quarantined. It limits how often a line is written.
    pub(crate) quarantine: Duration,
    /// The number of arenas, at least one. By default there is one arena for each processor, unless the heap has too few chunks.
    pub(crate) arena_count: Option<u32>,
    /// The number of chunks up to which the heap can grow while it is in use.
    pub(crate) chunk_count_max: u64,
    /// Whether this process created the heap and made it durable. If so, no killed process can have left headers that are visible but not durable.
    pub(crate) is_new: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkOwner {
    /// No arena owns the chunk: it is one of the [`SharedChunks`].
    Shared,
    /// A huge block, or a reservation for one, covers the chunk.
    Covered,
    /// A huge block starts in the chunk.
    Huge,
    /// An arena owns the chunk. The chunk's map is in this slot.
    Arena(ArenaSlot),
}

impl ChunkOwner {
    fn to_word(self) -> u64 {
        match self {
            Self::Shared => 0,
            Self::Covered => 1,
            Self::Huge => 2,
            Self::Arena(ArenaSlot { arena, slot }) => (u64::from(arena) + 1) << 32 | u64::from(slot),
        }
    }

    fn from_word(word: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "the low half and the high half")]
        match word {
            0 => Self::Shared,
            1 => Self::Covered,
            2 => Self::Huge,
            _ => Self::Arena(ArenaSlot { arena: (word >> 32) as u32 - 1, slot: word as u32 }),
        }
    }
}

#[derive(Debug)]
pub(crate) struct ChunkTable {
    pub(super) layout: Layout,
    /// The [`ChunkOwner`] of each chunk, also of those that the heap may get while it is in use.
    owners: Vec<AtomicU64>,
    /// The number of chunks. It changes while the lock of the shared chunks is held. (Not one of loom's atomics: it would add a point of scheduling to
    /// each look at a chunk.)
    chunk_count: core::sync::atomic::AtomicU64,
    pub(super) arenas: Vec<SpinLock<Arena>>,
    shared: PoisonMutex<SharedChunks>,
    /// Whether there is a free shared chunk. This is only a hint: it is stored with the lock of the shared chunks held, but loaded without the lock.
    /// If it is false although there is a free chunk, a reservation is trimmed needlessly.
    has_free_chunk: AtomicBool,
    pub(super) clock: QuarantineClock,
    is_new: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct HugeBlock {
    pub(super) lines: u32,
    /// Whether the block is allocated and not being freed.
    pub(super) is_live: bool,
    /// Whether the block's header is corrupted, or a repair has marked the block lost. Such a block is neither allocated nor free.
    pub(super) is_lost: bool,
}

/// The chunks that no arena owns.
#[derive(Debug, Default)]
pub(super) struct SharedChunks {
    /// The next chunk whose first header is to be read. First headers are read only when needed: in a large heap each read costs a page fault.
    pub(super) cursor: ChunkCursor,
    /// Whether first headers were read and flushed but not fenced. These headers must not be used before the fence.
    has_unfenced_headers: bool,
    /// The first headers, as (offset, word), that a killed process left inside a huge block.
    /// [`persist_first_headers`](LockedChunks::persist_first_headers) zeroes them before its fence.
    stale_headers: Vec<(u64, u64)>,
    /// The error of the first failed fence. After a failed fence nothing more is stored or fenced.
    failed_fence: Option<FenceError>,
    /// Whether the next assignment to an arena prefers an unscanned chunk to a free one.
    is_unscanned_next: bool,
    /// Chunks that are one free block each.
    pub(super) free: BTreeSet<u64>,
    /// Chunks whose first header was read but which were not scanned yet, and where the headers of each chunk start.
    pub(super) unscanned: BTreeMap<u64, Start>,
    /// Huge blocks, by the chunk in which they start.
    pub(super) huge: BTreeMap<u64, HugeBlock>,
    /// Huge blocks that were freed but not yet split into chunks.
    pub(super) quarantine: Quarantine,
    /// The number of reservations for huge blocks that are in progress: neither settled, returned nor abandoned.
    pub(super) reservation_count: u32,
    pub(super) corruptions: Vec<Corruption>,
}

/// The shared chunks, locked.
#[derive(Debug)]
pub(super) struct LockedChunks<'s> {
    pub(super) table: &'s ChunkTable,
    pub(super) shared: PoisonMutexGuard<'s, SharedChunks>,
}

impl ChunkTable {
    /// The chunks of a heap after its recovery. Reads no header: a chunk is scanned when it is first needed.
    pub(super) fn new(layout: Layout, chunk_count: u64, options: SpaceOptions) -> Self {
        // Processors are counted once, and only if a heap could use several arenas: the standard library reads many files to count them.
        static PROCESSORS: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
        let count = || std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
        let processors = || *PROCESSORS.get_or_init(count);
        let by_default = || match chunk_count / CHUNKS_PER_ARENA {
            0 | 1 => 1,
            most => processors().min(most),
        };
        let count = options.arena_count.map_or_else(by_default, u64::from).clamp(1, 1 << 16);
        let arenas = (0..count).map(|number| {
            let number = u32::try_from(number).expect("at most 65,536");
            SpinLock::new(Arena::new(layout, number))
        });
        let mut table = Self {
            layout,
            owners: Vec::new(),
            chunk_count: core::sync::atomic::AtomicU64::new(0),
            arenas: arenas.collect(),
            shared: PoisonMutex::new(SharedChunks::default()),
            has_free_chunk: AtomicBool::new(false),
            clock: QuarantineClock::new(options.quarantine),
            is_new: options.is_new,
        };
        table.make_room(options.chunk_count_max.max(chunk_count));
        table.extend(chunk_count);
        table
    }

    /// Makes room for so many chunks.
    pub(super) fn make_room(&mut self, chunk_count: u64) {
        let more = self.owners.len() as u64..chunk_count;
        self.owners.extend(more.map(|_| AtomicU64::new(ChunkOwner::Shared.to_word())));
    }

    /// Adds chunks, which are free and durable, up to a total of `chunk_count`. There is [room](Self::make_room) for them. Other threads may use the heap.
    pub(super) fn extend(&self, chunk_count: u64) {
        let _chunks = self.lock();
        debug_assert!(chunk_count <= self.owners.len() as u64, "there is room for {chunk_count} chunks");
        self.chunk_count.fetch_max(chunk_count, Ordering::Release);
    }

    #[inline]
    pub(super) fn chunk_count(&self) -> u64 {
        self.chunk_count.load(Ordering::Acquire)
    }

    pub(super) fn scanner<'h, P: Pmem>(&'h self, pmem: &'h P) -> Scanner<'h, P> {
        Scanner { pmem, layout: &self.layout, chunk_count: self.chunk_count() }
    }

    #[inline]
    pub(super) fn owner(&self, chunk: u64) -> ChunkOwner {
        ChunkOwner::from_word(self.owners[chunk_as_usize(chunk)].load(Ordering::Acquire))
    }

    /// Changes the owner of a chunk. The caller holds the lock of the shared chunks.
    fn set_owner(&self, chunk: u64, owner: ChunkOwner) {
        self.owners[chunk_as_usize(chunk)].store(owner.to_word(), Ordering::Release);
    }

    /// The chunk and the line of `offset`, if a block could start there.
    #[inline]
    pub(super) fn locate(&self, offset: u64) -> Result<(u64, u32), FreeError> {
        let chunk = self.layout.chunk_of(offset).filter(|chunk| *chunk < self.chunk_count());
        let chunk = chunk.ok_or(FreeError::OutsideHeap { offset })?;
        if !offset.is_multiple_of(LINE_BYTES) {
            return Err(FreeError::Misaligned { offset });
        }
        let line = (offset - self.layout.chunk_offset(chunk)) / LINE_BYTES;
        if line == 0 {
            return Err(FreeError::NotABlock { offset });
        }
        Ok((chunk, u32::try_from(line).expect("lines of a chunk")))
    }

    /// The number of the calling thread's arena.
    #[inline]
    pub(super) fn own_arena(&self) -> usize {
        let (number, count) = (thread_number(), self.arenas.len());
        if number < count { number } else { number % count }
    }

    #[inline]
    pub(super) fn arena(&self, arena: usize) -> SpinGuard<'_, Arena> {
        self.arenas[arena].lock_unpoisoned()
    }

    /// Begins to allocate a block of `lines` lines in the calling thread's arena, which stays locked until the result is dropped. `None` if the arena
    /// has no such block. If `has_contents` is set, the caller stores into the block before it commits the header.
    ///
    /// The lane parameter proves the lock order: a lane is acquired before an arena's lock.
    #[inline]
    pub(crate) fn hold_block<P: Pmem>(
        &self,
        _lane: &LaneGuard<'_>,
        pmem: &P,
        lines: u64,
        has_contents: bool,
    ) -> Option<HeldBlock<'_>> {
        if lines >= self.layout.chunk_lines() {
            return None;
        }
        let lines = u32::try_from(lines).ok()?;
        let arena = self.arena(self.own_arena());
        let held = Arena::hold_block(arena, pmem, lines, self.clock.now())?;
        // Several free blocks would have to be joined first: contents stored into the block overwrite their headers.
        if held.spans_several_blocks && has_contents { None } else { Some(held) }
    }

    /// Begins to free an allocated block. The arena that owns the block's chunk stays locked until the result is dropped. `None` if no arena owns the
    /// chunk, or the block is in an unreachable extent.
    ///
    /// The lane parameter proves the lock order, as for [`hold_block`](Self::hold_block).
    ///
    /// # Errors
    /// As for [`Space::begin_free`](super::Space::begin_free).
    #[inline]
    pub(crate) fn hold_freeing<P: Pmem>(
        &self,
        _lane: &LaneGuard<'_>,
        pmem: &P,
        payload: u64,
    ) -> Result<Option<HeldFreeing<'_>>, FreeError> {
        let now = self.clock.now();
        let (chunk, line) = self.locate(payload)?;
        let owner = self.owner(chunk);
        let ChunkOwner::Arena(ArenaSlot { arena, slot }) = owner else { return Ok(None) };
        let mut arena = self.arena(arena as usize);
        // In an unreachable extent no header is stored.
        if self.owner(chunk) != owner || arena.map(slot).unreachable_from <= line {
            return Ok(None);
        }
        let found = arena.look_up(pmem, slot, line, self.free_purpose())?;
        Ok(Some(HeldFreeing::new(arena, slot, found, now)))
    }

    /// The purpose with which blocks are freed. If there is a quarantine time, blocks are not coalesced with their free neighbours, because these
    /// would then be quarantined, too.
    #[inline]
    pub(super) const fn free_purpose(&self) -> Purpose {
        if self.clock.is_used() { Purpose::Free } else { Purpose::FreeAndCoalesce }
    }

    /// Locks the shared chunks.
    pub(super) fn lock(&self) -> LockedChunks<'_> {
        LockedChunks { table: self, shared: self.shared.lock_unpoisoned() }
    }

    /// Whether there is a free shared chunk. This is only a hint, loaded without the lock: it may be false although there is a free chunk.
    #[inline]
    pub(super) fn has_free_chunk(&self) -> bool {
        self.has_free_chunk.load(Ordering::Acquire)
    }

    /// Whether no lock is held, for example by a leaked guard, and none is poisoned.
    pub(super) fn is_unlocked_and_unpoisoned(&self) -> bool {
        self.shared.is_unlocked_and_unpoisoned()
            && self.arenas.iter().all(SpinLock::is_unlocked_and_unpoisoned)
    }
}

impl SharedChunks {
    pub(super) fn unscanned_count(&self, chunk_count: u64) -> usize {
        self.unscanned.len() + chunk_as_usize(chunk_count.saturating_sub(self.cursor.next))
    }

    /// Checks that no fence has failed. Called before each store.
    ///
    /// # Errors
    /// The error of the first fence that failed.
    pub(super) fn check_fences(&self) -> Result<(), FenceError> {
        self.failed_fence.clone().map_or(Ok(()), Err)
    }

    /// Fences, unless a fence has failed: a later fence would not cover the lines of the failed fence, so these lines may be lost.
    ///
    /// # Errors
    /// When the fence fails or a fence has failed.
    ///
    /// # Durability
    /// When this returns, all earlier flushes of this thread are durable.
    #[track_caller]
    pub(super) fn fence<P: Pmem>(&mut self, pmem: &P) -> Result<(), FenceError> {
        self.check_fences()?;
        pmem.fence().inspect_err(|error| self.failed_fence = Some(error.clone()))
    }
}

impl LockedChunks<'_> {
    pub(super) fn set_owner(&mut self, chunk: u64, owner: ChunkOwner) {
        self.table.set_owner(chunk, owner);
    }

    /// Scans the next unscanned chunk, and assigns it to an arena. Returns false if there is no unscanned chunk.
    ///
    /// # Durability
    /// As for [`assign_chunk`](Self::assign_chunk).
    pub(super) fn scan_next<P: Pmem>(&mut self, arena: usize, pmem: &P) -> Result<bool, FenceError> {
        while self.shared.unscanned.is_empty() && self.read_next_first_header(pmem) {}
        self.persist_first_headers(pmem)?;
        let Some((&chunk, _)) = self.shared.unscanned.first_key_value() else { return Ok(false) };
        self.scan_into(arena, pmem, chunk)?;
        Ok(true)
    }

    /// Reads the first headers of the chunks up to `chunk`.
    ///
    /// # Durability
    /// At most one fence, and none if this process created the heap. The headers that were read are made durable before they are used, because a
    /// killed process may have left headers that are visible but not durable.
    pub(super) fn read_first_headers_through<P: Pmem>(
        &mut self,
        pmem: &P,
        chunk: u64,
    ) -> Result<(), FenceError> {
        while self.shared.cursor.next <= chunk && self.read_next_first_header(pmem) {}
        self.persist_first_headers(pmem)
    }

    /// Reads the first header of the next chunk. If a huge block starts there, also reads the first header after that block. Returns false if all
    /// first headers were read already. The caller calls [`persist_first_headers`](Self::persist_first_headers) before it uses the headers.
    pub(super) fn read_next_first_header<P: Pmem>(&mut self, pmem: &P) -> bool {
        let Some((chunk, content)) = self.shared.cursor.next(self.table.scanner(pmem)) else {
            return false;
        };
        let layout = &self.table.layout;
        let is_huge = matches!(content, Content::Huge(..));
        if !self.table.is_new {
            pmem.flush(header_offset(layout, chunk, 1), BLOCK_HEADER_BYTES);
            self.shared.has_unfenced_headers = true;
        }
        match content {
            Content::Free => drop(self.shared.free.insert(chunk)),
            // A huge block ends where this chunk ends.
            Content::Headers(Start::Chain(first)) if first == chunk_lines(layout) => {
                self.set_owner(chunk, ChunkOwner::Covered);
            }
            Content::Headers(start) => drop(self.shared.unscanned.insert(chunk, start)),
            Content::Huge(header, last) => self.add_huge(pmem, chunk, header, last),
        }
        if is_huge && self.shared.cursor.next < self.table.chunk_count() {
            // The chunk in which the block ends is read with it, so that the two chunks are always known together.
            self.read_next_first_header(pmem);
        }
        true
    }

    /// Makes durable the first headers that were read, before they are used.
    ///
    /// # Errors
    /// When the fence fails.
    ///
    /// # Durability
    /// One fence, if a first header was read. It also covers the zeroes over first headers that a killed process left inside a huge block.
    pub(super) fn persist_first_headers<P: Pmem>(&mut self, pmem: &P) -> Result<(), FenceError> {
        let shared = &mut *self.shared;
        if shared.has_unfenced_headers {
            shared.check_fences()?;
            for (offset, word) in shared.stale_headers.drain(..) {
                // A plain store of zero would be wrong: another thread may have stored to the huge block since the header was read.
                if pmem.compare_exchange_u64(offset, word, 0).is_ok() {
                    pmem.flush(offset, BLOCK_HEADER_BYTES);
                }
            }
            shared.fence(pmem)?;
            shared.has_unfenced_headers = false;
        }
        Ok(())
    }

    /// Adds a huge block that starts in `chunk` and ends in the chunk `last`.
    fn add_huge<P: Pmem>(&mut self, pmem: &P, chunk: u64, header: BlockHeader, last: u64) {
        let is_live = header.state == BlockState::Allocated;
        let is_lost = header.state == BlockState::Lost;
        self.shared.huge.insert(chunk, HugeBlock { lines: header.lines, is_live, is_lost });
        self.set_owner(chunk, ChunkOwner::Huge);
        if header.state == BlockState::Free {
            self.shared.quarantine.push_due(chunk_as_u32(chunk), 1..1 + header.lines, Lsn::ZERO);
        }
        for covered in chunk + 1..last {
            self.set_owner(covered, ChunkOwner::Covered);
        }
        if is_live && !self.table.is_new {
            let layout = &self.table.layout;
            // A process that was killed while it grew this block may have left first headers inside the block. These would be used if the block's own
            // header became corrupted, so they are zeroed. If the killed process zeroed them, the zeroes may not be durable, so they are flushed.
            for covered in chunk + 1..=last {
                let (word, header) = read(pmem, layout, covered, 1);
                let (offset, in_chunk) = (header_offset(layout, covered, 1), chunk_lines(layout));
                if header.is_some_and(|header| header.state == BlockState::Free && header.lines < in_chunk) {
                    self.shared.stale_headers.push((offset, word));
                } else {
                    pmem.flush(offset, BLOCK_HEADER_BYTES);
                }
            }
        }
    }

    /// Assigns a shared chunk to an arena: alternately a free and an unscanned chunk, if both exist. Returns false if there is no shared chunk.
    ///
    /// A chunk that was in use before the heap was opened may have free extents, which should be used before new chunks. But a scan takes time, so
    /// only one chunk is scanned for each free chunk that is assigned.
    ///
    /// # Durability
    /// As for [`read_first_headers_through`](Self::read_first_headers_through) and [`scan_into`](Self::scan_into).
    pub(super) fn assign_chunk<P: Pmem>(&mut self, arena: usize, pmem: &P) -> Result<bool, FenceError> {
        let prefers_unscanned = self.shared.is_unscanned_next;
        self.shared.is_unscanned_next = !prefers_unscanned;
        let is_enough = |shared: &SharedChunks| {
            !shared.free.is_empty() || prefers_unscanned && !shared.unscanned.is_empty()
        };
        while !is_enough(&self.shared) && self.read_next_first_header(pmem) {}
        self.persist_first_headers(pmem)?;
        let unscanned = self.shared.unscanned.keys().next().copied();
        match (unscanned, self.shared.free.first().copied()) {
            (Some(chunk), free) if prefers_unscanned || free.is_none() => {
                self.scan_into(arena, pmem, chunk)?;
            }
            (_, Some(chunk)) => {
                self.shared.free.remove(&chunk);
                self.update_has_free_chunk(pmem);
                self.assign(arena, ChunkMap::free(chunk, chunk_lines(&self.table.layout)));
            }
            (_, None) => return Ok(false),
        }
        Ok(true)
    }

    /// Updates [`has_free_chunk`](ChunkTable::has_free_chunk) before a chunk is assigned to an arena. Of the chunks whose first headers were not read
    /// yet, examines only the next, which is needed soon: in a large heap each read costs a page fault.
    fn update_has_free_chunk<P: Pmem>(&self, pmem: &P) {
        let mut ahead = self.shared.cursor;
        let has_free_chunk = !self.shared.free.is_empty()
            || matches!(ahead.next(self.table.scanner(pmem)), Some((_, Content::Free)));
        self.table.has_free_chunk.store(has_free_chunk, Ordering::Release);
    }

    /// If `chunk` is unscanned, scans it and assigns it to an arena.
    ///
    /// # Errors
    /// When the fence fails. The chunk then stays shared.
    ///
    /// # Durability
    /// One fence, because a killed process may have left headers of the chunk that are visible but not durable.
    pub(super) fn scan_into<P: Pmem>(
        &mut self,
        arena: usize,
        pmem: &P,
        chunk: u64,
    ) -> Result<(), FenceError> {
        let Some(&start) = self.shared.unscanned.get(&chunk) else { return Ok(()) };
        let (map, mut corruptions) = ChunkMap::scan(self.table.scanner(pmem), chunk, start);
        if !self.table.is_new {
            map.flush_headers(pmem, &self.table.layout);
            self.shared.fence(pmem)?;
        }
        self.shared.unscanned.remove(&chunk);
        self.shared.corruptions.append(&mut corruptions);
        self.update_has_free_chunk(pmem);
        self.assign(arena, map);
        Ok(())
    }

    /// Assigns `chunk` to an arena if it is a free shared chunk.
    pub(super) fn assign_if_free(&mut self, arena: usize, chunk: u64) {
        if self.shared.free.remove(&chunk) {
            self.table.has_free_chunk.store(!self.shared.free.is_empty(), Ordering::Release);
            self.assign(arena, ChunkMap::free(chunk, chunk_lines(&self.table.layout)));
        }
    }

    /// Assigns a chunk to an arena. The owner is stored with the locks of both the shared chunks and the arena held. So the owner does not change
    /// while either lock is held.
    fn assign(&mut self, arena: usize, map: ChunkMap) {
        let chunk = map.chunk;
        let mut to = self.table.arena(arena);
        let slot = to.insert(map);
        let arena = u32::try_from(arena).expect("at most 65,536 arenas");
        self.set_owner(chunk, ChunkOwner::Arena(ArenaSlot { arena, slot }));
    }

    /// Takes a free chunk from an arena. `None` if a line of it is in use.
    fn take_free(&mut self, from: &mut Arena, slot: u32) -> Option<Box<ChunkMap>> {
        let map = from.remove_free(slot)?;
        self.set_owner(map.chunk, ChunkOwner::Covered);
        Some(map)
    }

    /// Moves a free chunk from one arena to another. Returns false if the first arena has no free chunk.
    pub(super) fn move_free_chunk(&mut self, from: usize, to: usize) -> bool {
        let mut other = self.table.arena(from);
        let free = other.slots.iter().position(|slot| slot.as_ref().is_some_and(|map| map.is_free()));
        let taken = free.and_then(|slot| self.take_free(&mut other, u32::try_from(slot).ok()?));
        let Some(map) = taken else { return false };
        drop(other);
        self.assign(to, *map);
        true
    }

    /// Takes `count` adjacent free chunks, and returns the first. `None` if there are none.
    pub(super) fn take_adjacent(&mut self, count: u64) -> Option<u64> {
        let mut run = 0;
        for chunk in 0..self.table.chunk_count() {
            run = if self.is_free(chunk) { run + 1 } else { 0 };
            if run == count {
                let first = chunk + 1 - count;
                match self.take_chunks(first..chunk + 1) {
                    Ok(()) => return Some(first),
                    // Another thread has meanwhile allocated in the chunk `used`.
                    Err(used) => run = chunk - used,
                }
            }
        }
        None
    }

    fn is_free(&self, chunk: u64) -> bool {
        match self.table.owner(chunk) {
            ChunkOwner::Arena(at) => self.table.arena(at.arena as usize).map(at.slot).is_free(),
            ChunkOwner::Shared => self.shared.free.contains(&chunk),
            ChunkOwner::Covered | ChunkOwner::Huge => false,
        }
    }

    /// Takes these chunks, or none of them.
    ///
    /// # Errors
    /// The first chunk that is in use.
    pub(super) fn take_chunks(&mut self, chunks: Range<u64>) -> Result<(), u64> {
        let table = self.table;
        for chunk in chunks.clone() {
            let is_taken = match table.owner(chunk) {
                ChunkOwner::Arena(at) => {
                    self.take_free(&mut table.arena(at.arena as usize), at.slot).is_some()
                }
                _ => self.shared.free.remove(&chunk),
            };
            if !is_taken {
                self.return_chunks(chunks.start..chunk);
                return Err(chunk);
            }
            self.set_owner(chunk, ChunkOwner::Covered);
        }
        table.has_free_chunk.store(!self.shared.free.is_empty(), Ordering::Release);
        Ok(())
    }

    /// Makes taken chunks shared again. A chunk may consist of several free blocks, so these chunks count as unscanned.
    pub(super) fn return_chunks(&mut self, chunks: Range<u64>) {
        for chunk in chunks {
            self.share(chunk, Start::Chain(1));
        }
    }

    /// Makes a chunk an unscanned shared chunk, whose headers start at `start`.
    pub(super) fn share(&mut self, chunk: u64, start: Start) {
        self.shared.unscanned.insert(chunk, start);
        self.set_owner(chunk, ChunkOwner::Shared);
    }

    /// Makes a chunk a free shared chunk.
    pub(super) fn share_free(&mut self, chunk: u64) {
        self.shared.free.insert(chunk);
        self.set_owner(chunk, ChunkOwner::Shared);
    }

    /// Splits a free huge block into chunks.
    ///
    /// # Errors
    /// When a fence fails or has failed.
    ///
    /// # Durability
    /// Two fences. A crash leaves either the whole free block or its chunks.
    pub(super) fn split<P: Pmem>(&mut self, pmem: &P, chunk: u64, lines: u32) -> Result<(), FenceError> {
        let layout = &self.table.layout;
        self.shared.check_fences()?;
        split_inner(pmem, layout, chunk, lines);
        self.shared.fence(pmem)?;
        split_off_first(pmem, layout, chunk);
        // DURABILITY POINT
        self.shared.fence(pmem)?;
        self.shared.huge.remove(&chunk);
        let (last, line) = end_of(layout, chunk, lines);
        (chunk..last).for_each(|chunk| self.share_free(chunk));
        self.free_front(last, line);
        Ok(())
    }

    /// Frees the lines before `line` of a chunk in which a huge block ended. From now on the chunk's chain starts at line 1.
    pub(super) fn free_front(&mut self, chunk: u64, line: u32) {
        match self.table.owner(chunk) {
            // The huge block ended at the chunk's end.
            ChunkOwner::Covered => self.share_free(chunk),
            ChunkOwner::Shared => {
                self.shared.unscanned.entry(chunk).and_modify(|start| *start = Start::Chain(1));
            }
            ChunkOwner::Arena(ArenaSlot { arena, slot }) if line > 1 => {
                let mut arena = self.table.arena(arena as usize);
                let map = arena.map(slot);
                map.first = 1;
                map.starts.set(1);
                arena.release(slot, 1..line);
            }
            ChunkOwner::Arena(_) | ChunkOwner::Huge => {}
        }
    }
}

#[inline]
fn chunk_as_usize(chunk: u64) -> usize {
    usize::try_from(chunk).expect("fewer than 2^32 chunks")
}

pub(super) fn chunk_as_u32(chunk: u64) -> u32 {
    u32::try_from(chunk).expect("fewer than 2^32 chunks")
}

/// The number of the calling thread. It distributes the threads of a process over the arenas. Only speed depends on this number.
fn thread_number() -> usize {
    // Not one of loom's atomics, because the counter outlives a heap.
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
    }
    NUMBER.with(|number| {
        number.get().unwrap_or_else(|| {
            let new = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            number.set(Some(new));
            new
        })
    })
}
