//! Making, opening and growing a heap.

use super::{HeapOptions, header};
use crate::error::HeapError;
use crate::format::Stamp;
use crate::layout::{Layout, plan};
use crate::log::{Log, Recovery};
use crate::sealed::{self, Sealed};
use crate::space::{Space, SpaceOptions};
use pm_core::{Pmem, Pool, Region, Uuid};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A heap in a pool: blocks that are allocated, freed and changed by transactions, and survive crashes.
///
/// May be used by several threads at once, and opened for writing once at a time. It need not be closed: what returned
/// is durable, whether this is dropped or the process killed. See the crate's documentation for an example.
#[derive(Debug)]
pub struct Heap<P: Pmem = Region> {
    pool: Pool<P>,
    layout: Layout,
    pub(crate) log: Log,
    pub(crate) space: Space,
    opened: Opened,
    /// From which length on a write goes in place.
    pub(crate) in_place_from_bytes: usize,
    /// Held by a transaction from its first change of the root directory to its end.
    roots: Mutex<()>,
}

/// What opening a heap found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Opened {
    /// What recovery did.
    pub recovery: Recovery,
    /// Whether the root that names the heap was lost to damage in the pool's root directory, and set again.
    pub root_restored: bool,
    /// Whether the heap's header or its copy was damaged, and restored from the other.
    pub header_restored: bool,
    /// Whether the number of chunks or its copy was damaged, and restored from the other.
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
        let pool = Pool::create_with(path, pool_bytes, &options.region, &options.pool, |pool| {
            prepare(pool, options)
        })?;
        Self::from_pool(pool, options)
    }

    /// Opens the heap in the file or device-dax at `path`, and recovers it: what was in the middle of committing is there
    /// whole, or not at all.
    ///
    /// Takes as long as reading all logs takes, and one word for each chunk. Blocks are looked at when they are needed.
    ///
    /// # Errors
    /// When there is no pool, no heap in it, or what is needed to open it is damaged together with its copy; when
    /// another opener has it, or it was made by a newer version.
    ///
    /// # Durability
    /// A crash while it is opened leaves a heap that is recovered at the next opening.
    pub fn open(path: impl AsRef<Path>, options: &HeapOptions) -> Result<Self, HeapError> {
        Self::from_pool(Pool::open(path, &options.region)?, options)
    }

    /// Grows the file and the heap in it.
    ///
    /// # Errors
    /// As [`Pool::grow`]. The heap is as it was then, or, after a failed fence, may not be.
    ///
    /// # Durability
    /// A crash leaves the old size or the new one; when it returns, the new one.
    pub fn grow(&mut self, pool_bytes: u64) -> Result<(), HeapError> {
        self.pool.grow(pool_bytes)?;
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
        let pool = Pool::format_with(pmem, &options.pool, |pool| prepare(pool, options))?;
        Self::from_pool(pool, options)
    }

    /// Opens the heap in a region, and recovers it.
    ///
    /// # Errors
    /// As [`Pool::attach`] and [`open`](Heap::open).
    ///
    /// # Durability
    /// As [`open`](Heap::open).
    pub fn attach(pmem: P, options: &HeapOptions) -> Result<Self, HeapError> {
        Self::from_pool(Pool::attach(pmem)?, options)
    }

    fn from_pool(pool: Pool<P>, options: &HeapOptions) -> Result<Self, HeapError> {
        let found = header::find(&pool)?;
        header::restore(&pool, &found)?;
        let header_restored = found.damaged.contains(&true);
        let layout = Layout::of(&found.header);
        let (log, recovery) = Log::recover(pool.pmem(), &layout)?;
        let (count, word) = read_chunk_count(pool.pmem(), &layout)?;
        let chunk_count_restored = word.damaged() > 0;
        if chunk_count_restored {
            sealed::write(pool.pmem(), layout.seed, layout.chunk_count_offsets(), count);
            pool.pmem().fence()?;
        }
        let chunks = count.bits().min(layout.chunks_before(pool.data().end));
        let in_place_from_bytes = options.in_place_from_bytes;
        let options = SpaceOptions { wait: options.reuse_after, arena_count: None };
        let space = Space::open(layout, chunks, options);
        let root_restored = found.root_is_lost;
        let opened = Opened { recovery, root_restored, header_restored, chunk_count_restored };
        let mut heap = Self { pool, layout, log, space, opened, in_place_from_bytes, roots: Mutex::new(()) };
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
        Space::format_chunks(pmem, &layout, old..new);
        pmem.fence()?;
        sealed::write(pmem, layout.seed, layout.chunk_count_offsets(), Stamp::new(new));
        // DURABILITY POINT
        pmem.fence()?;
        self.space.extend(new);
        Ok(())
    }

    /// The pool below.
    #[must_use]
    pub const fn pool(&self) -> &Pool<P> {
        &self.pool
    }

    /// Where the parts of the heap lie.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// What opening it found.
    #[must_use]
    pub const fn opened(&self) -> &Opened {
        &self.opened
    }

    pub(crate) fn lock_roots(&self) -> MutexGuard<'_, ()> {
        self.roots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) const fn pmem(&self) -> &P {
        self.pool.pmem()
    }

    /// For what changes how the space is seen, by somebody who has the heap alone.
    pub(super) const fn parts(&mut self) -> (&P, &mut Space) {
        (self.pool.pmem(), &mut self.space)
    }
}

/// How many chunks there are, and in which state the word is that says it.
pub(super) fn read_chunk_count<P: Pmem>(pmem: &P, layout: &Layout) -> Result<(Stamp, Sealed), HeapError> {
    let offsets = layout.chunk_count_offsets();
    let word = Sealed::read(pmem, layout.seed, offsets);
    word.first().map(|count| (count, word)).ok_or(HeapError::ChunkCountDamaged { offset: offsets[0] })
}

/// Fills a new pool with an empty heap.
fn prepare<P: Pmem>(pool: &Pool<P>, options: &HeapOptions) -> Result<(), HeapError> {
    let data = pool.data();
    let seed = options.seed.unwrap_or_else(random_seed);
    let layout = plan(data.start, data.end, seed, options.wishes)
        .map_err(|reason| HeapError::Layout { data_bytes: data.end - data.start, reason })?;
    let pmem = pool.pmem();
    let chunks = layout.chunks_before(data.end);
    Log::format(pmem, &layout);
    Space::format_chunks(pmem, &layout, 0..chunks);
    sealed::write(pmem, layout.seed, layout.chunk_count_offsets(), Stamp::new(chunks));
    let header = header::new(&layout, pool.uuid());
    header::store_copy(pmem, &header);
    // The fence for the root is for all of the above, too.
    header::set_root(pool, &header)
}

fn random_seed() -> u64 {
    let bytes = Uuid::random().bytes();
    let (halves, _) = bytes.as_chunks::<8>();
    halves.iter().fold(0, |seed, half| seed ^ u64::from_le_bytes(*half))
}
