//! A table with keys and values as text.

use super::failure::StoreError;
use super::kind::{Cell, Typed};
use core::ops::{Bound, ControlFlow};
use pm_btree::{Guard, ReadError, Table};

/// A table with types that are known at run time.
pub(crate) trait AnyTable {
    /// Calls `found` with the value of a key. False if there is none.
    fn get(&self, key: &str, found: &mut dyn FnMut(Cell<'_>)) -> Result<bool, StoreError>;

    /// Inserts a key or replaces its value, durably. True if the key was new.
    fn insert(&self, key: &str, value: &str) -> Result<bool, StoreError>;

    /// Inserts a key or replaces its value, in the store's group: durable after a [`Handle::sync`](super::handle::Handle::sync).
    fn insert_grouped(&self, key: &str, value: &str) -> Result<(), StoreError>;

    /// Removes a key, durably. False if there is none.
    fn remove(&self, key: &str) -> Result<bool, StoreError>;

    /// Calls `each` with the keys in a range and their values, and with an error for each corrupted entry, until it breaks.
    fn scan(&self, range: &TextRange<'_>, each: &mut EachRow<'_>) -> Result<(), StoreError>;
}

/// Takes a key and its value.
pub(crate) type EachRow<'a> = dyn FnMut(Result<(Cell<'_>, Cell<'_>), StoreError>) -> ControlFlow<()> + 'a;

/// A range of keys, as on the command line.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TextRange<'a> {
    /// The first key.
    pub(crate) from: Option<&'a str>,
    /// The key before which the range ends.
    pub(crate) to: Option<&'a str>,
    /// Whether the last key comes first.
    pub(crate) is_reversed: bool,
}

impl<K: Typed, V: Typed> AnyTable for Table<K, V> {
    fn get(&self, key: &str, found: &mut dyn FnMut(Cell<'_>)) -> Result<bool, StoreError> {
        let value = Table::get(self, K::parse(key, &mut Vec::new())?)?;
        if let Some(value) = &value {
            found(V::cell(value.value()));
        }
        Ok(value.is_some())
    }

    fn insert(&self, key: &str, value: &str) -> Result<bool, StoreError> {
        let (mut key_scratch, mut value_scratch) = (Vec::new(), Vec::new());
        let key = K::parse(key, &mut key_scratch)?;
        Ok(Table::insert(self, key, V::parse(value, &mut value_scratch)?)?)
    }

    fn insert_grouped(&self, key: &str, value: &str) -> Result<(), StoreError> {
        let (mut key_scratch, mut value_scratch) = (Vec::new(), Vec::new());
        let key = K::parse(key, &mut key_scratch)?;
        Ok(Table::insert_grouped(self, key, V::parse(value, &mut value_scratch)?)?)
    }

    fn remove(&self, key: &str) -> Result<bool, StoreError> {
        Ok(Table::remove(self, K::parse(key, &mut Vec::new())?)?)
    }

    fn scan(&self, range: &TextRange<'_>, each: &mut EachRow<'_>) -> Result<(), StoreError> {
        let (mut from_scratch, mut to_scratch) = (Vec::new(), Vec::new());
        let from = range.from.map(|from| K::parse(from, &mut from_scratch)).transpose()?;
        let to = range.to.map(|to| K::parse(to, &mut to_scratch)).transpose()?;
        let bounds =
            (from.map_or(Bound::Unbounded, Bound::Included), to.map_or(Bound::Unbounded, Bound::Excluded));
        let mut rows = self.range(bounds);
        let rows: &mut dyn Iterator<Item = Result<(Guard<K>, Guard<V>), ReadError>> =
            if range.is_reversed { &mut rows.rev() } else { &mut rows };
        for row in rows {
            let flow = match row {
                Ok((key, value)) => each(Ok((K::cell(key.value()), V::cell(value.value())))),
                Err(error) => each(Err(error.into())),
            };
            if flow.is_break() {
                break;
            }
        }
        Ok(())
    }
}
