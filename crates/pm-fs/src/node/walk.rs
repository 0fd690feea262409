//! Walks through the file index of an inode, in the order of the pages.

use crate::error::FsError;
use crate::format::{HUGE_PAGE_PAGES, NO_TREE};
use crate::node::inode::InodeRef;
use crate::node::slot::{self, Slot, SlotList, reach};
use crate::volume::Source;
use core::ops::ControlFlow;

/// A slot that is no hole, where a walk has found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Visited {
    /// The number, in the file, of the page that it is for, or of the first one below it.
    pub(crate) index: u64,
    /// The levels of nodes between it and the pages.
    pub(crate) level: u64,
    pub(crate) slot: Slot,
}

/// The first slot of a page or block, at a page of a file or behind it. Of a huge page, it is the slot that the page would have.
pub(crate) fn next(source: &impl Source, inode: &InodeRef, from: u64) -> Result<Option<Visited>, FsError> {
    match inode.height(source)? {
        NO_TREE => Ok(None),
        height => next_in(source, inode, SlotList::of_inode(inode, height), from, &mut source.nodes_max()),
    }
}

// Not by a walk, whose state takes 3 % of the time of punching a page.
fn next_in(
    source: &impl Source,
    inode: &InodeRef,
    slots: SlotList,
    from: u64,
    nodes_left: &mut u64,
) -> Result<Option<Visited>, FsError> {
    count_node(inode, nodes_left)?;
    for index in from.saturating_sub(slots.first) / reach(slots.level)..slots.count {
        let Some(slot) = slot::load(source, inode, slots.slot_at(index))? else { continue };
        let page = slots.page(index);
        if slots.level == 0 {
            return Ok(Some(Visited { index: page, level: 0, slot }));
        }
        if slot.is_huge(slots.level) {
            let page = page.max(from);
            return Ok(Some(Visited { index: page, level: 0, slot: slot.part(page) }));
        }
        let below = slots.below(source, inode, index, slot)?;
        if let Some(found) = next_in(source, inode, below, from, nodes_left)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// The first page of a file that is a hole, at a page or behind it. Slots of the last level are not verified.
pub(crate) fn next_hole(source: &impl Source, inode: &InodeRef, from: u64) -> Result<u64, FsError> {
    match inode.height(source)? {
        NO_TREE => Ok(from),
        height => {
            let slots = SlotList::of_inode(inode, height);
            let found = hole_in(source, inode, slots, from, &mut source.nodes_max())?;
            Ok(found.unwrap_or_else(|| from.max(slots.page(slots.count))))
        }
    }
}

fn hole_in(
    source: &impl Source,
    inode: &InodeRef,
    slots: SlotList,
    from: u64,
    nodes_left: &mut u64,
) -> Result<Option<u64>, FsError> {
    count_node(inode, nodes_left)?;
    let first = from.saturating_sub(slots.first) / reach(slots.level);
    if slots.level == 0 {
        let mut found = None;
        slots.load_words(source, first, |index, word| match word {
            0 => {
                found = Some(slots.page(index));
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        })?;
        return Ok(found);
    }
    for index in first..slots.count {
        let Some(slot) = slot::load(source, inode, slots.slot_at(index))? else {
            return Ok(Some(from.max(slots.page(index))));
        };
        if slot.is_huge(slots.level) {
            continue;
        }
        let below = slots.below(source, inode, index, slot)?;
        if let Some(found) = hole_in(source, inode, below, from, nodes_left)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Every slot of a file that is no hole: nodes, and what the leaves have.
pub(crate) fn walk<'w, S: Source>(source: &'w S, inode: &InodeRef) -> Result<Walk<'w, S>, FsError> {
    Walk::new(source, inode)
}

/// A walk through the slots of a file, in ascending order: a node comes before the slots that it has.
pub(crate) struct Walk<'w, S: Source> {
    source: &'w S,
    inode: InodeRef,
    /// The lists of slots that lead to the next one, from the root down.
    path: Vec<Cursor>,
    /// The node that was visited last: its slots are next.
    entered: Option<Slot>,
    nodes_left: u64,
}

/// A list of slots, and the index of the next one.
struct Cursor {
    slots: SlotList,
    next: u64,
}

impl<'w, S: Source> Walk<'w, S> {
    fn new(source: &'w S, inode: &InodeRef) -> Result<Self, FsError> {
        let mut walk =
            Self { source, inode: *inode, path: Vec::new(), entered: None, nodes_left: source.nodes_max() };
        match inode.height(source)? {
            NO_TREE => {}
            height => walk.enter(SlotList::of_inode(inode, height))?,
        }
        Ok(walk)
    }

    fn enter(&mut self, slots: SlotList) -> Result<(), FsError> {
        count_node(&self.inode, &mut self.nodes_left)?;
        self.path.push(Cursor { slots, next: 0 });
        Ok(())
    }

    fn step(&mut self) -> Result<Option<Visited>, FsError> {
        if let (Some(node), Some(Cursor { slots, next })) = (self.entered.take(), self.path.last()) {
            let below = slots.below(self.source, &self.inode, next - 1, node)?;
            self.enter(below)?;
        }
        while let Some(Cursor { slots, next }) = self.path.last_mut() {
            let (slots, index) = (*slots, *next);
            *next += 1;
            if index >= slots.count {
                self.path.pop();
                continue;
            }
            let Some(slot) = slot::load(self.source, &self.inode, slots.slot_at(index))? else { continue };
            self.entered = (slots.level > 0 && !slot.is_huge(slots.level)).then_some(slot);
            return Ok(Some(Visited { index: slots.page(index), level: slots.level, slot }));
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
    if slots.level == 0 {
        slots.load_words(source, 0, |_, word| {
            pages += u64::from(word != 0);
            ControlFlow::Continue(())
        })?;
        return Ok(pages);
    }
    for index in slots.indexes() {
        if let Some(slot) = slot::load(source, inode, slots.slot_at(index))? {
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
