//! Raising the horizon: lanes that rest are retired.

use super::error::CommitError;
use super::horizon::{Group, Hindrance};
use super::lane::group_records;
use super::shared::Log;
use crate::format::Stamp;
use crate::sealed;
use crate::sync::{lock, yield_now};
use pm_core::Pmem;

impl Log {
    /// Raises the horizon to `to` at least. Waits for commits under way, which contain nothing of a user's; retires lanes that rest,
    /// in a transaction or between two.
    ///
    /// # Durability
    /// Two fences, however many lanes are retired, or none.
    ///
    /// # Errors
    /// When a fence fails, or failed before.
    ///
    /// # Panics
    /// When no commit has such a stamp yet.
    pub(crate) fn raise_horizon<P: Pmem>(&self, pmem: &P, to: Stamp) -> Result<(), CommitError> {
        assert!(to <= self.clock.now(), "{to:?} was not drawn yet");
        let _one = lock(&self.raising);
        while !self.is_reached(to) {
            // Who failed in the middle of a commit will never be done.
            self.check()?;
            let mut resting = Vec::new();
            for (index, lane) in (0..).zip(&self.lanes) {
                if let Some(Hindrance::Resting(group)) = lane.published.hindrance(to)
                    && self.flush_group(pmem, index, group)
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
        Ok(())
    }

    /// Flushes where this group belongs, on behalf of its lane. `false`: the lane has gone on meanwhile.
    ///
    /// The group was in place before its stamp was seen here as the lane's last, so the flush writes back what the group stored, or
    /// something later. Its entries stay as they are for as long as its stamp is the last: a lane writes over its last group only
    /// when there is a later one. So if it is the last still, after they were read, they were read whole.
    fn flush_group<P: Pmem>(&self, pmem: &P, lane: u32, group: Group) -> bool {
        let records = group_records(pmem, &self.layout, lane, group);
        let is_last = self.lanes[lane as usize].published.live_group() == Some(group);
        let Some(records) = records.filter(|_| is_last) else { return false };
        for record in records {
            record.for_each_home(|offset, bytes| pmem.flush(offset, bytes.len() as u64));
        }
        true
    }

    /// Retires these lanes up to these stamps, whose groups were flushed.
    fn retire<P: Pmem>(&self, pmem: &P, lanes: &[(u32, Stamp)]) -> Result<(), CommitError> {
        self.fence(pmem)?;
        for &(lane, stamp) in lanes {
            sealed::write(pmem, self.layout.seed, self.layout.lane_offset(lane), stamp);
        }
        // DURABILITY POINT
        self.fence(pmem)?;
        for &(lane, stamp) in lanes {
            self.lanes[lane as usize].published.retire(stamp);
        }
        Ok(())
    }
}
