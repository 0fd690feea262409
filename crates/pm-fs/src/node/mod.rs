//! One inode and the structures that belong to it: its file index, the entries of a directory, and the extended attributes.

pub(crate) mod acl;
pub(crate) mod attribute_block;
pub(crate) mod contents;
pub(crate) mod dir;
pub(crate) mod inode;
pub(crate) mod slot;
pub(crate) mod symlink;
pub(crate) mod tree;
pub(crate) mod walk;
