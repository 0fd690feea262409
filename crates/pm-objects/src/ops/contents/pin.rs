//! Pins objects to a tier.

use super::chunk;
use super::place::Candidate;
use super::room::{self, Holds};
use super::store::{self, Stores};
use crate::error::ObjectError;
use crate::format::{Owner, PLACE_BYTES, short};
use crate::session::chunks::Place;
use crate::session::control::{Control, Locked};
use crate::session::shared::Shared;
use crate::volume::hints::Tier;
use pm_core::Pmem;
use std::sync::Arc;

/// The number of chunks that move with one fence.
const BATCH_CHUNKS: usize = 64;

/// Pins an object to a tier, or to none, and moves its chunks there.
///
/// # Durability
/// The pin is durable when this returns, or returns [`ObjectError::Full`]. One fence, and those of the moves. A crash in a move leaves some chunks
/// moved.
pub(crate) fn pin<P: Pmem>(
    shared: &Shared<P>,
    control: &Arc<Control>,
    tier: Option<Tier>,
) -> Result<(), ObjectError> {
    shared.volume.check_writable()?;
    shared.check_not_nested()?;
    let has_tier = match tier {
        Some(Tier::Dram) => shared.frames.is_some(),
        Some(Tier::File) => shared.volume.file.is_some(),
        Some(Tier::Pool) | None => true,
    };
    if !has_tier {
        return Err(ObjectError::NoTier);
    }
    let locked = control.lock()?;
    let hints = control.hints().with_pin(tier);
    room::with_room(shared, Holds::Objects(&[&locked]), || {
        shared.volume.transaction(|change| control.object.write_hints(change, hints))
    })?;
    locked.set_hints(hints);
    match tier {
        Some(Tier::Dram) => copy_all(shared, &locked, control),
        Some(Tier::Pool) => move_all_up(shared, &locked),
        Some(Tier::File) => move_all_down(shared, &locked),
        None => Ok(()),
    }
}

/// Copies all chunks to DRAM.
fn copy_all<P: Pmem>(
    shared: &Shared<P>,
    locked: &Locked<'_>,
    control: &Arc<Control>,
) -> Result<(), ObjectError> {
    let Some(placement) = &shared.placement else { return Err(ObjectError::NoTier) };
    for index in 0..control.chunk_count() {
        let (frame, home) = chunk::home_and_frame(shared, locked, index)?;
        let home = frame.map_or(home, Place::InDram);
        let Some(candidate) = Candidate::new(control, locked, index, home) else { continue };
        let contents = chunk::contents(shared, control, index)?;
        if !candidate.enter_dram(shared, placement, Some(&contents)) {
            return Err(ObjectError::Full);
        }
    }
    Ok(())
}

/// Moves all chunks of the file to the pool.
fn move_all_up<P: Pmem>(shared: &Shared<P>, locked: &Locked<'_>) -> Result<(), ObjectError> {
    let control = locked.control();
    let mut index = 0;
    while index < control.chunk_count() {
        let mut chunks = Vec::new();
        while index < control.chunk_count() && chunks.len() < BATCH_CHUNKS {
            if let Place::InFile(_) = chunk::home_and_frame(shared, locked, index)?.1 {
                chunks.push((control.chunk_range(index).start, chunk::contents(shared, control, index)?));
            }
            index += 1;
        }
        let mut stores = Stores::new(locked);
        chunks.iter().for_each(|(start, contents)| stores.add(*start, contents));
        let stores = [stores];
        room::with_room(shared, Holds::Objects(&[locked]), || store::store_once(shared, &stores))?;
    }
    Ok(())
}

/// Moves all chunks of the pool to the file.
fn move_all_down<P: Pmem>(shared: &Shared<P>, locked: &Locked<'_>) -> Result<(), ObjectError> {
    let (control, volume) = (locked.control(), &shared.volume);
    chunk::forget_frames(shared, locked);
    let mut index = 0;
    while index < control.chunk_count() {
        let mut chunks = Vec::new();
        while index < control.chunk_count() && chunks.len() < BATCH_CHUNKS {
            if let Place::At(offset) = chunk::home_and_frame(shared, locked, index)?.1 {
                let range = control.chunk_range(index);
                let slot = shared.slots.find(offset, range.end - range.start).expect("its slab is in use");
                let (number, place) = (control.object.number, control.object.offset / PLACE_BYTES);
                let index = u32::try_from(short(index)).expect("an object has fewer chunks");
                let owner = Owner::new(volume.seed, slot.owner_at(), number, place, index);
                chunks.push((slot, owner));
            }
            index += 1;
        }
        let count = chunks.len();
        if count > 0 && room::move_chunks(shared, Holds::Objects(&[locked]), chunks)? < count {
            return Err(ObjectError::Full);
        }
    }
    Ok(())
}
