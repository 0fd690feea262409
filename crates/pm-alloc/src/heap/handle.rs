//! An open heap, and the operations on the whole heap.

use super::error::HeapError;
use super::header::{self, LoadedChunkCount, LoadedHeader};
use super::options::HeapOptions;
use super::pool::HeapPool;
use super::report::OpenReport;
use crate::format::{BlockState, FIXED_LENGTH, ROOT};
use crate::growth::{self, Growth, POOL_UNIT_BYTES, store_chunk_count};
use crate::layout::{Layout, plan};
use crate::log::{self, CommitError, Log, OnCorruption, PoisoningPmem, Recovery, Replayed};
use crate::parts::HeapParts;
use crate::space::{Block, CheckReport, Corruption, LoggedHeaders, Space, SpaceOptions, SpaceStats};
use crate::tx::{self, Durability, Tx, TxError, View};
use core::ops::Range;
use pm_core::{Pmem, Pool, PoolError, ProcessId, Region, RootError, Uuid};
use std::path::Path;

/// A heap in a pool: blocks that are allocated, freed and changed by transactions, and survive crashes.
///
/// Several threads may use it at once, but only one process at a time can open it. It need not be closed: the changes of all completed calls are
/// durable, except [deferred](Durability::Deferred) commits. Dropping it [closes](Heap::close) it. The crate's documentation has an example.
#[derive(Debug)]
pub struct Heap<P: Pmem = Region> {
    pub(crate) parts: HeapParts<P>,
    report: OpenReport,
    /// The process that opened the heap. A child of fork(2) does not own it.
    process: ProcessId,
    /// Whether the heap ends before its pool.
    has_fixed_length: bool,
}

/// Why a heap is not opened: an error of its own, or of the wrapper of its region.
enum Opening<E> {
    Heap(HeapError),
    Wrap(E),
}

impl<E, H: Into<HeapError>> From<H> for Opening<E> {
    fn from(error: H) -> Self {
        Self::Heap(error.into())
    }
}

impl Heap<Region> {
    /// Creates a file of `pool_bytes` at `path` with an empty heap in it.
    ///
    /// # Errors
    /// When the path exists, the layout is impossible, or a system call fails. No new file is left behind.
    ///
    /// # Durability
    /// A crash leaves either no file or the whole heap.
    pub fn create(path: impl AsRef<Path>, pool_bytes: u64, options: &HeapOptions) -> Result<Self, HeapError> {
        let pool_options = options.pool.clone().with_logged_roots();
        let pool = Pool::create_with(path, pool_bytes, &options.region, &pool_options, |pool| {
            format(pool, options)
        })?;
        Self::from_pool(pool, options, true)
    }

    /// Opens the heap in the file or device-dax at `path`, and recovers it: replays committed transactions, and rolls back incomplete ones.
    ///
    /// This takes about as long as reading the whole log. Block headers are read when they are first needed, or all at once if a process that used
    /// the heap as an [`UnloggedHeap`](crate::UnloggedHeap) was killed.
    ///
    /// # Errors
    /// When there is no pool, or no heap in it. When the heap has an unknown version or feature, or another process has it open. When its header, its
    /// number of chunks or the floor of its log is corrupted in both copies, or a corrupted log entry may be live. When the options open the file
    /// read-only, because recovery writes; use a [`HeapInspection`](crate::HeapInspection) instead. When a fence or a system call fails.
    ///
    /// # Durability
    /// If a crash interrupts recovery, the next open recovers the heap. When this returns, the header, the number of chunks and all committed changes
    /// are durable. Costs two fences in addition to those of recovery. Block headers are made durable when they are first read. A word that a killed
    /// process was [storing in place](crate::View::store_u64) may be visible but not durable.
    pub fn open(path: impl AsRef<Path>, options: &HeapOptions) -> Result<Self, HeapError> {
        Self::open_over(path, options, Ok)
    }

    /// Grows the file and the heap in it.
    ///
    /// # Errors
    /// As for [`Pool::grow`]; the heap is unchanged. When a fence fails or has failed; then the size is unknown until the next open, and the heap
    /// accepts no more transactions.
    ///
    /// # Durability
    /// A crash leaves the old size or the new one. When this returns, the new size is durable.
    pub fn grow(&mut self, pool_bytes: u64) -> Result<(), HeapError> {
        self.parts.log.check_not_poisoned()?;
        let grown = self.parts.pool.grow(pool_bytes);
        if let Err(PoolError::Fence(error)) = &grown {
            self.parts.log.poison(error.clone().into());
        }
        grown?;
        self.extend()
    }
}

impl<P: Pmem> Heap<P> {
    /// As [`open`](Heap::open), over a wrapper of the region, such as [`Protected`](pm_core::protection::Protected). `wrap` gets the region before anything is
    /// stored to it, so the wrapper makes every store of the recovery and of the heap.
    ///
    /// # Errors
    /// As for [`open`](Heap::open), and when `wrap` fails: then nothing was stored.
    ///
    /// # Durability
    /// As for [`open`](Heap::open).
    pub fn open_over<E: From<HeapError>>(
        path: impl AsRef<Path>,
        options: &HeapOptions,
        wrap: impl FnOnce(Region) -> Result<P, E>,
    ) -> Result<Self, E> {
        // A pool without a heap is left unchanged.
        let check = |pool: &Pool<&Region>| Ok(LoadedHeader::find(pool).map(drop)?);
        let wrap = |region: Region| match region.is_writable() {
            true => wrap(region).map_err(Opening::Wrap),
            false => Err(Opening::Heap(HeapError::ReadOnly)),
        };
        let pool = Pool::open_over(path, &options.region, check, wrap).map_err(|error| match error {
            Opening::Heap(error) => E::from(error),
            Opening::Wrap(error) => error,
        })?;
        Ok(Self::from_pool(pool, options, false)?)
    }

    /// Creates a pool over a whole region that holds none, and a heap in it.
    ///
    /// # Errors
    /// As for [`Pool::format_with`], and when the layout is impossible.
    ///
    /// # Durability
    /// A crash leaves either no pool or the whole heap.
    pub fn format(pmem: P, options: &HeapOptions) -> Result<Self, HeapError> {
        let pool_options = options.pool.clone().with_logged_roots();
        let pool = Pool::format_with(pmem, &pool_options, |pool| format(pool, options))?;
        Self::from_pool(pool, options, true)
    }

    /// Opens the heap in a region, and recovers it.
    ///
    /// # Errors
    /// As for [`Pool::attach`] and [`open`](Heap::open).
    ///
    /// # Durability
    /// As for [`open`](Heap::open).
    pub fn attach(pmem: P, options: &HeapOptions) -> Result<Self, HeapError> {
        Self::from_pool(Pool::attach(pmem)?, options, false)
    }

    /// Opens the heap in a pool. Data that recovery or a later operation relies on is made durable first, because a killed process may have left it
    /// visible but not durable.
    fn from_pool(mut pool: Pool<P>, options: &HeapOptions, is_new: bool) -> Result<Self, HeapError> {
        let found = LoadedHeader::find(&pool)?;
        let layout = Layout::of(&found.header);
        let (log, recovery) = recover(&pool, &layout, options.on_corruption)?;
        if !is_new {
            // These calls follow the replay, because the replay may store a root in a free or corrupted slot.
            pool.logged_roots().free_replaced_slots()?;
            found.restore(&pool)?;
        }
        let chunks = LoadedChunkCount::load(pool.pmem(), &layout)?;
        if !is_new {
            // This call's fence makes a restored header durable, too.
            chunks.restore(pool.pmem(), &layout)?;
        }
        let has_fixed_length = found.header.features_incompat & FIXED_LENGTH != 0;
        // A growth that was interrupted has left the region longer. Where the heap does not grow, the rest stays as it is: a check is to store nothing there.
        let region_bytes = pool.pmem().len_bytes();
        if !has_fixed_length
            && options.max_bytes > 0
            && region_bytes > pool.pool_bytes()
            && region_bytes.is_multiple_of(POOL_UNIT_BYTES)
        {
            pool.extend()?;
        }
        let chunk_count = chunks.count.min(layout.chunks_before(pool.data().end));
        let in_place_from_bytes = options.in_place_from_bytes;
        let max_bytes = if has_fixed_length { 0 } else { options.max_bytes };
        if let Some(reason) = growth::refusal(&layout, max_bytes) {
            return Err(HeapError::Layout { data_bytes: max_bytes, reason });
        }
        let growth = Growth::new(max_bytes, layout.chunk_offset(chunk_count));
        let chunk_count_max = growth.chunk_count_max(&layout);
        let options =
            SpaceOptions { quarantine: options.quarantine, arena_count: None, chunk_count_max, is_new };
        let space = Space::open(layout, chunk_count, options);
        let report = OpenReport {
            recovery,
            is_root_restored: found.is_root_lost,
            is_header_restored: found.corrupted.contains(&true),
            is_chunk_count_restored: chunks.corrupted > 0,
        };
        let parts = HeapParts { pool, layout, log, space, growth, in_place_from_bytes };
        let mut heap = Self { parts, report, process: ProcessId::current(), has_fixed_length };
        heap.extend()?;
        Ok(heap)
    }

    /// Runs `f` as one transaction. If `f` returns `Ok`, all of its changes are committed atomically and durably. If it returns an error or panics,
    /// all of them are rolled back. If a crash interrupts this, recovery on the next open replays all of them or rolls all of them back.
    ///
    /// Transactions are not isolated: if two of them change the same data, neither waits for the other, and the conflict is not detected. The program
    /// orders such transactions, for example with locks, and recovery keeps that order.
    ///
    /// # Errors
    /// The error that `f` returns, or the reason why the transaction could not commit, for example because it needs more than half of a lane's
    /// entries. The heap is unchanged, unless a fence failed: then recovery on the next open decides whether the transaction is durable.
    /// [`TxError::Nested`] when this thread is already in a transaction on this heap.
    ///
    /// # Durability
    /// When this returns `Ok`, all changes are durable. Costs one fence and, in addition to the changed lines, one log line for each 48 bytes or
    /// three words. Zeroing new blocks or writing more than 96 bytes there costs one more fence. A write of 2 KiB or more to an old block is made in
    /// place, and costs three fences in all, or four if the transaction changes other data, too. A transaction that changes nothing costs nothing.
    ///
    /// # Source
    /// PMFS 3.2 for the log entries; `docs/adr/0007-one-fence-per-transaction.md` explains why one fence is enough.
    pub fn transaction<R>(
        &self,
        f: impl for<'p> FnOnce(&mut Tx<'p, P>) -> Result<R, TxError>,
    ) -> Result<R, TxError> {
        self.transaction_with(Durability::Immediate, f)
    }

    /// As [`transaction`](Self::transaction), of a function that returns errors of the program, too.
    ///
    /// ```
    /// # use pm_alloc::{Heap, HeapOptions, TxError};
    /// # use pm_core::Region;
    /// #[derive(Debug)]
    /// enum Refused {
    ///     Poor,
    ///     Tx(TxError),
    /// }
    ///
    /// impl From<TxError> for Refused {
    ///     fn from(error: TxError) -> Self {
    ///         Self::Tx(error)
    ///     }
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let heap = Heap::format(Region::anonymous(1 << 20)?, &HeapOptions::new())?;
    /// heap.transaction(|tx| {
    ///     let account = tx.alloc(&3_u64)?;
    ///     tx.set_root("account", account)
    /// })?;
    /// let withdrawn = heap.try_transaction(|tx| {
    ///     let account = tx.root::<u64>("account")?.ok_or(Refused::Poor)?;
    ///     let rest = tx.read(account)?.checked_sub(5).ok_or(Refused::Poor)?;
    ///     tx.write(account, &rest)?;
    ///     Ok(rest)
    /// });
    /// assert!(matches!(withdrawn, Err(Refused::Poor)), "nothing was changed");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`transaction`](Self::transaction), and the error that `f` returns.
    ///
    /// # Durability
    /// As for [`transaction`](Self::transaction).
    pub fn try_transaction<R, E: From<TxError>>(
        &self,
        f: impl for<'p> FnOnce(&mut Tx<'p, P>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.transaction_with(Durability::Immediate, f)
    }

    /// Runs a [`try_transaction`](Self::try_transaction) whose commit becomes durable as `durability` specifies.
    ///
    /// # Errors
    /// As for [`transaction`](Self::transaction).
    ///
    /// # Durability
    /// With [`Durability::Deferred`], a transaction that only changes long values in place costs one fence less, and recovery after a crash may roll
    /// it back.
    ///
    /// # Source
    /// PMFS 3.2, the optional barrier after the commit record.
    pub fn transaction_with<R, E: From<TxError>>(
        &self,
        durability: Durability,
        f: impl for<'p> FnOnce(&mut Tx<'p, P>) -> Result<R, E>,
    ) -> Result<R, E> {
        tx::run(&self.parts, durability, f)
    }

    /// Runs `f` with a view of the heap. The brand `'p` confines the view's links to this call.
    ///
    /// The view may read a part of a transaction that another thread commits during the call. The program must prevent that, for example with locks.
    ///
    /// Inside a transaction of this thread on the same heap, the view reads none of the transaction's writes, except long values that were written in
    /// place. The stores of [`store_u64`](View::store_u64) and [`store_u64_pair`](View::store_u64_pair) are not part of the transaction, and remain
    /// if it is rolled back. Both calls fail for words in long values that the transaction has written in place.
    pub fn view<R>(&self, f: impl for<'p> FnOnce(&View<'p, P>) -> R) -> R {
        f(&View::new(&self.parts))
    }

    /// Adds chunks if the pool has room after the last chunk, as it has after the pool has grown, or after a crash during [`grow`](Heap::grow).
    ///
    /// # Errors
    /// When a fence fails.
    ///
    /// # Durability
    /// A crash leaves the old number of chunks or the new one. Costs two fences if chunks are added.
    pub fn extend(&mut self) -> Result<(), HeapError> {
        if self.has_fixed_length {
            return Ok(());
        }
        let HeapParts { pool, layout, space, .. } = &mut self.parts;
        space.make_room(layout.chunks_before(pool.data().end));
        Ok(self.parts.extend()?)
    }

    /// The length up to which the pool can get: the present one, or more if the heap [may grow](HeapOptions::max_bytes).
    pub fn max_bytes(&self) -> u64 {
        self.parts.growth.max_bytes().max(self.parts.pool.pool_bytes())
    }

    /// Why the heap has last failed to [grow by itself](HeapOptions::max_bytes) since the last call of this function.
    pub fn growth_error(&self) -> Option<PoolError> {
        self.parts.growth.take_error()
    }

    /// The region, for a structure that stores into its own blocks without transactions. If one of its fences fails, the heap is poisoned: later
    /// transactions fail, and the heap stores nothing more. The calls of the returned value itself do not fail because the heap is poisoned.
    ///
    /// Bytes that a transaction has written may be stored to only after [`checkpoint`](Self::checkpoint), because until then recovery may replay the
    /// transaction over them. Blocks that were allocated [uninitialized](Tx::alloc_uninit) hold no such bytes.
    ///
    /// # Durability
    /// As for each call of [`Pmem`]. A fence also makes the flushed lines of this thread's transactions durable.
    #[must_use]
    pub const fn pmem(&self) -> PoisoningPmem<'_, P> {
        self.parts.pmem()
    }

    /// The offsets behind the heap, up to the end of the pool's data area. Less than a chunk, unless the heap was created with a
    /// [number of chunks](HeapOptions::chunk_count): then no log entry and no block ever lies there, and the program stores there through
    /// [`pmem`](Self::pmem).
    #[must_use]
    pub fn space_behind(&self) -> Range<u64> {
        self.parts.growth.chunks_end()..self.parts.pool.data().end
    }

    /// The underlying pool.
    #[must_use]
    pub const fn pool(&self) -> HeapPool<'_, P> {
        HeapPool::new(&self.parts.pool)
    }

    /// The layout of the heap.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.parts.layout
    }

    /// The report of opening the heap: the corruption that was found, and the parts that were restored.
    #[must_use]
    pub const fn open_report(&self) -> &OpenReport {
        &self.report
    }

    /// Checks the header of every block. Changes nothing.
    ///
    /// Call this while no transaction commits, because a commit in progress may be reported as corruption.
    pub fn check(&self) -> CheckReport {
        self.parts.space.check(&self.parts.pmem())
    }

    /// [Checks](Self::check) the headers, and calls `each` with every block, in ascending order of offsets. Unreachable lines after a broken chain
    /// are passed as blocks in state [`Unreachable`](BlockState::Unreachable), one for each piece between the allocated blocks there. The report
    /// lists the corrupted headers.
    pub fn check_with(&self, each: impl FnMut(Block)) -> CheckReport {
        CheckReport::of(&self.parts.pmem(), self.layout(), self.parts.space.chunk_count(), each)
    }

    /// The sorted offsets of all allocated blocks, which are the offsets of the links that [`Tx::alloc`] returned. A program finds leaked blocks by
    /// comparing them with the blocks that it can reach.
    ///
    /// If a header was corrupted before the heap was opened, freed blocks after it may be listed again after the next open. Freeing stores no headers
    /// there, because they could not be distinguished from old headers inside a block.
    ///
    /// Call this while no transaction commits.
    pub fn blocks(&self) -> Vec<u64> {
        let mut blocks = Vec::new();
        self.check_with(|block| {
            if block.state == BlockState::Allocated {
                blocks.push(block.payload);
            }
        });
        blocks
    }

    /// Scans up to `chunks` chunks that have not been scanned since the heap was opened, so that later allocations need not scan them. Returns the
    /// number of unscanned chunks that remain. Meant for a background thread of the program after an open.
    ///
    /// # Errors
    /// When a fence fails or has failed. After that the heap stores nothing more.
    ///
    /// # Durability
    /// Changes nothing. Headers that a killed process left visible but not durable are made durable, with one fence for each chunk.
    pub fn scan_ahead(&self, chunks: usize) -> Result<usize, CommitError> {
        self.parts.log.check_not_poisoned()?;
        Ok(self.parts.space.scan_some(&self.parts.pmem(), chunks)?)
    }

    /// Checks that the heap still accepts transactions, as each of them does first.
    ///
    /// # Errors
    /// When a fence has failed, or a transaction was abandoned: after that the heap stores nothing more.
    pub fn check_not_poisoned(&self) -> Result<(), CommitError> {
        self.parts.log.check_not_poisoned()
    }

    /// Statistics of the chunks that have been scanned since the heap was opened.
    pub fn stats(&self) -> SpaceStats {
        self.parts.space.stats()
    }

    /// The number of blocks of `bytes` bytes that the heap could allocate now, if it allocated nothing else and did not grow. The free space may have
    /// more bytes than they, in extents that are shorter. Scans chunks that were not scanned since the heap was opened, whose maps take 0.6 % of their
    /// length in DRAM; besides this takes microseconds for each chunk that has room.
    ///
    /// # Errors
    /// When a fence fails or has failed. After that the heap stores nothing more.
    ///
    /// # Durability
    /// Changes nothing. Like an allocation that finds no room, retires idle lanes at two fences if freed blocks wait for that.
    pub fn room_for(&self, bytes: u64) -> Result<u64, CommitError> {
        self.scan_ahead(usize::MAX)?;
        let HeapParts { log, space, .. } = &self.parts;
        let pmem = &self.parts.pmem();
        if space.stats().quarantined_blocks > 0 {
            log.raise_checkpoint(pmem, log.latest())?;
        }
        match Layout::lines_for(bytes) {
            Some(lines) => Ok(space.room_for(pmem, lines, log.checkpoint_lsn())?),
            None => Ok(0),
        }
    }

    /// Returns the corrupted headers that were found since the previous call.
    pub fn take_corruption(&self) -> Vec<Corruption> {
        self.parts.space.take_corruption()
    }

    /// Stores a header over a corrupted one, which repairs the chain of the chunk. The extent of the corruption is never allocated again;
    /// allocated blocks inside it stay allocated. Returns false, and changes nothing, if this corruption is no longer there.
    ///
    /// If the heap was open when the header was corrupted, the extent is the block of that header. Otherwise the length of the block is unknown, and
    /// the extent may hold several blocks: the caller ensures that their contents are not needed or have been saved.
    ///
    /// # Errors
    /// When a fence fails or has failed.
    ///
    /// # Durability
    /// A crash leaves either the corruption or the new header. Costs one fence, and two to retire the lanes. The header is stored without the log,
    /// after the lanes are retired: a live log entry could be replayed over the header, and a logged header could be replayed over the contents of a
    /// later block.
    pub fn repair(&mut self, corruption: &Corruption) -> Result<bool, TxError> {
        let HeapParts { log, space, .. } = &self.parts;
        log.check_not_poisoned()?;
        let pmem = &self.parts.pmem();
        let Some((offset, word)) = space.repair(pmem, corruption)? else { return Ok(false) };
        log.raise_checkpoint(pmem, log.latest())?;
        log::store_u64(log, pmem, offset, word)?;
        Ok(true)
    }

    /// Frees the corrupted slots of the root directory, and so removes the roots that they held, as [`Pool::discard_corrupted_roots`] does. Returns
    /// the number of these slots. The blocks that these roots named stay allocated. The root that names the heap itself is set again.
    ///
    /// # Errors
    /// When a fence fails or has failed.
    ///
    /// # Durability
    /// A crash leaves each slot corrupted or free. Costs one fence, two more to retire the lanes, because a live log entry could restore a root, and
    /// one more if the heap's root is set, which happens before any slot is freed.
    pub fn discard_corrupted_roots(&mut self) -> Result<usize, TxError> {
        let HeapParts { pool, layout, log, .. } = &self.parts;
        log.check_not_poisoned()?;
        let count = pool.corrupted_root_count();
        if count == 0 {
            return Ok(0);
        }
        log.raise_checkpoint(&self.parts.pmem(), log.latest())?;
        let roots = pool.logged_roots();
        let set = match pool.find_root(ROOT) {
            Ok(Some(_)) => Ok(()),
            // Without this root the next open would not find the heap: it tries the start of the data area only if a slot is corrupted.
            Ok(None) | Err(_) => roots.restore_missing(ROOT, header::root_target(layout.heap_start)),
        };
        set.and_then(|()| roots.discard_corrupted()).map_err(|error| match error {
            RootError::Fence(error) => log.poison(error.into()).into(),
            error => TxError::from(error),
        })?;
        Ok(count)
    }

    /// Makes all committed changes durable in place. After that recovery does not replay them, and the program may bypass the log and store to bytes
    /// that transactions wrote, until a transaction writes there again. Waits for commits in progress. Call this while no transaction that has
    /// written a long value in place is in progress.
    ///
    /// # Errors
    /// When a fence fails or has failed, or an entry of a lane in use is corrupted.
    ///
    /// # Durability
    /// Two fences; none if nothing was committed since the last checkpoint.
    pub fn checkpoint(&self) -> Result<(), CommitError> {
        self.parts.log.raise_checkpoint(&self.parts.pmem(), self.parts.log.latest())
    }

    /// Closes the heap. After that no log entry is needed, and corruption of the log does no harm. Dropping the heap does the same without reporting
    /// errors.
    ///
    /// Not needed for durability, except that of [deferred](Durability::Deferred) commits: all other changes are durable when their calls return.
    ///
    /// # Errors
    /// When a fence fails or has failed, or a transaction was abandoned. Recovery on the next open handles both. [`PoolError::InUse`] in a child of
    /// fork(2) that inherited the heap: nothing is stored.
    ///
    /// # Durability
    /// Two fences. If a crash interrupts this, the heap is closed, or the next open recovers it.
    pub fn close(mut self) -> Result<(), HeapError> {
        self.close_log()
    }

    /// Whether this process opened the heap. A child of fork(2) does not own it.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process.is_current()
    }

    /// Closes the log, but not in a child of fork(2): the heap belongs to the parent, which may be committing, and the child may lack the mapping.
    fn close_log(&mut self) -> Result<(), HeapError> {
        if !self.is_of_this_process() {
            return Err(PoolError::InUse.into());
        }
        Ok(self.parts.log.close(self.parts.pool.pmem())?)
    }
}

impl<P: Pmem> Drop for Heap<P> {
    /// [Closes](Heap::close) the heap. A child of fork(2) that drops an inherited heap changes nothing.
    fn drop(&mut self) {
        // After an error the log is in the state that a killed process leaves, and the next open replays it. `close` reports such errors.
        drop(self.close_log());
    }
}

/// Recovers the log, and restores the chains of headers if corrupted entries were discarded.
fn recover<P: Pmem>(
    pool: &Pool<P>,
    layout: &Layout,
    on_corruption: OnCorruption,
) -> Result<(Log, Recovery), HeapError> {
    let pmem = pool.pmem();
    let replayed = Replayed::replay(pmem, layout, on_corruption)?;
    let chunk_count = || -> Result<u64, HeapError> {
        Ok(LoadedChunkCount::load(pmem, layout)?.count.min(layout.chunks_before(pool.data().end)))
    };
    if replayed.has_volatile_headers() {
        // This precedes the store of the new floor, which no longer records that headers may be volatile. If only some headers of a chain were
        // durable, a power failure would break the chain, and lose blocks that were durable long before.
        Space::open(*layout, chunk_count()?, SpaceOptions::default()).scan_some(pmem, usize::MAX)?;
    }
    if replayed.has_discarded() {
        let mut headers = LoggedHeaders::new(layout, chunk_count()?);
        replayed.pairs().into_iter().for_each(|(offset, word)| headers.note(offset, word));
        // The corrupted entries are still in the log. So if a crash interrupts this, the next recovery restores the chains again.
        headers.restore_chains(pmem)?;
    }
    Ok(replayed.finish(pmem)?)
}

/// Writes an empty heap into a new pool.
fn format<P: Pmem>(pool: &Pool<P>, options: &HeapOptions) -> Result<(), HeapError> {
    let data = pool.data();
    let seed = options.seed.unwrap_or_else(random_seed);
    let layout = plan(data.start, data.end, seed, options.parameters)
        .map_err(|reason| HeapError::Layout { data_bytes: data.end - data.start, reason })?;
    let pmem = pool.pmem();
    let most = layout.chunks_before(data.end);
    let chunks = options.chunk_count.unwrap_or(most);
    if !(1..=most).contains(&chunks) {
        let reason = "the pool has no room for so many chunks, or there are none";
        return Err(HeapError::Layout { data_bytes: data.end - data.start, reason });
    }
    if let Some(reason) = growth::refusal(&layout, options.max_bytes)
        && options.chunk_count.is_none()
    {
        return Err(HeapError::Layout { data_bytes: options.max_bytes, reason });
    }
    let features = if options.chunk_count.is_some() { FIXED_LENGTH } else { 0 };
    log::format(pmem, &layout);
    Space::format_chunks(pmem, &layout, 0..chunks);
    store_chunk_count(pmem, &layout, chunks);
    let header = header::new(&layout, pool.uuid(), features);
    header::store(pmem, &header);
    // This call's fence covers all stores above.
    header::set_root(pool, &header)
}

fn random_seed() -> u64 {
    let (high, low) = Uuid::new_v4().as_u64_pair();
    high ^ low
}
