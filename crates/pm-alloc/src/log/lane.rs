//! Lanes: each has a ring of entries, and belongs to one thread at a time.

use super::entry::{self, Record};
use super::error::CommitError;
use super::horizon::{Group, Published};
use super::pack::Packer;
use super::recent::Recent;
use super::shared::Log;
use crate::format::{LINE_BYTES, LogEntry, Stamp, seal};
use crate::layout::Layout;
use crate::quiet_lock::{QuietGuard, QuietLock};
use crate::sync;
use pm_core::Pmem;
use pm_core::line::line_start;

/// A lane, whoever has it.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) published: Published,
    pub(super) recent: Recent,
    pub(super) own: QuietLock<Own>,
}

/// What only the one who has the lane needs to know.
#[derive(Debug)]
pub(super) struct Own {
    /// Where the next entry goes.
    pub(super) head: u32,
    /// The stamp of each entry of the ring.
    slots: Vec<u64>,
    /// Entries written since the last group that is known to be durable.
    pub(super) used: u32,
    /// Undo entries right before the head that no group follows yet.
    pub(super) open: u32,
    /// A group that was not fenced.
    pub(super) lazy: Option<Lazy>,
    /// Lines that are to be flushed before the next fence: those of entries, and those where the last group belongs.
    pub(super) pending: Vec<u64>,
    /// Lines where the group that is being committed belongs; none but while it is.
    pub(super) homes: Vec<u64>,
    pub(super) packer: Packer,
}

/// The group of a transaction that was committed lazily.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lazy {
    /// Entries of its transaction, and before it.
    pub(super) used: u32,
}

impl Lane {
    pub(super) fn new(entries: u32, retired: Stamp) -> Self {
        let own = Own {
            head: 0,
            slots: vec![0; entries as usize],
            used: 0,
            open: 0,
            lazy: None,
            pending: Vec::new(),
            homes: Vec::new(),
            packer: Packer::default(),
        };
        Self { published: Published::new(retired), recent: Recent::new(), own: QuietLock::new(own) }
    }
}

/// A lane for this thread alone, until it is dropped. It stays on its thread.
#[derive(Debug)]
pub(crate) struct LaneGuard<'l> {
    pub(super) log: &'l Log,
    pub(super) lane: &'l Lane,
    pub(super) index: u32,
    /// Not `Send`: a fence waits for the flushes of its own thread only.
    pub(super) own: QuietGuard<'l, Own>,
}

impl Log {
    /// A lane for this thread: the one that it had last, if nobody has that, or another that nobody has, or else the one that it had
    /// last as soon as it is free.
    ///
    /// Whoever has all lanes and asks for one more waits forever.
    #[inline]
    pub(crate) fn lane(&self) -> LaneGuard<'_> {
        self.free_lane().unwrap_or_else(|| {
            let index = self.last_lane();
            self.guard(index, self.lanes[index as usize].own.lock())
        })
    }

    /// As [`lane`](Self::lane), if there is one that nobody has.
    #[inline]
    pub(super) fn free_lane(&self) -> Option<LaneGuard<'_>> {
        let last = self.last_lane();
        for index in (last..self.layout.lane_count).chain(0..last) {
            if let Some(own) = self.lanes[index as usize].own.try_lock() {
                if index != last {
                    sync::remember(self.layout.seed, index);
                }
                return Some(self.guard(index, own));
            }
        }
        None
    }

    /// The lane that this thread had last, or the first.
    #[inline]
    pub(super) fn last_lane(&self) -> u32 {
        sync::remembered(self.layout.seed).filter(|&lane| lane < self.layout.lane_count).unwrap_or(0)
    }

    #[inline]
    fn guard<'l>(&'l self, index: u32, own: QuietGuard<'l, Own>) -> LaneGuard<'l> {
        // The next fence flushes what was stored by the thread that had the lane before.
        sync::before_flushing_others_stores();
        LaneGuard { log: self, lane: &self.lanes[index as usize], index, own }
    }
}

impl Drop for LaneGuard<'_> {
    fn drop(&mut self) {
        if self.own.open > 0 || self.lane.published.is_under_way() {
            // Nothing may be written on top of what is half done, nor need anybody wait for it. Whoever commits next gets the error.
            self.log.fail(CommitError::Abandoned);
        }
    }
}

impl LaneGuard<'_> {
    /// How many entries a transaction may have, those for undo included.
    ///
    /// With half of the ring for the last durable group and its undo entries, and half for what was written since, the last group is
    /// always whole. It tells which undo entries before it are dead, and so must outlive them, whatever a crash leaves of
    /// what is being written over both.
    pub(crate) const fn capacity(&self) -> u64 {
        (self.log.layout.lane_entries / 2) as u64
    }

    /// Makes sure that so many entries more may be written: that this transaction may have them, and that those which they
    /// replace are dead, and the one behind those. So the oldest entry of a ring is always dead: what recovery finds
    /// above the stamps of the oldest entries of all rings is complete, and all that is live is above them
    /// ([`for_each_group`](super::recover::Replayed::for_each_group)).
    #[inline]
    pub(super) fn reserve<P: Pmem>(&mut self, pmem: &P, count: u64) -> Result<(), CommitError> {
        if u64::from(self.own.used) + count > self.capacity() && self.own.lazy.is_some() {
            // What was committed lazily is a transaction of its own once it is durable.
            self.fence(pmem)?;
        }
        let entries = u64::from(self.own.used) + count;
        if entries > self.capacity() {
            return Err(CommitError::TooLarge { entries, capacity: self.capacity() });
        }
        // From the head on the ring's stamps go up, so the last of them has the highest.
        #[expect(clippy::cast_possible_truncation, reason = "no more than half of the ring")]
        let last = self.slot(self.own.head + count as u32);
        let stamp = Stamp::new(self.own.slots[last as usize]);
        if self.log.is_reached(stamp) { Ok(()) } else { self.log.raise_horizon(pmem, stamp) }
    }

    /// Writes an entry to the ring, for which room was [reserved](Self::reserve). The next fence makes it durable.
    #[inline]
    pub(super) fn append<P: Pmem>(&mut self, pmem: &P, stamp: Stamp, entry: &LogEntry) {
        let layout = &self.log.layout;
        let offset = layout.entry_offset(self.index, self.own.head);
        entry::write(pmem, layout.seed, offset, stamp, entry);
        self.own.pending.push(offset);
        let head = self.own.head;
        self.own.slots[head as usize] = stamp.bits();
        self.own.head = self.slot(head + 1);
        self.own.used += 1;
    }

    /// Flushes the entries that were written, and what the last group stored in place; then fences. So the flushes are this thread's
    /// own, whoever had the lane before, and its fence waits for them. Between two fences of a lane nothing of it is
    /// in flight: every locked instruction would wait for that, as a fence does.
    ///
    /// Whoever wrote in place without the log what its commit will publish flushes it, and calls this before the commit: the group
    /// may be durable before the commit's own fence makes other things so.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    #[track_caller]
    #[inline]
    pub(crate) fn fence<P: Pmem>(&mut self, pmem: &P) -> Result<(), CommitError> {
        self.own.pending.drain(..).for_each(|line| pmem.flush(line, LINE_BYTES));
        self.log.fence(pmem)?;
        if let Some(lazy) = self.own.lazy.take() {
            self.own.used -= lazy.used;
            self.log.unsettled.remove(self.index);
        }
        Ok(())
    }

    /// The stamp of the entry in this slot.
    pub(super) fn slot_stamp(&self, index: u32) -> Stamp {
        Stamp::new(self.own.slots[index as usize])
    }

    /// Has the lane's header say that its undo entries up to `stamp` are dead, so that they are so without the entry that commits them,
    /// too: that one may be corrupted some day. The next fence makes it durable.
    pub(super) fn end_undo<P: Pmem>(&mut self, pmem: &P, stamp: Stamp) {
        let offset = self.log.layout.undo_end_offset(self.index);
        pmem.store_u64(offset, seal(stamp, self.log.layout.seed, offset, &[]));
        self.own.pending.push(line_start(offset));
    }

    /// The number of a slot, which may be counted past the end of the ring once.
    #[inline]
    pub(super) const fn slot(&self, index: u32) -> u32 {
        let entries = self.log.layout.lane_entries;
        if index < entries { index } else { index - entries }
    }
}

/// The entries of a group, unless they are being written over.
pub(super) fn group_records<P: Pmem>(
    pmem: &P,
    layout: &Layout,
    lane: u32,
    group: Group,
) -> Option<Vec<Record>> {
    let indexes = (0..group.count).map(|number| (group.first + number) % layout.lane_entries);
    let offsets = indexes.map(|index| layout.entry_offset(lane, index));
    let records = offsets.map(|offset| Record::of(&entry::read(pmem, offset), layout.seed, offset));
    records.map(|record| record.filter(|record| record.stamp == group.stamp)).collect()
}
