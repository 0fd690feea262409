//! The operations on open files and directories. Each locks the inodes that it needs and changes them durably.

pub(crate) mod data;
pub(crate) mod namei;
pub(crate) mod write;
pub(crate) mod xattr;
