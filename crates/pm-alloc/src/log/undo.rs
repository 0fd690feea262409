//! Long writes in place, behind entries with what was there before.

use super::entry::{self, Record};
use super::error::CommitError;
use super::home;
use super::lane::LaneGuard;
use crate::format::{ENTRY_DATA_BYTES, EntryKind, Stamp};
use pm_core::Pmem;

const DATA: u64 = ENTRY_DATA_BYTES as u64;

impl LaneGuard<'_> {
    /// Keeps what is at these bytes, durably. Afterwards the caller stores there as it likes, flushes what it stored, and
    /// [commits](Self::commit), [lazily](Self::commit_lazily) or not, or [takes it back](Self::roll_back). The same bytes may be kept
    /// twice; what was there first counts.
    ///
    /// # Durability
    /// A line for each 48 bytes, and one fence.
    ///
    /// # Errors
    /// As [`commit`](Self::commit). When the lane has no room, nothing was changed, and what was kept before is kept still.
    ///
    /// # Panics
    /// When the bytes lie outside of the region, or in the log.
    pub(crate) fn undo<P: Pmem>(&mut self, pmem: &P, offset: u64, len: u64) -> Result<(), CommitError> {
        self.log.check_open()?;
        self.log.check_home(pmem, offset, len);
        if len == 0 {
            return Ok(());
        }
        // One more for the group that will make them dead.
        let count = len.div_ceil(DATA);
        self.reserve(pmem, count + 1)?;
        // An entry that a recovery would store again would be stored over what is written now.
        let last = self.log.last_stamp(offset, len);
        if !self.log.is_reached(last) {
            self.log.raise_horizon(pmem, last)?;
        }
        // Each call has a stamp, so that recovery takes the later one back first.
        let stamp = self.log.clock.draw().ok_or(CommitError::StampsUsedUp)?;
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let mut data = [0; ENTRY_DATA_BYTES];
            let bytes = &mut data[..(end - at).min(DATA) as usize];
            pmem.load(at, bytes);
            self.append(pmem, stamp, &entry::undo(at, bytes));
            self.own.open += 1;
            at += bytes.len() as u64;
        }
        self.fence(pmem)
    }

    /// Takes back what was written in place since the last commit.
    ///
    /// # Durability
    /// Two fences, if there is anything to take back. A crash inside takes it back all the same.
    ///
    /// # Errors
    /// When a fence fails; or did so, or something panicked, in the middle of the commit, which may be durable then. The next recovery
    /// takes it back, if it is not. When an undo entry is [corrupted](CommitError::Corrupted): then what lies before it in the
    /// transaction is not taken back, and the log is of no use any more.
    pub(crate) fn roll_back<P: Pmem>(&mut self, pmem: &P) -> Result<(), CommitError> {
        if self.own.open == 0 {
            return Ok(());
        }
        // What is durable is not known then, and nothing more is stored: recovery rolls back.
        self.log.check()?;
        if self.lane.published.is_under_way() {
            return Err(self.log.fail(CommitError::Abandoned));
        }
        let layout = &self.log.layout;
        for number in 1..=self.own.open {
            let index = self.slot(self.own.head + layout.lane_entries - number);
            let at = layout.entry_offset(self.index, index);
            let stamp = self.slot_stamp(index);
            let is_ours = |record: &Record| record.kind == EntryKind::Undo && record.stamp == stamp;
            let record = Record::of(&entry::read(pmem, at), layout.seed, at).filter(is_ours);
            let record = record.ok_or_else(|| self.log.fail(CommitError::Corrupted { offset: at }))?;
            record.restore(pmem);
            let mut lines = Vec::new();
            record.for_each_home(|offset, bytes| lines.push((offset, bytes.len() as u64)));
            home::for_each_line(lines.into_iter(), |line| self.own.pending.push(line));
        }
        self.commit_in_place(pmem).map(drop::<Stamp>)
    }
}
