//! The pool: checked loads and transactions, the root block, objects and their tables, slots.

pub(crate) mod file;
pub(crate) mod file_map;
pub(crate) mod hints;
pub(crate) mod latencies;
pub(crate) mod object;
pub(crate) mod options;
pub(crate) mod root;
pub(crate) mod slabs;
pub(crate) mod slots;
pub(crate) mod table;
#[expect(clippy::module_inception, reason = "the storage as a whole, beside its parts")]
mod volume;

pub(crate) use volume::{Change, Volume};
