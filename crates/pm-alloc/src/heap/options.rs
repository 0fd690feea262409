//! Options for creating and opening a heap.

use crate::layout::Parameters;
use crate::log::OnCorruption;
use core::time::Duration;
use pm_core::{PoolOptions, RegionOptions};

/// The lengths of files are multiples of this.
const FILE_UNIT_BYTES: u64 = 4096;

/// Options for creating and opening a heap. The layout is chosen when a heap is created, and stored in its header.
#[derive(Clone, Debug)]
pub struct HeapOptions {
    pub(super) region: RegionOptions,
    pub(super) pool: PoolOptions,
    pub(super) parameters: Parameters,
    pub(super) chunk_count: Option<u64>,
    pub(super) seed: Option<u64>,
    pub(super) quarantine: Duration,
    pub(super) in_place_from_bytes: usize,
    pub(super) on_corruption: OnCorruption,
    /// 0: the heap does not grow while it is in use.
    pub(super) max_bytes: u64,
}

impl Default for HeapOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl HeapOptions {
    /// The defaults: a layout that depends on the pool's size, and a quarantine time of zero.
    #[must_use]
    pub fn new() -> Self {
        Self {
            region: RegionOptions::new(),
            pool: PoolOptions::new(),
            parameters: Parameters::default(),
            chunk_count: None,
            seed: None,
            quarantine: Duration::ZERO,
            in_place_from_bytes: 2048,
            on_corruption: OnCorruption::Refuse,
            max_bytes: 0,
        }
    }

    /// Opens the heap as [scratch](RegionOptions::scratch), in pages of this process: the file is opened for reading only, and recovery and transactions
    /// leave it unchanged. Keeps the page cache as it is. The heap [does not grow](Self::max_bytes).
    #[must_use]
    pub fn scratch(mut self) -> Self {
        self.region = self.region.scratch().keep_pages(true);
        self.max_bytes = 0;
        self
    }

    /// Options for mapping the region.
    #[must_use]
    pub const fn region(mut self, region: RegionOptions) -> Self {
        self.region = if self.max_bytes == 0 { region } else { region.reserve(self.max_bytes) };
        self
    }

    /// Options for creating the pool.
    #[must_use]
    pub fn pool(mut self, pool: PoolOptions) -> Self {
        self.pool = pool;
        self
    }

    /// The number of lanes, and thus of transactions that can commit at the same time: 1 to 1,024. By default 2 to 64, depending on the pool's size.
    /// Used when a heap is created.
    ///
    /// A transaction that has written a long value in place owns a lane until it ends. With as many lanes as threads, no transaction waits for
    /// a lane. With fewer, two threads can deadlock: one owns the last lane and waits for a lock of the program, and the other holds that lock
    /// and waits for a lane.
    #[must_use]
    pub const fn lanes(mut self, lanes: u32) -> Self {
        self.parameters.lane_count = Some(lanes);
        self
    }

    /// The number of log entries in each lane: 4 to 1,048,576. Each holds 48 bytes, and a transaction uses at most half of them.
    /// By default 30 to 1,022, depending on the pool's size. Used when a heap is created.
    #[must_use]
    pub const fn lane_entries(mut self, entries: u32) -> Self {
        self.parameters.lane_entries = Some(entries);
        self
    }

    /// The length of a chunk, the unit in which space is assigned to threads and scanned: a power of two from 4 KiB to 16 GiB. Used when
    /// a heap is created.
    #[must_use]
    pub const fn chunk_bytes(mut self, chunk_bytes: u64) -> Self {
        self.parameters.chunk_bytes = Some(chunk_bytes);
        self
    }

    /// The number of chunks, if the heap is to end before its pool: the program uses the [space behind it](crate::Heap::space_behind) as it likes. Such a heap
    /// keeps its length for good. Used when a heap is created.
    #[must_use]
    pub const fn chunk_count(mut self, count: u64) -> Self {
        self.chunk_count = Some(count);
        self
    }

    /// Lets the heap grow by itself, up to a pool of `bytes` bytes and not beyond: an allocation that finds no room grows the file, the pool and the heap,
    /// while other threads use them, and goes on. By default a heap is full then. Used when a heap is created or opened; it is not stored. In the file
    /// lengths are multiples of 4,096 bytes.
    ///
    /// Each growth doubles the pool, or adds 256 MiB if that is less, or less again if the file system has less. If it has not enough for the allocation,
    /// the heap is full, and [`Heap::growth_error`](crate::Heap::growth_error) has the reason. Open reserves addresses for `bytes`, and 8 bytes of DRAM
    /// for each chunk that fits. The length of chunks is chosen for the pool as it is created.
    ///
    /// A heap does not grow by itself if it was created with a [number of chunks](Self::chunk_count), on a device-dax and on huge pages (hugetlbfs), over a
    /// wrapper of the region that cannot grow ([`Pmem::grow_in_place`](pm_core::Pmem::grow_in_place)), and as an
    /// [`UnloggedHeap`](crate::UnloggedHeap).
    ///
    /// # Durability
    /// A growth is durable before anything is allocated in it. A crash in it leaves the old length of the heap or the new one; where the file is longer,
    /// the next open with this option takes the rest into the heap. It costs eight fences, besides the system calls.
    #[must_use]
    pub const fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = bytes / FILE_UNIT_BYTES * FILE_UNIT_BYTES;
        self.region = self.region.reserve(self.max_bytes);
        self
    }

    /// A fixed seed for all checksums, instead of a random one: for tests that compare bytes. Used when a heap is created.
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// The minimum time for which a freed block stays quarantined before it can be allocated again. Zero by default; NVMalloc uses 100 ms.
    ///
    /// In each such period the heap itself writes at most four times to the line with the block's header: when the block before it is carved, when
    /// free blocks are joined or the last long one is trimmed, when the block is allocated, and when it is freed. It does not write to the block's
    /// other lines. The line also holds the end of the block before it, which the program writes. The times are kept in DRAM, so blocks that were
    /// freed before an open can be allocated at once after it.
    ///
    /// # Source
    /// NVMalloc 3.1, the don't-allocate list.
    #[must_use]
    pub const fn quarantine(mut self, quarantine: Duration) -> Self {
        self.quarantine = quarantine;
        self
    }

    /// The minimum length in bytes of writes to old blocks that are made in place, with undo logging. Shorter writes are kept in DRAM until the
    /// transaction commits. By default 2,048: for longer writes two more fences cost less than redo entries and another copy (`cargo xtask bench
    /// alloc -- --only crossover` measures it).
    #[must_use]
    pub const fn in_place_from_bytes(mut self, bytes: usize) -> Self {
        self.in_place_from_bytes = bytes;
        self
    }

    /// If true, a heap is opened even if corrupted log entries may be live, and is recovered as if these entries had never been written. If false,
    /// which is the default, such a heap is neither opened ([`RecoverError::Corrupted`](crate::RecoverError::Corrupted)) nor changed.
    ///
    /// A heap that was closed needs no log entry. After a kill or a crash only each lane's last two transactions may be needed. So only these can be
    /// lost, as a whole or in part, and only if one of their entries is corrupted. If entries of several transactions of one lane are corrupted,
    /// words may revert to older values. [`Recovery`](crate::Recovery) lists the lanes whose entries were discarded.
    #[must_use]
    pub const fn discard_corrupted_records(mut self, discard: bool) -> Self {
        self.on_corruption = if discard { OnCorruption::Discard } else { OnCorruption::Refuse };
        self
    }
}
