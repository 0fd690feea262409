//! Makes room in a full pool: empty slabs return to the heap, and chunks move down to the file.

use super::chunk;
use crate::error::ObjectError;
use crate::format::{Entry, Owner, PLACE_BYTES};
use crate::session::chunks::Place;
use crate::session::control::{Control, Locked};
use crate::session::placement::Placement;
use crate::session::shared::{Row, Shared};
use crate::volume::slabs::{Slab, Slot};
use crate::volume::table::{Home, Table};
use core::time::Duration;
use pm_core::Pmem;
use std::collections::BTreeMap;
use std::sync::{Arc, TryLockError};

/// The number of chunks that move down with one fence of the file.
const BATCH_CHUNKS: usize = 64;

/// The number of chunks of which the least used ones are a batch.
const BATCH_CANDIDATES: usize = 16 * BATCH_CHUNKS;

/// The number of chunks that are compared with one that would move up.
const CANDIDATES: usize = 16;

/// The number of batches that are tried, until one moves something.
const BATCHES: usize = 8;

/// The time that a thread waits for others, and how often it does so before the pool counts as full. They may have locks that it may not wait for, because
/// one of them may wait for a lock of this thread, or room that they have taken and not filled yet.
const WAIT: Duration = Duration::from_micros(100);
const WAITS: u32 = 300;
const WAITS_WITHOUT_FILE: u32 = 10;

/// The locks that the thread has which needs room. It takes no others, but tries to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Holds<'l> {
    Nothing,
    /// That of the names.
    Names,
    /// Those of objects.
    Objects(&'l [&'l Locked<'l>]),
}

impl<'l> Holds<'l> {
    /// Its lock of an object.
    fn lock_of(self, control: &Control) -> Option<&'l Locked<'l>> {
        match self {
            Self::Objects(all) => all.iter().find(|locked| locked.is_of(control)).copied(),
            Self::Nothing | Self::Names => None,
        }
    }
}

/// Runs an operation that changes nothing if there is no room, and makes room as long as there is some to be made.
pub(crate) fn with_room<P: Pmem, R>(
    shared: &Shared<P>,
    holds: Holds<'_>,
    mut run: impl FnMut() -> Result<R, ObjectError>,
) -> Result<R, ObjectError> {
    // Slabs are emptied once only: the operation itself may have added one in vain.
    let mut may_reclaim = true;
    let mut waits = 0;
    loop {
        match run() {
            Err(ObjectError::Full) => {
                let has_reclaimed = shared.slots.reclaim(&shared.volume)?;
                if core::mem::take(&mut may_reclaim) && has_reclaimed {
                    continue;
                }
                if let Holds::Objects(all) = holds {
                    // A thread that deletes one may have the lock of the names, and wait for this thread.
                    all.iter().try_for_each(|locked| locked.check())?;
                }
                if let Some(placement) = &shared.placement {
                    placement.note_pool_full(true);
                }
                if move_some_down(shared, holds)? {
                    waits = 0;
                } else if waits < if shared.volume.file.is_some() { WAITS } else { WAITS_WITHOUT_FILE } {
                    waits += 1;
                    std::thread::sleep(WAIT);
                } else {
                    return Err(ObjectError::Full);
                }
            }
            done => return done,
        }
    }
}

/// Makes room for a load that would move a chunk up, if no other thread does. Returns whether there is some.
pub(crate) fn try_to_make_room<P: Pmem>(shared: &Shared<P>, holds: Holds<'_>) -> bool {
    let Some(mut cursor) = shared.migration().try_lock() else { return false };
    // After an error nothing has moved, and calls that need room return it.
    let has_moved = move_batch(shared, holds, &mut cursor).unwrap_or(false);
    drop(cursor);
    has_moved && shared.slots.reclaim(&shared.volume).is_ok()
}

/// The least count of some chunks in the pool, at random. That of a chunk that is in DRAM, too, is 0.
pub(crate) fn least_count<P: Pmem>(shared: &Shared<P>, placement: &Placement) -> u32 {
    let count = |_| {
        let slot = shared.slots.at_random(placement.random())?;
        Some(count_of(shared, placement, &owner_of(shared, &slot)?))
    };
    (0..CANDIDATES).filter_map(count).min().unwrap_or(0)
}

/// The count of the chunk of a slot's owner.
fn count_of<P: Pmem>(shared: &Shared<P>, placement: &Placement, owner: &Owner) -> u32 {
    let Some(control) = shared.known(owner.number) else { return 0 };
    let index = u64::from(owner.index);
    let is_first = control.hints().moves_first();
    match control.chunk(index).place() {
        _ if is_first.is_none() => u32::MAX,
        Some(Place::InDram(_)) => 0,
        _ if is_first == Some(true) => 0,
        _ => placement.count(&control.chunk(index).heat),
    }
}

/// Moves chunks down, if there is a file, and frees their slabs. Returns whether some have moved.
fn move_some_down<P: Pmem>(shared: &Shared<P>, holds: Holds<'_>) -> Result<bool, ObjectError> {
    if shared.volume.file.is_none() {
        return Ok(false);
    }
    // Those of a batch may all be of objects that other threads change.
    for _ in 0..BATCHES {
        if move_down(shared, holds)? {
            shared.slots.reclaim(&shared.volume)?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// A chunk that moves.
struct Moving {
    control: Arc<Control>,
    index: u64,
    /// The version of the object when the chunk was copied.
    version: u64,
    from: Slot,
    to: u64,
    crc: u32,
}

/// Moves a batch of chunks down, unless another thread has done so meanwhile.
///
/// # Durability
/// That of [`move_batch`].
fn move_down<P: Pmem>(shared: &Shared<P>, holds: Holds<'_>) -> Result<bool, ObjectError> {
    let migration = shared.migration();
    let before = migration.moves();
    // The thread that has it waits for no lock of an object.
    let mut cursor = migration.lock();
    if migration.moves() != before {
        // Another thread has made room meanwhile.
        return Ok(true);
    }
    move_batch(shared, holds, &mut cursor)
}

/// Moves a batch of chunks down. Their contents are durable in the file before an entry names it. A chunk that was changed meanwhile stays.
///
/// # Durability
/// Each object's chunks are in the one tier or in the other, with the same contents. One fence of the file, and one for each object.
fn move_batch<P: Pmem>(shared: &Shared<P>, holds: Holds<'_>, cursor: &mut u64) -> Result<bool, ObjectError> {
    let chunks = least_used(shared, cursor);
    let moved = move_chunks(shared, holds, chunks)?;
    if moved > 0 {
        shared.migration().note_move();
    }
    Ok(moved > 0)
}

/// Moves the first of these chunks down, a batch at most. Returns how many have moved.
///
/// # Durability
/// As for [`move_batch`].
pub(crate) fn move_chunks<P: Pmem>(
    shared: &Shared<P>,
    holds: Holds<'_>,
    chunks: Vec<(Slot, Owner)>,
) -> Result<usize, ObjectError> {
    let file = shared.volume.file();
    let mut moving = Vec::new();
    for (slot, owner) in chunks {
        let Some(control) = control_of(shared, &slot, &owner, holds) else { continue };
        let Some(to) = file.take() else { break };
        match copy(shared, &control, owner.index.into(), &slot, to) {
            Ok(Some((version, crc))) => {
                moving.push(Moving { control, index: owner.index.into(), version, from: slot, to, crc });
            }
            Ok(None) => file.give_back(to),
            // The file cannot be written.
            Err(_) => {
                file.give_back(to);
                break;
            }
        }
        if moving.len() == BATCH_CHUNKS {
            break;
        }
    }
    // After a failed fence the slots are lost until the next open.
    if moving.is_empty() || file.fence().is_err() {
        return Ok(0);
    }
    let mut by_object: BTreeMap<u64, Vec<Moving>> = BTreeMap::new();
    for chunk in moving {
        by_object.entry(chunk.control.object.number).or_default().push(chunk);
    }
    let (mut moved, mut failed) = (0, None);
    for chunks in by_object.values_mut() {
        if failed.is_some() {
            chunks.iter().for_each(|chunk| file.give_back(chunk.to));
            continue;
        }
        // In their order, so that those of one leaf are adjacent.
        chunks.sort_unstable_by_key(|chunk| chunk.index);
        match publish(shared, chunks, holds) {
            Ok(has_moved) => moved += if has_moved { chunks.len() } else { 0 },
            Err(error) => failed = Some(error),
        }
    }
    failed.map_or(Ok(moved), Err)
}

/// The least used of some chunks from the cursor on, first those that are used least.
fn least_used<P: Pmem>(shared: &Shared<P>, cursor: &mut u64) -> Vec<(Slot, Owner)> {
    let mut found = Vec::new();
    let mut unused = 0;
    for slot in slots_from(shared, *cursor) {
        *cursor = slot.offset();
        let Some(owner) = owner_of(shared, &slot) else { continue };
        let count = shared.placement.as_ref().map_or(0, |placement| count_of(shared, placement, &owner));
        if count == u32::MAX {
            continue;
        }
        unused += usize::from(count == 0);
        found.push((count, slot, owner));
        if found.len() == BATCH_CANDIDATES || unused == 2 * BATCH_CHUNKS {
            break;
        }
    }
    found.sort_by_key(|(count, ..)| *count);
    found.into_iter().map(|(_, slot, owner)| (slot, owner)).collect()
}

/// All slots, from the one behind the cursor on, and around.
fn slots_from<P: Pmem>(shared: &Shared<P>, cursor: u64) -> impl Iterator<Item = Slot> {
    let slabs = shared.slots.slabs();
    let start = slabs.partition_point(|slab| slab.offset + slab.shape.len_bytes() <= cursor);
    let slots =
        |slab: Arc<Slab>| (0..slab.shape.slots).map(move |index| Slot { slab: Arc::clone(&slab), index });
    let (first, last) = (slabs[start..].to_vec(), slabs[..slabs.len().min(start + 1)].to_vec());
    let behind = first.into_iter().flat_map(slots).filter(move |slot| slot.offset() > cursor);
    behind.chain(last.into_iter().flat_map(slots).filter(move |slot| slot.offset() <= cursor))
}

/// The owner of a slot that is in use, if it is valid.
fn owner_of<P: Pmem>(shared: &Shared<P>, slot: &Slot) -> Option<Owner> {
    let volume = &shared.volume;
    let used = slot.slab.used_in(volume, slot.word())?;
    let owner: Owner = volume.load(slot.owner_at());
    (used & slot.bit() != 0 && owner.is_valid(volume.seed, slot.owner_at())).then_some(owner)
}

/// The control block of a slot's owner. An object without one is found under the lock of the names, which keeps it from being freed meanwhile. It may have been freed
/// before: then the slot is not in use any more, or has another owner.
fn control_of<P: Pmem>(
    shared: &Shared<P>,
    slot: &Slot,
    owner: &Owner,
    holds: Holds<'_>,
) -> Option<Arc<Control>> {
    if let Some(control) = shared.known(owner.number) {
        return Some(control);
    }
    let _names = match holds {
        Holds::Names => None,
        Holds::Nothing | Holds::Objects(_) => match shared.try_lock_names() {
            Ok(names) => Some(names),
            Err(TryLockError::Poisoned(names)) => Some(names.into_inner()),
            Err(TryLockError::WouldBlock) => return None,
        },
    };
    if owner_of(shared, slot).as_ref() != Some(owner) {
        return None;
    }
    let row = Row { object: owner.object.saturating_mul(PLACE_BYTES), number: owner.number, born: 0 };
    // What cannot be verified stays.
    let object = shared.find(&row).ok()?;
    let len_bytes = object.len_bytes(&shared.volume).ok()?;
    Some(shared.register(object, len_bytes))
}

/// Copies a chunk to a slot of the file, if its entry names this slot. Returns the version of the object before, and the checksum. An error says that the file
/// cannot be written.
fn copy<P: Pmem>(
    shared: &Shared<P>,
    control: &Control,
    index: u64,
    from: &Slot,
    to: u64,
) -> Result<Option<(u64, u32)>, ObjectError> {
    let Some(version) = control.version() else { return Ok(None) };
    let is_home = |home: Home| matches!(home, Home::Slot(slot) if slot.offset() == from.offset());
    if index >= control.chunk_count() || !chunk::home(shared, control, index).is_ok_and(is_home) {
        return Ok(None);
    }
    let Ok(contents) = chunk::contents(shared, control, index) else { return Ok(None) };
    let crc = shared.volume.file().store(to, &contents)?;
    Ok(control.is_still(version).then_some((version, crc)))
}

/// Makes the entries of chunks of one object name their slots in the file, if the object has not changed since they were copied.
fn publish<P: Pmem>(shared: &Shared<P>, chunks: &[Moving], holds: Holds<'_>) -> Result<bool, ObjectError> {
    let (volume, file) = (&shared.volume, shared.volume.file());
    let control = &chunks[0].control;
    let taken;
    let locked = match holds.lock_of(control) {
        Some(own) => Some(own),
        None => {
            taken = control.try_lock();
            taken.as_ref()
        }
    };
    let is_same = |chunk: &Moving| control.version() == Some(chunk.version);
    let Some(locked) = locked.filter(|_| chunks.iter().all(is_same)) else {
        chunks.iter().for_each(|chunk| file.give_back(chunk.to));
        return Ok(false);
    };
    let object = &control.object;
    let mut slots = shared.slot_change();
    for chunk in chunks {
        slots.free(chunk.from.clone());
        slots.adopt_in_file(chunk.to);
    }
    let table = Table::of(volume, object)?;
    volume.heap().check_not_poisoned()?;
    let changing = locked.begin();
    let moved = volume.transaction(|change| {
        slots.write(change)?;
        for chunk in chunks {
            let entry = Entry::in_file(volume.seed, object.number, chunk.index, chunk.to, chunk.crc);
            table.write(change, object, &[(chunk.index, entry)])?;
        }
        Ok(())
    });
    match moved {
        Ok(()) => {
            for chunk in chunks {
                chunk::set_home(shared, &changing, chunk.index, Place::InFile(chunk.to));
            }
            changing.end();
            slots.complete();
            Ok(true)
        }
        Err(error) => {
            changing.fail(&error);
            Err(error)
        }
    }
}
