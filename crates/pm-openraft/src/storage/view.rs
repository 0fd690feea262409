//! A view of the state at a moment, which is read while commands change the state.

use crate::changes::{Base as _, StateTable};
use crate::error::StorageError;
use crate::snapshot::{Entries, Source};
use pm_core::Pmem;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What one call of a view reads and returns, but for the length of an entry.
const ENTRIES_BYTES: usize = 256 << 10;

/// The length of old values from which a view is outdated.
const KEPT_BYTES: usize = 64 << 20;

/// The values that keys had at the moment of a view, if they were changed since, and the view has not read them yet.
#[derive(Debug, Default)]
pub(super) struct Kept(Mutex<KeptValues>);

#[derive(Debug, Default)]
struct KeptValues {
    old: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    len_bytes: usize,
    /// The last key up to which the view was read.
    read_to: Option<Vec<u8>>,
    was_read: bool,
    /// When a part was last read.
    last_read: Option<Instant>,
    is_outdated: bool,
}

impl Kept {
    /// Keeps the values of keys, before they are changed.
    pub(super) fn keep<'k, P: Pmem>(
        &self,
        table: &StateTable<P>,
        keys: impl Iterator<Item = &'k Vec<u8>>,
    ) -> Result<(), StorageError> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for key in keys {
            let was_read = kept.read_to.as_ref().is_some_and(|read_to| key <= read_to);
            if kept.is_outdated || kept.was_read || was_read || kept.old.contains_key(key) {
                continue;
            }
            let value = table.value(key)?;
            kept.len_bytes += key.len() + value.as_ref().map_or(0, Vec::len);
            kept.old.insert(key.clone(), value);
            if kept.len_bytes > KEPT_BYTES {
                kept.is_outdated = true;
                kept.old.clear();
            }
        }
        Ok(())
    }

    /// Whether a part was read within this time, and the rest can be read, too.
    pub(super) fn is_read(&self, within: Duration) -> bool {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !kept.is_outdated && kept.last_read.is_some_and(|read| read.elapsed() < within)
    }

    /// Ends the view: the state is replaced.
    pub(super) fn end(&self) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.is_outdated = true;
        kept.old.clear();
    }
}

/// A reader of the state as it was when the view was made.
pub(super) struct View<P: Pmem> {
    table: StateTable<P>,
    kept: Arc<Kept>,
    from: Bound<Vec<u8>>,
    is_at_end: bool,
    /// What was read and not returned: the old values of keys that were removed meanwhile are many at a time.
    ready: VecDeque<(Vec<u8>, Vec<u8>)>,
}

impl<P: Pmem> View<P> {
    pub(super) const fn new(table: StateTable<P>, kept: Arc<Kept>) -> Self {
        Self { table, kept, from: Bound::Unbounded, is_at_end: false, ready: VecDeque::new() }
    }

    /// The next entries of the table, as they are now.
    fn next_present(&mut self) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, StorageError> {
        let mut entries = BTreeMap::new();
        let mut len_bytes = 0;
        let from = self.from.as_ref().map(Vec::as_slice);
        for entry in self.table.range((from, Bound::Unbounded)) {
            let (key, value) = entry?;
            len_bytes += key.value().len() + value.value().len();
            entries.insert(key.value().to_vec(), value.value().to_vec());
            if len_bytes >= ENTRIES_BYTES {
                return Ok(entries);
            }
        }
        self.is_at_end = true;
        Ok(entries)
    }
}

impl<P: Pmem + Send + Sync> Source for View<P> {
    fn next_entries(&mut self) -> Result<Entries, StorageError> {
        while self.ready.is_empty() && !self.is_at_end {
            // Old values are kept before a change is visible: so a new value that is read here has its old one below.
            let mut entries = self.next_present()?;
            let mut kept = self.kept.0.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.is_outdated {
                return Err(StorageError::Outdated);
            }
            kept.last_read = Some(Instant::now());
            let old = if self.is_at_end {
                kept.was_read = true;
                std::mem::take(&mut kept.old)
            } else {
                let last = entries
                    .last_key_value()
                    .map(|(key, _)| key.clone())
                    .expect("a part before the end has entries");
                let mut later = kept.old.split_off(&last);
                let of_last = later.remove_entry(&last);
                let mut old = std::mem::replace(&mut kept.old, later);
                old.extend(of_last);
                kept.read_to = Some(last.clone());
                self.from = Bound::Excluded(last);
                old
            };
            for (key, value) in old {
                kept.len_bytes -= key.len() + value.as_ref().map_or(0, Vec::len);
                match value {
                    Some(value) => entries.insert(key, value),
                    None => entries.remove(&key),
                };
            }
            self.ready.extend(entries);
        }
        let mut len_bytes = 0;
        let mut next = || {
            let (key, value) = if len_bytes < ENTRIES_BYTES { self.ready.pop_front()? } else { return None };
            len_bytes += key.len() + value.len();
            Some((key, value))
        };
        Ok(std::iter::from_fn(&mut next).collect())
    }
}
