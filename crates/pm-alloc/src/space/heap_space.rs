//! The space of a heap, as transactions use it: reserving, allocating and freeing.

use super::arena::{Arena, DRAIN_STEP, Purpose, Request};
use super::chunk_table::{ChunkOwner, ChunkTable, LockedChunks, SpaceOptions, chunk_as_u32};
use super::error::{Corruption, FreeError, SpaceError};
use super::frozen::Frozen;
use super::headers::{HeaderWord, align, chunk_lines, end_word, header_word, store_flushed};
use super::report::{CheckReport, SpaceStats};
use super::reservation::{ArenaSlot, Extent, Reservation, max_allocated_lines};
use super::{huge, repair};
use crate::format::{BlockState, LINE_BYTES, Lsn};
use crate::layout::Layout;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard, lock, yield_now};
use core::ops::Range;
use pm_core::{FenceError, Pmem};

/// The allocator of a heap: which lines are free, reserved, allocated and quarantined.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) chunks: ChunkTable,
    pub(super) gate: Gate,
}

/// A gate that unlogged calls pass before they reserve. A call that finds no room closes it, and retries until the calls in progress have ended.
#[derive(Debug)]
pub(super) struct Gate {
    is_closed: AtomicBool,
    turn: Mutex<()>,
}

/// A guard that keeps the gate closed until the guard is dropped.
#[derive(Debug)]
pub(super) struct ClosedGate<'g> {
    gate: &'g Gate,
    _turn: MutexGuard<'g, ()>,
}

impl Gate {
    #[inline]
    pub(super) fn pass(&self) {
        if self.is_closed.load(Ordering::Acquire) {
            drop(lock(&self.turn));
        }
    }

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

/// A block that a transaction is freeing, until [`Space::finish_free`] or [`Space::cancel_free`].
#[derive(Debug)]
#[must_use = "the block is neither allocated nor free before this is finished or cancelled"]
pub(crate) struct Freeing {
    /// `None` for a huge block, whose first chunk is `chunk`.
    slot: Option<ArenaSlot>,
    chunk: u64,
    block: Range<u32>,
    /// The block and its free neighbours, which become one free block.
    coalesced: Range<u32>,
    header: Option<HeaderWord>,
}

impl Freeing {
    #[inline]
    fn new(
        layout: &Layout,
        slot: Option<ArenaSlot>,
        chunk: u64,
        block: Range<u32>,
        coalesced: Range<u32>,
    ) -> Self {
        let header = Some(header_word(layout, chunk, BlockState::Free, coalesced.clone()));
        Self { slot, chunk, block, coalesced, header }
    }

    /// The freeing of a block in an unreachable extent.
    const fn unreachable(slot: ArenaSlot, chunk: u64, block: Range<u32>) -> Self {
        Self { slot: Some(slot), chunk, coalesced: block.start..block.end, block, header: None }
    }

    /// The header to store when the transaction commits: that of the free block that will consist of the block and its free neighbours. `None` in an
    /// unreachable extent: there the header in place may be that of a former block, and lie inside another allocated block.
    pub(crate) const fn header(&self) -> Option<HeaderWord> {
        self.header
    }
}

struct FoundBlock {
    /// `None` for a huge block.
    slot: Option<ArenaSlot>,
    chunk: u64,
    block: Range<u32>,
    coalesced: Range<u32>,
    is_unreachable: bool,
}

impl Space {
    /// Formats chunks: each chunk becomes one free block.
    ///
    /// # Durability
    /// Stores and flushes. The caller's next fence makes the chunks durable.
    pub(crate) fn format_chunks<P: Pmem>(pmem: &P, layout: &Layout, chunks: Range<u64>) {
        for chunk in chunks {
            store_flushed(pmem, header_word(layout, chunk, BlockState::Free, 1..chunk_lines(layout)));
            store_flushed(pmem, end_word(layout, chunk));
        }
    }

    /// Opens the space of a heap after its recovery. Reads no header: a chunk is scanned when it is first needed.
    pub(crate) fn open(layout: Layout, chunk_count: u64, options: SpaceOptions) -> Self {
        let gate = Gate { is_closed: AtomicBool::new(false), turn: Mutex::new(()) };
        Self { chunks: ChunkTable::new(layout, chunk_count, options), gate }
    }

    /// Makes room for so many chunks.
    pub(crate) fn make_room(&mut self, chunk_count: u64) {
        self.chunks.make_room(chunk_count);
    }

    /// Adds chunks, which are free and durable, up to a total of `chunk_count`. There is [room](Self::make_room) for them. Other threads may use the heap.
    pub(crate) fn extend(&self, chunk_count: u64) {
        self.chunks.extend(chunk_count);
    }

    pub(crate) fn chunk_count(&self) -> u64 {
        self.chunks.chunk_count()
    }

    /// Reserves a free extent with room for a block of `lines` lines at a multiple of `align_bytes`, preferably from the calling thread's arena. A
    /// freed block is reused only if the LSN of the commit that freed it is at most `checkpoint_lsn`.
    ///
    /// # Errors
    /// When there is no such extent, or there cannot be one in a heap with this layout; see [`SpaceError`].
    ///
    /// # Panics
    /// When `lines` is zero or `align_bytes` is not a power of two.
    ///
    /// # Durability
    /// Stores nothing, unless a freed huge block is split into chunks. A split costs two fences, and a crash during it loses no free space. If
    /// another process created the heap, the headers that are read are made durable, at one fence for each chunk.
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

    /// [Reserves](Self::reserve) from the calling thread's arena only. `None` if this arena has no room.
    ///
    /// # Panics
    /// As for [`reserve`](Self::reserve).
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
        let extent = self.drain_and_reserve(self.chunks.own_arena(), pmem, request, checkpoint_lsn)?;
        Some(Reservation::new(self.layout(), extent))
    }

    /// [Reserves](Self::reserve) preferably from this arena.
    ///
    /// # Errors
    /// As for [`reserve`](Self::reserve).
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
        // With a log, no run is searched for: joining its free blocks costs more than storing a header for the rest of one longer free block.
        let is_logged = checkpoint_lsn != Lsn::MAX;
        let request = self.request(lines, align_bytes)?;
        let is_unaligned = request.lines_with_padding == request.lines;
        let run_lines_max = if is_logged || !is_unaligned { 0 } else { max_allocated_lines(request.lines) };
        let request = Request { run_lines_max, is_for_transaction: is_logged, ..request };
        let extent = match self.drain_and_reserve(arena, pmem, request, checkpoint_lsn) {
            Some(extent) => extent,
            None => self.reserve_elsewhere(arena, pmem, request, checkpoint_lsn)?,
        };
        Ok(Reservation::new(self.layout(), extent))
    }

    /// Records that the reservation is one free block, and frees the lines from the trim line on. For a huge block, also stores zeroes, which the
    /// caller fences: see [`Reservation::finish_join`]. Called after the [headers](Reservation::join_headers) were made durable; `lsn` is zero
    /// unless they were logged. If the caller has not stored all headers, it [returns](Self::return_unused) the reservation instead.
    pub(crate) fn finish_join<P: Pmem>(&self, pmem: &P, reservation: &mut Reservation, lsn: Lsn) {
        reservation.finish_join(pmem, lsn);
        if let Some(ArenaSlot { arena, slot }) = reservation.extent.slot
            && reservation.extent.trim_line.is_some()
        {
            self.chunks.arena(arena as usize).return_trimmed(slot, reservation);
        }
    }

    /// Returns a reservation of which nothing was allocated, because its transaction did not commit, or has freed all new blocks again.
    pub(crate) fn return_unused(&self, reservation: Reservation) {
        match reservation.extent.slot {
            Some(ArenaSlot { arena, slot }) => {
                let now = self.chunks.clock.now();
                self.chunks.arena(arena as usize).return_unused(slot, &reservation, now);
            }
            None => huge::return_unused(&mut self.chunks.lock(), &reservation),
        }
    }

    /// Leaves the reserved lines in use until the next open. Called if it is unknown whether their headers are durable.
    pub(crate) fn abandon(&self, reservation: Reservation) {
        match reservation.extent.slot {
            Some(ArenaSlot { arena, .. }) => self.chunks.arena(arena as usize).abandon(&reservation),
            None => self.chunks.lock().shared.reservation_count -= 1,
        }
    }

    /// Settles a reservation whose transaction has committed with this LSN, and whose headers are in place. Carved blocks become allocated, and the
    /// rest becomes free.
    pub(crate) fn settle(&self, reservation: Reservation, lsn: Lsn) {
        match reservation.extent.slot {
            Some(ArenaSlot { arena, slot }) => {
                let now = self.chunks.clock.now();
                self.chunks.arena(arena as usize).settle(slot, &reservation, lsn, now);
            }
            None => huge::settle(&mut self.chunks.lock(), &reservation),
        }
    }

    /// Checks the header of the block whose payload starts at `payload`, and begins to free the block. Until the freeing is finished or cancelled,
    /// the block counts as neither allocated nor free, and a second call for it returns an error.
    ///
    /// # Errors
    /// When no allocated block starts there; see [`FreeError`].
    pub(crate) fn begin_free<P: Pmem>(&self, pmem: &P, payload: u64) -> Result<Freeing, FreeError> {
        self.begin_free_for(pmem, payload, self.chunks.free_purpose())
    }

    /// [Begins to free](Self::begin_free) a block without coalescing: its free neighbours stay separate.
    ///
    /// # Errors
    /// As for [`begin_free`](Self::begin_free).
    pub(super) fn begin_free_alone<P: Pmem>(&self, pmem: &P, payload: u64) -> Result<Freeing, FreeError> {
        self.begin_free_for(pmem, payload, Purpose::Free)
    }

    /// Cancels a freeing whose transaction was rolled back. The block is allocated again.
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

    /// Finishes freeing a block whose transaction has committed with this LSN, and whose header is in place. The block is quarantined until the
    /// checkpoint LSN has reached this LSN and the quarantine time is over.
    pub(crate) fn finish_free(&self, freeing: Freeing, lsn: Lsn) {
        let now = self.chunks.clock.now();
        match freeing.slot {
            Some(ArenaSlot { arena, slot }) => {
                self.chunks.arena(arena as usize).finish_free(slot, freeing.coalesced, lsn, now);
            }
            None => {
                let at = chunk_as_u32(freeing.chunk);
                self.chunks.lock().shared.quarantine.push(at, freeing.block, lsn, now);
            }
        }
    }

    /// The capacity in bytes of the block that starts at `payload`.
    ///
    /// # Errors
    /// When no allocated block starts there; see [`FreeError`].
    pub(crate) fn usable_bytes<P: Pmem>(&self, pmem: &P, payload: u64) -> Result<u64, FreeError> {
        let block = self.look_up(pmem, payload, Purpose::Query)?.block;
        Ok(Layout::usable_bytes(block.end - block.start))
    }

    /// Scans up to `chunks` unscanned chunks, and returns the number of unscanned chunks that remain.
    ///
    /// # Durability
    /// One fence for each chunk, unless this process created the heap: a killed process may have left headers that are visible but not durable.
    pub(crate) fn scan_some<P: Pmem>(&self, pmem: &P, chunks: usize) -> Result<usize, FenceError> {
        let arena = self.chunks.own_arena();
        for _ in 0..chunks {
            if !self.chunks.lock().scan_next(arena, pmem)? {
                break;
            }
        }
        Ok(self.chunks.lock().shared.unscanned_count(self.chunk_count()))
    }

    /// The statistics of the space, without the chunks that were not scanned yet.
    pub(crate) fn stats(&self) -> SpaceStats {
        let in_chunk = chunk_lines(&self.chunks.layout);
        let mut stats = SpaceStats { chunks: self.chunk_count(), ..SpaceStats::default() };
        let mut scanned = 0;
        let bytes = |lines: u32| u64::from(lines) * LINE_BYTES;
        for arena in &self.chunks.arenas {
            let arena = arena.lock_unpoisoned();
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

    /// The number of blocks of `lines` lines that the free space of the scanned chunks has room for. Releases what may leave quarantine.
    ///
    /// # Durability
    /// Two fences for each huge block that leaves quarantine, which is split into chunks.
    pub(crate) fn room_for<P: Pmem>(
        &self,
        pmem: &P,
        lines: u64,
        checkpoint_lsn: Lsn,
    ) -> Result<u64, FenceError> {
        let whole = chunk_lines(&self.chunks.layout) - 1;
        let in_extent = |free_lines: u32| u64::from(free_lines) / lines;
        // Locked all the time, so that no chunk changes owners and is counted twice.
        let mut chunks = self.chunks.lock();
        huge::split_quarantined(&mut chunks, pmem, checkpoint_lsn)?;
        let (mut count, mut free_chunks) = (0, chunks.shared.free.clone());
        for arena in &self.chunks.arenas {
            let mut arena = arena.lock_unpoisoned();
            arena.drain_quarantine(checkpoint_lsn, self.chunks.clock.now(), usize::MAX);
            for map in arena.slots.iter().flatten() {
                if map.free_lines == whole {
                    free_chunks.insert(map.chunk);
                } else if in_extent(map.free_lines) > 0 {
                    let of_extents = map.free_extents().map(|extent| in_extent(extent.end - extent.start));
                    count += of_extents.sum::<u64>();
                }
            }
        }
        if in_extent(whole) > 0 {
            return Ok(count + free_chunks.len() as u64 * in_extent(whole));
        }
        Ok(huge::room_in(&free_chunks, huge::chunk_count(&self.chunks.layout, lines)))
    }

    /// The corrupted headers found since the last call.
    pub(crate) fn take_corruption(&self) -> Vec<Corruption> {
        let mut corruptions = core::mem::take(&mut self.chunks.lock().shared.corruptions);
        for arena in &self.chunks.arenas {
            corruptions.append(&mut arena.lock_unpoisoned().corruptions);
        }
        corruptions
    }

    /// Checks all headers, including those of unscanned chunks. The caller ensures that no thread changes the heap during the call.
    pub(crate) fn check<P: Pmem>(&self, pmem: &P) -> CheckReport {
        CheckReport::of(pmem, self.layout(), self.chunk_count(), |_| ())
    }

    /// The offset and the word of the header that repairs the chain at a corruption. The lines that this header covers are never allocated again. The
    /// caller first raises the checkpoint LSN to the latest LSN. Then it stores the header durably and without the log: recovery could replay a
    /// logged header over the contents of a later block.
    ///
    /// `None` if the header at that offset has changed, or the offset is not that of a header.
    ///
    /// # Errors
    /// When a fence fails: the headers of the chunk are made durable before they are used.
    pub(crate) fn repair<P: Pmem>(
        &self,
        pmem: &P,
        corruption: &Corruption,
    ) -> Result<Option<(u64, u64)>, FenceError> {
        repair::repair(&mut self.chunks.lock(), pmem, corruption)
    }

    /// Freezes the space so that it can be copied. If `is_log_healthy` is set, the headers that are read are made durable. The caller passes false
    /// after a failed fence, when nothing may be stored.
    pub(crate) fn freeze<P: Pmem>(&self, pmem: &P, is_log_healthy: bool) -> Frozen<'_> {
        Frozen::new(&self.chunks, pmem, is_log_healthy)
    }

    /// Makes durable all headers that this process has stored without flushing them. If a power failure reverted such a header, the chain would no
    /// longer lead to durable blocks after it.
    ///
    /// # Errors
    /// When the fence fails or a fence has failed.
    ///
    /// # Durability
    /// One fence, and one flushed line for each header of the chunks whose first headers were read; no fence if there are no such chunks.
    pub(crate) fn persist_headers<P: Pmem>(&self, pmem: &P) -> Result<(), FenceError> {
        Frozen::persist_headers(&self.chunks, pmem)
    }

    /// Whether no lock is held, for example by a leaked guard, and none is poisoned.
    pub(crate) fn is_unlocked_and_unpoisoned(&mut self) -> bool {
        self.chunks.is_unlocked_and_unpoisoned()
    }

    pub(super) const fn layout(&self) -> &Layout {
        &self.chunks.layout
    }

    /// Releases a few quarantined blocks of an arena, and then reserves from this arena.
    #[inline]
    fn drain_and_reserve<P: Pmem>(
        &self,
        arena: usize,
        pmem: &P,
        request: Request,
        checkpoint_lsn: Lsn,
    ) -> Option<Extent> {
        let mut arena = self.chunks.arena(arena);
        arena.drain_quarantine(checkpoint_lsn, self.chunks.clock.now(), DRAIN_STEP);
        self.reserve_and_trim(&mut arena, pmem, request, true)
    }

    #[inline]
    fn reserve_and_trim<P: Pmem>(
        &self,
        arena: &mut Arena,
        pmem: &P,
        request: Request,
        prefers_exact: bool,
    ) -> Option<Extent> {
        let extent = arena.reserve(pmem, request, prefers_exact)?;
        Some(self.trim_if_last(arena, extent, request))
    }

    /// Sets the trim line if this is the last long extent and is reserved for a transaction: a transaction keeps its reservations until it ends.
    #[inline]
    fn trim_if_last(&self, arena: &mut Arena, extent: Extent, request: Request) -> Extent {
        if !request.is_for_transaction || self.chunks.has_free_chunk() {
            return extent;
        }
        Extent { trim_line: arena.begin_trim(&extent, request), ..extent }
    }

    /// Reserves in chunks that no arena owns, in other arenas, or from the quarantine. Called when this thread's arena has no room.
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
                    && let Some(extent) =
                        self.reserve_and_trim(&mut self.chunks.arena(own), pmem, request, false)
                {
                    return Ok(extent);
                }
                if let Some(extent) =
                    self.reserve_and_trim(&mut self.chunks.arena(other), pmem, request, false)
                {
                    return Ok(extent);
                }
            }
            let (found, may_find_more) = self.search(own, pmem, request, checkpoint_lsn);
            if !may_find_more || found.is_ok() {
                return found;
            }
            // Another thread that is trimming its reservation will soon return the rest. This thread holds no lock that the other thread needs.
            yield_now();
        }
    }

    /// Assigns shared chunks to this thread's arena one by one, and tries to reserve after each. If none is left, reserves in the whole arena.
    fn reserve_in_more_chunks<P: Pmem>(
        &self,
        own: usize,
        pmem: &P,
        request: Request,
        checkpoint_lsn: Lsn,
    ) -> Result<Option<Extent>, FenceError> {
        let assign_chunk = || self.chunks.lock().assign_chunk(own, pmem);
        let split = || huge::split_quarantined(&mut self.chunks.lock(), pmem, checkpoint_lsn);
        split()?;
        // Split again if no chunk can be assigned: all first headers have been read then, so all freed huge blocks are known.
        while assign_chunk()? || split()? {
            if let Some(extent) = self.reserve_and_trim(&mut self.chunks.arena(own), pmem, request, true) {
                return Ok(Some(extent));
            }
        }
        let mut own = self.chunks.arena(own);
        own.is_exhausted = true;
        Ok(self.reserve_and_trim(&mut own, pmem, request, false))
    }

    /// Reserves by searching the maps of all arenas. Locks the shared chunks, so that no chunk changes owners. The second result says whether a retry
    /// may find room, because a reservation is being trimmed, or because another thread has just shared a chunk. It is false if an extent was found.
    pub(super) fn search<P: Pmem>(
        &self,
        own: usize,
        pmem: &P,
        request: Request,
        checkpoint_lsn: Lsn,
    ) -> (Result<Extent, SpaceError>, bool) {
        let LockedChunks { shared, .. } = self.chunks.lock();
        let (mut quarantined, mut held) = (!shared.quarantine.is_empty(), shared.reservation_count > 0);
        // For example the last chunk of a huge block, which counted as held until its rest was shared.
        let mut may_find_more = !shared.free.is_empty() || !shared.unscanned.is_empty();
        let count = self.chunks.arenas.len();
        for arena in (own..own + count).map(|arena| arena % count) {
            let mut arena = self.chunks.arena(arena);
            arena.drain_quarantine(checkpoint_lsn, self.chunks.clock.now(), usize::MAX);
            if let Some(extent) = arena.search(pmem, request) {
                return (Ok(self.trim_if_last(&mut arena, extent, request)), false);
            }
            quarantined |= !arena.quarantine.is_empty();
            held |= arena.reservation_count > 0;
            may_find_more |= arena.trim_count > 0;
        }
        (Err(SpaceError::Full { lines: u64::from(request.lines), quarantined, held }), may_find_more)
    }

    /// The request for a block. An error if no chunk can contain the block.
    #[inline]
    pub(super) fn request(&self, lines: u64, align_bytes: u64) -> Result<Request, SpaceError> {
        let layout = self.layout();
        let end = chunk_lines(layout);
        let possible = || {
            let lines = u32::try_from(lines).ok()?;
            let fits = align_bytes <= LINE_BYTES
                || align_bytes <= layout.chunk_bytes
                    && align(layout, 0, 1, align_bytes)?.checked_add(lines)? <= end;
            let padding_lines_max = u32::try_from(align_bytes / LINE_BYTES).ok()?.saturating_sub(1);
            let lines_with_padding = lines.saturating_add(padding_lines_max);
            fits.then_some(Request {
                lines,
                align_bytes,
                lines_with_padding,
                run_lines_max: 0,
                is_for_transaction: false,
            })
        };
        possible().ok_or(SpaceError::Alignment { lines, align_bytes })
    }

    fn begin_free_for<P: Pmem>(
        &self,
        pmem: &P,
        payload: u64,
        purpose: Purpose,
    ) -> Result<Freeing, FreeError> {
        let FoundBlock { slot, chunk, block, coalesced, is_unreachable } =
            self.look_up(pmem, payload, purpose)?;
        Ok(match slot {
            Some(slot) if is_unreachable => Freeing::unreachable(slot, chunk, block),
            slot => Freeing::new(self.layout(), slot, chunk, block, coalesced),
        })
    }

    /// Looks up the allocated block that starts at `offset`. If the purpose is to free the block, the block no longer counts as allocated.
    fn look_up<P: Pmem>(&self, pmem: &P, offset: u64, purpose: Purpose) -> Result<FoundBlock, FreeError> {
        let (chunk, line) = self.chunks.locate(offset)?;
        loop {
            let owner = self.chunks.owner(chunk);
            match owner {
                ChunkOwner::Arena(at) => {
                    let mut arena = self.chunks.arena(at.arena as usize);
                    if self.chunks.owner(chunk) == owner {
                        let (block, coalesced) = arena.look_up(pmem, at.slot, line, purpose)?;
                        let is_unreachable = arena.map(at.slot).unreachable_from <= line;
                        return Ok(FoundBlock { slot: Some(at), chunk, block, coalesced, is_unreachable });
                    }
                }
                ChunkOwner::Huge if line == 1 => {
                    let mut chunks = self.chunks.lock();
                    if self.chunks.owner(chunk) == owner {
                        let lines = huge::look_up(&mut chunks, pmem, chunk, purpose != Purpose::Query)?;
                        let block = line..line + lines;
                        let coalesced = block.clone();
                        return Ok(FoundBlock { slot: None, chunk, block, coalesced, is_unreachable: false });
                    }
                }
                ChunkOwner::Huge | ChunkOwner::Covered => return Err(FreeError::NotABlock { offset }),
                ChunkOwner::Shared => {
                    let mut chunks = self.chunks.lock();
                    chunks.read_first_headers_through(pmem, chunk)?;
                    if chunks.shared.free.contains(&chunk) {
                        return Err(FreeError::AlreadyFree { offset });
                    }
                    // Scans nothing if the headers that were just read show that a huge block covers the chunk.
                    chunks.scan_into(self.chunks.own_arena(), pmem, chunk)?;
                }
            }
        }
    }
}
