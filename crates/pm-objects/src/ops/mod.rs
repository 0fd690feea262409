//! The operations, one in each file: on names, which take the lock of the names, and on contents.

pub(crate) mod create;
pub(crate) mod free;
pub(crate) mod load;
pub(crate) mod names;
pub(crate) mod recover;
pub(crate) mod remove;
pub(crate) mod room;
pub(crate) mod store;
