//! An open store: its tables, and operations on the whole store.

use super::batch::WriteBatch;
use super::catalogue::{Described, Opened, TableInfo};
use super::shared::Shared;
use super::table::Table;
use crate::error::{Corruption, LeafError, OpenError, ReadError, TableError, WriteError};
use crate::format::{
    EXTENT_CHUNK_MAGIC, ExtentChunk, ExtentRow, MAGIC, ROOT, ROWS, StoreBlock, StoreHeader, VERSION, checked,
};
use crate::maintenance::{CheckReport, Room, StoreStats, check_tree, compact};
use crate::session::StoreOptions;
use crate::tree::Tree;
use crate::types::{Key, Value};
use core::fmt;
use core::mem::offset_of;
use core::time::Duration;
use pm_alloc::{Heap, HeapError, HeapOptions, TxError};
use pm_core::{FenceError, Link, OpenError as RegionError, Pmem, PoolError, Region};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, PoisonError};

/// The first epoch of a new store.
const FIRST_EPOCH: u64 = 2;

/// An ordered store in a file: tables of keys and values, in which every operation is durable when it returns.
///
/// Several threads may use it at once, but only one process at a time can open it. It need not be closed: after a kill or a power failure, all
/// completed operations are there. The crate's documentation has an example.
///
/// # Handles
/// [`Table`], [`Range`](crate::Range) and [`WriteBatch`] are handles of the store. They borrow nothing, so they can be in one struct with the store,
/// and in other threads. The store is open until it and all its handles are dropped: the last one that is dropped [closes](Self::close) it, and
/// until then the file cannot be opened again. A child of fork(2) has copies of the handles, but the store is its parent's: each change in the child is
/// an error, and it must not read, because the pool is not in its memory.
///
/// [`close`](Self::close), [`grow`](Store::grow) and [`compact`](Self::compact) need that the store has
/// no handles.
///
/// A store is not `Clone`, because it has one owner that closes, grows and compacts it; an `Arc<Store>` has several.
pub struct Store<P: Pmem = Region> {
    shared: Arc<Shared<P>>,
}

impl<P: Pmem> fmt::Debug for Store<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("handles", &self.handles()).finish_non_exhaustive()
    }
}

/// Why [`Store::close`] has not closed a store without errors.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CloseError<P: Pmem = Region> {
    /// The store has handles. It is open, and nothing has changed.
    #[error("the store has {handles} tables, iterators or batches, and must have none to be closed")]
    InUse {
        /// The number of tables, iterators and batches.
        handles: usize,
        /// The store.
        store: Store<P>,
    },
    /// The store is closed, with this error.
    #[error(transparent)]
    Failed(#[from] OpenError),
}

/// Drops the store that is in use: its last handle closes it.
impl<P: Pmem> From<CloseError<P>> for OpenError {
    fn from(error: CloseError<P>) -> Self {
        match error {
            CloseError::InUse { handles, .. } => Self::InUse { handles },
            CloseError::Failed(error) => error,
        }
    }
}

impl<P: Pmem> fmt::Debug for CloseError<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse { handles, .. } => {
                f.debug_struct("InUse").field("handles", handles).finish_non_exhaustive()
            }
            Self::Failed(error) => f.debug_tuple("Failed").field(error).finish(),
        }
    }
}

/// A pool that is shorter, or has room for a few extents only, is tried in memory before its file is made: whether it has room for a table depends on all options.
const SMALL_BYTES: u64 = 1 << 20;

/// Creates a store and a table in memory, and inserts an entry.
fn try_in_memory(pool_bytes: u64, options: &StoreOptions) -> Result<(), OpenError> {
    // If there is no such region, the file's error says why.
    let Ok(region) = Region::anonymous(pool_bytes) else { return Ok(()) };
    let reason = "it has no room for a table";
    let store = match Store::format_in(Heap::format(region, &options.of_new_heap(pool_bytes))?, options) {
        Err(OpenError::Tx(TxError::Space(_))) => return Err(OpenError::Layout { pool_bytes, reason }),
        formatted => formatted?,
    };
    let table = store.table::<u64, u64>("trial");
    let has_room = table.is_ok_and(|table| table.insert(0, 0).is_ok());
    if has_room { Ok(()) } else { Err(OpenError::Layout { pool_bytes, reason }) }
}

impl Store<Region> {
    /// Creates a file of `pool_bytes` at `path` with an empty store in it.
    ///
    /// # Errors
    /// When the path exists, the layout is impossible, the pool would have no room for a table, or a system call fails.
    ///
    /// # Durability
    /// Durable when this returns, with the commit of one [`Heap::transaction`] in the new heap. A crash before that leaves no file, an empty heap
    /// without a store, or the store. Where `path` is an empty heap, this call creates the store in it.
    pub fn create(
        path: impl AsRef<Path>,
        pool_bytes: u64,
        options: &StoreOptions,
    ) -> Result<Self, OpenError> {
        let heap_options = options.of_new_heap(pool_bytes);
        if let Some(reason) = options.refusal(pool_bytes) {
            return Err(OpenError::Layout { pool_bytes, reason });
        }
        if pool_bytes < SMALL_BYTES.max(4 * options.extent_length(pool_bytes)) {
            try_in_memory(pool_bytes, options)?;
        }
        let heap = match Heap::create(&path, pool_bytes, &heap_options) {
            Err(HeapError::Pool(PoolError::Region(error @ RegionError::Exists { .. }))) => {
                let is_empty = |heap: &Heap| heap.pool().roots().len() == 1 && heap.blocks().is_empty();
                let found = Heap::open(&path, options.of_heap()).ok().filter(is_empty);
                found.ok_or_else(|| HeapError::from(error))?
            }
            created => created?,
        };
        Self::format_in(heap, options)
    }

    /// Opens the store in the file or device-dax at `path`. This takes a few milliseconds, however large the store is: an operation that comes to a
    /// leaf for the first time reads it, and after a kill or a power failure verifies it and cleans up what operations in progress have left.
    ///
    /// # Errors
    /// When there is no store. When it has an unknown version or feature, or another process has it open. When a structure that all tables need is
    /// corrupted. When a fence or a system call fails. If a leaf is corrupted, only operations that come to it fail, and no space that existed at
    /// this open is reused, so that a repair can find its entries.
    ///
    /// # Durability
    /// Operations that earlier sessions have completed are durable. One that was in progress at a kill is durable before an operation reads what it
    /// has stored.
    pub fn open(path: impl AsRef<Path>, options: &StoreOptions) -> Result<Self, OpenError> {
        Self::open_in(open_heap(path.as_ref(), options.of_heap())?, options)
    }

    /// Opens the store in the file at `path` for reading only, and stores nothing to the file: it may be on a file system that is read-only, and have
    /// no write permission. After a kill or a power failure the store is recovered in memory of this process, a page for each that recovery changes.
    ///
    /// Every change, and the creation of a table, is [`WriteError::ReadOnly`], and growing [`OpenError::ReadOnly`]. Several processes may read a
    /// store at once. As long as one does, none can open it for changes, and none can read it while another one has it open for changes.
    ///
    /// # Errors
    /// As for [`open`](Store::open). When the path is a device-dax, which cannot be mapped privately.
    ///
    /// # Durability
    /// What is read is what an [`open`](Store::open) would find. After a kill it may not be durable yet: a power failure can undo the operations that
    /// were in progress at the kill.
    ///
    /// # Examples
    /// ```
    /// use pm_btree::{Store, StoreOptions, WriteError};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("ages.pm");
    /// Store::create(&path, 16 << 20, &StoreOptions::new())?.table::<&str, u64>("ages")?.insert("ada", 36)?;
    /// let store = Store::open_read_only(&path, &StoreOptions::new())?;
    /// let ages = store.table::<&str, u64>("ages")?;
    /// assert_eq!(ages.get("ada")?.unwrap().value(), 36);
    /// assert!(matches!(ages.insert("ada", 37), Err(WriteError::ReadOnly)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn open_read_only(path: impl AsRef<Path>, options: &StoreOptions) -> Result<Self, OpenError> {
        let heap = open_heap(path.as_ref(), &options.of_heap().clone().scratch())?;
        Ok(Self { shared: Arc::new(Shared::open(heap, options, true)?) })
    }

    /// Grows the file and the store in it, which keeps its entries. The mapping may move: so the store must have no [handles](Store#handles), and
    /// tables are opened again after it.
    ///
    /// # Errors
    /// When the store has handles. As for [`Heap::grow`]: when the size is less than the present one or not possible, or the medium is full. In these
    /// cases nothing was changed. When a fence fails: then the store accepts no more changes, and the next open finds the old size or the new one.
    ///
    /// # Durability
    /// Durable when this returns, as [`Heap::grow`] makes it. A crash before that leaves the old size or the new one.
    ///
    /// # Examples
    /// ```
    /// use pm_btree::{Store, StoreOptions, WriteError};
    /// use pm_core::Region;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut store = Store::format(Region::anonymous(1 << 20)?, &StoreOptions::new())?;
    /// let mut next = 0_u64;
    /// while next < 50_000 {
    ///     let squares = store.table::<u64, u64>("squares")?;
    ///     let inserted = (next..50_000).try_for_each(|n| squares.insert(n, n * n).map(|_| next = n + 1));
    ///     drop(squares);
    ///     match inserted {
    ///         Err(WriteError::Full) => store.grow(2 * store.stats()?.pool_bytes)?,
    ///         result => result?,
    ///     }
    /// }
    /// assert_eq!(store.table::<u64, u64>("squares")?.len()?, 50_000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn grow(&mut self, pool_bytes: u64) -> Result<(), OpenError> {
        if !self.shared.is_of_this_process() {
            return Err(HeapError::from(PoolError::InUse).into());
        }
        self.shared.check_writable().map_err(|_| OpenError::ReadOnly)?;
        let shared = self.exclusive().map_err(|handles| OpenError::InUse { handles })?;
        if shared.session.check_not_poisoned().is_err() {
            return Err(FenceError::Poisoned.into());
        }
        // Room is what the group may wait for.
        if let Err(WriteError::Fence(error)) = shared.settle().map(drop) {
            return Err(error.into());
        }
        shared.session.grow(pool_bytes)
    }
}

impl<P: Pmem> Store<P> {
    /// Why the store has last failed to [grow by itself](StoreOptions::max_bytes), since the last call of this function. The change that needed the space
    /// has found the store full.
    pub fn growth_error(&self) -> Option<PoolError> {
        self.shared.session.heap.growth_error()
    }

    /// Creates a store over a whole region that holds none.
    ///
    /// # Errors
    /// As for [`Heap::format`], and when the options are impossible.
    ///
    /// # Durability
    /// As for [`create`](Store::create).
    pub fn format(pmem: P, options: &StoreOptions) -> Result<Self, OpenError> {
        let pool_bytes = pmem.len_bytes();
        if let Some(reason) = options.refusal(pool_bytes) {
            return Err(OpenError::Layout { pool_bytes, reason });
        }
        Self::format_in(Heap::format(pmem, &options.of_new_heap(pool_bytes))?, options)
    }

    /// Opens the store in a region.
    ///
    /// # Errors
    /// As for [`open`](Store::open).
    ///
    /// # Durability
    /// As for [`open`](Store::open).
    pub fn attach(pmem: P, options: &StoreOptions) -> Result<Self, OpenError> {
        Self::open_in(Heap::attach(pmem, options.of_heap())?, options)
    }

    /// Creates a store in an empty heap, in one transaction.
    fn format_in(heap: Heap<P>, options: &StoreOptions) -> Result<Self, OpenError> {
        let pool_bytes = heap.pmem().len_bytes();
        // The heap adds a block header to an extent, and a line at the start of a chunk.
        let extent_bytes = options.extent_length(pool_bytes) - 128;
        let header = StoreHeader {
            magic: MAGIC,
            version: VERSION,
            node_slots: options.slots(),
            features_incompat: 0,
            extent_bytes,
            pool_uuid: *heap.pool().uuid().as_bytes(),
            reserved: [0; 12],
            crc: 0,
        };
        let header = StoreHeader { crc: header.expected_crc(), ..header };
        heap.transaction(|tx| {
            let extents = tx.alloc(&ExtentChunk {
                magic: EXTENT_CHUNK_MAGIC,
                next: Link::NULL,
                reserved: [0; 6],
                rows: [ExtentRow { extent: Link::NULL, class: 0 }; ROWS],
            })?;
            let store: Link<'_, StoreBlock<'_>> = tx.alloc_uninit(1)?;
            let words = store.offset() + offset_of!(StoreBlock<'_>, state) as u64;
            let mut state = [0; 8];
            for (word, value) in (0..).zip([0, FIRST_EPOCH, 0, 0]) {
                state[word] = checked(value, words + 8 * word as u64);
            }
            let catalogue = checked(0, store.offset() + offset_of!(StoreBlock<'_>, catalogue) as u64);
            let mut batches = [0; 512];
            let places = (store.offset() + offset_of!(StoreBlock<'_>, batches) as u64..).step_by(64);
            for (slot, place) in batches.iter_mut().step_by(8).zip(places) {
                *slot = checked(0, place);
            }
            let readers = [0; 488];
            tx.write(
                store,
                &StoreBlock { header, state, catalogue, reserved: [0; 6], extents, readers, batches },
            )?;
            tx.set_root(ROOT, store)?;
            Ok(())
        })?;
        Self::open_in(heap, options)
    }

    fn open_in(heap: Heap<P>, options: &StoreOptions) -> Result<Self, OpenError> {
        Ok(Self { shared: Arc::new(Shared::open(heap, options, false)?) })
    }

    /// The number of handles, besides those that other threads make or drop meanwhile.
    fn handles(&self) -> usize {
        Arc::strong_count(&self.shared) - 1
    }

    /// The only reference to the open store, or the number of handles.
    fn exclusive(&mut self) -> Result<&mut Shared<P>, usize> {
        // At least one, if another thread has dropped the last one meanwhile.
        let handles = self.handles().max(1);
        Arc::get_mut(&mut self.shared).ok_or(handles)
    }

    /// Opens the table with this name, and creates it if there is none.
    ///
    /// # Errors
    /// When the table holds other types, or is corrupted. When it cannot be created.
    ///
    /// # Durability
    /// A new table is durable when this returns, with the [insertion](Table::insert) of its description into the catalogue; a crash before that
    /// leaves no table or an empty one. Costs up to three fences, and a commit of the [group](Table::insert_grouped); nothing if the table exists.
    ///
    /// # Panics
    /// Never: tables are not removed.
    pub fn table<K: Key, V: Value>(&self, name: &str) -> Result<Table<K, V, P>, TableError> {
        if let Some(table) = self.open_table(name)? {
            return Ok(table);
        }
        // What is set aside for a group is free when it is committed. Its lock is taken before that of the catalogue.
        let _settled = self.shared.begin()?;
        let mut catalogue = self.shared.catalogue.write().unwrap_or_else(PoisonError::into_inner);
        if !catalogue.tables.contains_key(name) {
            let described = Described::of::<K, V>();
            let Shared { session, sweep, .. } = &*self.shared;
            let mut room = sweep.room();
            loop {
                match catalogue.create(session, name, &described) {
                    Err(TableError::Write(error)) if room.make(session, &error)? => (),
                    created => break created?,
                }
            }
        }
        drop(catalogue);
        // Another thread may have created it, with other types.
        self.open_table(name).map(|table| table.expect("tables are not removed"))
    }

    /// Opens the table with this name. `None` if there is none.
    ///
    /// # Errors
    /// When the table holds other types, or is corrupted.
    pub fn open_table<K: Key, V: Value>(&self, name: &str) -> Result<Option<Table<K, V, P>>, TableError> {
        let catalogue = self.shared.catalogue.read().unwrap_or_else(PoisonError::into_inner);
        let Some(opened) = catalogue.tables.get(name) else { return Ok(None) };
        let wanted = Described::of::<K, V>();
        if !opened.described.has_types_of(&wanted) {
            let (stored, wanted) = (opened.described.types(), wanted.types());
            return Err(TableError::Type { name: name.to_owned(), stored, wanted });
        }
        Ok(Some(Table::new(Arc::clone(&self.shared), opened.tree.clone()?)))
    }

    /// Starts a batch, whose operations become durable together.
    pub fn batch(&self) -> WriteBatch<P> {
        WriteBatch::new(Arc::clone(&self.shared))
    }

    /// Makes the changes of the [group](Table::insert_grouped) durable.
    ///
    /// # Errors
    /// When changes are [lost](WriteError::Lost) since the last call: they could not be made by this commit or an earlier one, because corruption was found
    /// after they had joined the group. All others are durable. When a fence fails: then the next open decides whether all are durable, or none.
    ///
    /// # Durability
    /// When this returns, every change that had returned before the call is durable, but for those that are lost, with one
    /// [commit](WriteBatch::commit). Costs two fences, besides those of splits, and nothing if no change waits.
    pub fn sync(&self) -> Result<(), WriteError> {
        self.shared.sync()
    }

    /// As [`sync`](Self::sync), if the oldest change of the group has waited for so long; returns whether it had. A program that bounds the time for
    /// which a change may wait calls this from a thread of its own.
    ///
    /// # Errors
    /// As for [`sync`](Self::sync).
    ///
    /// # Durability
    /// As for [`sync`](Self::sync).
    pub fn sync_older(&self, age: Duration) -> Result<bool, WriteError> {
        self.shared.check_own()?;
        let was_due = self.shared.group.settle_older(&self.shared.session, &self.shared.sweep, age)?;
        self.shared.report_lost()?;
        Ok(was_due)
    }

    /// The number of changes of the group: those that a crash may lose.
    pub fn grouped_len(&self) -> usize {
        self.shared.group.len()
    }

    /// The tables, in the order of their names.
    pub fn tables(&self) -> Vec<TableInfo> {
        let catalogue = self.shared.catalogue.read().unwrap_or_else(PoisonError::into_inner);
        let info = |(name, opened): (&String, &Opened)| TableInfo {
            name: name.clone(),
            key_type: opened.described.key_type.clone(),
            value_type: opened.described.value_type.clone(),
        };
        catalogue.tables.iter().map(info).collect()
    }

    /// The number of entries in the table with this name, as [`Table::len`]. `None` if there is no such table.
    ///
    /// # Errors
    /// When a leaf cannot be read, so that its entries cannot be counted.
    pub fn table_len(&self, name: &str) -> Result<Option<u64>, ReadError> {
        self.shared.settle_reads()?;
        let catalogue = self.shared.catalogue.read().unwrap_or_else(PoisonError::into_inner);
        let Some(opened) = catalogue.tables.get(name) else { return Ok(None) };
        let tree = opened.tree.as_ref().map_err(Corruption::clone)?;
        self.shared.sweep.len_of(&self.shared.session, tree).map(Some)
    }

    /// Verifies the checksums of all nodes, entries and records, and that every entry is in the right leaf. Changes nothing.
    ///
    /// Call this while no operation is in progress, because an operation in progress may be reported as corruption.
    ///
    /// # Errors
    /// When a fence fails. A leaf that is read for the first time after a crash is made durable first.
    pub fn check(&self) -> Result<CheckReport, FenceError> {
        self.settle_if_possible()?;
        let catalogue = self.shared.catalogue.read().unwrap_or_else(PoisonError::into_inner);
        let mut report = CheckReport::default();
        for (name, opened) in &catalogue.tables {
            match &opened.tree {
                Ok(tree) => match check_tree(&self.shared.session, tree, name, &mut report) {
                    Err(LeafError::Corrupted(corruption)) => report.push(name, corruption),
                    Err(LeafError::Fence(error)) => return Err(error),
                    Ok(()) => (),
                },
                Err(corruption) => report.push(name, corruption.clone()),
            }
        }
        if let Some(corruption) = self.shared.session.space.lost_row() {
            report.push("", corruption);
        }
        report.heap = self.shared.session.heap.check();
        Ok(report)
    }

    /// Statistics of the space in use. The first call after an open waits until every leaf was visited, as [`Table::len`] does.
    ///
    /// # Errors
    /// When a fence fails. A leaf that is read for the first time after a crash is made durable first.
    pub fn stats(&self) -> Result<StoreStats, FenceError> {
        self.settle_if_possible()?;
        let Shared { session, sweep, .. } = &*self.shared;
        sweep.complete(session)?;
        let (extent_bytes, used_bytes) = session.space.usage();
        Ok(StoreStats {
            pool_bytes: session.pmem().len_bytes(),
            extent_bytes,
            used_bytes,
            dram_bytes: session.frames.bytes() + session.inner.bytes(),
        })
    }

    /// What the store has room for before a change fails with [`WriteError::Full`], unless it [grows](StoreOptions::max_bytes): in whole pieces that
    /// serve records of up to `len` bytes, a key with its value, and in units that are free beside others of their length. What it tells and what it
    /// is for is said at [`Room`].
    ///
    /// Space of records that are gone is returned to the heap by this. After an open, free units of extents that were not visited yet are not counted; after
    /// [`stats`](Self::stats), which waits for that, all are. Takes microseconds for each extent and each chunk of the heap.
    ///
    /// # Errors
    /// When the store is read-only, or a fence fails.
    ///
    /// # Durability
    /// A crash leaves all entries. One transaction of the heap for each extent that is returned, and the fences of [`Heap::room_for`](pm_alloc::Heap::room_for).
    pub fn room(&self, len: u64) -> Result<Room, WriteError> {
        self.shared.check_writable()?;
        self.settle_if_possible()?;
        Room::measure(&self.shared.session, len)
    }

    /// Commits the group. If that fails, but not by a fence, the caller does without.
    fn settle_if_possible(&self) -> Result<(), FenceError> {
        match self.shared.settle().map(drop) {
            Err(WriteError::Fence(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Unlinks all leaves that removals have left empty, and returns extents without contents to the heap. Returns how many bytes of leaves can be used
    /// again. The store must have no [handles](Self#handles): tables are opened again after it. Takes as long as [`Table::len`] after an open, and some
    /// microseconds for each leaf of tables with empty leaves.
    ///
    /// Rarely needed: [changes](StoreOptions::empty_leaves) unlink empty leaves, too. They leave a few, and extents of nodes stay those of nodes until the
    /// store is [closed](Self::close).
    ///
    /// # Errors
    /// When the store has handles, when a leaf cannot be read, or an entry is corrupted: then nothing was changed. When a fence fails: then the store
    /// accepts no more changes.
    ///
    /// # Durability
    /// A crash leaves all entries, and some of the empty leaves. Two fences for each table with empty leaves, and one for each new inner node.
    #[expect(clippy::missing_panics_doc, reason = "a check reports what has stopped the sweep")]
    pub fn compact(&mut self) -> Result<u64, WriteError> {
        if self.shared.session.check_not_poisoned().is_err() || !self.shared.is_of_this_process() {
            return Err(FenceError::Poisoned.into());
        }
        self.shared.check_writable()?;
        self.exclusive().map_err(|handles| WriteError::InUse { handles })?;
        self.shared.settle()?;
        if !self.shared.sweep.complete(&self.shared.session)? {
            let report = self.check()?;
            let corruption = report.corruptions.into_iter().next().expect("the sweep was stopped by it").1;
            return Err(corruption.into());
        }
        let shared = self.exclusive().map_err(|handles| WriteError::InUse { handles })?;
        let (_, before) = shared.session.space.usage();
        let catalogue = shared.catalogue.get_mut().unwrap_or_else(PoisonError::into_inner);
        let trees: Vec<&Tree> =
            catalogue.tables.values().filter_map(|opened| opened.tree.as_deref().ok()).collect();
        compact(&mut shared.session, &trees)?;
        shared.session.return_all_unused()?;
        let (_, after) = shared.session.space.usage();
        Ok(before.saturating_sub(after))
    }

    /// The number of steps to a right sibling, because the index lacked it.
    #[doc(hidden)]
    pub fn steps_right(&self) -> u64 {
        self.shared.session.steps_right()
    }

    /// The number of indexes of tables that were made from the leaves, because a hint node was corrupted.
    #[doc(hidden)]
    pub fn new_indexes(&self) -> u64 {
        self.shared.session.new_indexes()
    }

    /// The heap that holds the store.
    pub fn heap(&self) -> &Heap<P> {
        &self.shared.session.heap
    }

    /// The offsets of the heap's blocks that belong to the store; every other block of the heap is not in use.
    #[doc(hidden)]
    pub fn blocks(&self) -> Vec<u64> {
        let mut blocks = self.shared.session.space.block_offsets();
        blocks.extend(self.shared.session.heap.view(|view| {
            let mut offsets = Vec::new();
            if let Ok(Some(store)) = view.root::<StoreBlock<'_>>(ROOT) {
                offsets.push(store.offset());
                let mut chunk =
                    view.read(store.field(pm_core::field!(StoreBlock<'_>, extents))).unwrap_or(Link::NULL);
                while !chunk.is_null() {
                    offsets.push(chunk.offset());
                    chunk =
                        view.read(chunk.field(pm_core::field!(ExtentChunk<'_>, next))).unwrap_or(Link::NULL);
                }
            }
            offsets
        }));
        blocks.sort_unstable();
        blocks
    }

    /// Closes the store, so that later opens have nothing to verify, except leaves that an earlier kill has left and no operation has read since. Extents
    /// in which no node is in use return to the heap. Not needed for durability. Dropping the store and its [handles](Self#handles) does the same without reporting errors.
    ///
    /// # Errors
    /// When the store has handles: the error returns the store, which is open, and says how many there are. When a fence fails or has failed: the
    /// next open verifies the store. When the changes of a [group](Table::insert_grouped) cannot be made: they are lost.
    ///
    /// # Durability
    /// Three fences, two of them of [`Heap::close`], two more for each table in which removals have left leaves empty, and a transaction of the heap
    /// for each extent that it returns. After a crash before the heap is closed, the next open may verify all nodes.
    ///
    /// # Examples
    /// ```
    /// use pm_btree::{CloseError, Store, StoreOptions};
    /// use pm_core::Region;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = Store::format(Region::anonymous(1 << 20)?, &StoreOptions::new())?;
    /// let squares = store.table::<u64, u64>("squares")?;
    /// let Err(CloseError::InUse { handles: 1, store }) = store.close() else { panic!("a table exists") };
    /// squares.insert(3, 9)?;
    /// drop(squares);
    /// store.close()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn close(self) -> Result<(), CloseError<P>> {
        if !self.shared.is_of_this_process() {
            return Err(OpenError::from(HeapError::from(PoolError::InUse)).into());
        }
        let handles = self.handles().max(1);
        match Arc::try_unwrap(self.shared) {
            Ok(mut shared) => Ok(shared.end()?),
            Err(shared) => Err(CloseError::InUse { handles, store: Self { shared } }),
        }
    }
}

/// Opens a heap. If this process has it open, the error says that.
fn open_heap(path: &Path, options: &HeapOptions) -> Result<Heap, OpenError> {
    Heap::open(path, options).map_err(|error| match error {
        HeapError::Pool(PoolError::Region(RegionError::Busy { path })) if is_mapped_here(&path) => {
            OpenError::StillOpen { path }
        }
        error => error.into(),
    })
}

/// Whether this process has the file at a path open and mapped, as that of an open store is. A child of fork(2) inherits the open file only.
fn is_mapped_here(path: &Path) -> bool {
    let Ok(file) = path.metadata() else { return false };
    // The fifth field of a line is the number of the file's inode. Its device may be another one than that of the file, on btrfs for example.
    let inode = file.ino().to_string();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let is_mapped = maps.lines().any(|line| line.split_ascii_whitespace().nth(4) == Some(&inode));
    let is_same = |open: Metadata| (open.dev(), open.ino()) == (file.dev(), file.ino());
    is_mapped
        && std::fs::read_dir("/proc/self/fd")
            .is_ok_and(|open| open.flatten().any(|open| open.path().metadata().is_ok_and(is_same)))
}
