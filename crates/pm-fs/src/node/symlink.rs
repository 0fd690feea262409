//! The target of a symbolic link: in the inode if it is short, else in a page.

use crate::error::FsError;
use crate::format::{INLINE_LINK_MAX, PAGE_BYTES};
use crate::node::inode::{FileKind, InodeRef};
use crate::node::slot::Slot;
use crate::node::tree;
use crate::volume::pages::Taken;
use crate::volume::{Change, Volume};
use pm_core::Pmem;

/// The longest target.
pub(crate) const TARGET_MAX: usize = 4095;
const _: () = assert!((TARGET_MAX as u64) < PAGE_BYTES);

/// The target of a new symbolic link. Other inodes have an empty one.
pub(crate) struct NewTarget<'t> {
    target: &'t [u8],
    /// The page of a long one, which is stored and not fenced.
    page: Option<Taken<'t>>,
}

impl<'t> NewTarget<'t> {
    /// Takes a page for a long target, and stores it there.
    pub(crate) fn new<P: Pmem>(volume: &'t Volume<P>, target: &'t [u8]) -> Result<Self, FsError> {
        let page = if target.len() > INLINE_LINK_MAX { Some(volume.pages.take(1)?) } else { None };
        if let Some(page) = &page {
            volume.pmem().store_nt(volume.page(page.numbers()[0])?, target);
        }
        Ok(Self { target, page })
    }

    /// Gives it to a new inode, in a transaction.
    pub(crate) fn store<P: Pmem>(
        &self,
        change: &mut Change<'_, '_, P>,
        inode: &InodeRef,
    ) -> Result<(), FsError> {
        if self.target.is_empty() {
            return Ok(());
        }
        if let Some(page) = &self.page {
            change.note_data();
            tree::set(change, inode, 0, Slot::page(page.numbers()[0]))?;
        } else {
            change.write_bytes(inode.slots_at(), self.target)?;
        }
        inode.set_size(change, self.target.len() as u64)
    }

    /// The transaction is durable.
    pub(crate) fn keep(self) {
        self.page.into_iter().for_each(Taken::keep);
    }
}

/// The target of a symbolic link.
pub(crate) fn read<P: Pmem>(volume: &Volume<P>, inode: &InodeRef) -> Result<Vec<u8>, FsError> {
    if inode.kind != FileKind::Symlink {
        return Err(FsError::Invalid);
    }
    let corrupted = FsError::corrupted(inode.size_at(), "the length of a symbolic link");
    let len = usize::try_from(inode.size(volume)?).ok().filter(|len| *len <= TARGET_MAX);
    let mut target = vec![0; len.ok_or(corrupted)?];
    if target.len() <= INLINE_LINK_MAX {
        volume.bytes(inode.slots_at(), &mut target)?;
    } else {
        let slot = tree::find(volume, inode, 0)?;
        let slot = slot.ok_or(FsError::corrupted(inode.slots_at(), "a symbolic link"))?;
        volume.pmem().load(volume.page(slot.number)?, &mut target);
    }
    Ok(target)
}
