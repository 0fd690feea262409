//! The log and the state of one store, without threads: writes wait until `drain` commits them.

use super::lengths::Lengths;
use super::pending::PendingPurges;
use super::queue::{Done, Queue, Request, Write};
use super::state::State;
use super::tables::{Applied, Tables};
use crate::codec::{decode, encode};
use crate::error::StorageError;
use crate::program::Program;
use openraft::{Entry, LogId, LogState, Vote};
use pm_btree::{Store, WriteBatch};
use pm_core::Pmem;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The log and the state.
pub(crate) struct Core<C: Program, P: Pmem> {
    tables: Arc<Tables<P>>,
    log: Mutex<LogMemory>,
    queue: Queue,
    state: State<P>,
    pending: PendingPurges,
    /// Why no more is written.
    failed: Mutex<Option<StorageError>>,
    /// Each write is committed by the thread that makes it.
    is_direct: bool,
    program: PhantomData<fn() -> C>,
}

/// What readers of the log see: writes that wait included.
#[derive(Debug, Default)]
struct LogMemory {
    purged: Option<LogId<u64>>,
    last: Option<LogId<u64>>,
    vote: Option<Vote<u64>>,
    committed: Option<LogId<u64>>,
    lengths: Lengths,
    /// Entries that are not durable yet.
    tail: BTreeMap<u64, Arc<Vec<u8>>>,
}

/// Takes no more writes if the thread that commits panics: openraft's task ends then, and what waits must not wait for ever.
struct Closing<'c, C: Program, P: Pmem + Send + Sync + 'static>(&'c Core<C, P>);

impl<C: Program, P: Pmem + Send + Sync + 'static> Drop for Closing<'_, C, P> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.close();
        }
    }
}

/// The index of an id, or 0 and up if there is none.
fn next_index(id: Option<LogId<u64>>) -> u64 {
    id.map_or(0, |id| id.index + 1)
}

impl<C: Program, P: Pmem + Send + Sync + 'static> Core<C, P> {
    /// Opens the tables. A crash may have left entries that were purged: they are removed.
    ///
    /// If `is_direct`, each write is committed before its call returns.
    pub(crate) fn open(store: Store<P>, is_direct: bool) -> Result<Self, StorageError> {
        let tables = Arc::new(Tables::open(store)?);
        let purged = tables.purged()?;
        if let Some(purged) = purged {
            tables.log.remove_range(..=purged.index)?;
        }
        let last = match tables.log.last()? {
            Some((_, entry)) => Some(decode::<Entry<C>>("entry", entry.value())?.log_id),
            None => purged,
        };
        let (vote, committed) = (tables.vote()?, tables.committed()?);
        let mut lengths = Lengths::default();
        for entry in tables.log.range(..) {
            let (index, entry) = entry?;
            lengths.push(index.value(), entry.value().len());
        }
        let log = LogMemory { purged, last, vote, committed, lengths, tail: BTreeMap::new() };
        let state = State::open(&tables)?;
        Ok(Self {
            tables,
            log: Mutex::new(log),
            queue: Queue::default(),
            state,
            pending: PendingPurges::default(),
            failed: Mutex::default(),
            is_direct,
            program: PhantomData,
        })
    }

    pub(crate) const fn state(&self) -> &State<P> {
        &self.state
    }

    pub(crate) const fn pending(&self) -> &PendingPurges {
        &self.pending
    }

    pub(crate) const fn queue(&self) -> &Queue {
        &self.queue
    }

    pub(crate) fn store(&self) -> &Store<P> {
        &self.tables.store
    }

    /// What a program has noted under a name.
    pub(crate) fn note(&self, name: &str) -> Result<Option<Vec<u8>>, StorageError> {
        Ok(self.tables.notes.get_with(name, <[u8]>::to_vec)?)
    }

    /// Notes a value under a name: durable when this returns.
    pub(crate) fn set_note(&self, name: &str, value: &[u8]) -> Result<(), StorageError> {
        self.tables.notes.insert(name, value)?;
        Ok(())
    }

    fn lock_log(&self) -> MutexGuard<'_, LogMemory> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn log_state(&self) -> LogState<C> {
        let log = self.lock_log();
        LogState { last_purged_log_id: log.purged, last_log_id: log.last }
    }

    /// The length of all entries.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.lock_log().lengths.total()
    }

    /// The last entry before the newest ones that together have at least this length.
    pub(crate) fn log_before_newest(&self, len_bytes: u64) -> Option<u64> {
        self.lock_log().lengths.before_newest(len_bytes)
    }

    pub(crate) fn vote(&self) -> Option<Vote<u64>> {
        self.lock_log().vote
    }

    pub(crate) fn committed(&self) -> Option<LogId<u64>> {
        self.lock_log().committed
    }

    /// The entries of a range that the log has, up to a length in bytes, but at least one.
    pub(crate) fn entries(
        &self,
        range: Range<u64>,
        limit_bytes: usize,
    ) -> Result<Vec<Entry<C>>, StorageError> {
        let (range, tail) = {
            let log = self.lock_log();
            let range = range.start.max(next_index(log.purged))..range.end.min(next_index(log.last));
            if range.is_empty() {
                return Ok(Vec::new());
            }
            let tail: Vec<_> =
                log.tail.range(range.clone()).map(|(index, entry)| (*index, Arc::clone(entry))).collect();
            (range, tail)
        };
        // What is not in the tail is in the table, unless it is purged meanwhile.
        let (mut entries, mut len_bytes) = (Vec::new(), 0);
        let tail_start = tail.first().map_or(range.end, |(index, _)| *index);
        for entry in self.tables.log.range(range.start..tail_start) {
            if len_bytes >= limit_bytes {
                return Ok(entries);
            }
            let (_, entry) = entry?;
            len_bytes += entry.value().len();
            entries.push(decode("entry", entry.value())?);
        }
        for (_, entry) in tail {
            if len_bytes >= limit_bytes {
                break;
            }
            len_bytes += entry.len();
            entries.push(decode("entry", &entry)?);
        }
        Ok(entries)
    }

    /// Adds entries to the log. They can be read when this returns, and are durable when `done` is called.
    pub(crate) fn append(
        &self,
        entries: impl IntoIterator<Item = Entry<C>>,
        done: Done,
    ) -> Result<(), StorageError> {
        let mut log = self.lock_log();
        let (mut last, mut encoded) = (log.last, Vec::new());
        for entry in entries {
            let (expected, found) = (next_index(last), entry.log_id.index);
            // A state that was received includes what was purged.
            if found < next_index(log.purged) {
                continue;
            }
            // The first entry of a log may have any index.
            if found != expected && last.is_some() {
                return Err(StorageError::Hole { expected, found });
            }
            last = Some(entry.log_id);
            encoded.push((found, Arc::new(encode("entry", &entry)?)));
        }
        log.last = last;
        encoded.iter().for_each(|(index, entry)| log.lengths.push(*index, entry.len()));
        log.tail.extend(encoded.iter().map(|(index, entry)| (*index, Arc::clone(entry))));
        self.push(log, Write::Append(encoded), done);
        Ok(())
    }

    pub(crate) fn save_vote(&self, vote: Vote<u64>, done: Done) {
        let mut log = self.lock_log();
        log.vote = Some(vote);
        self.push(log, Write::Vote(vote), done);
    }

    pub(crate) fn save_committed(&self, committed: Option<LogId<u64>>, done: Done) {
        let mut log = self.lock_log();
        log.committed = committed;
        self.push(log, Write::Committed(committed), done);
    }

    /// Removes the entries from an id on.
    pub(crate) fn truncate(&self, id: LogId<u64>, done: Done) -> Result<(), StorageError> {
        let mut log = self.lock_log();
        let (from, end) = (id.index, next_index(log.last));
        if let Some(purged) = log.purged
            && from <= purged.index
        {
            return Err(StorageError::Purged { from, purged: purged.index });
        }
        if from < end {
            let last = match from.checked_sub(1) {
                None => None,
                Some(index) if log.purged.is_some_and(|purged| purged.index == index) => log.purged,
                Some(index) => match log.tail.get(&index) {
                    Some(entry) => Some(decode::<Entry<C>>("entry", entry)?.log_id),
                    None => {
                        let entry = self.tables.log.get(index)?;
                        entry
                            .map(|entry| decode::<Entry<C>>("entry", entry.value()))
                            .transpose()?
                            .map(|entry| entry.log_id)
                    }
                },
            };
            log.tail.split_off(&from);
            log.lengths.truncate(from);
            log.last = last;
        }
        self.push(log, Write::Truncate { from, to: end }, done);
        Ok(())
    }

    /// Removes the entries up to an id: after the switch to the snapshot that includes them, if one is received.
    pub(crate) fn purge(&self, id: LogId<u64>, done: Done) {
        let is_applied = || self.state.applied().log_id.is_some_and(|applied| id.index <= applied.index);
        if let Err(done) = self.pending.keep(id, done, is_applied) {
            self.purge_now(id, done);
        }
    }

    fn purge_now(&self, id: LogId<u64>, done: Done) {
        let mut log = self.lock_log();
        log.purge(id);
        // At least what was purged before.
        let purged = log.purged.unwrap_or(id);
        self.push(log, Write::Purge(purged), done);
    }

    /// Makes a received state the present one.
    pub(crate) fn switch(&self, set: usize, applied: Applied, done: Done) {
        let log = self.lock_log();
        let purged = log.purged.max(applied.log_id);
        self.push(log, Write::Switch { set, applied, purged }, done);
    }

    /// Calls `done` when all writes before this call are durable.
    pub(crate) fn flush(&self, done: Done) {
        self.push(self.lock_log(), Write::Nothing, done);
    }

    /// Under the lock of the log, so that the queue has its order.
    fn push(&self, log: MutexGuard<'_, LogMemory>, write: Write, done: Done) {
        let pushed = self.queue.push(write, done);
        drop(log);
        match pushed {
            Err(done) => done(Err(StorageError::Closed)),
            Ok(()) if self.is_direct => {
                let _closing = Closing(self);
                // Another thread that commits may take it: then this one finds nothing.
                while self.drain() {}
            }
            Ok(()) => self.queue.notify(),
        }
    }

    /// Takes no more writes. Those that wait fail.
    pub(crate) fn close(&self) {
        self.queue.close();
        loop {
            let requests = self.queue.take();
            if requests.is_empty() {
                break;
            }
            requests.into_iter().for_each(|request| (request.done)(Err(StorageError::Closed)));
        }
        self.pending.fail(&StorageError::Closed);
    }

    /// Commits what waits, in one batch, and calls `done` of each request. Returns whether there was any.
    ///
    /// # Durability
    /// The requests are durable, all together, with one [`WriteBatch::commit`]; a crash before that leaves none of them. The removal of purged entries
    /// comes after it: a crash in it leaves some of them, and the next open removes them. After a failure nothing more is written, so that the log has no hole.
    pub(crate) fn drain(&self) -> bool {
        // Several threads may drain: what one takes first it commits first.
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let requests = self.queue.take();
        if requests.is_empty() {
            return false;
        }
        let result = match &*failed {
            Some(error) => Err(error.clone()),
            None => self.commit(&requests),
        };
        if let Err(error) = &result {
            failed.get_or_insert_with(|| error.clone());
        }
        drop(failed);
        let is_switched = matches!(requests[..], [Request { write: Write::Switch { .. }, .. }]);
        match &result {
            Ok(()) if is_switched => {
                self.pending.end().into_iter().for_each(|(id, done)| self.purge(id, done));
            }
            Ok(()) => {}
            // Nothing is written any more, so that no switch comes.
            Err(error) => self.pending.fail(error),
        }
        for request in requests {
            (request.done)(result.clone());
        }
        true
    }

    fn commit(&self, requests: &[Request]) -> Result<(), StorageError> {
        let mut batch = self.tables.store.batch();
        for request in requests {
            self.add(&mut batch, &request.write)?;
        }
        match requests {
            [Request { write: Write::Switch { set, applied, .. }, .. }] => {
                self.state.switch(batch, *set, applied)?
            }
            _ => batch.commit()?,
        }
        for request in requests {
            self.committed_write(&request.write)?;
        }
        Ok(())
    }

    fn add(&self, batch: &mut WriteBatch<P>, write: &Write) -> Result<(), StorageError> {
        match write {
            Write::Append(entries) => {
                entries
                    .iter()
                    .try_for_each(|(index, entry)| batch.insert(&self.tables.log, *index, entry))?;
            }
            Write::Vote(vote) => self.tables.put_vote(batch, vote)?,
            Write::Committed(committed) => self.tables.put_committed(batch, committed)?,
            Write::Truncate { from, to } => {
                (*from..*to).try_for_each(|index| batch.remove(&self.tables.log, index))?;
            }
            Write::Purge(id) => self.tables.put_purged(batch, id)?,
            Write::Switch { set, applied, purged } => {
                self.tables.put_set(batch, *set)?;
                self.tables.put_applied(batch, applied)?;
                if let Some(id) = purged {
                    self.tables.put_purged(batch, id)?;
                }
            }
            Write::Nothing => {}
        }
        Ok(())
    }

    /// What follows a write that is durable.
    fn committed_write(&self, write: &Write) -> Result<(), StorageError> {
        match write {
            Write::Append(entries) => {
                let mut log = self.lock_log();
                for (index, entry) in entries {
                    // After a truncation another entry may have this index.
                    if log.tail.get(index).is_some_and(|tail| Arc::ptr_eq(tail, entry)) {
                        log.tail.remove(index);
                    }
                }
            }
            Write::Purge(id) => {
                self.tables.log.remove_range(..=id.index)?;
            }
            Write::Switch { purged: Some(id), .. } => {
                self.lock_log().purge(*id);
                self.tables.log.remove_range(..=id.index)?;
            }
            _ => {}
        }
        Ok(())
    }
}

impl LogMemory {
    fn purge(&mut self, id: LogId<u64>) {
        self.purged = self.purged.max(Some(id));
        if self.last.is_none_or(|last| last.index < id.index) {
            self.last = Some(id);
        }
        self.lengths.purge(id.index);
        self.tail = self.tail.split_off(&(id.index + 1));
    }
}
