//! The index: the inner levels of a tree, in DRAM.
//!
//! Inner nodes are immutable while they are in use, except that a pointer to a child is replaced. A change of the keys fills another inner node,
//! replaces the pointer to the old one, and retires the old one, whose memory later becomes another inner node. A reader therefore checks, after it
//! has loaded the version of a child, that the parent still points to the child and has its version; a retired node has another version. Readers wait
//! for no lock. Writers of the index exclude each other.
//!
//! The index may lag behind the leaves: a leaf that was split is found through its left sibling until its low separator is posted here.
//!
//! Each inner node has a [hint node](crate::tree::hints) in persistent memory. After an open only hint nodes exist; an inner node is built from its
//! hint node when a search comes to it.

use super::hints;
use crate::error::{Corruption, CorruptionKind, LeafError};
use crate::format::NODE_HEADER_BYTES;
use crate::node::{FrameId, Inner, Kid, OwnedKey, SearchKey, Separator, TreeId, Verified};
use crate::session::Session;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use pm_core::Pmem;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The lock of an index: other threads do not change it.
#[derive(Debug)]
pub(crate) struct Writers<'i> {
    moved: MutexGuard<'i, Moved>,
}

/// The index of one tree.
#[derive(Debug)]
pub(crate) struct Index {
    tree: TreeId,
    /// The first leaf.
    first: FrameId,
    /// The offset of the anchor; 0 if the tree has no hint nodes, and is indexed anew by each open.
    anchor: u64,
    /// The number of levels above the leaves, and the root: an inner node, or the only leaf.
    root: AtomicU64,
    writers: Mutex<Moved>,
}

/// Hint nodes that were split, each with the children that have moved to another one. Their words stay until a leaf is unlinked, because a crash may lose the
/// word of the other hint node.
type Moved = Vec<(u64, Vec<u64>)>;

/// The most hint nodes with words of moved children; no more than empty leaves that stay, either. If there are more, the next leaf that is posted has
/// these words zeroed.
const MOVED_MAX: usize = 64;

/// A pointer that a reader has followed: it shows whether the child may have changed its place since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Followed {
    leaf: FrameId,
    parent: Option<Parent>,
    root: u64,
}

/// The place of a pointer to a child: the inner node, its version, and the index of the child.
#[derive(Clone, Copy, Debug)]
struct Parent {
    id: u32,
    version: u64,
    at: usize,
}

impl Followed {
    pub(crate) const fn leaf(&self) -> FrameId {
        self.leaf
    }
}

const fn root_word(level: u8, root: Kid) -> u64 {
    (level as u64) << 32 | root.word() as u64
}

/// The level of a root, and the root.
#[expect(clippy::cast_possible_truncation, reason = "the two halves")]
const fn root_parts(word: u64) -> (u8, Kid) {
    ((word >> 32) as u8, Kid::from_word(word as u32))
}

/// Whether there are more leaves from this one on than an inner node has children: more than those of which a crash may have lost the pointers.
fn has_many_leaves<P: Pmem>(session: &Session<P>, tree: TreeId, first: FrameId) -> bool {
    let mut offset = session.space.node_offset(first);
    for _ in 0..session.fanout() {
        match Verified::load(&session.pmem(), offset, tree).and_then(|leaf| leaf.next()) {
            Ok(0) | Err(_) => return false,
            Ok(next) => offset = next,
        }
    }
    true
}

/// Takes inner nodes out of use: the one of this level, and all below it. Passes the offset of each one's hint node to `release`.
fn retire_below<P: Pmem>(session: &Session<P>, (level, kid): (u8, Kid), release: &impl Fn(u64)) {
    if level > 0
        && let Kid::Built(id) = kid
    {
        let node = session.inner.get(id);
        node.children().into_iter().for_each(|(_, kid)| retire_below(session, (level - 1, kid), release));
        if node.hint() != 0 {
            release(node.hint());
        }
        session.inner.retire(id);
    }
}

/// Zeroes the words of moved children, and flushes the hint nodes: another thread may have stored another child into such a word without a fence. The caller
/// fences.
fn zero_moved<P: Pmem>(session: &Session<P>, moved: &mut Moved) {
    for (hint, children) in moved.drain(..) {
        hints::remove(session, hint, &children);
        hints::flush(session, hint);
    }
}

impl Index {
    /// The index of a new tree with one leaf.
    pub(crate) const fn new(tree: TreeId, first: FrameId, anchor: u64) -> Self {
        let root = AtomicU64::new(root_word(0, Kid::leaf(first)));
        Self { tree, first, anchor, root, writers: Mutex::new(Vec::new()) }
    }

    /// The index of a tree in persistent memory. If the tree has no hint nodes, or the highest is corrupted, this reads the headers of all leaves.
    pub(crate) fn open<P: Pmem>(
        session: &Session<P>,
        tree: TreeId,
        first: FrameId,
        anchor: u64,
    ) -> Result<Self, LeafError> {
        let index = Self::new(tree, first, anchor);
        let root = match anchor {
            0 => None,
            anchor => {
                if session.epochs.is_unclean {
                    hints::persist_root(session, anchor)?;
                }
                hints::root(session, tree, anchor).ok()
            }
        };
        let root = root.and_then(|(root, level)| Some((level, session.space.frame_of(root)?)));
        match root {
            Some((0, root)) => {
                index.root.store(root_word(0, Kid::leaf(root)), Ordering::Release);
                // A crash inside a compaction leaves all leaves without an index. If a leaf is corrupted, it stays so: searches go from leaf to leaf.
                if has_many_leaves(session, tree, root)
                    && let Err(LeafError::Fence(error)) = index.rebuild(session, &mut index.lock())
                {
                    return Err(error.into());
                }
            }
            Some((level, root)) => index.root.store(root_word(level, Kid::Hint(root)), Ordering::Release),
            None => index.rebuild(session, &mut index.lock())?,
        }
        Ok(index)
    }

    pub(crate) const fn anchor(&self) -> u64 {
        self.anchor
    }

    fn lock(&self) -> MutexGuard<'_, Moved> {
        // A writer that panics leaves an index from which every leaf is reached.
        self.writers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The leaf for `key`, or one to the left of it.
    #[inline]
    pub(crate) fn find<P: Pmem>(
        &self,
        session: &Session<P>,
        key: &SearchKey<'_>,
    ) -> Result<Followed, LeafError> {
        if key.is_word() {
            self.descend(session, |node| node.word_child(key.head()))
        } else {
            let pmem = &session.pmem();
            self.descend(session, |node| node.child(|separator| separator.is_at_or_below(pmem, key)))
        }
    }

    /// The last leaf with a separator below `key`, or one to the left of it; the last leaf if there is no key.
    pub(crate) fn find_below<P: Pmem>(
        &self,
        session: &Session<P>,
        key: Option<&SearchKey<'_>>,
    ) -> Result<Followed, LeafError> {
        let pmem = &session.pmem();
        self.descend(session, |node| {
            node.child(|separator| key.is_none_or(|key| separator.is_below(pmem, key)))
        })
    }

    #[inline]
    fn descend<P: Pmem>(
        &self,
        session: &Session<P>,
        choose: impl Fn(&Inner) -> usize,
    ) -> Result<Followed, LeafError> {
        'restart: loop {
            let root = self.root.load(Ordering::Acquire);
            let (mut level, mut kid) = root_parts(root);
            let mut parent: Option<Parent> = None;
            loop {
                let id = match kid {
                    Kid::Built(id) => id,
                    Kid::Hint(hint) => {
                        self.build(session, parent, root, level, hint)?;
                        continue 'restart;
                    }
                };
                let followed = Followed { leaf: FrameId(id), parent, root };
                if level == 0 {
                    return Ok(followed);
                }
                let node = session.inner.get(id);
                let version = node.version(Ordering::Acquire);
                if !version.is_multiple_of(2) || !self.is_current(session, &followed) {
                    continue 'restart;
                }
                let at = choose(node);
                parent = Some(Parent { id, version, at });
                kid = Kid::from_word(node.kid(at).load(Ordering::Acquire));
                fence(Ordering::Acquire);
                if node.version(Ordering::Relaxed) != version {
                    continue 'restart;
                }
                level -= 1;
            }
        }
    }

    /// Whether the pointer is still there. The caller loads the version of the child before.
    #[inline]
    pub(crate) fn is_current<P: Pmem>(&self, session: &Session<P>, followed: &Followed) -> bool {
        fence(Ordering::Acquire);
        match followed.parent {
            None => self.root.load(Ordering::Relaxed) == followed.root,
            Some(Parent { id, version, at }) => {
                let node = session.inner.get(id);
                let kid = node.kid(at).load(Ordering::Relaxed);
                // After the pointer was loaded: the node may have become another one that has the same pointer.
                fence(Ordering::Acquire);
                kid == followed.leaf.0 && node.version(Ordering::Relaxed) == version
            }
        }
    }

    /// Builds the inner node of a hint node to which a reader has come, unless that was done meanwhile.
    #[cold]
    fn build<P: Pmem>(
        &self,
        session: &Session<P>,
        parent: Option<Parent>,
        root: u64,
        level: u8,
        hint: FrameId,
    ) -> Result<(), LeafError> {
        let mut writers = self.lock();
        let (place, is_there) = match parent {
            None => (None, self.root.load(Ordering::Relaxed) == root),
            Some(Parent { id, version, at }) => {
                let node = session.inner.get(id);
                let is_there = node.version(Ordering::Relaxed) == version
                    && node.kid(at).load(Ordering::Relaxed) == Kid::Hint(hint).word();
                (Some((id, at)), is_there)
            }
        };
        if is_there && self.build_at(session, place, level, hint).is_none() {
            self.rebuild(session, &mut writers)?;
        }
        Ok(())
    }

    /// Builds the inner node of a hint node, and replaces the pointer to the hint node. `None` if the hint node is corrupted.
    fn build_at<P: Pmem>(
        &self,
        session: &Session<P>,
        place: Option<(u32, usize)>,
        level: u8,
        hint: FrameId,
    ) -> Option<u32> {
        let offset = session.space.node_offset(hint);
        let kid = |unit| if level == 1 { Kid::leaf(unit) } else { Kid::Hint(unit) };
        let mut children = hints::children(session, self.tree, offset, level).ok()?;
        if let Some(high) = self.upper_bound(session, level, children.first()?.0) {
            // These belong to a hint node on the right, since a split.
            let pmem = &session.pmem();
            let key = |separator: Separator| separator.to_key(pmem, self.tree.is_word);
            children.retain(|(separator, _)| !high.is_at_or_below(pmem, &key(*separator).as_key()));
        }
        let offsets: Vec<u64> = children.iter().map(|(_, child)| *child).collect();
        // A failed fence poisons the store, so that no space is used again.
        hints::clean_up(session, offset, &offsets).ok()?;
        let children: Option<Vec<(Separator, Kid)>> = children
            .into_iter()
            .map(|(separator, child)| Some((separator, kid(session.space.frame_of(child)?))))
            .collect();
        let id = session.inner.add(offset, &children?);
        session.space.mark_node(offset);
        self.replace(session, place, level, Kid::Built(id));
        Some(id)
    }

    /// The separator at which the range of a node at `level` with this separator ends, as the nodes above it say: that of its right sibling, or of the right sibling
    /// of a node above.
    fn upper_bound<P: Pmem>(&self, session: &Session<P>, level: u8, low: Separator) -> Option<Separator> {
        let pmem = &session.pmem();
        let key = low.to_key(pmem, self.tree.is_word);
        let (mut at_level, mut kid) = root_parts(self.root.load(Ordering::Relaxed));
        let mut high = None;
        while at_level > level
            && let Kid::Built(id) = kid
        {
            let node = session.inner.get(id);
            let at = node.child(|separator| separator.is_at_or_below(pmem, &key.as_key()));
            high = node.separator_at(at + 1).or(high);
            kid = Kid::from_word(node.kid(at).load(Ordering::Relaxed));
            at_level -= 1;
        }
        high
    }

    /// Replaces a pointer: that at `place`, or the root.
    fn replace<P: Pmem>(&self, session: &Session<P>, place: Option<(u32, usize)>, level: u8, kid: Kid) {
        match place {
            Some((parent, at)) => session.inner.get(parent).kid(at).store(kid.word(), Ordering::Release),
            None => self.root.store(root_word(level, kid), Ordering::Release),
        }
    }

    /// Takes all hint nodes out of use: the first leaf becomes the root, from which every leaf is reached. No other thread uses the tree.
    ///
    /// # Durability
    /// The next fence of this thread makes it durable. Before that a crash leaves the old root.
    pub(crate) fn forget_hints<P: Pmem>(&self, session: &Session<P>) {
        if self.anchor != 0 {
            hints::set_root(session, self.anchor, session.space.node_offset(self.first));
        }
    }

    /// Makes a new index after [`forget_hints`](Self::forget_hints), which is durable as the links between the leaves are, and releases the old one. No
    /// other thread uses the tree.
    pub(crate) fn renew<P: Pmem>(&self, session: &Session<P>) -> Result<(), LeafError> {
        let mut moved = self.lock();
        // Even if a leaf cannot be read, since the old index has unlinked ones.
        self.retire_all(session, &|hint| session.space.release_node(hint));
        moved.clear();
        let leaves = self.leaves_of_chain(session)?;
        self.post_all(session, &mut moved, leaves);
        Ok(())
    }

    /// Makes a new index, from the headers of the leaves, because a hint node is corrupted. The old inner nodes are not used any more. If a leaf is
    /// corrupted, the old index stays.
    ///
    /// # Durability
    /// The links between the leaves are flushed: a hint node must not name a leaf whose link a crash can lose, and is fenced before anything names
    /// it.
    #[cold]
    fn rebuild<P: Pmem>(&self, session: &Session<P>, moved: &mut Moved) -> Result<(), LeafError> {
        let leaves = self.leaves_of_chain(session)?;
        let first = session.space.node_offset(self.first);
        let others = leaves.iter().map(|(_, leaf)| session.space.node_offset(*leaf));
        for leaf in core::iter::once(first).chain(others) {
            session.pmem().flush(leaf, NODE_HEADER_BYTES);
        }
        // The old hint nodes keep their space: which are corrupted, is unknown.
        self.retire_all(session, &|_| ());
        if self.anchor != 0 {
            hints::set_root(session, self.anchor, first);
            // What the old hint nodes name may be unlinked later.
            session.fence()?;
            moved.clear();
        }
        session.count_new_index();
        self.post_all(session, moved, leaves);
        Ok(())
    }

    /// All leaves behind the first one, from left to right, each with its low separator.
    fn leaves_of_chain<P: Pmem>(&self, session: &Session<P>) -> Result<Vec<(Separator, FrameId)>, LeafError> {
        let pmem = &session.pmem();
        let mut leaves = Vec::new();
        let mut node = Verified::load(pmem, session.space.node_offset(self.first), self.tree)?;
        loop {
            let next = node.next()?;
            if next == 0 {
                return Ok(leaves);
            }
            let right = Verified::load(pmem, next, self.tree)?;
            let leaf = session.space.frame_of(next).filter(|_| node.is_left_of(pmem, &right));
            let leaf = leaf.ok_or(Corruption::new(node.offset(), CorruptionKind::Sibling))?;
            leaves.push((right.low(), leaf));
            node = right;
        }
    }

    /// Makes the first leaf the root, and passes the offsets of the old hint nodes to `release`.
    fn retire_all<P: Pmem>(&self, session: &Session<P>, release: &impl Fn(u64)) {
        let first = root_word(0, Kid::leaf(self.first));
        retire_below(session, root_parts(self.root.swap(first, Ordering::AcqRel)), release);
    }

    /// Adds these leaves to an index without any.
    fn post_all<P: Pmem>(&self, session: &Session<P>, moved: &mut Moved, leaves: Vec<(Separator, FrameId)>) {
        for (low, leaf) in leaves {
            let key = low.to_key(&session.pmem(), self.tree.is_word);
            self.post_locked(session, moved, low, leaf, &key.as_key());
        }
    }

    /// Adds a leaf, which was split off its left sibling.
    ///
    /// # Durability
    /// The next fence of this thread makes it durable; one more fence for each new inner node. A crash before that costs steps to the right.
    pub(crate) fn post<P: Pmem>(
        &self,
        session: &Session<P>,
        low: Separator,
        leaf: FrameId,
        key: &SearchKey<'_>,
    ) {
        let mut moved = self.lock();
        // The sweep may have posted it. A leaf that the index has twice would be in it after it was unlinked.
        let (_, found) = self.path(session, key, 0);
        if found != Some(Kid::leaf(leaf)) {
            self.post_locked(session, &mut moved, low, leaf, key);
        }
    }

    /// [Posts](Self::post) a leaf that the index does not have, for instance after a crash.
    pub(crate) fn post_missing<P: Pmem>(
        &self,
        session: &Session<P>,
        low: Separator,
        leaf: FrameId,
    ) -> Result<(), LeafError> {
        let key: OwnedKey = low.to_key(&session.pmem(), self.tree.is_word);
        if self.find(session, &key.as_key())?.leaf() == leaf {
            return Ok(());
        }
        let mut moved = self.lock();
        // Another thread may have posted it.
        let (_, found) = self.path(session, &key.as_key(), 0);
        if found != Some(Kid::leaf(leaf)) {
            self.post_locked(session, &mut moved, low, leaf, &key.as_key());
        }
        Ok(())
    }

    /// The place of the pointer to the node at `level` in whose range `key` is, and the node. `None` if it could not be built.
    fn path<P: Pmem>(
        &self,
        session: &Session<P>,
        key: &SearchKey<'_>,
        level: u8,
    ) -> (Option<(u32, usize)>, Option<Kid>) {
        let pmem = &session.pmem();
        let (mut at_level, mut kid) = root_parts(self.root.load(Ordering::Relaxed));
        let mut place = None;
        loop {
            if at_level > 0
                && let Kid::Hint(hint) = kid
            {
                match self.build_at(session, place, at_level, hint) {
                    Some(id) => kid = Kid::Built(id),
                    None => return (place, None),
                }
            }
            let Kid::Built(id) = kid else { return (place, Some(kid)) };
            if at_level <= level {
                return (place, Some(kid));
            }
            let node = session.inner.get(id);
            let at = node.child(|separator| separator.is_at_or_below(pmem, key));
            place = Some((id, at));
            kid = Kid::from_word(node.kid(at).load(Ordering::Relaxed));
            at_level -= 1;
        }
    }

    fn post_locked<P: Pmem>(
        &self,
        session: &Session<P>,
        moved: &mut Moved,
        low: Separator,
        leaf: FrameId,
        key: &SearchKey<'_>,
    ) {
        if moved.len() > session.empty_leaves.min(MOVED_MAX) {
            // Before the leaf is posted: the split of the leaf has fenced the words that this thread has stored before to the other hint nodes.
            zero_moved(session, moved);
            // A failed fence poisons the store, so that nothing is unlinked any more.
            drop(session.fence());
        }
        self.post_at_levels(session, low, leaf, key, moved);
    }

    /// Adds a leaf, and the inner nodes that are split for it. Appends to `moved` the hint nodes that were split, each with the children that it has lost.
    fn post_at_levels<P: Pmem>(
        &self,
        session: &Session<P>,
        low: Separator,
        leaf: FrameId,
        key: &SearchKey<'_>,
        moved: &mut Moved,
    ) {
        let pmem = &session.pmem();
        let (mut separator, mut child) = (low, Kid::leaf(leaf));
        let mut level = 1;
        loop {
            let (root_level, root) = root_parts(self.root.load(Ordering::Relaxed));
            if root_level < level {
                self.grow(session, level, root, separator, child);
                return;
            }
            // If a hint node on the way is corrupted, the leaf is not posted: the next search finds that, and makes a new index.
            let (place, Some(Kid::Built(id))) = self.path(session, key, level) else { return };
            let node = session.inner.get(id);
            let hint = node.hint();
            let mut children = node.children();
            let at = node.child(|separator| separator.is_at_or_below(pmem, key));
            children.insert(at + 1, (separator, child));
            let right = (children.len() > session.fanout()).then(|| children.split_off(session.fanout() / 2));
            let left = session.inner.add(hint, &children);
            if let Some(right) = right {
                let right_hint = self.create_hint_node(session, level, &right);
                if hint != 0 {
                    let offsets = right.iter().map(|(_, child)| self.offset_of(session, level - 1, *child));
                    moved.push((hint, offsets.collect()));
                }
                let right_id = session.inner.add(right_hint, &right);
                let right_separator = right[0].0;
                if at + 1 < session.fanout() / 2 {
                    self.add_to_hint_node(session, level, hint, child, &children);
                }
                match place {
                    Some(_) => self.replace(session, place, level, Kid::Built(left)),
                    // Until the new root exists, keys of the right half would not be found below the left one.
                    None => {
                        self.grow(session, level + 1, Kid::Built(left), right_separator, Kid::Built(right_id))
                    }
                }
                session.inner.retire(id);
                if place.is_none() {
                    return;
                }
                (separator, child) = (right_separator, Kid::Built(right_id));
                level += 1;
            } else {
                self.add_to_hint_node(session, level, hint, child, &children);
                self.replace(session, place, level, Kid::Built(left));
                session.inner.retire(id);
                return;
            }
        }
    }

    /// Locks the index, for [`remove`](Self::remove).
    pub(crate) fn lock_to_remove(&self) -> Writers<'_> {
        Writers { moved: self.lock() }
    }

    /// Removes an empty leaf, and the inner nodes that lead to it alone. Returns the offsets of their hint nodes, whose space the caller releases when
    /// the words that name them are durably zero. `None` if the leaf cannot be removed: it is the first child of an inner node with others, whose hint
    /// node has its separator; or the index does not have it.
    ///
    /// # Durability
    /// The words that name the leaf and the hint nodes are zeroed and flushed; the caller fences. A crash costs steps to the right.
    pub(crate) fn remove<P: Pmem>(
        &self,
        session: &Session<P>,
        writers: &mut Writers<'_>,
        key: &SearchKey<'_>,
        leaf: FrameId,
    ) -> Option<Vec<u64>> {
        zero_moved(session, &mut writers.moved);
        let (root_level, _) = root_parts(self.root.load(Ordering::Relaxed));
        // The pointers on the way, from the leaf to the root.
        let mut places = Vec::new();
        for level in 0..root_level {
            let (place, found) = self.path(session, key, level);
            if level == 0 && found != Some(Kid::leaf(leaf)) {
                return None;
            }
            places.push(place?);
        }
        let (mut level, mut hints_released, mut retired) = (1, Vec::new(), Vec::new());
        for (index, (id, at)) in places.iter().enumerate() {
            let node = session.inner.get(*id);
            let mut children = node.children();
            if children.len() == 1 {
                retired.push(*id);
                hints_released.extend((node.hint() != 0).then(|| node.hint()));
                level += 1;
                continue;
            }
            if *at == 0 {
                return None;
            }
            let (_, removed) = children.remove(*at);
            let offset = self.offset_of(session, level - 1, removed);
            if node.hint() != 0 && offset != 0 {
                hints::remove(session, node.hint(), &[offset]);
            }
            let new = session.inner.add(node.hint(), &children);
            self.replace(session, places.get(index + 1).copied(), level, Kid::Built(new));
            session.inner.retire(*id);
            retired.into_iter().for_each(|id| session.inner.retire(id));
            return Some(hints_released);
        }
        None
    }

    /// Makes a new root above the old one and its right sibling.
    fn grow<P: Pmem>(&self, session: &Session<P>, level: u8, left: Kid, separator: Separator, right: Kid) {
        let children = [(Separator::LOWEST, left), (separator, right)];
        let hint = self.create_hint_node(session, level, &children);
        let id = session.inner.add(hint, &children);
        self.root.store(root_word(level, Kid::Built(id)), Ordering::Release);
        if hint != 0 {
            hints::set_root(session, self.anchor, hint);
        }
    }

    /// The offset of a child's node; 0 if it is an inner node without a hint node.
    fn offset_of<P: Pmem>(&self, session: &Session<P>, level: u8, child: Kid) -> u64 {
        match child {
            Kid::Built(id) if level > 0 => session.inner.get(id).hint(),
            Kid::Built(unit) => session.space.node_offset(FrameId(unit)),
            Kid::Hint(unit) => session.space.node_offset(unit),
        }
    }

    /// Creates a hint node for an inner node. Returns 0 if there is no room, or the tree has no hint nodes: then a later open finds the children
    /// through their left siblings.
    fn create_hint_node<P: Pmem>(
        &self,
        session: &Session<P>,
        level: u8,
        children: &[(Separator, Kid)],
    ) -> u64 {
        let offsets: Vec<u64> =
            children.iter().map(|(_, child)| self.offset_of(session, level - 1, *child)).collect();
        if self.anchor == 0 || offsets.contains(&0) {
            return 0;
        }
        hints::create(session, level, &offsets).unwrap_or(0)
    }

    /// Adds a child to the hint node of an inner node with these children.
    fn add_to_hint_node<P: Pmem>(
        &self,
        session: &Session<P>,
        level: u8,
        hint: u64,
        child: Kid,
        children: &[(Separator, Kid)],
    ) {
        let offset = |child: Kid| self.offset_of(session, level - 1, child);
        if hint != 0 && offset(child) != 0 {
            let children: Vec<u64> = children.iter().map(|(_, child)| offset(*child)).collect();
            hints::add(session, hint, offset(child), &children);
        }
    }
}
