//! Reads that lend the bytes of records, without copying them.

use super::get::get_entry;
use super::order::{Bounds, Side, SortedLeaf, enter, is_below};
use crate::error::{Corruption, CorruptionKind, LeafError};
use crate::node::{Entry, FrameId, OwnedKey, SearchKey, Snapshot, entry_offset, held_entry, slots_of};
use crate::session::Session;
use crate::tree::Tree;
use core::ops::{Bound, ControlFlow};
use pm_core::Pmem;

/// The entries of which the records are prefetched before they are lent. Only their first lines: the reader decides how much it reads.
const ENTRIES_AHEAD: usize = 12;

/// Calls `with` with the bytes of the value of `key`. Returns whether there is one.
#[inline]
pub(crate) fn lend<P: Pmem>(
    session: &Session<P>,
    tree: &Tree,
    key: &SearchKey<'_>,
    with: &mut dyn FnMut(&[u8]),
) -> Result<bool, LeafError> {
    let _lending = session.begin_lending();
    // A corrupted entry can lead to bytes that are stored to while they are lent.
    let found = get_entry(session, tree, key)?;
    if let Some(entry) = &found {
        entry.lend(&session.pmem(), tree.key_width, &mut |_, value| with(value));
    }
    Ok(found.is_some())
}

/// A visit of the entries within bounds, leaf by leaf.
#[derive(Debug)]
pub(crate) struct Visit {
    bounds: Bounds,
    /// The leaf before the next one, whose right sibling that is.
    left: Option<(FrameId, Snapshot)>,
    /// The node that was visited last, and its corrupted slots, which were reported.
    last_node: u64,
    reported: u64,
}

impl Visit {
    pub(crate) const fn new(bounds: Bounds) -> Self {
        Self { bounds, left: None, last_node: 0, reported: 0 }
    }

    /// Calls `each` with the bytes of the keys and values of the next leaf, or of a part of it if the leaf is changed meanwhile, in ascending order, and with an
    /// error for each corrupted entry of the leaf before its other entries. Returns whether there may be more. Ends with the first error of a leaf that
    /// cannot be read.
    pub(crate) fn next_leaf<P: Pmem, B>(
        &mut self,
        session: &Session<P>,
        tree: &Tree,
        mut each: impl FnMut(Result<(&[u8], &[u8]), LeafError>) -> ControlFlow<B>,
    ) -> ControlFlow<B, bool> {
        let pmem = &session.pmem();
        // Announced anew for each leaf, so that a long scan does not keep all released space.
        let _lending = session.begin_lending();
        let (mut leaf, corrupted) = match enter(session, tree, &self.bounds, Side::Front, self.left.take()) {
            Ok(entered) => entered,
            Err(error) => {
                each(Err(error))?;
                return ControlFlow::Continue(false);
            }
        };
        let frame = leaf.frame(session);
        let node = frame.node();
        let reported = if self.last_node == node { self.reported } else { 0 };
        for slot in slots_of(corrupted & !reported) {
            each(Err(held_entry(node, 1 << slot).into()))?;
        }
        (self.last_node, self.reported) = (node, reported | corrupted);

        let place = |leaf: &SortedLeaf, at: usize| entry_offset(node, leaf.order[at].into());
        let load = |leaf: &SortedLeaf, at: usize| Entry::load(pmem, place(leaf, at)).0;
        let mut lent: Option<Entry> = None;
        let mut is_changed = false;
        leaf.rest.clone().take(ENTRIES_AHEAD).for_each(|at| load(&leaf, at).prefetch_key(pmem));
        for at in leaf.rest.clone() {
            if at + ENTRIES_AHEAD < leaf.rest.end {
                load(&leaf, at + ENTRIES_AHEAD).prefetch_key(pmem);
            } else {
                leaf.prefetch_next(session);
            }
            let (entry, seal) = Entry::load(pmem, place(&leaf, at));
            let is_intact = entry.seal(frame.seed()) == seal;
            // A change in progress may have stored a part of the entry.
            let is_partial =
                !is_intact && !leaf.snapshot.is_settled() && session.check_not_poisoned().is_ok();
            if is_partial || !frame.is_current(leaf.snapshot) {
                is_changed = true;
                break;
            }
            if !is_intact {
                each(Err(Corruption::new(place(&leaf, at), CorruptionKind::Entry).into()))?;
                continue;
            }
            let mut flow = ControlFlow::Continue(());
            entry.lend(pmem, tree.key_width, &mut |key, value| flow = each(Ok((key, value))));
            flow?;
            lent = Some(entry);
        }
        if is_changed {
            // What follows the last entry is read again.
            if let Some(entry) = lent {
                let mut bytes = Vec::new();
                if !tree.is_word() {
                    entry.push_key(pmem, &mut bytes);
                }
                self.bounds.from =
                    Bound::Excluded(OwnedKey { head: entry.key, bytes, is_word: tree.is_word() });
            }
            return ControlFlow::Continue(true);
        }
        match leaf.edge {
            Some(high) if is_below(&high, &self.bounds.to) => {
                self.bounds.from = Bound::Included(high);
                self.left = Some((leaf.id, leaf.snapshot));
                ControlFlow::Continue(true)
            }
            _ => ControlFlow::Continue(false),
        }
    }
}
