//! How to make and to open a heap.

use crate::layout::Wishes;
use crate::log::OnCorruption;
use core::time::Duration;
use pm_core::{PoolOptions, RegionOptions};

/// How to make and to open a heap. What concerns the layout is decided when a heap is made, and kept with it.
#[derive(Clone, Debug)]
pub struct HeapOptions {
    pub(super) region: RegionOptions,
    pub(super) pool: PoolOptions,
    pub(super) wishes: Wishes,
    pub(super) seed: Option<u64>,
    pub(super) quarantine: Duration,
    pub(super) in_place_from_bytes: usize,
    pub(super) on_corruption: OnCorruption,
}

impl Default for HeapOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl HeapOptions {
    /// A layout after the pool's size, and freed blocks used again as soon as that is safe.
    #[must_use]
    pub fn new() -> Self {
        Self {
            region: RegionOptions::new(),
            pool: PoolOptions::new(),
            wishes: Wishes::default(),
            seed: None,
            quarantine: Duration::ZERO,
            in_place_from_bytes: 2048,
            on_corruption: OnCorruption::Refuse,
        }
    }

    /// How the region below is mapped.
    #[must_use]
    pub fn region(mut self, region: RegionOptions) -> Self {
        self.region = region;
        self
    }

    /// How the pool below is made.
    #[must_use]
    pub fn pool(mut self, pool: PoolOptions) -> Self {
        self.pool = pool;
        self
    }

    /// How many transactions can commit at the same time, 1 to 1,024; unless said, 2 to 64 after the pool's size. Only
    /// for making.
    ///
    /// A transaction that wrote a long value in place has a lane until it ends, and others may have to wait for one:
    /// with a lane for each thread none ever waits. With fewer, two can wait for each other for ever: the one has the
    /// lane and waits for a lock of the program's, the other has that lock and waits for the lane.
    #[must_use]
    pub const fn lanes(mut self, lanes: u32) -> Self {
        self.wishes.lane_count = Some(lanes);
        self
    }

    /// Log entries in each lane, 4 to 1,048,576; each holds 48 bytes, and a transaction takes half of them at most.
    /// Unless said, 30 to 1,022 after the pool's size. Only for making.
    #[must_use]
    pub const fn lane_entries(mut self, entries: u32) -> Self {
        self.wishes.lane_entries = Some(entries);
        self
    }

    /// The unit in which the heap is handed to threads and scanned, a power of two from 4 KiB to 16 GiB. Only for
    /// making.
    #[must_use]
    pub const fn chunk_bytes(mut self, chunk_bytes: u64) -> Self {
        self.wishes.chunk_bytes = Some(chunk_bytes);
        self
    }

    /// A given seed for all checksums, instead of a random one: for tests that compare bytes. Only for making.
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// For how long a freed block is not used again. Zero by default; 100 ms is what NVMalloc had. Space that waits is not there for
    /// others.
    ///
    /// In that time the heap itself writes to no line of a block, but to the line with its header, up to four times: when the block
    /// in front is cut off, when free blocks become one or the last one is divided, when it is allocated, and when it is freed. The
    /// line holds the end of the block in front, too, which its user writes. The time is kept in DRAM: of a heap that is opened
    /// again, what was freed before can be used at once.
    ///
    /// # Source
    /// NVMalloc 3.1, the don't-allocate list.
    #[must_use]
    pub const fn quarantine(mut self, quarantine: Duration) -> Self {
        self.quarantine = quarantine;
        self
    }

    /// From which length on what is written over something old goes in place, behind undo entries, and is not kept in DRAM until
    /// the transaction commits. 2,048 by default: from there on two fences more cost less than entries and another copy, as
    /// `cargo xtask bench alloc -- --only crossover` measures.
    #[must_use]
    pub const fn in_place_from_bytes(mut self, bytes: usize) -> Self {
        self.in_place_from_bytes = bytes;
        self
    }

    /// Opens a heap though log entries are corrupted that may be needed, as if they had never been written. Unless this is said, such
    /// a heap is not opened ([`RecoverError::Corrupted`](crate::RecoverError::Corrupted)), and not changed.
    ///
    /// A heap that was closed needs none of its entries. After a kill or a crash each lane's last two transactions may be, and of these
    /// alone something can be lost: the transaction of a corrupted entry, or a part of it, and where several transactions of one lane
    /// are corrupted, words of older ones may count again. [`Recovery`](crate::Recovery) tells of which lanes entries were discarded.
    #[must_use]
    pub const fn discard_corrupted_records(mut self, discard: bool) -> Self {
        self.on_corruption = if discard { OnCorruption::Discard } else { OnCorruption::Refuse };
        self
    }
}
