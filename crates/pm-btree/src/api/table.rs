//! Typed tables.

use super::guard::{Encoded, Guard, Swap};
use super::load::{Load, LoadError, LoadFailure};
use super::range::{KeyValue, Range, next_in};
use super::removal::{remove_all, search_key};
use super::shared::Shared;
use crate::error::{EncodeError, LeafError, ReadError, WriteError};
use crate::maintenance::unlink_due;
use crate::node::{OwnedKey, SearchKey, head_of};
use crate::ops::{Bounds, End, Expected, Outcome, Scan, Side, Visit, contains, get, lend, lock_end};
use crate::tree::Tree;
use crate::types::{Key, Prefix, Value, end_of_prefix};
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Bound, ControlFlow, RangeBounds};
use pm_core::{Pmem, Region};
use std::sync::Arc;

/// A table of a store: an ordered map of `K` to `V`. [`Store::table`](crate::Store::table) opens it.
///
/// Keys and values are passed and returned as the [views](Value::View) of their types, by value: `insert("ada", 7)` for `Table<&str, u64>`.
///
/// Threads may share a table. Reads wait for no lock. Changes of keys in different leaves run in parallel.
pub struct Table<K: Key, V: Value, P: Pmem = Region> {
    shared: Arc<Shared<P>>,
    tree: Arc<Tree>,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K: Key, V: Value, P: Pmem> fmt::Debug for Table<K, V, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("table", &self.tree.id.table).finish_non_exhaustive()
    }
}

impl<K: Key, V: Value, P: Pmem> Clone for Table<K, V, P> {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.shared), Arc::clone(&self.tree))
    }
}

impl<K: Key, V: Value, P: Pmem> Table<K, V, P> {
    pub(super) const fn new(shared: Arc<Shared<P>>, tree: Arc<Tree>) -> Self {
        Self { shared, tree, types: PhantomData }
    }

    pub(super) const fn shared(&self) -> &Arc<Shared<P>> {
        &self.shared
    }

    pub(super) const fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// The value of a key.
    ///
    /// # Errors
    /// When the key has no encoding, or the stored bytes are no value. When the entry is corrupted, or the key was not found and a corrupted entry
    /// may have held it.
    pub fn get(&self, key: K::View<'_>) -> Result<Option<Guard<V>>, ReadError> {
        let mut buffer = Vec::new();
        let key = self.encode(key, &mut buffer)?;
        if let Some(waiting) = self.shared.group.find(&self.tree, &key) {
            return waiting.map(|value| Guard::of_value(value[..].into())).transpose();
        }
        get(&self.shared.session, &self.tree, &key)?.map(Guard::of_value).transpose()
    }

    /// Calls `with` with the value of a key, and returns its result: `None` if there is no value. The value is not copied.
    ///
    /// While `with` runs, the space of values that are replaced or removed is not used again, also those of other keys and tables. Keep it short.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    ///
    /// # Examples
    /// ```
    /// # use pm_btree::{Store, StoreOptions};
    /// # use pm_core::Region;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let store = Store::format(Region::anonymous(1 << 20)?, &StoreOptions::new())?;
    /// let pages = store.table::<&str, &[u8]>("pages")?;
    /// pages.insert("/", &[b'x'; 900])?;
    /// assert_eq!(pages.get_with("/", |page| page.iter().filter(|byte| **byte == b'x').count())?, Some(900));
    /// assert_eq!(pages.get_with("/none", <[u8]>::len)?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn get_with<R>(
        &self,
        key: K::View<'_>,
        with: impl FnOnce(V::View<'_>) -> R,
    ) -> Result<Option<R>, ReadError> {
        let mut buffer = Vec::new();
        let key = self.encode(key, &mut buffer)?;
        if let Some(waiting) = self.shared.group.find(&self.tree, &key) {
            return Ok(waiting.map(|value| V::decode(&value).map(with)).transpose()?);
        }
        let (mut with, mut result) = (Some(with), None);
        lend(&self.shared.session, &self.tree, &key, &mut |bytes| {
            let with = with.take();
            result = with.map(|with| V::decode(bytes).map(with));
        })?;
        Ok(result.transpose()?)
    }

    /// Whether the table has a value for a key.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn contains_key(&self, key: K::View<'_>) -> Result<bool, ReadError> {
        let mut buffer = Vec::new();
        let key = self.encode(key, &mut buffer)?;
        if let Some(waiting) = self.shared.group.find(&self.tree, &key) {
            return Ok(waiting.is_some());
        }
        Ok(contains(&self.shared.session, &self.tree, &key)?)
    }

    /// Inserts a key with its value, or replaces its value. Returns whether the key is new.
    ///
    /// # Errors
    /// When the key or the value has no encoding, or both together are too long. When the pool is full. When a corrupted entry may have held the key.
    /// In these cases nothing was changed. When a fence fails: then the next open decides whether the change is durable.
    ///
    /// # Durability
    /// Durable when this returns; a crash before that leaves the old value or the new one. Costs the lines of the value, one line and one fence;
    /// 8-byte keys and values cost one line in all. About one insertion in 30 splits a leaf, at one fence more and some 19 lines.
    pub fn insert(&self, key: K::View<'_>, value: V::View<'_>) -> Result<bool, WriteError> {
        let mut buffer = Vec::new();
        let key = self.encode(key, &mut buffer)?;
        let mut bytes = Vec::new();
        V::encode(value, &mut bytes)?;
        let outcome = self.shared.change(&self.tree, &key, Some(&bytes), Expected::Any)?;
        Ok(outcome == Outcome::Changed { was_present: false })
    }

    /// Removes a key. Returns false if there is no such key.
    ///
    /// # Errors
    /// As for [`insert`](Self::insert).
    ///
    /// # Durability
    /// Durable when this returns; a crash before that leaves the entry or removes it. Costs one line and one fence, and nothing if there is no such
    /// key.
    pub fn remove(&self, key: K::View<'_>) -> Result<bool, WriteError> {
        let mut buffer = Vec::new();
        let key = self.encode(key, &mut buffer)?;
        let outcome = self.shared.change(&self.tree, &key, None, Expected::Any)?;
        Ok(outcome == Outcome::Changed { was_present: true })
    }

    /// Inserts a key with its value, or replaces its value, and returns the value that it had: `None` if the key is new. No other change of the key comes
    /// between.
    ///
    /// # Errors
    /// As for [`insert`](Self::insert). When the value that the key had cannot be decoded; then nothing was changed.
    ///
    /// # Durability
    /// As for [`insert`](Self::insert), at the same cost.
    ///
    /// # Examples
    /// ```
    /// # use pm_btree::{Store, StoreOptions};
    /// # use pm_core::Region;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let store = Store::format(Region::anonymous(1 << 20)?, &StoreOptions::new())?;
    /// let owners = store.table::<&str, &str>("owners")?;
    /// assert!(owners.replace("boat", "ada")?.is_none());
    /// assert_eq!(owners.replace("boat", "grace")?.unwrap().value(), "ada");
    /// # Ok(())
    /// # }
    /// ```
    pub fn replace(&self, key: K::View<'_>, value: V::View<'_>) -> Result<Option<Guard<V>>, WriteError> {
        let mut buffer = Vec::new();
        let key = self.encode(key, &mut buffer)?;
        let mut bytes = Vec::new();
        V::encode(value, &mut bytes)?;
        self.exchange(&key, Some(&bytes))
    }

    /// Removes a key, and returns the value that it had: `None` if there is no such key. Of several threads, one takes the value.
    ///
    /// # Errors
    /// As for [`replace`](Self::replace).
    ///
    /// # Durability
    /// As for [`remove`](Self::remove), at the same cost.
    ///
    /// # Examples
    /// ```
    /// # use pm_btree::{Store, StoreOptions};
    /// # use pm_core::Region;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let store = Store::format(Region::anonymous(1 << 20)?, &StoreOptions::new())?;
    /// let jobs = store.table::<u64, &str>("jobs")?;
    /// jobs.insert(7, "sweep")?;
    /// assert_eq!(jobs.take(7)?.unwrap().value(), "sweep");
    /// assert!(jobs.take(7)?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn take(&self, key: K::View<'_>) -> Result<Option<Guard<V>>, WriteError> {
        let mut buffer = Vec::new();
        self.exchange(&self.encode(key, &mut buffer)?, None)
    }

    /// Gives a key a new value, or removes it, and returns the value that it had.
    fn exchange(&self, key: &SearchKey<'_>, new: Option<&[u8]>) -> Result<Option<Guard<V>>, WriteError> {
        let expected = Expected::Returned(|bytes| V::decode(bytes).map(drop));
        match self.shared.change(&self.tree, key, new, expected)? {
            Outcome::Replaced(old) => Ok(old.map(Guard::of_value).transpose()?),
            Outcome::Changed { .. } | Outcome::Unequal(_) => unreachable!("the outcome has the value"),
        }
    }

    /// Inserts a key with its value, or replaces its value, in a group: the change is visible to all readers when this returns, and durable when the
    /// group is committed, with all changes before it. Without [`StoreOptions::group_commits`](crate::StoreOptions::group_commits), as
    /// [`insert`](Self::insert).
    ///
    /// # Errors
    /// As for [`insert`](Self::insert): the change was not made. So a store that is full says so at once: what a change needs is set aside when it
    /// joins. Without room for that, the group is committed, and the change is made at once. Changes that have joined and cannot be made, because
    /// corruption was found meanwhile, are reported by [`Store::sync`](crate::Store::sync) and [`Store::close`](crate::Store::close).
    ///
    /// # Durability
    /// A crash leaves a prefix of all changes of the store, of all threads, without at most as many of the last ones as the group has room for. Costs
    /// no fence; a commit costs two for all changes of a group, besides those of splits.
    ///
    /// # Examples
    /// ```
    /// use pm_btree::{Store, StoreOptions};
    /// # use pm_core::Region;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = Store::format(Region::anonymous(1 << 20)?, &StoreOptions::new().group_commits(64))?;
    /// let hits = store.table::<&str, u64>("hits")?;
    /// hits.insert_grouped("/", 1)?; // visible from here on
    /// assert_eq!((store.grouped_len(), hits.get("/")?.unwrap().value()), (1, 1));
    /// store.sync()?; // durable from here on
    /// assert_eq!(store.grouped_len(), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn insert_grouped(&self, key: K::View<'_>, value: V::View<'_>) -> Result<(), WriteError> {
        let mut buffer = Vec::new();
        let key = self.encode(key, &mut buffer)?;
        let mut bytes = Vec::new();
        V::encode(value, &mut bytes)?;
        self.shared.change_grouped(&self.tree, &key, Some(&bytes))
    }

    /// Removes a key, if it is there, in a group: see [`insert_grouped`](Self::insert_grouped).
    ///
    /// # Errors
    /// As for [`insert_grouped`](Self::insert_grouped).
    ///
    /// # Durability
    /// As for [`insert_grouped`](Self::insert_grouped).
    pub fn remove_grouped(&self, key: K::View<'_>) -> Result<(), WriteError> {
        let mut buffer = Vec::new();
        let key = self.encode(key, &mut buffer)?;
        self.shared.change_grouped(&self.tree, &key, None)
    }

    /// Inserts entries in ascending order of their keys, and returns their number. Values of keys that exist are replaced.
    ///
    /// # Errors
    /// When a key is not above the one before it, or as for [`insert`](Self::insert). The error has the number of the entries that are durable.
    ///
    /// # Durability
    /// The entries are committed in [batches](crate::WriteBatch) of some thousands. A crash leaves the first ones, in whole batches. Behind the last
    /// key of the table, leaves are filled to the end; so it costs the lines of the entries and records, three lines for each leaf, which has some 60
    /// entries, and some six fences for each batch.
    pub fn extend_sorted<'i>(
        &self,
        entries: impl IntoIterator<Item = (K::View<'i>, V::View<'i>)>,
    ) -> Result<u64, LoadError> {
        let mut load = Load::new(&self.shared);
        for (key, value) in entries {
            if let Err(failure) = self.add_to_load(&mut load, key, value) {
                load.commit()?;
                return Err(load.error(failure));
            }
            load.commit_full()?;
        }
        load.commit()
    }

    /// Adds an entry to a load, if its key is above the last one.
    fn add_to_load(
        &self,
        load: &mut Load<'_, P>,
        key: K::View<'_>,
        value: V::View<'_>,
    ) -> Result<(), LoadFailure> {
        let mut buffer = Vec::new();
        let key = self.encode(key, &mut buffer).map_err(WriteError::from)?;
        load.check_order(&key)?;
        let mut bytes = Vec::new();
        V::encode(value, &mut bytes).map_err(WriteError::from)?;
        load.push(&self.tree, &key, &bytes);
        Ok(())
    }

    /// Changes the value of a key from `expected` to `new`, if it is `expected`, which is decided under the lock of the key's leaf. `None` means that
    /// the key is absent: so this inserts, replaces or removes. Values are equal if their encodings are.
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

    /// Replaces the value of a key by what `change` makes of it, and returns the new value. `None` means that the key is absent: so `change` may
    /// insert, replace or remove.
    ///
    /// `change` is called without a lock, and may use the table. If another thread has changed the value meanwhile, `change` is called again, with
    /// the value found then. The last call decides.
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
        self.shared.check_own()?;
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
                Swap::Swapped => return Ok(new.map(|new| Guard::of_value(new[..].into())).transpose()?),
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
    /// As for [`remove`](Self::remove). Costs nothing if the table is empty.
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
        let _settled = self.shared.begin()?;
        let Some(found) = lock_end(&self.shared.session, &self.tree, end)? else { return Ok(None) };
        let value = found.value(&self.shared.session, &self.tree);
        let entry = (Guard::of_key(found.key().into())?, Guard::of_value(value)?);
        found.remove(&self.shared.session, &self.tree)?;
        unlink_due(&self.shared.session, &self.shared.sweep, &self.tree)?;
        Ok(Some(entry))
    }

    /// Removes the entries for which `keep` returns false, and returns their number. Entries that other threads insert meanwhile may be missed.
    /// `keep` is called without a lock; an entry is removed only if it has the value for which `keep` has returned false.
    ///
    /// # Errors
    /// As for [`range`](Self::range) and [`remove`](Self::remove). What was removed before remains removed.
    ///
    /// # Panics
    /// When `keep` panics. What was removed before remains removed.
    ///
    /// # Durability
    /// Each [removal](Self::remove) is durable by itself, at one line and one fence; a crash leaves the last ones undone.
    pub fn retain(&self, mut keep: impl FnMut(K::View<'_>, V::View<'_>) -> bool) -> Result<u64, WriteError> {
        self.shared.check_own()?;
        let mut removed = 0;
        for entry in self.range(..) {
            let (key, value) = entry?;
            let encoded = search_key(&self.tree, key.bytes());
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

    /// Removes the entries whose keys are in a range, and returns their number. Entries that other threads insert meanwhile may be missed.
    ///
    /// Needs memory for one batch, however many entries there are.
    ///
    /// # Errors
    /// As for [`range`](Self::range) and [`WriteBatch::commit`](crate::WriteBatch::commit). What was removed before remains removed.
    ///
    /// # Durability
    /// The entries are removed in ascending order, in [batches](crate::WriteBatch) of [4,096](crate::StoreOptions::removal_batch), or of fewer whose
    /// keys have 1 MiB. A crash leaves all entries but those of the first batches: a removal of up to 4,096 entries, with keys of less than 1 MiB,
    /// is atomic. Costs a line for each entry, and one line and two fences for each batch. Needs no room in the pool.
    ///
    /// # Examples
    /// ```
    /// # use pm_btree::{Store, StoreOptions};
    /// # use pm_core::Region;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let store = Store::format(Region::anonymous(1 << 20)?, &StoreOptions::new())?;
    /// let events = store.table::<u64, &str>("events")?;
    /// for second in 0..100 {
    ///     events.insert(second, "tick")?;
    /// }
    /// assert_eq!(events.remove_range(..60)?, 60);
    /// assert_eq!(events.first()?.unwrap().0.value(), 60);
    /// # Ok(())
    /// # }
    /// ```
    pub fn remove_range<'k>(&self, range: impl RangeBounds<K::View<'k>>) -> Result<u64, WriteError> {
        self.shared.check_writable()?;
        remove_all(&self.shared, &self.tree, self.bounds(&range)?)
    }

    /// Compares and swaps encoded values.
    fn swap(
        &self,
        key: &SearchKey<'_>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Swap<V>, WriteError> {
        Ok(match self.shared.change(&self.tree, key, new, Expected::Value(expected))? {
            Outcome::Changed { .. } | Outcome::Replaced(_) => Swap::Swapped,
            Outcome::Unequal(found) => Swap::Unequal(found.map(Guard::of_value).transpose()?),
        })
    }

    /// The number of entries. The first call after an open waits until every leaf was visited: up to 0.1 s for a million entries.
    ///
    /// # Errors
    /// When a leaf cannot be read, so that its entries cannot be counted.
    pub fn len(&self) -> Result<u64, ReadError> {
        self.shared.settle_reads()?;
        self.shared.sweep.len_of(&self.shared.session, &self.tree)
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
        self.end_entry(Side::Front)
    }

    /// The entry with the greatest key.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn last(&self) -> Result<Option<KeyValue<K, V>>, ReadError> {
        self.end_entry(Side::Back)
    }

    /// Makes no iterator: that would have a reference to the store of its own.
    fn end_entry(&self, side: Side) -> Result<Option<KeyValue<K, V>>, ReadError> {
        self.shared.settle_reads()?;
        let mut scan = Scan::new(Some(Bounds { from: Bound::Unbounded, to: Bound::Unbounded }));
        next_in(&mut scan, &self.shared, &self.tree, side).transpose()
    }

    /// The entries whose keys are in a range, in ascending order, or from the end in descending order.
    ///
    /// Entries are read when they are needed, up to eight neighbouring ones at a time, and these at one moment. A change made after that is not seen
    /// in them, and is seen in later ones.
    ///
    /// A corrupted entry makes one item an error, before the other items of its leaf, which are some 40 neighbouring keys; the intact entries are all
    /// returned. A bound that has no encoding makes the first item an error, and the only one.
    pub fn range<'k>(&self, range: impl RangeBounds<K::View<'k>>) -> Range<K, V, P> {
        Range::new(&self.shared, &self.tree, self.bounds(&range))
    }

    /// The entries whose keys have a [prefix](Prefix), as [`range`](Self::range) returns them: all entries, if the prefix is empty.
    ///
    /// # Examples
    /// ```
    /// # use pm_btree::{Store, StoreOptions};
    /// # use pm_core::Region;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let store = Store::format(Region::anonymous(1 << 20)?, &StoreOptions::new())?;
    /// let files = store.table::<&str, u64>("files")?;
    /// files.insert("/etc/hosts", 90)?;
    /// files.insert("/home/ada", 7)?;
    /// files.insert("/home/grace", 9)?;
    /// assert_eq!(files.prefix("/home/").count(), 2);
    ///
    /// let cities = store.table::<(&str, u32), &str>("cities")?; // by country and postal code
    /// cities.insert(("is", 101), "Reykjavik")?;
    /// cities.insert(("isle", 1), "nowhere")?;
    /// assert_eq!(cities.prefix(("is",)).count(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn prefix(&self, prefix: impl Prefix<K>) -> Range<K, V, P> {
        Range::new(&self.shared, &self.tree, self.bounds_of_prefix(prefix))
    }

    /// Calls `each` with the keys and values in a range, in ascending order, until it breaks. Values are not copied: [`range`](Self::range) copies
    /// them.
    ///
    /// An entry is in the table at a moment between the start and the call for it. As with `range`, a corrupted entry makes one call with an error.
    /// A leaf that cannot be read makes the last one. While `each` runs, the space of values that are replaced or removed is not used again.
    ///
    /// # Examples
    /// ```
    /// # use core::ops::ControlFlow;
    /// # use pm_btree::{Store, StoreOptions};
    /// # use pm_core::Region;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let store = Store::format(Region::anonymous(1 << 20)?, &StoreOptions::new())?;
    /// let ages = store.table::<&str, u64>("ages")?;
    /// ages.insert("ada", 36)?;
    /// ages.insert("grace", 85)?;
    /// let mut sum = 0;
    /// let ended = ages.visit(.., |entry| match entry {
    ///     Ok((_, age)) => {
    ///         sum += age;
    ///         ControlFlow::Continue(())
    ///     }
    ///     Err(error) => ControlFlow::Break(error),
    /// });
    /// assert!(ended.is_continue() && sum == 121);
    /// # Ok(())
    /// # }
    /// ```
    pub fn visit<'k, B>(
        &self,
        range: impl RangeBounds<K::View<'k>>,
        mut each: impl FnMut(Result<(K::View<'_>, V::View<'_>), ReadError>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let bounds = match self.bounds(&range) {
            Ok(bounds) => bounds,
            Err(error) => return each(Err(error)),
        };
        let mut entry = |entry: Result<(&[u8], &[u8]), LeafError>| match entry {
            Ok((key, value)) => match (K::decode_key(key), V::decode(value)) {
                (Ok(key), Ok(value)) => each(Ok((key, value))),
                (Err(error), _) | (_, Err(error)) => each(Err(error.into())),
            },
            Err(error) => each(Err(error.into())),
        };
        let mut visit = Visit::new(bounds);
        while visit.next_leaf(&self.shared.session, &self.tree, &mut entry)? {
            // Changes that have joined a group meanwhile are seen like others.
            if let Err(error) = self.shared.settle_reads() {
                return each(Err(error));
            }
        }
        ControlFlow::Continue(())
    }

    fn bounds<'k>(&self, range: &impl RangeBounds<K::View<'k>>) -> Result<Bounds, ReadError> {
        self.shared.settle_reads()?;
        Ok(Bounds { from: self.bound(range.start_bound())?, to: self.bound(range.end_bound())? })
    }

    fn bounds_of_prefix(&self, prefix: impl Prefix<K>) -> Result<Bounds, ReadError> {
        self.shared.settle_reads()?;
        let mut bytes = Vec::new();
        prefix.encode_prefix(&mut bytes)?;
        let owned = |bytes: &[u8]| OwnedKey::of(&search_key(&self.tree, bytes));
        // A word is as long as all keys: zeros behind a prefix make it the least word that has it. No word has a longer one.
        let is_longer = self.tree.key_width.is_some_and(|width| bytes.len() > width);
        let to = match end_of_prefix(&bytes) {
            _ if is_longer => Bound::Excluded(owned(&bytes)),
            Some(end) => Bound::Excluded(owned(&end)),
            None => Bound::Unbounded,
        };
        Ok(Bounds { from: Bound::Included(owned(&bytes)), to })
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
            return Ok(SearchKey::word(head_of(buffer)));
        }
        K::encode_key(key, buffer)?;
        Ok(SearchKey::bytes_key(buffer))
    }
}
