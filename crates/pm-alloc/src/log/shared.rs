//! The log as a whole: what its lanes share.

use super::error::CommitError;
use super::home;
use super::horizon::{Clock, Horizon};
use super::lane::Lane;
use super::unsettled::Unsettled;
use crate::format::Stamp;
use crate::layout::Layout;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};
use pm_core::Pmem;

/// How many commits the horizon may be behind before somebody looks again where it is: that takes a load or three for each lane.
const HORIZON_LAG_MAX: u64 = 32;

/// The log of a heap. Threads share it, and take [lanes](Log::lane) of it.
///
/// The region is passed to each method: it is always the one that the log was [replayed](Log::replay) from.
#[derive(Debug)]
pub(crate) struct Log {
    pub(super) layout: Layout,
    pub(super) clock: Clock,
    pub(super) horizon: Horizon,
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
    pub(super) fn new(layout: Layout, floor: Stamp, retired: impl Iterator<Item = Stamp>) -> Self {
        Self {
            layout,
            clock: Clock::starting_at(floor),
            horizon: Horizon::starting_at(floor),
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

    /// The highest stamp such that everything up to it is in place and durable, and no recovery stores any of it again.
    pub(crate) fn horizon(&self) -> Stamp {
        self.horizon.compute(&self.clock, self.lanes.iter().map(|lane| &lane.published))
    }

    /// A horizon that is not far behind what this thread last committed. Looks at the lanes only now and then, and never at the
    /// clock, which other threads are writing.
    #[inline]
    pub(crate) fn recent_horizon(&self) -> Stamp {
        let known = self.horizon.known();
        let last = self.lanes[self.last_lane() as usize].published.last();
        if last.bits().saturating_sub(known.bits()) < HORIZON_LAG_MAX { known } else { self.horizon() }
    }

    /// The highest stamp so far. When the [horizon is raised](Log::raise_horizon) to it, everything committed is in place and durable.
    pub(crate) fn latest(&self) -> Stamp {
        self.clock.now()
    }

    /// Whether the horizon has reached `stamp`. Looks at the lanes only if it had not when somebody looked last.
    #[inline]
    pub(crate) fn is_reached(&self, stamp: Stamp) -> bool {
        self.horizon.known() >= stamp || self.horizon() >= stamp
    }

    /// The highest stamp of a commit that may have written to these bytes, or to bytes of their lines. Later ones than this there are
    /// none, if the caller keeps others from writing there.
    pub(crate) fn last_stamp(&self, offset: u64, len: u64) -> Stamp {
        let known = self.horizon.known();
        // What the others aimed at is in place.
        let live = self.lanes.iter().filter(|lane| lane.published.last() > known);
        live.map(|lane| lane.recent.last(offset, len)).max().unwrap_or(Stamp::ZERO)
    }

    /// Stores one word, durably when this returns: in place, if no live entry aims at its line, and else by a commit.
    ///
    /// # Panics
    /// When `offset` is no multiple of 8, or no place for data.
    ///
    /// # Durability
    /// One line and one fence; with a commit two lines and one fence. A crash leaves the old word or the new one. Where a live entry
    /// aims at the line and all lanes are taken, the [horizon is raised](Log::raise_horizon) before.
    ///
    /// # Errors
    /// As [`commit`](super::LaneGuard::commit).
    pub(crate) fn store_word_in_place<P: Pmem>(
        &self,
        pmem: &P,
        offset: u64,
        value: u64,
    ) -> Result<(), CommitError> {
        assert!(offset.is_multiple_of(8), "a word must be aligned, and offset {offset} is not");
        self.store_in_place(pmem, offset, &value.to_le_bytes(), || pmem.store_u64(offset, value))
    }

    /// As [`store_word_in_place`](Self::store_word_in_place), of two words, both or neither.
    ///
    /// # Panics
    /// When `offset` is no multiple of 16, or no place for data.
    ///
    /// # Durability
    /// As [`store_word_in_place`](Self::store_word_in_place).
    ///
    /// # Errors
    /// As [`store_word_in_place`](Self::store_word_in_place).
    pub(crate) fn store_pair_in_place<P: Pmem>(
        &self,
        pmem: &P,
        offset: u64,
        [low, high]: [u64; 2],
    ) -> Result<(), CommitError> {
        assert!(offset.is_multiple_of(16), "an atomic pair must be aligned, and offset {offset} is not");
        let pair = u128::from(high) << 64 | u128::from(low);
        self.store_in_place(pmem, offset, &pair.to_le_bytes(), || pmem.store_u128(offset, pair))
    }

    /// Stores whole words of one line, durably when this returns: with `store`, which does so in one piece, if no live entry
    /// aims at the line, and else by a commit.
    fn store_in_place<P: Pmem>(
        &self,
        pmem: &P,
        offset: u64,
        bytes: &[u8],
        store: impl FnOnce(),
    ) -> Result<(), CommitError> {
        let len = bytes.len() as u64;
        self.check_open()?;
        self.check_home(pmem, offset, len);
        let last = self.last_stamp(offset, len);
        if !self.is_reached(last) {
            // Not waiting for a lane: this thread may have the only one.
            if let Some(mut lane) = self.free_lane() {
                return lane.commit_bytes(pmem, offset, bytes).map(drop);
            }
            self.raise_horizon(pmem, last)?;
        }
        self.settle(pmem, None)?;
        store();
        pmem.flush(offset, len);
        // DURABILITY POINT
        self.fence(pmem)
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
}
