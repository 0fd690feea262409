//! A lane acquired by a thread, and its commits: reserve, append, fence, apply.

use super::checkpoint::Group;
use super::entry::{self, PAIRS, Record};
use super::error::CommitError;
use super::handle::{Lane, Log, Own};
use super::writes::Writes;
use crate::format::{ENTRY_DATA_BYTES, EntryKind, LINE_BYTES, LogEntry, Lsn, seal};
use crate::quiet_lock::QuietGuard;
use crate::sync;
use pm_core::line::line_start;
use pm_core::{Pmem, bytes_of, bytes_of_slice};

const DATA: u64 = ENTRY_DATA_BYTES as u64;

/// Exclusive use of a lane, until it is dropped. It stays on its thread.
#[derive(Debug)]
pub(crate) struct LaneGuard<'l> {
    log: &'l Log,
    lane: &'l Lane,
    index: u32,
    /// Not `Send`: a fence waits for the flushes of its own thread only.
    own: QuietGuard<'l, Own>,
}

/// The stores of a group, each an offset and its bytes.
struct Stores<A, B, O> {
    /// Applied before the fence that commits the group, and durable by it.
    ahead: A,
    /// Applied after the fence. Sorted.
    behind: B,
    /// The same, in the order in which other threads may see them.
    ordered: O,
}

impl Drop for LaneGuard<'_> {
    fn drop(&mut self) {
        if self.own.open > 0 || self.lane.published.is_under_way() {
            // Nothing may overwrite an incomplete transaction, and no thread may wait for it: the next commit gets the error.
            self.log.fail(CommitError::Abandoned);
        }
    }
}

impl<'l> LaneGuard<'l> {
    /// Acquires the lane that this thread had last, or any free one. If none is free, waits for the former.
    ///
    /// Acquiring a lane while holding all of them deadlocks.
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
        // The next fence flushes what the lane's former thread stored.
        sync::before_flushing_others_stores();
        Self { log, lane: &log.lanes[index as usize], index, own }
    }

    /// Commits `writes` atomically and durably, and applies them. What was changed in place behind [undo entries](Self::undo), and flushed,
    /// commits with them.
    ///
    /// Returns the LSN of the commit, or zero, which is below all others, if there was nothing to do.
    ///
    /// # Durability
    /// One fence, and a line for each entry and each target line; target lines are flushed by the lane's next commit. With undo
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
        let stores = Stores { ahead: writes.ahead(), behind: writes.behind(), ordered: writes.ordered() };
        let committed = self.commit_group(pmem, &entries, stores);
        self.own.packer.entries = entries;
        committed
    }

    /// As [`commit`](Self::commit) of a few words, each at its offset: block headers, links to blocks, and null. Not for a user's words,
    /// which may look like [headers at their offset](super::writes). A link cannot, because it is a multiple of 64.
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

    /// As [`commit_words`](Self::commit_words). The first `ahead` of the words are applied and durable before any other of them is stored:
    /// nothing links to their targets before, and no live entry stores there.
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
            Stores { ahead: stores_of(ahead), behind: stores_of(behind), ordered: stores_of(behind) };
        self.commit_group(pmem, &[entry], stores)
    }

    /// As [`commit`](Self::commit) of bytes that fit into one entry.
    fn commit_bytes<P: Pmem>(&mut self, pmem: &P, offset: u64, bytes: &[u8]) -> Result<Lsn, CommitError> {
        let mut entry = entry::redo(offset, bytes);
        entry::make_commit(&mut entry, 1);
        let store = [(offset, bytes)].into_iter();
        let stores = Stores { ahead: [].into_iter(), behind: store.clone(), ordered: store };
        self.commit_group(pmem, &[entry], stores)
    }

    /// Commits a group of these entries, and applies what they store.
    #[inline]
    fn commit_group<'w, P: Pmem>(
        &mut self,
        pmem: &P,
        entries: &[LogEntry],
        stores: Stores<
            impl Iterator<Item = (u64, &'w [u8])> + Clone,
            impl Iterator<Item = (u64, &'w [u8])> + Clone,
            impl Iterator<Item = (u64, &'w [u8])>,
        >,
    ) -> Result<Lsn, CommitError> {
        let targets = || stores.ahead.clone().map(range).chain(stores.behind.clone().map(range));
        targets().for_each(|(offset, len)| self.log.check_target(pmem, offset, len));

        // Reserve.
        self.reserve(pmem, entries.len() as u64)?;
        self.log.persist_deferred(pmem, Some(self.index))?;
        if self.own.open > 0 {
            // What was changed in place is durable before the group that commits it.
            self.fence(pmem)?;
        }

        // Append.
        let group = self.append_group(pmem, entries)?;
        // Before the flushes: behind them these would stall until the fence completes. Other threads that find the lines noted too early
        // are delayed at worst.
        entry::for_each_line(targets(), |line| {
            pmem.prefetch(line);
            self.lane.recent.note(line, group.lsn);
        });
        let own = &mut *self.own;
        entry::for_each_line(stores.behind.clone().map(range), |line| own.targets.push(line));
        stores.ahead.clone().for_each(|(offset, bytes)| entry::store(pmem, offset, bytes));
        entry::for_each_line(stores.ahead.clone().map(range), |line| own.pending.push(line));

        // Fence.
        // DURABILITY POINT
        self.fence(pmem)?;

        // Apply.
        stores.ordered.for_each(|(offset, bytes)| entry::store(pmem, offset, bytes));
        let own = &mut *self.own;
        core::mem::swap(&mut own.pending, &mut own.targets);
        if own.open > 0 {
            // Not before the group is durable: the writes would be missing. Not after this returns: what other threads store there next must
            // survive a later corruption of the group's entries.
            self.end_undo(pmem, group.lsn);
            self.fence(pmem)?;
        }
        (self.own.used, self.own.open) = (0, 0);
        self.lane.published.end(group);
        Ok(group.lsn)
    }

    /// Commits what was changed in place behind undo entries, and flushed, by an empty group, which ends the undo entries.
    fn commit_in_place<P: Pmem>(&mut self, pmem: &P) -> Result<Lsn, CommitError> {
        let group = self.append_empty_group(pmem)?;
        // DURABILITY POINT
        self.fence(pmem)?;
        (self.own.used, self.own.open) = (0, 0);
        self.lane.published.end(group);
        Ok(group.lsn)
    }

    /// As [`commit`](Self::commit) of what was changed in place, without waiting until it is durable: the next commit of any lane, or
    /// closing the log, makes it so. A crash before that may roll the transaction back, as a whole.
    ///
    /// # Durability
    /// One fence, for what was changed in place. The next commit flushes two lines: the entry, and the lane's header.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    ///
    /// # Source
    /// PMFS (EuroSys'14), 3.2: the barrier behind the commit record is optional.
    pub(crate) fn commit_deferred<P: Pmem>(&mut self, pmem: &P) -> Result<Lsn, CommitError> {
        self.log.check_open()?;
        if self.own.open == 0 {
            return Ok(Lsn::ZERO);
        }
        let group = self.append_empty_group(pmem)?;
        self.own.deferred = Some(self.own.used);
        self.own.open = 0;
        let layout = &self.log.layout;
        let words = [layout.entry_offset(self.index, group.first), layout.undo_end_offset(self.index)];
        self.log.deferred.add(self.index, words);
        self.lane.published.end_deferred(group);
        Ok(group.lsn)
    }

    /// Makes durable what was changed in place, and appends a group without stores that commits it.
    fn append_empty_group<P: Pmem>(&mut self, pmem: &P) -> Result<Group, CommitError> {
        self.log.persist_deferred(pmem, Some(self.index))?;
        self.fence(pmem)?;
        self.reserve(pmem, 1)?;
        let mut empty = entry::words(&[]);
        entry::make_commit(&mut empty, 1);
        let group = self.append_group(pmem, &[empty])?;
        self.end_undo(pmem, group.lsn);
        Ok(group)
    }

    /// Logs the contents of these bytes as undo entries, durably. Afterwards the caller stores there without the log, flushes what it
    /// stored, and [commits](Self::commit), possibly [deferred](Self::commit_deferred), or [rolls back](Self::roll_back). If the same bytes
    /// are logged twice, rolling back restores the first contents.
    ///
    /// # Durability
    /// A line for each 48 bytes, and one fence.
    ///
    /// # Errors
    /// As [`commit`](Self::commit). When the lane has no room, nothing was changed, and what was logged before still counts.
    ///
    /// # Panics
    /// When the bytes lie outside of the region, or in the log.
    pub(crate) fn undo<P: Pmem>(&mut self, pmem: &P, offset: u64, len: u64) -> Result<(), CommitError> {
        self.log.check_open()?;
        self.log.check_target(pmem, offset, len);
        if len == 0 {
            return Ok(());
        }
        // One more for the group that ends them.
        let count = len.div_ceil(DATA);
        self.reserve(pmem, count + 1)?;
        // Recovery must replay nothing over what the caller stores in place.
        let last = self.log.last_lsn(offset, len);
        if !self.log.is_reached(last) {
            self.log.raise_checkpoint(pmem, last)?;
        }
        // Each call has its own LSN, so that recovery rolls the later one back first.
        let lsn = self.log.counter.allocate().ok_or(CommitError::LsnsExhausted)?;
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

    /// Rolls back what was changed in place since the last commit.
    ///
    /// # Durability
    /// Two fences, if there is anything to roll back. After a crash inside, recovery rolls back.
    ///
    /// # Errors
    /// When a fence fails; or when a fence or a panic interrupted the commit, which may be durable then: recovery on the next open decides.
    /// When an undo entry is [corrupted](CommitError::Corrupted): older ones of the transaction are not rolled back, and the log is
    /// poisoned.
    pub(crate) fn roll_back<P: Pmem>(&mut self, pmem: &P) -> Result<(), CommitError> {
        if self.own.open == 0 {
            return Ok(());
        }
        // After a failed fence it is unknown what is durable, and nothing more is stored.
        self.log.check()?;
        if self.lane.published.is_under_way() {
            return Err(self.log.fail(CommitError::Abandoned));
        }
        let layout = &self.log.layout;
        for number in 1..=self.own.open {
            let index = self.slot(self.own.head + layout.lane_entries - number);
            let at = layout.entry_offset(self.index, index);
            let lsn = Lsn::new(self.own.slots[index as usize]);
            let is_own = |record: &Record| record.kind == EntryKind::Undo && record.lsn == lsn;
            let record = Record::of(&entry::read(pmem, at), layout.seed, at).filter(is_own);
            let record = record.ok_or_else(|| self.log.fail(CommitError::Corrupted { offset: at }))?;
            record.apply(pmem);
            entry::for_each_line(record.targets().map(range), |line| self.own.pending.push(line));
        }
        self.commit_in_place(pmem).map(drop::<Lsn>)
    }

    /// How many entries a transaction may have, undo entries included: half of the ring.
    ///
    /// The other half holds the last durable group and its undo entries, so that group is always complete. It marks the undo entries before
    /// it as dead, and must outlive them, whatever a crash leaves of the lines that are being overwritten.
    const fn capacity(&self) -> u64 {
        (self.log.layout.lane_entries / 2) as u64
    }

    /// Makes sure that `count` more entries can be appended: the transaction may have them, and those that they overwrite are dead, and so
    /// is the next one. So the oldest entry of a ring is always dead: above the LSNs of the oldest entries of all rings nothing is
    /// missing, and everything live is above them (see [`Replayed::pairs`](super::Replayed::pairs)).
    #[inline]
    fn reserve<P: Pmem>(&mut self, pmem: &P, count: u64) -> Result<(), CommitError> {
        if u64::from(self.own.used) + count > self.capacity() && self.own.deferred.is_some() {
            // Once a deferred commit is durable, its entries do not count any more.
            self.fence(pmem)?;
        }
        let entries = u64::from(self.own.used) + count;
        if entries > self.capacity() {
            return Err(CommitError::TooLarge { entries, capacity: self.capacity() });
        }
        // From the head on the ring's LSNs increase, so the last of these slots has the highest.
        #[expect(clippy::cast_possible_truncation, reason = "no more than half of the ring")]
        let last = self.slot(self.own.head + count as u32);
        let lsn = Lsn::new(self.own.slots[last as usize]);
        if self.log.is_reached(lsn) { Ok(()) } else { self.log.raise_checkpoint(pmem, lsn) }
    }

    /// Begins a commit: allocates its LSN and appends its group, for which room was [reserved](Self::reserve).
    #[inline]
    fn append_group<P: Pmem>(&mut self, pmem: &P, entries: &[LogEntry]) -> Result<Group, CommitError> {
        let lsn = self.lane.published.begin(&self.log.counter).ok_or(CommitError::LsnsExhausted)?;
        let first = self.own.head;
        for entry in entries {
            self.append(pmem, lsn, entry);
        }
        #[expect(clippy::cast_possible_truncation, reason = "no more than the ring has")]
        Ok(Group { lsn, first, count: entries.len() as u32 })
    }

    /// Writes an entry to the ring, for which room was [reserved](Self::reserve). The next fence makes it durable.
    #[inline]
    fn append<P: Pmem>(&mut self, pmem: &P, lsn: Lsn, entry: &LogEntry) {
        let layout = &self.log.layout;
        let offset = layout.entry_offset(self.index, self.own.head);
        entry::write(pmem, layout.seed, offset, lsn, entry);
        self.own.pending.push(offset);
        let head = self.own.head;
        self.own.slots[head as usize] = lsn.bits();
        self.own.head = self.slot(head + 1);
        self.own.used += 1;
    }

    /// Flushes the appended entries and the targets of the last group, and fences. This thread flushes them, even if the lane's former
    /// thread stored them, because a fence waits only for the flushes of its own thread. Between two fences of a lane no flush is in
    /// flight: a locked instruction would wait for it, as a fence does.
    #[track_caller]
    #[inline]
    fn fence<P: Pmem>(&mut self, pmem: &P) -> Result<(), CommitError> {
        self.own.pending.drain(..).for_each(|line| pmem.flush(line, LINE_BYTES));
        self.log.fence(pmem)?;
        if let Some(used) = self.own.deferred.take() {
            self.own.used -= used;
            self.log.deferred.remove(self.index);
        }
        Ok(())
    }

    /// Stores in the lane's header that its undo entries up to `lsn` are dead, in case the commit entry that ends them is corrupted later.
    /// The next fence makes it durable.
    fn end_undo<P: Pmem>(&mut self, pmem: &P, lsn: Lsn) {
        let offset = self.log.layout.undo_end_offset(self.index);
        pmem.store_u64(offset, seal(lsn, self.log.layout.seed, offset, &[]));
        self.own.pending.push(line_start(offset));
    }

    /// The slot with this number, which may be counted past the end of the ring once.
    #[inline]
    const fn slot(&self, number: u32) -> u32 {
        let entries = self.log.layout.lane_entries;
        if number < entries { number } else { number - entries }
    }
}

/// Stores one word durably: in place, if no live entry stores to its line, and otherwise by a commit.
///
/// # Panics
/// When `offset` is no multiple of 8, outside of the region, or in the log.
///
/// # Durability
/// One line and one fence; with a commit two lines and one fence. A crash leaves the old word or the new one. If a live entry stores to
/// the line and all lanes are acquired, the [checkpoint LSN is raised](Log::raise_checkpoint) first.
///
/// # Errors
/// As [`commit`](LaneGuard::commit).
pub(crate) fn store_u64<P: Pmem>(log: &Log, pmem: &P, offset: u64, value: u64) -> Result<(), CommitError> {
    assert!(offset.is_multiple_of(8), "a word must be aligned, and offset {offset} is not");
    store_in_place(log, pmem, offset, &[value])
}

/// As [`store_u64`], of two words, atomically.
///
/// # Panics
/// When `offset` is no multiple of 16, outside of the region, or in the log.
///
/// # Durability
/// As [`store_u64`].
///
/// # Errors
/// As [`store_u64`].
pub(crate) fn store_u64_pair<P: Pmem>(
    log: &Log,
    pmem: &P,
    offset: u64,
    pair: [u64; 2],
) -> Result<(), CommitError> {
    assert!(offset.is_multiple_of(16), "an atomic pair must be aligned, and offset {offset} is not");
    store_in_place(log, pmem, offset, &pair)
}

/// Stores one word or two of one line.
#[inline]
fn store_in_place<P: Pmem>(log: &Log, pmem: &P, offset: u64, words: &[u64]) -> Result<(), CommitError> {
    let bytes = bytes_of_slice(words);
    let len = bytes.len() as u64;
    log.check_open()?;
    log.check_target(pmem, offset, len);
    let last = log.last_lsn(offset, len);
    if !log.is_reached(last) {
        // Waiting for a lane could deadlock: this thread may hold the only one.
        if let Some(mut lane) = LaneGuard::try_take(log) {
            return lane.commit_bytes(pmem, offset, bytes).map(drop);
        }
        log.raise_checkpoint(pmem, last)?;
    }
    log.persist_deferred(pmem, None)?;
    match *words {
        [word] => pmem.store_u64(offset, word),
        [low, high] => pmem.store_u128(offset, u128::from(high) << 64 | u128::from(low)),
        _ => unreachable!("one word or two"),
    }
    pmem.flush(offset, len);
    // DURABILITY POINT
    log.fence(pmem)
}

/// Words, each at its offset, as stores of bytes.
fn stores_of(words: &[(u64, u64)]) -> impl Iterator<Item = (u64, &[u8])> + Clone {
    words.iter().map(|(offset, word)| (*offset, bytes_of(word)))
}

const fn range((offset, bytes): (u64, &[u8])) -> (u64, u64) {
    (offset, bytes.len() as u64)
}
