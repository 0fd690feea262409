//! An arena: some chunks, from which one thread, or a few, allocate. All of it is protected by the arena's lock.

use super::chunk_map::{ChunkMap, CorruptedFree};
use super::error::{Corruption, CorruptionKind, FreeError};
use super::free_lists::{Candidate, FreeLists};
use super::headers::{align, chunk_lines, corruption, header_offset, line_offset, read};
use super::quarantine::{Moment, Quarantine};
use super::reservation::{ArenaSlot, Extent, Reservation};
use crate::format::{BlockHeader, BlockState, Lsn};
use crate::layout::Layout;
use core::ops::{Range, RangeInclusive};
use pm_core::Pmem;

/// Quarantined blocks that one call examines.
pub(super) const DRAIN_STEP: usize = 4;

/// Free extents of up to so many lines are coalesced with a freed block beside them, in chunks of 1 MiB; in smaller ones shorter ones.
const COALESCED_MAX: u32 = 64;

/// One line in so many, 0.4 %, may be in short extents that are kept for blocks of their length.
const LINES_PER_HOLE_LINE: usize = 256;

/// Of the lines of one chunk, one in so many may be in such extents in any case, up to this number. That is 128 KiB of 1 MiB: if
/// blocks of all lengths up to 4 KiB are allocated twice as often as freed, there is one extent of each length on average, which is as
/// much.
const CHUNK_LINES_PER_HOLE_LINE: usize = 8;
const HOLE_LINES_IN_ANY_CASE: usize = 2048;

/// Of the last long extent a transaction keeps one part in so many, a smaller one the more reservations there are, and at least so many
/// lines. The next transactions allocate from the rest of that part: each trim costs two fences.
const KEPT_PART: u32 = 8;
const KEPT_LINES_MIN: u32 = 64;

/// A shorter rest is not worth the fences.
const REST_LINES_MIN: u32 = 128;

/// The arena.
#[derive(Debug)]
pub(super) struct Arena {
    pub(super) layout: Layout,
    number: u32,
    pub(super) slots: Vec<Option<Box<ChunkMap>>>,
    vacant: Vec<u32>,
    free_lists: FreeLists,
    pub(super) quarantine: Quarantine,
    /// There were no more free chunks. Preferring extents of the exact length would only lead to a search for one each time.
    pub(super) is_exhausted: bool,
    /// The highest checkpoint LSN that was passed in.
    checkpoint_lsn: Lsn,
    /// Reservations that are not settled.
    pub(super) reservation_count: u32,
    /// Reservations that are being trimmed: the rest of each is about to be free.
    pub(super) trim_count: u32,
    pub(super) corruptions: Vec<Corruption>,
}

/// A wanted block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) lines: u32,
    pub(super) align_bytes: u64,
    /// Lines that have room for the block wherever they start.
    pub(super) roomy: u32,
    /// Runs of free blocks with the block's length, or with up to so many lines, are preferred to splitting a free block. None if this is
    /// less than the block's length.
    pub(super) whole_up_to: u32,
    /// The reservation is kept until a transaction ends.
    pub(super) is_for_transaction: bool,
}

/// Why a block is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Look,
    Free,
    /// To be freed as one block with its free neighbours.
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

    /// Takes in a chunk, and returns its slot.
    pub(super) fn insert(&mut self, map: ChunkMap) -> u32 {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("there are fewer chunks")
        });
        let mut line = map.first;
        while let Some(extent) = map.extent_behind(line) {
            line = extent.end;
            self.free_lists.push(slot, extent.start, extent.end - extent.start);
        }
        self.slots[slot as usize] = Some(Box::new(map));
        self.is_exhausted = false;
        self.free_lists.purge_if_many(&self.slots);
        slot
    }

    /// Removes a chunk, if no line of it is in use.
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

    /// Reserves a free extent for this block: the shortest in the free lists, or, while there are few short ones and `prefers_close`, one
    /// of the same length.
    #[inline]
    pub(super) fn reserve<P: Pmem>(
        &mut self,
        pmem: &P,
        request: Request,
        prefers_close: bool,
    ) -> Option<Extent> {
        let whole = request.lines..=request.whole_up_to;
        if !whole.is_empty()
            && let Some(extent) = self.reserve_run(pmem, whole)
        {
            return Some(extent);
        }
        loop {
            let (candidate, end) = self.take_candidate(pmem, request.roomy, prefers_close)?;
            // `None` only if a header was corrupted.
            if let Some(extent) = self.reserve_at(pmem, candidate, end, request) {
                return Some(extent);
            }
        }
    }

    /// As [`reserve`](Self::reserve), at any alignment, for a caller that keeps the arena's lock until the block is
    /// [settled](Self::settle_block) or [released](Self::release): only the block's own lines are taken out of use. Returns the slot, the
    /// chunk, the first line, the end of the free block that the block is cut from, and whether those were several.
    #[inline]
    pub(super) fn reserve_block<P: Pmem>(
        &mut self,
        pmem: &P,
        lines: u32,
    ) -> Option<(u32, u64, Range<u32>, bool)> {
        let layout = self.layout;
        loop {
            let (Candidate { slot, line }, end) = self.take_candidate(pmem, lines, true)?;
            let map = self.map(slot);
            let behind = line + lines;
            let to = map.next_start(behind - 1);
            if let Some(corrupted) = map.find_corrupted(pmem, &layout, line..to) {
                self.isolate_free(slot, line..end, corrupted);
                continue;
            }
            let (chunk, is_several) = (map.chunk, map.next_start(line) < to);
            map.hold(line..behind);
            return Some((slot, chunk, line..to, is_several));
        }
    }

    /// Reserves a free extent for this block, searched in the maps.
    pub(super) fn search<P: Pmem>(&mut self, pmem: &P, request: Request) -> Option<Extent> {
        for slot in 0..self.slots.len() {
            let mut line = 1;
            while let Some(map) = self.slots[slot].as_ref().filter(|map| map.free_lines >= request.lines) {
                let Some(free) = map.extent_behind(line) else { break };
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

    /// Where to trim an extent that was reserved for a transaction, if there is no other free extent of about its length. The lines
    /// behind are [returned](Self::return_trimmed) as soon as they are a free block of their own.
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

    /// The reservation is one free block, and the lines behind its trim are another.
    pub(super) fn return_trimmed(&mut self, slot: u32, reservation: &mut Reservation) {
        let Some(trim) = reservation.extent.trim.take() else { return };
        self.trim_count -= 1;
        self.map(slot).starts.set(trim);
        self.release(slot, trim..reservation.extent.lines.end);
        reservation.extent.lines.end = trim;
    }

    /// The lines stay in use until the heap is opened again. No other call waits for them any more.
    pub(super) fn abandon(&mut self, reservation: &Reservation) {
        self.reservation_count -= 1;
        self.trim_count -= u32::from(reservation.extent.trim.is_some());
    }

    /// The transaction was rolled back: everything is as before, except for what was joined or trimmed.
    pub(super) fn return_unused(&mut self, slot: u32, reservation: &Reservation, now: Moment) {
        if reservation.extent.trim.is_some() {
            // The trim failed, and which of its headers are stored is not known.
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

    /// The transaction committed, and its headers are in place.
    #[inline]
    pub(super) fn settle(&mut self, slot: u32, reservation: &Reservation, lsn: Lsn, now: Moment) {
        if !reservation.is_carved() {
            return self.return_unused(slot, reservation, now);
        }
        self.reservation_count -= 1;
        let map = self.map(slot);
        let Range { start, end } = reservation.extent.lines;
        // There are no starts in the rest: the last one of the former blocks was before it.
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

    /// Quarantines free lines that no commit has freed, only until the checkpoint LSN has reached `lsn`. The lines before them may be free,
    /// and a block may be laid over their header, unlogged, while the log can still replay that header.
    fn quarantine_gap(&mut self, slot: u32, lines: Range<u32>, lsn: Lsn, now: Moment) {
        self.quarantine.push_gap(slot, lines, lsn);
        self.drain_quarantine(Lsn::ZERO, now, DRAIN_STEP);
    }

    /// The block on these lines is allocated, and its headers are in place; the rest up to `end`, where a free block ended, is one
    /// free block.
    #[inline]
    pub(super) fn settle_block(&mut self, slot: u32, block: Range<u32>, end: u32, is_several: bool) {
        let map = self.map(slot);
        if is_several {
            map.starts.clear_range(block.start + 1..block.end);
        }
        map.live.set(block.start);
        if block.end < end {
            map.starts.set(block.end);
        }
        self.list_extent_from(slot, block.end);
    }

    /// The allocated block that starts at a line, and the lines that become one free block with it. If it is to be freed, it is not live
    /// any more, and its free neighbours are out of use.
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

    /// The transaction was rolled back: the block is live again, and its neighbours are free.
    pub(super) fn cancel_free(&mut self, slot: u32, block: Range<u32>, coalesced: Range<u32>) {
        self.map(slot).live.set(block.start);
        for side in [coalesced.start..block.start, block.end..coalesced.end] {
            self.release(slot, side);
        }
    }

    /// The transaction committed: these lines are one free block.
    #[inline]
    pub(super) fn finish_free(&mut self, slot: u32, lines: Range<u32>, lsn: Lsn, now: Moment) {
        self.map(slot).starts.clear_range(lines.start + 1..lines.end);
        self.quarantine(slot, lines, lsn, now);
    }

    /// Quarantines lines that are one free block, until the checkpoint LSN has reached an LSN.
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

    /// Lists the free extent that starts at a line, if one does.
    #[inline]
    pub(super) fn list_extent_from(&mut self, slot: u32, line: u32) {
        if let Some(end) = self.map(slot).extent_from(line) {
            self.list(slot, line..end);
        }
    }

    /// Takes the extent of a corrupted header at a line out of use for good, and returns the header that records it. `found` is what the
    /// header says now, if it is intact: where that is right, nothing is given up. Where the chain is broken there, so many `chunks` are
    /// unreachable.
    pub(super) fn give_up(
        &mut self,
        slot: u32,
        line: u32,
        chunks: u64,
        found: Option<BlockHeader>,
    ) -> Option<BlockHeader> {
        const END: BlockHeader = BlockHeader::new(BlockState::End, 0);
        let map = self.map(slot);
        if line == map.lines {
            // Behind a broken chain it is not known that the chunk ends here: the header may be inside of a block.
            return (map.unreachable_from == line && found != Some(END)).then_some(END);
        }
        if line == map.unreachable_from {
            let lines = u32::try_from(chunks * u64::from(map.lines) - u64::from(line)).ok()?;
            let header = BlockHeader::new(BlockState::Unreachable, lines);
            return found.is_none_or(|found| found.state != BlockState::Unreachable).then_some(header);
        }
        if line > map.unreachable_from || !map.starts.get(line) {
            return None;
        }
        let lines = line..map.next_start(line);
        let header = BlockHeader::new(BlockState::Lost, lines.end - lines.start);
        if found.is_some_and(|found| found.lines == header.lines) {
            return None;
        }
        let free = (!map.used.get(line)).then(|| map.extent_around(line));
        self.withdraw(slot, lines.clone());
        if let Some(free) = free {
            self.list(slot, free.start..lines.start);
            self.list(slot, lines.end..free.end);
        }
        Some(header)
    }

    /// Takes an entry for so many lines from the free lists, and returns it with the end of the extent.
    #[inline]
    fn take_candidate<P: Pmem>(
        &mut self,
        pmem: &P,
        lines: u32,
        prefers_close: bool,
    ) -> Option<(Candidate, u32)> {
        let in_chunk = chunk_lines(&self.layout) as usize;
        let in_any_case = (in_chunk / CHUNK_LINES_PER_HOLE_LINE).min(HOLE_LINES_IN_ANY_CASE);
        let kept = in_any_case.max(self.slots.len() * in_chunk / LINES_PER_HOLE_LINE);
        let found = if prefers_close && !self.is_exhausted && self.free_lists.hole_lines() < kept {
            self.free_lists.take_close(lines, &self.slots)
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

    /// Reserves in a free extent the lines that the block needs: from the last block start before it to the first behind it.
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
        let behind = at.checked_add(request.lines).filter(|behind| *behind <= end)?;
        let from = if at == line { line } else { map.starts.last_set(at + 1).unwrap_or(line) };
        let to = map.next_start(behind - 1);
        self.reserve_part(pmem, slot, line..end, from..to)
    }

    /// Reserves adjacent free blocks that have so many lines together, so that no header is needed behind them. Their free neighbours stay
    /// free.
    #[inline]
    fn reserve_run<P: Pmem>(&mut self, pmem: &P, wanted: RangeInclusive<u32>) -> Option<Extent> {
        let lines = *wanted.start();
        let exact = self.free_lists.take_exact(lines, &self.slots).map(|(candidate, _)| (candidate, lines));
        let (Candidate { slot, line }, lines) =
            exact.or_else(|| self.free_lists.find_run(wanted, &self.slots))?;
        let free = self.map(slot).extent_around(line);
        self.reserve_part(pmem, slot, free, line..line + lines)
    }

    /// Reserves a part of a free extent, which starts and ends with blocks of the chain. `None` if one of their headers is corrupted.
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
        let (chunk, is_several) = (map.chunk, map.next_start(lines.start) < lines.end);
        map.hold(lines.clone());
        self.reservation_count += 1;
        self.list(slot, free.start..lines.start);
        self.list(slot, lines.end..free.end);
        Some(Extent {
            slot: Some(ArenaSlot { arena: self.number, slot }),
            chunk,
            lines,
            is_several,
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
            // A block that a repair gave up is not free.
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

    /// The free lines before and behind the block at a line, if there is one, that one header can free together with it. Long extents
    /// are left out, as they would be quarantined with the block.
    #[inline]
    fn neighbours<P: Pmem>(&mut self, pmem: &P, slot: u32, line: u32) -> [Range<u32>; 2] {
        let most = COALESCED_MAX.min(chunk_lines(&self.layout) / 16);
        let layout = self.layout;
        let map = self.map(slot);
        let end = map.next_start(line);
        let before = map.used.last_set(line).map_or(line, |used| used + 1)..line;
        let behind = end..map.used.next_set(end);
        [before, behind].map(|side| {
            if side.end - side.start > most {
                return side.start..side.start;
            }
            if !side.is_empty() {
                pmem.prefetch(header_offset(&layout, map.chunk, side.start));
            }
            side
        })
    }

    /// Takes the free neighbours of a block that is about to be freed out of use, except where their headers are corrupted.
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

    /// Takes the block of a corrupted header out of a free extent for good, and records the corruption.
    #[cold]
    fn isolate_free(&mut self, slot: u32, free: Range<u32>, corrupted: CorruptedFree) {
        let CorruptedFree { lines, found } = corrupted;
        self.isolate(slot, lines.clone(), found);
        self.list(slot, free.start..lines.start);
        self.list(slot, lines.end..free.end);
    }

    /// Takes the block of a corrupted header out of use for good, and records the corruption.
    #[cold]
    fn isolate(&mut self, slot: u32, lines: Range<u32>, found: u64) {
        self.withdraw(slot, lines.clone());
        let layout = self.layout;
        let chunk = self.map(slot).chunk;
        self.corruptions.push(corruption(&layout, chunk, lines, found, CorruptionKind::Known));
    }

    /// Takes the block of a corrupted header out of use for good.
    fn withdraw(&mut self, slot: u32, lines: Range<u32>) {
        let map = self.map(slot);
        if !map.used.get(lines.start) {
            map.hold(lines.clone());
        }
        map.live.clear(lines.start);
        if map.lost_at(lines.start).is_none() {
            map.lost.push(lines);
        }
    }

    #[inline]
    fn list(&mut self, slot: u32, extent: Range<u32>) {
        if !extent.is_empty() {
            self.free_lists.push(slot, extent.start, extent.end - extent.start);
            self.free_lists.purge_if_many(&self.slots);
        }
    }
}
