//! A lane acquired by a thread, and its commits: reserve, append, fence, apply.

use super::checkpoint::Group;
use super::entry::{self, Entry, PAIRS};
use super::error::CommitError;
use super::handle::{Lane, LaneState, Log};
use super::writes::Writes;
use crate::format::{ENTRY_DATA_BYTES, EntryKind, LINE_BYTES, LogEntry, Lsn, seal};
use crate::locks::SpinGuard;
use crate::sync;
use pm_core::line::line_start;
use pm_core::{Pmem, bytes_of, bytes_of_slice};

const DATA: u64 = ENTRY_DATA_BYTES as u64;

/// A lane that this thread owns until the guard is dropped. Not `Send`: a fence waits only for flushes of its own thread.
#[derive(Debug)]
pub(crate) struct LaneGuard<'l> {
    log: &'l Log,
    lane: &'l Lane,
    index: u32,
    state: SpinGuard<'l, LaneState>,
}

/// The stores of a group: offsets and bytes.
struct Stores<Early, Late, Ordered> {
    /// Applied before the fence that commits the group; that fence makes them durable.
    early: Early,
    /// Applied after the fence. Sorted by offset, for flushing.
    late: Late,
    /// The stores of `late` in the order in which they are applied: bytes of new blocks before links to them.
    late_in_order: Ordered,
}

impl Drop for LaneGuard<'_> {
    fn drop(&mut self) {
        if self.state.open_undo_count > 0 || self.lane.published.is_committing() {
            // The incomplete transaction's entries must stay, and threads that wait for its end would wait forever. So all later commits fail.
            self.log.poison(CommitError::Abandoned);
        }
    }
}

impl<'l> LaneGuard<'l> {
    /// Acquires the lane that this thread owned last, or lane 0 if it has owned none. If that lane is not free, acquires another one. If no lane is
    /// free, waits for the lane that was tried first.
    ///
    /// Acquiring a lane while holding all of them deadlocks.
    #[inline(always)]
    pub(crate) fn acquire(log: &'l Log) -> Self {
        let last = log.last_lane();
        match log.lanes[last as usize].state.try_lock() {
            Some(state) => Self::of(log, last, state),
            None => Self::acquire_other(log, last),
        }
    }

    #[cold]
    fn acquire_other(log: &'l Log, last: u32) -> Self {
        Self::try_acquire(log).unwrap_or_else(|| Self::of(log, last, log.lanes[last as usize].state.lock()))
    }

    /// Like [`acquire`](Self::acquire), but returns `None` if no lane is free.
    pub(super) fn try_acquire(log: &'l Log) -> Option<Self> {
        let last = log.last_lane();
        for index in (last..log.layout.lane_count).chain(0..last) {
            if let Some(state) = log.lanes[index as usize].state.try_lock() {
                if index != last {
                    sync::set_lane_hint(log.layout.seed, index);
                }
                return Some(Self::of(log, index, state));
            }
        }
        None
    }

    #[inline]
    fn of(log: &'l Log, index: u32, mut state: SpinGuard<'l, LaneState>) -> Self {
        if !state.was_acquired {
            state.was_acquired = true;
            log.note_acquired(index);
        }
        // The next [`fence`](Self::fence) of this guard also flushes lines that the previous owner stored.
        sync::order_observed_stores_before_flushes();
        Self { log, lane: &log.lanes[index as usize], index, state }
    }

    /// Commits `writes` atomically and durably, and applies them. This also commits the changes that were made in place with [undo
    /// logging](Self::undo) and flushed.
    ///
    /// Returns the LSN of the commit, or zero, which is below all others, if there was nothing to commit.
    ///
    /// # Durability
    /// One fence, and a line for each entry and each target line. The lane's next commit flushes the target lines. If there are undo entries, one
    /// more line and one more fence, and another fence if there are also writes. When this returns, the transaction is durable. After a crash before
    /// that, recovery replays all of it or rolls all of it back.
    ///
    /// # Errors
    /// [`CommitError::TooLarge`] when the transaction needs more than half of the lane: nothing was changed. Other errors when a fence fails or has
    /// failed.
    ///
    /// # Panics
    /// When a write lies outside the region, or in the log.
    pub(crate) fn commit<P: Pmem>(&mut self, pmem: &P, writes: &Writes) -> Result<Lsn, CommitError> {
        self.log.check_open()?;
        if writes.is_empty() {
            return if self.state.open_undo_count == 0 { Ok(Lsn::ZERO) } else { self.commit_in_place(pmem) };
        }
        self.state.packer.pack(self.log.layout.seed, writes);
        let entries = core::mem::take(&mut self.state.packer.entries);
        let stores =
            Stores { early: writes.early(), late: writes.late(), late_in_order: writes.late_in_order() };
        let committed = self.commit_group(pmem, &entries, stores);
        self.state.packer.entries = entries;
        committed
    }

    /// [Commits](Self::commit) up to three words, each with its offset: block headers, links to blocks, and null links. Not for user data, which may
    /// look like [a block header](super::writes). A link never looks like one, because it is a multiple of 64.
    ///
    /// # Panics
    /// When there are no words, or more than three; and as for [`commit`](Self::commit).
    #[inline]
    pub(crate) fn commit_words<P: Pmem>(
        &mut self,
        pmem: &P,
        words: &[(u64, u64)],
    ) -> Result<Lsn, CommitError> {
        self.commit_words_early(pmem, words, 0)
    }

    /// [Commits words](Self::commit_words). The first `early_count` words are applied and durable before the others are stored. The caller ensures
    /// that until then nothing links to the targets of the early words, and no live entry stores there.
    ///
    /// # Panics
    /// As for [`commit_words`](Self::commit_words).
    #[inline]
    pub(crate) fn commit_words_early<P: Pmem>(
        &mut self,
        pmem: &P,
        words: &[(u64, u64)],
        early_count: usize,
    ) -> Result<Lsn, CommitError> {
        assert!((1..=PAIRS).contains(&words.len()), "one entry holds one to three words");
        self.log.check_open()?;
        let mut entry = entry::words(words);
        entry::make_commit(&mut entry, 1);
        let (early, late) = words.split_at(early_count);
        let stores =
            Stores { early: stores_of(early), late: stores_of(late), late_in_order: stores_of(late) };
        self.commit_group(pmem, &[entry], stores)
    }

    /// [Commits](Self::commit) bytes that fit into one entry.
    fn commit_bytes<P: Pmem>(&mut self, pmem: &P, offset: u64, bytes: &[u8]) -> Result<Lsn, CommitError> {
        let mut entry = entry::redo(offset, bytes);
        entry::make_commit(&mut entry, 1);
        let store = [(offset, bytes)].into_iter();
        let stores = Stores { early: [].into_iter(), late: store.clone(), late_in_order: store };
        self.commit_group(pmem, &[entry], stores)
    }

    /// Commits a group of these entries, and applies its stores.
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
        let targets = || stores.early.clone().map(range).chain(stores.late.clone().map(range));
        targets().for_each(|(offset, len)| self.log.check_target(pmem, offset, len));

        // Reserve.
        self.make_room(pmem, entries.len() as u64)?;
        self.log.persist_deferred(pmem, Some(self.index))?;
        if self.state.open_undo_count > 0 {
            // Changes in place must be durable before the group that commits them.
            self.fence(pmem)?;
        }

        // Append.
        let group = self.append_group(pmem, entries)?;
        // Prefetching before the fence keeps the stores in place from missing the cache. LSNs are noted before it, too, because later stores wait for
        // the fence. Noting the lines before the group is durable does no harm: at worst another thread waits needlessly.
        entry::lines(targets()).for_each(|line| {
            pmem.prefetch(line);
            self.lane.recent.note(line, group.lsn);
        });
        self.state.target_lines.extend(entry::lines(stores.late.clone().map(range)));
        stores.early.clone().for_each(|(offset, bytes)| entry::store(pmem, offset, bytes));
        self.state.lines_to_flush.extend(entry::lines(stores.early.clone().map(range)));

        // Fence.
        // DURABILITY POINT
        self.fence(pmem)?;

        // Apply.
        stores.late_in_order.for_each(|(offset, bytes)| entry::store(pmem, offset, bytes));
        let state = &mut *self.state;
        core::mem::swap(&mut state.lines_to_flush, &mut state.target_lines);
        if state.open_undo_count > 0 {
            // The lane's header must not mark the undo entries as dead before the group is durable: a crash in between would commit the changes in
            // place without the writes. It must mark them before this call returns. Otherwise, if an entry of the group were corrupted later,
            // recovery would roll the changes in place back, and revert stores that other threads have made there since.
            self.end_undo(pmem, group.lsn);
            self.fence(pmem)?;
        }
        (self.state.entries_since_durable, self.state.open_undo_count) = (0, 0);
        self.lane.published.end(group);
        self.log.assert_checkpoint_below(self.lane, group.lsn);
        Ok(group.lsn)
    }

    /// Commits changes that were made in place with undo logging and flushed. The group is empty; it makes the undo entries dead.
    fn commit_in_place<P: Pmem>(&mut self, pmem: &P) -> Result<Lsn, CommitError> {
        let group = self.append_empty_group(pmem)?;
        // DURABILITY POINT
        self.fence(pmem)?;
        (self.state.entries_since_durable, self.state.open_undo_count) = (0, 0);
        self.lane.published.end(group);
        Ok(group.lsn)
    }

    /// [Commits](Self::commit) changes made in place, without waiting until the commit is durable: the next commit of any lane, or closing the log,
    /// makes it durable. After a crash before that, recovery may roll the whole transaction back.
    ///
    /// # Durability
    /// One fence, for the changes in place. The next commit flushes two more lines: the entry, and the lane's header.
    ///
    /// # Errors
    /// As for [`commit`](Self::commit).
    ///
    /// # Source
    /// PMFS (EuroSys'14), 3.2: the barrier after the commit record is optional.
    pub(crate) fn commit_deferred<P: Pmem>(&mut self, pmem: &P) -> Result<Lsn, CommitError> {
        self.log.check_open()?;
        if self.state.open_undo_count == 0 {
            return Ok(Lsn::ZERO);
        }
        let group = self.append_empty_group(pmem)?;
        self.state.deferred_count = Some(self.state.entries_since_durable);
        self.state.open_undo_count = 0;
        let layout = &self.log.layout;
        let words = [layout.entry_offset(self.index, group.first), layout.undo_end_offset(self.index)];
        self.log.deferred.add(self.index, words);
        self.lane.published.end_deferred(group);
        Ok(group.lsn)
    }

    /// Makes the changes in place durable, and appends an empty group, which commits them.
    fn append_empty_group<P: Pmem>(&mut self, pmem: &P) -> Result<Group, CommitError> {
        self.log.persist_deferred(pmem, Some(self.index))?;
        self.fence(pmem)?;
        self.make_room(pmem, 1)?;
        let mut empty = entry::words(&[]);
        entry::make_commit(&mut empty, 1);
        let group = self.append_group(pmem, &[empty])?;
        self.end_undo(pmem, group.lsn);
        Ok(group)
    }

    /// Durably logs the contents of these bytes as undo entries. The caller then changes the bytes in place, flushes them, and
    /// [commits](Self::commit), [defers the commit](Self::commit_deferred), or [rolls back](Self::roll_back). If the same bytes are logged twice,
    /// rolling back restores the first contents.
    ///
    /// # Durability
    /// A line for each 48 bytes, and one fence.
    ///
    /// # Errors
    /// As for [`commit`](Self::commit). With [`CommitError::TooLarge`] nothing was changed, and earlier undo entries remain valid.
    ///
    /// # Panics
    /// When the bytes lie outside the region, or in the log.
    pub(crate) fn undo<P: Pmem>(&mut self, pmem: &P, offset: u64, len: u64) -> Result<(), CommitError> {
        self.log.check_open()?;
        self.log.check_target(pmem, offset, len);
        if len == 0 {
            return Ok(());
        }
        // One more entry is reserved for the group that makes these undo entries dead.
        let count = len.div_ceil(DATA);
        self.make_room(pmem, count + 1)?;
        // Recovery must not replay an earlier group over the bytes that the caller stores in place.
        let last = self.log.live_lsn_bound(offset, len);
        if !self.log.has_checkpoint_reached(last) {
            self.log.raise_checkpoint(pmem, last)?;
        }
        // Each call gets an LSN of its own, because recovery rolls back in descending order of LSNs.
        let lsn = self.log.counter.allocate().ok_or(CommitError::LsnsExhausted)?;
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let mut data = [0; ENTRY_DATA_BYTES];
            let bytes = &mut data[..(end - at).min(DATA) as usize];
            pmem.load(at, bytes);
            self.append(pmem, lsn, &entry::undo(at, bytes));
            self.state.open_undo_count += 1;
            at += bytes.len() as u64;
        }
        self.fence(pmem)
    }

    /// Rolls back the changes made in place since the last commit.
    ///
    /// # Durability
    /// Two fences, if there is anything to roll back. If a crash interrupts this, recovery rolls back.
    ///
    /// # Errors
    /// When a fence fails. When a failed fence or a panic has interrupted the commit: recovery on the next open decides the outcome. When an undo
    /// entry is [corrupted](CommitError::Corrupted): older undo entries of the transaction are not applied, and the log is poisoned.
    pub(crate) fn roll_back<P: Pmem>(&mut self, pmem: &P) -> Result<(), CommitError> {
        if self.state.open_undo_count == 0 {
            return Ok(());
        }
        // After a failed fence it is unknown what is durable, and nothing more is stored.
        self.log.check_not_poisoned()?;
        if self.lane.published.is_committing() {
            return Err(self.log.poison(CommitError::Abandoned));
        }
        let layout = &self.log.layout;
        for number in 1..=self.state.open_undo_count {
            let index = self.wrapped(self.state.head + layout.lane_entries - number);
            let at = layout.entry_offset(self.index, index);
            let lsn = Lsn::new(self.state.entry_lsns[index as usize]);
            let is_own = |entry: &Entry| entry.kind == EntryKind::Undo && entry.lsn == lsn;
            let entry = Entry::of(&entry::read(pmem, at), layout.seed, at).filter(is_own);
            let entry = entry.ok_or_else(|| self.log.poison(CommitError::Corrupted { offset: at }))?;
            entry.apply(pmem);
            self.state.lines_to_flush.extend(entry::lines(entry.targets().map(range)));
        }
        self.commit_in_place(pmem).map(drop::<Lsn>)
    }

    /// The number of entries that a transaction may use, including undo entries: half of the ring.
    ///
    /// The rest of the ring keeps the last durable group and its undo entries. That group makes these undo entries dead, so it must stay complete as
    /// long as they are in the ring, even if a crash interrupts the next transaction.
    const fn capacity(&self) -> u64 {
        (self.log.layout.lane_entries / 2) as u64
    }

    /// Makes room for `count` more entries of this transaction.
    ///
    /// Checks that the transaction then uses at most half of the ring. Then ensures that the `count` entries to overwrite, from the head on, are
    /// dead, and also the entry after them; raises the checkpoint LSN if necessary. The entry after them is not overwritten, so the oldest
    /// entry of each ring is always dead. [`Replayed::pairs`](super::Replayed::pairs) relies on this: let X be the highest LSN among the oldest
    /// entries of all rings. No entry above X was overwritten, and every live entry is above X.
    #[inline]
    fn make_room<P: Pmem>(&mut self, pmem: &P, count: u64) -> Result<(), CommitError> {
        if u64::from(self.state.entries_since_durable) + count > self.capacity()
            && self.state.deferred_count.is_some()
        {
            // Once the deferred commit is durable, its entries no longer count.
            self.fence(pmem)?;
        }
        let entries = u64::from(self.state.entries_since_durable) + count;
        if entries > self.capacity() {
            return Err(CommitError::TooLarge { entries, capacity: self.capacity() });
        }
        // LSNs increase from the head on, so the last of these entries has the highest LSN.
        #[expect(clippy::cast_possible_truncation, reason = "no more than half of the ring")]
        let last = self.wrapped(self.state.head + count as u32);
        let lsn = Lsn::new(self.state.entry_lsns[last as usize]);
        if self.log.has_checkpoint_reached(lsn) { Ok(()) } else { self.log.raise_checkpoint(pmem, lsn) }
    }

    /// Begins a commit: allocates its LSN and appends its group, for which there is [room](Self::make_room).
    #[inline]
    fn append_group<P: Pmem>(&mut self, pmem: &P, entries: &[LogEntry]) -> Result<Group, CommitError> {
        let lsn = self.lane.published.begin(&self.log.counter).ok_or(CommitError::LsnsExhausted)?;
        // Flushes the last group's targets now, so that they are written back while the new entries are written. The LSN is allocated before that,
        // because a locked instruction after the flushes would wait until they have completed.
        self.flush_listed(pmem);
        let first = self.state.head;
        for entry in entries {
            self.append(pmem, lsn, entry);
        }
        self.log.assert_checkpoint_below(self.lane, lsn);
        #[expect(clippy::cast_possible_truncation, reason = "at most the entries of the ring")]
        Ok(Group { lsn, first, count: entries.len() as u32 })
    }

    /// Writes an entry, for which there is [room](Self::make_room), to the ring. The next fence makes it durable.
    #[inline]
    fn append<P: Pmem>(&mut self, pmem: &P, lsn: Lsn, entry: &LogEntry) {
        let layout = &self.log.layout;
        let offset = layout.entry_offset(self.index, self.state.head);
        entry::write(pmem, layout.seed, offset, lsn, entry);
        self.state.lines_to_flush.push(offset);
        let head = self.state.head;
        self.state.entry_lsns[head as usize] = lsn.bits();
        self.state.head = self.wrapped(head + 1);
        self.state.entries_since_durable += 1;
    }

    /// Flushes the listed lines: appended entries, and the targets of the last group. This thread flushes them, even if another owner of
    /// the lane stored them, because a fence waits only for the flushes of its own thread.
    #[inline]
    fn flush_listed<P: Pmem>(&mut self, pmem: &P) {
        self.state.lines_to_flush.iter().for_each(|&line| pmem.flush(line, LINE_BYTES));
        self.state.lines_to_flush.clear();
    }

    /// Flushes the listed lines, and fences.
    #[track_caller]
    #[inline]
    fn fence<P: Pmem>(&mut self, pmem: &P) -> Result<(), CommitError> {
        self.flush_listed(pmem);
        self.log.fence(pmem)?;
        if let Some(used) = self.state.deferred_count.take() {
            self.state.entries_since_durable -= used;
            self.log.deferred.remove(self.index);
        }
        Ok(())
    }

    /// Records in the lane's header that its undo entries up to `lsn` are dead, in case the commit entry that makes them dead is corrupted later.
    /// The next fence makes this durable.
    fn end_undo<P: Pmem>(&mut self, pmem: &P, lsn: Lsn) {
        let offset = self.log.layout.undo_end_offset(self.index);
        pmem.store_u64(offset, seal(lsn, self.log.layout.seed, offset, &[]));
        self.state.lines_to_flush.push(line_start(offset));
    }

    /// `index` modulo the length of the ring. `index` is less than twice that length.
    #[inline]
    const fn wrapped(&self, index: u32) -> u32 {
        let entries = self.log.layout.lane_entries;
        if index < entries { index } else { index - entries }
    }
}

/// Stores one word durably: in place if no live entry stores to its line, and otherwise by a commit.
///
/// # Panics
/// When `offset` is not a multiple of 8, outside the region, or in the log.
///
/// # Durability
/// One line and one fence; with a commit two lines and one fence. After a crash the word has its old or its new value. If a live entry stores to the
/// line and no lane is free, the [checkpoint LSN is raised](Log::raise_checkpoint) instead, and the word is stored in place.
///
/// # Errors
/// As for [`commit`](LaneGuard::commit).
pub(crate) fn store_u64<P: Pmem>(log: &Log, pmem: &P, offset: u64, value: u64) -> Result<(), CommitError> {
    assert!(offset.is_multiple_of(8), "a word must be aligned, and offset {offset} is not");
    store_in_place(log, pmem, offset, &[value])
}

/// Like [`store_u64`], but stores two words atomically.
///
/// # Panics
/// When `offset` is not a multiple of 16, outside the region, or in the log.
///
/// # Durability
/// As for [`store_u64`].
///
/// # Errors
/// As for [`store_u64`].
pub(crate) fn store_u64_pair<P: Pmem>(
    log: &Log,
    pmem: &P,
    offset: u64,
    pair: [u64; 2],
) -> Result<(), CommitError> {
    assert!(offset.is_multiple_of(16), "an atomic pair must be aligned, and offset {offset} is not");
    store_in_place(log, pmem, offset, &pair)
}

/// Stores one or two words of one line.
#[inline]
fn store_in_place<P: Pmem>(log: &Log, pmem: &P, offset: u64, words: &[u64]) -> Result<(), CommitError> {
    let bytes = bytes_of_slice(words);
    let len = bytes.len() as u64;
    log.check_open()?;
    log.check_target(pmem, offset, len);
    let last = log.live_lsn_bound(offset, len);
    if !log.has_checkpoint_reached(last) {
        // Waiting for a lane could deadlock: this thread may own the only one.
        if let Some(mut lane) = LaneGuard::try_acquire(log) {
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

fn stores_of(words: &[(u64, u64)]) -> impl Iterator<Item = (u64, &[u8])> + Clone {
    words.iter().map(|(offset, word)| (*offset, bytes_of(word)))
}

const fn range((offset, bytes): (u64, &[u8])) -> (u64, u64) {
    (offset, bytes.len() as u64)
}
