//! A tree: the way to the leaf of a key, and to its entry. What changes entries is above, in `ops`.

use super::emptied::Emptied;
use super::ends::Ends;
use super::fill::fill;
use super::hints;
use super::index::{Followed, Index};
use crate::error::{Corruption, CorruptionKind, LeafError, WriteError};
use crate::format::{CATALOGUE, NODE_HEADER_BYTES};
use crate::node::{
    Entry, Frame, FrameId, FrameLock, SearchKey, Separator, Snapshot, TreeId, Verified, entry_offset,
    held_entry, node_seed, slots_of, store_header,
};
use crate::session::Session;
use core::sync::atomic::{AtomicU64, Ordering};
use pm_core::Pmem;
use std::sync::OnceLock;

/// A tree: the leaves of a table, and the index to them.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) id: TreeId,
    /// The width of word keys; `None` for byte keys.
    pub(crate) key_width: Option<usize>,
    pub(crate) first: FrameId,
    pub(crate) index: Index,
    pub(crate) ends: Ends,
    pub(crate) emptied: Emptied,
    /// The number of entries in the leaves that are swept.
    pub(crate) len: AtomicU64,
    /// The first leaf or entry that the sweep could not read.
    pub(crate) unreadable: OnceLock<Corruption>,
}

impl Tree {
    pub(crate) const fn is_word(&self) -> bool {
        self.id.is_word
    }

    /// Opens the tree whose first leaf is at `first`, and whose anchor is at `anchor`. Fills no frame.
    pub(crate) fn open<P: Pmem>(
        session: &Session<P>,
        table: u16,
        key_width: Option<usize>,
        first: u64,
        anchor: u64,
    ) -> Result<Self, LeafError> {
        let id = TreeId { table, is_word: key_width.is_some() };
        let node = Verified::load(&session.pmem(), first, id)?;
        let frame = session.space.frame_of(first).filter(|_| node.low() == Separator::LOWEST);
        let frame = frame.ok_or(Corruption::new(first, CorruptionKind::NodeHeader))?;
        let index = Index::open(session, id, frame, anchor)?;
        let (len, unreadable) = (AtomicU64::new(0), OnceLock::new());
        let (ends, emptied) = (Ends::new(frame), Emptied::new(table));
        Ok(Self { id, key_width, first: frame, index, ends, emptied, len, unreadable })
    }

    /// Creates a tree with an empty leaf, and returns the offset of the leaf.
    ///
    /// # Durability
    /// Fenced when this returns. Nothing refers to the tree yet, and a crash frees it: the table exists when its description is in the catalogue.
    pub(crate) fn create<P: Pmem>(
        session: &Session<P>,
        table: u16,
        key_width: Option<usize>,
    ) -> Result<(u64, Self), WriteError> {
        session.check_not_poisoned()?;
        let node = session.space.reserve_node(&session.heap)?;
        let (offset, first) = (node.offset(), node.frame());
        let birth = session.epochs.next_birth();
        let id = TreeId { table, is_word: key_width.is_some() };
        store_header(&session.pmem(), offset, id, (birth, 0), (&Separator::LOWEST, 0), 0);
        session.pmem().flush(offset, NODE_HEADER_BYTES);
        // The catalogue has few leaves, and nothing that could name its anchor.
        let anchor = if table == CATALOGUE { 0 } else { hints::create_anchor(session, offset)? };
        session.fence()?;
        node.keep();
        let index = Index::new(id, first, anchor);
        let frame = session.frames.get(first).lock();
        frame.node.store(offset, Ordering::Relaxed);
        frame.seed.store(node_seed(table, offset, birth), Ordering::Relaxed);
        frame.set_next(FrameId::NONE, Separator::LOWEST);
        frame.is_swept.store(true, Ordering::Relaxed);
        frame.publish();
        drop(frame);
        let (ends, len, unreadable) = (Ends::new(first), AtomicU64::new(0), OnceLock::new());
        let emptied = Emptied::new(table);
        Ok((offset, Self { id, key_width, first, index, ends, emptied, len, unreadable }))
    }

    /// The frame of a leaf. If it is not filled, fills it.
    #[inline]
    pub(crate) fn leaf<'c, P: Pmem>(
        &self,
        session: &'c Session<P>,
        id: FrameId,
    ) -> Result<&'c Frame, LeafError> {
        let frame = session.frames.get(id);
        if !frame.is_filled() {
            fill(session, self.id, id)?;
        }
        Ok(frame)
    }

    /// The leaf whose range includes `key`, its frame and its snapshot.
    #[inline]
    pub(crate) fn locate<'c, P: Pmem>(
        &self,
        session: &'c Session<P>,
        key: &SearchKey<'_>,
    ) -> Result<(FrameId, &'c Frame, Snapshot), LeafError> {
        let pmem = &session.pmem();
        loop {
            let followed = self.index.find(session, key)?;
            if let Some(found) = self.move_right(session, &followed, |high| high.is_at_or_below(pmem, key))? {
                return Ok(found);
            }
        }
    }

    /// The last leaf with keys below `key`, its frame and its snapshot; the last leaf of the tree if there is no key.
    pub(crate) fn locate_below<'c, P: Pmem>(
        &self,
        session: &'c Session<P>,
        key: Option<&SearchKey<'_>>,
    ) -> Result<(FrameId, &'c Frame, Snapshot), LeafError> {
        let pmem = &session.pmem();
        let is_left = |high: &Separator| key.is_none_or(|key| high.is_below(pmem, key));
        loop {
            let followed = self.index.find_below(session, key)?;
            if let Some(found) = self.move_right(session, &followed, is_left)? {
                return Ok(found);
            }
        }
    }

    /// The first leaf, from one that the index led to, whose upper separator `is_left` does not accept. `None` if one of them changed meanwhile.
    #[inline]
    fn move_right<'c, P: Pmem>(
        &self,
        session: &'c Session<P>,
        followed: &Followed,
        is_left: impl Fn(&Separator) -> bool,
    ) -> Result<Option<(FrameId, &'c Frame, Snapshot)>, LeafError> {
        let mut id = followed.leaf();
        let mut frame = self.leaf(session, id)?;
        let mut snapshot = frame.snapshot();
        if !self.index.is_current(session, followed) {
            return Ok(None);
        }
        while let Some((next, high)) = frame.right()
            && is_left(&high)
        {
            let right = self.leaf(session, next)?;
            let of_right = right.snapshot();
            if !frame.is_current(snapshot) {
                return Ok(None);
            }
            (id, frame, snapshot) = (next, right, of_right);
            session.count_step();
        }
        Ok(Some((id, frame, snapshot)))
    }

    /// Locks the leaf whose range includes `key`.
    #[inline]
    pub(crate) fn lock_leaf<'c, P: Pmem>(
        &self,
        session: &'c Session<P>,
        key: &SearchKey<'_>,
    ) -> Result<FrameLock<'c>, LeafError> {
        let pmem = &session.pmem();
        loop {
            let followed = self.index.find(session, key)?;
            let mut leaf = self.leaf(session, followed.leaf())?.lock();
            if !self.index.is_current(session, &followed) {
                continue;
            }
            while let Some(next) = leaf.next()
                && leaf.high().is_at_or_below(pmem, key)
            {
                drop(leaf);
                leaf = self.leaf(session, next)?.lock();
                session.count_step();
            }
            return Ok(leaf);
        }
    }

    /// Locks the leaf whose range includes `key`, by a thread that has locked leaves to the left of it: no lock to the left is waited for.
    pub(crate) fn lock_leaf_rightwards<'c, P: Pmem>(
        &self,
        session: &'c Session<P>,
        key: &SearchKey<'_>,
    ) -> Result<FrameLock<'c>, LeafError> {
        // No leaf is unlinked while a change is in progress, so the leaf of a key is this one or moves to the right.
        let mut leaf = self.locate(session, key)?.1.lock();
        while let Some(next) = leaf.next()
            && leaf.high().is_at_or_below(&session.pmem(), key)
        {
            leaf = self.leaf(session, next)?.lock();
        }
        Ok(leaf)
    }

    /// Notes that a leaf, whose lock the caller has, has become empty, so that it is unlinked later.
    #[cold]
    pub(crate) fn note_empty<P: Pmem>(&self, session: &Session<P>, leaf: &FrameLock<'_>) {
        let id = session.space.frame_of(leaf.node()).filter(|id| *id != self.first);
        if let Some(id) = id
            && self.id.table != CATALOGUE
        {
            self.emptied.add(id, leaf);
        }
    }

    /// The live entry of `key` in a locked leaf, and its slot.
    #[inline]
    pub(crate) fn find_in<P: Pmem>(
        &self,
        session: &Session<P>,
        leaf: &Frame,
        key: &SearchKey<'_>,
    ) -> Result<Option<(usize, Entry)>, Corruption> {
        let pmem = &session.pmem();
        let live = leaf.live.load(Ordering::Relaxed);
        for slot in slots_of(leaf.matches(key.fingerprint(), live)) {
            let (entry, _) = Entry::load(pmem, entry_offset(leaf.node(), slot));
            if entry.has_key(pmem, key) {
                return Ok(Some((slot, entry)));
            }
        }
        match leaf.held.load(Ordering::Relaxed) {
            0 => Ok(None),
            held => Err(held_entry(leaf.node(), held)),
        }
    }
}
