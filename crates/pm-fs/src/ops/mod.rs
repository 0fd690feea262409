//! The operations on open files and directories, one in each file. Each locks the inodes that it needs and changes them durably.

pub(crate) mod allocate;
pub(crate) mod attributes;
pub(crate) mod create;
pub(crate) mod link;
pub(crate) mod lookup;
pub(crate) mod read;
pub(crate) mod rename;
pub(crate) mod truncate;
pub(crate) mod unlink;
pub(crate) mod write;
pub(crate) mod xattr;
