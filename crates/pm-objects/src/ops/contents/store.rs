//! Changes contents of objects.

use super::chunk;
use super::room::{self, Holds};
use crate::error::ObjectError;
use crate::format::{Entry, PLACE_BYTES, short, tier};
use crate::session::chunks::Place;
use crate::session::control::{Changing, Control, Locked};
use crate::session::placement::STORE;
use crate::session::shared::Shared;
use crate::volume::slabs::Slot;
use crate::volume::slots::SlotChange;
use crate::volume::table::Table;
use crate::volume::{Change, Volume};
use pm_core::Pmem;

/// The number of chunks that one store may change.
pub(crate) const CHUNKS_MAX: u64 = 64;

/// Bytes that a chunk gets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'b> {
    /// The index of the chunk.
    index: u64,
    /// The first byte, from the start of the chunk.
    within: u64,
    bytes: &'b [u8],
}

/// What one object gets, under its lock.
pub(crate) struct Stores<'a> {
    pub(crate) locked: &'a Locked<'a>,
    /// By chunk; those of one in their order.
    pieces: Vec<Piece<'a>>,
}

impl<'a> Stores<'a> {
    pub(crate) const fn new(locked: &'a Locked<'a>) -> Self {
        Self { locked, pieces: Vec::new() }
    }

    /// The indices of its chunks.
    pub(crate) fn indices(&self) -> impl Iterator<Item = u64> {
        self.pieces.chunk_by(|one, next| one.index == next.index).map(|pieces| pieces[0].index)
    }

    /// Orders what was added by chunk.
    pub(crate) fn order(&mut self) {
        // Stable: of two pieces with common bytes the later one stays behind.
        self.pieces.sort_by_key(|piece| piece.index);
    }

    /// Adds bytes that are in the object.
    pub(crate) fn add(&mut self, start: u64, bytes: &'a [u8]) {
        let chunk_bytes = self.locked.control().object.chunk_bytes;
        let (mut start, mut rest) = (start, bytes);
        while !rest.is_empty() {
            let (index, within) = (start / chunk_bytes, start % chunk_bytes);
            let (bytes, others) = rest.split_at(short((rest.len() as u64).min(chunk_bytes - within)));
            self.pieces.push(Piece { index, within, bytes });
            (start, rest) = (start + bytes.len() as u64, others);
        }
    }
}

/// The number of pieces that one transaction changes in place.
const IN_PLACE_PIECES: usize = 64;

/// What a transaction of the heap may still change in place: its log has a length.
struct InPlace {
    bytes: u64,
    pieces: usize,
}

impl InPlace {
    /// Takes so much, if it is left.
    const fn take(&mut self, bytes: u64, pieces: usize) -> bool {
        let fits = bytes <= self.bytes && pieces <= self.pieces;
        if fits {
            self.bytes -= bytes;
            self.pieces -= pieces;
        }
        fits
    }
}

/// What happens to one chunk.
enum Step<'b> {
    /// These bytes are changed in place, through the log, at this offset.
    InPlace { offset: u64, piece: Piece<'b> },
    /// The chunk gets this slot, which has its new contents, and this entry.
    Replace { slot: Slot, entry: Entry },
}

/// A step of an object, for the chunk `index`, which has a frame or none.
struct Planned<'b> {
    index: u64,
    frame: Option<u64>,
    step: Step<'b>,
}

/// Stores bytes that are in the object, under its lock.
///
/// # Durability
/// Atomic, and durable when this returns: after a crash all bytes are the new ones, or all the old ones. One fence if at most a quarter of each chunk
/// changes, and else two.
pub(crate) fn store<P: Pmem>(
    shared: &Shared<P>,
    locked: &Locked<'_>,
    start: u64,
    bytes: &[u8],
) -> Result<(), ObjectError> {
    if bytes.is_empty() {
        return shared.volume.check_writable();
    }
    let mut stores = Stores::new(locked);
    stores.add(start, bytes);
    let stores = [stores];
    room::with_room(shared, Holds::Objects(&[locked]), || store_once(shared, &stores))?;
    note_store(shared, &stores[0]);
    Ok(())
}

/// Stores what several objects get, under their locks. Changes nothing if there is no room.
///
/// # Durability
/// As for [`store`].
pub(crate) fn store_once<P: Pmem>(shared: &Shared<P>, stores: &[Stores<'_>]) -> Result<(), ObjectError> {
    let volume = &shared.volume;
    volume.check_writable()?;
    if stores.iter().map(|of| of.indices().count()).sum::<usize>() as u64 > CHUNKS_MAX {
        let bytes = stores.iter().flat_map(|of| &of.pieces).map(|piece| piece.bytes.len() as u64).sum();
        return Err(ObjectError::TooLong { bytes, of: "store", max: CHUNKS_MAX * volume.chunk_bytes });
    }
    let mut slots = shared.slot_change();
    let mut left = InPlace { bytes: 4 * volume.in_place_bytes(), pieces: IN_PLACE_PIECES };
    let planned: Vec<Vec<Planned<'_>>> =
        stores.iter().map(|of| plan(shared, &mut slots, of, &mut left)).collect::<Result<_, _>>()?;
    volume.heap().check_not_poisoned()?;
    let changing: Vec<Changing<'_>> = stores.iter().map(|of| of.locked.begin()).collect();
    let stored = volume.transaction(|change| {
        let all = || stores.iter().zip(&planned);
        for step in planned.iter().flatten() {
            if let Step::InPlace { offset, piece } = &step.step {
                change.write_bytes(*offset, piece.bytes)?;
            }
        }
        if planned.iter().flatten().any(|planned| matches!(planned.step, Step::Replace { .. })) {
            slots.write(change)?;
            all().try_for_each(|(of, planned)| write_entries(change, of.locked.control(), planned))?;
        }
        Ok(())
    });
    match stored {
        Ok(()) => {
            for ((of, planned), changing) in stores.iter().zip(&planned).zip(changing) {
                planned.iter().for_each(|planned| show(shared, &changing, of, planned));
                changing.end();
            }
            slots.complete();
            Ok(())
        }
        Err(error) => {
            changing.into_iter().for_each(|changing| changing.fail(&error));
            Err(error)
        }
    }
}

/// Decides what happens to the chunks of an object, and fills the slots that they get.
fn plan<'b, P: Pmem>(
    shared: &Shared<P>,
    slots: &mut SlotChange<'_, P>,
    stores: &Stores<'b>,
    left: &mut InPlace,
) -> Result<Vec<Planned<'b>>, ObjectError> {
    let control = stores.locked.control();
    let mut planned = Vec::with_capacity(stores.pieces.len());
    for pieces in stores.pieces.chunk_by(|one, next| one.index == next.index) {
        let index = pieces[0].index;
        let chunk = control.chunk_range(index);
        let (frame, home) = chunk::home_and_frame(shared, stores.locked, index)?;
        let bytes: u64 = pieces.iter().map(|piece| piece.bytes.len() as u64).sum();
        if let Place::At(offset) = home
            && bytes <= shared.volume.in_place_bytes()
            && left.take(bytes, pieces.len())
        {
            let in_place = |piece: &Piece<'b>| Step::InPlace { offset: offset + piece.within, piece: *piece };
            planned.extend(pieces.iter().map(|piece| Planned { index, frame, step: in_place(piece) }));
            continue;
        }
        let mut contents = match pieces {
            [piece] if piece.bytes.len() as u64 == chunk.end - chunk.start => piece.bytes.to_vec(),
            _ => chunk::contents(shared, control, index)?,
        };
        for piece in pieces {
            let within = short(piece.within);
            contents[within..within + piece.bytes.len()].copy_from_slice(piece.bytes);
        }
        free_home(shared, slots, home, contents.len() as u64);
        let slot = slots.fill(&contents)?;
        slots.own(&slot, &control.object, index);
        let entry = entry_of(&shared.volume, control, index, &slot);
        planned.push(Planned { index, frame, step: Step::Replace { slot, entry } });
    }
    Ok(planned)
}

/// Frees the place of a chunk of so many bytes.
pub(crate) fn free_home<P: Pmem>(
    shared: &Shared<P>,
    slots: &mut SlotChange<'_, P>,
    home: Place,
    len_bytes: u64,
) {
    match home {
        Place::At(offset) => {
            let slot = shared.slots.find(offset, len_bytes);
            slots.free(slot.expect("its slab is in use"));
        }
        Place::InFile(slot) => slots.free_in_file(slot),
        Place::Hole => {}
        Place::InDram(_) => unreachable!("the home of a chunk in DRAM is on another tier"),
    }
}

/// The entry of a chunk in a slot.
pub(crate) fn entry_of<P: Pmem>(volume: &Volume<P>, control: &Control, index: u64, slot: &Slot) -> Entry {
    Entry::new(volume.seed, control.object.number, index, tier::PM, slot.offset() / PLACE_BYTES)
}

/// Writes the entries of an object's chunks that get other slots.
fn write_entries<P: Pmem>(
    change: &mut Change<'_, '_, P>,
    control: &Control,
    planned: &[Planned<'_>],
) -> Result<(), ObjectError> {
    let replaced: Vec<(u64, Entry)> = planned
        .iter()
        .filter_map(|planned| match &planned.step {
            Step::Replace { entry, .. } => Some((planned.index, *entry)),
            Step::InPlace { .. } => None,
        })
        .collect();
    if replaced.is_empty() {
        return Ok(());
    }
    let object = &control.object;
    Table::of(change.volume, object)?.write(change, object, &replaced)
}

/// What is durable becomes visible: the places of chunks, and their copies in DRAM.
fn show<P: Pmem>(shared: &Shared<P>, changing: &Changing<'_>, stores: &Stores<'_>, planned: &Planned<'_>) {
    match &planned.step {
        Step::Replace { slot, .. } => {
            chunk::set_home(shared, changing, planned.index, Place::At(slot.offset()));
            if let Some(frame) = planned.frame {
                let pieces = stores.pieces.iter().filter(|piece| piece.index == planned.index);
                pieces.for_each(|piece| shared.frames().store(frame, piece.within, piece.bytes));
            }
        }
        Step::InPlace { piece, .. } => {
            if let Some(frame) = planned.frame {
                shared.frames().store(frame, piece.within, piece.bytes);
            }
        }
    }
}

/// Counts a store to chunks.
pub(crate) fn note_store<P: Pmem>(shared: &Shared<P>, stores: &Stores<'_>) {
    if let Some(placement) = &shared.placement {
        for index in stores.indices() {
            placement.note_use(&stores.locked.control().chunk(index).heat, STORE);
        }
    }
}
