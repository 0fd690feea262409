//! Inodes without a name that are still open. A directory of its own lists them, so that the next open frees what a crash has left.

use crate::error::FsError;
use crate::node::dir::{DirChange, DirIndex};
use crate::node::inode::{InodeRef, offset_of_ino};
use crate::node::tree;
use crate::volume::Volume;
use pm_core::Pmem;

/// The name of an orphan in their directory.
pub(crate) fn name_of(ino: u64) -> Vec<u8> {
    format!("{ino:x}").into_bytes()
}

/// Frees all pages and nodes of an orphan, in steps. A crash between two of them leaves it an orphan.
pub(crate) fn free_contents<P: Pmem>(volume: &Volume<P>, inode: &InodeRef) -> Result<(), FsError> {
    while volume.transaction(|change| tree::cut(change, inode, 0))? {}
    Ok(())
}

/// Frees an orphan without contents, and removes its name.
///
/// # Durability
/// Durable when this returns, with the commit of one `Heap::transaction`; a crash before that leaves the orphan. One fence.
pub(crate) fn free<P: Pmem>(
    volume: &Volume<P>,
    inode: &InodeRef,
    index: &DirIndex,
) -> Result<DirChange, FsError> {
    let name = name_of(inode.ino);
    let corrupted = FsError::corrupted(offset_of_ino(inode.ino), "the name of an inode without a name");
    let found = index.find(volume, &name)?.ok_or(corrupted)?;
    volume.transaction(|change| {
        inode.free_xattr(change)?;
        change.free(offset_of_ino(inode.ino))?;
        DirIndex::remove(change, found)
    })
}
