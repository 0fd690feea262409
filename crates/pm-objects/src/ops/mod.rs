//! The operations: on names, which take the lock of the names, and on contents.

pub(crate) mod contents;
pub(crate) mod naming;
