//! The chunks of one arena: what is free in them, and what waits to become so. All of it is under the arena's lock.

use super::chunk::ChunkMap;
use super::clock::Moment;
use super::damage::{Damage, DamageKind};
use super::finding::verify;
use super::hints::Hints;
use super::reservation::{Reservation, Waiting};
use super::runs::Runs;
use super::scan::{chunk_lines, damage, header_offset};
use crate::format::{BlockState, Stamp};
use crate::layout::Layout;
use core::ops::Range;
use pm_core::Pmem;
use std::collections::VecDeque;

/// Free extents of up to so many lines are freed anew with a block next to them, in chunks of 1 MiB; in smaller ones
/// shorter.
const MERGED_MAX: u32 = 64;

/// Freed blocks that are looked at in passing.
pub(super) const IN_PASSING: usize = 4;

/// Some chunks, whose free space is given to one thread, or a few.
#[derive(Debug)]
pub(super) struct Arena {
    pub(super) layout: Layout,
    pub(super) number: u32,
    pub(super) slots: Vec<Option<Box<ChunkMap>>>,
    vacant: Vec<u32>,
    pub(super) hints: Hints,
    pub(super) runs: Runs,
    /// What was freed, in the order of time.
    waiting: VecDeque<Waiting>,
    /// Free lines that no commit has freed, and whose header the log may still replay. They wait for the horizon only.
    gaps: VecDeque<Waiting>,
    /// There were no more chunks to be had. Patience would only lead to looking for one each time.
    pub(super) is_starved: bool,
    /// The highest horizon heard of.
    horizon: Stamp,
    /// Reservations that are not over.
    pub(super) held: u32,
    /// Reservations that are being cut: the rest of each is about to be free.
    pub(super) cuts: u32,
    pub(super) damages: Vec<Damage>,
}

impl Arena {
    pub(super) fn new(layout: Layout, number: u32) -> Self {
        Self {
            layout,
            number,
            slots: Vec::new(),
            vacant: Vec::new(),
            hints: Hints::new(),
            runs: Runs::default(),
            waiting: VecDeque::new(),
            gaps: VecDeque::new(),
            is_starved: false,
            horizon: Stamp::ZERO,
            held: 0,
            cuts: 0,
            damages: Vec::new(),
        }
    }

    /// Takes in a chunk, and says in which slot.
    pub(super) fn adopt(&mut self, map: ChunkMap) -> u32 {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("there are fewer chunks")
        });
        let mut line = map.first;
        while let Some(extent) = map.extent_behind(line) {
            line = extent.end;
            self.hints.push(slot, extent.start, extent.end - extent.start);
        }
        self.slots[slot as usize] = Some(Box::new(map));
        self.is_starved = false;
        self.hints.purge_if_many(&self.slots);
        slot
    }

    /// Gives away a chunk of which nothing is in use, if it is one.
    pub(super) fn evict(&mut self, slot: u32) -> Option<Box<ChunkMap>> {
        let map = self.slots[slot as usize].take_if(|map| map.is_whole())?;
        self.vacant.push(slot);
        Some(map)
    }

    /// Removes a chunk of which a block longer than one takes all that is free.
    pub(super) fn remove(&mut self, slot: u32) {
        if self.slots[slot as usize].take().is_some() {
            self.vacant.push(slot);
        }
    }

    #[inline]
    pub(super) fn map(&mut self, slot: u32) -> &mut ChunkMap {
        self.slots[slot as usize].as_mut().expect("chunks in use are not given away")
    }

    /// Lets free lines go that waited long enough, looking at no more than `most` extents.
    #[inline]
    pub(super) fn advance(&mut self, horizon: Stamp, now: Moment, most: usize) {
        self.horizon = self.horizon.max(horizon);
        for _ in 0..most {
            let horizon = self.horizon;
            let ready = |freed: &mut Waiting| freed.stamp <= horizon && now.is_due(freed.due_ns);
            let next = self.gaps.pop_front_if(ready).or_else(|| self.waiting.pop_front_if(ready));
            let Some(freed) = next else { return };
            self.release(freed.at, freed.line..freed.line + freed.lines);
        }
    }

    /// Whether free lines wait.
    pub(super) fn is_waiting(&self) -> bool {
        !(self.waiting.is_empty() && self.gaps.is_empty())
    }

    /// The free lines that wait.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Waiting> {
        self.waiting.iter().chain(&self.gaps)
    }

    /// The block on these lines is allocated, and its headers are in place; the rest up to `end`, where a free block ended,
    /// is one free block.
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
        self.hint_behind(slot, block.end);
    }

    /// As if it had never been reserved.
    pub(super) fn return_block(&mut self, slot: u32, block: Range<u32>) {
        self.release(slot, block);
    }

    /// Takes note of the free extent that begins at a line, if one does.
    #[inline]
    pub(super) fn hint_behind(&mut self, slot: u32, line: u32) {
        if let Some(end) = self.map(slot).extent_from(line) {
            self.hint(slot, line..end);
        }
    }

    /// The reservation is [prepared](Reservation::prepare), and the lines behind its cut are a free block of their own.
    pub(super) fn return_rest(&mut self, slot: u32, reservation: &mut Reservation) {
        let Some(cut) = reservation.cut.take() else { return };
        self.cuts -= 1;
        self.map(slot).starts.set(cut);
        self.release(slot, cut..reservation.end);
        reservation.end = cut;
    }

    /// The lines stay in use until the heap is opened again. No other call waits for them any more.
    pub(super) fn abandon(&mut self, reservation: &Reservation) {
        self.held -= 1;
        self.cuts -= u32::from(reservation.cut.is_some());
    }

    /// The transaction was given up: all is as it was, but for what was joined or cut.
    pub(super) fn return_unused(&mut self, slot: u32, reservation: &Reservation, now: Moment) {
        if reservation.cut.is_some() {
            // The cut failed, and which of its headers are stored is not known.
            return self.abandon(reservation);
        }
        self.held -= 1;
        let lines = reservation.start..reservation.end;
        if reservation.joined.is_some() {
            self.map(slot).starts.clear_range(lines.start + 1..lines.end);
        }
        match reservation.joined {
            None | Some(Stamp::ZERO) => self.release(slot, lines),
            Some(stamp) => self.wait_as_gap(slot, lines.start, lines.end - lines.start, stamp, now),
        }
    }

    /// The transaction committed, and its headers are in place.
    #[inline]
    pub(super) fn settle(&mut self, slot: u32, reservation: &Reservation, stamp: Stamp, now: Moment) {
        if !reservation.is_carved() {
            return self.return_unused(slot, reservation, now);
        }
        self.held -= 1;
        let map = self.map(slot);
        // There are no starts in the rest: the last one of the former blocks was in front of it.
        map.starts.clear_range(reservation.start + 1..reservation.cursor);
        for piece in reservation.pieces() {
            map.starts.set(piece.line);
            if piece.state == BlockState::Allocated {
                map.live.set(piece.line);
            }
        }
        if reservation.cursor < reservation.end {
            map.starts.set(reservation.cursor);
            self.release(slot, reservation.cursor..reservation.end);
        }
        for gap in reservation.pieces().filter(|piece| piece.state == BlockState::Free) {
            self.wait_as_gap(slot, gap.line, gap.lines, stamp, now);
        }
    }

    /// The free lines before and behind the block at a line, if there is one, that one header can free together with it. What is
    /// long is left out, for it would be nobody's until the horizon has passed.
    #[inline]
    pub(super) fn sides<P: Pmem>(&mut self, pmem: &P, slot: u32, line: u32) -> [Range<u32>; 2] {
        let most = MERGED_MAX.min(chunk_lines(&self.layout) / 16);
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

    /// Takes these free lines beside a block that is about to be freed out of use, unless their headers are damaged.
    #[inline]
    pub(super) fn hold_around<P: Pmem>(
        &mut self,
        pmem: &P,
        slot: u32,
        block: Range<u32>,
        sides: [Range<u32>; 2],
    ) -> Range<u32> {
        let mut around = block;
        for side in sides.into_iter().filter(|side| !side.is_empty()) {
            let layout = self.layout;
            let map = self.map(slot);
            if let Some(broken) = verify(pmem, &layout, map, side.clone()) {
                self.isolate(slot, broken.lines.clone(), broken.found);
                self.hint(slot, side.start..broken.lines.start);
                self.hint(slot, broken.lines.end..side.end);
                continue;
            }
            map.hold(side.clone());
            around = around.start.min(side.start)..around.end.max(side.end);
        }
        around
    }

    /// The transaction was given up: the block is live again, and what was around it free.
    pub(super) fn cancel_free(&mut self, slot: u32, block: Range<u32>, around: Range<u32>) {
        self.map(slot).live.set(block.start);
        for side in [around.start..block.start, block.end..around.end] {
            self.release(slot, side);
        }
    }

    /// The transaction committed: these lines are one free block.
    #[inline]
    pub(super) fn finish_free(&mut self, slot: u32, lines: Range<u32>, stamp: Stamp, now: Moment) {
        self.map(slot).starts.clear_range(lines.start + 1..lines.end);
        self.wait(slot, lines.start, lines.end - lines.start, stamp, now);
    }

    /// Lets lines that are one free block go once the horizon has reached a stamp.
    #[inline]
    pub(super) fn wait(&mut self, slot: u32, line: u32, lines: u32, stamp: Stamp, now: Moment) {
        self.waiting.push_back(Waiting { at: slot, line, lines, stamp, due_ns: now.due_ns() });
        self.advance(Stamp::ZERO, now, IN_PASSING);
    }

    /// The same for lines that no commit has freed: only until the horizon has reached the stamp, without the time for which freed
    /// blocks wait. The lines before them may be free, and a block may be laid over their header, unlogged, while the log can still
    /// replay that header.
    fn wait_as_gap(&mut self, slot: u32, line: u32, lines: u32, stamp: Stamp, now: Moment) {
        self.gaps.push_back(Waiting { at: slot, line, lines, stamp, due_ns: 0 });
        self.advance(Stamp::ZERO, now, IN_PASSING);
    }

    /// Takes out of use for good what a damaged header belongs to, and takes note of it.
    pub(super) fn isolate(&mut self, slot: u32, lines: Range<u32>, found: u64) {
        self.withdraw(slot, lines.clone());
        let layout = self.layout;
        let chunk = self.map(slot).chunk;
        self.damages.push(damage(&layout, chunk, lines, found, DamageKind::Known));
    }

    /// Takes out of use for good what a damaged header belongs to.
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

    #[inline]
    fn release(&mut self, slot: u32, lines: Range<u32>) {
        if let Some(extent) = self.map(slot).release(lines) {
            self.hint(slot, extent);
        }
    }

    #[inline]
    pub(super) fn hint(&mut self, slot: u32, extent: Range<u32>) {
        if !extent.is_empty() {
            self.hints.push(slot, extent.start, extent.end - extent.start);
            self.hints.purge_if_many(&self.slots);
        }
    }
}
