//! A change of several objects.

use super::object::Object;
use crate::error::ObjectError;
use crate::ops::contents::load;
use crate::ops::contents::room::{self, Holds};
use crate::ops::contents::store::{self, Stores};
use crate::session::control::{Control, Locked};
use crate::session::shared::Shared;
use core::fmt;
use core::slice;
use pm_core::{InPool, Pmem, Region, bytes_of_slice, bytes_of_slice_mut, from_bytes};
use std::sync::Arc;

/// An object of any type, that a [transaction](crate::Objects::transaction) changes.
pub trait AnyObject<P: Pmem = Region>: sealed::Sealed<P> {}

impl<T, P: Pmem> AnyObject<P> for Object<T, P> {}

pub(super) mod sealed {
    use super::{Arc, Control, Object, Pmem, Shared};

    pub trait Sealed<P: Pmem> {
        #[doc(hidden)]
        fn parts(&self) -> Parts<'_, P>;
    }

    /// What a transaction needs of an object.
    #[doc(hidden)]
    #[derive(Debug)]
    pub struct Parts<'o, P: Pmem> {
        pub(in crate::api) shared: &'o Arc<Shared<P>>,
        pub(in crate::api) control: &'o Arc<Control>,
    }

    impl<T, P: Pmem> Sealed<P> for Object<T, P> {
        fn parts(&self) -> Parts<'_, P> {
            Parts { shared: &self.shared, control: &self.control }
        }
    }
}

/// The number of objects that a transaction may change.
const OBJECTS_MAX: usize = 64;

/// A change of several objects in progress: [`Objects::transaction`](crate::Objects::transaction). It reads what it has stored.
pub struct Transaction<'t, P: Pmem = Region> {
    shared: &'t Shared<P>,
    locked: Vec<Locked<'t>>,
    /// In their order: the index of the object, the first byte, the bytes.
    stores: Vec<(usize, u64, Vec<u8>)>,
}

impl<P: Pmem> fmt::Debug for Transaction<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (objects, stores) = (self.locked.len(), self.stores.len());
        f.debug_struct("Transaction")
            .field("objects", &objects)
            .field("stores", &stores)
            .finish_non_exhaustive()
    }
}

impl<P: Pmem> Transaction<'_, P> {
    /// Copies out an element, as the transaction has left it.
    ///
    /// # Errors
    /// As for [`Object::get`]. When the object is not one of the transaction's.
    pub fn get<T: for<'p> InPool<'p>>(&self, object: &Object<T, P>, index: u64) -> Result<T, ObjectError> {
        let mut loaded = Ok(());
        let value = from_bytes(|bytes| loaded = self.load(object, index, 1, bytes));
        loaded.map(|()| value)
    }

    /// Copies out adjacent elements, as the transaction has left them.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn read<T: for<'p> InPool<'p>>(
        &self,
        object: &Object<T, P>,
        start: u64,
        out: &mut [T],
    ) -> Result<(), ObjectError> {
        self.load(object, start, out.len() as u64, bytes_of_slice_mut(out))
    }

    /// Replaces an element, when the transaction ends.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn set<T: for<'p> InPool<'p>>(
        &mut self,
        object: &Object<T, P>,
        index: u64,
        value: &T,
    ) -> Result<(), ObjectError> {
        self.write(object, index, slice::from_ref(value))
    }

    /// Replaces adjacent elements, when the transaction ends.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn write<T: for<'p> InPool<'p>>(
        &mut self,
        object: &Object<T, P>,
        start: u64,
        elements: &[T],
    ) -> Result<(), ObjectError> {
        let at = self.find(object)?;
        let start = object.start(start, elements.len() as u64)?;
        self.stores.push((at, start, bytes_of_slice(elements).to_vec()));
        Ok(())
    }

    /// The index of the lock of an object.
    fn find<T>(&self, object: &Object<T, P>) -> Result<usize, ObjectError> {
        let found = self.locked.iter().position(|locked| locked.is_of(&object.control));
        found.ok_or(ObjectError::NotLocked)
    }

    fn load<T: for<'p> InPool<'p>>(
        &self,
        object: &Object<T, P>,
        start: u64,
        len: u64,
        out: &mut [u8],
    ) -> Result<(), ObjectError> {
        let at = self.find(object)?;
        let start = object.start(start, len)?;
        load::load(self.shared, &object.control, start, out)?;
        let end = start + out.len() as u64;
        for (_, stored, bytes) in self.stores.iter().filter(|(of, ..)| *of == at) {
            let common = start.max(*stored)..end.min(stored + bytes.len() as u64);
            if !common.is_empty() {
                let within = |first| {
                    crate::format::short(common.start - first)..crate::format::short(common.end - first)
                };
                out[within(start)].copy_from_slice(&bytes[within(*stored)]);
            }
        }
        Ok(())
    }

    fn commit(self) -> Result<(), ObjectError> {
        let mut stores: Vec<Stores<'_>> = self.locked.iter().map(Stores::new).collect();
        for (at, start, bytes) in &self.stores {
            stores[*at].add(*start, bytes);
        }
        stores.iter_mut().for_each(Stores::order);
        stores.retain(|stores| stores.indices().next().is_some());
        if stores.is_empty() {
            return Ok(());
        }
        let locks: Vec<&Locked<'_>> = self.locked.iter().collect();
        room::with_room(self.shared, Holds::Objects(&locks), || store::store_once(self.shared, &stores))?;
        stores.iter().for_each(|stores| store::note_store(self.shared, stores));
        Ok(())
    }
}

/// Locks objects, calls a closure with a transaction of them, and makes its stores durable.
pub(super) fn run<P: Pmem, R, E: From<ObjectError>>(
    shared: &Arc<Shared<P>>,
    objects: &[&dyn AnyObject<P>],
    change: impl FnOnce(&mut Transaction<'_, P>) -> Result<R, E>,
) -> Result<R, E> {
    shared.volume.check_writable()?;
    shared.check_not_nested()?;
    let mut controls: Vec<&Arc<Control>> = Vec::new();
    for object in objects {
        let parts = object.parts();
        if !Arc::ptr_eq(parts.shared, shared) {
            return Err(ObjectError::NotLocked.into());
        }
        controls.push(parts.control);
    }
    // All threads lock them in the same order.
    controls.sort_by_key(|control| control.object.number);
    controls.dedup_by_key(|control| control.object.number);
    if controls.len() > OBJECTS_MAX {
        let objects = controls.len() as u64;
        return Err(
            ObjectError::TooLong { bytes: objects, of: "list of objects", max: OBJECTS_MAX as u64 }.into()
        );
    }
    let locked: Vec<Locked<'_>> = controls.iter().map(|control| control.lock()).collect::<Result<_, _>>()?;
    let mut transaction = Transaction { shared, locked, stores: Vec::new() };
    let in_closure = shared.enter_closure();
    let changed = change(&mut transaction)?;
    drop(in_closure);
    transaction.commit()?;
    Ok(changed)
}
