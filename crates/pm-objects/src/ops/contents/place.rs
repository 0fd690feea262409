//! Chooses the medium of chunks by their use: copies to DRAM, and moves up from the file. Loads and stores pay for it, and never wait for a lock.

use super::chunk;
use super::room::{self, Holds};
use super::store::{self, Stores};
use crate::error::ObjectError;
use crate::session::chunks::Place;
use crate::session::control::{Control, Locked};
use crate::session::frames::{Frames, Held};
use crate::session::placement::{LOAD, Placement};
use crate::session::shared::Shared;
use crate::volume::hints::Tier;
use pm_core::Pmem;
use std::sync::Arc;

/// The count from which a chunk is considered: its second load within a period.
const SECOND: u32 = 2 * LOAD;

/// The tier of a place.
const fn tier_of(place: Place) -> Option<Tier> {
    match place {
        Place::Hole => None,
        Place::At(_) => Some(Tier::Pool),
        Place::InFile(_) => Some(Tier::File),
        Place::InDram(_) => Some(Tier::Dram),
    }
}

/// Counts a load of bytes that the object had at a version, and perhaps moves their chunks. `read` is the last chunk that it has read from the file.
#[inline]
pub(crate) fn note_load<P: Pmem>(
    shared: &Shared<P>,
    placement: &Placement,
    control: &Arc<Control>,
    version: u64,
    (start, len): (u64, usize),
    read: Option<(u64, Vec<u8>)>,
) {
    let chunk_bytes = u64::from(control.chunk_bytes);
    let indices = match start + len as u64 {
        0 => return,
        end if end <= chunk_bytes => 0..=0,
        end => start / chunk_bytes..=(end - 1) / chunk_bytes,
    };
    for index in indices {
        let chunk = control.chunk(index);
        let count = placement.note_use(&chunk.heat, LOAD);
        let Some(tier) = chunk.place().and_then(tier_of) else { continue };
        placement.note_load(tier);
        let may_move = tier == Tier::File || tier == Tier::Pool && shared.frames.is_some();
        // Looking changes what all threads share, so the other conditions are first.
        if may_move && (count >= SECOND || control.hints().is_eager()) && placement.is_to_look(tier) {
            let contents = read.as_ref().filter(|(of, _)| *of == index).map(|(_, contents)| &contents[..]);
            consider(shared, placement, control, version, index, contents);
        }
    }
}

/// Moves a chunk to a faster medium, if it belongs there.
#[cold]
fn consider<P: Pmem>(
    shared: &Shared<P>,
    placement: &Placement,
    control: &Arc<Control>,
    version: u64,
    index: u64,
    read: Option<&[u8]>,
) {
    let hints = control.hints();
    if !hints.may_enter_dram() && !hints.may_move_up() || shared.is_nested() {
        return;
    }
    let Some(locked) = control.try_lock() else { return };
    let home = control.chunk(index).place();
    let chunk = home.and_then(|home| Candidate::new(control, &locked, index, home));
    // What was read counts only if nothing has changed since.
    let Some(chunk) = chunk.filter(|_| control.is_still(version)) else { return };
    if hints.may_enter_dram() && chunk.enter_dram(shared, placement, read) {
        return;
    }
    if chunk.from == Tier::File && hints.may_move_up() && !shared.volume.is_read_only {
        chunk.move_up(shared, placement, read);
    }
}

/// A chunk that may move to a faster medium.
pub(super) struct Candidate<'c> {
    control: &'c Arc<Control>,
    locked: &'c Locked<'c>,
    index: u64,
    home: Place,
    from: Tier,
}

impl<'c> Candidate<'c> {
    /// A chunk at a place. `None` if it is in DRAM, or a hole.
    pub(super) fn new(
        control: &'c Arc<Control>,
        locked: &'c Locked<'c>,
        index: u64,
        home: Place,
    ) -> Option<Self> {
        let from = tier_of(home).filter(|from| *from != Tier::Dram)?;
        Some(Self { control, locked, index, home, from })
    }

    fn bytes(&self) -> u64 {
        let range = self.control.chunk_range(self.index);
        range.end - range.start
    }

    fn count(&self, placement: &Placement) -> u32 {
        placement.count(&self.control.chunk(self.index).heat)
    }

    /// Copies the chunk to DRAM, if there is a frame that is to be its own. Returns whether it was.
    pub(super) fn enter_dram<P: Pmem>(
        &self,
        shared: &Shared<P>,
        placement: &Placement,
        read: Option<&[u8]>,
    ) -> bool {
        let Some(frames) = &shared.frames else { return false };
        let Some(frame) = self.frame(frames, placement) else { return false };
        let contents = match read {
            Some(contents) => Ok(contents.to_vec()),
            None => chunk::contents(shared, self.control, self.index),
        };
        let Ok(contents) = contents else {
            frames.give_back(frame);
            return false;
        };
        frames.store(frame, 0, &contents);
        frames.hold(frame, Held { control: Arc::clone(self.control), index: self.index, home: self.home });
        let changing = self.locked.begin();
        changing.set_place(self.index, Place::InDram(frame));
        changing.end();
        placement.note_copy(self.from, contents.len() as u64);
        true
    }

    /// A frame for the chunk: one that is free, or that of a chunk that is worth less.
    fn frame(&self, frames: &Frames, placement: &Placement) -> Option<u64> {
        let (count, bytes) = (self.count(placement), self.bytes());
        if !placement.is_to_enter(count, self.from, bytes, None) {
            return None;
        }
        if let Some(frame) = frames.take(bytes) {
            return Some(frame);
        }
        let is_to_enter = |value| match self.control.hints().pinned() {
            Some(Tier::Dram) => value != u64::MAX,
            _ => placement.is_to_enter(count, self.from, bytes, Some(value)),
        };
        match frames.least(bytes, || placement.random(), |held| value(placement, held)) {
            Some(least) if is_to_enter(least.value) => {
                leave_dram(frames, Some(self.locked), least.frame, &least.held).then_some(least.frame)
            }
            Some(_) => None,
            // There are no frames of this length yet.
            None => {
                let (page, others) = frames.other_page(bytes, placement.random())?;
                let worth = others.iter().map(|(_, held)| value(placement, held));
                if !is_to_enter(worth.fold(0, u64::saturating_add)) {
                    return None;
                }
                for (frame, held) in &others {
                    if leave_dram(frames, Some(self.locked), *frame, held) {
                        frames.give_back(*frame);
                    }
                }
                frames.convert(page, bytes);
                frames.take(bytes)
            }
        }
    }

    /// Moves a chunk of the file to the pool, if it has room, or one there is used less.
    fn move_up<P: Pmem>(&self, shared: &Shared<P>, placement: &Placement, read: Option<&[u8]>) {
        let (count, bytes) = (self.count(placement), self.bytes());
        let is_pinned = self.control.hints().pinned() == Some(Tier::Pool);
        let is_to_move = |other| is_pinned || placement.is_to_move_up(count, bytes, other);
        let is_to_take_a_place =
            || is_to_move(Some(0)) && is_to_move(Some(room::least_count(shared, placement)));
        if !is_to_move(None) || placement.is_pool_full() && !is_to_take_a_place() {
            return;
        }
        let read = match read {
            Some(contents) => Ok(contents.to_vec()),
            None => chunk::contents(shared, self.control, self.index),
        };
        let Ok(contents) = read else { return };
        let mut stores = Stores::new(self.locked);
        stores.add(self.control.chunk_range(self.index).start, &contents);
        let stores = [stores];
        for _ in 0..2 {
            match store::store_once(shared, &stores) {
                Ok(()) => return placement.note_swap(bytes),
                Err(ObjectError::Full) => {
                    placement.note_pool_full(true);
                    if !is_to_take_a_place()
                        || !room::try_to_make_room(shared, Holds::Objects(&[self.locked]))
                    {
                        return;
                    }
                }
                // The load has succeeded. Calls that need what has failed return the error.
                Err(_) => return,
            }
        }
    }
}

/// What the loads of a chunk in DRAM save.
fn value(placement: &Placement, held: &Held) -> u64 {
    match (held.control.hints().pinned(), tier_of(held.home)) {
        (Some(Tier::Dram), _) => u64::MAX,
        (_, Some(home)) => placement.value_in_dram(&held.control.chunk(held.index).heat, home),
        (_, None) => 0,
    }
}

/// Makes a chunk leave its frame, if no other thread has its object's lock. Returns whether it has.
fn leave_dram(frames: &Frames, own: Option<&Locked<'_>>, frame: u64, held: &Held) -> bool {
    let taken;
    let locked = match own.filter(|own| own.is_of(&held.control)) {
        Some(own) => own,
        None => {
            taken = held.control.try_lock();
            let Some(taken) = &taken else { return false };
            taken
        }
    };
    if held.control.chunk(held.index).place() != Some(Place::InDram(frame)) {
        return false;
    }
    let changing = locked.begin();
    changing.set_place(held.index, frames.home(frame));
    changing.end();
    frames.clear(frame);
    true
}
