//! The writes that wait for the writer.

use super::tables::Applied;
use crate::error::StorageError;
use openraft::{LogId, Vote};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The length of entries after which the writer commits what it has taken.
const BATCH_BYTES: usize = 16 << 20;

/// A write of the log, or a switch to a received state.
#[derive(Debug)]
pub(crate) enum Write {
    /// Entries with their indexes.
    Append(Vec<(u64, Arc<Vec<u8>>)>),
    Vote(Vote<u64>),
    Committed(Option<LogId<u64>>),
    /// Removes the entries of these indexes.
    Truncate {
        from: u64,
        to: u64,
    },
    /// Removes all entries up to this one.
    Purge(LogId<u64>),
    /// Makes the state in a set of tables the present one.
    Switch {
        set: usize,
        applied: Applied,
        /// The last entry that the log does not have then.
        purged: Option<LogId<u64>>,
    },
    /// Changes nothing: what was written before it is durable when it is.
    Nothing,
}

impl Write {
    fn len_bytes(&self) -> usize {
        match self {
            Self::Append(entries) => entries.iter().map(|(_, bytes)| bytes.len()).sum(),
            _ => 0,
        }
    }
}

/// Is called when a write is durable, or fails.
pub(crate) type Done = Box<dyn FnOnce(Result<(), StorageError>) + Send>;

/// A write, and what is called after it.
pub(crate) struct Request {
    pub(crate) write: Write,
    pub(crate) done: Done,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Request").field(&self.write).finish()
    }
}

/// The requests in the order of their calls.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    requests: VecDeque<Request>,
    is_closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request. Returns its function if the queue is closed.
    pub(crate) fn push(&self, write: Write, done: Done) -> Result<(), Done> {
        let mut waiting = self.lock();
        if waiting.is_closed {
            return Err(done);
        }
        waiting.requests.push_back(Request { write, done });
        Ok(())
    }

    /// Wakes the thread that waits for a request.
    pub(crate) fn notify(&self) {
        self.changed.notify_one();
    }

    /// Takes what waits, up to a length. A switch comes alone.
    pub(crate) fn take(&self) -> Vec<Request> {
        let mut waiting = self.lock();
        let (mut taken, mut len_bytes) = (Vec::new(), 0);
        while len_bytes < BATCH_BYTES {
            let is_switch = |request: &Request| matches!(request.write, Write::Switch { .. });
            match waiting.requests.front() {
                None => break,
                Some(next) if is_switch(next) && !taken.is_empty() => break,
                Some(next) => len_bytes += next.write.len_bytes(),
            }
            taken.extend(waiting.requests.pop_front());
            if taken.last().is_some_and(is_switch) {
                break;
            }
        }
        taken
    }

    /// Waits for a request. False when the queue is closed and empty.
    pub(crate) fn wait(&self) -> bool {
        let mut waiting = self.lock();
        while waiting.requests.is_empty() {
            if waiting.is_closed {
                return false;
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        true
    }

    /// Takes no more requests.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }
}
