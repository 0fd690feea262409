//! An open store: its tables, and operations on the whole store.

use crate::batch::WriteBatch;
use crate::catalogue::{CATALOGUE, Described, TableInfo};
use crate::change::Expected;
use crate::core::Core;
use crate::error::{Corruption, CorruptionKind, OpenError, TableError};
use crate::format::{
    EXTENT_CHUNK_MAGIC, ExtentChunk, ExtentRow, MAGIC, ROOT, ROWS, StoreBlock, StoreHeader, VERSION, checked,
};
use crate::key::SearchKey;
use crate::leaf::Tree;
use crate::options::StoreOptions;
use crate::recover::FillError;
use crate::report::{CheckReport, StoreStats};
use crate::scan::Bounds;
use crate::table::Table;
use crate::types::{Key, Value};
use core::mem::offset_of;
use core::ops::Bound;
use core::sync::atomic::Ordering;
use pm_alloc::{Heap, HeapError, TxError};
use pm_core::{Link, OpenError as RegionError, Pmem, PoolError, ProcessId, Region};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

/// The first epoch of a new store.
const FIRST_EPOCH: u64 = 2;

/// An ordered store in a file: tables of keys and values, in which every operation is durable when it returns.
///
/// Several threads may use it at once, but only one process at a time can open it. It need not be closed: after a kill or a power failure, all
/// completed operations are there. Dropping it [closes](Store::close) it. The crate's documentation has an example.
#[derive(Debug)]
pub struct Store<P: Pmem = Region> {
    /// The process that opened the store. A child of fork(2) does not own it.
    process: ProcessId,
    core: Core<P>,
    catalogue: RwLock<Catalogue>,
}

/// The tables of a store.
#[derive(Debug, Default)]
struct Catalogue {
    /// The tree of descriptions; `None` while there is no table.
    tree: Option<Tree>,
    tables: BTreeMap<String, Opened>,
}

#[derive(Clone, Debug)]
struct Opened {
    described: Described,
    tree: Result<Arc<Tree>, Corruption>,
}

impl Store<Region> {
    /// Creates a file of `pool_bytes` at `path` with an empty store in it.
    ///
    /// # Errors
    /// When the path exists, the layout is impossible, or a system call fails.
    ///
    /// # Durability
    /// A crash leaves no file, an empty heap without a store, or the store. Where `path` is an empty heap, this call creates the store in it.
    pub fn create(
        path: impl AsRef<Path>,
        pool_bytes: u64,
        options: &StoreOptions,
    ) -> Result<Self, OpenError> {
        let heap_options = options.of_new_heap(pool_bytes);
        if let Some(reason) = options.refusal() {
            return Err(OpenError::Layout { pool_bytes, reason });
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

    /// Opens the store in the file or device-dax at `path`. After a kill or a power failure this verifies all nodes, and cleans up what operations in
    /// progress have left.
    ///
    /// # Errors
    /// When there is no store. When it has an unknown version or feature, or another process has it open. When a structure that all tables need is
    /// corrupted. When a fence or a system call fails. If the nodes of a single table are corrupted, only [`table`](Self::table)
    /// fails for it, and no space that existed at this open is reused, so that a repair can find its entries.
    ///
    /// # Durability
    /// All completed operations of earlier sessions are durable when this returns. A crash during this call loses none of them.
    pub fn open(path: impl AsRef<Path>, options: &StoreOptions) -> Result<Self, OpenError> {
        Self::open_in(Heap::open(path, options.of_heap())?, options)
    }
}

impl<P: Pmem> Store<P> {
    /// Creates a store over a whole region that holds none.
    ///
    /// # Errors
    /// As for [`Heap::format`], and when the options are impossible.
    ///
    /// # Durability
    /// As for [`create`](Store::create).
    pub fn format(pmem: P, options: &StoreOptions) -> Result<Self, OpenError> {
        let pool_bytes = pmem.len_bytes();
        if let Some(reason) = options.refusal() {
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
            state[1] = checked(FIRST_EPOCH, words + 8);
            let (readers, batches) = ([0; 488], [0; 512]);
            tx.write(
                store,
                &StoreBlock { header, state, catalogue: 0, reserved: [0; 6], extents, readers, batches },
            )?;
            tx.set_root(ROOT, store)?;
            Ok::<(), TxError>(())
        })?;
        Self::open_in(heap, options)
    }

    fn open_in(heap: Heap<P>, options: &StoreOptions) -> Result<Self, OpenError> {
        let core = Core::open(heap, options.verifies_reads())?;
        let catalogue = Catalogue::open(&core)?;
        match catalogue.has_corrupted_table() {
            // A repair may find its nodes and records: nothing of them is overwritten, and the next open verifies them, too.
            true => core.space.retain_all(),
            false => core.session.end_verification(&core.pmem()),
        }
        Ok(Self { process: ProcessId::current(), core, catalogue: RwLock::new(catalogue) })
    }

    /// Opens the table with this name, and creates it if there is none.
    ///
    /// # Errors
    /// When the table holds other types, or is corrupted. When it cannot be created.
    ///
    /// # Durability
    /// A new table is durable when this returns; a crash before that leaves no table or an empty one. Costs up to three fences, and none if the table
    /// exists.
    ///
    /// # Panics
    /// Never: tables are not removed.
    pub fn table<K: Key, V: Value>(&self, name: &str) -> Result<Table<'_, K, V, P>, TableError> {
        if let Some(table) = self.open_table(name)? {
            return Ok(table);
        }
        let mut catalogue = self.catalogue.write().unwrap_or_else(PoisonError::into_inner);
        if !catalogue.tables.contains_key(name) {
            catalogue.create(&self.core, name, &Described::of::<K, V>())?;
        }
        drop(catalogue);
        // Another thread may have created it, with other types.
        self.open_table(name).map(|table| table.expect("tables are not removed"))
    }

    /// Opens the table with this name. `None` if there is none.
    ///
    /// # Errors
    /// When the table holds other types, or is corrupted.
    pub fn open_table<K: Key, V: Value>(&self, name: &str) -> Result<Option<Table<'_, K, V, P>>, TableError> {
        let catalogue = self.catalogue.read().unwrap_or_else(PoisonError::into_inner);
        let Some(opened) = catalogue.tables.get(name) else { return Ok(None) };
        let wanted = Described::of::<K, V>();
        if !opened.described.has_types_of(&wanted) {
            let (stored, wanted) = (opened.described.types(), wanted.types());
            return Err(TableError::Type { name: name.to_owned(), stored, wanted });
        }
        Ok(Some(Table::new(&self.core, opened.tree.clone()?)))
    }

    /// Starts a batch, whose operations become durable together.
    pub const fn batch(&self) -> WriteBatch<'_, P> {
        WriteBatch::new(&self.core)
    }

    /// The tables, in the order of their names.
    pub fn tables(&self) -> Vec<TableInfo> {
        let catalogue = self.catalogue.read().unwrap_or_else(PoisonError::into_inner);
        let info = |(name, opened): (&String, &Opened)| TableInfo {
            name: name.clone(),
            key_type: opened.described.key_type.clone(),
            value_type: opened.described.value_type.clone(),
            len: opened.tree.as_ref().map_or(0, |tree| tree.len.load(Ordering::Relaxed)),
        };
        catalogue.tables.iter().map(info).collect()
    }

    /// Verifies the checksums of all nodes, entries and records, and that every entry is in the right leaf. Changes nothing.
    ///
    /// Call this while no operation is in progress, because an operation in progress may be reported as corruption.
    pub fn check(&self) -> CheckReport {
        let catalogue = self.catalogue.read().unwrap_or_else(PoisonError::into_inner);
        let mut report = CheckReport::default();
        for (name, opened) in &catalogue.tables {
            match &opened.tree {
                Ok(tree) => tree.check(&self.core, name, &mut report),
                Err(corruption) => report.push(name, corruption.clone()),
            }
        }
        report.heap = self.core.heap.check();
        report
    }

    /// Statistics of the space in use.
    pub fn stats(&self) -> StoreStats {
        let (extent_bytes, used_bytes) = self.core.space.usage();
        StoreStats {
            pool_bytes: self.core.pmem().len_bytes(),
            extent_bytes,
            used_bytes,
            dram_bytes: self.core.frames.bytes() + self.core.inner.bytes(),
        }
    }

    /// The heap that holds the store.
    pub const fn heap(&self) -> &Heap<P> {
        &self.core.heap
    }

    /// The offsets of the heap's blocks that belong to the store; every other block of the heap is not in use.
    #[doc(hidden)]
    pub fn blocks(&self) -> Vec<u64> {
        let mut blocks = self.core.space.extent_offsets();
        blocks.extend(self.core.heap.view(|view| {
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

    /// Closes the store, so that the next open has nothing to verify. Not needed for durability. Dropping the store does the same without reporting
    /// errors.
    ///
    /// # Errors
    /// When a fence fails or has failed. The next open verifies the store.
    ///
    /// # Durability
    /// Three fences, two of them of the heap. After a crash before the second one, the next open may verify all nodes.
    pub fn close(mut self) -> Result<(), OpenError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), OpenError> {
        // The store of a child of fork(2) belongs to the parent, whose session goes on.
        if !self.process.is_current() {
            return Err(HeapError::from(PoolError::InUse).into());
        }
        // After a failed fence or a panic the state is that of a killed process.
        if self.core.check_not_poisoned().is_err() || std::thread::panicking() {
            return Ok(());
        }
        let catalogue = self.catalogue.get_mut().unwrap_or_else(PoisonError::into_inner);
        let tables = catalogue.tables.values().filter_map(|opened| opened.tree.as_deref().ok());
        for tree in catalogue.tree.iter().chain(tables) {
            tree.flush_owed(&self.core);
        }
        if !catalogue.has_corrupted_table() {
            self.core.end_session()?;
        }
        // A second end, when the closed store is dropped, changes nothing.
        self.core.poison();
        Ok(())
    }
}

impl<P: Pmem> Drop for Store<P> {
    /// [Closes](Store::close) the store. The heap closes after it.
    fn drop(&mut self) {
        // After an error the next open verifies the store. `close` reports such errors.
        drop(self.end());
    }
}

impl Catalogue {
    /// Opens the catalogue and all tables in it.
    fn open<P: Pmem>(core: &Core<P>) -> Result<Self, OpenError> {
        let first = core.catalogue()?;
        if first == 0 {
            return Ok(Self::default());
        }
        let open = |table, width, first| match Tree::open(core, table, width, first) {
            Ok(tree) => Ok(Ok(tree)),
            Err(FillError::Corrupted(corruption)) => Ok(Err(corruption)),
            Err(FillError::Fence(error)) => Err(error),
        };
        let tree = open(CATALOGUE, None, first)??;
        let mut tables = BTreeMap::new();
        let mut bounds = Bounds { from: Bound::Unbounded, to: Bound::Unbounded };
        while let Some(batch) = tree.next_batch(core, &mut bounds)? {
            for item in &batch.items {
                let name = core::str::from_utf8(&batch.bytes[item.key.clone()]).ok();
                let described = Described::decode(&batch.bytes[item.value.clone()]);
                let (name, described) =
                    name.zip(described).ok_or_else(|| Corruption::new(first, CorruptionKind::Catalogue))?;
                let opened = open(described.table, described.key_width(), described.first)?;
                tables.insert(name.to_owned(), Opened { described, tree: opened.map(Arc::new) });
            }
        }
        Ok(Self { tree: Some(tree), tables })
    }

    fn has_corrupted_table(&self) -> bool {
        self.tables.values().any(|opened| opened.tree.is_err())
    }

    /// Creates a table.
    ///
    /// # Durability
    /// The first leaf is durable before the catalogue refers to it.
    fn create<P: Pmem>(
        &mut self,
        core: &Core<P>,
        name: &str,
        described: &Described,
    ) -> Result<(), TableError> {
        if !(1..=255).contains(&name.len()) {
            return Err(TableError::Name { len_bytes: name.len() });
        }
        if self.tree.is_none() {
            let (first, tree) = Tree::create_leaf(core, CATALOGUE, None)?;
            core.set_catalogue(first);
            self.tree = Some(tree);
        }
        // An earlier call, perhaps in a killed process, may have set it without a fence. The fence of the new leaf covers it.
        core.flush_catalogue();
        let last = self.tables.values().map(|opened| opened.described.table).max().unwrap_or(CATALOGUE);
        let table = last.checked_add(1).ok_or(TableError::TooMany)?;
        let key_width = described.key_width();
        let (first, tree) = Tree::create_leaf(core, table, key_width)?;
        let described = Described { table, first, ..described.clone() };
        let catalogue = self.tree.as_ref().expect("it was created above");
        let name_key = SearchKey::bytes_key(name.as_bytes());
        catalogue.put(core, &name_key, &described.encode(), Expected::Any)?;
        self.tables.insert(name.to_owned(), Opened { described, tree: Ok(Arc::new(tree)) });
        Ok(())
    }
}
