//! Makes objects longer and shorter.

use super::chunk;
use super::room::{self, Holds};
use super::store::{self, CHUNKS_MAX};
use crate::error::ObjectError;
use crate::format::{Entry, LEAF_ENTRIES, OBJECT_BYTES_MAX, short, tier};
use crate::session::chunks::Place;
use crate::session::control::{Changing, Control, Locked};
use crate::session::shared::Shared;
use crate::volume::slabs::Slot;
use crate::volume::slots::SlotChange;
use crate::volume::table::Table;
use crate::volume::{Change, Volume};
use core::ops::Range;
use pm_core::Pmem;
use std::borrow::Cow;

/// The number of chunks that one transaction frees.
const STEP_CHUNKS: u64 = 32;

/// Adds bytes at the end of an object, under its lock.
///
/// # Durability
/// Atomic, and durable when this returns: after a crash the object has the old length, or the new one with the bytes. One fence if they fit into the last
/// chunk's slot, and else two.
pub(crate) fn append<P: Pmem>(
    shared: &Shared<P>,
    locked: &Locked<'_>,
    bytes: &[u8],
) -> Result<(), ObjectError> {
    if bytes.is_empty() {
        return Ok(());
    }
    let (control, len) = (locked.control(), bytes.len() as u64);
    let len_bytes = new_length(control.len_bytes().checked_add(len))?;
    let object = &control.object;
    if object.chunks(len_bytes) - control.len_bytes() / object.chunk_bytes > CHUNKS_MAX {
        let max = CHUNKS_MAX * object.chunk_bytes;
        return Err(ObjectError::TooLong { bytes: len, of: "store", max });
    }
    room::with_room(shared, Holds::Objects(&[locked]), || lengthen(shared, locked, len_bytes, Some(bytes)))
}

/// Makes an object longer or shorter, under its lock. What it gets is zeroes.
///
/// # Durability
/// Durable when this returns. Longer: atomic, two fences at most. Shorter: a fence or two for every 32 chunks, from the last one on, and a crash may leave a
/// length between.
pub(crate) fn resize<P: Pmem>(
    shared: &Shared<P>,
    locked: &Locked<'_>,
    len_bytes: Option<u64>,
) -> Result<(), ObjectError> {
    let len_bytes = new_length(len_bytes)?;
    shared.volume.check_writable()?;
    let holds = [locked];
    if len_bytes > locked.control().len_bytes() {
        return room::with_room(shared, Holds::Objects(&holds), || lengthen(shared, locked, len_bytes, None));
    }
    while locked.control().len_bytes() > len_bytes {
        room::with_room(shared, Holds::Objects(&holds), || shorten(shared, locked, len_bytes))?;
    }
    Ok(())
}

/// A length in bytes, if an object can have it.
fn new_length(len_bytes: Option<u64>) -> Result<u64, ObjectError> {
    let too_long = |bytes| ObjectError::TooLong { bytes, of: "object", max: OBJECT_BYTES_MAX };
    let len_bytes = len_bytes.ok_or_else(|| too_long(u64::MAX))?;
    if len_bytes <= OBJECT_BYTES_MAX { Ok(len_bytes) } else { Err(too_long(len_bytes)) }
}

/// A chunk that gets a slot.
struct Filled {
    index: u64,
    slot: Slot,
    entry: Entry,
}

impl Filled {
    fn new<P: Pmem>(
        slots: &mut SlotChange<'_, P>,
        volume: &Volume<P>,
        control: &Control,
        index: u64,
        contents: &[u8],
    ) -> Result<Self, ObjectError> {
        let slot = slots.fill(contents)?;
        slots.own(&slot, &control.object, index);
        let entry = store::entry_of(volume, control, index, &slot);
        Ok(Self { index, slot, entry })
    }
}

/// The object gets this length, and at its end these bytes, or zeroes.
fn lengthen<P: Pmem>(
    shared: &Shared<P>,
    locked: &Locked<'_>,
    len_bytes: u64,
    bytes: Option<&[u8]>,
) -> Result<(), ObjectError> {
    let (volume, control) = (&shared.volume, locked.control());
    let object = &control.object;
    let old_len_bytes = control.len_bytes();
    let mut slots = shared.slot_change();
    let (mut filled, mut in_place) = (Vec::new(), None);
    // What the last chunk gets, whose end is in the middle of a chunk.
    let of_last = match old_len_bytes % object.chunk_bytes {
        0 => 0,
        within => (object.chunk_bytes - within).min(len_bytes - old_len_bytes),
    };
    let last = (of_last > 0).then(|| old_len_bytes / object.chunk_bytes);
    if let Some(index) = last {
        let within = old_len_bytes % object.chunk_bytes;
        let part = bytes.map_or_else(
            || Cow::Owned(vec![0; short(of_last)]),
            |bytes| Cow::Borrowed(&bytes[..short(of_last)]),
        );
        match chunk::home_and_frame(shared, locked, index)?.1 {
            Place::Hole if bytes.is_none() => {}
            Place::At(offset)
                if of_last <= volume.in_place_bytes()
                    && shared.slots.find(offset, within + of_last).is_some() =>
            {
                in_place = Some((offset + within, part));
            }
            home => {
                let mut contents = chunk::contents(shared, control, index)?;
                contents.extend_from_slice(&part);
                store::free_home(shared, &mut slots, home, within);
                filled.push(Filled::new(&mut slots, volume, control, index, &contents)?);
            }
        }
    }
    let others = bytes.map_or(&[][..], |bytes| &bytes[short(of_last)..]);
    let first = object.chunks(old_len_bytes);
    for (index, contents) in (first..).zip(others.chunks(short(object.chunk_bytes))) {
        filled.push(Filled::new(&mut slots, volume, control, index, contents)?);
    }
    volume.heap().check_not_poisoned()?;
    let changing = locked.begin();
    let changed = volume.transaction(|change| {
        if let Some((offset, part)) = &in_place {
            change.write_bytes(*offset, part)?;
        }
        if !filled.is_empty() {
            slots.write(change)?;
        }
        let table = Table::of(volume, object)?.grow(change, object, object.chunks(len_bytes))?;
        let entries: Vec<(u64, Entry)> = filled.iter().map(|filled| (filled.index, filled.entry)).collect();
        table.write(change, object, &entries)?;
        object.write_len_bytes(change, len_bytes)
    });
    let left = end(changing, changed, |changing| {
        let frame = last.and_then(|last| chunk::leave(shared, changing, last));
        filled.iter().for_each(|filled| changing.set_place(filled.index, Place::At(filled.slot.offset())));
        changing.set_len_bytes(len_bytes);
        slots.complete();
        frame.into_iter().collect()
    })?;
    chunk::give_back(shared, &left);
    Ok(())
}

/// The object loses its last chunks, some at once, and gets this length when it has lost all that it is to lose.
fn shorten<P: Pmem>(shared: &Shared<P>, locked: &Locked<'_>, len_bytes: u64) -> Result<(), ObjectError> {
    let (volume, control) = (&shared.volume, locked.control());
    let object = &control.object;
    let end_index = control.chunk_count();
    let kept = object.chunks(len_bytes);
    // A length between is one of whole elements, which may be longer than chunks.
    let element_bytes = u64::from(object.element.bytes);
    let step = STEP_CHUNKS.max(element_bytes.div_ceil(object.chunk_bytes) + 1);
    let start = kept.max(end_index.saturating_sub(step));
    let len_bytes = match start > kept {
        true => (start * object.chunk_bytes).next_multiple_of(element_bytes),
        false => len_bytes,
    };
    let start = object.chunks(len_bytes);
    let mut slots = shared.slot_change();
    let mut has_freed = false;
    for index in start..end_index {
        let range = control.chunk_range(index);
        let home = chunk::home_and_frame(shared, locked, index)?.1;
        has_freed |= home != Place::Hole;
        store::free_home(shared, &mut slots, home, range.end - range.start);
    }
    // The checksum of a chunk in the file is that of all of it.
    let cut = (!len_bytes.is_multiple_of(object.chunk_bytes)).then(|| start - 1);
    let mut filled = None;
    if let Some(index) = cut
        && let (_, home @ Place::InFile(_)) = chunk::home_and_frame(shared, locked, index)?
    {
        let contents = chunk::contents(shared, control, index)?;
        let contents = &contents[..short(len_bytes - index * object.chunk_bytes)];
        store::free_home(shared, &mut slots, home, contents.len() as u64);
        filled = Some(Filled::new(&mut slots, volume, control, index, contents)?);
    }
    volume.heap().check_not_poisoned()?;
    let changing = locked.begin();
    let changed = volume.transaction(|change| {
        if has_freed || filled.is_some() {
            slots.write(change)?;
        }
        let table = Table::of(volume, object)?;
        remove_entries(change, control, table, start..end_index)?;
        if let Some(filled) = &filled {
            table.write(change, object, &[(filled.index, filled.entry)])?;
        }
        object.write_len_bytes(change, len_bytes)
    });
    let left = end(changing, changed, |changing| {
        let left = (start..end_index).chain(cut);
        let frames = left.filter_map(|index| chunk::leave(shared, changing, index)).collect();
        (start..end_index).for_each(|index| changing.forget_place(index));
        if let Some(filled) = &filled {
            changing.set_place(filled.index, Place::At(filled.slot.offset()));
        }
        changing.set_len_bytes(len_bytes);
        slots.complete();
        frames
    })?;
    chunk::give_back(shared, &left);
    Ok(())
}

/// Makes the entries of the last chunks holes. Leaves that have only these are freed.
fn remove_entries<P: Pmem>(
    change: &mut Change<'_, '_, P>,
    control: &Control,
    table: Table,
    indices: Range<u64>,
) -> Result<(), ObjectError> {
    let (volume, object) = (change.volume, &control.object);
    let leaves = table.leaves_of(volume, object, &indices);
    let first = indices.start;
    let removed = leaves.iter().filter(|leaf| leaf.first >= first);
    for leaf in removed.clone() {
        change.set_sealed(object.number, leaf.link_at, 0)?;
        change.free(leaf.block)?;
    }
    let is_removed =
        |index: u64| removed.clone().any(|leaf| leaf.first == index / LEAF_ENTRIES * LEAF_ENTRIES);
    let hole = |index| (index, Entry::new(volume.seed, object.number, index, tier::HOLE, 0));
    let holes: Vec<(u64, Entry)> = indices.filter(|index| !is_removed(*index)).map(hole).collect();
    table.write_existing(change, object, &holes)
}

/// Ends a change: `show` makes visible what is durable, and returns the frames that chunks have left.
fn end(
    changing: Changing<'_>,
    changed: Result<(), ObjectError>,
    show: impl FnOnce(&Changing<'_>) -> Vec<u64>,
) -> Result<Vec<u64>, ObjectError> {
    match changed {
        Ok(()) => {
            let left = show(&changing);
            changing.end();
            Ok(left)
        }
        Err(error) => {
            changing.fail(&error);
            Err(error)
        }
    }
}
