//! The names of objects, in order.

use crate::error::ObjectError;
use crate::format::INCOMPLETE;
use crate::session::shared::Row;
use core::fmt;
use core::iter::FusedIterator;
use pm_btree::{Plain, Range};
use pm_core::{Pmem, Region};

/// The names of objects, in the order of their bytes, from [`Objects::list`](crate::Objects::list).
///
/// It sees changes that are made meanwhile, or not, and keeps the pool open.
pub struct List<P: Pmem = Region> {
    pub(super) range: Option<Range<&'static str, Plain<Row>, P>>,
}

impl<P: Pmem> fmt::Debug for List<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("List").finish_non_exhaustive()
    }
}

impl<P: Pmem> Iterator for List<P> {
    type Item = Result<String, ObjectError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.range.as_mut()?.next()? {
                Ok((name, _)) if name.value().starts_with(INCOMPLETE) => {}
                found => {
                    return Some(found.map(|(name, _)| name.value().to_owned()).map_err(ObjectError::from));
                }
            }
        }
    }
}

impl<P: Pmem> FusedIterator for List<P> {}
