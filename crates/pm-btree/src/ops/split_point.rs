//! Where a leaf is split.

use crate::node::{Entry, Frame, SearchKey, entry_offset, separator, slots_of};
use core::sync::atomic::Ordering;
use pm_core::Pmem;

/// A live entry of a leaf that is split, with its key.
pub(crate) struct Moving {
    pub(crate) slot: usize,
    pub(crate) entry: Entry,
    /// The whole key, in a table of byte keys.
    bytes: Vec<u8>,
}

/// The number of entries that stay in the leaf, and the low separator of the right half.
pub(crate) type SplitPoint = (usize, Vec<u8>);

/// The live entries of a locked leaf, in the order of their keys.
pub(crate) fn sorted_entries<P: Pmem>(pmem: &P, is_word: bool, leaf: &Frame) -> Vec<Moving> {
    let load = |slot| {
        let (entry, _) = Entry::load(pmem, entry_offset(leaf.node(), slot));
        let mut bytes = Vec::new();
        if !is_word {
            entry.push_key(pmem, &mut bytes);
        }
        Moving { slot, entry, bytes }
    };
    let mut entries: Vec<Moving> = slots_of(leaf.live.load(Ordering::Relaxed)).map(load).collect();
    entries.sort_unstable_by(|a, b| a.entry.key.cmp(&b.entry.key).then_with(|| a.bytes.cmp(&b.bytes)));
    entries
}

/// The point at which a full leaf is split in halves. The last leaf is split behind its end for a key behind its end, `appended`, so that ascending
/// keys fill their leaves.
pub(crate) fn split_point(is_word: bool, sorted: &[Moving], appended: Option<&SearchKey<'_>>) -> SplitPoint {
    let last = sorted.last().expect("a full leaf has entries");
    if let Some(key) = appended
        && (key.head(), key.bytes()) > (last.entry.key, last.bytes.as_slice())
    {
        return (sorted.len(), separator_between(is_word, &last.bytes, (key.head(), key.bytes())));
    }
    let kept = sorted.len() / 2;
    let right = (sorted[kept].entry.key, sorted[kept].bytes.as_slice());
    (kept, separator_between(is_word, &sorted[kept - 1].bytes, right))
}

/// A key of a leaf that is split for a batch, or of the batch.
struct Place<'a> {
    key: (u64, &'a [u8]),
    /// The number of slots that the key needs, until the batch is committed.
    slots: usize,
    is_live: bool,
}

/// The point at which a leaf is split that has no room for the changes of a batch: their keys, and whether each key is new, in order. The halves need
/// the same number of slots; but if all keys are behind the end of the last leaf, `node_slots` tells how far it is filled.
pub(crate) fn batch_split_point<'k>(
    is_word: bool,
    sorted: &[Moving],
    changes: impl Iterator<Item = (&'k SearchKey<'k>, bool)>,
    node_slots: Option<usize>,
) -> SplitPoint {
    let mut places: Vec<Place<'_>> = Vec::new();
    let mut rest = sorted;
    let mut is_appended = true;
    for (key, is_new) in changes {
        let key = (key.head(), key.bytes());
        let below = rest.partition_point(|moving| (moving.entry.key, moving.bytes.as_slice()) < key);
        is_appended &= is_new && below == rest.len();
        places.extend(rest[..below].iter().map(|moving| live(moving, 1)));
        rest = &rest[below..];
        match is_new {
            true => places.push(Place { key, slots: 1, is_live: false }),
            false => {
                places.push(live(&rest[0], 2));
                rest = &rest[1..];
            }
        }
    }
    places.extend(rest.iter().map(|moving| live(moving, 1)));
    let at = match node_slots.filter(|_| is_appended) {
        // One slot of a leaf is always free.
        Some(slots) => (slots - 1).max(sorted.len()),
        None => {
            let half = places.iter().map(|place| place.slots).sum::<usize>() / 2;
            let sums = places.iter().scan(0, |sum, place| {
                *sum += place.slots;
                Some(*sum)
            });
            sums.take_while(|sum| *sum <= half).count()
        }
    };
    // A single key has room in any leaf.
    let at = at.clamp(1, places.len() - 1);
    let kept = places[..at].iter().filter(|place| place.is_live).count();
    (kept, separator_between(is_word, places[at - 1].key.1, places[at].key))
}

fn live(moving: &Moving, slots: usize) -> Place<'_> {
    Place { key: (moving.entry.key, &moving.bytes), slots, is_live: true }
}

/// The low separator of a leaf that begins with the key `right`, and whose left sibling ends with `left`.
fn separator_between(is_word: bool, left: &[u8], right: (u64, &[u8])) -> Vec<u8> {
    if is_word { right.0.to_be_bytes().to_vec() } else { separator(left, right.1).to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Commit, inline_lengths};

    fn entries(keys: &[u64]) -> Vec<Moving> {
        let entry = |key| Entry { key, payload: 0, low: inline_lengths(0, 8), commit: Commit(0) };
        keys.iter()
            .enumerate()
            .map(|(slot, key)| Moving { slot, entry: entry(*key), bytes: Vec::new() })
            .collect()
    }

    fn point(live: &[u64], changes: &[(u64, bool)], node_slots: Option<usize>) -> (usize, u64) {
        let changes: Vec<_> = changes.iter().map(|(key, is_new)| (SearchKey::word(*key), *is_new)).collect();
        let changes = changes.iter().map(|(key, is_new)| (key, *is_new));
        let (kept, separator) = batch_split_point(true, &entries(live), changes, node_slots);
        (kept, crate::node::head_of(&separator))
    }

    #[test]
    fn halves_need_the_same_number_of_slots() {
        assert_eq!(point(&[1, 2, 3, 4], &[(5, true), (6, true)], None), (3, 4));
        assert_eq!(point(&[4, 5], &[(1, true), (2, true), (3, true), (6, true)], None), (0, 4));
        // The two updated keys need four of six slots.
        assert_eq!(point(&[1, 2, 3, 4], &[(1, false), (2, false)], None), (1, 2));
        assert_eq!(point(&[1], &[(0, true)], None), (0, 1));
        assert_eq!(point(&[], &[(7, true), (8, true)], None), (0, 8));
    }

    #[test]
    fn last_leaf_is_filled_by_keys_behind_its_end() {
        assert_eq!(point(&[1, 2], &[(3, true), (4, true), (5, true)], Some(4)), (2, 4));
        assert_eq!(point(&[1, 2, 3], &[(4, true), (5, true)], Some(4)), (3, 4));
        assert_eq!(point(&[1, 3], &[(2, true), (4, true), (5, true)], Some(4)), (1, 3));
        assert_eq!(point(&[1, 2, 3], &[(3, false), (4, true)], Some(4)), (2, 3));
    }
}
