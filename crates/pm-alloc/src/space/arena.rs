//! The chunks of one arena: what is free in them, and what waits to become so. All of it is under the arena's lock.

use super::chunk::ChunkMap;
use super::clock::Moment;
use super::damage::{Damage, DamageKind};
use super::hints::{Hint, Hints};
use super::reservation::{Place, Reservation, Waiting, align};
use super::scan::{damage, read};
use crate::format::{BlockHeader, BlockState, Stamp};
use crate::layout::Layout;
use core::ops::Range;
use pm_core::Pmem;
use std::collections::VecDeque;

/// Freed blocks that are looked at in passing.
pub(super) const IN_PASSING: usize = 4;

/// A wanted block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) lines: u32,
    pub(super) align_bytes: u64,
    /// Lines that have room for it wherever they start.
    pub(super) roomy: u32,
}

/// Some chunks, whose free space is given to one thread, or a few.
#[derive(Debug)]
pub(super) struct Arena {
    pub(super) layout: Layout,
    number: u32,
    pub(super) slots: Vec<Option<Box<ChunkMap>>>,
    vacant: Vec<u32>,
    pub(super) hints: Hints,
    pub(super) waiting: VecDeque<Waiting>,
    /// The highest horizon heard of.
    horizon: Stamp,
    /// Reservations that are not over.
    pub(super) held: u32,
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
            waiting: VecDeque::new(),
            horizon: Stamp::ZERO,
            held: 0,
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
        self.hints.purge_if_many(&self.slots);
        slot
    }

    /// Gives away a chunk of which nothing is in use, if it is one.
    pub(super) fn evict(&mut self, slot: u32) -> Option<Box<ChunkMap>> {
        let map = self.slots[slot as usize].take_if(|map| map.is_whole())?;
        self.vacant.push(slot);
        Some(map)
    }

    pub(super) fn map(&mut self, slot: u32) -> &mut ChunkMap {
        self.slots[slot as usize].as_mut().expect("chunks in use are not given away")
    }

    /// Lets freed blocks go that waited long enough, looking at no more than `most`.
    pub(super) fn advance(&mut self, horizon: Stamp, now: Moment, most: usize) {
        self.horizon = self.horizon.max(horizon);
        for _ in 0..most {
            let horizon = self.horizon;
            let ready = |freed: &mut Waiting| freed.stamp <= horizon && now.is_due(freed.since_ns);
            let Some(freed) = self.waiting.pop_front_if(ready) else { return };
            self.release(freed.at, freed.line..freed.line + freed.lines);
        }
    }

    /// A free extent for this block, the shortest among the hints.
    ///
    /// But rather a free block of just this length, even inside of a longer extent: then only its own header changes, and
    /// none need be written behind it.
    pub(super) fn reserve<P: Pmem>(&mut self, pmem: &P, request: Request) -> Option<Reservation> {
        let Request { lines, roomy, .. } = request;
        while let Some((hint, end)) = self.hints.take_exact(roomy, &self.slots) {
            if let Some(reservation) = self.take(pmem, hint, end, request) {
                return Some(reservation);
            }
        }
        while let Some(hint) = if roomy == lines { self.hints.take_block(lines, &self.slots) } else { None } {
            if let Some(reservation) = self.take_block(pmem, hint, lines) {
                return Some(reservation);
            }
        }
        while let Some((hint, end)) = self.hints.take(request.roomy, &self.slots) {
            // `None` only if it was damaged.
            if let Some(reservation) = self.take(pmem, hint, end, request) {
                return Some(reservation);
            }
        }
        None
    }

    /// A free extent for this block, whatever the hints say.
    pub(super) fn search<P: Pmem>(&mut self, pmem: &P, request: Request) -> Option<Reservation> {
        for slot in 0..self.slots.len() {
            let mut line = 1;
            while let Some(map) = self.slots[slot].as_ref().filter(|map| map.free_lines >= request.lines) {
                let Some(extent) = map.extent_behind(line) else { break };
                let (slot, known) = (u32::try_from(slot).expect("there are fewer chunks"), self.damages.len());
                let found = self.take(pmem, Hint { slot, line: extent.start }, extent.end, request);
                if found.is_some() {
                    return found;
                }
                // Where it was damaged, it is two extents now.
                line = if self.damages.len() > known { extent.start } else { extent.end };
            }
        }
        None
    }

    /// Reserves of a free extent what the block needs: from the last start before it to the first behind it.
    fn take<P: Pmem>(&mut self, pmem: &P, hint: Hint, end: u32, request: Request) -> Option<Reservation> {
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
        Some(Reservation::new(&layout, place, chunk, (from, to), is_several))
    }

    /// Reserves a whole free block. What is free beside it stays so.
    fn take_block<P: Pmem>(&mut self, pmem: &P, hint: Hint, lines: u32) -> Option<Reservation> {
        let Hint { slot, line } = hint;
        let layout = self.layout;
        let map = self.map(slot);
        let (chunk, extent, end) = (map.chunk, map.extent_around(line), line + lines);
        let broken = verify(pmem, &layout, map, line..end);
        if let Some(broken) = &broken {
            self.isolate(slot, line..end, broken.found);
        } else {
            map.hold(line..end);
            self.held += 1;
        }
        self.hint(slot, extent.start..line);
        self.hint(slot, end..extent.end);
        let place = Place::Arena { arena: self.number, slot };
        broken.is_none().then(|| Reservation::new(&layout, place, chunk, (line, end), false))
    }

    /// The transaction was given up: all is as it was, but for what was joined.
    pub(super) fn return_unused(&mut self, slot: u32, reservation: &Reservation, now: Moment) {
        self.held -= 1;
        let lines = reservation.start..reservation.end;
        match reservation.joined {
            None => self.release(slot, lines),
            Some(stamp) => {
                self.map(slot).starts.clear_range(lines.start + 1..lines.end);
                // As a gap does, below: its header may still come back from the log.
                self.wait(slot, lines.start, lines.end - lines.start, stamp, now);
            }
        }
    }

    /// The transaction committed, and its headers are in place.
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
        // What lies before a gap may be free, and a block laid over the gap's header, unlogged, while the log could still bring
        // that header back. So a gap waits like something that this commit freed.
        for gap in reservation.pieces().iter().filter(|piece| piece.state == BlockState::Free) {
            self.wait(slot, gap.line, gap.lines, stamp, now);
        }
    }

    /// Frees a block once it is not live any more.
    pub(super) fn wait(&mut self, slot: u32, line: u32, lines: u32, stamp: Stamp, now: Moment) {
        self.waiting.push_back(Waiting { at: slot, line, lines, stamp, since_ns: now.since_ns() });
        self.advance(Stamp::ZERO, now, IN_PASSING);
    }

    /// Takes out of use for good what a damaged header belongs to, and takes note of it.
    pub(super) fn isolate(&mut self, slot: u32, lines: Range<u32>, found: u64) {
        let layout = self.layout;
        let map = self.map(slot);
        if !map.used.get(lines.start) {
            map.hold(lines.clone());
        }
        map.live.clear(lines.start);
        map.lost.push(lines.clone());
        let chunk = map.chunk;
        self.damages.push(damage(&layout, chunk, lines, found, DamageKind::Known));
    }

    fn release(&mut self, slot: u32, lines: Range<u32>) {
        if let Some(extent) = self.map(slot).release(lines.clone()) {
            let count = lines.end - lines.start;
            if self.map(slot).is_free_block(lines.start, count) {
                self.hints.push_block(slot, lines.start, count);
            }
            self.hint(slot, extent);
        }
    }

    pub(super) fn hint(&mut self, slot: u32, extent: Range<u32>) {
        if !extent.is_empty() {
            self.hints.push(slot, extent.start, extent.end - extent.start);
            self.hints.purge_if_many(&self.slots);
        }
    }
}

/// A free block whose header is damaged.
struct Broken {
    lines: Range<u32>,
    found: u64,
}

/// Looks at the headers of the free blocks on these lines, before they are laid over.
fn verify<P: Pmem>(pmem: &P, layout: &Layout, map: &ChunkMap, lines: Range<u32>) -> Option<Broken> {
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
