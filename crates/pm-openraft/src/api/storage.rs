//! The storage of a node: opens it, and has the thread that writes the log.

use super::log_store::LogStore;
use super::machine::StateMachine;
use super::room::Room;
use crate::error::StorageError;
use crate::program::Program;
use crate::snapshot::Entries;
use crate::storage::{Applied, Core, Writer};
use pm_btree::Store;
use pm_core::{Domain, Pmem, Region};
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

/// The log and the state of a node, in one store. The store has no other use.
pub struct Storage<C: Program, P: Pmem + Send + Sync + 'static = Region> {
    core: Arc<Core<C, P>>,
    writer: Arc<Writer<C, P>>,
}

impl<C: Program, P: Pmem + Send + Sync + 'static> fmt::Debug for Storage<C, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Storage").finish_non_exhaustive()
    }
}

impl<C: Program, P: Pmem + Send + Sync + 'static> Storage<C, P> {
    /// Opens the log and the state in a store, and creates their tables if they do not exist.
    ///
    /// Where a fence is an instruction, writes are committed by the thread that makes them, and otherwise by a thread of their own.
    ///
    /// # Errors
    /// When the store has other tables with these names, is full, or cannot be read.
    pub fn open(store: Store<P>) -> Result<Self, StorageError> {
        if store.heap().pool().pmem().domain() == Domain::Page {
            return Self::open_with_writer(store);
        }
        let core = Arc::new(Core::open(store, true)?);
        let writer = Arc::new(Writer::without_thread(Arc::clone(&core)));
        Ok(Self { core, writer })
    }

    /// As [`open`](Self::open), with a thread that commits the writes in any domain.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_with_writer(store: Store<P>) -> Result<Self, StorageError> {
        let core = Arc::new(Core::open(store, false)?);
        let writer = Arc::new(Writer::start(Arc::clone(&core)));
        Ok(Self { core, writer })
    }

    /// As [`open`](Self::open), without a thread: writes wait until [`drain`](Self::drain) commits them. A simulator of crashes then sees one thread.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_without_writer(store: Store<P>) -> Result<Self, StorageError> {
        let core = Arc::new(Core::open(store, false)?);
        let writer = Arc::new(Writer::without_thread(Arc::clone(&core)));
        Ok(Self { core, writer })
    }

    /// Commits the writes that wait, in one batch. Returns whether there were any. The writer's thread does the same, if there is one.
    ///
    /// # Durability
    /// The writes are durable when this returns, all together, with one batch; a crash before that leaves none of them. Their callers learn of it, or of the error.
    #[must_use = "there may be more"]
    pub fn drain(&self) -> bool {
        self.core.drain()
    }

    /// The log, for openraft.
    #[must_use]
    pub fn log(&self) -> LogStore<C, P> {
        LogStore::new(Arc::clone(&self.core), Arc::clone(&self.writer))
    }

    /// The state machine, for openraft.
    #[must_use]
    pub fn state_machine(&self) -> StateMachine<C, P> {
        StateMachine::new(Arc::clone(&self.core), Arc::clone(&self.writer))
    }

    /// A reader of the state.
    #[must_use]
    pub fn reader(&self) -> StateReader<C, P> {
        StateReader { core: Arc::clone(&self.core) }
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Store<P> {
        self.core.store()
    }

    /// What the store has room for: entries whose commands have up to `entry_bytes` bytes, and the values that they set. Returns what is not in use any more
    /// to the heap. After an open, space that was not visited yet is not counted, as with [`Store::room`].
    ///
    /// # Errors
    /// When the store is read-only, or a fence fails.
    ///
    /// # Durability
    /// As [`Store::room`]: a crash leaves all entries.
    pub fn room(&self, entry_bytes: u64) -> Result<Room, StorageError> {
        Room::measure(&self.core, entry_bytes)
    }

    /// The length of the log's entries. openraft bounds their number alone; a program whose log shares a small store with its state, or has long entries,
    /// triggers a snapshot and a purge when this is too much.
    #[must_use]
    pub fn log_bytes(&self) -> u64 {
        self.core.log_bytes()
    }

    /// The last entry before the newest ones that together have at least this length: up to it, the log can be purged. `None` if the whole log is shorter.
    #[must_use]
    pub fn log_before_newest(&self, len_bytes: u64) -> Option<u64> {
        self.core.log_before_newest(len_bytes)
    }

    /// Whether a snapshot of the state is being sent, and a part of it was read within this time: its receiver needs the entries after it.
    #[must_use]
    pub fn is_sending(&self, within: Duration) -> bool {
        self.core.state().is_read(within)
    }

    /// What the program has noted under a name. Notes are not replicated.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn note(&self, name: &str) -> Result<Option<Vec<u8>>, StorageError> {
        self.core.note(name)
    }

    /// Notes a value under a name.
    ///
    /// # Errors
    /// When the store is full, or a fence fails.
    ///
    /// # Durability
    /// Durable when this returns, at one fence.
    pub fn set_note(&self, name: &str, value: &[u8]) -> Result<(), StorageError> {
        self.core.set_note(name, value)
    }
}

/// Reads the state as this node has it, which may lag behind that of the leader.
pub struct StateReader<C: Program, P: Pmem + Send + Sync + 'static = Region> {
    core: Arc<Core<C, P>>,
}

impl<C: Program, P: Pmem + Send + Sync + 'static> Clone for StateReader<C, P> {
    fn clone(&self) -> Self {
        Self { core: Arc::clone(&self.core) }
    }
}

impl<C: Program, P: Pmem + Send + Sync + 'static> fmt::Debug for StateReader<C, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateReader").finish_non_exhaustive()
    }
}

impl<C: Program, P: Pmem + Send + Sync + 'static> StateReader<C, P> {
    /// The values of keys, all at one moment: of changes that are made together, all are read or none. Applies wait meanwhile.
    ///
    /// # Errors
    /// * [`TooLong`](StorageError::TooLong): the values together have more than `limit_bytes` bytes.
    /// * When the store cannot be read.
    pub fn get_all<'k>(
        &self,
        keys: impl IntoIterator<Item = &'k [u8]>,
        limit_bytes: usize,
    ) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
        self.core.state().get_all(keys.into_iter(), limit_bytes)
    }

    /// How many of these keys the state has, all at one moment. A key that comes twice counts twice.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn count_of<'k>(&self, keys: impl IntoIterator<Item = &'k [u8]>) -> Result<u64, StorageError> {
        self.core.state().count_of(keys.into_iter())
    }

    /// The first entries from a key on and up to a bound, in ascending order, all at one moment: up to a number, and not many more than a number of bytes.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn range(
        &self,
        from: &[u8],
        to: Bound<&[u8]>,
        limit: usize,
        limit_bytes: usize,
    ) -> Result<Entries, StorageError> {
        self.core.state().range(from, to, limit, limit_bytes)
    }

    /// The number of keys.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn count(&self) -> Result<u64, StorageError> {
        self.core.state().len()
    }

    /// The last entry whose command the state has.
    #[must_use]
    pub fn applied(&self) -> Applied {
        self.core.state().applied()
    }
}
