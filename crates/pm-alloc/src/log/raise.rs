//! Raising the horizon: lanes that rest are retired.

use super::error::CommitError;
use super::horizon::{Group, Hindrance};
use super::lane::group_records;
use super::shared::Log;
use crate::format::{LINE_BYTES, Stamp};
use crate::sealed;
use crate::sync::{self, lock, yield_now};
use pm_core::Pmem;

impl Log {
    /// Raises the horizon to `to` at least. Waits for commits under way, which contain nothing of a user's; retires lanes that rest,
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
    /// When no commit has such a stamp yet.
    pub(crate) fn raise_horizon<P: Pmem>(&self, pmem: &P, to: Stamp) -> Result<(), CommitError> {
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
                    resting.push((index, group.stamp));
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
    /// The group was in place before its stamp was seen here as the lane's last, so the flush writes back what the group stored, or
    /// something later. Its entries stay as they are for as long as its stamp is the last: a lane writes over its last group only
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

    /// Retires these lanes up to these stamps, whose groups were flushed.
    fn retire<P: Pmem>(&self, pmem: &P, lanes: &[(u32, Stamp)]) -> Result<(), CommitError> {
        self.fence(pmem)?;
        // A lane has no lines to flush also if its owner flushed them and the owner's fence failed. This fence does not cover those.
        self.check()?;
        for &(lane, stamp) in lanes {
            sealed::write(pmem, self.layout.seed, self.layout.retired_offsets(lane), stamp);
        }
        // DURABILITY POINT
        self.fence(pmem)?;
        for &(lane, stamp) in lanes {
            self.lanes[lane as usize].published.retire(stamp);
        }
        Ok(())
    }
}
