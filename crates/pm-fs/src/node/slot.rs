//! Slots: the words of an inode or a node that refer to pages and blocks.

use crate::error::FsError;
use crate::format::{HEIGHT_MAX, HUGE_PAGE_PAGES, NODE_SLOTS, NODE_TAG, Node, ROOT_SLOTS, SlotKind};
use crate::node::inode::InodeRef;
use crate::volume::seal::seal;
use crate::volume::{Change, Source};
use core::mem::offset_of;
use core::ops::{ControlFlow, Range};
use pm_core::Pmem;
use pm_core::line::LINE_BYTES;

/// The bits of a slot's contents that are its number.
const NUMBER_BITS: u32 = 40;

/// Where the slots of a node begin.
pub(super) const NODE_SLOTS_AT: u64 = offset_of!(Node, slots) as u64;

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
    pub(super) const fn part(self, index: u64) -> Self {
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

    pub(super) const fn contents(self) -> u64 {
        (self.kind as u64) << NUMBER_BITS | self.number
    }
}

/// The number of pages below one slot, `levels` levels of nodes above the pages.
pub(super) const fn reach(levels: u64) -> u64 {
    1 << (levels * NODE_SLOTS.trailing_zeros() as u64)
}

/// The number of pages of the longest file.
pub(crate) const PAGES_MAX: u64 = ROOT_SLOTS * reach(HEIGHT_MAX);

/// The slots of an inode or of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotList {
    /// The offset of the first slot.
    at: u64,
    pub(super) count: u64,
    /// The levels of nodes between these slots and the pages.
    pub(crate) level: u64,
    /// The number, in the file, of the first page below them.
    pub(super) first: u64,
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

    /// The offset of the node that has these slots.
    pub(super) const fn node_at(&self) -> u64 {
        self.at - NODE_SLOTS_AT
    }

    /// Loads the words of the slots from an index on, many at once, and calls `each` with the index and the word of each.
    pub(super) fn load_words(
        &self,
        source: &impl Source,
        first: u64,
        mut each: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), FsError> {
        /// As many as are loaded at once.
        const WORDS: usize = 64;
        let mut words = [0; WORDS];
        let mut index = first;
        while index < self.count {
            let len = (WORDS as u64).min(self.count - index);
            #[expect(clippy::cast_possible_truncation, reason = "at most WORDS")]
            let words = &mut words[..len as usize];
            source.words(self.slot_at(index), words)?;
            if (index..).zip(words.iter()).try_for_each(|(index, word)| each(index, *word)).is_break() {
                return Ok(());
            }
            index += len;
        }
        Ok(())
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
    pub(super) const fn index_of(&self, page: u64) -> u64 {
        (page - self.first) / reach(self.level)
    }
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

/// Stores adjacent slots, from this offset on.
pub(crate) fn store_run<P: Pmem>(
    change: &mut Change<'_, '_, P>,
    inode: &InodeRef,
    at: u64,
    slots: &[Slot],
) -> Result<(), FsError> {
    let (seed, owner) = (change.seed(), inode.owner());
    let word = |(at, slot): (u64, &Slot)| seal(seed, owner, at, slot.contents()).to_le_bytes();
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
