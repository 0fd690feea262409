//! Hint nodes: inner nodes in persistent memory, from which the [index](crate::tree::index) is built when it is first used after an open.
//!
//! A hint node holds only offsets of nodes; which keys a node has, its own header says. Leaves stay linked and keep their separators, so a hint node
//! whose nodes have the right headers leads to the leaf of a key, or to one on its left. A word that a crash has lost costs steps to the right, and
//! never gives a wrong answer. Therefore a word is flushed without a fence of its own: the next fence of the thread covers it.
//!
//! A word of a node that is unlinked must be durably zero before the space of the node is used again: the new node there may not be linked yet. So
//! a leaf has words in its parent's hint node only by then. A split of an inner node leaves the words that it moves in both hint nodes, because a crash may lose
//! the word of the new one; they are zeroed before leaves are unlinked. Building an inner node zeroes the words that name no child.
//!
//! An *anchor* is a node with one word, the offset of the root: the highest hint node, or the only leaf. The catalogue names a table's anchor.

use crate::error::{Corruption, CorruptionKind, WriteError};
use crate::format::{ANCHOR_LEVEL, NODE_HEADER_BYTES, NodeHeader, STATE_LIVE, checked, unchecked};
use crate::node::{FANOUT_MAX, Separator, TreeId, Verified};
use crate::session::Session;
use core::mem::offset_of;
use pm_core::{FenceError, Pmem, bytes_of, from_bytes};

/// Creates a hint node with these children, and returns its offset. The first child has the lowest separator.
///
/// # Durability
/// Fenced when this returns. Nothing refers to it yet, and a crash frees it.
pub(crate) fn create<P: Pmem>(session: &Session<P>, level: u8, children: &[u64]) -> Result<u64, WriteError> {
    let pmem = &session.pmem();
    let node = session.space.reserve_node(&session.heap)?;
    let first: NodeHeader = from_bytes(|bytes| pmem.load(children[0], bytes));
    store_header(session, node.offset(), NodeHeader { level, ..first });
    for (word, child) in (0..).zip(children) {
        let place = word_offset(node.offset(), word);
        pmem.store_u64(place, checked(*child, place));
    }
    pmem.flush(node.offset(), NODE_HEADER_BYTES + 8 * children.len() as u64);
    session.fence()?;
    let offset = node.offset();
    node.keep();
    Ok(offset)
}

/// Creates an anchor of a tree whose only leaf is at `leaf`, and returns its offset.
///
/// # Durability
/// The caller fences. Nothing refers to it yet, and a crash frees it.
pub(crate) fn create_anchor<P: Pmem>(session: &Session<P>, leaf: u64) -> Result<u64, WriteError> {
    let pmem = &session.pmem();
    let node = session.space.reserve_node(&session.heap)?;
    let first: NodeHeader = from_bytes(|bytes| pmem.load(leaf, bytes));
    store_header(session, node.offset(), NodeHeader { level: ANCHOR_LEVEL, ..first });
    pmem.flush(node.offset(), NODE_HEADER_BYTES);
    set_root(session, node.offset(), leaf);
    let offset = node.offset();
    node.keep();
    Ok(offset)
}

/// Stores a header with the level, the table and the separator of `header`.
fn store_header<P: Pmem>(session: &Session<P>, node: u64, header: NodeHeader) {
    let state = checked(STATE_LIVE, node + offset_of!(NodeHeader, state) as u64);
    let header = NodeHeader { state, next: 0, birth: session.epochs.next_birth(), ..header };
    let header = NodeHeader { crc: header.expected_crc(node), ..header };
    session.pmem().store(node, bytes_of(&header));
}

const fn word_offset(node: u64, word: usize) -> u64 {
    node + NODE_HEADER_BYTES + 8 * word as u64
}

fn load_words<P: Pmem>(session: &Session<P>, hint: u64) -> [u64; FANOUT_MAX] {
    let mut words = [0; FANOUT_MAX];
    session.pmem().load_words(word_offset(hint, 0), &mut words[..session.fanout()]);
    words
}

/// Adds a child to a hint node that has these children already. A word that is free, or names a node that is no child any more, gets it.
///
/// # Durability
/// The next fence of this thread makes it durable.
pub(crate) fn add<P: Pmem>(session: &Session<P>, hint: u64, child: u64, children: &[u64]) {
    let words = load_words(session, hint);
    let is_free = |word: usize| {
        unchecked(words[word], word_offset(hint, word)).is_none_or(|child| !children.contains(&child))
    };
    let places = || 0..session.fanout();
    let free = places().find(|word| words[*word] == 0).or_else(|| places().find(|word| is_free(*word)));
    if let Some(free) = free {
        let place = word_offset(hint, free);
        session.pmem().store_u64(place, checked(child, place));
        session.pmem().flush(place, 8);
    }
}

/// Zeroes and flushes the words of a hint node that name one of these nodes.
///
/// # Durability
/// The next fence of this thread makes it durable. A crash before that leaves words of nodes, which are not used again yet.
pub(crate) fn remove<P: Pmem>(session: &Session<P>, hint: u64, removed: &[u64]) {
    let words = load_words(session, hint);
    for (number, word) in (0..).zip(words).filter(|(_, word)| *word != 0) {
        let place = word_offset(hint, number);
        if unchecked(word, place).is_some_and(|child| removed.contains(&child)) {
            session.pmem().store_u64(place, 0);
            session.pmem().flush(place, 8);
        }
    }
}

/// Flushes the words of a hint node.
pub(crate) fn flush<P: Pmem>(session: &Session<P>, hint: u64) {
    session.pmem().flush(word_offset(hint, 0), 8 * session.fanout() as u64);
}

/// Zeroes all words of a hint node that name none of its children, and flushes the node if there are any, or it may not be durable. Words that name
/// other nodes are left by programs that do not zero them; their nodes may be unlinked, and be used again.
///
/// # Durability
/// One fence, if something was flushed.
pub(crate) fn clean_up<P: Pmem>(session: &Session<P>, hint: u64, children: &[u64]) -> Result<(), FenceError> {
    let words = load_words(session, hint);
    let mut is_changed = false;
    for (number, word) in (0..session.fanout()).zip(words).filter(|(_, word)| *word != 0) {
        let place = word_offset(hint, number);
        if !unchecked(word, place).is_some_and(|child| children.contains(&child)) {
            session.pmem().store_u64(place, 0);
            is_changed = true;
        }
    }
    if !is_changed && !session.epochs.is_unclean {
        return Ok(());
    }
    flush(session, hint);
    session.fence()
}

/// The children of a hint node with their separators, in ascending order. The first has the hint node's separator, and there is at least one.
pub(crate) fn children<P: Pmem>(
    session: &Session<P>,
    tree: TreeId,
    hint: u64,
    level: u8,
) -> Result<Vec<(Separator, u64)>, Corruption> {
    let pmem = &session.pmem();
    let corrupted = Corruption::new(hint, CorruptionKind::NodeHeader);
    let low = Verified::load_at_level(pmem, hint, tree, level)?.low();
    let words = load_words(session, hint);
    let offsets: Vec<u64> = (0..session.fanout())
        .filter_map(|word| unchecked(words[word], word_offset(hint, word)))
        .filter(|child| *child != 0)
        .collect();
    offsets.iter().for_each(|child| pmem.prefetch_read(*child));
    let separator = |child: u64| {
        let header = Verified::load_at_level(pmem, child, tree, level - 1).ok()?;
        Some((header.low(), child))
    };
    let mut children: Vec<(Separator, u64)> = offsets.into_iter().filter_map(separator).collect();
    if tree.is_word {
        children.sort_unstable_by_key(|child| child.0.head);
    } else {
        children.sort_by_cached_key(|child| child.0.load(pmem));
    }
    children.dedup_by_key(|child| child.1);
    match children.first() {
        Some((first, _)) if first.has_key_of(pmem, &low) => Ok(children),
        _ => Err(corrupted),
    }
}

/// Sets the root of an anchor.
///
/// # Durability
/// The next fence of this thread makes it durable. A crash leaves the old root, from which every leaf is reached, or the new one.
pub(crate) fn set_root<P: Pmem>(session: &Session<P>, anchor: u64, root: u64) {
    let place = word_offset(anchor, 0);
    session.pmem().store_u64(place, checked(root, place));
    session.pmem().flush(place, 8);
}

/// Flushes the root of an anchor, which a killed process may have stored without a fence.
///
/// # Durability
/// One fence.
pub(crate) fn persist_root<P: Pmem>(session: &Session<P>, anchor: u64) -> Result<(), FenceError> {
    session.pmem().flush(word_offset(anchor, 0), 8);
    session.fence()
}

/// The offset of the root, and its level: 0 for a leaf.
pub(crate) fn root<P: Pmem>(
    session: &Session<P>,
    tree: TreeId,
    anchor: u64,
) -> Result<(u64, u8), Corruption> {
    let pmem = &session.pmem();
    Verified::load_at_level(pmem, anchor, tree, ANCHOR_LEVEL)?;
    let place = word_offset(anchor, 0);
    let corrupted = || Corruption::new(place, CorruptionKind::NodeHeader);
    let root = unchecked(pmem.load_u64(place), place).ok_or_else(corrupted)?;
    let node = Verified::load_any(pmem, root, tree)?;
    // After a rebuild and a crash, the anchor may name an old root whose space is a leaf's by now. From a leftmost node every leaf is reached.
    let is_leftmost = node.low() == Separator::LOWEST && node.level() != ANCHOR_LEVEL;
    if is_leftmost { Ok((root, node.level())) } else { Err(corrupted()) }
}
