//! File indexes: radix trees from the number of a page of a file to the page, or from that of a directory block to the block.
//!
//! An inode of height 0 has the slots of its first eight pages. Each level of nodes above them multiplies the reach by 512. A huge page takes the
//! place of a node of level 1; where only a part of it changes, it is split: a node with its pages takes its place.

use crate::error::FsError;
use crate::format::{HUGE_PAGE_PAGES, NO_TREE, NODE_SLOTS, NODE_TAG, Node, ROOT_SLOTS, SlotKind};
use crate::node::inode::{FileKind, InodeRef};
use crate::node::slot::{NODE_SLOTS_AT, PAGES_MAX, Slot, SlotList, load, node_slots, reach, store};
use crate::volume::seal::seal;
use crate::volume::{Change, Source};
use core::ops::Range;
use pm_core::Pmem;

/// What an index has for a page of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lookup {
    /// The offset of the page's slot. `None` if no node leads to it, or the page is a part of a huge one.
    pub(crate) at: Option<u64>,
    /// `None` if it is a hole.
    pub(crate) slot: Option<Slot>,
}

/// The slot for a page of a file. `None` if it is a hole.
pub(crate) fn find(source: &impl Source, inode: &InodeRef, index: u64) -> Result<Option<Slot>, FsError> {
    Ok(find_slot(source, inode, index)?.slot)
}

/// The slot for a page of a file, and where it is.
pub(crate) fn find_slot(source: &impl Source, inode: &InodeRef, index: u64) -> Result<Lookup, FsError> {
    let at = match place(source, inode, index)? {
        Place::Missing => return Ok(Lookup { at: None, slot: None }),
        Place::Huge(_, huge) => return Ok(Lookup { at: None, slot: Some(huge.part(index)) }),
        Place::Slot(at) => at,
    };
    match load(source, inode, at)? {
        Some(slot) if slot.kind != SlotKind::Page => Err(FsError::corrupted(at, "a slot of a page")),
        slot => Ok(Lookup { at: Some(at), slot }),
    }
}

/// Where the slot for a page of a file is.
enum Place {
    /// No node leads to it.
    Missing,
    /// At this offset.
    Slot(u64),
    /// The page is in this huge page, whose slot has this offset.
    Huge(u64, Slot),
}

/// Finds the slot for a page of a file.
fn place(source: &impl Source, inode: &InodeRef, index: u64) -> Result<Place, FsError> {
    let height = inode.height(source)?;
    if height == NO_TREE || index >= ROOT_SLOTS * reach(height) {
        return Ok(Place::Missing);
    }
    let mut slots = SlotList::of_inode(inode, height);
    loop {
        let below = slots.index_of(index);
        let at = slots.slot_at(below);
        if slots.level == 0 {
            return Ok(Place::Slot(at));
        }
        let Some(slot) = load(source, inode, at)? else { return Ok(Place::Missing) };
        if slot.is_huge(slots.level) {
            return Ok(Place::Huge(at, slot));
        }
        slots = slots.below(source, inode, below, slot)?;
    }
}

/// Makes the first page of a range of a file a hole, and frees it; with it the other pages of a huge page, if all are in the range. Nodes stay, for
/// [`prune`]. Returns where the rest of the range begins.
pub(crate) fn clear<P: Pmem>(
    change: &mut Change<'_, '_, P>,
    inode: &InodeRef,
    range: &Range<u64>,
) -> Result<u64, FsError> {
    let index = range.start;
    let (at, next) = match place(change, inode, index)? {
        Place::Missing => return Ok(index + 1),
        Place::Slot(at) => (at, index + 1),
        Place::Huge(at, _) if is_whole_huge(range) => (at, index + HUGE_PAGE_PAGES),
        Place::Huge(at, huge) => {
            let node = split(change, inode, at, huge)?;
            (node_slots(change, inode, node, 1)?.slot_at(index % NODE_SLOTS), index + 1)
        }
    };
    if let Some(slot) = load(change, inode, at)? {
        free(change, inode, slot)?;
        change.set(at, 0)?;
    }
    Ok(next)
}

/// Frees the nodes that lead to a page of a file and to no other.
pub(crate) fn prune<P: Pmem>(
    change: &mut Change<'_, '_, P>,
    inode: &InodeRef,
    index: u64,
) -> Result<(), FsError> {
    let height = inode.height(change)?;
    if height == NO_TREE || index >= ROOT_SLOTS * reach(height) {
        return Ok(());
    }
    // The slots that lead to nodes, and the nodes' slots.
    let mut path: Vec<Link> = Vec::new();
    let mut slots = SlotList::of_inode(inode, height);
    while slots.level > 0 {
        let below = slots.index_of(index);
        let at = slots.slot_at(below);
        match load(change, inode, at)? {
            Some(slot) if !slot.is_huge(slots.level) => slots = slots.below(change, inode, below, slot)?,
            _ => break,
        }
        path.push(Link { at, node: slots });
    }
    for Link { at, node } in path.into_iter().rev() {
        for slot in node.all_at() {
            if change.word(slot)? != 0 {
                return Ok(());
            }
        }
        change.free(node.node_at())?;
        change.set(at, 0)?;
    }
    Ok(())
}

/// The offset of a slot that leads to a node, and the node's slots.
struct Link {
    at: u64,
    node: SlotList,
}

/// Whether a range of pages begins with the pages that one huge page may have.
pub(crate) const fn is_whole_huge(range: &Range<u64>) -> bool {
    range.start.is_multiple_of(HUGE_PAGE_PAGES) && range.end >= range.start + HUGE_PAGE_PAGES
}

/// Replaces a huge page, whose slot has this offset, with a node that has its pages.
pub(crate) fn split<P: Pmem>(
    change: &mut Change<'_, '_, P>,
    inode: &InodeRef,
    at: u64,
    huge: Slot,
) -> Result<Slot, FsError> {
    let (seed, owner) = (change.seed(), inode.owner());
    let node =
        add_node(change, inode, 1, |index, at| seal(seed, owner, at, huge.part(index as u64).contents()))?;
    store(change, inode, at, node)?;
    Ok(node)
}

/// Sets the slot for a page of a file, and adds the nodes that lead to it.
pub(crate) fn set<P: Pmem>(
    change: &mut Change<'_, '_, P>,
    inode: &InodeRef,
    index: u64,
    slot: Slot,
) -> Result<(), FsError> {
    let at = make_place(change, inode, index, 0)?;
    store(change, inode, at, slot)
}

/// Gives a file a huge page, where it has none of the pages.
pub(crate) fn set_huge<P: Pmem>(
    change: &mut Change<'_, '_, P>,
    inode: &InodeRef,
    index: u64,
    number: u64,
) -> Result<(), FsError> {
    let at = make_place(change, inode, index, 1)?;
    if let Some(node) = load(change, inode, at)? {
        node_slots(change, inode, node, 1)?;
        change.free(node.offset())?;
    }
    store(change, inode, at, Slot::huge_page(number))
}

/// The offset of the slot, `bottom` levels above the pages, that leads to a page of a file, after the nodes above it were added.
fn make_place<P: Pmem>(
    change: &mut Change<'_, '_, P>,
    inode: &InodeRef,
    index: u64,
    bottom: u64,
) -> Result<u64, FsError> {
    if index >= PAGES_MAX {
        return Err(FsError::TooLong);
    }
    let mut height = inode.height(change)?;
    if height == NO_TREE {
        // The slots hold what was in the block before.
        change.write(inode.slots_at(), &[0_u64; 8])?;
        height = 0;
        change.set_sealed(inode.owner(), inode.height_at(), height)?;
    }
    while height < bottom || index >= ROOT_SLOTS * reach(height) {
        raise(change, inode, height)?;
        height += 1;
    }
    let mut slots = SlotList::of_inode(inode, height);
    loop {
        let below = slots.index_of(index);
        let at = slots.slot_at(below);
        if slots.level == bottom {
            return Ok(at);
        }
        let child = match load(change, inode, at)? {
            Some(huge) if huge.is_huge(slots.level) => split(change, inode, at, huge)?,
            Some(child) => child,
            None => {
                let node = add_node(change, inode, slots.level, |_, _| 0)?;
                store(change, inode, at, node)?;
                node
            }
        };
        slots = slots.below(change, inode, below, child)?;
    }
}

/// Adds a level: the root's slots move to a node, to which the first slot refers.
fn raise<P: Pmem>(change: &mut Change<'_, '_, P>, inode: &InodeRef, height: u64) -> Result<(), FsError> {
    let mut moved = [None; 8];
    for (at, slot) in (inode.slots_at()..).step_by(8).zip(&mut moved) {
        *slot = load(change, inode, at)?;
    }
    let (seed, owner) = (change.seed(), inode.owner());
    let node = add_node(change, inode, height + 1, |index, at| {
        let slot = moved.get(index).copied().flatten();
        slot.map_or(0, |slot: Slot| seal(seed, owner, at, slot.contents()))
    })?;
    change.write(inode.slots_at(), &[0_u64; 8])?;
    store(change, inode, inode.slots_at(), node)?;
    change.set_sealed(owner, inode.height_at(), height + 1)
}

/// Allocates a node. `word` makes the word of a slot from its index and its offset.
fn add_node<P: Pmem>(
    change: &mut Change<'_, '_, P>,
    inode: &InodeRef,
    level: u64,
    word: impl Fn(usize, u64) -> u64,
) -> Result<Slot, FsError> {
    let block = change.alloc()?;
    let slots_at = block.offset + NODE_SLOTS_AT;
    let node = Node {
        tag: NODE_TAG,
        crc: 0,
        owner: inode.ino,
        birth: inode.birth,
        level,
        reserved: [0; 2],
        slots: core::array::from_fn(|index| word(index, slots_at + 8 * index as u64)),
    };
    let node = Node { crc: node.expected_crc(change.seed(), block.offset), ..node };
    let offset = change.init(block, &node);
    Ok(Slot::block(SlotKind::Node, offset))
}

/// The most slots that one step of [`cut`] clears one by one.
const CLEARED_MAX: usize = 64;

/// The most blocks of a directory that one step of [`cut`] frees. Unlike a page, each takes entries of the log: the words of the heap's bitmap, and
/// its slot.
const BLOCKS_FREED_MAX: usize = 32;

/// Frees the end of a file, behind its first `keep` pages: at most one node, or so many slots. Returns whether something is left to free.
pub(crate) fn cut<P: Pmem>(
    change: &mut Change<'_, '_, P>,
    inode: &InodeRef,
    keep: u64,
) -> Result<bool, FsError> {
    let height = inode.height(change)?;
    if height == NO_TREE {
        return Ok(false);
    }
    // The slots that lead to the last leaf.
    let mut path: Vec<Step> = Vec::new();
    let mut slots = SlotList::of_inode(inode, height);
    loop {
        if slots.level == 0 {
            return cut_leaf(change, inode, slots, keep, &path);
        }
        let mut last = None;
        for index in slots.indexes().rev() {
            if let Some(slot) = load(change, inode, slots.slot_at(index))? {
                last = Some((index, slot));
                break;
            }
        }
        let Some((index, mut slot)) = last else {
            // A repair has emptied it.
            return match slots.first >= keep && !path.is_empty() {
                true => free_nodes(change, inode, &path).map(|()| true),
                false => Ok(false),
            };
        };
        path.push(Step { slots, index });
        if slot.is_huge(slots.level) {
            let first = slots.page(index);
            if first >= keep {
                return free_nodes(change, inode, &path).map(|()| true);
            }
            if first + HUGE_PAGE_PAGES <= keep {
                return Ok(false);
            }
            slot = split(change, inode, slots.slot_at(index), slot)?;
        }
        slots = slots.below(change, inode, index, slot)?;
    }
}

/// A slot on the way to a leaf.
struct Step {
    slots: SlotList,
    index: u64,
}

/// Frees the last leaf, or the slots of it behind page `keep`.
fn cut_leaf<P: Pmem>(
    change: &mut Change<'_, '_, P>,
    inode: &InodeRef,
    leaf: SlotList,
    keep: u64,
    path: &[Step],
) -> Result<bool, FsError> {
    // Blocks are in all slots or in none.
    let most = if inode.kind == FileKind::Directory { BLOCKS_FREED_MAX } else { CLEARED_MAX };
    if leaf.first >= keep && !path.is_empty() {
        let mut used = Vec::new();
        for at in leaf.all_at() {
            used.extend(load(change, inode, at)?);
        }
        if inode.kind != FileKind::Directory || used.len() <= most {
            used.into_iter().try_for_each(|slot| free(change, inode, slot))?;
            return free_nodes(change, inode, path).map(|()| true);
        }
    }
    let mut cleared = 0;
    for index in (keep.saturating_sub(leaf.first)..leaf.count).rev() {
        let at = leaf.slot_at(index);
        let Some(slot) = load(change, inode, at)? else { continue };
        if cleared == most {
            return Ok(true);
        }
        free(change, inode, slot)?;
        change.set(at, 0)?;
        cleared += 1;
    }
    Ok(false)
}

/// Frees a leaf that nothing is left in, or a huge page, and the nodes above it that would be empty.
fn free_nodes<P: Pmem>(
    change: &mut Change<'_, '_, P>,
    inode: &InodeRef,
    path: &[Step],
) -> Result<(), FsError> {
    for (depth, Step { slots, index }) in path.iter().enumerate().rev() {
        let at = slots.slot_at(*index);
        match load(change, inode, at)? {
            Some(slot) if slot.kind == SlotKind::Node => change.free(slot.offset())?,
            Some(slot) => free(change, inode, slot)?,
            None => {}
        }
        let has_others = (0..*index).try_fold(false, |found, index| {
            Ok::<_, FsError>(found || load(change, inode, slots.slot_at(index))?.is_some())
        })?;
        if has_others || depth == 0 {
            return change.set(at, 0);
        }
    }
    Ok(())
}

/// Frees what a slot refers to that does not lead to others.
fn free<P: Pmem>(change: &mut Change<'_, '_, P>, inode: &InodeRef, slot: Slot) -> Result<(), FsError> {
    let is_dir = inode.kind == FileKind::Directory;
    match slot.kind {
        SlotKind::Page | SlotKind::HugePage if !is_dir => slot.pages().try_for_each(|page| {
            change.volume.page(page)?;
            change.free_page(page);
            Ok(())
        }),
        SlotKind::DirBlock if is_dir => change.free(slot.offset()),
        _ => Err(FsError::corrupted(slot.offset(), "the last level of a file index")),
    }
}
