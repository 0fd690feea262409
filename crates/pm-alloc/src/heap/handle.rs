//! An open heap, and the operations on it as a whole.

use super::error::HeapError;
use super::header::{self, LoadedChunkCount, LoadedHeader};
use super::options::HeapOptions;
use super::pool::HeapPool;
use super::report::OpenReport;
use crate::format::{BlockState, ROOT};
use crate::layout::{Layout, plan};
use crate::log::{self, CommitError, Log, OnCorruption, Recovery, Replayed};
use crate::parts::HeapParts;
use crate::space::{Block, CheckReport, Corruption, LoggedHeaders, Space, SpaceOptions, SpaceStats};
use crate::tx::{self, Durability, Tx, TxError, View};
use pm_core::{Pmem, Pool, PoolError, ProcessId, Region, RootError, Uuid};
use std::path::Path;

/// A heap in a pool: blocks that are allocated, freed and changed by transactions, and survive crashes.
///
/// Several threads may use it at once, and one process at a time may have it open for writing. It need not be closed: the changes of all
/// calls that have returned are durable, even if the process is killed. Dropping it [closes](Heap::close) it. See the crate's documentation
/// for an example.
#[derive(Debug)]
pub struct Heap<P: Pmem = Region> {
    pub(crate) parts: HeapParts<P>,
    report: OpenReport,
    /// The process that opened it. A child of fork(2) does not own it.
    process: ProcessId,
}

impl Heap<Region> {
    /// Creates a file of `pool_bytes` at `path` with an empty heap in it.
    ///
    /// # Errors
    /// When the path exists, the layout is impossible, or a system call fails; then no file is left behind.
    ///
    /// # Durability
    /// A crash leaves no file, or the whole heap.
    pub fn create(path: impl AsRef<Path>, pool_bytes: u64, options: &HeapOptions) -> Result<Self, HeapError> {
        let pool_options = options.pool.clone().with_logged_roots();
        let pool = Pool::create_with(path, pool_bytes, &options.region, &pool_options, |pool| {
            format(pool, options)
        })?;
        Self::from_pool(pool, options, true)
    }

    /// Opens the heap in the file or device-dax at `path`, and recovers it: committed transactions are replayed, and incomplete ones
    /// rolled back.
    ///
    /// Takes as long as reading all logs, and one word of each chunk. Block headers are read when they are needed; all of them at once
    /// if a process was killed that used the heap as an [`UnloggedHeap`](crate::UnloggedHeap).
    ///
    /// # Errors
    /// When there is no pool, or no heap in it; when something needed to open it and its copy are both corrupted; when
    /// another process has it open, or it was created by a newer version; when the options open the file read-only, as recovery
    /// writes: a [`HeapInspection`](crate::HeapInspection) and a [`CheckReport`] examine a heap without writing.
    ///
    /// # Durability
    /// After a crash during recovery the next open recovers the heap. When this returns, the header, the number of chunks and everything that
    /// transactions committed are durable, at two fences. Block headers are made durable when they are first read. A word that a killed
    /// process was [storing in place](crate::View::store_u64) is visible, and may not be durable.
    pub fn open(path: impl AsRef<Path>, options: &HeapOptions) -> Result<Self, HeapError> {
        // A pool without a heap is left unchanged.
        let pool = Pool::open_with(path, &options.region, |pool| LoadedHeader::find(pool).map(drop))?;
        if !pool.pmem().is_writable() {
            return Err(HeapError::ReadOnly);
        }
        Self::from_pool(pool, options, false)
    }

    /// Grows the file and the heap in it.
    ///
    /// # Errors
    /// As [`Pool::grow`]; the heap is unchanged. When a fence fails, or failed before: the size is unknown until the next open, and the
    /// heap accepts no transactions any more.
    ///
    /// # Durability
    /// A crash leaves the old size or the new one; when it returns, the new one.
    pub fn grow(&mut self, pool_bytes: u64) -> Result<(), HeapError> {
        self.parts.log.check()?;
        let grown = self.parts.pool.grow(pool_bytes);
        if let Err(PoolError::Fence(error)) = &grown {
            self.parts.log.fail(error.clone().into());
        }
        grown?;
        self.extend()
    }
}

impl<P: Pmem> Heap<P> {
    /// Formats a whole region that holds no pool as a heap.
    ///
    /// # Errors
    /// As [`Pool::format_with`], and when the layout is impossible.
    ///
    /// # Durability
    /// A crash leaves no pool, or the whole heap.
    pub fn format(pmem: P, options: &HeapOptions) -> Result<Self, HeapError> {
        let pool_options = options.pool.clone().with_logged_roots();
        let pool = Pool::format_with(pmem, &pool_options, |pool| format(pool, options))?;
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

    /// Opens the heap in a pool. Everything that recovery or a later operation relies on is made durable first: a killed process may have left
    /// it visible and not durable.
    fn from_pool(pool: Pool<P>, options: &HeapOptions, is_new: bool) -> Result<Self, HeapError> {
        let found = LoadedHeader::find(&pool)?;
        let layout = Layout::of(&found.header);
        let (log, recovery) = recover(&pool, &layout, options.on_corruption)?;
        if !is_new {
            // Both after the replay, which may store a root into a slot that is free or corrupted before.
            pool.logged_roots().free_replaced_slots()?;
            found.restore(&pool)?;
        }
        let chunks = LoadedChunkCount::load(pool.pmem(), &layout)?;
        if !is_new {
            // The fence of this makes a restored header durable, too.
            chunks.restore(pool.pmem(), &layout)?;
        }
        let chunk_count = chunks.count.min(layout.chunks_before(pool.data().end));
        let in_place_from_bytes = options.in_place_from_bytes;
        let options = SpaceOptions { quarantine: options.quarantine, arena_count: None, is_new };
        let space = Space::open(layout, chunk_count, options);
        let report = OpenReport {
            recovery,
            root_restored: found.root_is_lost,
            header_restored: found.corrupted.contains(&true),
            chunk_count_restored: chunks.corrupted > 0,
        };
        let parts = HeapParts { pool, layout, log, space, in_place_from_bytes };
        let mut heap = Self { parts, report, process: ProcessId::current() };
        heap.extend()?;
        Ok(heap)
    }

    /// Runs `f` as one transaction. If `f` returns `Ok`, all its changes are committed, atomically and durably. If it returns an error or
    /// panics, all of them are rolled back; if a crash interrupts it, recovery on the next open rolls them back.
    ///
    /// A transaction is not isolated: it neither waits for another one that changes the same data, nor detects it. The program orders such
    /// transactions, by locks for example, and recovery keeps that order.
    ///
    /// # Errors
    /// What `f` returns; or why the transaction could not commit: it needs more than half of a lane, for example. The
    /// heap is unchanged then, unless a fence failed: recovery on the next open decides. [`TxError::Nested`]
    /// when this thread is already in a transaction on this heap.
    ///
    /// # Durability
    /// When it returns `Ok`, everything is durable. Costs one fence, and one line for up to 48 bytes or three words, in addition to the changed
    /// lines; one fence more if more than 96 bytes, or zeroes, were written into a new block; three fences with a change in place of 2 KiB or
    /// more, or four if it changes other data, too. A transaction that changes nothing costs nothing.
    ///
    /// # Source
    /// PMFS 3.2 for the entries of the log; `docs/adr/0007-one-fence-per-transaction.md` for why one fence is enough.
    pub fn transaction<R, E: From<TxError>>(
        &self,
        f: impl for<'p> FnOnce(&mut Tx<'p, P>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.transaction_with(Durability::Immediate, f)
    }

    /// As [`transaction`](Self::transaction), durable as `durability` states.
    ///
    /// # Errors
    /// As [`transaction`](Self::transaction).
    ///
    /// # Durability
    /// With [`Durability::Deferred`], a transaction that only changes long values in place costs one fence less, and may be rolled
    /// back by a crash.
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

    /// Runs `f` with a view of the heap, under a brand that confines its links.
    ///
    /// It may read parts of transactions that other threads commit meanwhile: the program excludes that, by locks for example.
    ///
    /// Within a transaction of this thread on the same heap, the view reads none of the transaction's writes, except long values that were
    /// written in place. The stores of [`store_u64`](View::store_u64) and [`store_u64_pair`](View::store_u64_pair) are no part of the
    /// transaction, and remain when it is rolled back. Both calls fail for words in long values that the transaction has written in place.
    pub fn view<R>(&self, f: impl for<'p> FnOnce(&View<'p, P>) -> R) -> R {
        f(&View::new(&self.parts))
    }

    /// Adds chunks where the pool has room after the last chunk: after the pool has grown, or after a crash during [`grow`](Heap::grow).
    ///
    /// # Errors
    /// When a fence fails.
    ///
    /// # Durability
    /// A crash leaves the old number of chunks or the new one. Costs two fences when there are new ones.
    pub fn extend(&mut self) -> Result<(), HeapError> {
        let HeapParts { pool, layout, log, space, .. } = &mut self.parts;
        let pmem = pool.pmem();
        let (old, new) = (space.chunk_count(), layout.chunks_before(pool.data().end));
        if new <= old {
            return Ok(());
        }
        log.check()?;
        Space::format_chunks(pmem, layout, old..new);
        log.fence(pmem)?;
        header::store_chunk_count(pmem, layout, new);
        // DURABILITY POINT
        log.fence(pmem)?;
        space.extend(new);
        Ok(())
    }

    /// The pool below.
    #[must_use]
    pub const fn pool(&self) -> HeapPool<'_, P> {
        HeapPool::new(&self.parts.pool)
    }

    /// The layout of the heap.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.parts.layout
    }

    /// What opening the heap found and restored.
    #[must_use]
    pub const fn open_report(&self) -> &OpenReport {
        &self.report
    }

    /// Checks the header of every block. Changes nothing.
    ///
    /// To be called while no transaction commits: a commit in progress may be reported as corruption.
    pub fn check(&self) -> CheckReport {
        self.parts.space.check(&self.parts.pmem())
    }

    /// As [`check`](Self::check), and calls `each` with every block, in ascending order of offsets. Unreachable lines after a broken chain are
    /// passed as blocks in that state, in pieces between the allocated blocks there. Blocks of other corrupted headers are not passed, and
    /// are in the report.
    pub fn check_with(&self, each: impl FnMut(Block)) -> CheckReport {
        CheckReport::of(&self.parts.pmem(), self.layout(), self.parts.space.chunk_count(), each)
    }

    /// The offsets of all allocated blocks, sorted: those that [`Tx::alloc`] returned links to. A program that compares them with the blocks that
    /// it can reach finds lost ones.
    ///
    /// After a corrupted header that was found when the heap was opened, blocks that were freed may be listed again:
    /// freeing stores nothing there, because a header cannot be distinguished from an old one inside a block.
    ///
    /// To be called while no transaction commits.
    pub fn blocks(&self) -> Vec<u64> {
        let mut blocks = Vec::new();
        self.check_with(|block| {
            if block.state == BlockState::Allocated {
                blocks.push(block.payload);
            }
        });
        blocks
    }

    /// Scans up to `chunks` chunks that were not needed since the heap was opened, so that later allocations need not scan them. Returns the
    /// number of unscanned chunks that remain. For a thread with spare time, after an open.
    ///
    /// # Errors
    /// When a fence fails, or failed before. After that the heap stores nothing more.
    ///
    /// # Durability
    /// Changes nothing. Headers that a killed process left visible and not durable are made durable, at a fence for each chunk.
    pub fn scan_ahead(&self, chunks: usize) -> Result<usize, CommitError> {
        self.parts.log.check()?;
        Ok(self.parts.space.scan_some(&self.parts.pmem(), chunks)?)
    }

    /// The numbers of blocks and bytes in use, in the chunks that were scanned.
    pub fn stats(&self) -> SpaceStats {
        self.parts.space.stats()
    }

    /// The corrupted headers that were found since the last call.
    pub fn take_corruption(&self) -> Vec<Corruption> {
        self.parts.space.take_corruption()
    }

    /// Stores a header over a corrupted one, which repairs the chain of the chunk. The extent of the corruption is never allocated again;
    /// allocated blocks inside it stay allocated. Returns false, and changes nothing, if this corruption is no longer there.
    ///
    /// If the heap was open when the header was corrupted, the extent is that one block. Otherwise its length is unknown, and the extent
    /// may hold several blocks: the caller ensures that their contents are not needed, or were saved.
    ///
    /// # Errors
    /// When a fence fails, or failed before.
    ///
    /// # Durability
    /// A crash leaves the corruption or the new header. Costs one fence, and two to retire the lanes. The header is stored without the log, when
    /// no log entry is live: a live entry could be replayed over it, and if it were logged itself, it could be replayed over the contents of
    /// a later block.
    pub fn repair(&mut self, corruption: &Corruption) -> Result<bool, TxError> {
        let HeapParts { log, space, .. } = &self.parts;
        log.check()?;
        let pmem = &self.parts.pmem();
        let Some((offset, word)) = space.repair(pmem, corruption)? else { return Ok(false) };
        log.raise_checkpoint(pmem, log.latest())?;
        log::store_u64(log, pmem, offset, word)?;
        Ok(true)
    }

    /// Frees the corrupted slots of the root directory, and with them the roots that they held, as
    /// [`Pool::discard_corrupted_roots`] does. Returns how many slots there were. The blocks that these roots named stay allocated. The root that
    /// names
    /// the heap itself is set again.
    ///
    /// # Errors
    /// When a fence fails, or failed before.
    ///
    /// # Durability
    /// A crash leaves each slot corrupted or free. Costs one fence; two to retire the lanes, because a live log entry could restore a root; and
    /// one if the heap's root is set, before another slot is freed.
    pub fn discard_corrupted_roots(&mut self) -> Result<usize, TxError> {
        let HeapParts { pool, layout, log, .. } = &self.parts;
        log.check()?;
        let count = pool.corrupted_root_count();
        if count == 0 {
            return Ok(0);
        }
        log.raise_checkpoint(&self.parts.pmem(), log.latest())?;
        let roots = pool.logged_roots();
        let set = match pool.find_root(ROOT) {
            Ok(Some(_)) => Ok(()),
            // Once no slot is corrupted, the next open would not find the heap without this root.
            Ok(None) | Err(_) => roots.restore_missing(ROOT, header::root_target(layout.heap_start)),
        };
        set.and_then(|()| roots.discard_corrupted()).map_err(|error| match error {
            RootError::Fence(error) => log.fail(error.into()).into(),
            error => TxError::from(error),
        })?;
        Ok(count)
    }

    /// Makes everything committed durable in place. Afterwards recovery replays none of it, and bytes that transactions wrote may be stored to
    /// without the log, until a transaction writes there again. Waits for commits in progress. To be called while no transaction owns a lane
    /// for a long write.
    ///
    /// # Errors
    /// When a fence fails or failed before, or an entry of a lane in use is corrupted.
    ///
    /// # Durability
    /// Two fences; none if nothing was committed since the last checkpoint.
    pub fn checkpoint(&self) -> Result<(), CommitError> {
        self.parts.log.raise_checkpoint(&self.parts.pmem(), self.parts.log.latest())
    }

    /// Closes the heap: afterwards no entry of its log is needed, and corruption of the log does no harm. Dropping the heap does the same,
    /// without reporting errors.
    ///
    /// Not needed for durability: the changes of all calls that have returned are durable.
    ///
    /// # Errors
    /// When a fence fails or failed before, or a transaction was abandoned. Recovery on the next open handles both.
    /// [`PoolError::InUse`] in a child of fork(2) that inherited the heap: nothing is stored then.
    ///
    /// # Durability
    /// Two fences. A crash before they complete leaves the heap closed, or to be recovered.
    pub fn close(mut self) -> Result<(), HeapError> {
        self.close_log()
    }

    /// Whether this process opened the heap. A child of fork(2) does not own it.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process.is_current()
    }

    /// Closes the log. Not in a child of fork(2): the heap belongs to the parent, which may be committing, and the child may lack the mapping.
    fn close_log(&mut self) -> Result<(), HeapError> {
        if !self.is_of_this_process() {
            return Err(PoolError::InUse.into());
        }
        Ok(self.parts.log.close(self.parts.pool.pmem())?)
    }
}

impl<P: Pmem> Drop for Heap<P> {
    /// As [`close`](Heap::close). A child of fork(2) that drops an inherited heap changes nothing.
    fn drop(&mut self) {
        // After an error the log is as a killed process leaves it, and the next open replays it. `close` reports such errors.
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
        // Before another floor is stored. A power failure would break a chain of which only some headers are durable, and its blocks may
        // have been durable for long.
        Space::open(*layout, chunk_count()?, SpaceOptions::default()).scan_some(pmem, usize::MAX)?;
    }
    if replayed.has_discarded() {
        let mut headers = LoggedHeaders::new(layout, chunk_count()?);
        replayed.pairs().into_iter().for_each(|(offset, word)| headers.note(offset, word));
        // While the corrupted entries are in the log, so that recovery after a crash in here restores the chains again.
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
    let chunks = layout.chunks_before(data.end);
    log::format(pmem, &layout);
    Space::format_chunks(pmem, &layout, 0..chunks);
    header::store_chunk_count(pmem, &layout, chunks);
    let header = header::new(&layout, pool.uuid());
    header::store(pmem, &header);
    // The fence of this covers all stores above.
    header::set_root(pool, &header)
}

fn random_seed() -> u64 {
    let (high, low) = Uuid::new_v4().as_u64_pair();
    high ^ low
}
