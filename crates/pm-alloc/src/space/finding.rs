//! Which free space of an arena a block gets.

use super::arena::Arena;
use super::chunk::ChunkMap;
use super::hints::Hint;
use super::reservation::{Held, Place, align};
use super::scan::{chunk_lines, header_offset, read};
use crate::format::{BlockHeader, BlockState};
use crate::layout::Layout;
use core::ops::{Range, RangeInclusive};
use pm_core::Pmem;

/// Of so many lines, one may be in a hole that waits for a block of its length: 0.4 %.
const LINES_PER_HOLE_LINE: usize = 256;

/// Of the lines of one chunk, one in so many may be in such holes anyway, up to this number. That is 128 KiB of 1 MiB: if
/// blocks of all lengths up to 4 KiB come twice as often as they go, there is one hole of each length on average, which is as
/// much.
const CHUNK_LINES_PER_HOLE_LINE: usize = 8;
const HOLE_LINES_IN_ANY_CASE: usize = 2048;

/// Of the last long extent a transaction keeps one part in so many, a smaller one the more reservations there are, and so many lines
/// at least. The next transactions allocate from what is left of that part: each cut costs two fences.
const KEPT_PART: u32 = 8;
const KEPT_LINES_MIN: u32 = 64;

/// A shorter rest is not worth the fences.
const REST_LINES_MIN: u32 = 128;

/// A wanted block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) lines: u32,
    pub(super) align_bytes: u64,
    /// Lines that have room for it wherever they start.
    pub(super) roomy: u32,
    /// Free blocks that have its length together, or up to so many lines, are rather taken than one is cut. None if this is
    /// less than its length.
    pub(super) whole_up_to: u32,
    /// The reservation is kept until a transaction ends.
    pub(super) is_for_transaction: bool,
}

impl Arena {
    /// A free extent for this block: the shortest among the hints, or, while there are few holes, one that it fits
    /// well.
    #[inline]
    pub(super) fn reserve<P: Pmem>(&mut self, pmem: &P, request: Request, is_patient: bool) -> Option<Held> {
        let whole = request.lines..=request.whole_up_to;
        if !whole.is_empty()
            && let Some(held) = self.reserve_run(pmem, whole)
        {
            return Some(held);
        }
        loop {
            let (hint, end) = self.find_hint(pmem, request.roomy, is_patient)?;
            // `None` only if it was corrupted.
            if let Some(held) = self.take(pmem, hint, end, request) {
                return Some(held);
            }
        }
    }

    /// As [`reserve`](Self::reserve), wherever it lies, for one who keeps the arena's lock until the block is
    /// [settled](Self::settle_block) or [returned](Self::return_block): only its own lines are taken out of use.
    #[inline]
    pub(super) fn reserve_block<P: Pmem>(&mut self, pmem: &P, lines: u32) -> Option<Held> {
        let layout = self.layout;
        loop {
            let (Hint { slot, line }, end) = self.find_hint(pmem, lines, true)?;
            let map = self.map(slot);
            let behind = line + lines;
            let to = map.next_start(behind - 1);
            if let Some(broken) = verify(pmem, &layout, map, line..to) {
                self.isolate(slot, broken.lines.clone(), broken.found);
                self.hint(slot, line..broken.lines.start);
                self.hint(slot, broken.lines.end..end);
                continue;
            }
            let (chunk, is_several) = (map.chunk, map.next_start(line) < to);
            map.hold(line..behind);
            let place = Place::Arena { arena: self.number, slot };
            return Some(Held { place, chunk, start: line, end: to, is_several, cut: None });
        }
    }

    /// Where a free extent for so many lines may start, and where it ends.
    #[inline]
    fn find_hint<P: Pmem>(&mut self, pmem: &P, lines: u32, is_patient: bool) -> Option<(Hint, u32)> {
        let in_chunk = chunk_lines(&self.layout) as usize;
        let in_any_case = (in_chunk / CHUNK_LINES_PER_HOLE_LINE).min(HOLE_LINES_IN_ANY_CASE);
        let kept = in_any_case.max(self.slots.len() * in_chunk / LINES_PER_HOLE_LINE);
        let found = if is_patient && !self.is_starved && self.hints.hole_lines() < kept {
            self.hints.take_close(lines, &self.slots)
        } else {
            self.hints.take(lines, &self.slots)
        };
        if let Some((hint, end)) = found {
            self.prefetch_next(pmem, end - hint.line);
        }
        found
    }

    /// The next block of this length will have a header that is in the cache.
    #[inline]
    fn prefetch_next<P: Pmem>(&self, pmem: &P, lines: u32) {
        if let Some(Hint { slot, line }) = self.hints.next(lines)
            && let Some(map) = &self.slots[slot as usize]
        {
            pmem.prefetch(header_offset(&self.layout, map.chunk, line));
        }
    }

    /// A free extent for this block, whatever the hints say.
    pub(super) fn search<P: Pmem>(&mut self, pmem: &P, request: Request) -> Option<Held> {
        for slot in 0..self.slots.len() {
            let mut line = 1;
            while let Some(map) = self.slots[slot].as_ref().filter(|map| map.free_lines >= request.lines) {
                let Some(extent) = map.extent_behind(line) else { break };
                let (slot, known) =
                    (u32::try_from(slot).expect("there are fewer chunks"), self.corruptions.len());
                let found = self.take(pmem, Hint { slot, line: extent.start }, extent.end, request);
                if found.is_some() {
                    return found;
                }
                // Where it was corrupted, it is two extents now.
                line = if self.corruptions.len() > known { extent.start } else { extent.end };
            }
        }
        None
    }

    /// Reserves of a free extent what the block needs: from the last start before it to the first behind it.
    #[inline]
    fn take<P: Pmem>(&mut self, pmem: &P, hint: Hint, end: u32, request: Request) -> Option<Held> {
        let Hint { slot, line } = hint;
        let layout = self.layout;
        let map = self.map(slot);
        let chunk = map.chunk;
        let at = align(&layout, chunk, line, request.align_bytes)?;
        let behind = at.checked_add(request.lines).filter(|behind| *behind <= end)?;
        let from = if at == line { line } else { map.starts.last_set(at + 1).unwrap_or(line) };
        let to = map.next_start(behind - 1);
        if let Some(broken) = verify(pmem, &layout, map, from..to) {
            self.isolate(slot, broken.lines.clone(), broken.found);
            self.hint(slot, line..broken.lines.start);
            self.hint(slot, broken.lines.end..end);
            return None;
        }
        let is_several = map.next_start(from) < to;
        map.hold(from..to);
        self.held += 1;
        self.hint(slot, line..from);
        self.hint(slot, to..end);
        let place = Place::Arena { arena: self.number, slot };
        Some(Held { place, chunk, start: from, end: to, is_several, cut: None })
    }

    /// Free blocks, beside each other, that have so many lines together, so that no header need be written behind them. What
    /// is free beside them stays so.
    fn reserve_run<P: Pmem>(&mut self, pmem: &P, wanted: RangeInclusive<u32>) -> Option<Held> {
        let lines = *wanted.start();
        let exact = self.hints.take_exact(lines, &self.slots).map(|(hint, _)| (hint, lines));
        let (Hint { slot, line }, lines) = exact.or_else(|| self.runs.find(wanted, &self.slots))?;
        let layout = self.layout;
        let map = self.map(slot);
        let (chunk, extent, end) = (map.chunk, map.extent_around(line), line + lines);
        let is_several = map.next_start(line) < end;
        if let Some(broken) = verify(pmem, &layout, map, line..end) {
            self.isolate(slot, broken.lines.clone(), broken.found);
            self.hint(slot, extent.start..broken.lines.start);
            self.hint(slot, broken.lines.end..extent.end);
            return None;
        }
        map.hold(line..end);
        self.held += 1;
        self.hint(slot, extent.start..line);
        self.hint(slot, end..extent.end);
        let place = Place::Arena { arena: self.number, slot };
        Some(Held { place, chunk, start: line, end, is_several, cut: None })
    }

    /// Where to cut an extent that was reserved for a transaction, if there is no other free extent of about its length. The lines
    /// behind are [returned](Self::return_rest) as soon as they are a free block of their own.
    pub(super) fn cut(&mut self, held: &Held, request: Request) -> Option<u32> {
        let lines = held.end - held.start;
        let at = align(&self.layout, held.chunk, held.start, request.align_bytes)?;
        let needed = at - held.start + request.lines;
        let kept = needed.max(KEPT_LINES_MIN).max(lines / (KEPT_PART * self.held));
        let rest = lines.saturating_sub(kept);
        if rest < REST_LINES_MIN || self.hints.has_similar(rest, &self.slots) {
            return None;
        }
        self.cuts += 1;
        Some(held.start + kept)
    }
}

/// A free block whose header is corrupted.
pub(super) struct Broken {
    pub(super) lines: Range<u32>,
    pub(super) found: u64,
}

/// Looks at the headers of the free blocks on these lines, before they are laid over.
#[inline]
pub(super) fn verify<P: Pmem>(
    pmem: &P,
    layout: &Layout,
    map: &ChunkMap,
    lines: Range<u32>,
) -> Option<Broken> {
    let mut line = lines.start;
    while line < lines.end {
        let next = map.next_start(line);
        let (found, header) = read(pmem, layout, map.chunk, line);
        if header != Some(BlockHeader::new(BlockState::Free, next - line)) {
            return Some(Broken { lines: line..next, found });
        }
        line = next;
    }
    None
}
