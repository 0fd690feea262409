//! An open pool of objects.

use super::contents::Contents;
use super::list::List;
use super::object::Object;
use super::transaction::{self, AnyObject, Transaction};
use crate::error::{ObjectError, OpenError};
use crate::format::RootHeader;
use crate::maintenance::check::{self, CheckReport};
use crate::ops::naming::create::{self, Existing};
use crate::ops::naming::{names, recover};
use crate::session::frames::Frames;
use crate::session::placement::Placement;
use crate::session::shared::{Shared, check_name};
use crate::volume::Volume;
use crate::volume::file::FileTier;
use crate::volume::hints::Hints;
use crate::volume::object::ElementType;
use crate::volume::options::ObjectsOptions;
use crate::volume::root::Roots;
use core::fmt;
use pm_btree::{OpenError as StoreError, Store};
use pm_core::{InPool, OpenError as RegionError, Pmem, Region, RegionOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Named, typed objects in a file or a region.
///
/// Several threads may use it at once, but only one process at a time can open it. It need not be closed: what has returned is durable. [`Object`]s are
/// handles that borrow nothing, and keep the pool open until they are dropped.
pub struct Objects<P: Pmem = Region> {
    shared: Arc<Shared<P>>,
}

impl<P: Pmem> fmt::Debug for Objects<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Objects").field("handles", &self.handles()).finish_non_exhaustive()
    }
}

/// What [`Objects::stat`] says of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stat {
    /// The number of the object, which no other object has had.
    pub number: u64,
    /// The fingerprint of the type of its elements: [`Persist::LAYOUT`](pm_core::Persist::LAYOUT).
    pub layout: u64,
    /// The length of an element.
    pub element_bytes: u32,
    /// The number of elements.
    pub len: u64,
    /// The number of chunks, which are replaced as a whole.
    pub chunks: u64,
    /// What placement is told of the object.
    pub hints: Hints,
}

/// What [`Objects::stats`] says of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The length of the pool.
    pub pool_bytes: u64,
    /// The number of names.
    pub objects: u64,
    /// The slots that hold chunks, in bytes.
    pub chunk_bytes: u64,
    /// The slabs that have these slots, in bytes.
    pub slab_bytes: u64,
    /// The slots of the file that hold chunks, in bytes.
    pub file_used_bytes: u64,
    /// All slots of the file, in bytes.
    pub file_bytes: u64,
    /// The length of the memory that has copies of chunks.
    pub dram_used_bytes: u64,
    /// The greatest length of that memory.
    pub dram_bytes: u64,
    /// The number of copies of chunks to DRAM, and of moves up from the file, since the pool was opened.
    pub moves: u64,
}

impl Objects<Region> {
    /// Creates a file of `pool_bytes` without objects.
    ///
    /// # Errors
    /// When the path exists, but for a file that an interrupted call has left, when the options are impossible, or when a system call fails.
    ///
    /// # Durability
    /// Durable when this returns. A crash before that leaves no file, one that this call takes over when it is repeated, or a pool without objects.
    pub fn create_pool(
        path: impl AsRef<Path>,
        pool_bytes: u64,
        options: &ObjectsOptions,
    ) -> Result<Self, OpenError> {
        options.check(pool_bytes)?;
        let store_options = options.of_store(pool_bytes);
        let (store, is_new) = match Store::create(&path, pool_bytes, &store_options) {
            Err(error @ StoreError::Heap(_)) => {
                // A crash may have left the store, and nothing in it.
                let is_empty =
                    |store: &Store| store.tables().is_empty() && store.heap().pool().roots().len() == 2;
                (Store::open(&path, &store_options).ok().filter(is_empty).ok_or(error)?, false)
            }
            created => (created?, true),
        };
        let file = options.file_bytes.map(|bytes| create_file(path.as_ref(), bytes, is_new)).transpose()?;
        Self::format_in(store, file, options)
    }

    /// Opens the objects in a file or device-dax.
    ///
    /// # Errors
    /// When there are none. When they have an unknown version or feature, or another process has them open. When what all of them need is corrupted. When
    /// a fence or a system call fails. A corrupted object fails when it is used.
    ///
    /// # Durability
    /// What has returned in earlier sessions is durable. Recovery ends or undoes changes of names that were in progress.
    pub fn open_pool(path: impl AsRef<Path>, options: &ObjectsOptions) -> Result<Self, OpenError> {
        let store = Store::open(&path, &options.of_store(0))?;
        Self::start(store, options, |header| open_file(path.as_ref(), header, options, false), false)
    }

    /// Opens the objects in a file for reading only. The file, which may be read-only, is unchanged: recovery runs in pages of this process.
    ///
    /// Every change is [`ObjectError::ReadOnly`]. Several processes may read a pool at once, and as long as one does, none can open it for changes.
    ///
    /// # Errors
    /// As for [`open_pool`](Self::open_pool). When the path is a device-dax, which cannot be mapped privately.
    ///
    /// # Durability
    /// After a kill, what is read may not be durable yet: a power failure can undo the calls that were in progress at the kill.
    pub fn open_pool_read_only(path: impl AsRef<Path>, options: &ObjectsOptions) -> Result<Self, OpenError> {
        let store = Store::open_read_only(&path, &options.of_store(0))?;
        Self::start(store, options, |header| open_file(path.as_ref(), header, options, true), true)
    }

    /// Grows the file. The mapping may move, so that there must be no objects and iterators.
    ///
    /// # Errors
    /// When there are objects or iterators in use. As for [`Store::grow`]: in these cases nothing was changed, unless a fence failed.
    ///
    /// # Durability
    /// Durable when this returns. A crash before that leaves the old size or the new one.
    pub fn grow(&mut self, pool_bytes: u64) -> Result<(), OpenError> {
        let handles = self.handles().max(1);
        let shared = Arc::get_mut(&mut self.shared).ok_or(OpenError::InUse { handles })?;
        if shared.volume.is_read_only {
            return Err(OpenError::ReadOnly);
        }
        shared.with_store_alone(|store| match store.grow(pool_bytes) {
            Err(StoreError::InUse { handles }) => Err(OpenError::InUse { handles }),
            grown => Ok(grown?),
        })
    }
}

impl<P: Pmem> Objects<P> {
    /// Creates a pool without objects over a whole region that holds none.
    ///
    /// # Errors
    /// As for [`create_pool`](Objects::create_pool).
    ///
    /// # Durability
    /// As for [`create_pool`](Objects::create_pool).
    pub fn format(pmem: P, options: &ObjectsOptions) -> Result<Self, OpenError> {
        let pool_bytes = pmem.len_bytes();
        options.check(pool_bytes)?;
        Self::format_in(Store::format(pmem, &options.of_store(pool_bytes))?, None, options)
    }

    /// As [`format`](Self::format), with another region as the lower tier, to which chunks move when the pool is full.
    ///
    /// # Errors
    /// As for [`create_pool`](Objects::create_pool).
    ///
    /// # Durability
    /// As for [`create_pool`](Objects::create_pool).
    pub fn format_with_file(pmem: P, file: P, options: &ObjectsOptions) -> Result<Self, OpenError> {
        let pool_bytes = pmem.len_bytes();
        options.check(pool_bytes)?;
        Self::format_in(Store::format(pmem, &options.of_store(pool_bytes))?, Some(file), options)
    }

    /// Opens the objects in a region.
    ///
    /// # Errors
    /// As for [`open_pool`](Objects::open_pool). When they have a lower tier, unless the options are [without it](ObjectsOptions::without_file).
    ///
    /// # Durability
    /// As for [`open_pool`](Objects::open_pool).
    pub fn attach(pmem: P, options: &ObjectsOptions) -> Result<Self, OpenError> {
        let store = Store::attach(pmem, &options.of_store(0))?;
        Self::start(
            store,
            options,
            |_| if options.without_file { Ok(None) } else { Err(OpenError::ForeignFile) },
            false,
        )
    }

    /// Opens the objects in two regions.
    ///
    /// # Errors
    /// As for [`open_pool`](Objects::open_pool).
    ///
    /// # Durability
    /// As for [`open_pool`](Objects::open_pool).
    pub fn attach_with_file(pmem: P, file: P, options: &ObjectsOptions) -> Result<Self, OpenError> {
        let store = Store::attach(pmem, &options.of_store(0))?;
        Self::start(store, options, |header| FileTier::open(file, header).map(Some), false)
    }

    fn format_in(store: Store<P>, file: Option<P>, options: &ObjectsOptions) -> Result<Self, OpenError> {
        let volume = Roots::format(store, file, options)?;
        let (roots, _) = Roots::find(&volume.store)?;
        Self::with(volume, roots, options)
    }

    /// Starts a session. `file` opens the lower tier, of a pool that has one.
    fn start(
        store: Store<P>,
        options: &ObjectsOptions,
        file: impl FnOnce(&RootHeader) -> Result<Option<FileTier<P>>, OpenError>,
        is_read_only: bool,
    ) -> Result<Self, OpenError> {
        let (roots, header) = Roots::find(&store)?;
        let file = match header.file_slots {
            0 => None,
            _ => Some(file(&header)?.unwrap_or_else(|| FileTier::missing(&header))),
        };
        Self::with(Volume::new(store, file, &header, is_read_only), roots, options)
    }

    fn with(volume: Volume<P>, roots: Roots, options: &ObjectsOptions) -> Result<Self, OpenError> {
        let is_read_only = volume.is_read_only;
        let shared = Shared::new(volume, roots, options)?;
        if !is_read_only {
            // After another error the next change of names tries again, and returns it. Contents are read and changed meanwhile.
            if let Err(error @ (ObjectError::Fence(_) | ObjectError::Poisoned)) = recover::recover(&shared) {
                return Err(error.into());
            }
        }
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The number of handles, besides those that other threads make or drop meanwhile.
    fn handles(&self) -> usize {
        Arc::strong_count(&self.shared) - 1
    }

    /// Creates an object with these contents.
    ///
    /// # Errors
    /// When there is an object with this name, the name is invalid, the contents are too long or cannot be read, or the pool is full.
    ///
    /// # Durability
    /// Durable when this returns. A crash before that leaves no object, or the whole object. Three fences for up to 128 KiB; more in steps of 128 KiB,
    /// between which other threads change names, with two fences each, and three more.
    pub fn create<T: for<'p> InPool<'p>>(
        &self,
        name: &str,
        contents: Contents<'_, T>,
    ) -> Result<Object<T, P>, ObjectError> {
        self.create_with(name, contents, &Hints::new())
    }

    /// As [`create`](Self::create), and tells placement how the object is going to be used.
    ///
    /// # Errors
    /// As for [`create`](Self::create).
    ///
    /// # Durability
    /// As for [`create`](Self::create).
    pub fn create_with<T: for<'p> InPool<'p>>(
        &self,
        name: &str,
        contents: Contents<'_, T>,
        hints: &Hints,
    ) -> Result<Object<T, P>, ObjectError> {
        self.make(name, contents, *hints, Existing::Refuse)
    }

    fn make<T: for<'p> InPool<'p>>(
        &self,
        name: &str,
        contents: Contents<'_, T>,
        hints: Hints,
        existing: Existing,
    ) -> Result<Object<T, P>, ObjectError> {
        let element = ElementType::of::<T>()?;
        let source = contents.into_source()?;
        let control = create::create(&self.shared, name, element, hints, source, existing)?;
        // One that exists may have elements of another type.
        Shared::<P>::check_type(&control, element)?;
        Ok(Object::new(&self.shared, control))
    }

    /// Creates an object with these contents, in place of the object with this name, if there is one. That one's handles then return
    /// [`ObjectError::Deleted`], and its hints and its pin are gone.
    ///
    /// # Errors
    /// As for [`create`](Self::create), but that there may be an object with this name, of any type.
    ///
    /// # Durability
    /// Durable when this returns. A crash before that leaves the old object or the new one, each whole. As many fences as for
    /// [`create`](Self::create), and those of [`delete`](Self::delete) but two.
    pub fn replace<T: for<'p> InPool<'p>>(
        &self,
        name: &str,
        contents: Contents<'_, T>,
    ) -> Result<Object<T, P>, ObjectError> {
        self.make(name, contents, Hints::new(), Existing::Replace)
    }

    /// Opens the object with this name.
    ///
    /// # Errors
    /// When there is none, its elements are of another type, or it is corrupted.
    pub fn open<T: for<'p> InPool<'p>>(&self, name: &str) -> Result<Object<T, P>, ObjectError> {
        let control = self.shared.open(name, Some(ElementType::of::<T>()?))?;
        Ok(Object::new(&self.shared, control))
    }

    /// Opens the object with this name as bytes, whatever the type of its elements is: for tools that copy objects.
    ///
    /// # Errors
    /// When there is none, or it is corrupted.
    pub fn open_bytes(&self, name: &str) -> Result<Object<u8, P>, ObjectError> {
        Ok(Object::new(&self.shared, self.shared.open(name, None)?))
    }

    /// Opens the object with this name, or creates one with these contents.
    ///
    /// # Errors
    /// As for [`open`](Self::open) and [`create`](Self::create).
    ///
    /// # Durability
    /// As for [`create`](Self::create).
    pub fn open_or_create<T: for<'p> InPool<'p>>(
        &self,
        name: &str,
        contents: Contents<'_, T>,
    ) -> Result<Object<T, P>, ObjectError> {
        match self.open(name) {
            Err(ObjectError::NotFound) => {}
            opened => return opened,
        }
        // Another thread may create one meanwhile.
        self.make(name, contents, Hints::new(), Existing::Return)
    }

    /// Deletes the object with this name. Its handles then return [`ObjectError::Deleted`].
    ///
    /// # Errors
    /// When there is none.
    ///
    /// # Durability
    /// Durable when this returns. A crash before that leaves the object whole, or none. Three fences, and one for each 128 KiB but the last.
    pub fn delete(&self, name: &str) -> Result<(), ObjectError> {
        check_name(name)?;
        names::delete(&self.shared, name)
    }

    /// Gives an object another name. Its handles stay.
    ///
    /// # Errors
    /// When there is no object with the one name, or there is one with the other.
    ///
    /// # Durability
    /// Durable when this returns. A crash before that leaves the one name or the other. Two fences, and one more after a change of another kind.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), ObjectError> {
        names::rename(&self.shared, from, to)
    }

    /// Calls a closure with a transaction of these objects, and then makes all that it has stored durable at once. Other changes of these objects wait meanwhile. If
    /// the closure panics or returns an error, nothing changes.
    ///
    /// A load of one object sees the transaction whole or not at all; loads of two objects may see the one changed and the other not.
    ///
    /// ```
    /// # use pm_objects::{Contents, ObjectError, Objects, ObjectsOptions};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let objects = Objects::create_pool(dir.path().join("pool.pmo"), 16 << 20, &ObjectsOptions::new())?;
    /// let from = objects.create("account 1", Contents::Value(&100_u64))?;
    /// let to = objects.create("account 2", Contents::Value(&0_u64))?;
    /// objects.transaction(&[&from, &to], |tx| {
    ///     let left = tx.get(&from, 0)? - 30;
    ///     tx.set(&from, 0, &left)?;
    ///     let sum = tx.get(&to, 0)? + 30;
    ///     tx.set(&to, 0, &sum)
    /// })?;
    /// assert_eq!((from.load()?, to.load()?), (70, 30));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The closure's error. When the closure changes objects otherwise than by the transaction. When there are more than 64 objects or changed chunks, or
    /// the pool is full. As for [`Object::store`].
    ///
    /// # Durability
    /// Atomic, and durable when this returns. One fence if at most a quarter of each chunk changes, and 4 KiB in all; else two.
    pub fn transaction<R, E: From<ObjectError>>(
        &self,
        objects: &[&dyn AnyObject<P>],
        change: impl FnOnce(&mut Transaction<'_, P>) -> Result<R, E>,
    ) -> Result<R, E> {
        transaction::run(&self.shared, objects, change)
    }

    /// The names that start with a prefix, in the order of their bytes.
    pub fn list(&self, prefix: &str) -> List<P> {
        List { range: self.shared.names().map(|names| names.prefix(prefix)) }
    }

    /// What is known of the object with this name without its contents.
    ///
    /// # Errors
    /// When there is none, or it is corrupted.
    pub fn stat(&self, name: &str) -> Result<Stat, ObjectError> {
        let control = self.shared.open(name, None)?;
        let object = &control.object;
        Ok(Stat {
            number: object.number,
            layout: object.element.layout,
            element_bytes: object.element.bytes,
            len: control.len_bytes() / u64::from(object.element.bytes),
            chunks: control.chunk_count(),
            hints: control.hints(),
        })
    }

    /// The space in use.
    ///
    /// # Errors
    /// When the names cannot be read.
    pub fn stats(&self) -> Result<Stats, ObjectError> {
        let volume = &self.shared.volume;
        let (chunk_bytes, slab_bytes) = self.shared.slots.usage(volume);
        let (file_used, file_slots) = volume.file.as_ref().map_or((0, 0), FileTier::usage);
        let (dram_used_bytes, dram_bytes) = self.shared.frames.as_ref().map_or((0, 0), Frames::usage);
        Ok(Stats {
            pool_bytes: volume.pmem().len_bytes(),
            objects: self.list("").try_fold(0, |count, name| name.map(|_| count + 1))?,
            chunk_bytes,
            slab_bytes,
            file_used_bytes: file_used * volume.chunk_bytes,
            file_bytes: file_slots * volume.chunk_bytes,
            dram_used_bytes,
            dram_bytes,
            moves: self.shared.placement.as_ref().map_or(0, Placement::moves),
        })
    }

    /// Verifies all objects, and that everything in use belongs to one of them. Changes nothing.
    ///
    /// Call this while nothing changes, because a change in progress may be reported.
    ///
    /// # Errors
    /// When a fence fails: a part of the names that is read for the first time after a crash is made durable first.
    pub fn check(&self) -> Result<CheckReport, ObjectError> {
        check::check(&self.shared)
    }

    /// Closes the pool, so that the next open has nothing to recover. Not needed for durability. Dropping it and its handles does the same without
    /// reporting errors.
    ///
    /// # Errors
    /// When there are objects or iterators: they stay usable, and the last one closes the pool. When a fence fails or has failed.
    ///
    /// # Durability
    /// Those of [`Store::close`], three fences.
    pub fn close(self) -> Result<(), OpenError> {
        let handles = self.handles().max(1);
        let shared = Arc::try_unwrap(self.shared).map_err(|_| OpenError::InUse { handles })?;
        match shared.into_store().close().map_err(StoreError::from) {
            Err(StoreError::InUse { handles }) => Err(OpenError::InUse { handles }),
            closed => Ok(closed?),
        }
    }

    /// The heap that holds the objects.
    #[doc(hidden)]
    #[must_use]
    pub fn heap(&self) -> &pm_alloc::Heap<P> {
        self.shared.volume.heap()
    }
}

/// The path of the file with the lower tier of the pool at a path.
fn path_of_file(path: &Path) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(".file");
    path.into()
}

/// Makes the file of a new pool, or takes over that of one whose creation was interrupted.
fn create_file(path: &Path, bytes: u64, is_new: bool) -> Result<Region, OpenError> {
    let path = path_of_file(path);
    let options = RegionOptions::new().sparse(true);
    let created = match options.create(&path, bytes) {
        Err(RegionError::Exists { .. }) if !is_new => options.open(&path),
        created => created,
    };
    let region = created.map_err(|source| OpenError::File { path, source })?;
    match is_new || FileTier::is_unused(&region) && region.len_bytes() == bytes {
        true => Ok(region),
        false => Err(OpenError::ForeignFile),
    }
}

/// Opens the file of a pool. `None` if it cannot be opened, and the options are without it.
fn open_file(
    path: &Path,
    header: &RootHeader,
    options: &ObjectsOptions,
    is_read_only: bool,
) -> Result<Option<FileTier<Region>>, OpenError> {
    let path = path_of_file(path);
    let region = match is_read_only {
        true => RegionOptions::new().scratch().keep_pages(true),
        false => RegionOptions::new().sparse(true),
    };
    let opened = region.open(&path).map_err(|source| OpenError::File { path, source });
    match opened.and_then(|region| FileTier::open(region, header)) {
        Err(_) if options.without_file => Ok(None),
        opened => opened.map(Some),
    }
}
