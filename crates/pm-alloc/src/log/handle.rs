//! The log in DRAM: its lanes, the checkpoint LSN, and the retirement of idle lanes.

use super::checkpoint::{Blocker, Checkpoint, Group, LsnCounter, Published};
use super::entry::{self, Entry};
use super::error::CommitError;
use super::floor::{self, SealedWord};
use super::writes::Packer;
use crate::format::{LINE_BYTES, Lsn};
use crate::layout::Layout;
use crate::locks::SpinLock;
use crate::sync::{self, AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, lock, yield_now};
use pm_core::line::line_start;
use pm_core::{FenceError, Pmem, Region, forward_pmem};

/// The known checkpoint LSN is computed again when it is this many LSNs behind the thread's last commit. Computing it takes five loads for each lane.
const CHECKPOINT_LAG_MAX: u64 = 32;

/// The base-2 logarithm of the number of slots in a [`RecentLines`] table, which is small enough to stay in a cache. Lines in the same slot share an
/// LSN; this may delay a store, and does no other harm.
const RECENT_SLOT_BITS: u32 = if cfg!(loom) { 2 } else { 9 };

/// The log of a heap. Threads share it, and each commits through a [lane](super::LaneGuard) that it acquires.
///
/// Each method must be passed the region from which the log was [replayed](super::Replayed::replay).
#[derive(Debug)]
pub(crate) struct Log {
    pub(super) layout: Layout,
    pub(super) counter: LsnCounter,
    checkpoint_lsn: Checkpoint,
    pub(super) lanes: Box<[Lane]>,
    /// The number of lanes up to the highest one that a thread has acquired: the others have no groups that are live.
    acquired_lanes: AtomicUsize,
    pub(super) deferred: DeferredCommits,
    /// Held while lanes are retired: one thread at a time stores their headers.
    retiring: Mutex<()>,
    is_bypassed: bool,
    /// Whether block headers that were stored without the log may not be durable.
    has_volatile_headers: bool,
    is_poisoned: AtomicBool,
    poison_error: Mutex<Option<CommitError>>,
}

impl Log {
    /// A log in which all entries up to `floor` are dead. `retired` yields the retired LSN of each lane.
    pub(super) fn new(layout: Layout, floor: Lsn, retired: impl Iterator<Item = Lsn>) -> Self {
        Self {
            layout,
            counter: LsnCounter::starting_at(floor),
            checkpoint_lsn: Checkpoint::starting_at(floor),
            lanes: retired.map(|retired| Lane::new(layout.lane_entries, retired)).collect(),
            acquired_lanes: AtomicUsize::new(0),
            deferred: DeferredCommits::new(),
            retiring: Mutex::new(()),
            is_bypassed: false,
            has_volatile_headers: false,
            is_poisoned: AtomicBool::new(false),
            poison_error: Mutex::new(None),
        }
    }

    /// Checks that the log accepts commits.
    ///
    /// # Errors
    /// The errors of [`check_not_poisoned`](Self::check_not_poisoned), and an error if the log is [bypassed](Self::bypass).
    #[inline]
    pub(crate) fn check_open(&self) -> Result<(), CommitError> {
        if self.is_bypassed { Err(CommitError::Bypassed) } else { self.check_not_poisoned() }
    }

    /// Checks that no fence has failed, and no transaction was abandoned. Call this before each store: after a failed fence the state of the heap is
    /// unknown until the next open, and nothing may be written to a block that the failed transaction may have allocated.
    ///
    /// If a transaction fails and returns a block, a thread that reserves that block later observes the failure here, because it has acquired the
    /// lock under which the block was returned.
    ///
    /// # Errors
    /// The error that poisoned the log.
    #[inline]
    pub(crate) fn check_not_poisoned(&self) -> Result<(), CommitError> {
        if self.is_poisoned.load(Ordering::Acquire) { self.poison_result() } else { Ok(()) }
    }

    #[cold]
    fn poison_result(&self) -> Result<(), CommitError> {
        lock(&self.poison_error).clone().map_or(Ok(()), Err)
    }

    /// Poisons the log: every later commit fails with the first error that was passed here. Returns that first error.
    #[cold]
    pub(crate) fn poison(&self, error: CommitError) -> CommitError {
        let mut poison_error = lock(&self.poison_error);
        let first = poison_error.get_or_insert(error).clone();
        self.is_poisoned.store(true, Ordering::Release);
        first
    }

    /// Fences. A failed fence [poisons](Self::poison) the log.
    ///
    /// # Durability
    /// When this returns, all earlier flushes of this thread are durable.
    ///
    /// # Errors
    /// When the fence fails.
    #[track_caller]
    #[inline]
    pub(crate) fn fence<P: Pmem>(&self, pmem: &P) -> Result<(), CommitError> {
        pmem.fence().map_err(|error| self.poison(error.into()))
    }

    /// The checkpoint LSN: everything at or below it is applied and durable, and no recovery replays it.
    pub(crate) fn checkpoint_lsn(&self) -> Lsn {
        self.checkpoint_lsn.compute(&self.counter, || self.acquired_lanes().map(|lane| &lane.published))
    }

    /// Notes that a thread has acquired a lane for the first time, before it allocates an LSN.
    #[cold]
    pub(super) fn note_acquired(&self, index: u32) {
        self.acquired_lanes.fetch_max(index as usize + 1, Ordering::AcqRel);
    }

    /// The lanes that threads have acquired before they allocated the LSNs that this thread knows of, and maybe others.
    fn acquired_lanes(&self) -> impl Iterator<Item = &Lane> {
        self.lanes[..self.acquired_lanes.load(Ordering::Acquire)].iter()
    }

    /// The last computed checkpoint LSN, if it is close to this thread's last commit; otherwise computes it again. That loads from all lanes, and
    /// from the LSN counter, whose cache line other threads write to.
    #[inline]
    pub(crate) fn recent_checkpoint_lsn(&self) -> Lsn {
        let known = self.checkpoint_lsn.last_computed();
        let last = self.lanes[self.last_lane() as usize].published.last();
        if last.bits().saturating_sub(known.bits()) < CHECKPOINT_LAG_MAX {
            known
        } else {
            self.checkpoint_lsn()
        }
    }

    /// The highest allocated LSN. Once the [checkpoint LSN](Log::raise_checkpoint) has reached it, all commits so far are applied and durable.
    pub(crate) fn latest(&self) -> Lsn {
        self.counter.latest()
    }

    /// Whether the checkpoint LSN has reached `lsn`. Computes it only if the known one has not.
    #[inline]
    pub(crate) fn has_checkpoint_reached(&self, lsn: Lsn) -> bool {
        self.checkpoint_lsn.last_computed() >= lsn || self.checkpoint_lsn() >= lsn
    }

    /// In debug builds, asserts invariant I4 of the [checkpoint LSN](super::checkpoint) for a lane of this thread.
    #[inline]
    pub(super) fn assert_checkpoint_below(&self, lane: &Lane, lsn: Lsn) {
        self.checkpoint_lsn.assert_below(&lane.published, lsn);
    }

    /// An upper bound of the LSNs of the live entries that store to the lines of these bytes. If it is at or below the checkpoint LSN, no such entry
    /// is live. The caller ensures that no other thread stores there during the call.
    pub(crate) fn live_lsn_bound(&self, offset: u64, len: u64) -> Lsn {
        let known = self.checkpoint_lsn.last_computed();
        // The groups of the lanes that are left out are at or below the checkpoint LSN.
        let live = self.acquired_lanes().filter(|lane| lane.published.last() > known);
        live.map(|lane| lane.recent.lsn_bound(offset, len)).max().unwrap_or(Lsn::ZERO)
    }

    /// Asserts that transactions may store to these bytes: they are inside the region and outside the log.
    #[track_caller]
    #[inline]
    pub(super) fn check_target<P: Pmem>(&self, pmem: &P, offset: u64, len: u64) {
        assert!(
            entry::is_target(&self.layout, pmem.len_bytes(), offset, len),
            "{len} bytes at offset {offset} are outside the region, or in the log"
        );
    }

    /// The index of the lane that this thread owned last, or 0.
    #[inline]
    pub(super) fn last_lane(&self) -> u32 {
        sync::lane_hint(self.layout.seed).filter(|&lane| lane < self.layout.lane_count).unwrap_or(0)
    }

    /// Makes the deferred commits of all lanes except `own_lane` durable.
    #[inline]
    pub(super) fn persist_deferred<P: Pmem>(
        &self,
        pmem: &P,
        own_lane: Option<u32>,
    ) -> Result<(), CommitError> {
        self.deferred.persist(pmem, own_lane).map_err(|error| self.poison(error.into()))
    }

    /// Raises the checkpoint LSN to `to` or higher: waits for commits in progress, which call no code of the program and so end soon, and retires
    /// idle lanes, even those with an owning thread that has not begun to commit.
    ///
    /// # Durability
    /// Two fences for all retired lanes together; none if the checkpoint LSN has already reached `to`.
    ///
    /// # Errors
    /// When a fence fails or has failed. When an entry of the last group of an owned lane is [corrupted](CommitError::Corrupted).
    ///
    /// # Panics
    /// When `to` was not allocated yet.
    pub(crate) fn raise_checkpoint<P: Pmem>(&self, pmem: &P, to: Lsn) -> Result<(), CommitError> {
        assert!(to <= self.counter.latest(), "{to:?} was not allocated yet");
        let _retiring = lock(&self.retiring);
        loop {
            // Without this check the loop could wait forever for a commit that has failed, or rely on values that were loaded after a failed fence.
            self.check_not_poisoned()?;
            if self.has_checkpoint_reached(to) {
                return Ok(());
            }
            let mut idle = Vec::new();
            for (index, lane) in (0..).zip(&self.lanes) {
                if let Some(Blocker::IdleLane(group)) = lane.published.blocker(to)
                    && self.flush_group(pmem, index, group)?
                {
                    idle.push((index, group.lsn));
                }
            }
            if idle.is_empty() {
                yield_now();
            } else {
                self.retire(pmem, &idle)?;
            }
        }
    }

    /// Flushes the targets of the last group of a lane. Returns false if the lane has begun another commit.
    ///
    /// The group was applied before its LSN was published, so the flush writes back the group's stores or later ones. A lane overwrites its last
    /// group only after it has published a later one, so the loaded entries are consistent if the group is still the last one after they were loaded.
    ///
    /// If no thread owns the lane, its list of lines in DRAM is used instead of the entries, so a corrupted entry does no harm there.
    fn flush_group<P: Pmem>(&self, pmem: &P, index: u32, group: Group) -> Result<bool, CommitError> {
        let lane = &self.lanes[index as usize];
        if let Some(state) = lane.state.try_lock() {
            // The lines stay in the list, because the caller's fence may fail; the lane's next fence flushes them again.
            state.lines_to_flush.iter().for_each(|&line| pmem.flush(line, LINE_BYTES));
            return Ok(lane.published.unretired_last_group() == Some(group));
        }
        let entries = group_entries(pmem, &self.layout, index, group);
        sync::order_observed_stores_before_flushes();
        if lane.published.unretired_last_group() != Some(group) || lane.published.is_committing() {
            return Ok(false);
        }
        let offset = self.layout.entry_offset(index, group.first % self.layout.lane_entries);
        let entries = entries.ok_or_else(|| self.poison(CommitError::Corrupted { offset }))?;
        entries.iter().for_each(|entry| entry.flush_targets(pmem));
        Ok(true)
    }

    /// Retires these lanes up to these LSNs. The caller has flushed the targets of their last groups.
    fn retire<P: Pmem>(&self, pmem: &P, lanes: &[(u32, Lsn)]) -> Result<(), CommitError> {
        self.fence(pmem)?;
        // If an owning thread emptied its lane's list and its fence then failed, this thread has not flushed the lines that were in the list.
        self.check_not_poisoned()?;
        for &(lane, lsn) in lanes {
            SealedWord::write(pmem, self.layout.seed, self.layout.retired_offsets(lane), lsn);
        }
        // DURABILITY POINT
        self.fence(pmem)?;
        for &(lane, lsn) in lanes {
            self.lanes[lane as usize].published.retire(lsn);
        }
        Ok(())
    }

    /// Makes all committed changes durable in place. From now on the log accepts no commits: blocks change without it, and replaying a transaction
    /// could overwrite those changes. The floor records that no entry is live, and that the next open must make block headers durable, unless
    /// [`mark_headers_durable`](Self::mark_headers_durable) is called before the log is closed. If a fence fails, the log is poisoned.
    ///
    /// # Durability
    /// Two fences, or one if nothing was committed since the log was opened.
    pub(crate) fn bypass<P: Pmem>(&mut self, pmem: &P) {
        self.has_volatile_headers = true;
        if let Err(error) = self.store_closed(pmem) {
            self.poison(error);
        }
        self.is_bypassed = true;
    }

    /// Records that all block headers are durable. A [bypassed](Self::bypass) log is then closed like any other.
    pub(crate) const fn mark_headers_durable(&mut self) {
        self.has_volatile_headers = false;
    }

    /// Closes a log that no transaction is using. All committed changes are made durable in place, so recovery replays nothing, even if entries are
    /// corrupted later.
    ///
    /// # Durability
    /// Two fences, or one if nothing was committed. If a crash interrupts this, the log is closed or open.
    ///
    /// # Errors
    /// When a fence fails or has failed, or a transaction was abandoned. Recovery on the next open handles both.
    pub(crate) fn close<P: Pmem>(&mut self, pmem: &P) -> Result<(), CommitError> {
        self.store_closed(pmem)?;
        self.poison(CommitError::Closed);
        Ok(())
    }

    /// Makes all committed changes durable in place, and stores a floor at or above all entries, so that none is live.
    fn store_closed<P: Pmem>(&mut self, pmem: &P) -> Result<(), CommitError> {
        self.check_not_poisoned()?;
        let mut has_unflushed_lines = false;
        for lane in &self.lanes {
            let mut state = lane.state.try_lock().ok_or(CommitError::Abandoned)?;
            if state.open_undo_count > 0 || lane.published.is_committing() {
                return Err(self.poison(CommitError::Abandoned));
            }
            has_unflushed_lines |= !state.lines_to_flush.is_empty();
            state.lines_to_flush.drain(..).for_each(|line| pmem.flush(line, LINE_BYTES));
        }
        if has_unflushed_lines {
            self.fence(pmem)?;
        }
        let latest = self.counter.latest();
        let floor = if self.has_volatile_headers { floor::bypassed(latest) } else { floor::closed(latest) };
        SealedWord::write(pmem, self.layout.seed, self.layout.floor_offsets(), floor);
        // DURABILITY POINT
        self.fence(pmem)
    }
}

/// The region of an open heap: all calls go to the region, and a failed fence poisons the heap, even if the caller ignores the error. After that the
/// heap stores nothing more. Returned by [`Heap::pmem`](crate::Heap::pmem).
#[derive(Debug)]
pub struct PoisoningPmem<'h, P = Region> {
    pmem: &'h P,
    log: &'h Log,
}

impl<P> Clone for PoisoningPmem<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for PoisoningPmem<'_, P> {}

impl<'h, P> PoisoningPmem<'h, P> {
    #[inline]
    pub(crate) const fn new(pmem: &'h P, log: &'h Log) -> Self {
        Self { pmem, log }
    }

    /// Whether a fence has failed, of this region or of a transaction: the heap accepts no more changes.
    #[inline]
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.log.is_poisoned.load(Ordering::Acquire)
    }
}

impl<P: Pmem> Pmem for PoisoningPmem<'_, P> {
    forward_pmem!(|this| this.pmem => len_bytes, domain, is_writable, lock_writer, writer_lock, next_data, load, store);
    forward_pmem!(|this| this.pmem => store_nt, try_load, try_store_nt, load_u64, load_words, store_u64, store_words, store_u128);
    forward_pmem!(|this| this.pmem => try_store, try_flush, lend, compare_exchange_u64, flush, prefetch, prefetch_read, populate);

    #[inline]
    fn fence(&self) -> Result<(), FenceError> {
        let fenced = self.pmem.fence();
        if let Err(error) = &fenced {
            self.log.poison(error.clone().into());
        }
        fenced
    }
}

/// The two lines of each lane that commit its deferred group: the commit entry, and the lane's header, which makes undo entries dead.
///
/// Nothing that depends on a transaction may become durable before it. So a commit first flushes both lines of every other lane, and fences. It
/// flushes both, because either may be corrupted later. Lines of its own lane need no fence: a later group of a lane commits the earlier ones.
#[derive(Debug)]
pub(super) struct DeferredCommits {
    count: AtomicUsize,
    entries: Mutex<Vec<(u32, [u64; 2])>>,
}

impl DeferredCommits {
    fn new() -> Self {
        Self { count: AtomicUsize::new(0), entries: Mutex::new(Vec::new()) }
    }

    /// Adds the lines at `offsets`, which commit a group of `lane` and are stored but not fenced.
    pub(super) fn add(&self, lane: u32, offsets: [u64; 2]) {
        let mut entries = lock(&self.entries);
        entries.retain(|entry| entry.0 != lane);
        entries.push((lane, offsets));
        self.count.store(entries.len(), Ordering::SeqCst);
    }

    /// Removes the lines of this lane, which are durable.
    pub(super) fn remove(&self, lane: u32) {
        let mut entries = lock(&self.entries);
        entries.retain(|entry| entry.0 != lane);
        self.count.store(entries.len(), Ordering::SeqCst);
    }

    /// Makes the lines of all lanes except `except` durable. The lock is held until the lines are durable. So a thread that finds the list empty
    /// knows that all earlier deferred commits are durable.
    #[inline]
    fn persist<P: Pmem>(&self, pmem: &P, except: Option<u32>) -> Result<(), FenceError> {
        if self.count.load(Ordering::SeqCst) == 0 { Ok(()) } else { self.persist_listed(pmem, except) }
    }

    #[cold]
    fn persist_listed<P: Pmem>(&self, pmem: &P, except: Option<u32>) -> Result<(), FenceError> {
        let mut entries = lock(&self.entries);
        if entries.iter().all(|&(lane, _)| Some(lane) == except) {
            return Ok(());
        }
        sync::order_observed_stores_before_flushes();
        for &(_, offsets) in entries.iter().filter(|&&(lane, _)| Some(lane) != except) {
            offsets.iter().for_each(|&offset| pmem.flush(line_start(offset), LINE_BYTES));
        }
        pmem.fence()?;
        entries.retain(|&(lane, _)| Some(lane) == except);
        self.count.store(entries.len(), Ordering::SeqCst);
        Ok(())
    }
}

/// A lane in DRAM.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) published: Published,
    pub(super) recent: RecentLines,
    pub(super) state: SpinLock<LaneState>,
}

/// The state of a lane that only its owning thread uses.
#[derive(Debug)]
pub(super) struct LaneState {
    /// Whether the log knows that a thread has acquired this lane.
    pub(super) was_acquired: bool,
    /// The index of the next entry.
    pub(super) head: u32,
    /// The LSN of each entry of the ring.
    pub(super) entry_lsns: Vec<u64>,
    /// The number of entries after the last group that is known to be durable.
    pub(super) entries_since_durable: u32,
    /// The number of undo entries, right before the head, of a transaction that has not committed.
    pub(super) open_undo_count: u32,
    /// If the last group is a deferred commit and is not fenced: how many of `entries_since_durable` precede the end of that group.
    pub(super) deferred_count: Option<u32>,
    /// The lines to flush before the next fence: those of entries, and the targets of the last group.
    pub(super) lines_to_flush: Vec<u64>,
    /// The target lines of the group that is being committed; empty otherwise.
    pub(super) target_lines: Vec<u64>,
    pub(super) packer: Packer,
}

impl Lane {
    pub(super) fn new(entries: u32, retired: Lsn) -> Self {
        let state = LaneState {
            was_acquired: false,
            head: 0,
            entry_lsns: vec![0; entries as usize],
            entries_since_durable: 0,
            open_undo_count: 0,
            deferred_count: None,
            lines_to_flush: Vec::new(),
            target_lines: Vec::new(),
            packer: Packer::default(),
        };
        Self { published: Published::new(retired), recent: RecentLines::new(), state: SpinLock::new(state) }
    }
}

/// A hash table of one lane: for each line, the highest LSN of the lane's groups that store to it. Each lane has its own table: the cache lines of a
/// shared one would often move between processors.
///
/// The program's own locks order a thread that looks up bytes after the threads that wrote them. But a line that shares the slot may be guarded by
/// other locks, or by none. A thread that loads an LSN stored for such a line must also load a value of the LSN counter at or above it
/// ([`Log::raise_checkpoint`] asserts this), so the accesses are release and acquire.
#[derive(Debug)]
pub(super) struct RecentLines {
    slots: Box<[AtomicU64]>,
}

impl RecentLines {
    fn new() -> Self {
        Self { slots: (0..1 << RECENT_SLOT_BITS).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Records that the group with this LSN, the lane's highest, stores to this line. Only the lane's owning thread calls this.
    #[inline]
    pub(super) fn note(&self, line: u64, lsn: Lsn) {
        self.slots[recent_slot(line)].store(lsn.bits(), Ordering::Release);
    }

    /// An upper bound of the LSNs of the lane's groups that stored to the lines of these bytes since the log was opened.
    pub(super) fn lsn_bound(&self, offset: u64, len: u64) -> Lsn {
        let lines = entry::lines([(offset, len)].into_iter());
        let lsns = lines.map(|line| self.slots[recent_slot(line)].load(Ordering::Acquire));
        lsns.max().map_or(Lsn::ZERO, Lsn::new)
    }
}

const fn recent_slot(line: u64) -> usize {
    ((line / LINE_BYTES).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - RECENT_SLOT_BITS)) as usize
}

/// The entries of a group. `None` if one of them is corrupted, or has been overwritten.
pub(super) fn group_entries<P: Pmem>(
    pmem: &P,
    layout: &Layout,
    lane: u32,
    group: Group,
) -> Option<Vec<Entry>> {
    let indexes = (0..group.count).map(|number| (group.first + number) % layout.lane_entries);
    let offsets = indexes.map(|index| layout.entry_offset(lane, index));
    let entries = offsets.map(|offset| Entry::of(&entry::read(pmem, offset), layout.seed, offset));
    entries.map(|entry| entry.filter(|entry| entry.lsn == group.lsn)).collect()
}
