//! An arena: the chunks that one thread, or a few, allocate from. All of it is guarded by the arena's lock.

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

/// The number of quarantined blocks that one call examines.
pub(super) const DRAIN_STEP: usize = 4;

/// The longest free extent, in lines, that is coalesced with a freed block beside it, in chunks of 1 MiB; less in smaller ones.
const COALESCED_LINES_MAX: u32 = 64;

/// One line in 256, 0.4 %, may be in short extents that are kept for blocks of exactly their length.
const LINES_PER_HOLE_LINE: usize = 256;

/// In any case one line in eight of one chunk may be in such extents, up to 2,048 lines. That is 128 KiB of 1 MiB: if blocks of all lengths
/// up to 4 KiB are allocated twice as often as freed, there is one extent of each length on average, which is as much.
const CHUNK_LINES_PER_HOLE_LINE: usize = 8;
const HOLE_LINES_IN_ANY_CASE: usize = 2048;

/// Of the last long extent a transaction keeps an eighth, less the more reservations there are, and at least 64 lines. The next
/// transactions allocate from the rest of that part: each trim costs two fences.
const KEPT_PART: u32 = 8;
const KEPT_LINES_MIN: u32 = 64;

/// An extent is not trimmed for a shorter rest.
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
    /// No free chunk was left when one was needed last. Then extents of the exact length are not preferred: most searches for one would
    /// fail.
    pub(super) is_exhausted: bool,
    /// The highest checkpoint LSN that was passed in.
    checkpoint_lsn: Lsn,
    /// The number of reservations that are not settled.
    pub(super) reservation_count: u32,
    /// The number of reservations that are being trimmed: the rest of each will be free soon.
    pub(super) trim_count: u32,
    pub(super) corruptions: Vec<Corruption>,
}

/// A request for a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) lines: u32,
    pub(super) align_bytes: u64,
    /// The length of an extent that has room for the block, aligned, wherever the extent starts.
    pub(super) lines_with_padding: u32,
    /// Runs of whole free blocks, from the block's length up to this number of lines, are preferred to splitting a free block. Less than the
    /// block's length: no run is.
    pub(super) run_lines_max: u32,
    /// The reservation is kept until a transaction ends.
    pub(super) is_for_transaction: bool,
}

/// Why a block is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To learn its length.
    Look,
    /// To free it.
    Free,
    /// To free it together with its free neighbours, as one block.
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

    /// Adds a chunk, and returns its slot.
    pub(super) fn insert(&mut self, map: ChunkMap) -> u32 {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("there are fewer chunks")
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

    /// Removes a chunk of which no line is in use. `None` if one is.
    pub(super) fn remove_free(&mut self, slot: u32) -> Option<Box<ChunkMap>> {
        let map = self.slots[slot as usize].take_if(|map| map.is_free())?;
        self.vacant.push(slot);
        Some(map)
    }

    /// Removes a chunk whose free lines all become part of a huge block.
    pub(super) fn remove(&mut self, slot: u32) {
        if self.slots[slot as usize].take().is_some() {
            self.vacant.push(slot);
        }
    }

    #[inline]
    pub(super) fn map(&mut self, slot: u32) -> &mut ChunkMap {
        self.slots[slot as usize].as_mut().expect("a chunk in use stays in its slot")
    }

    /// Releases quarantined blocks that may be reused, examining at most `most`.
    #[inline]
    pub(super) fn drain_quarantine(&mut self, checkpoint_lsn: Lsn, now: Moment, most: usize) {
        self.checkpoint_lsn = self.checkpoint_lsn.max(checkpoint_lsn);
        for _ in 0..most {
            let Some(block) = self.quarantine.pop_due(self.checkpoint_lsn, now) else { return };
            self.release(block.at, block.line..block.line + block.lines);
        }
    }

    /// Reserves a free extent for this block: the shortest in the free lists, or, if `prefers_exact` and while there are few short ones, one
    /// of exactly its length.
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
            // `None` only if a header was corrupted.
            if let Some(extent) = self.reserve_at(pmem, candidate, end, request) {
                return Some(extent);
            }
        }
    }

    /// Takes a block of `lines` lines out of use, at any alignment, for a commit during which the arena stays locked: only the block's own
    /// lines leave the map of free lines.
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
            let (chunk, is_several_blocks) = (map.chunk, map.next_start(line) < free_end);
            map.hold(block.clone());
            return Some(HeldBlock {
                arena,
                slot,
                chunk,
                block,
                free_end,
                is_several_blocks,
                now,
                is_settled: false,
            });
        }
    }

    /// Reserves a free extent for this block by a search of all maps.
    pub(super) fn search<P: Pmem>(&mut self, pmem: &P, request: Request) -> Option<Extent> {
        for slot in 0..self.slots.len() {
            let mut line = 1;
            while let Some(map) = self.slots[slot].as_ref().filter(|map| map.free_lines >= request.lines) {
                let Some(free) = map.next_extent(line) else { break };
                let slot = u32::try_from(slot).expect("there are fewer chunks");
                let known = self.corruptions.len();
                let found = self.reserve_at(pmem, Candidate { slot, line: free.start }, free.end, request);
                if found.is_some() {
                    return found;
                }
                // A corrupted header has split the extent in two.
                line = if self.corruptions.len() > known { free.start } else { free.end };
            }
        }
        None
    }

    /// The line at which an extent that was reserved for a transaction is to be trimmed, if there is no other free extent of about its
    /// length. The lines from there on are [returned](Self::return_trimmed) once they are a free block of their own.
    pub(super) fn trim(&mut self, extent: &Extent, request: Request) -> Option<u32> {
        let Range { start, end } = extent.lines;
        let at = align(&self.layout, extent.chunk, start, request.align_bytes)?;
        let needed = at - start + request.lines;
        let kept = needed.max(KEPT_LINES_MIN).max((end - start) / (KEPT_PART * self.reservation_count));
        let rest = (end - start).saturating_sub(kept);
        if rest < REST_LINES_MIN || self.free_lists.has_similar(rest, &self.slots) {
            return None;
        }
        self.trim_count += 1;
        Some(start + kept)
    }

    /// Returns the lines after the trim: the reservation is one free block now, and they are another.
    pub(super) fn return_trimmed(&mut self, slot: u32, reservation: &mut Reservation) {
        let Some(trim) = reservation.extent.trim.take() else { return };
        self.trim_count -= 1;
        self.map(slot).starts.set(trim);
        self.release(slot, trim..reservation.extent.lines.end);
        reservation.extent.lines.end = trim;
    }

    /// Leaves the lines in use until the heap is opened again. Other calls no longer wait for them.
    pub(super) fn abandon(&mut self, reservation: &Reservation) {
        self.reservation_count -= 1;
        self.trim_count -= u32::from(reservation.extent.trim.is_some());
    }

    /// Returns a reservation whose transaction was rolled back. Free blocks that were joined or trimmed stay so.
    pub(super) fn return_unused(&mut self, slot: u32, reservation: &Reservation, now: Moment) {
        if reservation.extent.trim.is_some() {
            // The trim failed, and it is unknown which of its headers are durable.
            return self.abandon(reservation);
        }
        self.reservation_count -= 1;
        let lines = reservation.extent.lines.clone();
        if reservation.joined.is_some() {
            self.map(slot).starts.clear_range(lines.start + 1..lines.end);
        }
        match reservation.joined {
            None | Some(Lsn::ZERO) => self.release(slot, lines),
            Some(lsn) => self.quarantine_gap(slot, lines, lsn, now),
        }
    }

    /// Allocates what was carved from a reservation: its transaction has committed, and the headers are in place.
    #[inline]
    pub(super) fn settle(&mut self, slot: u32, reservation: &Reservation, lsn: Lsn, now: Moment) {
        if !reservation.is_carved() {
            return self.return_unused(slot, reservation, now);
        }
        self.reservation_count -= 1;
        let map = self.map(slot);
        let Range { start, end } = reservation.extent.lines;
        // No block starts in the rest: the last of the former blocks starts before it.
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

    /// Quarantines free lines that were not allocated before, until the checkpoint LSN has reached `lsn` and no longer. The lines before
    /// them may be free: an unlogged store to a block that covers both would overwrite their header, which the log could still replay.
    fn quarantine_gap(&mut self, slot: u32, lines: Range<u32>, lsn: Lsn, now: Moment) {
        self.quarantine.push_gap(slot, lines, lsn);
        self.drain_quarantine(Lsn::ZERO, now, DRAIN_STEP);
    }

    /// Allocates the block on these lines, whose headers are in place. The rest, up to `free_end`, is one free block.
    #[inline]
    fn settle_block(&mut self, slot: u32, block: Range<u32>, free_end: u32, is_several_blocks: bool) {
        let map = self.map(slot);
        if is_several_blocks {
            map.starts.clear_range(block.start + 1..block.end);
        }
        map.live.set(block.start);
        if block.end < free_end {
            map.starts.set(block.end);
        }
        self.list_extent_from(slot, block.end);
    }

    /// The allocated block that starts at a line, and the lines that become one free block when it is freed. If the purpose is to free it,
    /// it is no longer live, and its free neighbours are taken out of use.
    #[inline]
    pub(super) fn find<P: Pmem>(
        &mut self,
        pmem: &P,
        slot: u32,
        line: u32,
        purpose: Purpose,
    ) -> Result<(Range<u32>, Range<u32>), FreeError> {
        let neighbours = match purpose {
            Purpose::FreeAndCoalesce => self.neighbours(pmem, slot, line),
            Purpose::Look | Purpose::Free => [line..line, line..line],
        };
        let block = line..line + self.find_block(pmem, slot, line, purpose != Purpose::Look)?;
        let coalesced = self.hold_neighbours(pmem, slot, block.clone(), neighbours);
        Ok((block, coalesced))
    }

    /// Cancels the freeing of a block: it is live again, and its neighbours are free.
    pub(super) fn cancel_free(&mut self, slot: u32, block: Range<u32>, coalesced: Range<u32>) {
        self.map(slot).live.set(block.start);
        for side in [coalesced.start..block.start, block.end..coalesced.end] {
            self.release(slot, side);
        }
    }

    /// Finishes freeing a block, committed with this LSN: these lines are one free block now.
    #[inline]
    pub(super) fn finish_free(&mut self, slot: u32, lines: Range<u32>, lsn: Lsn, now: Moment) {
        self.map(slot).starts.clear_range(lines.start + 1..lines.end);
        self.quarantine(slot, lines, lsn, now);
    }

    /// Quarantines lines that are one free block, until the checkpoint LSN has reached `lsn` and their time is over.
    #[inline]
    pub(super) fn quarantine(&mut self, slot: u32, lines: Range<u32>, lsn: Lsn, now: Moment) {
        self.quarantine.push(slot, lines, lsn, now);
        self.drain_quarantine(Lsn::ZERO, now, DRAIN_STEP);
    }

    /// Makes lines free.
    #[inline]
    pub(super) fn release(&mut self, slot: u32, lines: Range<u32>) {
        if let Some(extent) = self.map(slot).release(lines) {
            self.list(slot, extent);
        }
    }

    /// Adds the free extent that starts at a line, if one does, to the free lists.
    #[inline]
    pub(super) fn list_extent_from(&mut self, slot: u32, line: u32) {
        if let Some(end) = self.map(slot).extent_from(line) {
            self.list(slot, line..end);
        }
    }

    /// Takes an extent with room for `lines` lines from the free lists, and returns its start and its end.
    #[inline]
    fn take_candidate<P: Pmem>(
        &mut self,
        pmem: &P,
        lines: u32,
        prefers_exact: bool,
    ) -> Option<(Candidate, u32)> {
        let in_chunk = chunk_lines(&self.layout) as usize;
        let in_any_case = (in_chunk / CHUNK_LINES_PER_HOLE_LINE).min(HOLE_LINES_IN_ANY_CASE);
        let hole_lines_max = in_any_case.max(self.slots.len() * in_chunk / LINES_PER_HOLE_LINE);
        let found = if prefers_exact && !self.is_exhausted && self.free_lists.hole_lines() < hole_lines_max {
            self.free_lists.take_exact_or_long(lines, &self.slots)
        } else {
            self.free_lists.take(lines, &self.slots)
        };
        if let Some((candidate, end)) = found {
            self.prefetch_next(pmem, end - candidate.line);
        }
        found
    }

    /// Prefetches the header of the next block of this length.
    #[inline]
    fn prefetch_next<P: Pmem>(&self, pmem: &P, lines: u32) {
        if let Some(Candidate { slot, line }) = self.free_lists.next(lines)
            && let Some(map) = &self.slots[slot as usize]
        {
            pmem.prefetch(header_offset(&self.layout, map.chunk, line));
        }
    }

    /// Reserves the part of a free extent that the block needs: from the last block start before it to the first after it.
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

    /// Reserves a run of adjacent free blocks with `wanted` lines in total, so that no header is needed after them. Their free neighbours
    /// stay free.
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
        let (chunk, is_several_blocks) = (map.chunk, map.next_start(lines.start) < lines.end);
        map.hold(lines.clone());
        self.reservation_count += 1;
        self.list(slot, free.start..lines.start);
        self.list(slot, lines.end..free.end);
        Some(Extent {
            slot: Some(ArenaSlot { arena: self.number, slot }),
            chunk,
            lines,
            is_several_blocks,
            trim: None,
        })
    }

    /// The length of the allocated block that starts at a line.
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
            // A block that a repair marked lost is not free.
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

    /// The free lines before and after the block at a line, which one header can free together with it. Empty where the extent is long: it
    /// would be quarantined with the block.
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

    /// Takes the free neighbours of a block that is about to be freed out of use, unless their headers are corrupted. Returns the lines of
    /// all three.
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

    /// Takes the block of a corrupted header permanently out of a free extent, and records the corruption.
    #[cold]
    fn isolate_free(&mut self, slot: u32, free: Range<u32>, corrupted: CorruptedFree) {
        let CorruptedFree { lines, found } = corrupted;
        self.isolate(slot, lines.clone(), found);
        self.list(slot, free.start..lines.start);
        self.list(slot, lines.end..free.end);
    }

    /// Takes the block of a corrupted header permanently out of use, and records the corruption.
    #[cold]
    fn isolate(&mut self, slot: u32, lines: Range<u32>, found: u64) {
        self.withdraw(slot, lines.clone());
        let layout = self.layout;
        let chunk = self.map(slot).chunk;
        self.corruptions.push(corruption(&layout, chunk, lines, found, CorruptionKind::Known));
    }

    /// Takes the block of a corrupted header permanently out of use.
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

    /// Adds a free extent, unless it is empty, to the free lists.
    #[inline]
    pub(super) fn list(&mut self, slot: u32, extent: Range<u32>) {
        if !extent.is_empty() {
            self.free_lists.push(slot, extent.start, extent.end - extent.start);
            self.free_lists.purge_if_many(&self.slots);
        }
    }
}

/// A free block that is about to be allocated by a commit, with its arena locked. Free again if it is dropped before it is
/// [settled](Self::settle).
#[derive(Debug)]
#[must_use = "the block is free again when this is dropped"]
pub(crate) struct HeldBlock<'s> {
    arena: SpinGuard<'s, Arena>,
    slot: u32,
    chunk: u64,
    block: Range<u32>,
    /// The end of the free block that the held one is cut from.
    free_end: u32,
    /// Whether the block covers several free blocks, and so their headers.
    pub(super) is_several_blocks: bool,
    now: Moment,
    is_settled: bool,
}

impl HeldBlock<'_> {
    /// The offset of the block's payload.
    #[inline]
    pub(crate) fn payload(&self) -> u64 {
        line_offset(&self.arena.layout, self.chunk, self.block.start)
    }

    /// The block's header.
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

    /// The headers are durable: the block is allocated. Quarantined blocks whose freeing is at or below `checkpoint_lsn` are drained
    /// incrementally: here, while the processor still waits for the fence of the commit, rather than before the search for a block.
    #[inline]
    pub(crate) fn settle(mut self, checkpoint_lsn: Lsn) {
        self.is_settled = true;
        self.arena.settle_block(self.slot, self.block.clone(), self.free_end, self.is_several_blocks);
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

/// An allocated block that is about to be freed by a commit, with its arena locked. Allocated as before if it is dropped before it is
/// [settled](Self::settle).
#[derive(Debug)]
#[must_use = "the block is allocated as before when this is dropped"]
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
    /// The result of [`Arena::find`], for a purpose that frees the block.
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

    /// The header is durable, by a commit with this LSN: the block is quarantined until the checkpoint LSN has reached it.
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
