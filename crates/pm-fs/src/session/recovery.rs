//! What an open leaves to the first change: finding the pages in use, and freeing the inodes that were open without a name.

use crate::error::FsError;
use crate::format::{HEIGHT_MAX, INODE_TAG, NO_TREE, NODE_TAG, Node, SAVED_TAG, Saved, SlotKind};
use crate::node::dir::{self, DirIndex};
use crate::node::inode::{FileKind, InodeRef, offset_of_ino};
use crate::node::slot::{self, Slot, SlotList};
use crate::session::orphans;
use crate::volume::pages::PageMap;
use crate::volume::{Source as _, Volume};
use core::mem::offset_of;
use pm_alloc::CorruptionKind;
use pm_alloc::format::BlockState;
use pm_core::line::LINE_BYTES;
use pm_core::{Pmem, crc32c_bytes};
use std::collections::HashSet;

/// More inodes than are ever created.
pub(crate) const BIRTHS_MAX: u64 = 1 << 62;

/// Prepares an open file system for changes.
///
/// # Durability
/// Durable when this returns: each step is one `Heap::transaction`. What was saved is forgotten before anything else changes. A crash inside this
/// leaves the file system as it was, without some of the orphans. One fence, one more if something was saved, and those of freeing orphans.
pub(crate) fn recover<P: Pmem>(
    volume: &Volume<P>,
    dir_of_orphans: &InodeRef,
    saved_at: u64,
) -> Result<(), FsError> {
    let saved = load_saved(volume, saved_at)?;
    let found = match &saved {
        Some(saved) => load_map(volume, saved)?.map(|map| Usage { map, birth: saved.birth }),
        None => None,
    };
    let Usage { map, birth } = match found {
        Some(found) => found,
        None => scan(volume)?,
    };
    volume.note_birth(birth);
    volume.pages.set_map(map);
    if saved.is_none_or(|saved| saved.map != 0) {
        forget(volume, saved_at, saved)?;
    }
    free_orphans(volume, dir_of_orphans)
}

/// What is in use in a file system.
struct Usage {
    /// The pages.
    map: PageMap,
    /// The last birth of an inode.
    birth: u64,
}

/// Forgets what was saved, and frees the block of its map if that is known.
pub(crate) fn forget<P: Pmem>(
    volume: &Volume<P>,
    saved_at: u64,
    saved: Option<Saved>,
) -> Result<(), FsError> {
    volume.transaction(|change| {
        if let Some(saved) = saved {
            change.free(saved.map)?;
        }
        change.write(saved_at, &nothing().sealed(volume.seed, saved_at))
    })
}

/// That nothing is saved; not sealed yet.
pub(crate) const fn nothing() -> Saved {
    Saved {
        tag: SAVED_TAG,
        crc: 0,
        map: 0,
        map_bytes: 0,
        birth: 0,
        map_crc: 0,
        reserved: 0,
        reserved_1: [0; 3],
    }
}

/// What the last close has saved. `None` if that is corrupted: it can be found again.
pub(crate) fn load_saved<P: Pmem>(volume: &Volume<P>, at: u64) -> Result<Option<Saved>, FsError> {
    let saved: Saved = volume.load(at)?;
    Ok((saved.tag == SAVED_TAG && saved.crc == saved.expected_crc(volume.seed, at)).then_some(saved))
}

/// The map of pages that was saved. `None` if none was, or if it is corrupted.
fn load_map<P: Pmem>(volume: &Volume<P>, saved: &Saved) -> Result<Option<PageMap>, FsError> {
    let map = volume.pages.empty_map();
    if saved.map == 0 || saved.map_bytes != 8 * map.words().len() as u64 || saved.birth >= BIRTHS_MAX {
        return Ok(None);
    }
    let mut bytes = vec![0; 8 * map.words().len()];
    volume.bytes(saved.map, &mut bytes)?;
    if crc32c_bytes(0, &bytes) != saved.map_crc {
        return Ok(None);
    }
    let words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    Ok(map.with_words(words))
}

/// Saves the map of pages and the last birth, for the next open. The caller changes nothing after that. Without room nothing is saved.
///
/// # Durability
/// Durable when this returns, with the commit of one `Heap::transaction`; a crash before that leaves nothing saved. Two fences.
pub(crate) fn save<P: Pmem>(volume: &Volume<P>, saved_at: u64) -> Result<(), FsError> {
    let map = volume.pages.map();
    let bytes: Vec<u8> = map.words().iter().flat_map(|word| word.to_le_bytes()).collect();
    let saved = volume.transaction(|change| {
        let offset = change.alloc_uninit(bytes.len() as u64)?;
        // Not through the log: nothing links to the block before the commit, which fences first.
        change.volume.pmem().store_nt(offset, &bytes);
        change.note_data();
        let (map_bytes, map_crc) = (bytes.len() as u64, crc32c_bytes(0, &bytes));
        let saved = Saved { map: offset, map_bytes, birth: volume.last_birth(), map_crc, ..nothing() };
        change.write(saved_at, &saved.sealed(volume.seed, saved_at))
    });
    match saved {
        Err(FsError::NoSpace) => Ok(()),
        saved => saved,
    }
}

/// Frees the inodes without a name that earlier processes have left, and gives their directory its first block, so that a file that is open can be
/// removed when there is no room for metadata.
fn free_orphans<P: Pmem>(volume: &Volume<P>, parent: &InodeRef) -> Result<(), FsError> {
    let mut index = DirIndex::load(volume, parent)?;
    for found in dir::entries(volume, parent, 0)? {
        let inode = InodeRef::find(volume, found.ino)?;
        if inode.kind != found.kind || inode.ino == parent.ino || inode.nlink(volume)? != 0 {
            return Err(FsError::corrupted(offset_of_ino(found.ino), "an inode without a name"));
        }
        orphans::free_contents(volume, &inode)?;
        let freed = orphans::free(volume, &inode, &index)?;
        index.apply(freed);
    }
    match volume.transaction(|change| index.reserve(change, parent)) {
        // An older file system may be full.
        Ok(_) | Err(FsError::NoSpace) => Ok(()),
        Err(error) => Err(error),
    }
}

/// All allocated blocks of the heap.
///
/// # Errors
/// When a chain of its headers is broken, was broken when a repair of the heap marked what followed, or a root line of the pool is corrupted: a block
/// that is not listed may be in use.
pub(crate) fn blocks<P: Pmem>(volume: &Volume<P>) -> Result<Vec<u64>, FsError> {
    let pool = volume.heap.pool();
    if pool.corrupted_root_count() > 0 {
        return Err(FsError::corrupted(0, "a root line of the pool"));
    }
    let mut blocks = Vec::new();
    let mut lost = None;
    let report = volume.heap.check_with(|block| match block.state {
        BlockState::Allocated => blocks.push(block.payload),
        BlockState::Free | BlockState::End => {}
        BlockState::Lost | BlockState::Unreachable => lost = lost.or(Some(block.payload)),
    });
    // A chain that arrives at the end of its chunk lists all blocks, whatever the word there.
    let broken = report.corruptions.iter().find(|corruption| corruption.kind != CorruptionKind::End);
    let broken = broken.map(|corruption| corruption.header_offset);
    match broken.or(lost) {
        Some(offset) => Err(FsError::corrupted(offset, "a chain of headers of the heap")),
        None => Ok(blocks),
    }
}

/// Marks the pages of all files as in use, by one pass over the blocks of the heap, and finds the last birth of an inode. Makes lengths and times
/// durable that a killed process has stored in place: what is read from now on must not be taken back by a power failure.
///
/// No slot refers to another slot's page or node. A block that the heap does not list would be missed, and its pages given to other files: so the heap's
/// chains of headers are intact.
///
/// # Durability
/// The lengths and times are durable when this returns. One fence.
fn scan<P: Pmem>(volume: &Volume<P>) -> Result<Usage, FsError> {
    let mut found =
        Scan { map: volume.pages.empty_map(), birth: 0, nodes: HashSet::new(), children: HashSet::new() };
    for block in blocks(volume)? {
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        match volume.word(block)? as u32 {
            INODE_TAG => found.note_inode(volume, block)?,
            NODE_TAG => found.note_node(volume, block)?,
            _ => {}
        }
    }
    match found.children.difference(&found.nodes).next() {
        Some(child) => Err(FsError::corrupted(*child, "a node of a file index")),
        None => {
            // DURABILITY POINT
            volume.pmem().fence()?;
            Ok(Usage { map: found.map, birth: found.birth })
        }
    }
}

/// What a pass over the blocks of the heap has found.
struct Scan {
    map: PageMap,
    birth: u64,
    nodes: HashSet<u64>,
    /// The nodes that slots refer to.
    children: HashSet<u64>,
}

impl Scan {
    fn note_inode<P: Pmem>(&mut self, volume: &Volume<P>, block: u64) -> Result<(), FsError> {
        let inode = InodeRef::find(volume, block / LINE_BYTES)?;
        if inode.birth >= BIRTHS_MAX {
            return Err(FsError::corrupted(block, "the birth of an inode"));
        }
        self.birth = self.birth.max(inode.birth);
        volume.pmem().flush(inode.size_at(), LINE_BYTES);
        match inode.height(volume)? {
            NO_TREE => Ok(()),
            height => self.note_slots(volume, &inode, SlotList::of_inode(&inode, height)),
        }
    }

    fn note_node<P: Pmem>(&mut self, volume: &Volume<P>, block: u64) -> Result<(), FsError> {
        let field = |field: usize| volume.word(block + field as u64);
        let (ino, birth) = (field(offset_of!(Node, owner))?, field(offset_of!(Node, birth))?);
        let owner = InodeRef { ino, birth, kind: FileKind::File };
        let level = field(offset_of!(Node, level))?;
        if !(1..=HEIGHT_MAX).contains(&level) {
            return Err(FsError::corrupted(block, "a node of a file index"));
        }
        let slots = slot::node_slots(volume, &owner, Slot::block(SlotKind::Node, block), level)?;
        self.nodes.insert(block);
        self.note_slots(volume, &owner, slots)
    }

    /// Notes the pages or the nodes that slots refer to.
    fn note_slots<P: Pmem>(
        &mut self,
        volume: &Volume<P>,
        inode: &InodeRef,
        slots: SlotList,
    ) -> Result<(), FsError> {
        for at in slots.all_at() {
            let Some(slot) = slot::load(volume, inode, at)? else { continue };
            let is_right = match (slots.level, slot.kind) {
                (0, SlotKind::DirBlock) => true,
                (0, SlotKind::Page) | (1, SlotKind::HugePage) => slot.pages().all(|page| self.map.mark(page)),
                (1.., SlotKind::Node) => self.children.insert(slot.offset()),
                _ => false,
            };
            if !is_right {
                return Err(FsError::corrupted(
                    at,
                    "the number of a page or node, or another slot's: a slot",
                ));
            }
        }
        Ok(())
    }
}
