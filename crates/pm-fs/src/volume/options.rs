//! Options for creating and opening a file system.

use pm_alloc::HeapOptions;
use pm_core::RegionOptions;
use std::time::{SystemTime, UNIX_EPOCH};

/// Options for creating and opening a file system.
#[derive(Clone, Debug)]
pub struct FsOptions {
    pub(crate) heap: HeapOptions,
    pub(crate) metadata_share: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) strict: bool,
    pub(crate) read_only: bool,
    pub(crate) clock: fn() -> u64,
}

impl Default for FsOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl FsOptions {
    /// The defaults: an eighth of the pool for metadata, and a root directory of user 0.
    #[must_use]
    pub fn new() -> Self {
        // A transaction may use half of a lane: the longest one publishes 64 pages.
        let heap = HeapOptions::new().lane_entries(254);
        Self { heap, metadata_share: 8, uid: 0, gid: 0, strict: false, read_only: false, clock: now_ns }
    }

    /// Options of the heap for metadata, and through them of the pool and the region. Its transactions are logged for redo, whatever their length.
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

    /// The part of the pool that is for metadata: one of so many, 2 to 256. A file takes 256 bytes, a name 16 bytes and its length, and 2 MiB of a
    /// long file 4 KiB. Used when a file system is created.
    #[must_use]
    pub const fn metadata_share(mut self, one_of: u32) -> Self {
        self.metadata_share = one_of;
        self
    }

    /// The owner of the root directory. Used when a file system is created.
    #[must_use]
    pub const fn owner(mut self, uid: u32, gid: u32) -> Self {
        (self.uid, self.gid) = (uid, gid);
        self
    }

    /// Whether writes are atomic in all files: see [`Handle::set_strict`](crate::Handle::set_strict). Not stored.
    #[must_use]
    pub const fn strict(mut self, is_strict: bool) -> Self {
        self.strict = is_strict;
        self
    }

    /// Whether all calls that change something fail with [`FsError::ReadOnly`](crate::FsError::ReadOnly). [`Fs::open`](crate::Fs::open) then opens the file for
    /// reading only, as [scratch](RegionOptions::scratch): recovery runs in pages of this process, and nothing is stored in the file. Other readers may
    /// have it open meanwhile. What an earlier process was killed after is read, and a power failure may still revert it. Of a device-dax this is
    /// impossible, and an error.
    #[must_use]
    pub const fn read_only(mut self, is_read_only: bool) -> Self {
        self.read_only = is_read_only;
        self
    }

    /// The clock, in nanoseconds since 1970: for tests that compare bytes.
    #[must_use]
    pub const fn clock(mut self, clock: fn() -> u64) -> Self {
        self.clock = clock;
        self
    }
}

/// The system's clock. A time before 1970 counts as 1970.
fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
