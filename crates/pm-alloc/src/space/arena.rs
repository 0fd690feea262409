//! An arena: the chunks from which one thread or a few threads allocate. One lock guards the whole arena.

use super::chunk_map::{ChunkMap, CorruptedFree};
use super::error::{Corruption, CorruptionKind, FreeError};
use super::free_lists::{Candidate, FreeLists};
use super::headers::{
    HeaderWord, align, chunk_lines, corruption, header_offset, header_word, line_offset, read,
};
use super::quarantine::{Moment, Quarantine};
use super::reservation::{ArenaSlot, Extent, Reservation};
use crate::format::{BlockHeader, BlockState, Lsn};
use crate::layout::Layout;
use crate::locks::SpinGuard;
use core::ops::{Range, RangeInclusive};
use pm_core::Pmem;

/// The maximum number of quarantined blocks that an allocation or a freeing examines at a time: the quarantine is drained incrementally.
pub(super) const DRAIN_STEP: usize = 4;

/// The longest free extent, in lines, that is coalesced with an adjacent freed block. In chunks of less than 64 KiB, the limit is 1/16 of the chunk.
const COALESCED_LINES_MAX: u32 = 64;

/// Short free extents are kept for blocks of exactly their length while less than one line in 256 (0.4 %) of the arena is in such extents.
const LINES_PER_SHORT_EXTENT_LINE: usize = 256;

/// In a small arena this limit is higher: an eighth of the lines of one chunk, up to 2,048 lines (128 KiB). If blocks of all lengths up to 4 KiB are
/// allocated twice as often as freed, there is on average one free extent of each length: 2,080 lines in total.
const CHUNK_LINES_PER_SHORT_EXTENT_LINE: usize = 8;
const SMALL_ARENA_SHORT_EXTENT_LINES: usize = 2048;

/// A transaction that reserves the last long extent keeps its front: an eighth, divided by the number of reservations, but at least 64 lines, and at
/// least the lines of the block. Later transactions use what is left of the front, without another trim: each trim costs two fences.
const KEPT_PART: u32 = 8;
const KEPT_LINES_MIN: u32 = 64;

/// The minimum number of lines after the front. If there are fewer, the extent is not trimmed.
const REST_LINES_MIN: u32 = 128;

/// The chunks of one or a few threads, with their free lists and quarantine.
#[derive(Debug)]
pub(super) struct Arena {
    pub(super) layout: Layout,
    number: u32,
    pub(super) slots: Vec<Option<Box<ChunkMap>>>,
    vacant: Vec<u32>,
    free_lists: FreeLists,
    pub(super) quarantine: Quarantine,
    /// Whether no more chunks were available when the arena last needed one. If so, searches do not prefer an extent of exactly the block's length or
    /// a long extent, because most such searches would fail.
    pub(super) is_exhausted: bool,
    /// The highest checkpoint LSN that callers have passed.
    checkpoint_lsn: Lsn,
    /// The number of reservations in progress: neither settled, returned nor abandoned.
    pub(super) reservation_count: u32,
    /// The number of reservations that are being trimmed. A part of each will soon be free.
    pub(super) trim_count: u32,
    pub(super) corruptions: Vec<Corruption>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) lines: u32,
    pub(super) align_bytes: u64,
    /// The length of an extent that has room for the aligned block wherever the extent starts.
    pub(super) lines_with_padding: u32,
    /// The maximum length, in lines, of a run that is preferred to splitting a free block. If this is less than `lines`, no run is searched for.
    pub(super) run_lines_max: u32,
    /// Whether the reservation is kept until a transaction ends.
    pub(super) is_for_transaction: bool,
}

/// The purpose for which a block is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Query,
    Free,
    /// The block is freed together with its free neighbours, as one block.
    FreeAndCoalesce,
}

impl Arena {
    pub(super) fn new(layout: Layout, number: u32) -> Self {
        Self {
            layout,
            number,
            slots: Vec::new(),
            vacant: Vec::new(),
            free_lists: FreeLists::new(),
            quarantine: Quarantine::default(),
            is_exhausted: false,
            checkpoint_lsn: Lsn::ZERO,
            reservation_count: 0,
            trim_count: 0,
            corruptions: Vec::new(),
        }
    }

    pub(super) fn insert(&mut self, map: ChunkMap) -> u32 {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 chunks")
        });
        let mut line = map.first;
        while let Some(extent) = map.next_extent(line) {
            line = extent.end;
            self.free_lists.push(slot, extent.start, extent.end - extent.start);
        }
        self.slots[slot as usize] = Some(Box::new(map));
        self.is_exhausted = false;
        self.free_lists.purge_if_many(&self.slots);
        slot
    }

    /// Removes a free chunk. `None` if a line of the chunk is in use.
    pub(super) fn remove_free(&mut self, slot: u32) -> Option<Box<ChunkMap>> {
        let map = self.slots[slot as usize].take_if(|map| map.is_free())?;
        self.vacant.push(slot);
        Some(map)
    }

    /// Removes a chunk whose lines become part of a huge block.
    pub(super) fn remove(&mut self, slot: u32) {
        if self.slots[slot as usize].take().is_some() {
            self.vacant.push(slot);
        }
    }

    #[inline]
    pub(super) fn map(&mut self, slot: u32) -> &mut ChunkMap {
        self.slots[slot as usize].as_mut().expect("a chunk in use stays in its slot")
    }

    /// Releases quarantined blocks that may be reused now. Examines at most `blocks_max` blocks.
    #[inline]
    pub(super) fn drain_quarantine(&mut self, checkpoint_lsn: Lsn, now: Moment, blocks_max: usize) {
        self.checkpoint_lsn = self.checkpoint_lsn.max(checkpoint_lsn);
        for _ in 0..blocks_max {
            let Some(block) = self.quarantine.pop_due(self.checkpoint_lsn, now) else { return };
            self.release(block.slot_or_chunk, block.line..block.line + block.lines);
        }
    }

    /// Reserves a free extent for this block: a run, if the request allows runs and one is found, or else an extent from the free lists.
    #[inline]
    pub(super) fn reserve<P: Pmem>(
        &mut self,
        pmem: &P,
        request: Request,
        prefers_exact: bool,
    ) -> Option<Extent> {
        let run_lines = request.lines..=request.run_lines_max;
        if !run_lines.is_empty()
            && let Some(extent) = self.reserve_run(pmem, run_lines)
        {
            return Some(extent);
        }
        loop {
            let (candidate, end) = self.take_candidate(pmem, request.lines_with_padding, prefers_exact)?;
            // `None` only if a header is corrupted. Then the next candidate is tried.
            if let Some(extent) = self.reserve_at(pmem, candidate, end, request) {
                return Some(extent);
            }
        }
    }

    /// Finds a free extent for a block of `lines` lines, and marks the lines of the block as in use, but not the rest of the extent. The result keeps
    /// the arena locked until the block is committed. The block is aligned to a line only.
    #[inline]
    pub(super) fn hold_block<'s, P: Pmem>(
        mut arena: SpinGuard<'s, Self>,
        pmem: &P,
        lines: u32,
        now: Moment,
    ) -> Option<HeldBlock<'s>> {
        let layout = arena.layout;
        loop {
            let (Candidate { slot, line }, extent_end) = arena.take_candidate(pmem, lines, true)?;
            let map = arena.map(slot);
            let block = line..line + lines;
            let free_end = map.next_start(block.end - 1);
            if let Some(corrupted) = map.find_corrupted(pmem, &layout, line..free_end) {
                arena.isolate_free(slot, line..extent_end, corrupted);
                continue;
            }
            let (chunk, spans_several_blocks) = (map.chunk, map.next_start(line) < free_end);
            map.hold(block.clone());
            return Some(HeldBlock {
                arena,
                slot,
                chunk,
                block,
                free_end,
                spans_several_blocks,
                now,
                is_settled: false,
            });
        }
    }

    /// Reserves a free extent for this block by searching the maps of all chunks instead of the free lists.
    pub(super) fn search<P: Pmem>(&mut self, pmem: &P, request: Request) -> Option<Extent> {
        for slot in 0..self.slots.len() {
            let mut line = 1;
            while let Some(map) = self.slots[slot].as_ref().filter(|map| map.free_lines >= request.lines) {
                let Some(free) = map.next_extent(line) else { break };
                let slot = u32::try_from(slot).expect("fewer than 2^32 chunks");
                let known = self.corruptions.len();
                let found = self.reserve_at(pmem, Candidate { slot, line: free.start }, free.end, request);
                if found.is_some() {
                    return found;
                }
                // If a corrupted header was found, its block has been withdrawn from the extent, which is searched again from its start.
                line = if self.corruptions.len() > known { free.start } else { free.end };
            }
        }
        None
    }

    /// Decides whether to trim an extent that is reserved for a transaction. It is trimmed if enough lines remain after the front, and no other free
    /// extent is about as long or longer. Returns the trim line, from which [`return_trimmed`](Self::return_trimmed) later frees the lines.
    pub(super) fn begin_trim(&mut self, extent: &Extent, request: Request) -> Option<u32> {
        let Range { start, end } = extent.lines;
        let at = align(&self.layout, extent.chunk, start, request.align_bytes)?;
        let needed = at - start + request.lines;
        let kept = needed.max(KEPT_LINES_MIN).max((end - start) / (KEPT_PART * self.reservation_count));
        let rest = (end - start).saturating_sub(kept);
        if rest < REST_LINES_MIN || self.free_lists.has_similar_or_longer(rest, &self.slots) {
            return None;
        }
        self.trim_count += 1;
        Some(start + kept)
    }

    /// Frees the lines from the trim line on, after the headers of these lines and of the front were stored: they are two free blocks now.
    pub(super) fn return_trimmed(&mut self, slot: u32, reservation: &mut Reservation) {
        let Some(trim) = reservation.extent.trim_line.take() else { return };
        self.trim_count -= 1;
        self.map(slot).starts.set(trim);
        self.release(slot, trim..reservation.extent.lines.end);
        reservation.extent.lines.end = trim;
    }

    /// Leaves the reserved lines in use until the next open. Other calls no longer wait for these lines.
    pub(super) fn abandon(&mut self, reservation: &Reservation) {
        self.reservation_count -= 1;
        self.trim_count -= u32::from(reservation.extent.trim_line.is_some());
    }

    /// Returns a reservation of which nothing was allocated: its lines are free again. Free blocks that were joined or trimmed for it stay so.
    pub(super) fn return_unused(&mut self, slot: u32, reservation: &Reservation, now: Moment) {
        if reservation.extent.trim_line.is_some() {
            // The trim failed, and it is unknown which of its headers are durable.
            return self.abandon(reservation);
        }
        self.reservation_count -= 1;
        let lines = reservation.extent.lines.clone();
        if reservation.joined_lsn.is_some() {
            self.map(slot).starts.clear_range(lines.start + 1..lines.end);
        }
        match reservation.joined_lsn {
            None | Some(Lsn::ZERO) => self.release(slot, lines),
            Some(lsn) => self.quarantine_gap(slot, lines, lsn, now),
        }
    }

    /// Settles a reservation whose transaction has committed and whose headers are in place: carved blocks are allocated now, and the rest is free.
    #[inline]
    pub(super) fn settle(&mut self, slot: u32, reservation: &Reservation, lsn: Lsn, now: Moment) {
        if !reservation.is_carved() {
            return self.return_unused(slot, reservation, now);
        }
        self.reservation_count -= 1;
        let map = self.map(slot);
        let Range { start, end } = reservation.extent.lines;
        // No bits need to be cleared after the cursor: the last of the former free blocks starts before it.
        map.starts.clear_range(start + 1..reservation.cursor);
        for carved in reservation.carved() {
            map.starts.set(carved.line);
            if carved.state == BlockState::Allocated {
                map.live.set(carved.line);
            }
        }
        if reservation.cursor < end {
            map.starts.set(reservation.cursor);
            self.release(slot, reservation.cursor..end);
        }
        for gap in reservation.carved().filter(|carved| carved.state == BlockState::Free) {
            self.quarantine_gap(slot, gap.line..gap.line + gap.lines, lsn, now);
        }
    }

    /// Quarantines a gap: free lines that were not allocated before, and whose header was logged with `lsn`. They are reusable once the checkpoint
    /// LSN has reached `lsn`; the quarantine time does not apply. Without this quarantine, a new block could cover the gap together with free lines
    /// before it, and thus the gap's header. Recovery could then replay that header over contents that were stored in the block without the log.
    fn quarantine_gap(&mut self, slot: u32, lines: Range<u32>, lsn: Lsn, now: Moment) {
        self.quarantine.push_gap(slot, lines, lsn);
        self.drain_quarantine(Lsn::ZERO, now, DRAIN_STEP);
    }

    /// Marks the block on these lines as allocated, after its headers were stored. The lines from its end to `free_end` are one free block.
    #[inline]
    fn settle_block(&mut self, slot: u32, block: Range<u32>, free_end: u32, spans_several_blocks: bool) {
        let map = self.map(slot);
        if spans_several_blocks {
            map.starts.clear_range(block.start + 1..block.end);
        }
        map.live.set(block.start);
        if block.end < free_end {
            map.starts.set(block.end);
        }
        self.list_extent_from(slot, block.end);
    }

    /// Looks up the allocated block that starts at `line`. Returns its lines, and the lines that become one free block when it is freed. If the
    /// purpose is to free the block, the block no longer counts as allocated, and its free neighbours are marked as in use.
    #[inline]
    pub(super) fn look_up<P: Pmem>(
        &mut self,
        pmem: &P,
        slot: u32,
        line: u32,
        purpose: Purpose,
    ) -> Result<(Range<u32>, Range<u32>), FreeError> {
        let neighbours = match purpose {
            Purpose::FreeAndCoalesce => self.neighbours(pmem, slot, line),
            Purpose::Query | Purpose::Free => [line..line, line..line],
        };
        let block = line..line + self.find_block(pmem, slot, line, purpose != Purpose::Query)?;
        let coalesced = self.hold_neighbours(pmem, slot, block.clone(), neighbours);
        Ok((block, coalesced))
    }

    /// Cancels the freeing of a block: the block counts as allocated again, and its neighbours are free again.
    pub(super) fn cancel_free(&mut self, slot: u32, block: Range<u32>, coalesced: Range<u32>) {
        self.map(slot).live.set(block.start);
        for side in [coalesced.start..block.start, block.end..coalesced.end] {
            self.release(slot, side);
        }
    }

    /// Finishes freeing a block, after a commit with this LSN has stored the header that makes these lines one free block.
    #[inline]
    pub(super) fn finish_free(&mut self, slot: u32, lines: Range<u32>, lsn: Lsn, now: Moment) {
        self.map(slot).starts.clear_range(lines.start + 1..lines.end);
        self.quarantine(slot, lines, lsn, now);
    }

    /// Quarantines lines that are one free block, until the checkpoint LSN has reached `lsn` and the quarantine time is over.
    #[inline]
    pub(super) fn quarantine(&mut self, slot: u32, lines: Range<u32>, lsn: Lsn, now: Moment) {
        self.quarantine.push(slot, lines, lsn, now);
        self.drain_quarantine(Lsn::ZERO, now, DRAIN_STEP);
    }

    #[inline]
    pub(super) fn release(&mut self, slot: u32, lines: Range<u32>) {
        if let Some(extent) = self.map(slot).release(lines) {
            self.list(slot, extent);
        }
    }

    /// Adds the free extent that starts at `line`, if there is one, to the free lists.
    #[inline]
    pub(super) fn list_extent_from(&mut self, slot: u32, line: u32) {
        if let Some(end) = self.map(slot).extent_end(line) {
            self.list(slot, line..end);
        }
    }

    /// Takes an extent from the free lists, and returns its start and its end. If `prefers_exact` is set, the arena is not exhausted, and it has few
    /// short extents, takes an extent of exactly `lines` lines or else a long extent. In all other cases takes the shortest extent that fits.
    #[inline]
    fn take_candidate<P: Pmem>(
        &mut self,
        pmem: &P,
        lines: u32,
        prefers_exact: bool,
    ) -> Option<(Candidate, u32)> {
        let in_chunk = chunk_lines(&self.layout) as usize;
        let small_limit = (in_chunk / CHUNK_LINES_PER_SHORT_EXTENT_LINE).min(SMALL_ARENA_SHORT_EXTENT_LINES);
        let short_extent_lines_max =
            small_limit.max(self.slots.len() * in_chunk / LINES_PER_SHORT_EXTENT_LINE);
        let found = if prefers_exact
            && !self.is_exhausted
            && self.free_lists.short_extent_lines() < short_extent_lines_max
        {
            self.free_lists.take_exact_or_long(lines, &self.slots)
        } else {
            self.free_lists.take(lines, &self.slots)
        };
        if let Some((candidate, end)) = found {
            self.prefetch_next(pmem, end - candidate.line);
        }
        found
    }

    /// Prefetches the header at the start of the next candidate in the size class of `lines`.
    #[inline]
    fn prefetch_next<P: Pmem>(&self, pmem: &P, lines: u32) {
        if let Some(Candidate { slot, line }) = self.free_lists.next(lines)
            && let Some(map) = &self.slots[slot as usize]
        {
            pmem.prefetch(header_offset(&self.layout, map.chunk, line));
        }
    }

    /// Reserves the free blocks of a free extent that the new block needs: from the last free block that starts at or before the new block, to the
    /// first start of a block at or after the new block's end. `None` if the new block does not fit, or a header is corrupted.
    #[inline]
    fn reserve_at<P: Pmem>(
        &mut self,
        pmem: &P,
        Candidate { slot, line }: Candidate,
        end: u32,
        request: Request,
    ) -> Option<Extent> {
        let layout = self.layout;
        let map = self.map(slot);
        let at = align(&layout, map.chunk, line, request.align_bytes)?;
        let block_end = at.checked_add(request.lines).filter(|block_end| *block_end <= end)?;
        let from = if at == line { line } else { map.starts.last_set(at + 1).unwrap_or(line) };
        let to = map.next_start(block_end - 1);
        self.reserve_part(pmem, slot, line..end, from..to)
    }

    /// Reserves a run of adjacent free blocks with `wanted` lines in total. The new block covers the run exactly, so no header of a rest is needed.
    #[inline]
    fn reserve_run<P: Pmem>(&mut self, pmem: &P, wanted: RangeInclusive<u32>) -> Option<Extent> {
        let lines = *wanted.start();
        let exact = self.free_lists.take_exact(lines, &self.slots).map(|(candidate, _)| (candidate, lines));
        let (Candidate { slot, line }, lines) =
            exact.or_else(|| self.free_lists.find_run(wanted, &self.slots))?;
        let free = self.map(slot).extent_around(line);
        self.reserve_part(pmem, slot, free, line..line + lines)
    }

    /// Reserves a part of a free extent that consists of whole free blocks. `None` if one of their headers is corrupted.
    #[inline]
    fn reserve_part<P: Pmem>(
        &mut self,
        pmem: &P,
        slot: u32,
        free: Range<u32>,
        lines: Range<u32>,
    ) -> Option<Extent> {
        let layout = self.layout;
        let map = self.map(slot);
        if let Some(corrupted) = map.find_corrupted(pmem, &layout, lines.clone()) {
            self.isolate_free(slot, free, corrupted);
            return None;
        }
        let (chunk, spans_several_blocks) = (map.chunk, map.next_start(lines.start) < lines.end);
        map.hold(lines.clone());
        self.reservation_count += 1;
        self.list(slot, free.start..lines.start);
        self.list(slot, lines.end..free.end);
        Some(Extent {
            slot: Some(ArenaSlot { arena: self.number, slot }),
            chunk,
            lines,
            spans_several_blocks,
            trim_line: None,
        })
    }

    /// The length of the allocated block that starts at `line`. With `to_free`, the block no longer counts as allocated.
    #[inline]
    fn find_block<P: Pmem>(
        &mut self,
        pmem: &P,
        slot: u32,
        line: u32,
        to_free: bool,
    ) -> Result<u32, FreeError> {
        let layout = self.layout;
        let map = self.map(slot);
        let offset = line_offset(&layout, map.chunk, line);
        let corrupted =
            |chunk, at| FreeError::Corrupted { offset, header_offset: header_offset(&layout, chunk, at) };
        if let Some(start) = map.lost_at(line) {
            return Err(corrupted(map.chunk, start));
        }
        if line >= map.unreachable_from {
            return map.find_unreachable(pmem, &layout, line, to_free);
        }
        if !map.starts.get(line) {
            let is_inside_live = map.starts.last_set(line).is_none_or(|start| map.live.get(start));
            return Err(match is_inside_live {
                true => FreeError::NotABlock { offset },
                false => FreeError::AlreadyFree { offset },
            });
        }
        let next = map.next_start(line);
        let (found, header) = read(pmem, &layout, map.chunk, line);
        if !map.live.get(line) {
            // Either the block is free, or a repair has marked it lost.
            let is_lost = header.is_some_and(|header| header.state == BlockState::Lost);
            return Err(if is_lost { corrupted(map.chunk, line) } else { FreeError::AlreadyFree { offset } });
        }
        if header != Some(BlockHeader::new(BlockState::Allocated, next - line)) {
            let chunk = map.chunk;
            self.isolate(slot, line..next, found);
            return Err(corrupted(chunk, line));
        }
        if to_free {
            map.live.clear(line);
        }
        Ok(next - line)
    }

    /// The free lines directly before and directly after the block at `line`, which one header can free together with the block. A long free extent
    /// is returned as an empty range, because it would be quarantined together with the block.
    #[inline]
    fn neighbours<P: Pmem>(&mut self, pmem: &P, slot: u32, line: u32) -> [Range<u32>; 2] {
        let most = COALESCED_LINES_MAX.min(chunk_lines(&self.layout) / 16);
        let layout = self.layout;
        let map = self.map(slot);
        let end = map.next_start(line);
        let before = map.used.last_set(line).map_or(line, |used| used + 1)..line;
        let after = end..map.used.next_set(end);
        [before, after].map(|side| {
            if side.end - side.start > most {
                return side.start..side.start;
            }
            if !side.is_empty() {
                pmem.prefetch(header_offset(&layout, map.chunk, side.start));
            }
            side
        })
    }

    /// Marks the free neighbours of a block as in use, because they and the block are about to become one free block. A neighbour with a corrupted
    /// header is left out. Returns the lines of the block and its neighbours.
    #[inline]
    fn hold_neighbours<P: Pmem>(
        &mut self,
        pmem: &P,
        slot: u32,
        block: Range<u32>,
        neighbours: [Range<u32>; 2],
    ) -> Range<u32> {
        let mut coalesced = block;
        for side in neighbours.into_iter().filter(|side| !side.is_empty()) {
            let layout = self.layout;
            let map = self.map(slot);
            if let Some(corrupted) = map.find_corrupted(pmem, &layout, side.clone()) {
                self.isolate_free(slot, side, corrupted);
                continue;
            }
            map.hold(side.clone());
            coalesced = coalesced.start.min(side.start)..coalesced.end.max(side.end);
        }
        coalesced
    }

    /// Permanently withdraws a block with a corrupted header from the free extent `free`, whose other lines stay free. Records the corruption.
    #[cold]
    fn isolate_free(&mut self, slot: u32, free: Range<u32>, corrupted: CorruptedFree) {
        let CorruptedFree { lines, found } = corrupted;
        self.isolate(slot, lines.clone(), found);
        self.list(slot, free.start..lines.start);
        self.list(slot, lines.end..free.end);
    }

    /// Permanently withdraws a block whose header is corrupted, and records the corruption.
    #[cold]
    fn isolate(&mut self, slot: u32, lines: Range<u32>, found: u64) {
        self.withdraw(slot, lines.clone());
        let layout = self.layout;
        let chunk = self.map(slot).chunk;
        self.corruptions.push(corruption(&layout, chunk, lines, found, CorruptionKind::LengthKnown));
    }

    /// Permanently withdraws a block that is lost: from now on it is neither allocated nor free.
    pub(super) fn withdraw(&mut self, slot: u32, lines: Range<u32>) {
        let map = self.map(slot);
        if !map.used.get(lines.start) {
            map.hold(lines.clone());
        }
        map.live.clear(lines.start);
        if map.lost_at(lines.start).is_none() {
            map.lost.push(lines);
        }
    }

    /// Adds a free extent to the free lists, unless it is empty.
    #[inline]
    pub(super) fn list(&mut self, slot: u32, extent: Range<u32>) {
        if !extent.is_empty() {
            self.free_lists.push(slot, extent.start, extent.end - extent.start);
            self.free_lists.purge_if_many(&self.slots);
        }
    }
}

/// A free block that a commit is about to allocate, with its arena locked. If this is dropped before it is [settled](Self::settle), the block is
/// free again.
#[derive(Debug)]
#[must_use = "the block is free again when this is dropped"]
pub(crate) struct HeldBlock<'s> {
    arena: SpinGuard<'s, Arena>,
    slot: u32,
    chunk: u64,
    block: Range<u32>,
    /// The end of the last free block from which the held block takes lines.
    free_end: u32,
    /// Whether the held block takes lines from several free blocks, and thus covers headers.
    pub(super) spans_several_blocks: bool,
    now: Moment,
    is_settled: bool,
}

impl HeldBlock<'_> {
    #[inline]
    pub(crate) fn payload(&self) -> u64 {
        line_offset(&self.arena.layout, self.chunk, self.block.start)
    }

    #[inline]
    pub(crate) fn header(&self) -> HeaderWord {
        header_word(&self.arena.layout, self.chunk, BlockState::Allocated, self.block.clone())
    }

    /// The header of the rest of the free block, if there is a rest.
    #[inline]
    pub(crate) fn rest(&self) -> Option<HeaderWord> {
        let rest = self.block.end..self.free_end;
        (!rest.is_empty()).then(|| header_word(&self.arena.layout, self.chunk, BlockState::Free, rest))
    }

    /// Marks the block as allocated, after its commit. Also releases a few quarantined blocks that were freed at or below `checkpoint_lsn`: here
    /// rather than before the search for a block, because here this work overlaps with the fence of the commit.
    #[inline]
    pub(crate) fn settle(mut self, checkpoint_lsn: Lsn) {
        self.is_settled = true;
        self.arena.settle_block(self.slot, self.block.clone(), self.free_end, self.spans_several_blocks);
        self.arena.drain_quarantine(checkpoint_lsn, self.now, DRAIN_STEP);
    }
}

impl Drop for HeldBlock<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_settled {
            self.arena.release(self.slot, self.block.clone());
        }
    }
}

/// An allocated block that a commit is about to free, with its arena locked. If this is dropped before it is [settled](Self::settle), the block
/// stays allocated.
#[derive(Debug)]
#[must_use = "the block stays allocated when this is dropped"]
pub(crate) struct HeldFreeing<'s> {
    arena: SpinGuard<'s, Arena>,
    slot: u32,
    chunk: u64,
    block: Range<u32>,
    /// The block and its free neighbours, which become one free block.
    coalesced: Range<u32>,
    now: Moment,
    is_settled: bool,
}

impl<'s> HeldFreeing<'s> {
    /// Creates the value from the result of an [`Arena::look_up`] whose purpose was to free the block.
    #[inline]
    pub(super) fn new(
        mut arena: SpinGuard<'s, Arena>,
        slot: u32,
        (block, coalesced): (Range<u32>, Range<u32>),
        now: Moment,
    ) -> Self {
        let chunk = arena.map(slot).chunk;
        Self { arena, slot, chunk, block, coalesced, now, is_settled: false }
    }

    /// The header of the free block.
    #[inline]
    pub(crate) fn header(&self) -> HeaderWord {
        header_word(&self.arena.layout, self.chunk, BlockState::Free, self.coalesced.clone())
    }

    /// Frees the block after the commit with this LSN: it is quarantined until the checkpoint LSN has reached `lsn` and the quarantine time is over.
    #[inline]
    pub(crate) fn settle(mut self, lsn: Lsn) {
        self.is_settled = true;
        self.arena.finish_free(self.slot, self.coalesced.clone(), lsn, self.now);
    }
}

impl Drop for HeldFreeing<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_settled {
            self.arena.cancel_free(self.slot, self.block.clone(), self.coalesced.clone());
        }
    }
}
