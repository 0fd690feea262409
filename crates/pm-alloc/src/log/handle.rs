//! The log as a whole: what its lanes share.

use super::checkpoint::{Checkpoint, Clock, Group, Hindrance};
use super::error::CommitError;
use super::floor;
use super::home;
use super::lane::{Lane, group_records};
use super::unsettled::Unsettled;
use crate::format::{LINE_BYTES, Lsn};
use crate::layout::Layout;
use crate::sealed;
use crate::sync::{self, AtomicBool, Mutex, Ordering, lock, yield_now};
use pm_core::Pmem;

/// How many commits the checkpoint LSN may be behind before somebody looks again where it is: that takes a load or three for each lane.
const HORIZON_LAG_MAX: u64 = 32;

/// The log of a heap. Threads share it, and take [lanes](Log::lane) of it.
///
/// The region is passed to each method: it is always the one that the log was [replayed](Log::replay) from.
#[derive(Debug)]
pub(crate) struct Log {
    pub(super) layout: Layout,
    pub(super) clock: Clock,
    pub(super) checkpoint_lsn: Checkpoint,
    pub(super) lanes: Box<[Lane]>,
    pub(super) unsettled: Unsettled,
    /// Held by the one who retires lanes: their headers are written by one at a time.
    pub(super) raising: Mutex<()>,
    /// Whether it is for transactions no more.
    is_bypassed: bool,
    /// Whether headers of blocks were stored past the log that may not be durable.
    pub(super) has_volatile_headers: bool,
    is_faulty: AtomicBool,
    fault: Mutex<Option<CommitError>>,
}

impl Log {
    /// A log whose entries are all dead, for its floor is `floor`. `retired` is what the lanes' headers say.
    pub(super) fn new(layout: Layout, floor: Lsn, retired: impl Iterator<Item = Lsn>) -> Self {
        Self {
            layout,
            clock: Clock::starting_at(floor),
            checkpoint_lsn: Checkpoint::starting_at(floor),
            lanes: retired.map(|retired| Lane::new(layout.lane_entries, retired)).collect(),
            unsettled: Unsettled::new(),
            raising: Mutex::new(()),
            is_bypassed: false,
            has_volatile_headers: false,
            is_faulty: AtomicBool::new(false),
            fault: Mutex::new(None),
        }
    }

    /// Applies everything committed, and accepts no commit any more: from now on words are stored past the log, and a transaction that
    /// wrote to them could be replayed over them. The log is closed on the medium, so that recovery after a kill needs no entry of it; and
    /// until [`mark_headers_durable`](Self::mark_headers_durable) the floor says that the next opening must make headers of blocks so.
    /// If a fence fails, [`check`](Self::check) says so from now on.
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

    /// All headers of blocks are durable, so that a log that is [bypassed](Self::bypass) can be closed.
    pub(crate) const fn mark_headers_durable(&mut self) {
        self.has_volatile_headers = false;
    }

    /// Whether the log takes transactions.
    ///
    /// # Errors
    /// When it promises nothing any more, or is [bypassed](Self::bypass).
    #[inline]
    pub(crate) fn check_open(&self) -> Result<(), CommitError> {
        if self.is_bypassed { Err(CommitError::Bypassed) } else { self.check() }
    }

    /// The highest LSN such that everything up to it is in place and durable, and no recovery stores any of it again.
    pub(crate) fn checkpoint_lsn(&self) -> Lsn {
        self.checkpoint_lsn.compute(&self.clock, self.lanes.iter().map(|lane| &lane.published))
    }

    /// A checkpoint LSN that is not far behind what this thread last committed. Looks at the lanes only now and then, and never at the
    /// clock, which other threads are writing.
    #[inline]
    pub(crate) fn recent_checkpoint_lsn(&self) -> Lsn {
        let known = self.checkpoint_lsn.known();
        let last = self.lanes[self.last_lane() as usize].published.last();
        if last.bits().saturating_sub(known.bits()) < HORIZON_LAG_MAX { known } else { self.checkpoint_lsn() }
    }

    /// The highest LSN so far. When the [checkpoint LSN is raised](Log::raise_checkpoint) to it, everything committed is in place and durable.
    pub(crate) fn latest(&self) -> Lsn {
        self.clock.now()
    }

    /// Whether the checkpoint LSN has reached `lsn`. Looks at the lanes only if it had not when somebody looked last.
    #[inline]
    pub(crate) fn is_reached(&self, lsn: Lsn) -> bool {
        self.checkpoint_lsn.known() >= lsn || self.checkpoint_lsn() >= lsn
    }

    /// The highest LSN of a commit that may have written to these bytes, or to bytes of their lines. Later ones than this there are
    /// none, if the caller keeps others from writing there.
    pub(crate) fn last_lsn(&self, offset: u64, len: u64) -> Lsn {
        let known = self.checkpoint_lsn.known();
        // What the others aimed at is in place.
        let live = self.lanes.iter().filter(|lane| lane.published.last() > known);
        live.map(|lane| lane.recent.last(offset, len)).max().unwrap_or(Lsn::ZERO)
    }

    /// Makes durable what other lanes committed lazily.
    #[inline]
    pub(super) fn settle<P: Pmem>(&self, pmem: &P, lane: Option<u32>) -> Result<(), CommitError> {
        self.unsettled.settle(pmem, lane).map_err(|error| self.fail(error.into()))
    }

    /// Fences. When that fails, the log promises nothing any more, and nothing more is stored.
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

    /// From now on every commit fails with the first such error, which is returned.
    #[cold]
    pub(crate) fn fail(&self, error: CommitError) -> CommitError {
        let mut fault = lock(&self.fault);
        let first = fault.get_or_insert(error).clone();
        self.is_faulty.store(true, Ordering::Release);
        first
    }

    /// Whether the log still promises anything. Asked before anything is stored: after a failed fence the state of the heap is unknown
    /// until it is opened again, and a block that an unknown transaction may own must not be written to.
    ///
    /// A thread that reserves a block which another one gave back when its transaction failed sees here that it failed, for it has
    /// taken the lock under which the block was given back.
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

    /// A transaction that writes outside of the region, or into the log, is a bug.
    #[track_caller]
    #[inline]
    pub(super) fn check_home<P: Pmem>(&self, pmem: &P, offset: u64, len: u64) {
        assert!(
            home::is_home(&self.layout, pmem.len_bytes(), offset, len),
            "{len} bytes at offset {offset} are no place for data"
        );
    }

    /// The lane that this thread had last, or the first.
    #[inline]
    pub(super) fn last_lane(&self) -> u32 {
        sync::remembered(self.layout.seed).filter(|&lane| lane < self.layout.lane_count).unwrap_or(0)
    }

    /// Raises the checkpoint LSN to `to` at least. Waits for commits under way, which contain nothing of a user's; retires lanes that rest,
    /// in a transaction or between two.
    ///
    /// # Durability
    /// Two fences, however many lanes are retired, or none.
    ///
    /// # Errors
    /// When a fence fails, or failed before; when the last entries of a lane are [corrupted](CommitError::Corrupted) that is in the
    /// middle of a transaction.
    ///
    /// # Panics
    /// When no commit has such an LSN yet.
    pub(crate) fn raise_checkpoint<P: Pmem>(&self, pmem: &P, to: Lsn) -> Result<(), CommitError> {
        assert!(to <= self.clock.now(), "{to:?} was not drawn yet");
        let _one = lock(&self.raising);
        loop {
            // A commit that failed never ends. And after any failed fence the caller must not take what it has for durable.
            self.check()?;
            if self.is_reached(to) {
                return Ok(());
            }
            let mut resting = Vec::new();
            for (index, lane) in (0..).zip(&self.lanes) {
                if let Some(Hindrance::Resting(group)) = lane.published.hindrance(to)
                    && self.flush_group(pmem, index, group)?
                {
                    resting.push((index, group.lsn));
                }
            }
            if resting.is_empty() {
                yield_now();
            } else {
                self.retire(pmem, &resting)?;
            }
        }
    }

    /// Flushes where this group belongs, on behalf of its lane. `false`: the lane has gone on meanwhile.
    ///
    /// The group was in place before its LSN was seen here as the lane's last, so the flush writes back what the group stored, or
    /// something later. Its entries stay as they are for as long as its LSN is the last: a lane writes over its last group only
    /// when there is a later one. So if it is the last still, after they were read, they were read whole.
    ///
    /// A lane without an owning thread keeps the list of lines to flush in DRAM, so a corrupted entry does not matter there.
    fn flush_group<P: Pmem>(&self, pmem: &P, index: u32, group: Group) -> Result<bool, CommitError> {
        let lane = &self.lanes[index as usize];
        if let Some(own) = lane.own.try_lock() {
            // They are left for the lane's next fence, too: this one may fail.
            own.pending.iter().for_each(|&line| pmem.flush(line, LINE_BYTES));
            return Ok(lane.published.live_group() == Some(group));
        }
        let records = group_records(pmem, &self.layout, index, group);
        // Another thread's stores are visible here; their lines may be flushed only after that.
        sync::before_flushing_others_stores();
        if lane.published.live_group() != Some(group) || lane.published.is_under_way() {
            return Ok(false);
        }
        let offset = self.layout.entry_offset(index, group.first % self.layout.lane_entries);
        let records = records.ok_or_else(|| self.fail(CommitError::Corrupted { offset }))?;
        for record in records {
            record.for_each_home(|offset, bytes| pmem.flush(offset, bytes.len() as u64));
        }
        Ok(true)
    }

    /// Retires these lanes up to these LSNs, whose groups were flushed.
    fn retire<P: Pmem>(&self, pmem: &P, lanes: &[(u32, Lsn)]) -> Result<(), CommitError> {
        self.fence(pmem)?;
        // A lane has no lines to flush also if its owner flushed them and the owner's fence failed. This fence does not cover those.
        self.check()?;
        for &(lane, lsn) in lanes {
            sealed::write(pmem, self.layout.seed, self.layout.retired_offsets(lane), lsn);
        }
        // DURABILITY POINT
        self.fence(pmem)?;
        for &(lane, lsn) in lanes {
            self.lanes[lane as usize].published.retire(lsn);
        }
        Ok(())
    }

    /// Closes a log that no transaction is using: everything committed is applied and durable, and recovery has nothing to
    /// replay, whatever becomes of the entries.
    ///
    /// # Durability
    /// Two fences, or one if nothing was committed. A crash inside leaves the log closed, or as one that was not.
    ///
    /// # Errors
    /// When a fence fails or failed before, or a transaction was left half done. Recovery knows what to do then.
    pub(crate) fn close<P: Pmem>(&mut self, pmem: &P) -> Result<(), CommitError> {
        self.store_closed(pmem)?;
        self.fail(CommitError::Closed);
        Ok(())
    }

    /// Makes the log one that is closed, on the medium.
    pub(super) fn store_closed<P: Pmem>(&mut self, pmem: &P) -> Result<(), CommitError> {
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
        let now = self.clock.now();
        let floor = if self.has_volatile_headers { floor::bypassed(now) } else { floor::closed(now) };
        sealed::write(pmem, self.layout.seed, self.layout.floor_offsets(), floor);
        // DURABILITY POINT
        self.fence(pmem)
    }
}
