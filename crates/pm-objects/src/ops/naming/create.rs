//! Creates an object with its contents, and gives it a name, which may have been another object's.

use super::{free, recover, remove};
use crate::error::ObjectError;
use crate::format::{Entry, PLACE_BYTES, short, tier};
use crate::ops::contents::room::{self, Holds};
use crate::session::control::Control;
use crate::session::shared::{NamesState, Row, Shared, check_name, incomplete_name};
use crate::volume::hints::Hints;
use crate::volume::object::{ElementType, ObjectRef};
use crate::volume::root::Pending;
use crate::volume::slabs::Slot;
use crate::volume::table::Table;
use pm_core::Pmem;
use std::borrow::Cow;
use std::io::Read;
use std::sync::Arc;

/// The number of chunks that one transaction publishes.
const BATCH_CHUNKS: u64 = 32;

/// The contents of a new object, as bytes.
pub(crate) enum Source<'a> {
    Bytes(&'a [u8]),
    Read(u64, &'a mut dyn Read),
}

impl<'a> Source<'a> {
    const fn len_bytes(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Read(len_bytes, _) => *len_bytes,
        }
    }

    /// The next bytes.
    fn next(&mut self, len_bytes: u64) -> Result<Cow<'a, [u8]>, ObjectError> {
        let len_bytes = short(len_bytes);
        match self {
            Self::Bytes(bytes) => {
                let (next, rest) = bytes.split_at(len_bytes);
                *bytes = rest;
                Ok(Cow::Borrowed(next))
            }
            Self::Read(_, source) => {
                let mut next = vec![0; len_bytes];
                source.read_exact(&mut next).map_err(ObjectError::Input)?;
                Ok(Cow::Owned(next))
            }
        }
    }
}

/// What happens to the object that has the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    /// The call fails.
    Refuse,
    /// It is replaced.
    Replace,
    /// It is returned, whatever its type is, and no object is created.
    Return,
}

/// Creates an object with this name.
///
/// # Durability
/// Durable when this returns, with the insertion of the name. A crash before that leaves no new object, and the old one. Three fences for up to 32
/// chunks; six, and two more for each 32 chunks, for more. One more for every 32 chunks of an object that is replaced.
pub(crate) fn create<P: Pmem>(
    shared: &Shared<P>,
    name: &str,
    element: ElementType,
    hints: Hints,
    mut source: Source<'_>,
    existing: Existing,
) -> Result<Arc<Control>, ObjectError> {
    check_name(name)?;
    let len_bytes = source.len_bytes();
    let max = crate::format::OBJECT_BYTES_MAX;
    if len_bytes > max {
        return Err(ObjectError::TooLong { bytes: len_bytes, of: "object", max });
    }
    shared.volume.check_writable()?;
    shared.check_not_nested()?;
    let new = New { shared, number: shared.next_number(), element, hints, len_bytes };
    match len_bytes.div_ceil(element.chunk_bytes(shared.volume.chunk_bytes)) {
        // No lock is held while the contents are read.
        0..=BATCH_CHUNKS => new.at_once(name, &source.next(len_bytes)?, existing),
        _ => new.in_steps(name, &mut source, existing),
    }
}

/// An object that is being made.
struct New<'s, P: Pmem> {
    shared: &'s Shared<P>,
    number: u64,
    element: ElementType,
    hints: Hints,
    len_bytes: u64,
}

impl<P: Pmem> New<'_, P> {
    /// Makes the object in one transaction.
    fn at_once(&self, name: &str, bytes: &[u8], existing: Existing) -> Result<Arc<Control>, ObjectError> {
        let mut state = recover::lock_names(self.shared)?;
        if let Some(found) = self.returned(name, existing)? {
            return Ok(found);
        }
        let old = self.replaced(name, existing)?;
        let object =
            room::with_room(self.shared, Holds::Names, || self.publish_all(name, bytes, old.as_ref()))?;
        (state.has_intent, state.is_unfinished) = (true, true);
        if let Err(error) = self.insert(name, &object) {
            self.abandon(&mut state, &object)?;
            return Err(error);
        }
        remove::end(self.shared, &mut state, old.as_ref())?;
        Ok(self.shared.register(object, self.len_bytes))
    }

    /// Inserts a name into the table of names.
    fn insert(&self, name: &str, object: &ObjectRef) -> Result<(), ObjectError> {
        let names = self.shared.names_to_change()?;
        room::with_room(self.shared, Holds::Names, || Ok(names.insert(name, Row::of(object)).map(drop)?))
    }

    /// The object that has the name, if it is what the call returns. The caller has the lock of the names.
    fn returned(&self, name: &str, existing: Existing) -> Result<Option<Arc<Control>>, ObjectError> {
        match self.shared.row(name)? {
            Some(row) if existing == Existing::Return => self.shared.register_row(&row).map(Some),
            _ => Ok(None),
        }
    }

    /// The object that has the name. An error if it must not be replaced.
    fn replaced(&self, name: &str, existing: Existing) -> Result<Option<ObjectRef>, ObjectError> {
        match self.shared.row(name)? {
            Some(_) if existing == Existing::Refuse => Err(ObjectError::Exists),
            // One that is corrupted loses its name, and keeps its blocks.
            Some(row) => Ok(self.shared.find(&row).ok()),
            None => Ok(None),
        }
    }

    /// Stores the object with its contents, and the intent to give it the name.
    fn publish_all(
        &self,
        name: &str,
        bytes: &[u8],
        old: Option<&ObjectRef>,
    ) -> Result<ObjectRef, ObjectError> {
        let (shared, volume) = (self.shared, &self.shared.volume);
        let chunk_bytes = self.element.chunk_bytes(volume.chunk_bytes);
        let mut slots = shared.slot_change();
        let filled: Vec<Slot> =
            bytes.chunks(short(chunk_bytes)).map(|chunk| slots.fill(chunk)).collect::<Result<_, _>>()?;
        let object = volume.transaction(|change| {
            let object = ObjectRef::alloc(change, self.number, self.element, self.hints)?;
            (0..).zip(&filled).for_each(|(index, slot)| slots.own(slot, &object, index));
            slots.write(change)?;
            let entries: Vec<Entry> =
                (0..).zip(&filled).map(|(index, slot)| self.entry(index, slot)).collect();
            let chunks = object.chunks(self.len_bytes);
            let table = Table::create(change, &object, chunks, &entries)?;
            let inline = entries.first().copied().filter(|_| table.block().is_none());
            object.init(change, self.len_bytes, table.word(), inline);
            let old = old.map(|old| old.offset);
            let pending = Pending::Set { name: name.to_owned(), new: Some(object.offset), old };
            shared.roots.set_pending(change, &pending)?;
            Ok(object)
        })?;
        slots.complete();
        Ok(object)
    }

    fn entry(&self, index: u64, slot: &Slot) -> Entry {
        Entry::new(self.shared.volume.seed, self.number, index, tier::PM, slot.offset() / PLACE_BYTES)
    }

    /// The object gets no name: frees it.
    fn abandon(&self, state: &mut NamesState, object: &ObjectRef) -> Result<(), ObjectError> {
        let pending = Pending::Build(object.offset);
        self.shared.volume.transaction(|change| self.shared.roots.set_pending(change, &pending))?;
        free::free(self.shared, state, object)
    }

    /// Makes the object in steps, under a name that recovery knows as that of an incomplete one. Other changes of names are made meanwhile.
    fn in_steps(
        &self,
        name: &str,
        source: &mut Source<'_>,
        existing: Existing,
    ) -> Result<Arc<Control>, ObjectError> {
        let object = self.begin(name, existing)?;
        let incomplete = Incomplete { shared: self.shared, number: self.number };
        let completed = self.fill_all(&object, source).and_then(|()| self.complete(name, object, existing));
        core::mem::forget(incomplete);
        if !completed.as_ref().is_ok_and(|control| control.object.number == self.number) {
            remove_incomplete(self.shared, self.number)?;
        }
        completed
    }

    /// Makes the object with holes in place of its contents, and gives it the name of an incomplete one.
    fn begin(&self, name: &str, existing: Existing) -> Result<ObjectRef, ObjectError> {
        let shared = self.shared;
        let mut state = recover::lock_names(shared)?;
        self.replaced(name, existing)?;
        let object = room::with_room(shared, Holds::Names, || {
            shared.volume.transaction(|change| {
                let object = ObjectRef::alloc(change, self.number, self.element, self.hints)?;
                let table = Table::create(change, &object, object.chunks(self.len_bytes), &[])?;
                object.init(change, self.len_bytes, table.word(), None);
                shared.roots.set_pending(change, &Pending::Build(object.offset))?;
                Ok(object)
            })
        })?;
        (state.has_intent, state.is_unfinished) = (true, true);
        if let Err(error) = self.insert(&incomplete_name(self.number), &object) {
            free::free(shared, &mut state, &object)?;
            return Err(error);
        }
        // Until the next change of names, recovery still frees the object by the intent, and with it the name.
        state.is_unfinished = false;
        Ok(object)
    }

    /// Stores the contents, some chunks in each transaction.
    fn fill_all(&self, object: &ObjectRef, source: &mut Source<'_>) -> Result<(), ObjectError> {
        let volume = &self.shared.volume;
        let chunks = object.chunks(self.len_bytes);
        let table = Table::of(volume, object)?;
        let mut start = 0;
        while start < chunks {
            let end = (start + BATCH_CHUNKS).min(chunks);
            let bytes = object.chunk(start, self.len_bytes).start..object.chunk(end - 1, self.len_bytes).end;
            let batch = source.next(bytes.end - bytes.start)?;
            room::with_room(self.shared, Holds::Nothing, || self.fill(object, table, start, &batch))?;
            start = end;
        }
        Ok(())
    }

    fn fill(&self, object: &ObjectRef, table: Table, start: u64, batch: &[u8]) -> Result<(), ObjectError> {
        let mut slots = self.shared.slot_change();
        let mut entries = Vec::new();
        let chunk_bytes = short(object.chunk_bytes);
        for (index, chunk) in (start..).zip(batch.chunks(chunk_bytes)) {
            let slot = slots.fill(chunk)?;
            slots.own(&slot, object, index);
            entries.push((index, self.entry(index, &slot)));
        }
        self.shared.volume.transaction(|change| {
            slots.write(change)?;
            table.write(change, object, &entries)
        })?;
        slots.complete();
        Ok(())
    }

    /// Gives the object its name. It is registered under the lock of the names, because it can be deleted from then on.
    fn complete(
        &self,
        name: &str,
        object: ObjectRef,
        existing: Existing,
    ) -> Result<Arc<Control>, ObjectError> {
        let shared = self.shared;
        let mut state = recover::lock_names(shared)?;
        if let Some(found) = self.returned(name, existing)? {
            return Ok(found);
        }
        let old = self.replaced(name, existing)?;
        let pending = Pending::Set {
            name: name.to_owned(),
            new: Some(object.offset),
            old: old.as_ref().map(|old| old.offset),
        };
        shared.volume.transaction(|change| shared.roots.set_pending(change, &pending))?;
        (state.has_intent, state.is_unfinished) = (true, true);
        let names = shared.names_to_change()?;
        let named = room::with_room(shared, Holds::Names, || {
            let mut batch = shared.volume.store.batch();
            batch.remove(names, &incomplete_name(self.number))?;
            batch.insert(names, name, Row::of(&object))?;
            Ok(batch.commit()?)
        });
        if let Err(error) = named {
            shared.clear_intent(&mut state)?;
            return Err(error);
        }
        remove::end(shared, &mut state, old.as_ref())?;
        Ok(shared.register(object, self.len_bytes))
    }
}

/// An object that is not complete. If it is dropped, by a panic of the program's source, the object is freed.
struct Incomplete<'s, P: Pmem> {
    shared: &'s Shared<P>,
    number: u64,
}

impl<P: Pmem> Drop for Incomplete<'_, P> {
    fn drop(&mut self) {
        // After an error the next open frees it.
        drop(remove_incomplete(self.shared, self.number));
    }
}

/// Frees an object that is not complete.
fn remove_incomplete<P: Pmem>(shared: &Shared<P>, number: u64) -> Result<(), ObjectError> {
    let mut state = recover::lock_names(shared)?;
    let name = incomplete_name(number);
    match shared.row(&name)? {
        Some(row) => remove::remove(shared, &mut state, &name, &row),
        None => Ok(()),
    }
}
