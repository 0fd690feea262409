//! openraft's log over the storage.

use crate::error::StorageError;
use crate::program::Program;
use crate::storage::{Core, Writer};
use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{
    ErrorSubject, ErrorVerb, LogId, LogState, OptionalSend, RaftLogReader, StorageError as RaftError, Vote,
};
use pm_core::{Pmem, Region};
use std::fmt::{self, Debug};
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use tokio::sync::oneshot;

/// The length of entries that are sent together.
const MESSAGE_BYTES: usize = 1 << 20;

/// The log of a node. Clones are of the same log.
pub struct LogStore<C: Program, P: Pmem + Send + Sync + 'static = Region> {
    core: Arc<Core<C, P>>,
    /// Commits the writes, as long as this exists.
    writer: Arc<Writer<C, P>>,
}

impl<C: Program, P: Pmem + Send + Sync + 'static> Clone for LogStore<C, P> {
    fn clone(&self) -> Self {
        Self { core: Arc::clone(&self.core), writer: Arc::clone(&self.writer) }
    }
}

impl<C: Program, P: Pmem + Send + Sync + 'static> Debug for LogStore<C, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogStore").finish_non_exhaustive()
    }
}

type Outcome = Result<(), StorageError>;

impl<C: Program, P: Pmem + Send + Sync + 'static> LogStore<C, P> {
    pub(super) const fn new(core: Arc<Core<C, P>>, writer: Arc<Writer<C, P>>) -> Self {
        Self { core, writer }
    }

    /// Waits until all that was written before is durable: also the committed id, for which openraft does not wait.
    ///
    /// # Errors
    /// When a write has failed.
    pub async fn flush(&self) -> Result<(), StorageError> {
        let (done, written) = completion();
        self.core.flush(done);
        wait(written).await
    }
}

/// A function that is called with an outcome, and what waits for it.
pub(super) fn completion() -> (Box<dyn FnOnce(Outcome) + Send>, oneshot::Receiver<Outcome>) {
    let (sender, receiver) = oneshot::channel();
    // A caller that waits no more needs no outcome.
    (Box::new(move |outcome| drop(sender.send(outcome))), receiver)
}

/// The outcome of a write.
pub(super) async fn wait(written: oneshot::Receiver<Outcome>) -> Outcome {
    written.await.unwrap_or(Err(StorageError::Closed))
}

fn reading(error: StorageError) -> RaftError<u64> {
    error.of(ErrorSubject::Logs, ErrorVerb::Read)
}

fn writing(error: StorageError) -> RaftError<u64> {
    error.of(ErrorSubject::Logs, ErrorVerb::Write)
}

impl<C: Program, P: Pmem + Send + Sync + 'static> RaftLogReader<C> for LogStore<C, P> {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<C::Entry>, RaftError<u64>> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(end) => end.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        self.core.entries(start..end, usize::MAX).map_err(reading)
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<C::Entry>, RaftError<u64>> {
        self.core.entries(start..end, MESSAGE_BYTES).map_err(reading)
    }
}

impl<C: Program, P: Pmem + Send + Sync + 'static> RaftLogStorage<C> for LogStore<C, P> {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<C>, RaftError<u64>> {
        Ok(self.core.log_state())
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Result<(), RaftError<u64>> {
        let (done, written) = completion();
        self.core.save_vote(*vote, done);
        wait(written).await.map_err(|error| error.of(ErrorSubject::Vote, ErrorVerb::Write))
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<u64>>, RaftError<u64>> {
        Ok(self.core.vote())
    }

    /// Durable with the next batch. The state is durable by itself, so that openraft needs no older id than that of the state.
    async fn save_committed(&mut self, committed: Option<LogId<u64>>) -> Result<(), RaftError<u64>> {
        self.core.save_committed(committed, Box::new(drop));
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId<u64>>, RaftError<u64>> {
        Ok(self.core.committed())
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<C>) -> Result<(), RaftError<u64>>
    where
        I: IntoIterator<Item = C::Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let done =
            Box::new(|outcome: Outcome| callback.log_io_completed(outcome.map_err(StorageError::into_io)));
        self.core.append(entries, done).map_err(writing)
    }

    async fn truncate(&mut self, log_id: LogId<u64>) -> Result<(), RaftError<u64>> {
        let (done, written) = completion();
        self.core.truncate(log_id, done).map_err(writing)?;
        wait(written).await.map_err(writing)
    }

    async fn purge(&mut self, log_id: LogId<u64>) -> Result<(), RaftError<u64>> {
        let (done, written) = completion();
        self.core.purge(log_id, done);
        wait(written).await.map_err(writing)
    }
}
