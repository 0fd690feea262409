//! Where the chunks of objects are, and what they hold.

use crate::error::{ObjectError, Structure};
use crate::format::short;
use crate::session::chunks::Place;
use crate::session::control::{Changing, Control, Locked};
use crate::session::shared::Shared;
use crate::volume::table::{Home, Table};
use pm_core::Pmem;

/// The contents of a chunk. Those in the file are verified.
pub(crate) fn contents<P: Pmem>(
    shared: &Shared<P>,
    control: &Control,
    index: u64,
) -> Result<Vec<u8>, ObjectError> {
    let range = control.chunk_range(index);
    let mut contents = vec![0; short(range.end.saturating_sub(range.start))];
    if let Some(Place::InDram(frame)) = control.chunk(index).place() {
        // Without the lock the chunk may be a shorter one by now.
        return match shared.frames().load(frame, 0, &mut contents) {
            true => Ok(contents),
            false => Err(changed(control)),
        };
    }
    match home(shared, control, index)? {
        Home::Hole => {}
        Home::Slot(slot) if has(shared, slot.offset(), contents.len()) => {
            shared.volume.pmem().load(slot.offset(), &mut contents);
        }
        Home::Slot(_) => return Err(changed(control)),
        Home::File { slot, crc } => shared.volume.file().load(slot, crc, &mut contents)?,
    }
    Ok(contents)
}

/// Whether the pool has so many bytes there. A slot that was found for a shorter chunk may be the last.
#[inline]
pub(super) fn has<P: Pmem>(shared: &Shared<P>, offset: u64, len: usize) -> bool {
    offset + len as u64 <= shared.volume.pmem().len_bytes()
}

/// The error of a read without the object's lock that finds another chunk than the one that it looks for: it is tried again.
#[cold]
pub(super) fn changed(control: &Control) -> ObjectError {
    ObjectError::corrupted(control.object.offset, Structure::Contents)
}

/// Where a chunk is.
#[inline]
pub(crate) fn place<P: Pmem>(
    shared: &Shared<P>,
    control: &Control,
    index: u64,
) -> Result<Place, ObjectError> {
    match control.chunk(index).place() {
        Some(place) => Ok(place),
        None => find_place(shared, control, index),
    }
}

/// Finds a chunk by the object's table. It is noted if no thread has the object's lock: otherwise the chunk may have another place by now.
#[cold]
fn find_place<P: Pmem>(shared: &Shared<P>, control: &Control, index: u64) -> Result<Place, ObjectError> {
    let locked = control.try_lock();
    let place = Place::from(&home(shared, control, index)?);
    if let Some(locked) = locked {
        locked.note_place(index, place);
    }
    Ok(place)
}

/// Where the entry of a chunk says that it is.
pub(crate) fn home<P: Pmem>(shared: &Shared<P>, control: &Control, index: u64) -> Result<Home, ObjectError> {
    let (volume, object) = (&shared.volume, &control.object);
    let table = Table::of(volume, object)?;
    let chunk = control.chunk_range(index);
    table.home(volume, &shared.slots, object, index, chunk.end.saturating_sub(chunk.start))
}

/// The place of a chunk on the pool or the file, and its frame, if it has one.
pub(crate) fn home_and_frame<P: Pmem>(
    shared: &Shared<P>,
    locked: &Locked<'_>,
    index: u64,
) -> Result<(Option<u64>, Place), ObjectError> {
    Ok(match locked.control().chunk(index).place() {
        Some(Place::InDram(frame)) => (Some(frame), shared.frames().home(frame)),
        Some(home) => (None, home),
        None => {
            let home = Place::from(&home(shared, locked.control(), index)?);
            locked.note_place(index, home);
            (None, home)
        }
    })
}

/// A chunk has another place on the pool or the file, whether it has a frame or not.
pub(crate) fn set_home<P: Pmem>(shared: &Shared<P>, changing: &Changing<'_>, index: u64, home: Place) {
    match changing.control().chunk(index).place() {
        Some(Place::InDram(frame)) => shared.frames().set_home(frame, home),
        _ => changing.set_place(index, home),
    }
}

/// A chunk that changes leaves DRAM. Returns its frame, which is to be [given back](give_back) when the change has ended.
pub(super) fn leave<P: Pmem>(shared: &Shared<P>, changing: &Changing<'_>, index: u64) -> Option<u64> {
    let Some(Place::InDram(frame)) = changing.control().chunk(index).place() else { return None };
    changing.set_place(index, shared.frames().home(frame));
    Some(frame)
}

/// Frames that chunks have left are free.
pub(super) fn give_back<P: Pmem>(shared: &Shared<P>, left: &[u64]) {
    for frame in left {
        shared.frames().clear(*frame);
        shared.frames().give_back(*frame);
    }
}

/// Makes all chunks of an object leave DRAM.
pub(crate) fn forget_frames<P: Pmem>(shared: &Shared<P>, locked: &Locked<'_>) {
    let indices: Vec<u64> = locked.control().in_dram().map(|(index, _)| index).collect();
    let changing = locked.begin();
    let left: Vec<u64> = indices.into_iter().filter_map(|index| leave(shared, &changing, index)).collect();
    changing.end();
    give_back(shared, &left);
}

/// Frees the frames of an object that was deleted.
pub(crate) fn forget<P: Pmem>(shared: &Shared<P>, control: &Control) {
    let left: Vec<u64> = control.in_dram().map(|(_, frame)| frame).collect();
    give_back(shared, &left);
}
