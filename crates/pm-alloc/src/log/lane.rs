//! Lanes: each has a ring of entries, and belongs to one thread at a time.

use super::entry::{self, Record};
use super::error::CommitError;
use super::horizon::{Group, Published};
use super::pack::Packer;
use super::shared::Log;
use crate::format::{LINE_BYTES, LogEntry, Stamp};
use crate::layout::Layout;
use crate::sync::{self, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, ThreadId, lock, try_lock};
use pm_core::Pmem;

/// A lane, whoever has it.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) published: Published,
    pub(super) own: Mutex<Own>,
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
    /// A group that was flushed and not fenced.
    pub(super) lazy: Option<Lazy>,
    /// Which thread flushed what was not fenced.
    thread: Option<ThreadId>,
    /// Whether that was another one than has the lane now.
    is_inherited: bool,
    pub(super) packer: Packer,
}

/// The group of a transaction that was committed lazily. It is empty.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lazy {
    pub(super) index: u32,
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
            thread: None,
            is_inherited: false,
            packer: Packer::default(),
        };
        Self { published: Published::new(retired), own: Mutex::new(own) }
    }
}

/// Threads that wait for a lane.
#[derive(Debug)]
pub(super) struct Waiting {
    count: AtomicUsize,
    lock: Mutex<()>,
    freed: Condvar,
}

impl Waiting {
    pub(super) fn new() -> Self {
        Self { count: AtomicUsize::new(0), lock: Mutex::new(()), freed: Condvar::new() }
    }
}

/// A lane for this thread alone, until it is dropped. It stays on its thread, as a fence waits for the flushes of its own
/// thread only.
#[derive(Debug)]
pub(crate) struct LaneGuard<'l> {
    pub(super) log: &'l Log,
    pub(super) lane: &'l Lane,
    pub(super) index: u32,
    // Dropped in this order: the lane is free when the waiting are told.
    pub(super) own: MutexGuard<'l, Own>,
    _freed: Freed<'l>,
}

/// Tells a waiting thread, when it is dropped, that a lane is free.
#[derive(Debug)]
struct Freed<'l>(&'l Waiting);

impl Drop for Freed<'_> {
    fn drop(&mut self) {
        // Either this sees who waits, or who waits sees the lane free: both sides fence between their store and their load.
        sync::fence(Ordering::SeqCst);
        if self.0.count.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.0.lock));
            self.0.freed.notify_one();
        }
    }
}

impl Log {
    /// A lane for this thread: the one that it had last, if nobody has that, or another, or else the first that comes free.
    ///
    /// Whoever has all lanes and asks for one more waits forever.
    pub(crate) fn lane(&self) -> LaneGuard<'_> {
        if let Some(guard) = self.free_lane() {
            return guard;
        }
        let mut waiting = lock(&self.waiting.lock);
        self.waiting.count.fetch_add(1, Ordering::SeqCst);
        let guard = loop {
            sync::fence(Ordering::SeqCst);
            if let Some(guard) = self.free_lane() {
                break guard;
            }
            waiting = sync::wait(&self.waiting.freed, waiting);
        };
        self.waiting.count.fetch_sub(1, Ordering::SeqCst);
        guard
    }

    fn free_lane(&self) -> Option<LaneGuard<'_>> {
        let whose = self.layout.seed;
        let count = self.layout.lane_count;
        let hint = sync::remembered(whose).filter(|&hint| hint < count);
        let start = hint.unwrap_or(0);
        for index in (start..count).chain(0..start.min(count)) {
            let lane = &self.lanes[index as usize];
            let Some(mut own) = try_lock(&lane.own) else { continue };
            if hint != Some(index) {
                sync::remember(whose, index);
            }
            let thread = sync::this_thread();
            own.is_inherited |= own.thread.replace(thread).is_some_and(|before| before != thread);
            return Some(LaneGuard { log: self, lane, index, own, _freed: Freed(&self.waiting) });
        }
        None
    }
}

impl Drop for LaneGuard<'_> {
    fn drop(&mut self) {
        if self.own.open > 0 {
            // Nothing may be written on top of what is half done. Whoever commits next gets the error.
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
    /// replace are dead.
    pub(super) fn reserve<P: Pmem>(&mut self, pmem: &P, count: u64) -> Result<(), CommitError> {
        if u64::from(self.own.used) + count > self.capacity() && self.own.lazy.is_some() {
            // What was committed lazily is a transaction of its own once it is durable.
            self.fence(pmem)?;
        }
        let entries = u64::from(self.own.used) + count;
        if entries > self.capacity() {
            return Err(CommitError::TooLarge { entries, capacity: self.capacity() });
        }
        // From the head on the ring's stamps go up, so the last of the entries has the highest.
        #[expect(clippy::cast_possible_truncation, reason = "no more than the ring has")]
        let last = self.slot(self.own.head + count as u32 - 1);
        let stamp = Stamp::new(self.own.slots[last as usize]);
        if self.log.is_reached(stamp) { Ok(()) } else { self.log.raise_horizon(pmem, stamp) }
    }

    /// Writes an entry to the ring, for which room was [reserved](Self::reserve), and flushes it.
    pub(super) fn append<P: Pmem>(&mut self, pmem: &P, stamp: Stamp, entry: &LogEntry) {
        let layout = &self.log.layout;
        let offset = layout.entry_offset(self.index, self.own.head);
        entry::write(pmem, layout.seed, offset, stamp, entry);
        pmem.flush(offset, LINE_BYTES);
        let head = self.own.head;
        self.own.slots[head as usize] = stamp.bits();
        self.own.head = self.slot(head + 1);
        self.own.used += 1;
    }

    /// Fences, for the lane: also what another thread flushed that had the lane before.
    ///
    /// A fence waits for the flushes of its own processor. What another thread flushed may still be on its way when this one's
    /// fence returns, and nobody else will wait for it: the lane counts it as durable then. So it is flushed again here,
    /// where the lines are in the cache of this processor, or of the other one, or nowhere, which is durable too.
    #[track_caller]
    pub(super) fn fence<P: Pmem>(&mut self, pmem: &P) -> Result<(), CommitError> {
        if self.own.is_inherited {
            self.flush_inherited(pmem);
        }
        self.log.fence(pmem)?;
        self.own.is_inherited = false;
        if let Some(lazy) = self.own.lazy.take() {
            self.own.used -= lazy.used;
            self.log.unsettled.remove(self.index);
        }
        Ok(())
    }

    fn flush_inherited<P: Pmem>(&self, pmem: &P) {
        let layout = &self.log.layout;
        if let Some(group) = self.lane.published.live_group() {
            let records = group_records(pmem, layout, self.index, group);
            for record in records.expect("the last group is whole, and nobody else writes to this ring") {
                record.for_each_home(|offset, bytes| pmem.flush(offset, bytes.len() as u64));
            }
        }
        if let Some(lazy) = self.own.lazy {
            pmem.flush(layout.entry_offset(self.index, lazy.index), LINE_BYTES);
        }
    }

    /// The number of a slot, which may be counted past the end of the ring.
    pub(super) const fn slot(&self, index: u32) -> u32 {
        index % self.log.layout.lane_entries
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
