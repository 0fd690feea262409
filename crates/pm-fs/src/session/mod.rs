//! An open file system: its locks, the inodes in use, and recovery.

pub(crate) mod link_removal;
pub(crate) mod locked;
pub(crate) mod open;
pub(crate) mod orphans;
pub(crate) mod recovery;
pub(crate) mod shared;
pub(crate) mod table;
