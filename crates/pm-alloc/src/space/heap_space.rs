//! The space of a heap, as its transactions use it: reserving, allocating and freeing.

use super::arena::{Arena, DRAIN_STEP, Purpose, Request};
use super::chunk_table::{ChunkOwner, ChunkTable, LockedChunks, SpaceOptions, chunk_number};
use super::error::{Corruption, FreeError, SpaceError};
use super::frozen::Frozen;
use super::headers::{align, chunk_lines, end_word, header_word, store_flushed};
use super::held::{Freeing, HeldBlock, HeldFreeing};
use super::report::{CheckReport, SpaceStats};
use super::reservation::{ArenaSlot, Extent, Reservation, whole_up_to};
use super::{huge, repair};
use crate::format::{BlockState, LINE_BYTES, Lsn};
use crate::layout::Layout;
use crate::log::LaneGuard;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard, lock, yield_now};
use core::ops::Range;
use pm_core::{FenceError, Pmem};

/// The allocator of a heap: which lines are free, reserved, allocated and quarantined.
#[derive(Debug)]
pub(crate) struct Space {
    pub(super) chunks: ChunkTable,
    pub(super) gate: Gate,
}

/// Holds back new calls while a call that found no room retries until the calls in progress have ended.
#[derive(Debug)]
pub(super) struct Gate {
    is_closed: AtomicBool,
    turn: Mutex<()>,
}

/// The gate is closed until this is dropped.
#[derive(Debug)]
pub(super) struct ClosedGate<'g> {
    gate: &'g Gate,
    _turn: MutexGuard<'g, ()>,
}

impl Gate {
    /// Waits until the gate is open.
    #[inline]
    pub(super) fn pass(&self) {
        if self.is_closed.load(Ordering::Acquire) {
            drop(lock(&self.turn));
        }
    }

    /// Closes the gate.
    pub(super) fn close(&self) -> ClosedGate<'_> {
        let turn = lock(&self.turn);
        self.is_closed.store(true, Ordering::Release);
        ClosedGate { gate: self, _turn: turn }
    }
}

impl Drop for ClosedGate<'_> {
    fn drop(&mut self) {
        self.gate.is_closed.store(false, Ordering::Release);
    }
}

/// An allocated block, and its place.
pub(super) struct FoundBlock {
    /// `None` for a huge block.
    slot: Option<ArenaSlot>,
    chunk: u64,
    pub(super) block: Range<u32>,
    coalesced: Range<u32>,
    is_unreachable: bool,
}

impl Space {
    /// Makes chunks that are one free block each.
    ///
    /// # Durability
    /// Stores and flushes. They are durable with the caller's next fence.
    pub(crate) fn format_chunks<P: Pmem>(pmem: &P, layout: &Layout, chunks: Range<u64>) {
        for chunk in chunks {
            store_flushed(pmem, header_word(layout, chunk, BlockState::Free, 1..chunk_lines(layout)));
            store_flushed(pmem, end_word(layout, chunk));
        }
    }

    /// Opens the space of a heap, after its recovery. Reads nothing: a chunk is scanned when it is first needed.
    pub(crate) fn open(layout: Layout, chunk_count: u64, options: SpaceOptions) -> Self {
        let gate = Gate { is_closed: AtomicBool::new(false), turn: Mutex::new(()) };
        Self { chunks: ChunkTable::new(layout, chunk_count, options), gate }
    }

    /// Adds chunks, so that there are `chunk_count`.
    pub(crate) fn extend(&mut self, chunk_count: u64) {
        self.chunks.extend(chunk_count);
    }

    /// Chunks of the heap.
    pub(crate) fn chunk_count(&self) -> u64 {
        self.chunks.chunk_count()
    }

    /// Reserves a free extent with room for a block of `lines` lines at a multiple of `align_bytes`, from the calling
    /// thread's arena if that has one.
    ///
    /// Freed blocks are reused only if they were freed up to the LSN `checkpoint_lsn`.
    ///
    /// # Errors
    /// When there is none, or there cannot be one; see [`SpaceError`].
    ///
    /// # Panics
    /// When `lines` is zero, or `align_bytes` no power of two.
    ///
    /// # Durability
    /// Stores nothing, except where a freed huge block is split into chunks, with two fences; after a crash the same space is free. Where
    /// a killed process used the heap before, the headers that are read are made durable, at one fence a chunk.
    #[inline]
    pub(crate) fn reserve<P: Pmem>(
        &self,
        pmem: &P,
        lines: u64,
        align_bytes: u64,
        checkpoint_lsn: Lsn,
    ) -> Result<Reservation, SpaceError> {
        self.reserve_in(self.chunks.own_arena(), pmem, lines, align_bytes, checkpoint_lsn)
    }

    /// As [`reserve`](Self::reserve), from the chunks of the calling thread's arena only. `None` when these have no room.
    ///
    /// # Panics
    /// As [`reserve`](Self::reserve).
    #[inline]
    pub(crate) fn reserve_own<P: Pmem>(
        &self,
        pmem: &P,
        lines: u64,
        align_bytes: u64,
        checkpoint_lsn: Lsn,
    ) -> Option<Reservation> {
        assert!(lines > 0, "a block has at least one line");
        assert!(align_bytes.is_power_of_two(), "alignments are powers of two");
        if lines >= self.layout().chunk_lines() {
            return None;
        }
        let request = Request { is_for_transaction: true, ..self.request(lines, align_bytes).ok()? };
        let extent = self.reserve_of(self.chunks.own_arena(), pmem, request, checkpoint_lsn)?;
        Some(Reservation::new(self.layout(), extent))
    }

    /// As [`reserve`](Self::reserve), from an arena of the caller's choice.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    #[inline]
    pub(crate) fn reserve_in<P: Pmem>(
        &self,
        arena: usize,
        pmem: &P,
        lines: u64,
        align_bytes: u64,
        checkpoint_lsn: Lsn,
    ) -> Result<Reservation, SpaceError> {
        assert!(lines > 0, "a block has at least one line");
        assert!(align_bytes.is_power_of_two(), "alignments are powers of two");
        if lines >= self.layout().chunk_lines() {
            return huge::reserve(&self.chunks, arena, pmem, lines, align_bytes, checkpoint_lsn);
        }
        // With a log, several blocks would have to be joined first, which costs more than a header.
        let is_logged = checkpoint_lsn != Lsn::MAX;
        let request = self.request(lines, align_bytes)?;
        let is_unaligned = request.roomy == request.lines;
        let whole_up_to = if is_logged || !is_unaligned { 0 } else { whole_up_to(request.lines) };
        let request = Request { whole_up_to, is_for_transaction: is_logged, ..request };
        let extent = match self.reserve_of(arena, pmem, request, checkpoint_lsn) {
            Some(extent) => extent,
            None => self.reserve_elsewhere(arena, pmem, request, checkpoint_lsn)?,
        };
        Ok(Reservation::new(self.layout(), extent))
    }

    /// The reservation is one free block: its [headers](Reservation::joining_headers) are durable, stored with this LSN. Returns the lines
    /// behind its trim. If storing the headers failed, the caller [returns](Self::return_unused) the reservation.
    pub(crate) fn joined<P: Pmem>(&self, pmem: &P, reservation: &mut Reservation, lsn: Lsn) {
        reservation.joined(pmem, lsn);
        if let Some(ArenaSlot { arena, slot }) = reservation.extent.slot
            && reservation.extent.trim.is_some()
        {
            self.chunks.arena(arena as usize).return_trimmed(slot, reservation);
        }
    }

    /// Returns a reservation, for a transaction that did not commit.
    pub(crate) fn return_unused(&self, reservation: Reservation) {
        match reservation.extent.slot {
            Some(ArenaSlot { arena, slot }) => {
                let now = self.chunks.clock.now();
                self.chunks.arena(arena as usize).return_unused(slot, &reservation, now);
            }
            None => huge::return_unused(&mut self.chunks.lock(), &reservation),
        }
    }

    /// Leaves what was reserved out of use until the heap is opened again: whether its headers are stored is not known.
    pub(crate) fn abandon(&self, reservation: Reservation) {
        match reservation.extent.slot {
            Some(ArenaSlot { arena, .. }) => self.chunks.arena(arena as usize).abandon(&reservation),
            None => self.chunks.lock().shared.reservation_count -= 1,
        }
    }

    /// The transaction committed with this LSN, and the headers are stored in place: carved blocks are allocated, and the rest is free.
    pub(crate) fn settle(&self, reservation: Reservation, lsn: Lsn) {
        match reservation.extent.slot {
            Some(ArenaSlot { arena, slot }) => {
                let now = self.chunks.clock.now();
                self.chunks.arena(arena as usize).settle(slot, &reservation, lsn, now);
            }
            None => huge::settle(&mut self.chunks.lock(), &reservation),
        }
    }

    /// Takes a block of `lines` lines out of the calling thread's arena. If it `is_filled`, something is written into the block before its
    /// header is stored. `None` when there is no such block in that arena.
    ///
    /// The lane is the witness of the lock order: no thread acquires a lane with an arena's lock held.
    #[inline]
    pub(crate) fn hold_block<P: Pmem>(
        &self,
        _lane: &LaneGuard<'_>,
        pmem: &P,
        lines: u64,
        checkpoint_lsn: Lsn,
        is_filled: bool,
    ) -> Option<HeldBlock<'_>> {
        if lines >= self.layout().chunk_lines() {
            return None;
        }
        let lines = u32::try_from(lines).ok()?;
        let mut arena = self.chunks.arena(self.chunks.own_arena());
        arena.drain_quarantine(checkpoint_lsn, self.chunks.clock.now(), DRAIN_STEP);
        let (slot, chunk, Range { start, end }, is_several) = arena.reserve_block(pmem, lines)?;
        let block = start..start + lines;
        let held = HeldBlock { arena, slot, chunk, block, end, is_several, is_settled: false };
        // Several free blocks would have to be joined first: what is written into the block overwrites their headers.
        if is_several && is_filled { None } else { Some(held) }
    }

    /// Takes an allocated block to free it. `None` when no arena has the block, or it has no header of its own to be stored.
    ///
    /// The lane is the witness of the lock order, as for [`hold_block`](Self::hold_block).
    ///
    /// # Errors
    /// As [`begin_free`](Self::begin_free).
    #[inline]
    pub(crate) fn hold_freeing<P: Pmem>(
        &self,
        _lane: &LaneGuard<'_>,
        pmem: &P,
        payload: u64,
    ) -> Result<Option<HeldFreeing<'_>>, FreeError> {
        let now = self.chunks.clock.now();
        let (chunk, line) = self.chunks.locate(payload)?;
        let owner = self.chunks.owner(chunk);
        let ChunkOwner::Arena(ArenaSlot { arena, slot }) = owner else { return Ok(None) };
        let mut arena = self.chunks.arena(arena as usize);
        // In an unreachable extent there is no header to commit.
        if self.chunks.owner(chunk) != owner || arena.map(slot).unreachable_from <= line {
            return Ok(None);
        }
        let (block, coalesced) = arena.find(pmem, slot, line, self.coalescing())?;
        Ok(Some(HeldFreeing { arena, slot, chunk, block, coalesced, now, is_settled: false }))
    }

    /// Begins to free the block whose payload starts at `payload`, after its header was checked. Until this is finished
    /// or cancelled the block is neither allocated nor free, and freeing it again is an error.
    ///
    /// # Errors
    /// When no allocated block starts there; see [`FreeError`].
    pub(crate) fn begin_free<P: Pmem>(&self, pmem: &P, payload: u64) -> Result<Freeing, FreeError> {
        self.begin_free_for(pmem, payload, self.coalescing())
    }

    /// As [`begin_free`](Self::begin_free), of the block alone: its free neighbours stay as they are.
    ///
    /// # Errors
    /// As [`begin_free`](Self::begin_free).
    pub(super) fn begin_free_alone<P: Pmem>(&self, pmem: &P, payload: u64) -> Result<Freeing, FreeError> {
        self.begin_free_for(pmem, payload, Purpose::Free)
    }

    /// The transaction was rolled back: the block is allocated as before.
    pub(crate) fn cancel_free(&self, freeing: Freeing) {
        match freeing.slot {
            Some(ArenaSlot { arena, slot }) => {
                self.chunks.arena(arena as usize).cancel_free(slot, freeing.block, freeing.coalesced);
            }
            None => {
                if let Some(block) = self.chunks.lock().shared.huge.get_mut(&freeing.chunk) {
                    block.is_live = true;
                }
            }
        }
    }

    /// The transaction committed with this LSN, and the header is stored in place: the block is reusable when the checkpoint LSN has
    /// reached the LSN, and its quarantine is over.
    pub(crate) fn finish_free(&self, freeing: Freeing, lsn: Lsn) {
        let now = self.chunks.clock.now();
        match freeing.slot {
            Some(ArenaSlot { arena, slot }) => {
                self.chunks.arena(arena as usize).finish_free(slot, freeing.coalesced, lsn, now);
            }
            None => {
                let at = chunk_number(freeing.chunk);
                self.chunks.lock().shared.quarantine.push(at, freeing.block, lsn, now);
            }
        }
    }

    /// How many bytes of payload the block has that starts at `payload`.
    ///
    /// # Errors
    /// When no allocated block starts there; see [`FreeError`].
    pub(crate) fn usable_bytes<P: Pmem>(&self, pmem: &P, payload: u64) -> Result<u64, FreeError> {
        let block = self.find(pmem, payload, Purpose::Look)?.block;
        Ok(Layout::usable_bytes(block.end - block.start))
    }

    /// Scans up to `chunks` chunks that were not scanned yet, and returns how many are left.
    ///
    /// # Errors
    /// When a fence fails.
    ///
    /// # Durability
    /// One fence for each chunk, for what a killed process may have left visible and not durable.
    pub(crate) fn scan_some<P: Pmem>(&self, pmem: &P, chunks: usize) -> Result<usize, FenceError> {
        let arena = self.chunks.own_arena();
        for _ in 0..chunks {
            if !self.chunks.lock().scan_next(arena, pmem)? {
                break;
            }
        }
        Ok(self.chunks.lock().shared.unscanned_count(self.chunk_count()))
    }

    /// Figures.
    pub(crate) fn stats(&self) -> SpaceStats {
        let in_chunk = chunk_lines(&self.chunks.layout);
        let mut stats = SpaceStats { chunks: self.chunk_count(), ..SpaceStats::default() };
        let mut scanned = 0;
        let bytes = |lines: u32| u64::from(lines) * LINE_BYTES;
        for arena in &self.chunks.arenas {
            let arena = arena.lock_intact();
            for map in arena.slots.iter().flatten() {
                scanned += 1;
                stats.free_bytes += bytes(map.free_lines);
                stats.used_bytes += bytes(in_chunk - map.free_lines);
                stats.lost_bytes += map.lost.iter().map(|lost| bytes(lost.end - lost.start)).sum::<u64>();
            }
            stats.add_quarantine(&arena.quarantine);
            stats.reservations += u64::from(arena.reservation_count);
        }
        let LockedChunks { shared, .. } = &self.chunks.lock();
        let free_chunks = shared.free.len() as u64;
        stats.unscanned_chunks = shared.unscanned_count(self.chunk_count()) as u64;
        stats.free_bytes += free_chunks * bytes(in_chunk - 1);
        stats.used_bytes += free_chunks * LINE_BYTES;
        stats.add_quarantine(&shared.quarantine);
        stats.reservations += u64::from(shared.reservation_count);
        let lost = shared.huge.values().filter(|block| block.is_lost);
        stats.lost_bytes += lost.map(|block| bytes(block.lines)).sum::<u64>();
        let others = scanned + stats.unscanned_chunks + free_chunks;
        stats.covered_chunks = stats.chunks.saturating_sub(others);
        stats.used_bytes += stats.covered_chunks * self.chunks.layout.chunk_bytes;
        stats
    }

    /// The corrupted headers found since the last call.
    pub(crate) fn take_corruption(&self) -> Vec<Corruption> {
        let mut corruptions = core::mem::take(&mut self.chunks.lock().shared.corruptions);
        for arena in &self.chunks.arenas {
            corruptions.append(&mut arena.lock_intact().corruptions);
        }
        corruptions
    }

    /// Checks all headers, those of unscanned chunks too. To be called while no thread changes the heap.
    pub(crate) fn check<P: Pmem>(&self, pmem: &P) -> CheckReport {
        CheckReport::of(pmem, self.layout(), self.chunk_count(), |_| ())
    }

    /// The header that repairs the chain at a corruption, and the offset where to store it. The lines below it are never allocated again.
    /// The caller checkpoints the log, then stores the header durably without the log before anything else: a logged header could be
    /// replayed over the contents of a later block.
    ///
    /// `None` if the corruption is gone, or is not of a header.
    ///
    /// # Errors
    /// When a fence fails that makes the headers of the chunk durable.
    pub(crate) fn repair<P: Pmem>(
        &self,
        pmem: &P,
        corruption: &Corruption,
    ) -> Result<Option<(u64, u64)>, FenceError> {
        repair::repair(&mut self.chunks.lock(), pmem, corruption)
    }

    /// Freezes the space, to copy it. If the log `is_sound`, the headers that are read are made durable. After a failed fence nothing is
    /// stored.
    pub(crate) fn freeze<P: Pmem>(&self, pmem: &P, is_sound: bool) -> Frozen<'_> {
        Frozen::new(&self.chunks, pmem, is_sound)
    }

    /// Makes all headers durable that this process has stored without flushing them: if a part of a chain reverted, durable blocks behind
    /// it would be lost.
    ///
    /// # Errors
    /// When the fence fails, or one failed before.
    ///
    /// # Durability
    /// One fence, and a line for each header of the chunks that were read; nothing if none was.
    pub(crate) fn persist_headers<P: Pmem>(&self, pmem: &P) -> Result<(), FenceError> {
        Frozen::persist_headers(&self.chunks, pmem)
    }

    /// Whether no lock is held or was broken by a panic. A guard may have been forgotten.
    pub(crate) fn is_intact(&mut self) -> bool {
        self.chunks.is_intact()
    }

    pub(super) const fn layout(&self) -> &Layout {
        &self.chunks.layout
    }

    /// Of an arena, after its quarantine was drained by a step.
    #[inline]
    fn reserve_of<P: Pmem>(
        &self,
        arena: usize,
        pmem: &P,
        request: Request,
        checkpoint_lsn: Lsn,
    ) -> Option<Extent> {
        let mut arena = self.chunks.arena(arena);
        arena.drain_quarantine(checkpoint_lsn, self.chunks.clock.now(), DRAIN_STEP);
        self.reserve_from(&mut arena, pmem, request, true)
    }

    #[inline]
    fn reserve_from<P: Pmem>(
        &self,
        arena: &mut Arena,
        pmem: &P,
        request: Request,
        prefers_close: bool,
    ) -> Option<Extent> {
        let extent = arena.reserve(pmem, request, prefers_close)?;
        Some(self.trim_if_last(arena, extent, request))
    }

    /// A transaction keeps its reservation until it ends. So it does not get the whole of the last long extent.
    #[inline]
    fn trim_if_last(&self, arena: &mut Arena, extent: Extent, request: Request) -> Extent {
        if !request.is_for_transaction || self.chunks.has_free_chunk() {
            return extent;
        }
        Extent { trim: arena.trim(&extent, request), ..extent }
    }

    /// Where there is no room in the own arena: in other chunks, in other arenas, in the quarantine.
    #[cold]
    fn reserve_elsewhere<P: Pmem>(
        &self,
        own: usize,
        pmem: &P,
        request: Request,
        checkpoint_lsn: Lsn,
    ) -> Result<Extent, SpaceError> {
        loop {
            if let Some(extent) = self.reserve_in_more_chunks(own, pmem, request, checkpoint_lsn)? {
                return Ok(extent);
            }
            let count = self.chunks.arenas.len();
            for other in (own + 1..own + count).map(|arena| arena % count) {
                let is_moved = self.chunks.lock().move_free_chunk(other, own);
                if is_moved
                    && let Some(extent) = self.reserve_from(&mut self.chunks.arena(own), pmem, request, false)
                {
                    return Ok(extent);
                }
                if let Some(extent) = self.reserve_from(&mut self.chunks.arena(other), pmem, request, false) {
                    return Ok(extent);
                }
            }
            let (found, is_trimming) = self.search(own, pmem, request, checkpoint_lsn);
            if !is_trimming || found.is_ok() {
                return found;
            }
            // Another thread is trimming its reservation, and returns the rest soon. It needs no lock that this thread holds.
            yield_now();
        }
    }

    /// In shared chunks, and then in all of the own arena.
    fn reserve_in_more_chunks<P: Pmem>(
        &self,
        own: usize,
        pmem: &P,
        request: Request,
        checkpoint_lsn: Lsn,
    ) -> Result<Option<Extent>, FenceError> {
        let supply = || self.chunks.lock().supply(own, pmem);
        let split = || huge::split_quarantined(&mut self.chunks.lock(), pmem, checkpoint_lsn);
        split()?;
        // When all chunks are known, huge blocks may have become reusable.
        while supply()? || split()? {
            if let Some(extent) = self.reserve_from(&mut self.chunks.arena(own), pmem, request, true) {
                return Ok(Some(extent));
            }
        }
        let mut own = self.chunks.arena(own);
        own.is_exhausted = true;
        Ok(self.reserve_from(&mut own, pmem, request, false))
    }

    /// In the maps of all arenas, while no chunk changes owners. The second value says whether a reservation is being trimmed in an arena
    /// without room.
    fn search<P: Pmem>(
        &self,
        own: usize,
        pmem: &P,
        request: Request,
        checkpoint_lsn: Lsn,
    ) -> (Result<Extent, SpaceError>, bool) {
        let LockedChunks { shared, .. } = self.chunks.lock();
        let (mut quarantined, mut held) = (!shared.quarantine.is_empty(), shared.reservation_count > 0);
        let mut is_trimming = false;
        let count = self.chunks.arenas.len();
        for arena in (own..own + count).map(|arena| arena % count) {
            let mut arena = self.chunks.arena(arena);
            arena.drain_quarantine(checkpoint_lsn, self.chunks.clock.now(), usize::MAX);
            if let Some(extent) = arena.search(pmem, request) {
                return (Ok(self.trim_if_last(&mut arena, extent, request)), false);
            }
            quarantined |= !arena.quarantine.is_empty();
            held |= arena.reservation_count > 0;
            is_trimming |= arena.trim_count > 0;
        }
        (Err(SpaceError::Full { lines: u64::from(request.lines), quarantined, held }), is_trimming)
    }

    /// The request for a block, if a chunk can contain it.
    #[inline]
    fn request(&self, lines: u64, align_bytes: u64) -> Result<Request, SpaceError> {
        let layout = self.layout();
        let end = chunk_lines(layout);
        let possible = || {
            let lines = u32::try_from(lines).ok()?;
            let fits = align_bytes <= LINE_BYTES
                || align_bytes <= layout.chunk_bytes
                    && align(layout, 0, 1, align_bytes)?.checked_add(lines)? <= end;
            let most = u32::try_from(align_bytes / LINE_BYTES).ok()?.saturating_sub(1);
            let roomy = lines.saturating_add(most);
            fits.then_some(Request { lines, align_bytes, roomy, whole_up_to: 0, is_for_transaction: false })
        };
        possible().ok_or(SpaceError::Alignment { lines, align_bytes })
    }

    /// The purpose of a freeing: where quarantine takes long, free neighbours are left out of it.
    #[inline]
    const fn coalescing(&self) -> Purpose {
        if self.chunks.clock.is_used() { Purpose::Free } else { Purpose::FreeAndCoalesce }
    }

    fn begin_free_for<P: Pmem>(
        &self,
        pmem: &P,
        payload: u64,
        purpose: Purpose,
    ) -> Result<Freeing, FreeError> {
        let FoundBlock { slot, chunk, block, coalesced, is_unreachable } =
            self.find(pmem, payload, purpose)?;
        Ok(match slot {
            Some(slot) if is_unreachable => Freeing::unreachable(slot, chunk, block),
            slot => Freeing::new(self.layout(), slot, chunk, block, coalesced),
        })
    }

    /// The allocated block that starts at `offset`, which is not live any more if it is to be freed.
    fn find<P: Pmem>(&self, pmem: &P, offset: u64, purpose: Purpose) -> Result<FoundBlock, FreeError> {
        let (chunk, line) = self.chunks.locate(offset)?;
        loop {
            let owner = self.chunks.owner(chunk);
            match owner {
                ChunkOwner::Arena(at) => {
                    let mut arena = self.chunks.arena(at.arena as usize);
                    if self.chunks.owner(chunk) == owner {
                        let (block, coalesced) = arena.find(pmem, at.slot, line, purpose)?;
                        let is_unreachable = arena.map(at.slot).unreachable_from <= line;
                        return Ok(FoundBlock { slot: Some(at), chunk, block, coalesced, is_unreachable });
                    }
                }
                ChunkOwner::Huge if line == 1 => {
                    let mut chunks = self.chunks.lock();
                    if self.chunks.owner(chunk) == owner {
                        let lines = huge::find(&mut chunks, pmem, chunk, purpose != Purpose::Look)?;
                        let block = line..line + lines;
                        let coalesced = block.clone();
                        return Ok(FoundBlock { slot: None, chunk, block, coalesced, is_unreachable: false });
                    }
                }
                ChunkOwner::Huge | ChunkOwner::Covered => return Err(FreeError::NotABlock { offset }),
                ChunkOwner::Shared => {
                    let mut chunks = self.chunks.lock();
                    chunks.discover_through(pmem, chunk)?;
                    if chunks.shared.free.contains(&chunk) {
                        return Err(FreeError::AlreadyFree { offset });
                    }
                    // Scans nothing if a huge block turned out to cover the chunk.
                    chunks.scan_into(self.chunks.own_arena(), pmem, chunk)?;
                }
            }
        }
    }
}
