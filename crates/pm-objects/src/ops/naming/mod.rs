//! The operations on names, one in each file. They take the lock of the names.

pub(crate) mod create;
pub(crate) mod free;
pub(crate) mod names;
pub(crate) mod recover;
pub(crate) mod remove;
