//! Reads that lend the bytes of records, without copying them.

use super::get::get_entry;
use super::order::{Bounds, Side, SortedLeaf, enter, is_below};
use crate::error::{Corruption, CorruptionKind, LeafError};
use crate::node::{Entry, OwnedKey, SearchKey, entry_offset, held_entry, slots_of};
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

/// Calls `each` with the bytes of the keys and values within the bounds, in ascending order, and with an error for each corrupted entry of a leaf
/// before the other entries of this leaf. Ends with the first error of a leaf that cannot be read.
pub(crate) fn visit_range<P: Pmem, B>(
    session: &Session<P>,
    tree: &Tree,
    mut bounds: Bounds,
    mut each: impl FnMut(Result<(&[u8], &[u8]), LeafError>) -> ControlFlow<B>,
) -> ControlFlow<B> {
    let pmem = &session.pmem();
    let mut left = None;
    let (mut last_node, mut reported) = (0, 0);
    loop {
        // Announced anew for each leaf, so that a long scan does not keep all released space.
        let _lending = session.begin_lending();
        let (mut leaf, corrupted) = match enter(session, tree, &bounds, Side::Front, left.take()) {
            Ok(entered) => entered,
            Err(error) => return each(Err(error)),
        };
        let node = leaf.frame.node();
        reported = if last_node == node { reported } else { 0 };
        for slot in slots_of(corrupted & !reported) {
            each(Err(held_entry(node, 1 << slot).into()))?;
        }
        (last_node, reported) = (node, reported | corrupted);

        let place = |leaf: &SortedLeaf<'_>, at: usize| entry_offset(node, leaf.order[at].into());
        let load = |leaf: &SortedLeaf<'_>, at: usize| Entry::load(pmem, place(leaf, at)).0;
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
            let is_intact = entry.seal(leaf.frame.seed()) == seal;
            // A change in progress may have stored a part of the entry.
            let is_partial =
                !is_intact && !leaf.snapshot.is_settled() && session.check_not_poisoned().is_ok();
            if is_partial || !leaf.frame.is_current(leaf.snapshot) {
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
                bounds.from = Bound::Excluded(OwnedKey { head: entry.key, bytes, is_word: tree.is_word() });
            }
            continue;
        }
        match leaf.edge {
            Some(high) if is_below(&high, &bounds.to) => {
                bounds.from = Bound::Included(high);
                left = Some((leaf.frame, leaf.snapshot));
            }
            _ => return ControlFlow::Continue(()),
        }
    }
}
