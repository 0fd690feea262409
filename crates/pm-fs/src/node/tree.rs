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
const fn reach(levels: u64) -> u64 {
    1 << (levels * NODE_SLOTS.trailing_zeros() as u64)
}

/// The number of pages of the longest file.
pub(crate) const PAGES_MAX: u64 = ROOT_SLOTS * reach(HEIGHT_MAX);

/// The slots of an inode or of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotList {
    /// The offset of the first slot.
    at: u64,
    count: u64,
    /// The levels of nodes between these slots and the pages.
    pub(crate) level: u64,
    /// The number, in the file, of the first page below them.
    first: u64,
}

impl SlotList {
    /// Those of an inode whose index has this height.
    pub(crate) const fn of_inode(inode: &InodeRef, height: u64) -> Self {
        Self { at: inode.slots_at(), count: ROOT_SLOTS, level: height, first: 0 }
    }

    /// Those of the node to which slot `index` of this list refers. Verifies the node.
    pub(crate) fn below(
        &self,
        source: &impl Source,
        inode: &InodeRef,
        index: u64,
        node: Slot,
    ) -> Result<Self, FsError> {
        let below = node_slots(source, inode, node, self.level)?;
        Ok(Self { first: self.page(index), ..below })
    }

    /// The offset of a slot.
    pub(crate) const fn slot_at(&self, index: u64) -> u64 {
        self.at + 8 * index
    }

    /// The offsets of all slots.
    pub(crate) fn all_at(&self) -> impl Iterator<Item = u64> + use<> {
        (self.at..self.at + 8 * self.count).step_by(8)
    }

    /// The indexes of all slots.
    pub(crate) const fn indexes(&self) -> Range<u64> {
        0..self.count
    }

    /// The number, in the file, of the first page below a slot.
    pub(crate) const fn page(&self, index: u64) -> u64 {
        self.first + index * reach(self.level)
    }

    /// The index of the slot that leads to a page of the file, which is below these slots.
    const fn index_of(&self, page: u64) -> u64 {
        (page - self.first) / reach(self.level)
    }
}

/// A slot that is no hole, where a walk has found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Visited {
    /// The number, in the file, of the page that it is for, or of the first one below it.
    pub(crate) index: u64,
    /// The levels of nodes between it and the pages.
    pub(crate) level: u64,
    pub(crate) slot: Slot,
}

/// What an index has for a page of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lookup {
    /// The offset of the page's slot. `None` if no node leads to it, or the page is a part of a huge one.
    pub(crate) at: Option<u64>,
    /// `None` if it is a hole.
    pub(crate) slot: Option<Slot>,
}

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

/// Verifies a node of this level, and returns its slots, as if they were for the first pages of the file.
pub(crate) fn node_slots(
    source: &impl Source,
    inode: &InodeRef,
    slot: Slot,
    level: u64,
) -> Result<SlotList, FsError> {
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
        Ok(SlotList { at: offset + NODE_SLOTS_AT, count: NODE_SLOTS, level: level - 1, first: 0 })
    } else {
        Err(FsError::corrupted(offset, "a node of a file index"))
    }
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

/// The first slot of a page or block, at a page of a file or behind it. Of a huge page, it is the slot that the page would have.
pub(crate) fn next(source: &impl Source, inode: &InodeRef, from: u64) -> Result<Option<Visited>, FsError> {
    for visited in Walk::new(source, inode, from)? {
        let Visited { index, level, slot } = visited?;
        if level == 0 {
            return Ok(Some(Visited { index, level, slot }));
        }
        if slot.is_huge(level) {
            let index = index.max(from);
            return Ok(Some(Visited { index, level: 0, slot: slot.part(index) }));
        }
    }
    Ok(None)
}

/// Every slot of a file that is no hole: nodes, and what the leaves have.
pub(crate) fn walk<'w, S: Source>(source: &'w S, inode: &InodeRef) -> Result<Walk<'w, S>, FsError> {
    Walk::new(source, inode, 0)
}

/// A walk through the slots of a file from a page on, in ascending order: a node comes before the slots that it has.
pub(crate) struct Walk<'w, S: Source> {
    source: &'w S,
    inode: InodeRef,
    from: u64,
    /// The lists of slots that lead to the next one, from the root down.
    path: Vec<Cursor>,
    /// The node that was visited last: its slots are next.
    entered: Option<Visited>,
    nodes_left: u64,
}

/// A list of slots, and the index of the next one.
struct Cursor {
    slots: SlotList,
    next: u64,
}

impl<'w, S: Source> Walk<'w, S> {
    fn new(source: &'w S, inode: &InodeRef, from: u64) -> Result<Self, FsError> {
        let mut walk = Self {
            source,
            inode: *inode,
            from,
            path: Vec::new(),
            entered: None,
            nodes_left: source.nodes_max(),
        };
        match inode.height(source)? {
            NO_TREE => {}
            height => walk.enter(SlotList::of_inode(inode, height))?,
        }
        Ok(walk)
    }

    fn enter(&mut self, slots: SlotList) -> Result<(), FsError> {
        count_node(&self.inode, &mut self.nodes_left)?;
        let next = self.from.saturating_sub(slots.first) / reach(slots.level);
        self.path.push(Cursor { slots, next });
        Ok(())
    }

    fn step(&mut self) -> Result<Option<Visited>, FsError> {
        if let Some(Visited { index, level, slot }) = self.entered.take() {
            let slots = node_slots(self.source, &self.inode, slot, level)?;
            self.enter(SlotList { first: index, ..slots })?;
        }
        while let Some(Cursor { slots, next }) = self.path.last_mut() {
            let (slots, index) = (*slots, *next);
            *next += 1;
            if index >= slots.count {
                self.path.pop();
                continue;
            }
            let Some(slot) = load(self.source, &self.inode, slots.slot_at(index))? else { continue };
            let visited = Visited { index: slots.page(index), level: slots.level, slot };
            self.entered = (slots.level > 0 && !slot.is_huge(slots.level)).then_some(visited);
            return Ok(Some(visited));
        }
        Ok(None)
    }
}

impl<S: Source> Iterator for Walk<'_, S> {
    type Item = Result<Visited, FsError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step().transpose()
    }
}

/// Counts a node of a walk: if slots of a corrupted index share nodes, it would hardly end.
fn count_node(inode: &InodeRef, left: &mut u64) -> Result<(), FsError> {
    *left =
        left.checked_sub(1).ok_or(FsError::corrupted(inode.slots_at(), "a file index with shared nodes"))?;
    Ok(())
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
        change.free(node.at - NODE_SLOTS_AT)?;
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

/// The number of pages of a file. Slots of the last level are counted, and not verified.
pub(crate) fn page_count(source: &impl Source, inode: &InodeRef) -> Result<u64, FsError> {
    match inode.height(source)? {
        NO_TREE => Ok(0),
        height => {
            let slots = SlotList::of_inode(inode, height);
            count_pages(source, inode, slots, &mut source.nodes_max())
        }
    }
}

fn count_pages(
    source: &impl Source,
    inode: &InodeRef,
    slots: SlotList,
    nodes_left: &mut u64,
) -> Result<u64, FsError> {
    count_node(inode, nodes_left)?;
    let mut pages = 0;
    for index in slots.indexes() {
        let at = slots.slot_at(index);
        if slots.level == 0 {
            pages += u64::from(source.word(at)? != 0);
        } else if let Some(slot) = load(source, inode, at)? {
            pages += match slot.is_huge(slots.level) {
                true => HUGE_PAGE_PAGES,
                false => {
                    let below = slots.below(source, inode, index, slot)?;
                    count_pages(source, inode, below, nodes_left)?
                }
            };
        }
    }
    Ok(pages)
}
