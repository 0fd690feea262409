//! The public calls: an open file system, handles to its files, and mapped files.

pub(crate) mod fs;
pub(crate) mod handle;
pub(crate) mod map;
