//! Options for creating and opening objects.

use super::latencies::Latencies;
use super::slabs::{Shape, class_of};
use crate::error::OpenError;
use crate::format::{FILE_HEADER_BYTES, PLACE_BYTES, SLOT_BYTES, WORD_SLOTS};
use core::time::Duration;
use pm_alloc::HeapOptions;
use pm_btree::StoreOptions;
use pm_core::RegionOptions;

/// The length of a slab that has room for 48 of the longest slots, their owners, and the word that describes them.
const SLAB_BYTES: u64 = 194 << 10;

/// Options for creating and opening objects.
#[derive(Clone, Debug)]
pub struct ObjectsOptions {
    pub(crate) heap: HeapOptions,
    pub(crate) store: Option<StoreOptions>,
    pub(crate) chunk_bytes: u32,
    pub(crate) slab_bytes: Option<u64>,
    pub(crate) seed: Option<u64>,
    pub(crate) file_bytes: Option<u64>,
    pub(crate) without_file: bool,
    pub(crate) dram_bytes: u64,
    pub(crate) latencies: Latencies,
}

impl Default for ObjectsOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl ObjectsOptions {
    /// The defaults: chunks of 4 KiB, and slabs of 194 KiB or a 64th of the pool.
    #[must_use]
    pub fn new() -> Self {
        // A transaction fills half of a lane at most: the longest ones publish 32 chunks of a new object, or the longest name twice.
        let heap = HeapOptions::new().lane_entries(510);
        Self {
            heap,
            store: None,
            chunk_bytes: 4096,
            slab_bytes: None,
            seed: None,
            file_bytes: None,
            without_file: false,
            dram_bytes: 0,
            latencies: Latencies::new(
                Duration::from_nanos(80),
                Duration::from_nanos(170),
                Duration::from_micros(20),
                Duration::from_micros(50),
            ),
        }
    }

    /// Options of the heap that holds the objects, and through them of the pool and the region. Its transactions are logged for redo, whatever their
    /// length.
    #[must_use]
    pub fn heap(mut self, heap: HeapOptions) -> Self {
        self.heap = heap;
        self
    }

    /// Options of the region: [`populate`](RegionOptions::populate) makes the first access to each page as fast as later ones.
    #[must_use]
    pub fn region(mut self, region: RegionOptions) -> Self {
        self.heap = self.heap.region(region);
        self
    }

    /// Options of the store that has the names, but for those of its heap.
    #[must_use]
    pub fn names(mut self, store: StoreOptions) -> Self {
        self.store = Some(store);
        self
    }

    /// The greatest length of a chunk, in which an object is stored and replaced: one of the lengths of slots. By default 4,096. Used when objects are
    /// created. Short chunks are for tests, where short objects have many of them.
    #[must_use]
    pub const fn chunk_bytes(mut self, bytes: u32) -> Self {
        self.chunk_bytes = bytes;
        self
    }

    /// The length of a slab, in which chunks of about the same length are stored. Used when objects are created.
    #[must_use]
    pub const fn slab_bytes(mut self, bytes: u64) -> Self {
        self.slab_bytes = Some(bytes);
        self
    }

    /// Gives a new pool a file of this length beside it, the lower tier, to which chunks move when the pool is full. Its name is that of the pool with `.file`
    /// at its end. It is sparse. Used when objects are created.
    #[must_use]
    pub const fn file_bytes(mut self, bytes: u64) -> Self {
        self.file_bytes = Some(bytes);
        self
    }

    /// Opens a pool whose [file](Self::file_bytes) is missing or cannot be read. Objects with chunks in it are [`ObjectError::Tier`](crate::ObjectError::Tier) then, and no
    /// chunks move.
    #[must_use]
    pub const fn without_file(mut self, is_without: bool) -> Self {
        self.without_file = is_without;
        self
    }

    /// Copies chunks to so many bytes of DRAM that are loaded often, for a pool in memory that is slower. Stores go to the pool, and to the copies. By default,
    /// and with 0, none are made. In whole pages of 64 KiB, or 4 KiB of less than that; what is left over is not used.
    #[must_use]
    pub const fn dram_bytes(mut self, bytes: u64) -> Self {
        self.dram_bytes = bytes;
        self
    }

    /// What a load takes from DRAM, the pool and the file, and what a move of a chunk to the file takes when 64 move at once. By these, chunks are
    /// [copied](Self::dram_bytes) and moved. By default 80 ns, 170 ns, 20 us and 50 us.
    #[must_use]
    pub fn latencies(mut self, dram: Duration, pool: Duration, file: Duration, move_down: Duration) -> Self {
        self.latencies = Latencies::new(dram, pool, file, move_down);
        self
    }

    /// A fixed seed for all checksums, instead of a random one: for tests that compare bytes. Used when objects are created.
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// The options of the store in a pool of this length.
    pub(crate) fn of_store(&self, pool_bytes: u64) -> StoreOptions {
        // Names are short, and all else is for objects.
        let extent_bytes = (1 << (pool_bytes / 256).max(1).ilog2()).clamp(4096, 128 << 10);
        let store = self.store.clone().unwrap_or_else(|| StoreOptions::new().extent_bytes(extent_bytes));
        store.heap(self.heap.clone().in_place_from_bytes(usize::MAX))
    }

    /// The length of the slabs of a new pool.
    pub(crate) fn slab_length(&self, pool_bytes: u64) -> u64 {
        self.slab_bytes.unwrap_or_else(|| (pool_bytes / 64).min(SLAB_BYTES) / PLACE_BYTES * PLACE_BYTES)
    }

    /// Why no pool of this length can have these options.
    pub(crate) fn check(&self, pool_bytes: u64) -> Result<(), OpenError> {
        let chunk = u64::from(self.chunk_bytes);
        if !SLOT_BYTES.contains(&chunk) {
            return Err(OpenError::Layout { reason: "a chunk has the length of a slot, 64 bytes to 4 KiB" });
        }
        let slab = self.slab_length(pool_bytes);
        if self.file_bytes.is_some_and(|bytes| bytes < 2 * FILE_HEADER_BYTES + chunk) {
            return Err(OpenError::Layout { reason: "a file has room for its headers and a chunk" });
        }
        let map_bytes = |bytes: u64| bytes / chunk / WORD_SLOTS * 8;
        if self.file_bytes.is_some_and(|bytes| map_bytes(bytes) > pool_bytes / 8) {
            return Err(OpenError::Layout {
                reason: "the map of the file's slots has at most an eighth of the pool",
            });
        }
        match slab <= 1 << 20 && Shape::of(class_of(chunk), slab).slots > 0 {
            true => Ok(()),
            false => Err(OpenError::Layout { reason: "a slab has room for a chunk, and at most 1 MiB" }),
        }
    }
}
