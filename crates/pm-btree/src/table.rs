//! Typed tables.

use crate::core::Core;
use crate::error::{EncodeError, ReadError, WriteError};
use crate::guard::Guard;
use crate::key::{OwnedKey, SearchKey};
use crate::leaf::Tree;
use crate::scan::{Bounds, Found, Scan, Side};
use crate::sweep::Sweep;
use crate::types::{Key, Value};
use core::fmt;
use core::iter::FusedIterator;
use core::marker::PhantomData;
use core::ops::{Bound, RangeBounds};
use pm_core::{Pmem, Region};
use std::sync::Arc;

/// A key and its value.
pub type KeyValue<K, V> = (Guard<K>, Guard<V>);

/// A table of a store: an ordered map of `K` to `V`. [`Store::table`](crate::Store::table) opens it.
///
/// Keys and values are passed and returned as the [views](Value::View) of their types, by value: `insert("ada", 7)` for `Table<&str, u64>`.
///
/// Threads may share a table. Reads wait for no lock. Changes of keys in different leaves run in parallel.
pub struct Table<'s, K: Key, V: Value, P: Pmem = Region> {
    core: &'s Core<P>,
    sweep: &'s Sweep,
    tree: Arc<Tree>,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K: Key, V: Value, P: Pmem> fmt::Debug for Table<'_, K, V, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("table", &self.tree.id.table).finish_non_exhaustive()
    }
}

impl<K: Key, V: Value, P: Pmem> Clone for Table<'_, K, V, P> {
    fn clone(&self) -> Self {
        Self { core: self.core, sweep: self.sweep, tree: Arc::clone(&self.tree), types: PhantomData }
    }
}

impl<'s, K: Key, V: Value, P: Pmem> Table<'s, K, V, P> {
    pub(crate) const fn new(core: &'s Core<P>, sweep: &'s Sweep, tree: Arc<Tree>) -> Self {
        Self { core, sweep, tree, types: PhantomData }
    }

    /// Makes a change. If the pool is full, completes the sweep, which may find space, and tries again.
    fn change<R>(&self, change: impl Fn(&Tree) -> Result<R, WriteError>) -> Result<R, WriteError> {
        let changed = match change(&self.tree) {
            Err(WriteError::Full) if self.sweep.complete(self.core)? => change(&self.tree),
            changed => changed,
        };
        self.sweep.take_due_steps(self.core)?;
        changed
    }

    /// The value of a key.
    ///
    /// # Errors
    /// When the key has no encoding, or the stored bytes are no value. When the entry is corrupted, or the key was not found and a corrupted entry may
    /// have held it.
    pub fn get(&self, key: K::View<'_>) -> Result<Option<Guard<V>>, ReadError> {
        let read = |key: &SearchKey<'_>| {
            self.tree.get(self.core, key, |entry| entry.value(&self.core.pmem(), self.tree.is_word()))
        };
        let mut buffer = Vec::new();
        let bytes = read(&self.encode(key, &mut buffer)?)?;
        bytes.map(Guard::of_value).transpose()
    }

    /// Whether the table has a value for a key.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn contains_key(&self, key: K::View<'_>) -> Result<bool, ReadError> {
        let mut buffer = Vec::new();
        let key = self.encode(key, &mut buffer)?;
        Ok(self.tree.get(self.core, &key, |_| ())?.is_some())
    }

    /// Inserts a key with its value, or replaces its value. Returns whether the key is new.
    ///
    /// # Errors
    /// When the key or the value has no encoding, or both together are too long. When the pool is full. When a corrupted entry may have held the key.
    /// In these cases nothing was changed. When a fence fails: then the next open decides whether the change is durable.
    ///
    /// # Durability
    /// Durable when this returns; a crash before that leaves the old value or the new one. Costs the lines of the value, one line and one fence; 8-byte
    /// keys and values cost one line in all. About one insertion in 30 splits a leaf, at one fence more and some 19 lines.
    pub fn insert(&self, key: K::View<'_>, value: V::View<'_>) -> Result<bool, WriteError> {
        let mut buffer = Vec::new();
        let key = self.encode(key, &mut buffer)?;
        let mut bytes = Vec::new();
        V::encode(value, &mut bytes)?;
        self.change(|tree| tree.put(self.core, &key, &bytes))
    }

    /// Removes a key. Returns false if there is no such key.
    ///
    /// # Errors
    /// As for [`insert`](Self::insert).
    ///
    /// # Durability
    /// Durable when this returns; a crash before that leaves the entry or removes it. Costs one line and one fence, and nothing if there is no such key.
    pub fn remove(&self, key: K::View<'_>) -> Result<bool, WriteError> {
        let mut buffer = Vec::new();
        let key = self.encode(key, &mut buffer)?;
        self.change(|tree| tree.remove(self.core, &key))
    }

    /// The number of entries. The first call after an open waits until every leaf was visited: up to 0.1 s for a million entries.
    ///
    /// # Errors
    /// When a leaf cannot be read, so that its entries cannot be counted.
    pub fn len(&self) -> Result<u64, ReadError> {
        self.sweep.len_of(self.core, &self.tree)
    }

    /// Whether the table is empty.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn is_empty(&self) -> Result<bool, ReadError> {
        Ok(self.first()?.is_none())
    }

    /// The entry with the smallest key.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn first(&self) -> Result<Option<KeyValue<K, V>>, ReadError> {
        self.range(..).next().transpose()
    }

    /// The entry with the greatest key.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn last(&self) -> Result<Option<KeyValue<K, V>>, ReadError> {
        self.range(..).next_back().transpose()
    }

    /// The entries whose keys are in a range, in ascending order, or from the end in descending order.
    ///
    /// Entries are read when they are needed, up to eight neighbouring ones at a time, and these at one moment. A change made after that is not seen
    /// in them, and is seen in later ones.
    ///
    /// A corrupted entry makes one item an error, before the other items of its leaf, which are some 40 neighbouring keys; the intact entries are all
    /// returned. A bound that has no encoding makes the first item an error, and the only one.
    pub fn range<'k>(&self, range: impl RangeBounds<K::View<'k>>) -> Range<'s, K, V, P> {
        let bounds = self
            .bound(range.start_bound())
            .and_then(|from| Ok(Bounds { from, to: self.bound(range.end_bound())? }));
        let (bounds, error) = match bounds {
            Ok(bounds) => (Some(bounds), None),
            Err(error) => (None, Some(error)),
        };
        Range {
            core: self.core,
            tree: Arc::clone(&self.tree),
            scan: Scan::new(bounds),
            error,
            types: PhantomData,
        }
    }

    fn bound(&self, bound: Bound<&K::View<'_>>) -> Result<Bound<OwnedKey>, ReadError> {
        let owned = |key: &K::View<'_>| {
            let mut buffer = Vec::new();
            self.encode(*key, &mut buffer).map(|key| OwnedKey::of(&key))
        };
        Ok(match bound {
            Bound::Included(key) => Bound::Included(owned(key)?),
            Bound::Excluded(key) => Bound::Excluded(owned(key)?),
            Bound::Unbounded => Bound::Unbounded,
        })
    }

    /// The encoded key; its bytes are in `buffer`.
    #[inline]
    fn encode<'b>(&self, key: K::View<'_>, buffer: &'b mut Vec<u8>) -> Result<SearchKey<'b>, EncodeError> {
        if self.tree.is_word() {
            if let Some(word) = K::encode_word(key) {
                return Ok(SearchKey::word(word));
            }
            K::encode_key(key, buffer)?;
            return Ok(SearchKey::word(crate::key::head_of(buffer)));
        }
        K::encode_key(key, buffer)?;
        Ok(SearchKey::bytes_key(buffer))
    }
}

/// The entries in a range of keys, from [`Table::range`].
pub struct Range<'s, K: Key, V: Value, P: Pmem = Region> {
    core: &'s Core<P>,
    tree: Arc<Tree>,
    scan: Scan<'s>,
    /// Why a bound has no encoding, until it is returned.
    error: Option<ReadError>,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K: Key, V: Value, P: Pmem> fmt::Debug for Range<'_, K, V, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Range").field("scan", &self.scan).finish_non_exhaustive()
    }
}

impl<K: Key, V: Value, P: Pmem> Range<'_, K, V, P> {
    #[inline]
    fn next_from(&mut self, side: Side) -> Option<Result<KeyValue<K, V>, ReadError>> {
        match self.scan.next(self.core, &self.tree, side) {
            Some(Ok(found)) => Some(key_value(&found)),
            Some(Err(error)) => Some(Err(error.into())),
            None => self.error.take().map(Err),
        }
    }
}

#[inline]
fn key_value<K: Key, V: Value>(found: &Found<'_>) -> Result<KeyValue<K, V>, ReadError> {
    Ok((Guard::of_key(found.key())?, Guard::of_value(found.value())?))
}

impl<K: Key, V: Value, P: Pmem> Iterator for Range<'_, K, V, P> {
    type Item = Result<KeyValue<K, V>, ReadError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.next_from(Side::Front)
    }
}

impl<K: Key, V: Value, P: Pmem> DoubleEndedIterator for Range<'_, K, V, P> {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        self.next_from(Side::Back)
    }
}

impl<K: Key, V: Value, P: Pmem> FusedIterator for Range<'_, K, V, P> {}
