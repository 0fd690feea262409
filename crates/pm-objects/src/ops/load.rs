//! Copies out contents of an object. No lock is taken: the copy counts if the object's version has not changed meanwhile.

use crate::error::ObjectError;
use crate::format::short;
use crate::session::control::{Control, Place};
use crate::session::shared::Shared;
use crate::volume::table::{Home, Table};
use core::hint;
use pm_core::Pmem;

/// The number of copies that may fail before a read waits for the lock.
const TRIES: u32 = 64;

/// Copies out bytes that are in the object.
#[inline]
pub(crate) fn load<P: Pmem>(
    shared: &Shared<P>,
    control: &Control,
    start: u64,
    out: &mut [u8],
) -> Result<(), ObjectError> {
    if let Some(version) = control.version()
        && copy(shared, control, start, out).is_ok()
        && control.is_still(version)
    {
        return Ok(());
    }
    load_contended(shared, control, start, out)
}

#[cold]
fn load_contended<P: Pmem>(
    shared: &Shared<P>,
    control: &Control,
    start: u64,
    out: &mut [u8],
) -> Result<(), ObjectError> {
    // A closure of the program may run under this lock, or hold one that the thread with this lock waits for.
    let is_nested = shared.is_nested();
    let mut tries = 0;
    loop {
        if let Some(version) = control.version() {
            let copied = copy(shared, control, start, out);
            if control.is_still(version) && (copied.is_ok() || is_nested) {
                return copied;
            }
        }
        if tries < TRIES {
            tries += 1;
            hint::spin_loop();
        } else if is_nested {
            control.check()?;
            std::thread::yield_now();
        } else {
            let _lock = control.lock_to_read();
            control.check()?;
            return copy(shared, control, start, out);
        }
    }
}

/// Copies out bytes, perhaps while they change.
#[inline]
fn copy<P: Pmem>(
    shared: &Shared<P>,
    control: &Control,
    start: u64,
    out: &mut [u8],
) -> Result<(), ObjectError> {
    let chunk_bytes = control.chunk_bytes;
    // Most objects have one chunk, and need no division.
    let (mut index, mut within) = if control.len_bytes <= chunk_bytes {
        (0, start)
    } else {
        (start / chunk_bytes, start % chunk_bytes)
    };
    let mut rest = out;
    while !rest.is_empty() {
        let len = short((rest.len() as u64).min(chunk_bytes - within));
        let (piece, others) = rest.split_at_mut(len);
        match place(shared, control, index)? {
            Place::At(offset) => shared.volume.pmem().load(offset + within, piece),
            Place::Hole => piece.fill(0),
            Place::InFile(_) => copy_from_file(shared, control, index, within, piece)?,
        }
        (rest, within) = (others, 0);
        index += 1;
    }
    Ok(())
}

/// Copies out bytes of a chunk in the file, all of which is read and verified.
#[cold]
fn copy_from_file<P: Pmem>(
    shared: &Shared<P>,
    control: &Control,
    index: u64,
    within: u64,
    out: &mut [u8],
) -> Result<(), ObjectError> {
    let chunk = whole_chunk(shared, control, index)?;
    out.copy_from_slice(&chunk[short(within)..short(within) + out.len()]);
    Ok(())
}

/// The contents of a chunk. Those in the file are verified.
pub(crate) fn whole_chunk<P: Pmem>(
    shared: &Shared<P>,
    control: &Control,
    index: u64,
) -> Result<Vec<u8>, ObjectError> {
    let range = control.object.chunk(index, control.len_bytes);
    let mut contents = vec![0; short(range.end - range.start)];
    match home(shared, control, index)? {
        Home::Hole => {}
        Home::Slot(slot) => shared.volume.pmem().load(slot.offset(), &mut contents),
        Home::File { slot, crc } => shared.volume.file().load(slot, crc, &mut contents)?,
    }
    Ok(contents)
}

/// Where a chunk is.
#[inline]
pub(crate) fn place<P: Pmem>(
    shared: &Shared<P>,
    control: &Control,
    index: u64,
) -> Result<Place, ObjectError> {
    match control.place(index) {
        Some(place) => Ok(place),
        None => find_place(shared, control, index),
    }
}

/// Finds a chunk by the object's table.
#[cold]
fn find_place<P: Pmem>(shared: &Shared<P>, control: &Control, index: u64) -> Result<Place, ObjectError> {
    let place = match home(shared, control, index)? {
        Home::Hole => Place::Hole,
        Home::Slot(slot) => Place::At(slot.offset()),
        Home::File { slot, .. } => Place::InFile(slot),
    };
    control.note_place(index, place);
    Ok(place)
}

/// Where the entry of a chunk says that it is.
pub(crate) fn home<P: Pmem>(shared: &Shared<P>, control: &Control, index: u64) -> Result<Home, ObjectError> {
    let (volume, object) = (&shared.volume, &control.object);
    let table = Table::of(volume, object, control.chunks())?;
    let chunk = object.chunk(index, control.len_bytes);
    table.home(volume, &shared.slots, object, index, chunk.end - chunk.start)
}
