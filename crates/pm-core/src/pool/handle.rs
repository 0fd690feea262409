//! The handle of a pool: creating, opening, growing, and roots.

use super::format::{HEADER_BYTES, Header, LOGGED_ROOTS};
use super::root::Target;
use super::root_change::{ChangeLock, RootChange};
use super::roots::clear;
use super::shared::{HeaderSnapshot, Shared};
use super::{
    HeaderState, PoolError, PoolOptions, Root, RootDirectory, RootError, RootWrite, header, leftover,
};
use crate::{GrowError, OpenError, Pmem, Region, RegionOptions, WriterGuard};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use uuid::Uuid;

/// A region that holds a pool: a checksummed header with a backup at the end, named roots, and a data area.
///
/// See [`Scope`](crate::Scope) for typed access, and `docs/format/pool.md` for the format.
#[derive(Debug)]
pub struct Pool<P: Pmem = Region> {
    pmem: P,
    /// The header at the open. What a growth changes is in `grown`.
    header: Header,
    /// The length of the pool. For a handle that only reads, that at the open.
    pool_bytes: AtomicU64,
    /// The present header, if this handle has extended the pool. Held while it does.
    grown: Mutex<Option<Header>>,
    header_state: HeaderState,
    /// The version of the shared header at which `header` was read.
    shared_version: u64,
    shared: Arc<Shared>,
    access: Access,
}

/// The access of a handle to its pool.
#[derive(Debug)]
enum Access {
    /// The handle has created or formatted the pool, or opened it for writing.
    Write(#[expect(dead_code, reason = "held, not used")] WriterGuard, ChangeLock),
    Read,
}

impl Pool<Region> {
    /// Creates a file of `pool_bytes` bytes at `path` with an empty pool in it.
    ///
    /// # Errors
    /// As [`create_with`](Self::create_with).
    ///
    /// # Durability
    /// As [`create_with`](Self::create_with).
    pub fn create(
        path: impl AsRef<Path>,
        pool_bytes: u64,
        region: &RegionOptions,
        options: &PoolOptions,
    ) -> Result<Self, PoolError> {
        Self::create_with(path, pool_bytes, region, options, |_| Ok(()))
    }

    /// Creates a file of `pool_bytes` bytes at `path` with a pool in it. `prepare` fills the pool before the file gets its name.
    ///
    /// # Errors
    /// When the path exists, the layout is impossible, a system call or a fence fails, or `prepare` fails. No file remains.
    ///
    /// # Durability
    /// A crash leaves no file, or the complete pool with everything that `prepare` made durable.
    pub fn create_with<E: From<PoolError>>(
        path: impl AsRef<Path>,
        pool_bytes: u64,
        region: &RegionOptions,
        options: &PoolOptions,
        prepare: impl FnOnce(&Pool<&Region>) -> Result<(), E>,
    ) -> Result<Self, E> {
        // The layout is checked before the file is created.
        let header = options.header(pool_bytes)?;
        let region = region.create_with(path, pool_bytes, |region| {
            let writer = lock_writer(region).map_err(|error| PrepareError::Pool(error.into()))?;
            Pool::for_new_pool(region, writer, header)
                .write_new(prepare)
                .map(drop)
                .map_err(PrepareError::Pool)
        });
        let region = region.map_err(|error| match error {
            PrepareError::Region(error) => E::from(PoolError::Region(error)),
            PrepareError::Pool(error) => error,
        })?;
        let writer = lock_writer(&region)?;
        Ok(Self::for_new_pool(region, writer, header))
    }

    /// Opens the pool in the file or device-dax at `path`: read-only if `region` is read-only, otherwise for writing.
    ///
    /// # Errors
    /// As [`RegionOptions::open`] and [`Pool::attach`].
    pub fn open(path: impl AsRef<Path>, region: &RegionOptions) -> Result<Self, PoolError> {
        Self::open_with(path, region, |_| Ok(()))
    }

    /// Like [`open`](Self::open), but first passes a read-only handle to `check`, before anything is stored to the file or its holes are filled. If
    /// `check` fails, the pool is unchanged.
    ///
    /// # Errors
    /// As [`open`](Self::open), and when `check` fails.
    ///
    /// # Durability
    /// As [`attach`](Self::attach) for a returned handle that can write, and as [`attach_read_only`](Self::attach_read_only) for any other handle.
    pub fn open_with<E: From<PoolError>>(
        path: impl AsRef<Path>,
        region: &RegionOptions,
        check: impl FnOnce(&Pool<&Region>) -> Result<(), E>,
    ) -> Result<Self, E> {
        Self::open_over(path, region, check, Ok)
    }

    /// Grows the file and the pool in it to `pool_bytes`. The data area grows by the same length; the new part is zero.
    ///
    /// # Errors
    /// [`PoolError::ReadOnly`], or as [`Region::grow`] and [`extend`](Self::extend). On error the pool keeps its old length or, if this call has
    /// first completed an interrupted growth, has the length that the file had. The file may be longer than the pool; the next growth uses the
    /// excess. If a fence fails, a crash leaves the old length or the new one.
    ///
    /// # Durability
    /// A crash leaves the old length, the new length, or the length of an interrupted growth. When this call returns, the new length is durable.
    pub fn grow(&mut self, pool_bytes: u64) -> Result<(), PoolError> {
        if !self.is_writable() {
            return Err(PoolError::ReadOnly);
        }
        self.pmem.check_growth(pool_bytes)?;
        // An extension by this handle that failed is completed first: a backup that it left at the region's end would otherwise become data.
        self.extend()?;
        self.pmem.grow(pool_bytes)?;
        self.extend()
    }
}

impl<P: Pmem> Pool<P> {
    /// Like [`open_with`](Pool::open_with), over a wrapper of the region, such as [`Protected`](crate::protection::Protected). `wrap` gets the region before
    /// the pool is attached, so the wrapper makes every store of the opening. Filling the holes of the file and populating its pages, which change
    /// no byte, come before.
    ///
    /// # Errors
    /// As [`open_with`](Pool::open_with), and when `wrap` fails: then no byte of the file has changed.
    ///
    /// # Durability
    /// As [`open_with`](Pool::open_with).
    pub fn open_over<E: From<PoolError>>(
        path: impl AsRef<Path>,
        region: &RegionOptions,
        check: impl FnOnce(&Pool<&Region>) -> Result<(), E>,
        wrap: impl FnOnce(Region) -> Result<P, E>,
    ) -> Result<Self, E> {
        let region = region.open_with(path, |region| {
            let pool = Pool::attach_read_only(region).map_err(|error| PrepareError::Pool(error.into()))?;
            header::check_features(&pool.header, region.is_writable())
                .map_err(|error| PrepareError::Pool(error.into()))?;
            check(&pool).map_err(PrepareError::Pool)
        });
        let region = region.map_err(|error| match error {
            // An empty file cannot be mapped; it is reported as `NotAPool`.
            PrepareError::Region(OpenError::ZeroSize) => E::from(PoolError::NotAPool),
            PrepareError::Region(error) => E::from(PoolError::Region(error)),
            PrepareError::Pool(error) => error,
        })?;
        let writable = region.is_writable();
        Ok(Self::attach_as(wrap(region)?, writable)?)
    }

    /// Formats a whole region as a pool. The region must not hold a pool already, unless [`PoolOptions::overwrite`] is set.
    ///
    /// # Errors
    /// As [`format_with`](Self::format_with).
    ///
    /// # Durability
    /// As [`format_with`](Self::format_with).
    pub fn format(pmem: P, options: &PoolOptions) -> Result<Self, PoolError> {
        Self::format_with(pmem, options, |_| Ok(()))
    }

    /// Formats a whole region as a pool. `prepare` fills the pool before its header is written. The region must not hold a pool already, unless
    /// [`PoolOptions::overwrite`] is set.
    ///
    /// # Errors
    /// When there is a pool already and [`PoolOptions::overwrite`] is not set, the layout is impossible, the region is read-only, another handle
    /// writes its pool, or `prepare` or a fence fails. In the last two cases the old pool is lost. A crash may leave a partial header. It counts as a
    /// corrupted pool, so formatting the region again also requires [`PoolOptions::overwrite`].
    ///
    /// # Durability
    /// A crash leaves no pool that can be opened, or the complete one with everything that `prepare` made durable. If a pool is overwritten, a crash
    /// leaves the old one, none, or the new one.
    pub fn format_with<E: From<PoolError>>(
        pmem: P,
        options: &PoolOptions,
        prepare: impl FnOnce(&Self) -> Result<(), E>,
    ) -> Result<Self, E> {
        let header = options.header(pmem.len_bytes())?;
        if !pmem.is_writable() {
            return Err(PoolError::ReadOnly.into());
        }
        let writer = lock_writer(&pmem)?;
        if !options.overwrite && !matches!(header::find(&pmem), Err(PoolError::NotAPool)) {
            return Err(PoolError::AlreadyAPool.into());
        }
        // From here on, readers use the slots on the medium, even those that a failed change left hidden: if erasing fails, the old pool is lost.
        let pool = Self::for_new_pool(pmem, writer, header);
        leftover::erase_all(&pool.pmem).map_err(PoolError::from)?;
        pool.write_new(prepare)
    }

    /// Writes the roots, the contents and the header, each durable before the next, so that a pool with a valid header is complete.
    fn write_new<E: From<PoolError>>(self, prepare: impl FnOnce(&Self) -> Result<(), E>) -> Result<Self, E> {
        clear(&self.pmem).map_err(PoolError::from)?;
        prepare(&self)?;
        header::write(&self.pmem, &self.header).map_err(PoolError::from)?;
        Ok(self)
    }

    /// Opens the pool in a region for writing. If one copy of the header is corrupted, the other copy is used, the corrupted copy is restored, and
    /// [`header_state`](Self::header_state) reports it. Logged roots are unchanged.
    ///
    /// # Errors
    /// When the region holds no pool, both headers are corrupted, the region is shorter than the pool, the pool's version or features are unknown,
    /// the region is read-only, another handle writes its pool, or a fence fails.
    ///
    /// # Durability
    /// When it returns, both copies of the header and all roots are durable, even if the process that stored them was killed before it flushed them.
    /// Costs one fence and 192 lines, those of the two copies and of the roots. If the region is longer than the pool, it also costs three lines for
    /// each page beyond the pool that is not a hole, and one fence if remains of an interrupted growth are erased there. Restoring the primary costs
    /// up to two more fences, restoring the backup one, and freeing the old slot of a replaced root one. A crash while a copy is restored leaves the
    /// pool as it was: only the corrupted copy is written, after the other copy is durable.
    pub fn attach(pmem: P) -> Result<Self, PoolError> {
        Self::attach_as(pmem, true)
    }

    /// Opens the pool for reading only. Nothing is restored, and calls that would change the pool are refused, even if the region is writable.
    /// Another handle of the region may write the pool at the same time. This handle then finds the same roots as the writing handle, including roots
    /// whose values lie in a part added by `extend`. A header that is being written or restored is read as it was before. (Changes are not hidden in
    /// two cases: with an implementation of [`Pmem`] without a [`WriterLock`](crate::WriterLock), and during the replay of a log. Then a lookup may
    /// miss a root that is being changed, and a header that is being written may seem corrupted. The changes of a process are also not hidden from
    /// its child of fork(2): see [`RegionOptions::keep_on_fork`].)
    ///
    /// # Errors
    /// When the region holds no pool, both headers are corrupted, the pool is truncated, or its version or a feature required for opening is unknown.
    ///
    /// # Durability
    /// None, because this handle cannot flush. It finds a root that a killed process set, but a power failure may undo the root until the pool is
    /// opened for writing. Do not derive durable data from such a root.
    pub fn attach_read_only(pmem: P) -> Result<Self, PoolError> {
        Self::attach_as(pmem, false)
    }

    fn attach_as(pmem: P, writable: bool) -> Result<Self, PoolError> {
        if writable && !pmem.is_writable() {
            return Err(PoolError::ReadOnly);
        }
        // The lock is acquired before anything is read: until then another handle may change the pool.
        let writer = writable.then(|| lock_writer(&pmem)).transpose()?;
        // If the region has no lock, a handle knows only its own changes.
        let shared: Option<Arc<Shared>> = match &writer {
            Some(writer) => writer.shared(),
            None => pmem.writer_lock().map(|lock| lock.shared()),
        };
        let shared = shared.unwrap_or_default();
        let HeaderSnapshot { header, state, version } = match &writer {
            // A writer reads the header on the medium, even if a failed change left the header hidden.
            Some(_) => {
                header::find(&pmem).map(|(header, state)| HeaderSnapshot { header, state, version: 0 })?
            }
            None => shared.header.read(|| header::find(&pmem))?,
        };
        header::check_features(&header, writable)?;
        let access = writer.map_or(Access::Read, |writer| Access::Write(writer, ChangeLock::new(false)));
        let pool = Self {
            pmem,
            pool_bytes: AtomicU64::new(header.pool_bytes),
            grown: Mutex::new(None),
            header,
            header_state: state,
            shared_version: version,
            shared,
            access,
        };
        if let Some(change_lock) = pool.change_lock() {
            leftover::persist(&pool.pmem, &header)?;
            // The slots are shown only now that they are durable: a failed change may have stored to hidden slots without making them durable.
            pool.shared.directory.show();
            if state != HeaderState::Intact {
                pool.shared.header.hide(&header, state);
            }
            header::restore(&pool.pmem, &header, state)?;
            leftover::erase_abandoned(&pool.pmem, &header)?;
            pool.shared.header.show(header.pool_bytes);
            // If the roots are logged, the owner of the log does this after it has replayed the log.
            if !pool.has_logged_roots() {
                pool.directory().free_older_slots(pool.shared.directory.change(change_lock)?)?;
            }
        }
        Ok(pool)
    }

    /// Extends the pool to the length of its region, which is longer after [`Region::grow`], or after a crash during [`grow`](Pool::grow). The region
    /// beyond the pool must be zero; remains of an interrupted growth were erased when the pool was opened. Read-only handles find the new length
    /// once it is durable.
    ///
    /// # Errors
    /// When the pool is read-only, the region's length is not a possible length of a pool, or a fence fails.
    ///
    /// # Durability
    /// A crash leaves the old length or the new one. When this call returns, the new length is durable. Costs three fences. If a crash during this
    /// call also corrupts the primary header, the pool still opens, but the last page of its old length is not necessarily zero.
    pub fn extend(&mut self) -> Result<(), PoolError> {
        self.extend_in_use(&mut self.grown.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Grows the region [in place](Pmem::grow_in_place), and the pool in it, to `pool_bytes`, while other threads use the pool. As
    /// [`grow`](Pool::grow) in all else.
    ///
    /// # Errors
    /// [`PoolError::ReadOnly`], or as [`Pmem::grow_in_place`] and [`extend`](Self::extend).
    ///
    /// # Durability
    /// As [`grow`](Pool::grow).
    pub fn grow_in_place(&self, pool_bytes: u64) -> Result<(), PoolError> {
        if !self.is_writable() {
            return Err(PoolError::ReadOnly);
        }
        let mut grown = self.grown.lock().unwrap_or_else(PoisonError::into_inner);
        // As in `grow`.
        self.extend_in_use(&mut grown)?;
        if pool_bytes < self.pool_bytes() {
            let len_bytes = self.pool_bytes();
            return Err(GrowError::Shrink { len_bytes, wanted_bytes: pool_bytes }.into());
        }
        self.pmem.grow_in_place(pool_bytes)?;
        self.extend_in_use(&mut grown)
    }

    /// [Extends](Self::extend) the pool. Readers of the header are on the medium or in `shared`, so threads may use the pool meanwhile.
    fn extend_in_use(&self, grown: &mut Option<Header>) -> Result<(), PoolError> {
        let (pool_bytes, old) = (self.pmem.len_bytes(), grown.unwrap_or(self.header));
        if pool_bytes == old.pool_bytes {
            return Ok(());
        }
        let header = header::extended(&old, pool_bytes)?;
        if !self.is_writable() {
            return Err(PoolError::ReadOnly);
        }
        self.shared.header.hide(&old, HeaderState::Intact);
        header::write_over(&self.pmem, &header, Some(&old))?;
        *grown = Some(header);
        self.pool_bytes.store(pool_bytes, Ordering::Release);
        self.shared.header.show(pool_bytes);
        Ok(())
    }

    /// The handle of a pool that is being created. Readers find the medium's contents, even those that a failed change left hidden.
    fn for_new_pool(pmem: P, writer: WriterGuard, header: Header) -> Self {
        // As in `attach_as`: if the region has no lock, a handle knows only its own changes.
        let shared: Arc<Shared> = writer.shared().unwrap_or_default();
        shared.directory.show();
        shared.header.show(header.pool_bytes);
        let access = Access::Write(writer, ChangeLock::new(false));
        Self {
            pmem,
            pool_bytes: AtomicU64::new(header.pool_bytes),
            grown: Mutex::new(None),
            header,
            header_state: HeaderState::Intact,
            shared_version: 0,
            shared,
            access,
        }
    }

    /// The region, including the header and the root directory.
    #[must_use]
    pub const fn pmem(&self) -> &P {
        &self.pmem
    }

    /// Closes the handle, and returns the region.
    #[must_use]
    pub fn into_pmem(self) -> P {
        self.pmem
    }

    /// The range of the data area's offsets. The contents of the data area belong to the caller.
    #[must_use]
    pub fn data(&self) -> Range<u64> {
        self.header.data_start..self.pool_bytes() - HEADER_BYTES
    }

    /// The current length of the pool in bytes, including extensions by another handle. After a crash during growth, the region may be longer.
    #[must_use]
    pub fn pool_bytes(&self) -> u64 {
        match &self.access {
            Access::Write(..) => self.pool_bytes.load(Ordering::Acquire),
            Access::Read => self.shared.header.pool_bytes(self.header.pool_bytes, self.shared_version),
        }
    }

    /// The pool's identity.
    #[must_use]
    pub const fn uuid(&self) -> Uuid {
        Uuid::from_bytes(self.header.uuid)
    }

    /// The time at which the pool was created, in seconds since 1970.
    #[must_use]
    pub const fn created_s(&self) -> u64 {
        self.header.created_s
    }

    /// The format version of the pool.
    #[must_use]
    pub const fn version(&self) -> u32 {
        self.header.version
    }

    /// The state of the two copies of the header when the pool was opened.
    #[must_use]
    pub const fn header_state(&self) -> HeaderState {
        self.header_state
    }

    pub(crate) const fn is_writable(&self) -> bool {
        matches!(self.access, Access::Write(..))
    }

    /// Whether the pool was created [with logged roots](PoolOptions::with_logged_roots).
    #[must_use]
    pub const fn has_logged_roots(&self) -> bool {
        self.header.features_ro_compat & LOGGED_ROOTS != 0
    }

    /// All roots, sorted by name.
    pub fn roots(&self) -> Vec<Root> {
        self.directory().list()
    }

    /// The root of this name, if it exists. While another thread replaces or removes the root, this is the old root until the change is durable.
    ///
    /// # Errors
    /// When the name is not a valid root name, or the root is not found and a slot of the directory is corrupted.
    ///
    /// # Durability
    /// A root that is found is durable, except in a pool that was opened read-only: see [`attach_read_only`](Self::attach_read_only).
    pub fn find_root(&self, name: &str) -> Result<Option<Root>, RootError> {
        self.directory().find(name)
    }

    /// The number of slots that are neither in use nor free: corrupted slots, including zeroed ones. A crash leaves no such slot, except in a pool
    /// with [logged roots](PoolOptions::with_logged_roots): there an interrupted transaction may leave a slot corrupted until the log is replayed.
    pub fn corrupted_root_count(&self) -> usize {
        self.directory().corrupted_count()
    }

    /// Checks that a root of this name can be set, before its value is stored. Changes nothing. Another thread may still take the last free slot
    /// before the calling thread sets its root.
    ///
    /// # Errors
    /// As [`Scope::set_root`](crate::Scope::set_root), except for errors of a fence.
    pub fn check_root(&self, name: &str) -> Result<(), RootError> {
        self.directory().check(name)
    }

    /// See [`Scope::set_root`](crate::Scope::set_root).
    pub(crate) fn put_root(&self, name: &str, target: Target) -> Result<(), RootError> {
        self.directory().put_root(name, target)
    }

    /// Removes a root. Its value remains in the data area.
    ///
    /// # Errors
    /// When the name is not a valid root name, the pool is read-only or has [logged roots](PoolOptions::with_logged_roots), or a fence fails. A
    /// root that does not exist is an error only if a slot is corrupted, because the root may be in that slot.
    ///
    /// # Durability
    /// When this call returns, the removal is durable. A crash during the call leaves the root unchanged or removed. Costs one fence.
    pub fn remove_root(&self, name: &str) -> Result<(), RootError> {
        self.directory().remove_root(name)
    }

    /// Frees all corrupted slots, which gives up the roots in them. Afterwards the slots can be used again, and a missing root is no longer reported
    /// as corruption. Returns the number of slots freed. The values of the roots remain in the data area.
    ///
    /// # Errors
    /// When the pool is read-only or has [logged roots](PoolOptions::with_logged_roots), or a fence fails.
    ///
    /// # Durability
    /// When this call returns, the slots are durably free. A crash during the call leaves each corrupted or free. Costs one fence if a slot is
    /// corrupted.
    pub fn discard_corrupted_roots(&self) -> Result<usize, RootError> {
        self.directory().check_unlogged()?;
        self.directory().discard_corrupted()
    }

    /// The write by which a transaction sets the root of this name to `target` (offset, length, layout), or removes the root if `target` is `None`.
    /// `staged` contains the root writes that the same transaction has prepared before. Returns `None` if the root to be removed does not exist.
    ///
    /// The slot is changed in place, so the transaction must make the write atomic with respect to crashes.
    ///
    /// # Errors
    /// As [`Scope::set_root`](crate::Scope::set_root).
    pub fn root_write(
        &self,
        name: &str,
        target: Option<Target>,
        staged: &[RootWrite],
    ) -> Result<Option<RootWrite>, RootError> {
        self.directory().write(name, target, staged)
    }

    /// Begins a change of the directory by a transaction. No other change runs until the returned value is dropped, so the writes that
    /// [`root_write`](Self::root_write) returns until then stay valid. [Hide](Self::hide_roots) their slots before storing any of them.
    /// [Complete](RootChange::complete) the change when all of them are durable, or when none has been stored.
    ///
    /// # Errors
    /// [`RootError::ReadOnly`], and [`FenceError::Poisoned`](crate::FenceError::Poisoned) when an earlier change was dropped after slots were
    /// hidden and before it was complete, as after a failed fence.
    pub fn begin_root_change(&self) -> Result<RootChange<'_>, RootError> {
        self.directory().begin_change()
    }

    /// Hides the slots of these writes: until the change is complete, [`find_root`](Self::find_root) and [`roots`](Self::roots) in all threads find
    /// the previous contents.
    pub fn hide_roots(&self, change: &mut RootChange<'_>, writes: &[RootWrite]) {
        self.directory().hide(change, writes);
    }

    /// The root directory, for the owner of the log that changes it.
    #[must_use]
    pub fn logged_roots(&self) -> RootDirectory<'_, P> {
        self.directory()
    }

    fn directory(&self) -> RootDirectory<'_, P> {
        RootDirectory {
            pmem: &self.pmem,
            state: &self.shared.directory,
            change_lock: self.change_lock(),
            is_logged: self.has_logged_roots(),
        }
    }

    /// `None` for a handle that may not change the root directory.
    const fn change_lock(&self) -> Option<&ChangeLock> {
        match &self.access {
            Access::Write(_, change_lock) => Some(change_lock),
            Access::Read => None,
        }
    }
}

/// Acquires the region's writer lock, which excludes other handles that write the pool.
fn lock_writer<P: Pmem>(pmem: &P) -> Result<WriterGuard, PoolError> {
    pmem.lock_writer().ok_or(PoolError::InUse)
}

/// An error of the region, or of the pool in it, in [`Pool::create_with`] or [`Pool::open_with`].
enum PrepareError<E> {
    Region(OpenError),
    Pool(E),
}

impl<E> From<OpenError> for PrepareError<E> {
    fn from(error: OpenError) -> Self {
        Self::Region(error)
    }
}
