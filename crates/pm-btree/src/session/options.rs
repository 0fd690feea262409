//! Options for creating and opening a store.

use super::space::Space;
use pm_alloc::HeapOptions;

/// Options for creating and opening a store.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    heap: HeapOptions,
    node_slots: Option<u32>,
    extent_bytes: Option<u64>,
    verifies_reads: bool,
    leaves_swept_at_open: Option<u64>,
    changes_per_epoch: Option<u32>,
    group_changes: u32,
    removal_batch: u32,
    empty_leaves: u32,
    max_bytes: Option<u64>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl StoreOptions {
    /// The defaults: nodes of 2 KiB, and extents that depend on the size of the pool.
    #[must_use]
    pub fn new() -> Self {
        // One transaction at a time adds an extent or a table, and an open after a kill reads all lanes.
        let heap = HeapOptions::new().lanes(2).lane_entries(62);
        Self {
            heap,
            node_slots: None,
            extent_bytes: None,
            verifies_reads: false,
            leaves_swept_at_open: None,
            changes_per_epoch: None,
            group_changes: 0,
            removal_batch: 4096,
            empty_leaves: 32,
            max_bytes: None,
        }
    }

    /// Options of the heap that holds the store, and through them of the pool and the region. A store chooses the length of chunks itself. Its heap
    /// has two lanes of 62 entries by default.
    #[must_use]
    pub fn heap(mut self, heap: HeapOptions) -> Self {
        self.heap = match self.max_bytes {
            Some(bytes) => heap.max_bytes(bytes),
            None => heap,
        };
        self
    }

    /// The number of entries in a node: even, 4 to 62; by default 62. Used when a store is created. Small nodes are for tests, where a few entries
    /// make a tree with several levels.
    #[must_use]
    pub const fn node_slots(mut self, slots: u32) -> Self {
        self.node_slots = Some(slots);
        self
    }

    /// The length of an extent, the unit in which nodes and records of one size get space: a power of two from 4 KiB to 1 MiB. By default a 256th of
    /// the pool, between these limits. A record longer than a quarter of that has a block of its own. Used when a store is created.
    #[must_use]
    pub const fn extent_bytes(mut self, bytes: u64) -> Self {
        self.extent_bytes = Some(bytes);
        self
    }

    /// Whether each read verifies the checksums of what it reads. False by default: a bit that flips while the store is closed, or in a value of a
    /// store that is open, is then not detected in the value. Entries are verified when a leaf is first read after an open, in either case.
    #[must_use]
    pub const fn verify_reads(mut self, verify: bool) -> Self {
        self.verifies_reads = verify;
        self
    }

    /// The number of leaves that an open visits, by default 8, which takes up to a millisecond after a kill. The others are visited when they are
    /// needed, when changes need space, or when the length of a table is asked for.
    #[must_use]
    pub const fn sweep_at_open(mut self, leaves: u64) -> Self {
        self.leaves_swept_at_open = Some(leaves);
        self
    }

    pub(crate) fn leaves_swept_at_open(&self) -> u64 {
        self.leaves_swept_at_open.unwrap_or(8)
    }

    /// The number of changes after which the store notes that all earlier ones are durable, by default 4,096. An open after a crash verifies the
    /// values of later changes; a smaller number makes it faster, and the changes slower.
    #[must_use]
    pub const fn changes_per_epoch(mut self, changes: u32) -> Self {
        self.changes_per_epoch = Some(changes);
        self
    }

    pub(crate) fn epoch_changes(&self) -> u32 {
        self.changes_per_epoch.unwrap_or(4096).max(1)
    }

    /// Lets up to so many changes wait to be committed together: those of [`Table::insert_grouped`](crate::Table::insert_grouped) and
    /// [`remove_grouped`](crate::Table::remove_grouped). By default none. Other changes of a store with groups are made one after the other, over all
    /// threads.
    #[must_use]
    pub const fn group_commits(mut self, changes: u32) -> Self {
        self.group_changes = changes;
        self
    }

    pub(crate) const fn group_changes(&self) -> usize {
        self.group_changes as usize
    }

    /// The most keys that [`Table::remove_range`](crate::Table::remove_range) removes in one batch, and so atomically: by default 4,096. Each needs some
    /// 100 bytes of memory besides the key.
    #[must_use]
    pub const fn removal_batch(mut self, keys: u32) -> Self {
        self.removal_batch = keys;
        self
    }

    /// Lets the store grow by itself, up to a pool of `bytes` bytes and not beyond, while tables are in use: a change that finds no room grows the file and
    /// the heap in it, and goes on. By default a store is full then. Used when a store is created or opened; it is not stored. See
    /// [`HeapOptions::max_bytes`] for what each growth adds and costs, and where a store cannot grow; [`Store::growth_error`](crate::Store::growth_error)
    /// has the reason if one failed.
    ///
    /// The length of extents is chosen for the pool as it is created: give a store that is to grow by much longer [extents](Self::extent_bytes).
    #[must_use]
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = Some(bytes);
        self.heap = self.heap.max_bytes(bytes);
        self
    }

    /// The number of leaves of a table that removals leave empty until the store unlinks them, by default 32; a close and the last removal of a table
    /// unlink fewer, too. The store then holds off changes for as long as two
    /// fences and some microseconds by leaf take, and releases the leaves' space.
    #[must_use]
    pub const fn empty_leaves(mut self, leaves: u32) -> Self {
        self.empty_leaves = leaves;
        self
    }

    pub(crate) fn empty_leaves_max(&self) -> usize {
        self.empty_leaves.max(1) as usize
    }

    pub(crate) fn removal_batch_keys(&self) -> usize {
        self.removal_batch.max(1) as usize
    }

    pub(crate) const fn verifies_reads(&self) -> bool {
        self.verifies_reads
    }

    /// The options of the heap of a new store. Chunks hold 16 extents where the pool is large enough, because an extent that does not fit into the
    /// rest of a chunk wastes that rest.
    pub(crate) fn of_new_heap(&self, pool_bytes: u64) -> HeapOptions {
        let extent = self.extent_length(pool_bytes);
        match pool_bytes / (extent * 16) {
            8.. => self.heap.clone().chunk_bytes(extent * 16),
            _ => self.heap.clone(),
        }
    }

    /// The options of an existing heap.
    pub(crate) const fn of_heap(&self) -> &HeapOptions {
        &self.heap
    }

    /// The length of an extent with what the heap adds to it, a power of two.
    pub(crate) fn extent_length(&self, pool_bytes: u64) -> u64 {
        let automatic = || 1 << (pool_bytes / 256).max(1).ilog2();
        self.extent_bytes.unwrap_or_else(automatic).clamp(4096, 1 << 20)
    }

    pub(crate) fn slots(&self) -> u32 {
        self.node_slots.unwrap_or(62)
    }

    /// Why no store can have these options.
    pub(crate) fn refusal(&self, pool_bytes: u64) -> Option<&'static str> {
        let slots = self.slots();
        if !slots.is_multiple_of(2) || !(4..=62).contains(&slots) {
            return Some("a node has an even number of entries, 4 to 62");
        }
        let is_length = |bytes: u64| bytes.is_power_of_two() && (4096..=1 << 20).contains(&bytes);
        self.extent_bytes
            .is_some_and(|bytes| !is_length(bytes))
            .then_some("the length of an extent is a power of two, 4 KiB to 1 MiB")
            .or_else(|| {
                let most_bytes = self.max_bytes.unwrap_or(0).max(pool_bytes);
                Space::refusal(most_bytes, self.extent_length(pool_bytes) - 128)
            })
    }
}
