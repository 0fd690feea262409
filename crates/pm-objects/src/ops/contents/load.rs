//! Copies out contents of an object. No lock is taken: the copy counts if the object's version has not changed meanwhile.

use super::{chunk, place};
use crate::error::ObjectError;
use crate::format::short;
use crate::session::chunks::Place;
use crate::session::control::Control;
use crate::session::shared::Shared;
use core::hint;
use pm_core::Pmem;
use std::sync::Arc;

/// The number of copies that may fail before a read waits for the lock.
const TRIES: u32 = 64;

/// Copies out bytes that are in the object.
#[inline]
pub(crate) fn load<P: Pmem>(
    shared: &Shared<P>,
    control: &Arc<Control>,
    start: u64,
    out: &mut [u8],
) -> Result<(), ObjectError> {
    let mut read = None;
    if let Some(version) = control.version()
        && copy(shared, control, start, out, &mut read).is_ok()
        && control.is_still(version)
    {
        if let Some(placement) = &shared.placement {
            place::note_load(shared, placement, control, version, (start, out.len()), read);
        }
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
            let copied = copy(shared, control, start, out, &mut None);
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
            return copy(shared, control, start, out, &mut None);
        }
    }
}

/// Copies out bytes, perhaps while they change. `read` becomes the last chunk that was read from the file.
#[inline]
fn copy<P: Pmem>(
    shared: &Shared<P>,
    control: &Control,
    start: u64,
    out: &mut [u8],
    read: &mut Option<(u64, Vec<u8>)>,
) -> Result<(), ObjectError> {
    let (chunk_bytes, len_bytes) = (u64::from(control.chunk_bytes), control.len_bytes());
    // It may have become shorter since the caller looked.
    let end = start + out.len() as u64;
    if end > len_bytes {
        return Err(ObjectError::Range { start, end, len: len_bytes });
    }
    // Most objects have one chunk, and need no division.
    let (mut index, mut within) =
        if len_bytes <= chunk_bytes { (0, start) } else { (start / chunk_bytes, start % chunk_bytes) };
    let mut rest = out;
    while !rest.is_empty() {
        let len = short((rest.len() as u64).min(chunk_bytes - within));
        let (piece, others) = rest.split_at_mut(len);
        match chunk::place(shared, control, index)? {
            Place::At(offset) if chunk::has(shared, offset + within, len) => {
                shared.volume.pmem().load(offset + within, piece);
            }
            Place::At(_) => return Err(chunk::changed(control)),
            Place::Hole => piece.fill(0),
            Place::InFile(_) => *read = Some((index, copy_from_file(shared, control, index, within, piece)?)),
            Place::InDram(frame) if shared.frames().load(frame, within, piece) => {}
            Place::InDram(_) => return Err(chunk::changed(control)),
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
) -> Result<Vec<u8>, ObjectError> {
    let chunk = chunk::contents(shared, control, index)?;
    let within = short(within);
    // It is shorter if the object has become shorter meanwhile.
    let bytes = chunk.get(within..within + out.len());
    out.copy_from_slice(bytes.ok_or_else(|| chunk::changed(control))?);
    Ok(chunk)
}
