//! Making, opening and growing a heap.

use super::fenced::Fenced;
use super::pool::HeapPool;
use super::{HeapOptions, chunk_count, header};
use crate::error::HeapError;
use crate::layout::{Layout, plan};
use crate::log::{self, Log, OnCorruption, Recovery, Replayed};
use crate::space::{LoggedHeaders, Space, SpaceOptions};
use pm_core::{Pmem, Pool, PoolError, ProcessId, Region, Uuid};
use std::path::Path;

/// A heap in a pool: blocks that are allocated, freed and changed by transactions, and survive crashes.
///
/// May be used by several threads at once, and opened for writing once at a time. It need not be closed: what returned
/// is durable, whether this is dropped or the process killed. Dropping it [closes](Heap::close) it. See the crate's documentation for an example.
#[derive(Debug)]
pub struct Heap<P: Pmem = Region> {
    pool: Pool<P>,
    layout: Layout,
    pub(crate) log: Log,
    pub(crate) space: Space,
    opened: OpenReport,
    /// From which length on a write goes in place.
    pub(crate) in_place_from_bytes: usize,
    /// The process that opened it. A child of fork(2) does not own it.
    pub(super) process: ProcessId,
}

/// What opening a heap found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct OpenReport {
    /// What recovery did.
    pub recovery: Recovery,
    /// Whether the root that names the heap was lost to corruption in the pool's root directory, and set again.
    pub root_restored: bool,
    /// Whether the heap's header or its copy was corrupted, and restored from the other.
    pub header_restored: bool,
    /// Whether the number of chunks or its copy was corrupted, and restored from the other.
    pub chunk_count_restored: bool,
}

impl Heap<Region> {
    /// Creates a file of `pool_bytes` at `path` with an empty heap in it.
    ///
    /// # Errors
    /// When the path exists, the layout cannot be, or the system says no; nothing is left behind then.
    ///
    /// # Durability
    /// A crash leaves no file, or the whole heap.
    pub fn create(path: impl AsRef<Path>, pool_bytes: u64, options: &HeapOptions) -> Result<Self, HeapError> {
        let pool_options = options.pool.clone().with_logged_roots();
        let pool = Pool::create_with(path, pool_bytes, &options.region, &pool_options, |pool| {
            prepare(pool, options)
        })?;
        Self::from_pool(pool, options, true)
    }

    /// Opens the heap in the file or device-dax at `path`, and recovers it: what was in the middle of committing is there
    /// whole, or not at all.
    ///
    /// Takes as long as reading all logs takes, and one word for each chunk. Blocks are looked at when they are needed; all of them at once
    /// if a process was killed that had the heap as a [`UnloggedHeap`](crate::UnloggedHeap).
    ///
    /// # Errors
    /// When there is no pool, no heap in it, or what is needed to open it is corrupted together with its copy; when
    /// another opener has it, or it was made by a newer version; when the options open the file read-only, as a heap is recovered
    /// by writing: a [`HeapInspection`](crate::HeapInspection) and [`CheckReport`](crate::CheckReport) look at one without.
    ///
    /// # Durability
    /// A crash while it is opened leaves a heap that is recovered at the next opening. Header and number of chunks are durable when this
    /// returns, at two fences; what is learned of chunks later is made durable then. All that transactions committed is durable, too. What a
    /// killed process was [storing in place](crate::View::store_u64) is visible, and may not be durable.
    pub fn open(path: impl AsRef<Path>, options: &HeapOptions) -> Result<Self, HeapError> {
        // A pool without a heap is left as it is.
        let pool = Pool::open_with(path, &options.region, |pool| header::find(pool).map(drop))?;
        if !pool.pmem().is_writable() {
            return Err(HeapError::ReadOnly);
        }
        Self::from_pool(pool, options, false)
    }

    /// Grows the file and the heap in it.
    ///
    /// # Errors
    /// As [`Pool::grow`]. The heap is as it was then, or, after a failed fence, may not be: it takes no transactions any more. When a
    /// fence failed before.
    ///
    /// # Durability
    /// A crash leaves the old size or the new one; when it returns, the new one.
    pub fn grow(&mut self, pool_bytes: u64) -> Result<(), HeapError> {
        self.log.check()?;
        let grown = self.pool.grow(pool_bytes);
        if let Err(PoolError::Fence(error)) = &grown {
            self.log.fail(error.clone().into());
        }
        grown?;
        self.extend()
    }
}

impl<P: Pmem> Heap<P> {
    /// Makes a heap of a whole region that holds no pool.
    ///
    /// # Errors
    /// As [`Pool::format_with`], and when the layout cannot be.
    ///
    /// # Durability
    /// A crash leaves no pool, or the whole heap.
    pub fn format(pmem: P, options: &HeapOptions) -> Result<Self, HeapError> {
        let pool_options = options.pool.clone().with_logged_roots();
        let pool = Pool::format_with(pmem, &pool_options, |pool| prepare(pool, options))?;
        Self::from_pool(pool, options, true)
    }

    /// Opens the heap in a region, and recovers it.
    ///
    /// # Errors
    /// As [`Pool::attach`] and [`open`](Heap::open).
    ///
    /// # Durability
    /// As [`open`](Heap::open).
    pub fn attach(pmem: P, options: &HeapOptions) -> Result<Self, HeapError> {
        Self::from_pool(Pool::attach(pmem)?, options, false)
    }

    /// Whatever recovery or a later operation relies on is made durable first, though it is visible already: the process that stored it
    /// may have been killed before it was.
    fn from_pool(pool: Pool<P>, options: &HeapOptions, is_new: bool) -> Result<Self, HeapError> {
        let found = header::find(&pool)?;
        let header_restored = found.corrupted.contains(&true);
        let layout = Layout::of(&found.header);
        let (log, recovery) = recover(&pool, &layout, options.on_corruption)?;
        if !is_new {
            // Both after the log was replayed: it may hold a root whose slot looks free or corrupted before.
            pool.logged_roots().settle()?;
            header::restore(&pool, &found)?;
        }
        let found_count = chunk_count::read(pool.pmem(), &layout)?;
        if !is_new {
            // Its fence makes a restored header durable, too.
            chunk_count::settle(pool.pmem(), &layout, found_count)?;
        }
        let chunk_count_restored = found_count.corrupted > 0;
        let chunks = found_count.count.min(layout.chunks_before(pool.data().end));
        let in_place_from_bytes = options.in_place_from_bytes;
        let options = SpaceOptions { quarantine: options.quarantine, arena_count: None, is_new };
        let space = Space::open(layout, chunks, options);
        let root_restored = found.root_is_lost;
        let opened = OpenReport { recovery, root_restored, header_restored, chunk_count_restored };
        let mut heap =
            Self { pool, layout, log, space, opened, in_place_from_bytes, process: ProcessId::current() };
        heap.extend()?;
        Ok(heap)
    }

    /// Makes chunks of what the pool has beyond the heap: after growing, or after a crash in the middle of it.
    ///
    /// # Errors
    /// When a fence fails.
    ///
    /// # Durability
    /// A crash leaves the old number of chunks or the new one. Costs two fences when there are new ones.
    pub fn extend(&mut self) -> Result<(), HeapError> {
        let (pmem, layout) = (self.pool.pmem(), self.layout);
        let (old, new) = (self.space.chunk_count(), layout.chunks_before(self.pool.data().end));
        if new <= old {
            return Ok(());
        }
        self.log.check()?;
        Space::format_chunks(pmem, &layout, old..new);
        self.log.fence(pmem)?;
        chunk_count::write(pmem, &layout, new);
        // DURABILITY POINT
        self.log.fence(pmem)?;
        self.space.extend(new);
        Ok(())
    }

    /// The pool below, to look at.
    #[must_use]
    pub const fn pool(&self) -> HeapPool<'_, P> {
        HeapPool::new(self)
    }

    pub(crate) const fn pool_parts(&self) -> &Pool<P> {
        &self.pool
    }

    /// Where the parts of the heap lie.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// What opening it found.
    #[must_use]
    pub const fn open_report(&self) -> &OpenReport {
        &self.opened
    }

    /// The region, for everything that an open heap stores. A failed fence stops the heap.
    pub(crate) const fn pmem(&self) -> Fenced<'_, P> {
        Fenced::new(self.pool.pmem(), &self.log)
    }

    /// For closing the log.
    pub(super) const fn log_parts(&mut self) -> (&P, &mut Log) {
        (self.pool.pmem(), &mut self.log)
    }
}

/// Recovers the log, and what discarding entries of it leaves of the chunks.
fn recover<P: Pmem>(
    pool: &Pool<P>,
    layout: &Layout,
    on_corruption: OnCorruption,
) -> Result<(Log, Recovery), HeapError> {
    let pmem = pool.pmem();
    let replayed = Replayed::replay(pmem, layout, on_corruption)?;
    let chunks = || -> Result<u64, HeapError> {
        Ok(chunk_count::read(pmem, layout)?.count.min(layout.chunks_before(pool.data().end)))
    };
    if replayed.has_volatile_headers() {
        // Before another floor is written. A chain of which only some headers are durable is broken after a power failure, and may not
        // lead to blocks that have long been durable.
        Space::open(*layout, chunks()?, SpaceOptions::default()).scan_some(pmem, usize::MAX)?;
    }
    if replayed.has_discarded() {
        let chunks = chunks()?;
        let mut headers = LoggedHeaders::new(layout, chunks);
        replayed.for_each_pair(|offset, word| headers.note(offset, word));
        // While the log says what was discarded, so that a crash before this is durable does it again.
        headers.restore_chains(pmem)?;
    }
    Ok(replayed.finish(pmem)?)
}

/// Fills a new pool with an empty heap.
fn prepare<P: Pmem>(pool: &Pool<P>, options: &HeapOptions) -> Result<(), HeapError> {
    let data = pool.data();
    let seed = options.seed.unwrap_or_else(random_seed);
    let layout = plan(data.start, data.end, seed, options.wishes)
        .map_err(|reason| HeapError::Layout { data_bytes: data.end - data.start, reason })?;
    let pmem = pool.pmem();
    let chunks = layout.chunks_before(data.end);
    log::format(pmem, &layout);
    Space::format_chunks(pmem, &layout, 0..chunks);
    chunk_count::write(pmem, &layout, chunks);
    let header = header::new(&layout, pool.uuid());
    header::store(pmem, &header);
    // Its fence is for all of the above, too.
    header::set_root(pool, &header)
}

fn random_seed() -> u64 {
    let bytes = Uuid::random().bytes();
    let (halves, _) = bytes.as_chunks::<8>();
    halves.iter().fold(0, |seed, half| seed ^ u64::from_le_bytes(*half))
}
