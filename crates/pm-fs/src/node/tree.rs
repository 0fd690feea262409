//! File indexes: radix trees from the number of a page of a file to the page, or from that of a directory block to the block.
//!
//! An inode of height 0 has the slots of its first eight pages. Each level of nodes above them multiplies the reach by 512. A huge page takes the place of a node of
//! level 1; where only a part of it changes, it is split: a node with its pages takes its place.

use crate::error::FsError;
use crate::format::{HEIGHT_MAX, HUGE_PAGE_PAGES, NO_TREE, NODE_SLOTS, NODE_TAG, Node, ROOT_SLOTS, SlotKind};
use crate::node::inode::{FileKind, InodeRef};
use crate::volume::{Change, Source};
use core::mem::offset_of;
use core::ops::Range;
use pm_core::Pmem;
use pm_core::line::LINE_BYTES;

/// The bits of a slot's contents that are its number.
const NUMBER_BITS: u32 = 40;

const NODE_SLOTS_AT: u64 = offset_of!(Node, slots) as u64;

/// A slot that is no hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) kind: SlotKind,
    pub(crate) number: u64,
}

impl Slot {
    pub(crate) const fn page(number: u64) -> Self {
        Self { kind: SlotKind::Page, number }
    }

    pub(crate) const fn huge_page(number: u64) -> Self {
        Self { kind: SlotKind::HugePage, number }
    }

    /// Its pages.
    pub(crate) const fn pages(self) -> Range<u64> {
        let count = match self.kind {
            SlotKind::Page => 1,
            SlotKind::HugePage => HUGE_PAGE_PAGES,
            SlotKind::Node | SlotKind::DirBlock => 0,
        };
        self.number..self.number + count
    }

    /// Whether it is a huge page, in a list of slots `level` levels above the pages.
    pub(crate) fn is_huge(self, level: u64) -> bool {
        level == 1 && self.kind == SlotKind::HugePage
    }

    /// The slot for a page of a file that is in this huge page.
    const fn part(self, index: u64) -> Self {
        Self::page(self.number + index % HUGE_PAGE_PAGES)
    }

    /// A block of the heap.
    pub(crate) const fn block(kind: SlotKind, offset: u64) -> Self {
        Self { kind, number: offset / LINE_BYTES }
    }

    /// The offset of a block of the heap.
    pub(crate) const fn offset(self) -> u64 {
        self.number * LINE_BYTES
    }

    const fn contents(self) -> u64 {
        (self.kind as u64) << NUMBER_BITS | self.number
    }
}

/// The number of pages below one slot, `levels` levels of nodes above the pages.
pub(crate) const fn reach(levels: u64) -> u64 {
    1 << (levels * NODE_SLOTS.trailing_zeros() as u64)
}

/// The number of pages of the longest file.
pub(crate) const PAGES_MAX: u64 = ROOT_SLOTS * reach(HEIGHT_MAX);

/// Loads a slot.
pub(crate) fn load(source: &impl Source, inode: &InodeRef, at: u64) -> Result<Option<Slot>, FsError> {
    let word = source.word(at)?;
    if word == 0 {
        return Ok(None);
    }
    let contents = source.sealed(inode.owner(), at)?;
    let number = contents & ((1 << NUMBER_BITS) - 1);
    let kind = SlotKind::from_number(contents >> NUMBER_BITS);
    let is_aligned = kind != Some(SlotKind::HugePage) || number.is_multiple_of(HUGE_PAGE_PAGES);
    let slot = kind.filter(|_| is_aligned).map(|kind| Slot { kind, number });
    slot.map(Some).ok_or(FsError::corrupted(at, "a slot"))
}

/// Verifies a node, and returns the offset of its slots.
pub(crate) fn node_slots(
    source: &impl Source,
    inode: &InodeRef,
    slot: Slot,
    level: u64,
) -> Result<u64, FsError> {
    let offset = slot.offset();
    let word = |field: usize| source.word(offset.saturating_add(field as u64));
    let tag_and_crc = word(offset_of!(Node, tag))?;
    let (owner, birth) = (word(offset_of!(Node, owner))?, word(offset_of!(Node, birth))?);
    let node = [source.seed(), offset, owner, birth, word(offset_of!(Node, level))?];
    let crc = pm_core::crc32c_words(&node);
    let is_right = slot.kind == SlotKind::Node
        && tag_and_crc == u64::from(crc) << 32 | u64::from(NODE_TAG)
        && (owner, birth, node[4]) == (inode.ino, inode.birth, level);
    if is_right {
        Ok(offset + NODE_SLOTS_AT)
    } else {
        Err(FsError::corrupted(offset, "a node of a file index"))
    }
}

/// The slot for a page of a file. `None` if it is a hole.
pub(crate) fn find(source: &impl Source, inode: &InodeRef, index: u64) -> Result<Option<Slot>, FsError> {
    Ok(find_slot(source, inode, index)?.1)
}

/// The offset of the slot for a page of a file, `None` if no node leads to it; and the slot, `None` if it is a hole.
pub(crate) fn find_slot(
    source: &impl Source,
    inode: &InodeRef,
    index: u64,
) -> Result<(Option<u64>, Option<Slot>), FsError> {
    let at = match place(source, inode, index)? {
        Place::Missing => return Ok((None, None)),
        Place::Huge(_, huge) => return Ok((None, Some(huge.part(index)))),
        Place::Slot(at) => at,
    };
    match load(source, inode, at)? {
        Some(slot) if slot.kind != SlotKind::Page => Err(FsError::corrupted(at, "a slot of a page")),
        slot => Ok((Some(at), slot)),
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
    let mut slots = inode.slots_at();
    let mut level = height;
    loop {
        let at = slots + 8 * (index / reach(level) % if level == height { ROOT_SLOTS } else { NODE_SLOTS });
        if level == 0 {
            return Ok(Place::Slot(at));
        }
        let Some(slot) = load(source, inode, at)? else { return Ok(Place::Missing) };
        if slot.is_huge(level) {
            return Ok(Place::Huge(at, slot));
        }
        slots = node_slots(source, inode, slot, level)?;
        level -= 1;
    }
}

/// The first slot that is no hole, at a page of a file or behind it, with the page's number in the file. Of a huge page, it is the slot that the page would have.
pub(crate) fn next(
    source: &impl Source,
    inode: &InodeRef,
    from: u64,
) -> Result<Option<(u64, Slot)>, FsError> {
    let height = inode.height(source)?;
    if height == NO_TREE {
        return Ok(None);
    }
    next_in(source, inode, (inode.slots_at(), ROOT_SLOTS), height, 0, from, &mut source.nodes_max())
}

/// Counts a node of a walk: if slots of a corrupted index share nodes, it would hardly end.
fn count_node(inode: &InodeRef, left: &mut u64) -> Result<(), FsError> {
    *left =
        left.checked_sub(1).ok_or(FsError::corrupted(inode.slots_at(), "a file index with shared nodes"))?;
    Ok(())
}

fn next_in(
    source: &impl Source,
    inode: &InodeRef,
    (slots, count): (u64, u64),
    level: u64,
    first: u64,
    from: u64,
    nodes_left: &mut u64,
) -> Result<Option<(u64, Slot)>, FsError> {
    count_node(inode, nodes_left)?;
    for index in from.saturating_sub(first) / reach(level)..count {
        let Some(slot) = load(source, inode, slots + 8 * index)? else { continue };
        let number = first + index * reach(level);
        if level == 0 {
            return Ok(Some((number, slot)));
        }
        if slot.is_huge(level) {
            let number = number.max(from);
            return Ok(Some((number, slot.part(number))));
        }
        let below = node_slots(source, inode, slot, level)?;
        if let Some(found) = next_in(source, inode, (below, NODE_SLOTS), level - 1, number, from, nodes_left)?
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Makes the first page of a range of a file a hole, and frees it; with it the other pages of a huge page, if all are in the range. Nodes stay, for [`prune`]. Returns
/// where the rest of the range begins.
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
            (node_slots(change, inode, node, 1)? + 8 * (index % NODE_SLOTS), index + 1)
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
    let mut path: Vec<(u64, u64)> = Vec::new();
    let (mut slots, mut level) = (inode.slots_at(), height);
    while level > 0 {
        let at = slots + 8 * (index / reach(level) % if level == height { ROOT_SLOTS } else { NODE_SLOTS });
        match load(change, inode, at)? {
            Some(slot) if !slot.is_huge(level) => slots = node_slots(change, inode, slot, level)?,
            _ => break,
        }
        path.push((at, slots));
        level -= 1;
    }
    for (at, slots) in path.into_iter().rev() {
        for slot in (slots..slots + 8 * NODE_SLOTS).step_by(8) {
            if change.word(slot)? != 0 {
                return Ok(());
            }
        }
        change.free(slots - NODE_SLOTS_AT)?;
        change.set(at, 0)?;
    }
    Ok(())
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
    let node = add_node(change, inode, 1, |index, at| {
        crate::volume::seal::seal(seed, owner, at, huge.part(index as u64).contents())
    })?;
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
    let mut slots = inode.slots_at();
    let mut level = height;
    loop {
        let at = slots + 8 * (index / reach(level) % if level == height { ROOT_SLOTS } else { NODE_SLOTS });
        if level == bottom {
            return Ok(at);
        }
        let child = match load(change, inode, at)? {
            Some(huge) if huge.is_huge(level) => split(change, inode, at, huge)?,
            Some(child) => child,
            None => {
                let node = add_node(change, inode, level, |_, _| 0)?;
                store(change, inode, at, node)?;
                node
            }
        };
        slots = node_slots(change, inode, child, level)?;
        level -= 1;
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
        slot.map_or(0, |slot: Slot| crate::volume::seal::seal(seed, owner, at, slot.contents()))
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
    let seed = change.seed();
    let offset = change.alloc(|offset| {
        let node = Node {
            tag: NODE_TAG,
            crc: 0,
            owner: inode.ino,
            birth: inode.birth,
            level,
            reserved: [0; 2],
            slots: core::array::from_fn(|index| word(index, offset + NODE_SLOTS_AT + 8 * index as u64)),
        };
        Node { crc: node.expected_crc(seed, offset), ..node }
    })?;
    Ok(Slot::block(SlotKind::Node, offset))
}

/// Stores adjacent slots, from this offset on.
pub(crate) fn store_run<P: Pmem>(
    change: &mut Change<'_, '_, P>,
    inode: &InodeRef,
    at: u64,
    slots: &[Slot],
) -> Result<(), FsError> {
    let (seed, owner) = (change.seed(), inode.owner());
    let word =
        |(at, slot): (u64, &Slot)| crate::volume::seal::seal(seed, owner, at, slot.contents()).to_le_bytes();
    let words: Vec<u8> = (at..).step_by(8).zip(slots).flat_map(word).collect();
    change.write_bytes(at, &words)
}

/// Stores a slot.
pub(crate) fn store<P: Pmem>(
    change: &mut Change<'_, '_, P>,
    inode: &InodeRef,
    at: u64,
    slot: Slot,
) -> Result<(), FsError> {
    change.set_sealed(inode.owner(), at, slot.contents())
}

/// The most slots that one step of [`cut`] clears one by one.
const CLEARED_MAX: usize = 64;

/// The most blocks of a directory that one step of [`cut`] frees. Unlike a page, each takes entries of the log: the words of the heap's bitmap, and its slot.
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
    // The slots that lead to the last leaf: the offset of the slot's list, the slot's index, and the number of the first page below.
    let mut path: Vec<(u64, u64, u64)> = Vec::new();
    let (mut slots, mut level, mut first) = (inode.slots_at(), height, 0);
    loop {
        let count = if level == height { ROOT_SLOTS } else { NODE_SLOTS };
        if level == 0 {
            return cut_leaf(change, inode, (slots, count), first, keep, &path);
        }
        let mut last = None;
        for index in (0..count).rev() {
            if let Some(slot) = load(change, inode, slots + 8 * index)? {
                last = Some((index, slot));
                break;
            }
        }
        let Some((index, mut slot)) = last else {
            // A repair has emptied it.
            return match first >= keep && !path.is_empty() {
                true => free_nodes(change, inode, &path).map(|()| true),
                false => Ok(false),
            };
        };
        path.push((slots, index, first));
        first += index * reach(level);
        if slot.is_huge(level) {
            if first >= keep {
                return free_nodes(change, inode, &path).map(|()| true);
            }
            if first + HUGE_PAGE_PAGES <= keep {
                return Ok(false);
            }
            slot = split(change, inode, slots + 8 * index, slot)?;
        }
        slots = node_slots(change, inode, slot, level)?;
        level -= 1;
    }
}

/// Frees the last leaf, or the slots of it behind page `keep`.
fn cut_leaf<P: Pmem>(
    change: &mut Change<'_, '_, P>,
    inode: &InodeRef,
    (slots, count): (u64, u64),
    first: u64,
    keep: u64,
    path: &[(u64, u64, u64)],
) -> Result<bool, FsError> {
    // Blocks are in all slots or in none.
    let most = if inode.kind == FileKind::Directory { BLOCKS_FREED_MAX } else { CLEARED_MAX };
    if first >= keep && !path.is_empty() {
        let mut used = Vec::new();
        for index in 0..count {
            used.extend(load(change, inode, slots + 8 * index)?);
        }
        if inode.kind != FileKind::Directory || used.len() <= most {
            used.into_iter().try_for_each(|slot| free(change, inode, slot))?;
            return free_nodes(change, inode, path).map(|()| true);
        }
    }
    let mut cleared = 0;
    for index in (keep.saturating_sub(first)..count).rev() {
        let at = slots + 8 * index;
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
    path: &[(u64, u64, u64)],
) -> Result<(), FsError> {
    for (depth, (slots, index, _)) in path.iter().enumerate().rev() {
        let at = slots + 8 * index;
        match load(change, inode, at)? {
            Some(slot) if slot.kind == SlotKind::Node => change.free(slot.offset())?,
            Some(slot) => free(change, inode, slot)?,
            None => {}
        }
        let has_others = (0..*index).try_fold(false, |found, index| {
            Ok::<_, FsError>(found || load(change, inode, slots + 8 * index)?.is_some())
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

/// The number of pages of a file. Slots of the last level are counted, and not verified.
pub(crate) fn page_count(source: &impl Source, inode: &InodeRef) -> Result<u64, FsError> {
    match inode.height(source)? {
        NO_TREE => Ok(0),
        height => {
            let slots = (inode.slots_at(), ROOT_SLOTS);
            count_pages(source, inode, slots, height, &mut source.nodes_max())
        }
    }
}

fn count_pages(
    source: &impl Source,
    inode: &InodeRef,
    (slots, count): (u64, u64),
    level: u64,
    nodes_left: &mut u64,
) -> Result<u64, FsError> {
    count_node(inode, nodes_left)?;
    let mut pages = 0;
    for at in (slots..slots + 8 * count).step_by(8) {
        if level == 0 {
            pages += u64::from(source.word(at)? != 0);
        } else if let Some(slot) = load(source, inode, at)? {
            pages += match slot.is_huge(level) {
                true => HUGE_PAGE_PAGES,
                false => {
                    let below = node_slots(source, inode, slot, level)?;
                    count_pages(source, inode, (below, NODE_SLOTS), level - 1, nodes_left)?
                }
            };
        }
    }
    Ok(pages)
}

/// Calls `each` with every slot of a file that is no hole: nodes, and what the leaves have, with its number in the file.
pub(crate) fn visit(
    source: &impl Source,
    inode: &InodeRef,
    each: &mut impl FnMut(u64, Slot) -> Result<(), FsError>,
) -> Result<(), FsError> {
    let height = inode.height(source)?;
    if height == NO_TREE {
        return Ok(());
    }
    visit_list(source, inode, (inode.slots_at(), ROOT_SLOTS), height, 0, each, &mut source.nodes_max())
}

fn visit_list(
    source: &impl Source,
    inode: &InodeRef,
    (slots, count): (u64, u64),
    level: u64,
    first: u64,
    each: &mut impl FnMut(u64, Slot) -> Result<(), FsError>,
    nodes_left: &mut u64,
) -> Result<(), FsError> {
    count_node(inode, nodes_left)?;
    for index in 0..count {
        let Some(slot) = load(source, inode, slots + 8 * index)? else { continue };
        let number = first + index * reach(level);
        each(number, slot)?;
        if level > 0 && !slot.is_huge(level) {
            let below = node_slots(source, inode, slot, level)?;
            visit_list(source, inode, (below, NODE_SLOTS), level - 1, number, each, nodes_left)?;
        }
    }
    Ok(())
}
