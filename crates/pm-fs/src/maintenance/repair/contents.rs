//! The contents of inodes: afterwards every slot refers to a page or block of its own.

use super::dir_block;
use super::progress::Repair;
use crate::error::FsError;
use crate::format::{
    HEIGHT_MAX, HUGE_PAGE_PAGES, INLINE_LINK_MAX, INODE_TAG, NO_TREE, Node, PAGE_BYTES, SlotKind,
};
use crate::node::inode::{FileKind, InodeRef, offset_of_ino};
use crate::node::slot::{self, Slot, SlotList};
use crate::node::{attribute_block, symlink, tree, walk};
use crate::session::recovery::BIRTHS_MAX;
use crate::volume::Source as _;
use core::mem::offset_of;
use pm_core::Pmem;
use pm_core::line::LINE_BYTES;

/// The most slots that one transaction clears.
const CLEARED_MAX: usize = 64;

/// What a walk through the index of an inode has found.
#[derive(Default)]
struct Findings {
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

/// Verifies all inodes and their contents.
pub(super) fn verify<P: Pmem>(repair: &mut Repair<'_, P>) -> Result<(), FsError> {
    for block in repair.blocks.clone() {
        let tag = repair.volume.word(block)?;
        if tag & u64::from(u32::MAX) != u64::from(INODE_TAG) {
            continue;
        }
        match InodeRef::find(repair.volume, block / LINE_BYTES) {
            Ok(inode) if inode.birth < BIRTHS_MAX && has_target(repair, &inode) => {
                repair.volume.note_birth(inode.birth);
                repair.used.insert(block);
                repair.inodes.insert(inode.ino, inode);
            }
            _ => repair.note(format!("inode {}: is corrupted, and was removed", block / LINE_BYTES)),
        }
    }
    for dir in [repair.root, repair.orphans] {
        if !repair.inodes.contains_key(&dir.ino) {
            return Err(FsError::corrupted(offset_of_ino(dir.ino), "a directory of the superblock"));
        }
    }
    let mut shared = Vec::new();
    for inode in repair.inodes.clone().into_values() {
        verify_status(repair, &inode)?;
        let found = verify_index(repair, &inode)?;
        if inode.kind == FileKind::Directory {
            verify_directory(repair, &inode)?;
        }
        shared.extend(found.shared.into_iter().map(|shared| (inode, shared)));
    }
    repair.volume.pages.set_map(repair.map.clone());
    for (inode, shared) in shared {
        copy_page(repair, &inode, shared)?;
    }
    repair.map = repair.volume.pages.map();
    Ok(())
}

/// Whether the target of a symbolic link can be read; other files have none.
fn has_target<P: Pmem>(repair: &Repair<'_, P>, inode: &InodeRef) -> bool {
    inode.kind != FileKind::Symlink || symlink::read(repair.volume, inode).is_ok()
}

/// Corrects the sealed words of an inode, except the number of its names.
fn verify_status<P: Pmem>(repair: &mut Repair<'_, P>, inode: &InodeRef) -> Result<(), FsError> {
    let volume = repair.volume;
    if inode.height(volume).is_err() {
        let height = height_by_slots(repair, inode)?;
        volume.transaction(|change| change.set_sealed(inode.owner(), inode.height_at(), height))?;
        repair.note(format!("inode {}: the height of its index is {height}", inode.ino));
    }
    let is_whole = match inode.xattr(volume) {
        Ok(None) => true,
        Ok(Some(block)) if repair.blocks.contains(&block) && attribute_block::load(volume, inode).is_ok() => {
            repair.used.insert(block)
        }
        _ => false,
    };
    if !is_whole {
        volume.transaction(|change| inode.set_xattr(change, None))?;
        repair.note(format!("inode {}: its attributes are corrupted, and were removed", inode.ino));
    }
    Ok(())
}

/// The height of an index, by its first node.
fn height_by_slots<P: Pmem>(repair: &Repair<'_, P>, inode: &InodeRef) -> Result<u64, FsError> {
    let slots = (inode.slots_at()..).step_by(8).take(8);
    let found = slots.filter_map(|at| slot::load(repair.volume, inode, at).ok().flatten()).next();
    Ok(match found {
        Some(slot) if slot.kind == SlotKind::Node && repair.blocks.contains(&slot.offset()) => {
            let level = repair.volume.word(slot.offset() + offset_of!(Node, level) as u64)?;
            level.min(HEIGHT_MAX)
        }
        Some(slot) => u64::from(slot.kind == SlotKind::HugePage),
        None => NO_TREE,
    })
}

/// Verifies the index and the size of an inode.
fn verify_index<P: Pmem>(repair: &mut Repair<'_, P>, inode: &InodeRef) -> Result<Findings, FsError> {
    let volume = repair.volume;
    // `None` if the word is corrupted, which is the only error.
    let size = inode.size(volume).ok();
    let mut found = Findings::default();
    let is_inline =
        inode.kind == FileKind::Symlink && size.is_some_and(|size| size <= INLINE_LINK_MAX as u64);
    let height = inode.height(volume)?;
    if height != NO_TREE && is_inline {
        volume.transaction(|change| change.set_sealed(inode.owner(), inode.height_at(), NO_TREE))?;
        repair.note(format!("inode {}: is a symbolic link without an index", inode.ino));
    } else if height != NO_TREE {
        verify_slots(repair, inode, SlotList::of_inode(inode, height), &mut found)?;
    }
    for slots in found.bad.chunks(CLEARED_MAX) {
        volume.transaction(|change| slots.iter().try_for_each(|at| change.set(*at, 0)))?;
    }
    if !found.bad.is_empty() {
        repair.note(format!("inode {}: {} parts of its contents are lost", inode.ino, found.bad.len()));
    }
    // A directory's size is that of its blocks; another file's is lost with its word.
    let by_pages = found.len * PAGE_BYTES;
    let right = if inode.kind == FileKind::Directory { by_pages } else { size.unwrap_or(by_pages) };
    if size != Some(right) {
        volume.transaction(|change| inode.set_size(change, right))?;
        repair.note(format!("inode {}: its size is {right}", inode.ino));
    }
    Ok(found)
}

fn verify_slots<P: Pmem>(
    repair: &mut Repair<'_, P>,
    inode: &InodeRef,
    slots: SlotList,
    found: &mut Findings,
) -> Result<(), FsError> {
    let level = slots.level;
    for index in slots.indexes() {
        let at = slots.slot_at(index);
        let slot = match slot::load(repair.volume, inode, at) {
            Ok(None) => continue,
            Ok(Some(slot)) => slot,
            Err(FsError::Corrupted(_)) => {
                found.bad.push(at);
                continue;
            }
            Err(error) => return Err(error),
        };
        let number = slots.page(index);
        if slot.is_huge(level) && inode.kind == FileKind::File && mark_huge(repair, slot) {
            found.len = number + HUGE_PAGE_PAGES;
            continue;
        }
        if level > 0 {
            let slot = if slot.is_huge(level) { split_huge(repair, inode, at, slot)? } else { Some(slot) };
            match slot.and_then(|slot| verified_node(repair, inode, slots, index, slot)) {
                Some(below) => verify_slots(repair, inode, below, found)?,
                None => found.bad.push(at),
            }
            continue;
        }
        let is_right = match (inode.kind, slot.kind) {
            (FileKind::File | FileKind::Symlink, SlotKind::Page)
                if repair.volume.pages.contains(slot.number) =>
            {
                if !repair.map.mark(slot.number) {
                    found.shared.push(SharedPage { at, page: slot.number });
                }
                true
            }
            (FileKind::Directory, SlotKind::DirBlock) => {
                repair.blocks.contains(&slot.offset())
                    && dir_block::is_of(repair.volume, inode, slot.offset())
                    && repair.used.insert(slot.offset())
            }
            _ => false,
        };
        match is_right {
            true => found.len = number + 1,
            false => found.bad.push(at),
        }
    }
    Ok(())
}

/// Marks the pages of a huge page as in use. Returns false, and marks none, if one of them is, or is no page.
fn mark_huge<P: Pmem>(repair: &mut Repair<'_, P>, slot: Slot) -> bool {
    let is_free = slot.pages().all(|page| repair.volume.pages.contains(page) && !repair.map.is_used(page));
    is_free && slot.pages().all(|page| repair.map.mark(page))
}

/// Splits a huge page, so that those of its pages can be replaced that another slot has, too. `None` if there is no room.
fn split_huge<P: Pmem>(
    repair: &mut Repair<'_, P>,
    inode: &InodeRef,
    at: u64,
    huge: Slot,
) -> Result<Option<Slot>, FsError> {
    match repair.volume.transaction(|change| tree::split(change, inode, at, huge)) {
        Ok(node) => {
            repair.blocks.insert(node.offset());
            Ok(Some(node))
        }
        Err(FsError::NoSpace) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The slots of a node, to which slot `index` of `above` refers, if it is whole and nothing else uses it.
fn verified_node<P: Pmem>(
    repair: &mut Repair<'_, P>,
    inode: &InodeRef,
    above: SlotList,
    index: u64,
    slot: Slot,
) -> Option<SlotList> {
    let block = slot.offset();
    if !repair.blocks.contains(&block) || repair.used.contains(&block) {
        return None;
    }
    let slots = above.below(repair.volume, inode, index, slot).ok()?;
    repair.used.insert(block);
    Some(slots)
}

/// Gives a slot a copy of a page that another slot has.
fn copy_page<P: Pmem>(
    repair: &mut Repair<'_, P>,
    inode: &InodeRef,
    SharedPage { at, page }: SharedPage,
) -> Result<(), FsError> {
    let volume = repair.volume;
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
            repair.note(format!("inode {}: page {page} is another file's, and was copied", inode.ino));
        }
        None => {
            repair.note(format!(
                "inode {}: a page is another file's, and there is no room to copy it",
                inode.ino
            ));
            remove_without_target(repair, inode)?;
        }
    }
    Ok(())
}

/// Removes a symbolic link whose target is lost; its names follow.
fn remove_without_target<P: Pmem>(repair: &mut Repair<'_, P>, inode: &InodeRef) -> Result<(), FsError> {
    if !has_target(repair, inode) {
        repair.inodes.remove(&inode.ino);
        repair.used.remove(&offset_of_ino(inode.ino));
        if let Some(block) = inode.xattr(repair.volume)? {
            repair.used.remove(&block);
        }
    }
    Ok(())
}

/// Frees the entries of a directory that are corrupted.
fn verify_directory<P: Pmem>(repair: &mut Repair<'_, P>, inode: &InodeRef) -> Result<(), FsError> {
    let mut blocks = Vec::new();
    for visited in walk::walk(repair.volume, inode)? {
        let slot = visited?.slot;
        if slot.kind == SlotKind::DirBlock {
            blocks.push(slot.offset());
        }
    }
    for block in blocks {
        if dir_block::salvage(repair.volume, inode, block)? {
            repair.note(format!("directory {}: corrupted names were removed", inode.ino));
        }
    }
    Ok(())
}
