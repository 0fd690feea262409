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

impl Moving {
    fn key(&self) -> (u64, &[u8]) {
        (self.entry.key, &self.bytes)
    }
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

/// What moves to the last right sibling of a leaf that is split for a batch: all behind so many entries and changes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) entries: usize,
    pub(crate) changes: usize,
    /// The low separator of the sibling.
    pub(crate) separator: Vec<u8>,
}

/// The point at which the last right sibling begins of a leaf that has no room for its entries and the changes of a batch, whose keys are given in
/// order. The caller splits what is left again, as long as it has no room; the cost is that of the sibling's entries and changes only.
///
/// A change needs a slot of its own until the batch is committed. All leaves get the same number of slots, which are at most three quarters of a
/// leaf; but if the leaf `was_last` in its tree and all keys are behind its end, all leaves but the last one are full.
pub(crate) fn batch_split_point<'k>(
    is_word: bool,
    sorted: &[Moving],
    changes: impl DoubleEndedIterator<Item = &'k SearchKey<'k>> + ExactSizeIterator + Clone,
    node_slots: usize,
    was_last: bool,
) -> Cut {
    let key_of = |key: &'k SearchKey<'k>| (key.head(), key.bytes());
    let total = sorted.len() + changes.len();
    let is_appended = was_last && changes.clone().next().map(key_of) > sorted.last().map(Moving::key);
    let slots = if is_appended {
        // One slot of a leaf is always free.
        let full = node_slots - 1;
        let behind = total.saturating_sub(full.max(sorted.len())).max(1);
        (behind - 1) % full + 1
    } else {
        total / total.div_ceil(node_slots * 3 / 4).max(2)
    };
    let (mut entries, mut taken, mut low) = (sorted.len(), 0, None);
    let mut changes = changes.rev();
    let mut change = changes.next().map(key_of);
    loop {
        let entry = sorted[..entries].last().map(Moving::key);
        let order = entry.cmp(&change);
        let key = if order.is_ge() { entry } else { change }.expect("a single key has room in any leaf");
        let needed = usize::from(order.is_ge()) + usize::from(order.is_le());
        if let Some(low) = low
            && taken + needed > slots
        {
            let changes = changes.len() + usize::from(change.is_some());
            return Cut { entries, changes, separator: separator_between(is_word, key.1, low) };
        }
        taken += needed;
        low = Some(key);
        if order.is_ge() {
            entries -= 1;
        }
        if order.is_le() {
            change = changes.next().map(key_of);
        }
    }
}

/// The most right siblings that a leaf gets which needs so many slots, for its entries and the changes of a batch. A cut takes as many slots as
/// [`batch_split_point`] says, but for one if the next key needs two; the first cut of keys behind the end may take a single one.
pub(crate) fn siblings_max(slots: usize, node_slots: usize) -> usize {
    let (mut left, mut siblings) = (slots - 1, 1);
    while left >= node_slots {
        let slots = left / left.div_ceil(node_slots * 3 / 4).max(2);
        left -= (slots - 1).max(1);
        siblings += 1;
    }
    siblings
}

/// The low separator of a leaf that begins with the key `right`, and whose left sibling ends with `left`.
fn separator_between(is_word: bool, left: &[u8], right: (u64, &[u8])) -> Vec<u8> {
    if is_word { right.0.to_be_bytes().to_vec() } else { separator(left, right.1).to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Commit, inline_lengths};
    use core::cell::Cell;

    fn entries(keys: &[u64]) -> Vec<Moving> {
        let entry = |key| Entry { key, payload: 0, low: inline_lengths(0, 8), commit: Commit(0) };
        keys.iter()
            .enumerate()
            .map(|(slot, key)| Moving { slot, entry: entry(*key), bytes: Vec::new() })
            .collect()
    }

    /// The numbers of entries and of changes that stay, and the separator.
    fn point(live: &[u64], changes: &[u64], node_slots: usize, was_last: bool) -> (usize, usize, u64) {
        let changes: Vec<_> = changes.iter().map(|key| SearchKey::word(*key)).collect();
        let cut = batch_split_point(true, &entries(live), changes.iter(), node_slots, was_last);
        (cut.entries, cut.changes, crate::node::head_of(&cut.separator))
    }

    #[test]
    fn leaves_need_the_same_number_of_slots() {
        assert_eq!(point(&[1, 2, 3, 4], &[5, 6], 4, false), (3, 0, 4));
        assert_eq!(point(&[4, 5], &[1, 2, 3, 6], 4, false), (0, 3, 4));
        // The two updated keys need four of six slots.
        assert_eq!(point(&[1, 2, 3, 4], &[1, 2], 4, false), (2, 2, 3));
        assert_eq!(point(&[1], &[0], 4, false), (0, 1, 1));
        assert_eq!(point(&[], &[7, 8], 4, false), (0, 1, 8));
        // Three leaves, of three slots.
        assert_eq!(point(&[1, 2], &[3, 4, 5, 6, 7, 8, 9], 4, false), (2, 4, 7));
        // The last key needs two slots, of one.
        assert_eq!(point(&[1, 2], &[2], 4, false), (1, 0, 2));
    }

    #[test]
    fn leaves_are_filled_by_keys_behind_the_end_of_the_last_leaf() {
        assert_eq!(point(&[1, 2], &[3, 4, 5], 4, true), (2, 1, 4));
        assert_eq!(point(&[1, 2], &[3, 4, 5, 6, 7, 8, 9], 4, true), (2, 4, 7));
        assert_eq!(point(&[1, 2], &[3, 4, 5, 6, 7, 8, 9, 10], 4, true), (2, 7, 10));
        assert_eq!(point(&[], &[3, 4, 5, 6], 4, true), (0, 3, 6));
        assert_eq!(point(&[1, 2, 3, 4], &[5, 6], 4, true), (4, 0, 5));
        // Not all are behind the end.
        assert_eq!(point(&[1, 3], &[2, 4, 5], 4, true), (2, 1, 4));
        assert_eq!(point(&[1, 2, 3], &[3, 4], 4, true), (3, 1, 4));
    }

    #[test]
    fn no_leaf_gets_more_siblings_than_the_bound() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..20_000 {
            let node_slots = 2 * random.usize(2..=31);
            let keys = |random: &mut fastrand::Rng, count: usize, from: u64| -> Vec<u64> {
                let keys: std::collections::BTreeSet<u64> =
                    (0..count).map(|_| random.u64(from..from + 100)).collect();
                keys.into_iter().collect()
            };
            let live_count = random.usize(..node_slots);
            let live = keys(&mut random, live_count, 0);
            let (change_count, from) = (random.usize(1..200), random.u64(0..150));
            let changed = keys(&mut random, change_count, from);
            let (live, changes): (_, Vec<_>) =
                (entries(&live), changed.iter().map(|key| SearchKey::word(*key)).collect());
            let bound = siblings_max(live.len() + changes.len(), node_slots);
            let (mut kept, mut left, mut siblings) = (live.len(), changes.len(), 0);
            let was_last = random.bool();
            // As `make_room` splits a leaf, for changes that all need a free slot.
            while siblings == 0 || kept + left >= node_slots {
                if kept + left < 2 {
                    break;
                }
                let cut =
                    batch_split_point(true, &live[..kept], changes[..left].iter(), node_slots, was_last);
                (kept, left, siblings) = (cut.entries, cut.changes, siblings + 1);
            }
            assert!(
                siblings <= bound,
                "{siblings} siblings of {node_slots} slots for {live_count} and {changed:?}, not {bound}"
            );
        }
    }

    /// The keys of changes, which counts how many are looked at.
    #[derive(Clone)]
    struct Counted<'a> {
        keys: core::slice::Iter<'a, SearchKey<'a>>,
        visits: &'a Cell<usize>,
    }

    impl Counted<'_> {
        fn visit<T>(&self, key: T) -> T {
            self.visits.set(self.visits.get() + 1);
            key
        }
    }

    impl<'a> Iterator for Counted<'a> {
        type Item = &'a SearchKey<'a>;
        fn next(&mut self) -> Option<Self::Item> {
            let key = self.keys.next();
            self.visit(key)
        }
        fn size_hint(&self) -> (usize, Option<usize>) {
            self.keys.size_hint()
        }
    }

    impl DoubleEndedIterator for Counted<'_> {
        fn next_back(&mut self) -> Option<Self::Item> {
            let key = self.keys.next_back();
            self.visit(key)
        }
    }

    impl ExactSizeIterator for Counted<'_> {}

    #[test]
    fn all_cuts_look_at_each_change_once() {
        let live = entries(&[0, 20_002, 20_003]);
        for (first, was_last) in [(1, false), (1, true), (20_004, true)] {
            for count in [1_000, 20_000] {
                let keys: Vec<_> = (first..first + count as u64).map(SearchKey::word).collect();
                let visits = Cell::new(0);
                let (mut kept, mut changes, mut leaves) = (live.len(), keys.len(), 1);
                while kept + changes >= 62 {
                    let counted = Counted { keys: keys[..changes].iter(), visits: &visits };
                    let cut = batch_split_point(true, &live[..kept], counted, 62, was_last);
                    let moved = kept + changes - cut.entries - cut.changes;
                    assert!((1..62).contains(&moved), "{moved} slots");
                    (kept, changes, leaves) = (cut.entries, cut.changes, leaves + 1);
                }
                // The first change of each leaf tells where the leaf begins, and the first of all whether all are behind the end.
                let visits = visits.get();
                assert!(
                    visits <= count + 3 * leaves,
                    "{visits} visits of {count} changes for {leaves} leaves"
                );
                assert!(leaves <= count / 45 + 1, "{leaves} leaves for {count} changes");
            }
        }
    }
}
