//! Scopes: typed access to a pool, with a brand that is unique to the scope.

use super::link::{Brand, Link};
use super::state::{Dirty, Durable, Fenceable, Fenced, InFlight, Place};
use crate::persist::{InPool, bytes_of, from_bytes_unchecked};
use crate::{FenceError, PlaceError, Pmem, Pool, Region, RootError};
use core::marker::PhantomData;
use core::mem::{align_of, size_of};

/// Typed access to a pool, from [`Pool::scope`]. Values with the scope's brand `'p` cannot leave the scope.
///
/// ```
/// use pm_core::{Link, Persist, Pool, PoolOptions, Region, field};
///
/// #[derive(Clone, Copy, Persist)]
/// #[repr(C)]
/// struct Order<'p> { id: u64, previous: Link<'p, Order<'p>> }
///
/// #[derive(Clone, Copy, Persist)]
/// #[repr(C)]
/// struct Shop<'p> { newest: Link<'p, Order<'p>>, count: u64 }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = Pool::format(Region::anonymous(1 << 20)?, &PoolOptions::new())?;
/// let data = pool.data().start;
/// pool.scope(|pm| {
///     let shop = pm.write(pm.claim(data)?, &Shop { newest: Link::NULL, count: 0 });
///     let order = pm.write(pm.claim(data + 64)?, &Order { id: 7, previous: Link::NULL });
///     // One fence makes both durable.
///     let (shop, order) = pm.fence((pm.flush(shop), pm.flush(order)))?;
///     pm.set_root("shop", &shop)?;
///     // Publishing is one 8-byte store, and only a `Durable` value yields a link.
///     let newest = pm.store_link(shop.link().field(field!(Shop, newest)), order.link())?;
///     pm.fence(pm.flush(newest))?;
///
///     let shop = pm.root::<Shop>("shop")?.expect("was set above");
///     let newest = pm.read(shop)?.newest;
///     assert_eq!(pm.read(newest)?.id, 7);
///     Ok(())
/// })
/// # }
/// ```
#[derive(Debug)]
pub struct Scope<'p, P: Pmem = Region> {
    pool: &'p Pool<P>,
    brand: Brand<'p>,
}

impl<P: Pmem> Pool<P> {
    /// Runs `f` with a scope of this pool. Places, links and written values carry its brand: they cannot be used with another pool or outside `f`.
    pub fn scope<R>(&self, f: impl for<'p> FnOnce(&Scope<'p, P>) -> R) -> R {
        f(&Scope { pool: self, brand: PhantomData })
    }
}

impl<'p, P: Pmem> Scope<'p, P> {
    /// Returns the place for a `T` at `offset`. No record is kept: the caller, or its allocator, must ensure that no other code writes there.
    ///
    /// # Errors
    /// When a `T` at `offset` would not fit in the data area or would be misaligned, or the pool is read-only.
    pub fn claim<T: InPool<'p>>(&self, offset: u64) -> Result<Place<'p, T>, PlaceError> {
        self.check_writable()?;
        self.check::<T>(offset).map(Place::at)
    }

    /// Stores a value at its place.
    ///
    /// # Durability
    /// None yet: [`flush`](Self::flush), then [`fence`](Self::fence).
    #[track_caller]
    pub fn write<T: InPool<'p>>(&self, place: Place<'p, T>, value: &T) -> Dirty<'p, T> {
        self.pmem().store(place.offset(), bytes_of(value));
        Dirty::at(place.offset())
    }

    /// Stores a value at its place around the cache, with non-temporal stores: for large values, which then need no flush.
    ///
    /// # Durability
    /// The value is durable after this thread's next [`fence`](Self::fence).
    #[track_caller]
    pub fn stream<T: InPool<'p>>(&self, place: Place<'p, T>, value: &T) -> InFlight<'p, T> {
        self.pmem().store_nt(place.offset(), bytes_of(value));
        InFlight::at(place.offset())
    }

    /// Overwrites a value that has not been flushed yet.
    #[track_caller]
    pub fn rewrite<T: InPool<'p>>(&self, dirty: Dirty<'p, T>, value: &T) -> Dirty<'p, T> {
        self.write(Place::at(dirty.offset()), value)
    }

    /// Flushes the lines of a value.
    ///
    /// # Durability
    /// The value is durable after this thread's next [`fence`](Self::fence). A flush costs one instruction per line.
    #[track_caller]
    pub fn flush<T: InPool<'p>>(&self, dirty: Dirty<'p, T>) -> InFlight<'p, T> {
        self.pmem().flush(dirty.offset(), size_of::<T>() as u64);
        InFlight::at(dirty.offset())
    }

    /// Waits until one or more flushed values are durable. This costs one fence, whatever the number of values.
    ///
    /// # Errors
    /// As [`Pmem::fence`]. After an error, the state of the values is unknown.
    ///
    /// # Durability
    /// The returned values are durable.
    #[track_caller]
    pub fn fence<F: Fenceable<'p>>(&self, in_flight: F) -> Result<F::Durable, FenceError> {
        Ok(in_flight.fenced(&Fenced::after_fence(self.pmem())?))
    }

    /// Stores a link into a link field, atomically. This publishes the link's target.
    ///
    /// # Errors
    /// When `slot` is null, misaligned or not in the data area, or the pool is read-only.
    ///
    /// # Durability
    /// None yet, but a crash leaves the old link or the new one, and the target of the new link is durable.
    #[track_caller]
    pub fn store_link<T: InPool<'p>>(
        &self,
        slot: Link<'p, Link<'p, T>>,
        target: Link<'p, T>,
    ) -> Result<Dirty<'p, Link<'p, T>>, PlaceError> {
        self.check_writable()?;
        let offset = self.check_link(slot)?;
        self.pmem().store_u64(offset, target.offset());
        Ok(Dirty::at(offset))
    }

    /// Stores a word in place, atomically.
    ///
    /// # Errors
    /// When `slot` is null, misaligned or not in the data area, or the pool is read-only.
    ///
    /// # Durability
    /// None yet, but a crash leaves the old word or the new one.
    #[track_caller]
    pub fn store_u64(&self, slot: Link<'p, u64>, value: u64) -> Result<Dirty<'p, u64>, PlaceError> {
        self.check_writable()?;
        let offset = self.check_link(slot)?;
        self.pmem().store_u64(offset, value);
        Ok(Dirty::at(offset))
    }

    /// Loads the target of a link. The loaded value is not necessarily durable: another thread may be writing it.
    ///
    /// # Errors
    /// When the link is null or misaligned, or its target does not lie in the data area.
    pub fn read<T: InPool<'p>>(&self, link: Link<'p, T>) -> Result<T, PlaceError> {
        let offset = self.check_link(link)?;
        // SAFETY: the bytes come from the pool of this scope's brand.
        Ok(unsafe { from_bytes_unchecked(|bytes| self.pmem().load(offset, bytes)) })
    }

    /// A link to the root of this name, or `None` if there is no root of this name.
    ///
    /// # Errors
    /// When the name is invalid; when the value is not a `T`, or not in the data area; when the root is not found and a slot is corrupted.
    pub fn root<T: InPool<'p>>(&self, name: &str) -> Result<Option<Link<'p, T>>, RootError> {
        let Some(root) = self.pool.find_root(name)? else { return Ok(None) };
        root.expect_type(T::LAYOUT, size_of::<T>() as u64)?;
        Ok(Some(Link::from_offset(self.check::<T>(root.offset())?)))
    }

    /// Sets a root: after a restart, [`root`](Self::root) finds the durable value by this name. An existing root of the same name is replaced.
    ///
    /// # Errors
    /// When the name is invalid ([`RootError::Name`]), there are 63 other roots or corrupted slots, the pool is read-only or has [logged
    /// roots](crate::PoolOptions::with_logged_roots), or a fence fails.
    ///
    /// # Durability
    /// When it returns, the root is durable; a crash before that leaves the old root of that name, if any, or the new one. Costs two fences, and a
    /// third if it replaces a root.
    #[track_caller]
    pub fn set_root<T: InPool<'p>>(&self, name: &str, value: &Durable<'p, T>) -> Result<(), RootError> {
        self.pool.put_root(name, (value.offset(), size_of::<T>() as u64, T::LAYOUT))
    }

    /// Sets a root whose value is still in flight. This does the same as [`fence`](Self::fence) followed by [`set_root`](Self::set_root), with one
    /// fence fewer: the first fence of setting a root, which completes before the root becomes valid, also makes the value durable.
    ///
    /// ```
    /// # use pm_core::{Pool, PoolOptions, Region};
    /// # let pool = Pool::format(Region::anonymous(1 << 20).unwrap(), &PoolOptions::new())?;
    /// pool.scope(|pm| {
    ///     let visits = pm.write(pm.claim(pool.data().start).unwrap(), &7_u64);
    ///     pm.set_root_in_flight("visits", pm.flush(visits))
    ///         .map(|visits| assert_eq!(pm.read(visits.link()).unwrap(), 7))
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for [`set_root`](Self::set_root). After an error, the state of the value is unknown.
    ///
    /// # Durability
    /// As for [`set_root`](Self::set_root), and the returned value is durable.
    #[track_caller]
    pub fn set_root_in_flight<T: InPool<'p>>(
        &self,
        name: &str,
        value: InFlight<'p, T>,
    ) -> Result<Durable<'p, T>, RootError> {
        self.pool.put_root(name, (value.offset(), size_of::<T>() as u64, T::LAYOUT))?;
        Ok(Durable::at(value.offset()))
    }

    const fn pmem(&self) -> &'p P {
        self.pool.pmem()
    }

    const fn check_writable(&self) -> Result<(), PlaceError> {
        if self.pool.is_writable() { Ok(()) } else { Err(PlaceError::ReadOnly) }
    }

    fn check_link<T: InPool<'p>>(&self, link: Link<'p, T>) -> Result<u64, PlaceError> {
        if link.is_null() {
            return Err(PlaceError::Null);
        }
        self.check::<T>(link.offset())
    }

    fn check<T: InPool<'p>>(&self, offset: u64) -> Result<u64, PlaceError> {
        let (size_bytes, align_bytes) = (size_of::<T>() as u64, align_of::<T>() as u64);
        let data = self.pool.data();
        if offset < data.start || offset.checked_add(size_bytes).is_none_or(|end| end > data.end) {
            return Err(PlaceError::OutOfRange {
                offset,
                size_bytes,
                data_start: data.start,
                data_end: data.end,
            });
        }
        if !offset.is_multiple_of(align_bytes) {
            return Err(PlaceError::Misaligned { offset, align_bytes });
        }
        Ok(offset)
    }
}
