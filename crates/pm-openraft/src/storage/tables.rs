//! The tables of a store that holds a log and a state.

use crate::changes::StateTable;
use crate::codec::{decode, encode};
use crate::error::StorageError;
use openraft::{BasicNode, LogId, StoredMembership, Vote};
use pm_btree::{Store, Table, WriteBatch};
use pm_core::Pmem;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The cells: values of which there is one.
const VOTE: &str = "vote";
const COMMITTED: &str = "committed";
const PURGED: &str = "purged";
const APPLIED: &str = "applied";
const SET: &str = "set";

/// The last entry whose command the state has, and the last membership up to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// The entry.
    pub log_id: Option<LogId<u64>>,
    /// The membership.
    pub membership: StoredMembership<u64, BasicNode>,
}

/// The open tables.
pub(super) struct Tables<P: Pmem> {
    /// Entries by their index.
    pub(super) log: Table<u64, &'static [u8], P>,
    cells: Table<&'static str, &'static [u8], P>,
    /// What a program remembers besides the state.
    pub(super) notes: Table<&'static str, &'static [u8], P>,
    /// The state is in one of them. The other one is empty, or receives a snapshot.
    pub(super) sets: [StateTable<P>; 2],
    pub(super) store: Store<P>,
}

impl<P: Pmem> Tables<P> {
    /// Opens the tables, and creates those that do not exist.
    pub(super) fn open(store: Store<P>) -> Result<Self, StorageError> {
        Ok(Self {
            log: store.table("raft log")?,
            cells: store.table("raft cells")?,
            notes: store.table("raft notes")?,
            sets: [store.table("state 0")?, store.table("state 1")?],
            store,
        })
    }

    pub(super) fn vote(&self) -> Result<Option<Vote<u64>>, StorageError> {
        self.cell(VOTE)
    }

    pub(super) fn committed(&self) -> Result<Option<LogId<u64>>, StorageError> {
        Ok(self.cell(COMMITTED)?.flatten())
    }

    pub(super) fn purged(&self) -> Result<Option<LogId<u64>>, StorageError> {
        self.cell(PURGED)
    }

    pub(super) fn applied(&self) -> Result<Applied, StorageError> {
        Ok(self.cell(APPLIED)?.unwrap_or_default())
    }

    /// The number of the set that has the state.
    pub(super) fn set(&self) -> Result<usize, StorageError> {
        match self.cell(SET)? {
            None | Some(0_u8) => Ok(0),
            Some(1) => Ok(1),
            Some(found) => Err(StorageError::Set { found }),
        }
    }

    fn cell<T: DeserializeOwned>(&self, name: &'static str) -> Result<Option<T>, StorageError> {
        self.cells.get_with(name, |bytes| decode(name, bytes))?.transpose()
    }

    pub(super) fn put_vote(&self, batch: &mut WriteBatch<P>, vote: &Vote<u64>) -> Result<(), StorageError> {
        self.put(batch, VOTE, vote)
    }

    pub(super) fn put_committed(
        &self,
        batch: &mut WriteBatch<P>,
        committed: &Option<LogId<u64>>,
    ) -> Result<(), StorageError> {
        self.put(batch, COMMITTED, committed)
    }

    pub(super) fn put_purged(
        &self,
        batch: &mut WriteBatch<P>,
        purged: &LogId<u64>,
    ) -> Result<(), StorageError> {
        self.put(batch, PURGED, purged)
    }

    pub(super) fn put_applied(
        &self,
        batch: &mut WriteBatch<P>,
        applied: &Applied,
    ) -> Result<(), StorageError> {
        self.put(batch, APPLIED, applied)
    }

    pub(super) fn put_set(&self, batch: &mut WriteBatch<P>, set: usize) -> Result<(), StorageError> {
        self.put(batch, SET, &u8::from(set == 1))
    }

    fn put(
        &self,
        batch: &mut WriteBatch<P>,
        name: &'static str,
        value: &impl Serialize,
    ) -> Result<(), StorageError> {
        Ok(batch.insert(&self.cells, name, &encode(name, value)?)?)
    }
}
