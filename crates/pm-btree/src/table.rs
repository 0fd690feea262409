//! Typed tables.

use crate::change::{Encoded, Expected, Outcome, Swap};
use crate::core::Core;
use crate::error::{EncodeError, ReadError, WriteError};
use crate::guard::Guard;
use crate::key::{OwnedKey, SearchKey};
use crate::leaf::Tree;
use crate::pop::End;
use crate::scan::{Batch, Bounds};
use crate::types::{Key, Value};
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Bound, RangeBounds};
use core::sync::atomic::Ordering;
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
    tree: Arc<Tree>,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K: Key, V: Value, P: Pmem> fmt::Debug for Table<'_, K, V, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<K: Key, V: Value, P: Pmem> Clone for Table<'_, K, V, P> {
    fn clone(&self) -> Self {
        Self { core: self.core, tree: Arc::clone(&self.tree), types: PhantomData }
    }
}

impl<'s, K: Key, V: Value, P: Pmem> Table<'s, K, V, P> {
    pub(crate) const fn new(core: &'s Core<P>, tree: Arc<Tree>) -> Self {
        Self { core, tree, types: PhantomData }
    }

    pub(crate) const fn core(&self) -> &'s Core<P> {
        self.core
    }

    pub(crate) const fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// The value of a key.
    ///
    /// # Errors
    /// When the key has no encoding, or the stored bytes are no value. When the entry is corrupted, or the key was not found and a corrupted entry may
    /// have held it.
    pub fn get(&self, key: K::View<'_>) -> Result<Option<Guard<V>>, ReadError> {
        let read = |key: &SearchKey<'_>| {
            self.tree.get(self.core, key, |entry| {
                let mut bytes = Vec::new();
                entry.push_value(&self.core.pmem(), self.tree.is_word(), &mut bytes);
                bytes
            })
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
        let outcome = self.tree.put(self.core, &key, &bytes, Expected::Any)?;
        Ok(outcome == Outcome::Changed { was_present: false })
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
        let outcome = self.tree.remove(self.core, &self.encode(key, &mut buffer)?, Expected::Any)?;
        Ok(outcome == Outcome::Changed { was_present: true })
    }

    /// Changes the value of a key from `expected` to `new`, if it is `expected`, which is decided under the lock of the key's leaf. `None` means that the
    /// key is absent: so this inserts, replaces or removes. Values are equal if their encodings are.
    ///
    /// # Errors
    /// As for [`insert`](Self::insert). When the value is not as expected, and cannot be decoded.
    ///
    /// # Durability
    /// As for [`insert`](Self::insert) and [`remove`](Self::remove). If the value is not as expected, costs nothing.
    pub fn compare_and_swap(
        &self,
        key: K::View<'_>,
        expected: Option<V::View<'_>>,
        new: Option<V::View<'_>>,
    ) -> Result<Swap<V>, WriteError> {
        let encode = |value: Option<V::View<'_>>| {
            value.map(|value| {
                let mut bytes = Vec::new();
                V::encode(value, &mut bytes).map(|()| bytes)
            })
        };
        let (expected, new) = (encode(expected).transpose()?, encode(new).transpose()?);
        let mut buffer = Vec::new();
        self.swap(&self.encode(key, &mut buffer)?, expected.as_deref(), new.as_deref())
    }

    /// Replaces the value of a key by what `change` makes of it, and returns the new value. `None` means that the key is absent: so `change` may insert,
    /// replace or remove.
    ///
    /// `change` is called without a lock, and may use the table. If another thread has changed the value meanwhile, `change` is called again, with the
    /// value found then. The last call decides.
    ///
    /// # Errors
    /// As for [`insert`](Self::insert) and [`get`](Self::get).
    ///
    /// # Panics
    /// When `change` panics. Nothing was changed then.
    ///
    /// # Durability
    /// As for [`insert`](Self::insert) and [`remove`](Self::remove). If `change` returns the value that it was given, costs nothing.
    ///
    /// # Examples
    /// ```
    /// # use pm_btree::{Encoded, Store, StoreOptions};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::create(dir.path().join("hits.pm"), 16 << 20, &StoreOptions::new())?;
    /// let hits = store.table::<&str, u64>("hits")?;
    /// hits.update("/", |count| Some(Encoded::new(count.unwrap_or(0) + 1)))?;
    /// let count = hits.update("/", |count| Some(Encoded::new(count.unwrap_or(0) + 1)))?;
    /// assert_eq!(count.unwrap().value(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn update(
        &self,
        key: K::View<'_>,
        mut change: impl FnMut(Option<V::View<'_>>) -> Option<Encoded<V>>,
    ) -> Result<Option<Guard<V>>, WriteError> {
        let mut buffer = Vec::new();
        let encoded = self.encode(key, &mut buffer)?;
        let mut found = self.get(key)?;
        loop {
            let new = change(found.as_ref().map(Guard::value)).map(|new| new.bytes).transpose()?;
            let old = found.as_ref().map(Guard::bytes);
            if new.as_deref() == old {
                return Ok(found);
            }
            match self.swap(&encoded, old, new.as_deref())? {
                Swap::Swapped => return Ok(new.map(Guard::of_value).transpose()?),
                Swap::Unequal(other) => found = other,
            }
        }
    }

    /// Removes the entry with the smallest key, and returns it. `None` if the table is empty.
    ///
    /// One thread only pops an entry. It was the first one at a moment during this call; a smaller key that another thread inserts after that moment
    /// does not change the choice.
    ///
    /// # Errors
    /// As for [`remove`](Self::remove). When the entry cannot be decoded; then it is not removed.
    ///
    /// # Durability
    /// Durable when this returns; a crash before that leaves the entry or removes it. Costs one line and one fence, and nothing if the table is empty.
    pub fn pop_first(&self) -> Result<Option<KeyValue<K, V>>, WriteError> {
        self.pop(End::First)
    }

    /// Removes the entry with the greatest key, and returns it. `None` if the table is empty. Otherwise like [`pop_first`](Self::pop_first).
    ///
    /// # Errors
    /// As for [`pop_first`](Self::pop_first).
    ///
    /// # Durability
    /// As for [`pop_first`](Self::pop_first).
    pub fn pop_last(&self) -> Result<Option<KeyValue<K, V>>, WriteError> {
        self.pop(End::Last)
    }

    fn pop(&self, end: End) -> Result<Option<KeyValue<K, V>>, WriteError> {
        self.core.check_not_poisoned()?;
        let Some(found) = self.tree.lock_end(self.core, end)? else { return Ok(None) };
        let mut value = Vec::new();
        found.entry.push_value(&self.core.pmem(), self.tree.is_word(), &mut value);
        let key_len = found.key.len();
        let entry = (Guard::of_key(Arc::new(found.key), 0..key_len)?, Guard::of_value(value)?);
        self.tree.remove_from(self.core, &found.leaf, found.slot, &found.entry)?;
        Ok(Some(entry))
    }

    /// Removes the entries for which `keep` returns false, and returns their number. Entries that other threads insert meanwhile may be missed. `keep` is
    /// called without a lock; an entry is removed only if it has the value for which `keep` has returned false.
    ///
    /// # Errors
    /// As for [`range`](Self::range) and [`remove`](Self::remove). What was removed before remains removed.
    ///
    /// # Panics
    /// When `keep` panics. What was removed before remains removed.
    ///
    /// # Durability
    /// Each removal is durable by itself, at one line and one fence; a crash leaves the last ones undone.
    pub fn retain(&self, mut keep: impl FnMut(K::View<'_>, V::View<'_>) -> bool) -> Result<u64, WriteError> {
        let mut removed = 0;
        for entry in self.range(..) {
            let (key, value) = entry?;
            let encoded = match self.tree.is_word() {
                true => SearchKey::word(crate::key::head_of(key.bytes())),
                false => SearchKey::bytes_key(key.bytes()),
            };
            let mut found = Some(value);
            while let Some(value) = found.filter(|value| !keep(key.value(), value.value())) {
                found = match self.swap(&encoded, Some(value.bytes()), None)? {
                    Swap::Swapped => {
                        removed += 1;
                        None
                    }
                    Swap::Unequal(other) => other,
                };
            }
        }
        Ok(removed)
    }

    /// Compares and swaps encoded values.
    fn swap(
        &self,
        key: &SearchKey<'_>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Swap<V>, WriteError> {
        let expected = Expected::Value(expected);
        let outcome = match new {
            Some(new) => self.tree.put(self.core, key, new, expected)?,
            None => self.tree.remove(self.core, key, expected)?,
        };
        Ok(match outcome {
            Outcome::Changed { .. } => Swap::Swapped,
            Outcome::Unequal(found) => Swap::Unequal(found.map(Guard::of_value).transpose()?),
        })
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.tree.len.load(Ordering::Relaxed)
    }

    /// Whether the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
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
    /// The entries of one leaf, some 40 neighbouring keys, are read at one moment, when the first of them is returned. Changes made after that are
    /// not seen in that leaf, and are seen in later ones.
    ///
    /// A bound that has no encoding makes the first item an error.
    pub fn range<'k>(&self, range: impl RangeBounds<K::View<'k>>) -> Range<'s, K, V, P> {
        let bounds = self
            .bound(range.start_bound())
            .and_then(|from| Ok(Bounds { from, to: self.bound(range.end_bound())? }));
        Range {
            core: self.core,
            tree: Arc::clone(&self.tree),
            bounds: bounds.map(Some),
            front: Items::default(),
            back: Items::default(),
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
    pub(crate) fn encode<'b>(
        &self,
        key: K::View<'_>,
        buffer: &'b mut Vec<u8>,
    ) -> Result<SearchKey<'b>, EncodeError> {
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
    /// What neither end has read yet; `None` after an error.
    bounds: Result<Option<Bounds>, ReadError>,
    front: Items,
    back: Items,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K: Key, V: Value, P: Pmem> fmt::Debug for Range<'_, K, V, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Range").field("bounds", &self.bounds).finish_non_exhaustive()
    }
}

/// The rest of a batch.
#[derive(Debug, Default)]
struct Items {
    batch: Batch,
    start: usize,
    end: usize,
}

impl Items {
    fn of(batch: Batch) -> Self {
        Self { end: batch.items.len(), start: 0, batch }
    }

    fn take<K: Key, V: Value>(&self, at: usize) -> Result<KeyValue<K, V>, ReadError> {
        let item = &self.batch.items[at];
        let bytes = &self.batch.bytes;
        Ok((
            Guard::of_key(Arc::clone(bytes), item.key.clone())?,
            Guard::of_shared_value(Arc::clone(bytes), item.value.clone())?,
        ))
    }

    fn next<K: Key, V: Value>(&mut self) -> Option<Result<KeyValue<K, V>, ReadError>> {
        (self.start < self.end).then(|| {
            self.start += 1;
            self.take(self.start - 1)
        })
    }

    fn next_back<K: Key, V: Value>(&mut self) -> Option<Result<KeyValue<K, V>, ReadError>> {
        (self.start < self.end).then(|| {
            self.end -= 1;
            self.take(self.end)
        })
    }
}

impl<K: Key, V: Value, P: Pmem> Range<'_, K, V, P> {
    /// Reads the next batch with `read`. After an error, the range is empty.
    fn read(
        &mut self,
        read: impl FnOnce(&Tree, &Core<P>, &mut Bounds) -> Result<Option<Batch>, crate::error::Corruption>,
    ) -> Option<Result<Batch, ReadError>> {
        match &mut self.bounds {
            Ok(None) => None,
            Ok(Some(bounds)) => {
                let batch = read(&self.tree, self.core, bounds);
                if batch.is_err() {
                    self.bounds = Ok(None);
                }
                batch.map_err(ReadError::from).transpose()
            }
            Err(error) => {
                let error = error.clone();
                self.bounds = Ok(None);
                Some(Err(error))
            }
        }
    }
}

impl<K: Key, V: Value, P: Pmem> Iterator for Range<'_, K, V, P> {
    type Item = Result<KeyValue<K, V>, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.front.start == self.front.end {
            match self.read(Tree::next_batch) {
                Some(Ok(batch)) => self.front = Items::of(batch),
                Some(Err(error)) => return Some(Err(error)),
                None => return self.back.next(),
            }
        }
        self.front.next()
    }
}

impl<K: Key, V: Value, P: Pmem> DoubleEndedIterator for Range<'_, K, V, P> {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.back.start == self.back.end {
            match self.read(Tree::next_batch_back) {
                Some(Ok(batch)) => self.back = Items::of(batch),
                Some(Err(error)) => return Some(Err(error)),
                None => return self.front.next_back(),
            }
        }
        self.back.next_back()
    }
}
