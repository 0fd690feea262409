//! Changes contents of an object.

use super::load;
use super::room::{self, Holds};
use crate::error::ObjectError;
use crate::format::{Entry, LEAF_ENTRIES, PLACE_BYTES, short, tier};
use crate::session::control::{Control, Locked, Place};
use crate::session::shared::Shared;
use crate::volume::object::ObjectRef;
use crate::volume::slabs::Slot;
use crate::volume::table::Table;
use core::ops::Range;
use pm_core::Pmem;

/// The number of chunks that one store may change.
pub(crate) const CHUNKS_MAX: u64 = 64;

/// What a store does to one chunk.
enum Step<'b> {
    /// Changes these bytes in place, through the log.
    InPlace { offset: u64, bytes: &'b [u8] },
    /// Gives the chunk this slot, which has its new contents.
    Replace { index: u64, new: Slot },
}

impl Step<'_> {
    /// The index and the new entry of a chunk that gets another slot.
    fn entry(&self, seed: u64, object: &ObjectRef) -> Option<(u64, Entry)> {
        let Self::Replace { index, new } = self else { return None };
        Some((*index, Entry::new(seed, object.number, *index, tier::PM, new.offset() / PLACE_BYTES)))
    }
}

/// Stores bytes that are in the object, under its lock.
///
/// # Durability
/// Atomic, and durable when this returns: after a crash all bytes are the new ones, or all the old ones. One fence if at most a quarter of each chunk
/// changes, and else two.
pub(crate) fn store<P: Pmem>(
    shared: &Shared<P>,
    locked: &Locked<'_>,
    control: &Control,
    start: u64,
    bytes: &[u8],
) -> Result<(), ObjectError> {
    shared.volume.check_writable()?;
    if bytes.is_empty() {
        return Ok(());
    }
    let chunk_bytes = control.object.chunk_bytes;
    let end = start + bytes.len() as u64;
    let chunks = start / chunk_bytes..end.div_ceil(chunk_bytes);
    if chunks.end - chunks.start > CHUNKS_MAX {
        let max = CHUNKS_MAX * chunk_bytes;
        return Err(ObjectError::TooLong { bytes: bytes.len() as u64, of: "store", max });
    }
    room::with_room(shared, Holds::Object(locked), || apply(shared, locked, control, &chunks, start, bytes))
}

fn apply<P: Pmem>(
    shared: &Shared<P>,
    locked: &Locked<'_>,
    control: &Control,
    chunks: &Range<u64>,
    start: u64,
    bytes: &[u8],
) -> Result<(), ObjectError> {
    let (volume, object) = (&shared.volume, &control.object);
    let mut slots = shared.slot_change();
    let mut steps = Vec::new();
    for index in chunks.clone() {
        let chunk = object.chunk(index, control.len_bytes);
        let range = chunk.start.max(start)..chunk.end.min(start + bytes.len() as u64);
        let piece = &bytes[short(range.start - start)..short(range.end - start)];
        let old = load::place(shared, control, index)?;
        if let Place::At(offset) = old
            && piece.len() as u64 <= volume.in_place_bytes()
        {
            steps.push(Step::InPlace { offset: offset + range.start - chunk.start, bytes: piece });
            continue;
        }
        let mut contents = match piece.len() as u64 == chunk.end - chunk.start {
            true => vec![0; piece.len()],
            false => load::whole_chunk(shared, control, index)?,
        };
        match old {
            Place::At(offset) => {
                let slot = shared.slots.find(offset, contents.len() as u64);
                slots.free(slot.expect("its slab is in use"));
            }
            Place::InFile(slot) => slots.free_in_file(slot),
            Place::Hole => {}
        }
        let within = short(range.start - chunk.start);
        contents[within..within + piece.len()].copy_from_slice(piece);
        let new = slots.fill(&contents)?;
        slots.own(&new, object, index);
        steps.push(Step::Replace { index, new });
    }
    // They are adjacent: all that may be changed in place are the first and the last chunk.
    let replaced: Vec<(u64, Entry)> =
        steps.iter().filter_map(|step| step.entry(volume.seed, object)).collect();
    let table = match replaced.is_empty() {
        true => None,
        false => Some(Table::of(volume, object, control.chunks())?),
    };
    volume.heap().check_not_poisoned()?;
    let changing = locked.begin();
    let stored = volume.transaction(|change| {
        for step in &steps {
            if let Step::InPlace { offset, bytes } = step {
                change.write_bytes(*offset, bytes)?;
            }
        }
        let Some(table) = table else { return Ok(()) };
        slots.write(change)?;
        for of_leaf in replaced.chunk_by(|(one, _), (next, _)| one / LEAF_ENTRIES == next / LEAF_ENTRIES) {
            let entries: Vec<Entry> = of_leaf.iter().map(|(_, entry)| *entry).collect();
            table.write(change, object, control.chunks(), of_leaf[0].0, &entries)?;
        }
        Ok(())
    });
    match stored {
        Ok(()) => {
            for step in &steps {
                if let Step::Replace { index, new } = step {
                    changing.set_place(*index, Place::At(new.offset()));
                }
            }
            changing.end();
            slots.complete();
            Ok(())
        }
        // Nothing has changed. After a failed fence, which of the bytes are durable is unknown.
        Err(error) => {
            if !matches!(error, ObjectError::Fence(_) | ObjectError::Poisoned) {
                changing.end();
            }
            Err(error)
        }
    }
}
