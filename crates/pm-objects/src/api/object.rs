//! A handle to an object.

use crate::error::ObjectError;
use crate::ops::contents::{load, pin, resize, store};
use crate::session::control::Control;
use crate::session::shared::Shared;
use crate::volume::hints::Tier;
use crate::volume::object::ElementType;
use core::fmt;
use core::marker::PhantomData;
use core::slice;
use pm_core::{InPool, Pmem, Region, bytes_of_slice, bytes_of_slice_mut, from_bytes};
use std::sync::Arc;

/// A handle to an object with elements of the type `T`.
///
/// It borrows nothing, and can be cloned and sent to other threads. Loads copy elements out, take no lock, and see each store whole or not at all. Stores
/// to one object are made one after the other.
pub struct Object<T, P: Pmem = Region> {
    pub(super) shared: Arc<Shared<P>>,
    pub(super) control: Arc<Control>,
    element: PhantomData<fn() -> T>,
}

impl<T, P: Pmem> Clone for Object<T, P> {
    fn clone(&self) -> Self {
        let (shared, control) = (Arc::clone(&self.shared), Arc::clone(&self.control));
        Self { shared, control, element: PhantomData }
    }
}

impl<T, P: Pmem> fmt::Debug for Object<T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, len_bytes) = (self.control.object.number, self.control.len_bytes());
        f.debug_struct("Object")
            .field("number", &number)
            .field("len_bytes", &len_bytes)
            .finish_non_exhaustive()
    }
}

impl<T: for<'p> InPool<'p>, P: Pmem> Object<T, P> {
    const ELEMENT_BYTES: u64 = size_of::<T>() as u64;

    pub(super) fn new(shared: &Arc<Shared<P>>, control: Arc<Control>) -> Self {
        Self { shared: Arc::clone(shared), control, element: PhantomData }
    }

    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.control.len_bytes() / Self::ELEMENT_BYTES
    }

    /// Whether it has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.control.len_bytes() == 0
    }

    /// Copies out the element of an object that has one.
    ///
    /// # Errors
    /// When the object has none or several, was deleted, or is corrupted.
    #[inline]
    pub fn load(&self) -> Result<T, ObjectError> {
        match self.control.len_bytes() == Self::ELEMENT_BYTES {
            true => self.get(0),
            false => Err(self.range_error(0, 1)),
        }
    }

    /// Copies out the element with this index.
    ///
    /// # Errors
    /// When there is none, or the object was deleted, or is corrupted.
    #[inline]
    pub fn get(&self, index: u64) -> Result<T, ObjectError> {
        let start = self.start(index, 1)?;
        let mut loaded = Ok(());
        let value = from_bytes(|bytes| loaded = load::load(&self.shared, &self.control, start, bytes));
        loaded.map_err(|error| self.in_elements(error, index, 1))?;
        Ok(value)
    }

    /// Copies out adjacent elements, as of one moment: each store is seen in all of them or in none.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn read(&self, start: u64, out: &mut [T]) -> Result<(), ObjectError> {
        let len = out.len() as u64;
        let first = self.start(start, len)?;
        let loaded = load::load(&self.shared, &self.control, first, bytes_of_slice_mut(out));
        loaded.map_err(|error| self.in_elements(error, start, len))
    }

    /// Replaces the element of an object that has one.
    ///
    /// # Errors
    /// When the object has none or several, was deleted, or is corrupted. When the pool is full: an element of more than 1 KiB needs room beside
    /// the old one. When this is called by the closure of a change of objects.
    ///
    /// # Durability
    /// Atomic, and durable when this returns. One fence for up to 1 KiB, and two for more.
    pub fn store(&self, value: &T) -> Result<(), ObjectError> {
        match self.control.len_bytes() == Self::ELEMENT_BYTES {
            true => self.set(0, value),
            false => Err(self.range_error(0, 1)),
        }
    }

    /// Replaces the element with this index.
    ///
    /// # Errors
    /// As for [`store`](Self::store).
    ///
    /// # Durability
    /// As for [`store`](Self::store).
    pub fn set(&self, index: u64, value: &T) -> Result<(), ObjectError> {
        self.write(index, slice::from_ref(value))
    }

    /// Replaces adjacent elements, up to 64 chunks of 4 KiB.
    ///
    /// # Errors
    /// As for [`store`](Self::store), and when they are too many.
    ///
    /// # Durability
    /// Atomic, and durable when this returns. One fence for up to 1 KiB, and two for more.
    pub fn write(&self, start: u64, elements: &[T]) -> Result<(), ObjectError> {
        self.shared.check_not_nested()?;
        let locked = self.control.lock()?;
        let start = self.start(start, elements.len() as u64)?;
        store::store(&self.shared, &locked, start, bytes_of_slice(elements))
    }

    /// Calls a closure with a copy of an element, and stores what it has made of it. Other stores to the object wait meanwhile, and loads do not. If the
    /// closure panics, nothing changes.
    ///
    /// The closure may load objects, and not change them.
    ///
    /// # Errors
    /// As for [`get`](Self::get) and [`store`](Self::store).
    ///
    /// # Durability
    /// As for [`store`](Self::store).
    pub fn edit<R>(&self, index: u64, change: impl FnOnce(&mut T) -> R) -> Result<R, ObjectError> {
        self.shared.volume.check_writable()?;
        self.shared.check_not_nested()?;
        let locked = self.control.lock()?;
        let start = self.start(index, 1)?;
        let in_closure = self.shared.enter_closure();
        let mut value = self.get(index)?;
        let result = change(&mut value);
        drop(in_closure);
        store::store(&self.shared, &locked, start, bytes_of_slice(slice::from_ref(&value)))?;
        Ok(result)
    }

    /// Adds elements at the end, up to 64 chunks of 4 KiB.
    ///
    /// # Errors
    /// As for [`store`](Self::store), and when they are too many, or the object would be too long. When the object was opened as bytes, and has
    /// other elements.
    ///
    /// # Durability
    /// Atomic, and durable when this returns: after a crash the object has the old length, or the new one with these elements. One fence for up to 1 KiB that fits
    /// beside the last elements, and two for more.
    pub fn append(&self, elements: &[T]) -> Result<(), ObjectError> {
        self.shared.volume.check_writable()?;
        self.shared.check_not_nested()?;
        Shared::<P>::check_type(&self.control, ElementType::of::<T>()?)?;
        let locked = self.control.lock()?;
        resize::append(&self.shared, &locked, bytes_of_slice(elements))
    }

    /// Makes the object longer or shorter. New elements are zeroes, and take no space until they are stored to.
    ///
    /// # Errors
    /// As for [`store`](Self::store), and when the object would be too long, or was opened as bytes, and has other elements.
    ///
    /// # Durability
    /// Durable when this returns. Longer: atomic, with two fences at most. Shorter: with a fence or two for each 128 KiB, between which a crash leaves
    /// a length between the old one and the new one.
    pub fn resize(&self, len: u64) -> Result<(), ObjectError> {
        self.shared.check_not_nested()?;
        Shared::<P>::check_type(&self.control, ElementType::of::<T>()?)?;
        let locked = self.control.lock()?;
        resize::resize(&self.shared, &locked, len.checked_mul(Self::ELEMENT_BYTES))
    }

    /// Pins the object to a tier: its chunks move there, and stay there. In DRAM they are copies, and their places stay what they are; a pool that is opened without
    /// DRAM ignores the pin. In the file they are until they are stored to, and again when the pool is full.
    ///
    /// # Errors
    /// When the pool has no such tier. When the tier is full: the object is pinned then, and some of its chunks have moved. As for [`store`](Self::store).
    ///
    /// # Durability
    /// Durable when this returns: the pin is a part of the object. One fence; to the file one of the file and one more for each 64 chunks; to the pool two for
    /// each 64 chunks.
    pub fn pin(&self, tier: Tier) -> Result<(), ObjectError> {
        pin::pin(&self.shared, &self.control, Some(tier))
    }

    /// Reverts [`pin`](Self::pin): the chunks move where their use shows that they belong.
    ///
    /// # Errors
    /// As for [`store`](Self::store).
    ///
    /// # Durability
    /// Durable when this returns. One fence.
    pub fn unpin(&self) -> Result<(), ObjectError> {
        pin::pin(&self.shared, &self.control, None)
    }

    /// The first byte of elements that are in the object.
    #[inline]
    pub(super) fn start(&self, start: u64, len: u64) -> Result<u64, ObjectError> {
        let end = start.checked_add(len).and_then(|end| end.checked_mul(Self::ELEMENT_BYTES));
        match end.is_some_and(|end| end <= self.control.len_bytes()) {
            true => Ok(start * Self::ELEMENT_BYTES),
            false => Err(self.range_error(start, len)),
        }
    }

    /// The error of a load. The object may have become shorter after [`start`](Self::start), whose error counts elements.
    #[cold]
    fn in_elements(&self, error: ObjectError, start: u64, len: u64) -> ObjectError {
        match error {
            ObjectError::Range { .. } => self.range_error(start, len),
            error => error,
        }
    }

    #[cold]
    fn range_error(&self, start: u64, len: u64) -> ObjectError {
        ObjectError::Range { start, end: start.saturating_add(len), len: self.len() }
    }
}
