//! What all handles of a pool share.

use super::control::Control;
use super::frames::Frames;
use super::nesting;
use super::placement::Placement;
use crate::error::{ObjectError, OpenError};
use crate::format::{INCOMPLETE, NAME_MAX, NAMES};
use crate::volume::Volume;
use crate::volume::file_map;
use crate::volume::object::{ElementType, ObjectRef};
use crate::volume::options::ObjectsOptions;
use crate::volume::root::{Pending, Roots};
use crate::volume::slots::{SlotChange, Slots};
use core::sync::atomic::{AtomicU64, Ordering};
use pm_btree::{Plain, Table};
use pm_core::{Persist, Pmem};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, TryLockResult, Weak};

/// What the table of names has for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Persist)]
#[repr(C)]
pub(crate) struct Row {
    /// The offset of the object.
    pub(crate) object: u64,
    /// Its number.
    pub(crate) number: u64,
    /// The epoch in which it got the name.
    pub(crate) born: u64,
}

impl Row {
    pub(crate) const fn of(object: &ObjectRef) -> Self {
        Self { object: object.offset, number: object.number, born: crate::format::EPOCH as u64 }
    }
}

pub(crate) type Names<P> = Table<&'static str, Plain<Row>, P>;

/// An open pool of objects.
///
/// # Locks
/// First the names, then objects, then the registry, then those of slots. No thread has a lock of an object when it takes that of the names.
#[derive(Debug)]
pub(crate) struct Shared<P: Pmem> {
    /// Dropped before the store, which it would keep open.
    names: Option<Names<P>>,
    pub(crate) volume: Volume<P>,
    pub(crate) roots: Roots,
    pub(crate) slots: Slots,
    names_lock: Mutex<NamesState>,
    /// The objects that have handles, by their numbers.
    known: Mutex<FxHashMap<u64, Weak<Control>>>,
    /// The next number of an object.
    next_number: AtomicU64,
    migration: Migration,
    /// Copies of chunks in DRAM.
    pub(crate) frames: Option<Frames>,
    /// How chunks are used, if there is more than one tier.
    pub(crate) placement: Option<Placement>,
}

/// The moves down to the file, which one thread at a time makes.
#[derive(Debug, Default)]
pub(crate) struct Migration {
    /// The offset of the last slot that was looked at.
    cursor: Mutex<u64>,
    /// The number of batches that have moved.
    moves: AtomicU64,
}

impl Migration {
    /// Waits for the thread that moves chunks, and keeps others out. Returns the cursor.
    pub(crate) fn lock(&self) -> MutexGuard<'_, u64> {
        self.cursor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps others out, if no thread moves chunks.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, u64>> {
        match self.cursor.try_lock() {
            Ok(cursor) => Some(cursor),
            Err(TryLockError::Poisoned(cursor)) => Some(cursor.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The number of batches that have moved.
    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Acquire)
    }

    /// A batch has moved.
    pub(crate) fn note_move(&self) {
        self.moves.fetch_add(1, Ordering::Release);
    }
}

/// What is known about changes of names, under their lock.
#[derive(Debug)]
pub(crate) struct NamesState {
    /// Whether the pool has an intent other than none.
    pub(crate) has_intent: bool,
    /// Whether that intent is a change in progress, and not one that is complete.
    pub(crate) is_unfinished: bool,
}

/// A name as programs use it.
pub(crate) fn check_name(name: &str) -> Result<(), ObjectError> {
    match (1..=NAME_MAX).contains(&name.len()) && !name.contains('\0') {
        true => Ok(()),
        false => Err(ObjectError::Name),
    }
}

/// The name of an object that is not complete.
pub(crate) fn incomplete_name(number: u64) -> String {
    format!("{INCOMPLETE}{number:016x}")
}

impl<P: Pmem> Shared<P> {
    /// Starts a session. Recovery is the caller's.
    pub(crate) fn new(volume: Volume<P>, roots: Roots, options: &ObjectsOptions) -> Result<Self, OpenError> {
        let slots = Slots::open(&volume, &roots)?;
        if volume.file.is_some() {
            file_map::read(&volume, &roots)?;
            if !volume.is_read_only {
                file_map::complete(&volume, &roots)?;
            }
        }
        let session = roots.session(&volume)? + u64::from(!volume.is_read_only);
        if !volume.is_read_only {
            volume.transaction(|change| roots.set_session(change, session))?;
        }
        let names = match volume.is_read_only {
            true => volume.store.open_table(NAMES),
            false => volume.store.table(NAMES).map(Some),
        };
        let frames = (options.dram_bytes > 0).then(|| Frames::new(options.dram_bytes)).transpose()?;
        let has_tiers = frames.is_some() || volume.file.is_some();
        Ok(Self {
            frames,
            placement: has_tiers.then(|| Placement::new(options.latencies)),
            names: names.map_err(ObjectError::from)?,
            volume,
            roots,
            slots,
            names_lock: Mutex::new(NamesState { has_intent: true, is_unfinished: true }),
            known: Mutex::new(FxHashMap::default()),
            next_number: AtomicU64::new((session << 32) + 1),
            migration: Migration::default(),
        })
    }

    /// What names this session in thread-local state.
    fn session_id(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// Checks that this thread may take locks.
    pub(crate) fn check_not_nested(&self) -> Result<(), ObjectError> {
        nesting::check(self.session_id())
    }

    /// Whether a closure of the program calls.
    pub(crate) fn is_nested(&self) -> bool {
        nesting::is_in_closure(self.session_id())
    }

    /// Exists while a closure of the program runs under a lock.
    pub(crate) fn enter_closure(&self) -> nesting::InClosure {
        nesting::InClosure::enter(self.session_id())
    }

    /// The table of names. `None` in a pool that is only read and never had any.
    pub(crate) const fn names(&self) -> Option<&Names<P>> {
        self.names.as_ref()
    }

    /// The table of names, to be changed. After a growth that has failed there may be none.
    pub(crate) fn names_to_change(&self) -> Result<&Names<P>, ObjectError> {
        self.volume.check_writable()?;
        self.names.as_ref().ok_or(ObjectError::Poisoned)
    }

    /// Calls `run` with the store, which has no handles meanwhile.
    pub(crate) fn with_store_alone<R>(
        &mut self,
        run: impl FnOnce(&mut pm_btree::Store<P>) -> Result<R, OpenError>,
    ) -> Result<R, OpenError> {
        self.names = None;
        let result = run(&mut self.volume.store);
        self.names = Some(self.volume.store.table(NAMES).map_err(ObjectError::from)?);
        result
    }

    /// The parts that a close takes apart.
    pub(crate) fn into_store(self) -> pm_btree::Store<P> {
        drop(self.names);
        self.volume.store
    }

    /// Takes the lock of the names for a change. What an earlier one has left unfinished is the caller's.
    pub(crate) fn lock_names(&self) -> Result<MutexGuard<'_, NamesState>, ObjectError> {
        self.volume.check_writable()?;
        self.check_not_nested()?;
        Ok(self.names_lock.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the lock of the names, if no thread has it.
    pub(crate) fn try_lock_names(&self) -> TryLockResult<MutexGuard<'_, NamesState>> {
        self.names_lock.try_lock()
    }

    /// The moves down to the file.
    pub(crate) const fn migration(&self) -> &Migration {
        &self.migration
    }

    /// The copies of chunks in DRAM, of a pool that has some.
    #[inline]
    pub(crate) fn frames(&self) -> &Frames {
        self.frames.as_ref().expect("only a pool with frames has chunks in them")
    }

    /// Begins a change of slots.
    pub(crate) const fn slot_change(&self) -> SlotChange<'_, P> {
        self.slots.change(&self.volume, &self.roots)
    }

    /// The intent is none, durably: for a change of names that needs no other.
    ///
    /// # Durability
    /// One fence if there is another.
    pub(crate) fn clear_intent(&self, state: &mut NamesState) -> Result<(), ObjectError> {
        if state.has_intent {
            self.volume.transaction(|change| self.roots.set_pending(change, &Pending::None))?;
            (state.has_intent, state.is_unfinished) = (false, false);
        }
        Ok(())
    }

    /// A number that no object has had.
    pub(crate) fn next_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// The row of a name.
    pub(crate) fn row(&self, name: &str) -> Result<Option<Row>, ObjectError> {
        let names = match &self.names {
            Some(names) => names,
            None if self.volume.is_read_only => return Ok(None),
            None => return Err(ObjectError::Poisoned),
        };
        Ok(names.get(name)?.map(|row| row.value()))
    }

    /// Verifies the object of a row.
    pub(crate) fn find(&self, row: &Row) -> Result<ObjectRef, ObjectError> {
        let object = ObjectRef::find(&self.volume, row.object)?;
        match object.number == row.number {
            true => Ok(object),
            false => Err(ObjectError::corrupted(row.object, crate::error::Structure::Object)),
        }
    }

    /// The object with this name, if its elements have this type.
    pub(crate) fn open(&self, name: &str, wanted: Option<ElementType>) -> Result<Arc<Control>, ObjectError> {
        check_name(name)?;
        let row = self.row(name)?.ok_or(ObjectError::NotFound)?;
        let control = match self.known(row.number) {
            Some(control) => control,
            None => {
                // Under the lock of the names, which keeps the row from losing its object meanwhile. A closure must not take it.
                self.check_not_nested()?;
                let _names = self.names_lock.lock().unwrap_or_else(PoisonError::into_inner);
                let row = self.row(name)?.ok_or(ObjectError::NotFound)?;
                self.register_row(&row)?
            }
        };
        wanted.map_or(Ok(()), |wanted| Self::check_type(&control, wanted))?;
        Ok(control)
    }

    /// The control block of the object of a row. The caller has the lock of the names.
    pub(crate) fn register_row(&self, row: &Row) -> Result<Arc<Control>, ObjectError> {
        let object = self.find(row)?;
        let len_bytes = object.len_bytes(&self.volume)?;
        Ok(self.register(object, len_bytes))
    }

    /// Checks that an object has elements of this type.
    pub(crate) fn check_type(control: &Control, wanted: ElementType) -> Result<(), ObjectError> {
        let stored = control.object.element;
        match wanted == stored {
            true => Ok(()),
            false => Err(ObjectError::Type {
                stored: stored.layout,
                stored_bytes: stored.bytes,
                wanted: wanted.layout,
                wanted_bytes: wanted.bytes,
            }),
        }
    }

    /// The control block of an object that has handles.
    pub(crate) fn known(&self, number: u64) -> Option<Arc<Control>> {
        self.lock_known().get(&number)?.upgrade()
    }

    /// The control block of an object, a new one if it has no handles.
    pub(crate) fn register(&self, object: ObjectRef, len_bytes: u64) -> Arc<Control> {
        let mut known = self.lock_known();
        if let Some(control) = known.get(&object.number).and_then(Weak::upgrade) {
            return control;
        }
        if known.len() == known.capacity() {
            known.retain(|_, control| control.strong_count() > 0);
        }
        let number = object.number;
        let control = Arc::new(Control::new(object, len_bytes));
        known.insert(number, Arc::downgrade(&control));
        control
    }

    fn lock_known(&self) -> MutexGuard<'_, FxHashMap<u64, Weak<Control>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
