//! The iterator over a range of keys.

use super::guard::Guard;
use super::shared::Shared;
use crate::error::ReadError;
use crate::ops::{Bounds, Found, Scan, Side};
use crate::tree::Tree;
use crate::types::{Key, Value};
use core::fmt;
use core::iter::FusedIterator;
use core::marker::PhantomData;
use pm_core::{Pmem, Region};
use std::sync::Arc;

/// A key and its value.
pub type KeyValue<K, V> = (Guard<K>, Guard<V>);

/// The entries in a range of keys, from [`Table::range`](crate::Table::range) or [`Table::prefix`](crate::Table::prefix).
///
/// It borrows neither the table nor the store, and keeps the store open.
pub struct Range<K: Key, V: Value, P: Pmem = Region> {
    shared: Arc<Shared<P>>,
    tree: Arc<Tree>,
    scan: Scan,
    /// Why a bound has no encoding, until it is returned.
    error: Option<ReadError>,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K: Key, V: Value, P: Pmem> fmt::Debug for Range<K, V, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Range").field("scan", &self.scan).finish_non_exhaustive()
    }
}

impl<K: Key, V: Value, P: Pmem> Range<K, V, P> {
    /// The entries within the bounds, or the error that there are none.
    #[inline]
    pub(super) fn new(shared: &Arc<Shared<P>>, tree: &Arc<Tree>, bounds: Result<Bounds, ReadError>) -> Self {
        let (bounds, error) = match bounds {
            Ok(bounds) => (Some(bounds), None),
            Err(error) => (None, Some(error)),
        };
        let (shared, tree) = (Arc::clone(shared), Arc::clone(tree));
        Self { shared, tree, scan: Scan::new(bounds), error, types: PhantomData }
    }

    #[inline]
    fn next_from(&mut self, side: Side) -> Option<Result<KeyValue<K, V>, ReadError>> {
        match next_in(&mut self.scan, &self.shared, &self.tree, side) {
            None => self.error.take().map(Err),
            next => next,
        }
    }
}

/// The next entry of a scan at one end.
#[inline]
pub(super) fn next_in<K: Key, V: Value, P: Pmem>(
    scan: &mut Scan,
    shared: &Shared<P>,
    tree: &Tree,
    side: Side,
) -> Option<Result<KeyValue<K, V>, ReadError>> {
    let entry = |found: Found<'_>| Ok((Guard::of_key(found.key())?, Guard::of_value(found.value())?));
    Some(next_found(scan, shared, tree, side)?.and_then(entry))
}

/// As [`next_in`], as it is stored.
#[inline]
pub(super) fn next_found<'s, P: Pmem>(
    scan: &'s mut Scan,
    shared: &Shared<P>,
    tree: &Tree,
    side: Side,
) -> Option<Result<Found<'s>, ReadError>> {
    // Changes that have joined a group meanwhile are seen like others.
    if scan.reads_next(side)
        && let Err(error) = shared.settle_reads()
    {
        *scan = Scan::new(None);
        return Some(Err(error));
    }
    Some(scan.next(&shared.session, tree, side)?.map_err(ReadError::from))
}

impl<K: Key, V: Value, P: Pmem> Iterator for Range<K, V, P> {
    type Item = Result<KeyValue<K, V>, ReadError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.next_from(Side::Front)
    }
}

impl<K: Key, V: Value, P: Pmem> DoubleEndedIterator for Range<K, V, P> {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        self.next_from(Side::Back)
    }
}

impl<K: Key, V: Value, P: Pmem> FusedIterator for Range<K, V, P> {}
