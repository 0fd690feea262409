//! Committing: entries, one fence, and then in place.

use super::entry::{self, PAIRS};
use super::error::CommitError;
use super::home;
use super::horizon::Group;
use super::lane::{LaneGuard, Lazy};
use super::writes::Writes;
use crate::format::{LogEntry, Stamp};
use pm_core::{Pmem, bytes_of};

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

impl LaneGuard<'_> {
    /// Makes the writes durable, all or none, and stores them in place. What was written in place behind
    /// [undo entries](Self::undo), and flushed, becomes durable with them.
    ///
    /// The stamp is that of the commit, or zero, which is before everything, when there was nothing to do.
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
    pub(crate) fn commit<P: Pmem>(&mut self, pmem: &P, writes: &Writes) -> Result<Stamp, CommitError> {
        self.log.check_open()?;
        if writes.is_empty() {
            return if self.own.open == 0 { Ok(Stamp::ZERO) } else { self.commit_in_place(pmem) };
        }
        self.own.packer.pack(self.log.layout.seed, writes);
        let entries = core::mem::take(&mut self.own.packer.entries);
        let stores = Stores { ahead: writes.ahead(), behind: writes.behind(), ordered: writes.stores() };
        let committed = self.commit_group(pmem, &entries, writes.iter(), stores);
        self.own.packer.entries = entries;
        committed
    }

    /// As [`commit`](Self::commit) of a few words, each at its offset: headers of blocks, links to blocks, and null. Not
    /// for words of a user, which may be [headers at their place](super::pack). A link cannot be one, as it is a multiple
    /// of 64.
    ///
    /// # Panics
    /// When there are none, or more than an entry holds; and as [`commit`](Self::commit).
    #[inline]
    pub(crate) fn commit_words<P: Pmem>(
        &mut self,
        pmem: &P,
        words: &[(u64, u64)],
    ) -> Result<Stamp, CommitError> {
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
    ) -> Result<Stamp, CommitError> {
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
    ) -> Result<Stamp, CommitError> {
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
    ) -> Result<Stamp, CommitError> {
        for (offset, bytes) in writes.clone() {
            self.log.check_home(pmem, offset, bytes.len() as u64);
        }
        self.reserve(pmem, entries.len() as u64)?;
        self.log.settle(pmem, Some(self.index))?;
        if self.own.open > 0 {
            // What was written in place is durable before the group that says so.
            self.fence(pmem)?;
        }
        let stamp = self.lane.published.begin(&self.log.clock).ok_or(CommitError::StampsUsedUp)?;
        let first = self.own.head;
        for entry in entries {
            self.append(pmem, stamp, entry);
        }
        // Before anything is in flight, for until the fence is over each of these would wait for it. That others take the
        // lines for written already delays them, at worst.
        let own = &mut *self.own;
        let range = |(offset, bytes): (u64, &[u8])| (offset, bytes.len() as u64);
        home::for_each_line(writes.map(range), |line| {
            pmem.prefetch(line);
            self.lane.recent.note(line, stamp);
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
            self.end_undo(pmem, stamp);
            self.fence(pmem)?;
        }
        let own = &mut *self.own;
        (own.used, own.open) = (0, 0);
        #[expect(clippy::cast_possible_truncation, reason = "no more than the ring has")]
        self.lane.published.end(Group { stamp, first, count: entries.len() as u32 });
        Ok(stamp)
    }

    /// Commits what was written in place behind undo entries, and flushed: an empty group makes them dead.
    pub(super) fn commit_in_place<P: Pmem>(&mut self, pmem: &P) -> Result<Stamp, CommitError> {
        self.log.settle(pmem, Some(self.index))?;
        // What was written in place is durable before the group that says so.
        self.fence(pmem)?;
        let group = self.append_empty_group(pmem)?;
        self.end_undo(pmem, group.stamp);
        // DURABILITY POINT
        self.fence(pmem)?;
        self.lane.published.end(group);
        (self.own.used, self.own.open) = (0, 0);
        Ok(group.stamp)
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
    pub(crate) fn commit_lazily<P: Pmem>(&mut self, pmem: &P) -> Result<Stamp, CommitError> {
        self.log.check_open()?;
        if self.own.open == 0 {
            return Ok(Stamp::ZERO);
        }
        self.log.settle(pmem, Some(self.index))?;
        self.fence(pmem)?;
        let group = self.append_empty_group(pmem)?;
        self.end_undo(pmem, group.stamp);
        self.own.lazy = Some(Lazy { used: self.own.used });
        self.own.open = 0;
        let layout = &self.log.layout;
        let words = [layout.entry_offset(self.index, group.first), layout.undo_end_offset(self.index)];
        self.log.unsettled.add(self.index, words);
        self.lane.published.end_lazily(group);
        Ok(group.stamp)
    }

    /// Begins a commit, and appends a group that stores nothing.
    fn append_empty_group<P: Pmem>(&mut self, pmem: &P) -> Result<Group, CommitError> {
        self.reserve(pmem, 1)?;
        let stamp = self.lane.published.begin(&self.log.clock).ok_or(CommitError::StampsUsedUp)?;
        let first = self.own.head;
        let mut empty = entry::words(&[]);
        entry::make_commit(&mut empty, 1);
        self.append(pmem, stamp, &empty);
        Ok(Group { stamp, first, count: 1 })
    }
}
