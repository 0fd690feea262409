//! A lane in the hands of a thread: records are reserved, appended and fenced, and what they say is stored in place.

use super::checkpoint::Group;
use super::entry::{self, PAIRS, Record};
use super::error::CommitError;
use super::handle::Log;
use super::home;
use super::lane::{Lane, Lazy, Own};
use super::writes::Writes;
use crate::format::{ENTRY_DATA_BYTES, EntryKind, LINE_BYTES, LogEntry, Lsn, seal};
use crate::quiet_lock::QuietGuard;
use crate::sync;
use pm_core::line::line_start;
use pm_core::{Pmem, bytes_of};

const DATA: u64 = ENTRY_DATA_BYTES as u64;

/// A lane for this thread alone, until it is dropped. It stays on its thread.
#[derive(Debug)]
pub(crate) struct LaneGuard<'l> {
    pub(super) log: &'l Log,
    pub(super) lane: &'l Lane,
    pub(super) index: u32,
    /// Not `Send`: a fence waits for the flushes of its own thread only.
    pub(super) own: QuietGuard<'l, Own>,
}

/// Words, each at its offset, as writes.
fn writes_of(words: &[(u64, u64)]) -> impl Iterator<Item = (u64, &[u8])> + Clone {
    words.iter().map(|(offset, word)| (*offset, bytes_of(word)))
}

/// When the writes of a group are stored where they belong.
struct Stores<A, B, O> {
    /// Before the fence that commits the group, and durable by it.
    ahead: A,
    /// The others, in order of places.
    behind: B,
    /// The same in the order in which other threads may see them.
    ordered: O,
}

impl Drop for LaneGuard<'_> {
    fn drop(&mut self) {
        if self.own.open > 0 || self.lane.published.is_under_way() {
            // Nothing may be written on top of what is half done, nor need anybody wait for it. Whoever commits next gets the error.
            self.log.fail(CommitError::Abandoned);
        }
    }
}

impl<'l> LaneGuard<'l> {
    /// A lane for this thread: the one that it had last, if that is free, or another that is free, or else the one that it had last as soon
    /// as it is free.
    ///
    /// A thread that holds all lanes and takes one more deadlocks.
    #[inline]
    pub(crate) fn take(log: &'l Log) -> Self {
        Self::try_take(log).unwrap_or_else(|| {
            let index = log.last_lane();
            Self::of(log, index, log.lanes[index as usize].own.lock())
        })
    }

    /// As [`take`](Self::take), if a lane is free.
    #[inline]
    pub(super) fn try_take(log: &'l Log) -> Option<Self> {
        let last = log.last_lane();
        for index in (last..log.layout.lane_count).chain(0..last) {
            if let Some(own) = log.lanes[index as usize].own.try_lock() {
                if index != last {
                    sync::remember(log.layout.seed, index);
                }
                return Some(Self::of(log, index, own));
            }
        }
        None
    }

    #[inline]
    fn of(log: &'l Log, index: u32, own: QuietGuard<'l, Own>) -> Self {
        // The next fence flushes what was stored by the thread that had the lane before.
        sync::before_flushing_others_stores();
        Self { log, lane: &log.lanes[index as usize], index, own }
    }

    /// Makes the writes durable, all or none, and stores them in place. What was written in place behind
    /// [undo entries](Self::undo), and flushed, becomes durable with them.
    ///
    /// The LSN is that of the commit, or zero, which is before everything, when there was nothing to do.
    ///
    /// # Durability
    /// One fence, and as many lines as entries and lines in place; those in place are flushed by the next commit of the lane. With undo
    /// entries one fence and one line more, and another fence if there are writes. When this returns, the transaction is durable. A
    /// crash before leaves all of it or nothing.
    ///
    /// # Errors
    /// [`CommitError::TooLarge`] when it needs more than half of the lane: nothing was changed. Others when a fence fails, or failed
    /// before.
    ///
    /// # Panics
    /// When a write lies outside of the region, or in the log.
    pub(crate) fn commit<P: Pmem>(&mut self, pmem: &P, writes: &Writes) -> Result<Lsn, CommitError> {
        self.log.check_open()?;
        if writes.is_empty() {
            return if self.own.open == 0 { Ok(Lsn::ZERO) } else { self.commit_in_place(pmem) };
        }
        self.own.packer.pack(self.log.layout.seed, writes);
        let entries = core::mem::take(&mut self.own.packer.entries);
        let stores = Stores { ahead: writes.ahead(), behind: writes.behind(), ordered: writes.stores() };
        let committed = self.commit_group(pmem, &entries, writes.iter(), stores);
        self.own.packer.entries = entries;
        committed
    }

    /// As [`commit`](Self::commit) of a few words, each at its offset: headers of blocks, links to blocks, and null. Not
    /// for words of a user, which may be [headers at their place](super::writes). A link cannot be one, as it is a multiple
    /// of 64.
    ///
    /// # Panics
    /// When there are none, or more than an entry holds; and as [`commit`](Self::commit).
    #[inline]
    pub(crate) fn commit_words<P: Pmem>(
        &mut self,
        pmem: &P,
        words: &[(u64, u64)],
    ) -> Result<Lsn, CommitError> {
        self.commit_words_ahead(pmem, words, 0)
    }

    /// As [`commit_words`](Self::commit_words). The first `ahead` of the words are in place durably before any other
    /// one is stored there: nothing leads there before, and no live entry aims there.
    ///
    /// # Panics
    /// As [`commit_words`](Self::commit_words).
    #[inline]
    pub(crate) fn commit_words_ahead<P: Pmem>(
        &mut self,
        pmem: &P,
        words: &[(u64, u64)],
        ahead: usize,
    ) -> Result<Lsn, CommitError> {
        assert!((1..=PAIRS).contains(&words.len()), "one entry holds one to three words");
        self.log.check_open()?;
        let mut entry = entry::words(words);
        entry::make_commit(&mut entry, 1);
        let (ahead, behind) = words.split_at(ahead);
        let stores =
            Stores { ahead: writes_of(ahead), behind: writes_of(behind), ordered: writes_of(behind) };
        self.commit_group(pmem, &[entry], writes_of(words), stores)
    }

    /// As [`commit`](Self::commit) of bytes that fit into one entry.
    pub(super) fn commit_bytes<P: Pmem>(
        &mut self,
        pmem: &P,
        offset: u64,
        bytes: &[u8],
    ) -> Result<Lsn, CommitError> {
        let mut entry = entry::redo(offset, bytes);
        entry::make_commit(&mut entry, 1);
        let writes = [(offset, bytes)].into_iter();
        let stores = Stores { ahead: [].into_iter(), behind: writes.clone(), ordered: writes.clone() };
        self.commit_group(pmem, &[entry], writes, stores)
    }

    /// Commits a group of these entries, which store these writes.
    #[inline]
    fn commit_group<'w, P: Pmem>(
        &mut self,
        pmem: &P,
        entries: &[LogEntry],
        writes: impl Iterator<Item = (u64, &'w [u8])> + Clone,
        stores: Stores<
            impl Iterator<Item = (u64, &'w [u8])> + Clone,
            impl Iterator<Item = (u64, &'w [u8])>,
            impl Iterator<Item = (u64, &'w [u8])>,
        >,
    ) -> Result<Lsn, CommitError> {
        for (offset, bytes) in writes.clone() {
            self.log.check_home(pmem, offset, bytes.len() as u64);
        }
        self.reserve(pmem, entries.len() as u64)?;
        self.log.settle(pmem, Some(self.index))?;
        if self.own.open > 0 {
            // What was written in place is durable before the group that says so.
            self.fence(pmem)?;
        }
        let lsn = self.lane.published.begin(&self.log.clock).ok_or(CommitError::LsnsExhausted)?;
        let first = self.own.head;
        for entry in entries {
            self.append(pmem, lsn, entry);
        }
        // Before anything is in flight, for until the fence is over each of these would wait for it. That others take the
        // lines for written already delays them, at worst.
        let own = &mut *self.own;
        let range = |(offset, bytes): (u64, &[u8])| (offset, bytes.len() as u64);
        home::for_each_line(writes.map(range), |line| {
            pmem.prefetch(line);
            self.lane.recent.note(line, lsn);
        });
        home::for_each_line(stores.behind.map(range), |line| own.homes.push(line));
        stores.ahead.clone().for_each(|(offset, bytes)| home::store(pmem, offset, bytes));
        home::for_each_line(stores.ahead.map(range), |line| own.pending.push(line));
        // DURABILITY POINT
        self.fence(pmem)?;
        for (offset, bytes) in stores.ordered {
            home::store(pmem, offset, bytes);
        }
        let own = &mut *self.own;
        core::mem::swap(&mut own.pending, &mut own.homes);
        if own.open > 0 {
            // Not before the group is durable: its other half would be missing. Not after this returns: what others write there next must
            // survive the corruption of the group's entries.
            self.end_undo(pmem, lsn);
            self.fence(pmem)?;
        }
        let own = &mut *self.own;
        (own.used, own.open) = (0, 0);
        #[expect(clippy::cast_possible_truncation, reason = "no more than the ring has")]
        self.lane.published.end(Group { lsn, first, count: entries.len() as u32 });
        Ok(lsn)
    }

    /// Commits what was written in place behind undo entries, and flushed: an empty group makes them dead.
    pub(super) fn commit_in_place<P: Pmem>(&mut self, pmem: &P) -> Result<Lsn, CommitError> {
        self.log.settle(pmem, Some(self.index))?;
        // What was written in place is durable before the group that says so.
        self.fence(pmem)?;
        let group = self.append_empty_group(pmem)?;
        self.end_undo(pmem, group.lsn);
        // DURABILITY POINT
        self.fence(pmem)?;
        self.lane.published.end(group);
        (self.own.used, self.own.open) = (0, 0);
        Ok(group.lsn)
    }

    /// As [`commit`](Self::commit) of what was written in place, without waiting for it: it becomes durable no later than the
    /// next commit of any lane, and all of it or nothing. Until then a crash may take it back.
    ///
    /// # Durability
    /// One fence, which is for what was written in place. The next commit flushes two lines: the entry, and the lane's header.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    ///
    /// # Source
    /// PMFS (EuroSys'14), 3.2: the barrier behind a commit entry may be left out.
    pub(crate) fn commit_lazy<P: Pmem>(&mut self, pmem: &P) -> Result<Lsn, CommitError> {
        self.log.check_open()?;
        if self.own.open == 0 {
            return Ok(Lsn::ZERO);
        }
        self.log.settle(pmem, Some(self.index))?;
        self.fence(pmem)?;
        let group = self.append_empty_group(pmem)?;
        self.end_undo(pmem, group.lsn);
        self.own.lazy = Some(Lazy { used: self.own.used });
        self.own.open = 0;
        let layout = &self.log.layout;
        let words = [layout.entry_offset(self.index, group.first), layout.undo_end_offset(self.index)];
        self.log.unsettled.add(self.index, words);
        self.lane.published.end_lazy(group);
        Ok(group.lsn)
    }

    /// Begins a commit, and appends a group that stores nothing.
    fn append_empty_group<P: Pmem>(&mut self, pmem: &P) -> Result<Group, CommitError> {
        self.reserve(pmem, 1)?;
        let lsn = self.lane.published.begin(&self.log.clock).ok_or(CommitError::LsnsExhausted)?;
        let first = self.own.head;
        let mut empty = entry::words(&[]);
        entry::make_commit(&mut empty, 1);
        self.append(pmem, lsn, &empty);
        Ok(Group { lsn, first, count: 1 })
    }

    /// Keeps what is at these bytes, durably. Afterwards the caller stores there as it likes, flushes what it stored, and
    /// [commits](Self::commit), [lazily](Self::commit_lazy) or not, or [takes it back](Self::roll_back). The same bytes may be kept
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
        let last = self.log.last_lsn(offset, len);
        if !self.log.is_reached(last) {
            self.log.raise_checkpoint(pmem, last)?;
        }
        // Each call has an LSN, so that recovery takes the later one back first.
        let lsn = self.log.clock.draw().ok_or(CommitError::LsnsExhausted)?;
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let mut data = [0; ENTRY_DATA_BYTES];
            let bytes = &mut data[..(end - at).min(DATA) as usize];
            pmem.load(at, bytes);
            self.append(pmem, lsn, &entry::undo(at, bytes));
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
            let lsn = self.slot_lsn(index);
            let is_ours = |record: &Record| record.kind == EntryKind::Undo && record.lsn == lsn;
            let record = Record::of(&entry::read(pmem, at), layout.seed, at).filter(is_ours);
            let record = record.ok_or_else(|| self.log.fail(CommitError::Corrupted { offset: at }))?;
            record.restore(pmem);
            let mut lines = Vec::new();
            record.for_each_home(|offset, bytes| lines.push((offset, bytes.len() as u64)));
            home::for_each_line(lines.into_iter(), |line| self.own.pending.push(line));
        }
        self.commit_in_place(pmem).map(drop::<Lsn>)
    }

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
    /// above the LSNs of the oldest entries of all rings is complete, and all that is live is above them
    /// ([`for_each_group`](super::recover::Replayed::for_each_pair)).
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
        // From the head on the ring's LSNs go up, so the last of them has the highest.
        #[expect(clippy::cast_possible_truncation, reason = "no more than half of the ring")]
        let last = self.slot(self.own.head + count as u32);
        let lsn = Lsn::new(self.own.slots[last as usize]);
        if self.log.is_reached(lsn) { Ok(()) } else { self.log.raise_checkpoint(pmem, lsn) }
    }

    /// Writes an entry to the ring, for which room was [reserved](Self::reserve). The next fence makes it durable.
    #[inline]
    pub(super) fn append<P: Pmem>(&mut self, pmem: &P, lsn: Lsn, entry: &LogEntry) {
        let layout = &self.log.layout;
        let offset = layout.entry_offset(self.index, self.own.head);
        entry::write(pmem, layout.seed, offset, lsn, entry);
        self.own.pending.push(offset);
        let head = self.own.head;
        self.own.slots[head as usize] = lsn.bits();
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

    /// The LSN of the entry in this slot.
    pub(super) fn slot_lsn(&self, index: u32) -> Lsn {
        Lsn::new(self.own.slots[index as usize])
    }

    /// Has the lane's header say that its undo entries up to `lsn` are dead, so that they are so without the entry that commits them,
    /// too: that one may be corrupted some day. The next fence makes it durable.
    pub(super) fn end_undo<P: Pmem>(&mut self, pmem: &P, lsn: Lsn) {
        let offset = self.log.layout.undo_end_offset(self.index);
        pmem.store_u64(offset, seal(lsn, self.log.layout.seed, offset, &[]));
        self.own.pending.push(line_start(offset));
    }

    /// The number of a slot, which may be counted past the end of the ring once.
    #[inline]
    pub(super) const fn slot(&self, index: u32) -> u32 {
        let entries = self.log.layout.lane_entries;
        if index < entries { index } else { index - entries }
    }
}
