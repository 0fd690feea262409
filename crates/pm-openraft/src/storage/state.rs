//! The state: reads, applies, views, and the reception of another state.

use super::tables::{Applied, Tables};
use super::view::{Kept, View};
use crate::changes::{Changes, StateTable};
use crate::error::StorageError;
use crate::program::Program;
use crate::snapshot::{Entries, Sink, SnapshotData};
use openraft::{Entry, EntryPayload, StoredMembership};
use pm_btree::WriteBatch;
use pm_core::Pmem;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::time::Duration;

/// The state, and which set of tables it is in.
pub(crate) struct State<P: Pmem> {
    tables: Arc<Tables<P>>,
    /// One apply, view or switch at a time. Taken before `present`.
    views: Mutex<Vec<Weak<Kept>>>,
    /// Locked for writing while a batch is committed: a reader sees all of it or nothing.
    present: RwLock<Present>,
    /// The number of the last reception.
    reception: Arc<Mutex<u64>>,
}

struct Present {
    set: usize,
    applied: Applied,
}

impl<P: Pmem + Send + Sync + 'static> State<P> {
    /// Empties the tables that do not have the state: a crash may have left a part of a reception.
    pub(super) fn open(tables: &Arc<Tables<P>>) -> Result<Self, StorageError> {
        let present = Present { set: tables.set()?, applied: tables.applied()? };
        tables.sets[1 - present.set].remove_range(..)?;
        Ok(Self {
            tables: Arc::clone(tables),
            views: Mutex::default(),
            present: RwLock::new(present),
            reception: Arc::default(),
        })
    }

    fn present(&self) -> RwLockReadGuard<'_, Present> {
        self.present.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_views(&self) -> MutexGuard<'_, Vec<Weak<Kept>>> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn applied(&self) -> Applied {
        self.present().applied.clone()
    }

    /// The values of keys, all at one moment, up to a length.
    pub(crate) fn get_all<'k>(
        &self,
        keys: impl Iterator<Item = &'k [u8]>,
        limit_bytes: usize,
    ) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
        let present = self.present();
        let table = &self.tables.sets[present.set];
        let mut len_bytes = 0;
        let mut get = |key| {
            let value = table.get_with(key, <[u8]>::to_vec)?;
            len_bytes += value.as_ref().map_or(0, Vec::len);
            if len_bytes > limit_bytes { Err(StorageError::TooLong { limit_bytes }) } else { Ok(value) }
        };
        keys.map(&mut get).collect()
    }

    /// How many of these keys there are, all at one moment.
    pub(crate) fn count_of<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> Result<u64, StorageError> {
        let present = self.present();
        let table = &self.tables.sets[present.set];
        let mut count = 0;
        for key in keys {
            count += u64::from(table.contains_key(key)?);
        }
        Ok(count)
    }

    /// The number of keys.
    pub(crate) fn len(&self) -> Result<u64, StorageError> {
        let present = self.present();
        Ok(self.tables.sets[present.set].len()?)
    }

    /// The first entries from a key on and before another one, up to a number and a length in bytes, but for the last one.
    pub(crate) fn range(
        &self,
        from: &[u8],
        to: Bound<&[u8]>,
        limit: usize,
        limit_bytes: usize,
    ) -> Result<Entries, StorageError> {
        let present = self.present();
        let is_empty = match to {
            Bound::Included(to) => to < from,
            Bound::Excluded(to) => to <= from,
            Bound::Unbounded => false,
        };
        let mut entries = Entries::new();
        if is_empty {
            return Ok(entries);
        }
        let mut len_bytes = 0;
        for entry in self.tables.sets[present.set].range((Bound::Included(from), to)).take(limit) {
            let (key, value) = entry?;
            len_bytes += key.value().len() + value.value().len();
            entries.push((key.value().to_vec(), value.value().to_vec()));
            if len_bytes >= limit_bytes {
                break;
            }
        }
        Ok(entries)
    }

    /// Applies entries, and returns the answers to their commands.
    ///
    /// # Durability
    /// One batch for all entries and the id of the last one: durable when this returns, and a crash before that leaves all or nothing.
    pub(crate) fn apply<C: Program>(
        &self,
        entries: impl IntoIterator<Item = Entry<C>>,
    ) -> Result<Vec<C::R>, StorageError> {
        let mut views = self.lock_views();
        let (set, mut applied) = {
            let present = self.present();
            (present.set, present.applied.clone())
        };
        let table = &self.tables.sets[set];
        let mut changes = Changes::new(table);
        let mut answers = Vec::new();
        for entry in entries {
            applied.log_id = Some(entry.log_id);
            answers.push(match entry.payload {
                EntryPayload::Blank => C::nothing(),
                EntryPayload::Normal(command) => C::apply(command, &mut changes)?,
                EntryPayload::Membership(membership) => {
                    applied.membership = StoredMembership::new(Some(entry.log_id), membership);
                    C::nothing()
                }
            });
        }
        let changed = changes.into_changed();
        views.retain(|view| view.strong_count() != 0);
        for view in views.iter().filter_map(Weak::upgrade) {
            view.keep(table, changed.keys())?;
        }
        let mut batch = self.tables.store.batch();
        for (key, value) in &changed {
            match value {
                Some(value) => batch.insert(table, key, value)?,
                None => batch.remove(table, key)?,
            }
        }
        self.tables.put_applied(&mut batch, &applied)?;
        let mut present = self.present.write().unwrap_or_else(PoisonError::into_inner);
        batch.commit()?;
        present.applied = applied;
        Ok(answers)
    }

    /// A view of the state as it is now. Its contents are read later.
    pub(crate) fn view(&self) -> (Applied, SnapshotData) {
        let mut views = self.lock_views();
        let present = self.present();
        let kept = Arc::new(Kept::default());
        views.retain(|view| view.strong_count() != 0);
        views.push(Arc::downgrade(&kept));
        let view = View::new(self.tables.sets[present.set].clone(), kept);
        (present.applied.clone(), SnapshotData::of_source(view))
    }

    /// Whether a part of a view was read within this time.
    pub(crate) fn is_read(&self, within: Duration) -> bool {
        self.lock_views().iter().filter_map(Weak::upgrade).any(|view| view.is_read(within))
    }

    /// Starts to receive a state into the tables that are not in use. Ends a reception in progress.
    pub(crate) fn receive(&self) -> Result<SnapshotData, StorageError> {
        let mut last = self.reception.lock().unwrap_or_else(PoisonError::into_inner);
        *last += 1;
        let table = self.tables.sets[1 - self.present().set].clone();
        table.remove_range(..)?;
        Ok(SnapshotData::of_sink(Reception { table, number: *last, last: Arc::clone(&self.reception) }))
    }

    /// Ends the reception of a state, or copies one that was built, and returns the set that has it.
    pub(crate) fn received(&self, data: &mut SnapshotData) -> Result<usize, StorageError> {
        if let Some(number) = data.reception() {
            let mut last = self.reception.lock().unwrap_or_else(PoisonError::into_inner);
            if number != *last {
                return Err(StorageError::Outdated);
            }
            *last += 1;
        } else {
            let mut copy = self.receive()?;
            loop {
                let entries = data.next_entries()?;
                if entries.is_empty() {
                    break;
                }
                copy.add(&entries)?;
            }
            return self.received(&mut copy);
        }
        Ok(1 - self.present().set)
    }

    /// Commits a batch that makes a received state the present one.
    pub(super) fn switch(
        &self,
        batch: WriteBatch<P>,
        set: usize,
        applied: &Applied,
    ) -> Result<(), StorageError> {
        let mut views = self.lock_views();
        let mut present = self.present.write().unwrap_or_else(PoisonError::into_inner);
        batch.commit()?;
        *present = Present { set, applied: applied.clone() };
        views.drain(..).filter_map(|view| view.upgrade()).for_each(|view| view.end());
        Ok(())
    }

    /// Releases the space of the state before a switch.
    pub(crate) fn clear_spare(&self) -> Result<(), StorageError> {
        let _reception = self.reception.lock().unwrap_or_else(PoisonError::into_inner);
        let spare = 1 - self.present().set;
        self.tables.sets[spare].remove_range(..)?;
        Ok(())
    }
}

/// Receives a state. Ends with the next reception. One that is dropped before it is installed leaves nothing.
struct Reception<P: Pmem> {
    table: StateTable<P>,
    number: u64,
    last: Arc<Mutex<u64>>,
}

impl<P: Pmem> Drop for Reception<P> {
    fn drop(&mut self) {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if self.number == *last {
            // What stays is removed by the next reception, or the next open.
            drop(self.table.remove_range(..));
        }
    }
}

impl<P: Pmem + Send + Sync> Sink for Reception<P> {
    fn add(&mut self, entries: &[(Vec<u8>, Vec<u8>)]) -> Result<(), StorageError> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if self.number != *last {
            return Err(StorageError::Outdated);
        }
        if let (Some((first, _)), Some((end, _))) = (entries.first(), self.table.last()?)
            && end.value() >= first.as_slice()
        {
            return Err(StorageError::OutOfOrder);
        }
        self.table.extend_sorted(entries.iter().map(|(key, value)| (key.as_slice(), value.as_slice())))?;
        Ok(())
    }

    fn reception(&self) -> u64 {
        self.number
    }

    fn is_present(&self) -> bool {
        self.number == *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
