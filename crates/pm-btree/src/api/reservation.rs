//! What the changes of a group need when they are committed: it is set aside when each of them joins.
//!
//! The leaves do not change while changes wait, because any change that does not wait commits the group first. So what a leaf has room for when a change
//! joins, it has room for at the commit.

use crate::error::WriteError;
use crate::node::{Entry, Frame, FrameId, SearchKey, entry_offset, slots_of};
use crate::ops::{record_bytes, siblings_max};
use crate::session::{Session, Stock, Supply};
use crate::tree::Tree;
use core::sync::atomic::Ordering;
use pm_core::Pmem;
use rustc_hash::FxHashMap;

/// What is set aside for the changes of a group.
#[derive(Debug, Default)]
pub(super) struct Reservation {
    stock: Stock,
    leaves: FxHashMap<FrameId, Need>,
}

/// What the changes in one leaf need.
#[derive(Debug, Default)]
struct Need {
    /// The number of keys that get a value, and so a slot.
    values: usize,
    /// The number of keys that change.
    changes: usize,
    /// The number of nodes that are set aside.
    nodes: usize,
    /// The length of the longest key that changes, in a table of byte keys.
    longest_bytes: u64,
    /// The length for which a separator is set aside for each of the nodes, in a table of byte keys.
    separator_bytes: u64,
}

/// What the last waiting change of a key does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Waiting {
    /// None waits.
    Nothing,
    /// It removes the key.
    Removal,
    /// It gives the key a value of this length.
    Value(usize),
}

impl Reservation {
    /// Sets aside what a change needs, which gives a key a new value or removes it.
    ///
    /// # Errors
    /// When the change could not be made: the leaf of the key cannot be read, or has a corrupted entry that may hold the key. [`WriteError::Full`] when
    /// not all that the changes may need can be set aside: then there may still be room for this one and for those that wait. What was set aside
    /// before the error stays so, until the [release](Self::release).
    pub(super) fn add<P: Pmem>(
        &mut self,
        session: &Session<P>,
        tree: &Tree,
        key: &SearchKey<'_>,
        value: Option<&[u8]>,
        waiting: Waiting,
    ) -> Result<(), WriteError> {
        let (id, leaf, _) = tree.locate(session, key)?;
        if leaf.held.load(Ordering::Relaxed) != 0 {
            tree.find_in(session, &leaf.lock(), key)?;
        }
        let record_len = |value_len| record_bytes(tree.is_word(), key, value_len);
        let len = value.map_or(0, |value| record_len(value.len()));
        let waiting_len = match waiting {
            Waiting::Nothing | Waiting::Removal => 0,
            Waiting::Value(len) => record_len(len),
        };
        if len != 0 && len != waiting_len {
            self.stock.add_record(session, len)?;
        }
        let need = self.leaves.entry(id).or_default();
        need.longest_bytes = need.longest_bytes.max(key.bytes().len() as u64);
        need.changes += usize::from(matches!(waiting, Waiting::Nothing));
        need.values += usize::from(value.is_some() && !matches!(waiting, Waiting::Value(_)));
        self.add_nodes(session, tree, (id, leaf))?;
        if waiting_len != 0 && len != waiting_len {
            // The value that was to be stored there is replaced.
            self.stock.release_record(session, waiting_len);
        }
        Ok(())
    }

    /// Sets aside the nodes that a leaf needs for its changes.
    fn add_nodes<P: Pmem>(
        &mut self,
        session: &Session<P>,
        tree: &Tree,
        (id, leaf): (FrameId, &Frame),
    ) -> Result<(), WriteError> {
        let need = self.leaves.entry(id).or_default();
        let taken = leaf.taken().count_ones() as usize;
        if need.values == 0 || need.values < session.slots - taken {
            return Ok(());
        }
        if leaf.held.load(Ordering::Relaxed) != 0 {
            // It cannot be split. A change that needs no split is possible all the same.
            return Err(WriteError::Full);
        }
        if !tree.is_word() {
            let longest = if need.nodes == 0 { longest_key(session, leaf) } else { 0 };
            let separator_bytes = need.separator_bytes.max(longest).max(need.longest_bytes);
            if separator_bytes > need.separator_bytes {
                need.separator_bytes = separator_bytes;
                for _ in 0..need.nodes {
                    self.stock.add_record(session, separator_bytes)?;
                }
            }
        }
        while need.nodes < siblings_max(taken + need.changes, session.slots) {
            self.stock.add_node(session)?;
            if need.separator_bytes > 0 {
                self.stock.add_record(session, need.separator_bytes)?;
            }
            need.nodes += 1;
        }
        Ok(())
    }

    /// Where a commit of the changes takes its space from.
    pub(super) const fn supply<'c, P: Pmem>(&'c self, session: &'c Session<P>) -> Supply<'c, P> {
        Supply::with_stock(session, &self.stock)
    }

    /// Releases what is left when all changes were committed.
    pub(super) fn release<P: Pmem>(&mut self, session: &Session<P>) {
        self.stock.release(session);
        self.leaves.clear();
    }
}

/// The length of the longest key in a leaf of a table of byte keys.
fn longest_key<P: Pmem>(session: &Session<P>, leaf: &Frame) -> u64 {
    let pmem = &session.pmem();
    let len = |slot| Entry::load(pmem, entry_offset(leaf.node(), slot)).0.body_lens(pmem, false).0;
    slots_of(leaf.live.load(Ordering::Relaxed)).map(len).max().unwrap_or_default() as u64
}
