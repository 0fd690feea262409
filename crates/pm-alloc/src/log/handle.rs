//! The log in DRAM: its lanes, and what they share.

use super::checkpoint::{Blocker, Checkpoint, Group, LsnCounter, Published};
use super::entry::{self, Record};
use super::error::CommitError;
use super::floor::{self, SealedWord};
use super::writes::Packer;
use crate::format::{LINE_BYTES, Lsn};
use crate::layout::Layout;
use crate::quiet_lock::QuietLock;
use crate::sync::{self, AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, lock, yield_now};
use pm_core::line::line_start;
use pm_core::{FenceError, Pmem};

/// How far the known checkpoint LSN may be behind before it is computed again, which takes up to four loads for each lane.
const CHECKPOINT_LAG_MAX: u64 = 32;

/// Few enough slots to stay in a cache. Lines that share a slot share its LSN: a store may then be delayed, but nothing else.
const SLOT_BITS: u32 = if cfg!(loom) { 2 } else { 9 };

/// The log of a heap. Threads share it, and acquire [lanes](super::LaneGuard) of it.
///
/// Each method is passed the region: always the one that the log was [replayed](super::Replayed::replay) from.
#[derive(Debug)]
pub(crate) struct Log {
    pub(super) layout: Layout,
    pub(super) counter: LsnCounter,
    checkpoint_lsn: Checkpoint,
    pub(super) lanes: Box<[Lane]>,
    pub(super) deferred: DeferredCommits,
    /// Held while lanes are retired: one thread at a time writes their headers.
    retiring: Mutex<()>,
    is_bypassed: bool,
    /// Whether block headers were stored without the log that may not be durable.
    has_volatile_headers: bool,
    is_faulty: AtomicBool,
    fault: Mutex<Option<CommitError>>,
}

impl Log {
    /// A log in which everything up to `floor` is dead. `retired` has the LSN of each lane's header.
    pub(super) fn new(layout: Layout, floor: Lsn, retired: impl Iterator<Item = Lsn>) -> Self {
        Self {
            layout,
            counter: LsnCounter::starting_at(floor),
            checkpoint_lsn: Checkpoint::starting_at(floor),
            lanes: retired.map(|retired| Lane::new(layout.lane_entries, retired)).collect(),
            deferred: DeferredCommits::new(),
            retiring: Mutex::new(()),
            is_bypassed: false,
            has_volatile_headers: false,
            is_faulty: AtomicBool::new(false),
            fault: Mutex::new(None),
        }
    }

    /// Checks that the log accepts commits.
    ///
    /// # Errors
    /// As [`check`](Self::check), and when the log is [bypassed](Self::bypass).
    #[inline]
    pub(crate) fn check_open(&self) -> Result<(), CommitError> {
        if self.is_bypassed { Err(CommitError::Bypassed) } else { self.check() }
    }

    /// Checks that no fence has failed, and no transaction was abandoned. Called before anything is stored: after a failed fence the state
    /// of the heap is unknown until it is opened again, and a block that the failed transaction may own must not be written to.
    ///
    /// A thread that reserves a block which another thread returned because its transaction failed sees the failure here: it has acquired
    /// the lock under which the block was returned.
    ///
    /// # Errors
    /// The first failure.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), CommitError> {
        if self.is_faulty.load(Ordering::Acquire)
            && let Some(error) = &*lock(&self.fault)
        {
            return Err(error.clone());
        }
        Ok(())
    }

    /// Poisons the log: every later commit fails with the first such error, which is returned.
    #[cold]
    pub(crate) fn fail(&self, error: CommitError) -> CommitError {
        let mut fault = lock(&self.fault);
        let first = fault.get_or_insert(error).clone();
        self.is_faulty.store(true, Ordering::Release);
        first
    }

    /// Fences. A failed fence [poisons](Self::fail) the log.
    ///
    /// # Durability
    /// What this thread flushed before is durable when this returns.
    ///
    /// # Errors
    /// When the fence fails.
    #[track_caller]
    #[inline]
    pub(crate) fn fence<P: Pmem>(&self, pmem: &P) -> Result<(), CommitError> {
        pmem.fence().map_err(|error| self.fail(error.into()))
    }

    /// The checkpoint LSN: everything at or below it is applied and durable, and no recovery replays it.
    pub(crate) fn checkpoint_lsn(&self) -> Lsn {
        self.checkpoint_lsn.compute(&self.counter, self.lanes.iter().map(|lane| &lane.published))
    }

    /// A checkpoint LSN that is not far behind this thread's last commit. Rarely looks at the lanes, and not at the LSN counter, which
    /// other threads are writing.
    #[inline]
    pub(crate) fn recent_checkpoint_lsn(&self) -> Lsn {
        let known = self.checkpoint_lsn.known();
        let last = self.lanes[self.last_lane() as usize].published.last();
        if last.bits().saturating_sub(known.bits()) < CHECKPOINT_LAG_MAX {
            known
        } else {
            self.checkpoint_lsn()
        }
    }

    /// The highest LSN so far. Once the [checkpoint LSN](Log::raise_checkpoint) has reached it, everything committed is applied and durable.
    pub(crate) fn latest(&self) -> Lsn {
        self.counter.latest()
    }

    /// Whether the checkpoint LSN has reached `lsn`. Computes it only if the known one has not.
    #[inline]
    pub(crate) fn is_reached(&self, lsn: Lsn) -> bool {
        self.checkpoint_lsn.known() >= lsn || self.checkpoint_lsn() >= lsn
    }

    /// An upper bound of the LSNs of all commits that stored to these bytes or their lines, if the caller keeps other threads from
    /// storing there.
    pub(crate) fn last_lsn(&self, offset: u64, len: u64) -> Lsn {
        let known = self.checkpoint_lsn.known();
        // All groups of the other lanes are at or below the checkpoint LSN.
        let live = self.lanes.iter().filter(|lane| lane.published.last() > known);
        live.map(|lane| lane.recent.last(offset, len)).max().unwrap_or(Lsn::ZERO)
    }

    /// Asserts that transactions may store to these bytes: inside the region, and outside the log. Anything else is a bug.
    #[track_caller]
    #[inline]
    pub(super) fn check_target<P: Pmem>(&self, pmem: &P, offset: u64, len: u64) {
        assert!(
            entry::is_target(&self.layout, pmem.len_bytes(), offset, len),
            "{len} bytes at offset {offset} are outside the region, or in the log"
        );
    }

    /// The lane that this thread had last, or the first.
    #[inline]
    pub(super) fn last_lane(&self) -> u32 {
        sync::remembered(self.layout.seed).filter(|&lane| lane < self.layout.lane_count).unwrap_or(0)
    }

    /// Makes the deferred commits of the other lanes durable.
    #[inline]
    pub(super) fn persist_deferred<P: Pmem>(
        &self,
        pmem: &P,
        own_lane: Option<u32>,
    ) -> Result<(), CommitError> {
        self.deferred.persist(pmem, own_lane).map_err(|error| self.fail(error.into()))
    }

    /// Raises the checkpoint LSN to `to` at least: waits for commits under way, which run no code of the program, and retires idle
    /// lanes, which may have an owning thread in the middle of a transaction.
    ///
    /// # Durability
    /// Two fences, however many lanes are retired; none if the checkpoint LSN has reached `to`.
    ///
    /// # Errors
    /// When a fence fails, or failed before; when the last group of a lane with an owning thread is
    /// [corrupted](CommitError::Corrupted).
    ///
    /// # Panics
    /// When `to` was not allocated yet.
    pub(crate) fn raise_checkpoint<P: Pmem>(&self, pmem: &P, to: Lsn) -> Result<(), CommitError> {
        assert!(to <= self.counter.latest(), "{to:?} was not allocated yet");
        let _one = lock(&self.retiring);
        loop {
            // A commit that failed never ends. And after any failed fence the caller must not rely on what it has loaded being durable.
            self.check()?;
            if self.is_reached(to) {
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

    /// Flushes the targets of this group, the last one of its lane. `false`: the lane has committed again meanwhile.
    ///
    /// The group was applied before its LSN was published as the lane's last, so the flush writes back what the group stored, or something
    /// later. A lane overwrites its last group only after there is a later one. So if the group is still the last one after its entries
    /// were read, they were read untorn.
    ///
    /// A lane without an owning thread keeps the lines to flush in DRAM, so a corrupted entry does not matter there.
    fn flush_group<P: Pmem>(&self, pmem: &P, index: u32, group: Group) -> Result<bool, CommitError> {
        let lane = &self.lanes[index as usize];
        if let Some(own) = lane.own.try_lock() {
            // The lane's next fence flushes them again: the caller's may fail.
            own.pending.iter().for_each(|&line| pmem.flush(line, LINE_BYTES));
            return Ok(lane.published.live_group() == Some(group));
        }
        let records = group_records(pmem, &self.layout, index, group);
        sync::before_flushing_others_stores();
        if lane.published.live_group() != Some(group) || lane.published.is_under_way() {
            return Ok(false);
        }
        let offset = self.layout.entry_offset(index, group.first % self.layout.lane_entries);
        let records = records.ok_or_else(|| self.fail(CommitError::Corrupted { offset }))?;
        records.iter().for_each(|record| record.flush_targets(pmem));
        Ok(true)
    }

    /// Retires these lanes up to these LSNs, whose groups were flushed.
    fn retire<P: Pmem>(&self, pmem: &P, lanes: &[(u32, Lsn)]) -> Result<(), CommitError> {
        self.fence(pmem)?;
        // A lane also has no lines to flush if its owner flushed them and the owner's fence failed. This fence does not cover those.
        self.check()?;
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

    /// Applies everything committed, durably, and accepts no commit any more: from now on blocks change without the log, and replaying a
    /// transaction could overwrite them. The floor says that no entry is live, and, until
    /// [`mark_headers_durable`](Self::mark_headers_durable), that the next open must make block headers durable. If a fence fails, the log
    /// is poisoned.
    ///
    /// # Durability
    /// Two fences, or one if nothing was committed since the log was opened.
    pub(crate) fn bypass<P: Pmem>(&mut self, pmem: &P) {
        self.has_volatile_headers = true;
        if let Err(error) = self.store_closed(pmem) {
            self.fail(error);
        }
        self.is_bypassed = true;
    }

    /// All block headers are durable, so a [bypassed](Self::bypass) log can be closed.
    pub(crate) const fn mark_headers_durable(&mut self) {
        self.has_volatile_headers = false;
    }

    /// Closes a log that no transaction is using: everything committed is applied and durable, and recovery replays nothing, even if
    /// entries are corrupted later.
    ///
    /// # Durability
    /// Two fences, or one if nothing was committed. A crash inside leaves the log closed or open.
    ///
    /// # Errors
    /// When a fence fails or failed before, or a transaction was abandoned. Recovery on the next open handles both.
    pub(crate) fn close<P: Pmem>(&mut self, pmem: &P) -> Result<(), CommitError> {
        self.store_closed(pmem)?;
        self.fail(CommitError::Closed);
        Ok(())
    }

    /// Applies everything committed, and stores a floor under which no entry is live.
    fn store_closed<P: Pmem>(&mut self, pmem: &P) -> Result<(), CommitError> {
        self.check()?;
        let mut is_in_flight = false;
        for lane in &self.lanes {
            let mut own = lane.own.try_lock().ok_or(CommitError::Abandoned)?;
            if own.open > 0 || lane.published.is_under_way() {
                return Err(self.fail(CommitError::Abandoned));
            }
            is_in_flight |= !own.pending.is_empty();
            own.pending.drain(..).for_each(|line| pmem.flush(line, LINE_BYTES));
        }
        if is_in_flight {
            self.fence(pmem)?;
        }
        let latest = self.counter.latest();
        let floor = if self.has_volatile_headers { floor::bypassed(latest) } else { floor::closed(latest) };
        SealedWord::write(pmem, self.layout.seed, self.layout.floor_offsets(), floor);
        // DURABILITY POINT
        self.fence(pmem)
    }
}

/// The lines that commit the deferred groups, by lane: the commit entry, and the word that ends the lane's undo entries.
///
/// Nothing that depends on a transaction may be durable before it is. So a commit first flushes both lines of the other lanes, since either
/// of them may be corrupted later, and fences. Those of its own lane need no fence: a later group of a lane commits the ones before.
#[derive(Debug)]
pub(super) struct DeferredCommits {
    count: AtomicUsize,
    entries: Mutex<Vec<(u32, [u64; 2])>>,
}

impl DeferredCommits {
    fn new() -> Self {
        Self { count: AtomicUsize::new(0), entries: Mutex::new(Vec::new()) }
    }

    /// The lines at `offsets`, which commit a group of `lane`, are stored and not fenced.
    pub(super) fn add(&self, lane: u32, offsets: [u64; 2]) {
        let mut entries = lock(&self.entries);
        entries.retain(|entry| entry.0 != lane);
        entries.push((lane, offsets));
        self.count.store(entries.len(), Ordering::SeqCst);
    }

    /// The lines of this lane are durable.
    pub(super) fn remove(&self, lane: u32) {
        let mut entries = lock(&self.entries);
        entries.retain(|entry| entry.0 != lane);
        self.count.store(entries.len(), Ordering::SeqCst);
    }

    /// Makes all durable except those of one lane. The lock is held until they are, so a thread that finds none may rely on that.
    #[inline]
    fn persist<P: Pmem>(&self, pmem: &P, except: Option<u32>) -> Result<(), FenceError> {
        if self.count.load(Ordering::SeqCst) == 0 { Ok(()) } else { self.persist_some(pmem, except) }
    }

    #[cold]
    fn persist_some<P: Pmem>(&self, pmem: &P, except: Option<u32>) -> Result<(), FenceError> {
        let mut entries = lock(&self.entries);
        if entries.iter().all(|&(lane, _)| Some(lane) == except) {
            return Ok(());
        }
        sync::before_flushing_others_stores();
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
    pub(super) recent: Recent,
    pub(super) own: QuietLock<Own>,
}

/// The state that only the owning thread uses.
#[derive(Debug)]
pub(super) struct Own {
    /// The index of the next entry.
    pub(super) head: u32,
    /// The LSN of each entry of the ring.
    pub(super) slots: Vec<u64>,
    /// The number of entries since the last group that is known to be durable.
    pub(super) used: u32,
    /// The number of undo entries right before the head that belong to a transaction without a group yet.
    pub(super) open: u32,
    /// If the last group was committed deferred and is not fenced: the number of entries up to it that `used` counts.
    pub(super) deferred: Option<u32>,
    /// The lines to flush before the next fence: those of entries, and the targets of the last group.
    pub(super) pending: Vec<u64>,
    /// The target lines of the group that is being committed; empty otherwise.
    pub(super) targets: Vec<u64>,
    pub(super) packer: Packer,
}

impl Lane {
    pub(super) fn new(entries: u32, retired: Lsn) -> Self {
        let own = Own {
            head: 0,
            slots: vec![0; entries as usize],
            used: 0,
            open: 0,
            deferred: None,
            pending: Vec::new(),
            targets: Vec::new(),
            packer: Packer::default(),
        };
        Self { published: Published::new(retired), recent: Recent::new(), own: QuietLock::new(own) }
    }
}

/// For each line, by hash, the highest LSN of a group of one lane that stores to it. Each lane has its own table: a shared one would
/// be written by another processor at every other commit.
///
/// A thread that asks about bytes is ordered behind the threads that wrote them by the program's own locks. A line that shares a slot with
/// them may have other locks, or none; so that a thread which finds such a line's LSN also finds the LSN counter not behind it, these
/// accesses release and acquire.
#[derive(Debug)]
pub(super) struct Recent {
    slots: Box<[AtomicU64]>,
}

impl Recent {
    fn new() -> Self {
        Self { slots: (0..1 << SLOT_BITS).map(|_| AtomicU64::new(0)).collect() }
    }

    /// A group with this LSN, which is the lane's highest, stores to this line. Only the owning thread calls this.
    #[inline]
    pub(super) fn note(&self, line: u64, lsn: Lsn) {
        self.slots[slot(line)].store(lsn.bits(), Ordering::Release);
    }

    /// No group of this lane with a higher LSN has stored to these bytes since the log was opened.
    pub(super) fn last(&self, offset: u64, len: u64) -> Lsn {
        let mut last = 0;
        entry::for_each_line([(offset, len)].into_iter(), |line| {
            last = last.max(self.slots[slot(line)].load(Ordering::Acquire));
        });
        Lsn::new(last)
    }
}

const fn slot(line: u64) -> usize {
    ((line / LINE_BYTES).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - SLOT_BITS)) as usize
}

/// The entries of a group. `None` if one of them is corrupted, or has been overwritten.
pub(super) fn group_records<P: Pmem>(
    pmem: &P,
    layout: &Layout,
    lane: u32,
    group: Group,
) -> Option<Vec<Record>> {
    let indexes = (0..group.count).map(|number| (group.first + number) % layout.lane_entries);
    let offsets = indexes.map(|index| layout.entry_offset(lane, index));
    let records = offsets.map(|offset| Record::of(&entry::read(pmem, offset), layout.seed, offset));
    records.map(|record| record.filter(|record| record.lsn == group.lsn)).collect()
}
