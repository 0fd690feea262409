//! The contents of inodes: afterwards every slot refers to a page or block of its own.

use super::dir_block;
use super::run::Repair;
use crate::error::FsError;
use crate::format::{
    HEIGHT_MAX, HUGE_PAGE_PAGES, INLINE_LINK_MAX, INODE_TAG, NO_TREE, Node, PAGE_BYTES, SlotKind,
};
use crate::node::inode::{FileKind, InodeRef, offset_of_ino};
use crate::node::slot::{self, Slot, SlotList};
use crate::node::{symlink, tree, walk};
use crate::session::recovery::BIRTHS_MAX;
use crate::volume::Source as _;
use core::mem::offset_of;
use pm_core::Pmem;
use pm_core::line::LINE_BYTES;

/// The most slots that one transaction clears.
const CLEARED_MAX: usize = 64;

/// What a walk through the index of an inode has found.
#[derive(Default)]
struct Walk {
    /// Slots that are cleared.
    bad: Vec<u64>,
    /// Slots whose page another slot has, too.
    shared: Vec<SharedPage>,
    /// The number of pages or directory blocks up to the last one.
    len: u64,
}

/// A slot whose page another slot has, too.
#[derive(Clone, Copy)]
struct SharedPage {
    /// The offset of the slot.
    at: u64,
    page: u64,
}

impl<P: Pmem> Repair<'_, P> {
    /// Verifies all inodes and their contents.
    pub(super) fn contents(&mut self) -> Result<(), FsError> {
        for block in self.blocks.clone() {
            let tag = self.volume.word(block)?;
            if tag & u64::from(u32::MAX) != u64::from(INODE_TAG) {
                continue;
            }
            match InodeRef::find(self.volume, block / LINE_BYTES) {
                Ok(inode) if inode.birth < BIRTHS_MAX && self.has_target(&inode) => {
                    self.volume.note_birth(inode.birth);
                    self.used.insert(block);
                    self.inodes.insert(inode.ino, inode);
                }
                _ => self.note(format!("inode {}: is corrupted, and was removed", block / LINE_BYTES)),
            }
        }
        for dir in [self.root, self.orphans] {
            if !self.inodes.contains_key(&dir.ino) {
                return Err(FsError::corrupted(offset_of_ino(dir.ino), "a directory of the superblock"));
            }
        }
        let mut shared = Vec::new();
        for inode in self.inodes.clone().into_values() {
            self.status(&inode)?;
            let walk = self.index(&inode)?;
            if inode.kind == FileKind::Directory {
                self.directory_blocks(&inode)?;
            }
            shared.extend(walk.shared.into_iter().map(|shared| (inode, shared)));
        }
        self.volume.pages.set_map(self.map.clone());
        for (inode, shared) in shared {
            self.copy_page(&inode, shared)?;
        }
        self.map = self.volume.pages.map();
        Ok(())
    }

    /// Whether the target of a symbolic link can be read; other files have none.
    fn has_target(&self, inode: &InodeRef) -> bool {
        inode.kind != FileKind::Symlink || symlink::read(self.volume, inode).is_ok()
    }

    /// Corrects the sealed words of an inode, except the number of its names.
    fn status(&mut self, inode: &InodeRef) -> Result<(), FsError> {
        let volume = self.volume;
        if inode.height(volume).is_err() {
            let height = self.height_by_slots(inode)?;
            volume.transaction(|change| change.set_sealed(inode.owner(), inode.height_at(), height))?;
            self.note(format!("inode {}: the height of its index is {height}", inode.ino));
        }
        let is_whole = match inode.xattr(volume) {
            Ok(None) => true,
            Ok(Some(block))
                if self.blocks.contains(&block)
                    && crate::node::attribute_block::load(volume, inode).is_ok() =>
            {
                self.used.insert(block)
            }
            _ => false,
        };
        if !is_whole {
            volume.transaction(|change| inode.set_xattr(change, None))?;
            self.note(format!("inode {}: its attributes are corrupted, and were removed", inode.ino));
        }
        Ok(())
    }

    /// The height of an index, by its first node.
    fn height_by_slots(&self, inode: &InodeRef) -> Result<u64, FsError> {
        let slots = (inode.slots_at()..).step_by(8).take(8);
        let found = slots.filter_map(|at| slot::load(self.volume, inode, at).ok().flatten()).next();
        Ok(match found {
            Some(slot) if slot.kind == SlotKind::Node && self.blocks.contains(&slot.offset()) => {
                let level = self.volume.word(slot.offset() + offset_of!(Node, level) as u64)?;
                level.min(HEIGHT_MAX)
            }
            Some(slot) => u64::from(slot.kind == SlotKind::HugePage),
            None => NO_TREE,
        })
    }

    /// Verifies the index and the size of an inode.
    fn index(&mut self, inode: &InodeRef) -> Result<Walk, FsError> {
        let volume = self.volume;
        // `None` if the word is corrupted, which is the only error.
        let size = inode.size(volume).ok();
        let mut walk = Walk::default();
        let is_inline =
            inode.kind == FileKind::Symlink && size.is_some_and(|size| size <= INLINE_LINK_MAX as u64);
        let height = inode.height(volume)?;
        if height != NO_TREE && is_inline {
            volume.transaction(|change| change.set_sealed(inode.owner(), inode.height_at(), NO_TREE))?;
            self.note(format!("inode {}: is a symbolic link without an index", inode.ino));
        } else if height != NO_TREE {
            self.slots(inode, SlotList::of_inode(inode, height), &mut walk)?;
        }
        for slots in walk.bad.chunks(CLEARED_MAX) {
            volume.transaction(|change| slots.iter().try_for_each(|at| change.set(*at, 0)))?;
        }
        if !walk.bad.is_empty() {
            self.note(format!("inode {}: {} parts of its contents are lost", inode.ino, walk.bad.len()));
        }
        // A directory's size is that of its blocks; another file's is lost with its word.
        let by_pages = walk.len * PAGE_BYTES;
        let right = if inode.kind == FileKind::Directory { by_pages } else { size.unwrap_or(by_pages) };
        if size != Some(right) {
            volume.transaction(|change| inode.set_size(change, right))?;
            self.note(format!("inode {}: its size is {right}", inode.ino));
        }
        Ok(walk)
    }

    fn slots(&mut self, inode: &InodeRef, slots: SlotList, walk: &mut Walk) -> Result<(), FsError> {
        let level = slots.level;
        for index in slots.indexes() {
            let at = slots.slot_at(index);
            let slot = match slot::load(self.volume, inode, at) {
                Ok(None) => continue,
                Ok(Some(slot)) => slot,
                Err(FsError::Corrupted(_)) => {
                    walk.bad.push(at);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let number = slots.page(index);
            if slot.is_huge(level) && inode.kind == FileKind::File && self.mark_huge(slot) {
                walk.len = number + HUGE_PAGE_PAGES;
                continue;
            }
            if level > 0 {
                let slot = if slot.is_huge(level) { self.split(inode, at, slot)? } else { Some(slot) };
                match slot.and_then(|slot| self.node(inode, slots, index, slot)) {
                    Some(below) => self.slots(inode, below, walk)?,
                    None => walk.bad.push(at),
                }
                continue;
            }
            let is_right = match (inode.kind, slot.kind) {
                (FileKind::File | FileKind::Symlink, SlotKind::Page)
                    if self.volume.pages.contains(slot.number) =>
                {
                    if !self.map.mark(slot.number) {
                        walk.shared.push(SharedPage { at, page: slot.number });
                    }
                    true
                }
                (FileKind::Directory, SlotKind::DirBlock) => {
                    self.blocks.contains(&slot.offset())
                        && dir_block::is_of(self.volume, inode, slot.offset())
                        && self.used.insert(slot.offset())
                }
                _ => false,
            };
            match is_right {
                true => walk.len = number + 1,
                false => walk.bad.push(at),
            }
        }
        Ok(())
    }

    /// Marks the pages of a huge page as in use. Returns false, and marks none, if one of them is, or is no page.
    fn mark_huge(&mut self, slot: Slot) -> bool {
        let is_free = slot.pages().all(|page| self.volume.pages.contains(page) && !self.map.is_used(page));
        is_free && slot.pages().all(|page| self.map.mark(page))
    }

    /// Splits a huge page, so that those of its pages can be replaced that another slot has, too. `None` if there is no room.
    fn split(&mut self, inode: &InodeRef, at: u64, huge: Slot) -> Result<Option<Slot>, FsError> {
        match self.volume.transaction(|change| tree::split(change, inode, at, huge)) {
            Ok(node) => {
                self.blocks.insert(node.offset());
                Ok(Some(node))
            }
            Err(FsError::NoSpace) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The slots of a node, to which slot `index` of `above` refers, if it is whole and nothing else uses it.
    fn node(&mut self, inode: &InodeRef, above: SlotList, index: u64, slot: Slot) -> Option<SlotList> {
        let block = slot.offset();
        if !self.blocks.contains(&block) || self.used.contains(&block) {
            return None;
        }
        let slots = above.below(self.volume, inode, index, slot).ok()?;
        self.used.insert(block);
        Some(slots)
    }

    /// Gives a slot a copy of a page that another slot has.
    fn copy_page(&mut self, inode: &InodeRef, SharedPage { at, page }: SharedPage) -> Result<(), FsError> {
        let volume = self.volume;
        let taken = match volume.pages.take(1) {
            Ok(taken) => Some(taken),
            Err(FsError::NoSpace) => None,
            Err(error) => return Err(error),
        };
        if let Some(taken) = &taken {
            let mut bytes = [0; 4096];
            volume.pmem().load(volume.page(page)?, &mut bytes);
            volume.pmem().store_nt(volume.page(taken.numbers()[0])?, &bytes);
        }
        volume.transaction(|change| match &taken {
            Some(taken) => {
                change.note_data();
                slot::store(change, inode, at, Slot::page(taken.numbers()[0]))
            }
            None => change.set(at, 0),
        })?;
        match taken {
            Some(taken) => {
                taken.keep();
                self.note(format!("inode {}: page {page} is another file's, and was copied", inode.ino));
            }
            None => {
                self.note(format!(
                    "inode {}: a page is another file's, and there is no room to copy it",
                    inode.ino
                ));
                self.remove_without_target(inode)?;
            }
        }
        Ok(())
    }

    /// Removes a symbolic link whose target is lost; its names follow.
    fn remove_without_target(&mut self, inode: &InodeRef) -> Result<(), FsError> {
        if !self.has_target(inode) {
            self.inodes.remove(&inode.ino);
            self.used.remove(&offset_of_ino(inode.ino));
            if let Some(block) = inode.xattr(self.volume)? {
                self.used.remove(&block);
            }
        }
        Ok(())
    }

    /// Frees the entries of a directory that are corrupted.
    fn directory_blocks(&mut self, inode: &InodeRef) -> Result<(), FsError> {
        let mut blocks = Vec::new();
        for visited in walk::walk(self.volume, inode)? {
            let slot = visited?.slot;
            if slot.kind == SlotKind::DirBlock {
                blocks.push(slot.offset());
            }
        }
        for block in blocks {
            if dir_block::salvage(self.volume, inode, block)? {
                self.note(format!("directory {}: corrupted names were removed", inode.ino));
            }
        }
        Ok(())
    }
}
