//! The entries of a leaf in the order of their keys, as far as they are within bounds.
//!
//! A leaf is unsorted. A scan and a visit sort its slots once, with a snapshot of its frame, and check the snapshot after they have read entries.

use crate::error::LeafError;
use crate::node::{Entry, Frame, FrameId, OwnedKey, SearchKey, Snapshot, Verified, entry_offset, slots_of};
use crate::session::Session;
use crate::tree::Tree;
use core::ops::{Bound, Range, RangeInclusive};
use core::sync::atomic::Ordering;
use pm_core::Pmem;

/// The most slots of a node.
const SLOTS: usize = 64;
/// The lines of the next leaf that are prefetched at a time.
const NEXT_LEAF_LINES: u64 = 11;

/// The bounds of a scan that has not ended.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    pub(crate) from: Bound<OwnedKey>,
    pub(crate) to: Bound<OwnedKey>,
}

/// An end of a scan: the front delivers ascending keys, the back descending ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Front,
    Back,
}

/// The entries of a leaf that are within the bounds and not copied yet.
#[derive(Debug)]
pub(super) struct SortedLeaf {
    pub(super) id: FrameId,
    pub(super) snapshot: Snapshot,
    /// Slots, in the order of their keys.
    pub(super) order: [u8; SLOTS],
    pub(super) rest: Range<usize>,
    /// The separator at the far end: the leaf beyond it is the next one. `None` if there is no leaf.
    pub(super) edge: Option<OwnedKey>,
    /// The lines of the next leaf that were prefetched.
    prefetched: u64,
}

impl SortedLeaf {
    pub(super) fn frame<'c, P: Pmem>(&self, session: &'c Session<P>) -> &'c Frame {
        session.frames.get(self.id)
    }

    /// Starts to load the records of the first `count` entries at one end.
    pub(super) fn prefetch_records<P: Pmem>(&self, session: &Session<P>, side: Side, count: usize) {
        let pmem = &session.pmem();
        let first = match side {
            Side::Front => self.rest.start..self.rest.end.min(count),
            Side::Back => self.rest.end.saturating_sub(count)..self.rest.end,
        };
        let node = self.frame(session).node();
        for at in first {
            let place = entry_offset(node, self.order[at].into());
            Entry::load(pmem, place).0.prefetch_record(pmem);
        }
    }

    /// Starts to load some lines of the next leaf.
    pub(super) fn prefetch_next<P: Pmem>(&mut self, session: &Session<P>) {
        let lines = session.node_bytes() / 64;
        if self.prefetched < lines
            && let Some(next) = self.frame(session).next()
        {
            let node = session.space.node_offset(next);
            let end = lines.min(self.prefetched + NEXT_LEAF_LINES);
            (self.prefetched..end).for_each(|line| session.pmem().prefetch_read(node + 64 * line));
            self.prefetched = end;
        }
    }
}

/// The order of the entries within the bounds in the leaf at one end of them, and the slots of corrupted entries.
pub(super) fn enter<P: Pmem>(
    session: &Session<P>,
    tree: &Tree,
    bounds: &Bounds,
    side: Side,
    left: Option<(FrameId, Snapshot)>,
) -> Result<(SortedLeaf, u64), LeafError> {
    let pmem = &session.pmem();
    let left = left.map(|(left, snapshot)| (session.frames.get(left), snapshot));
    let mut right_of_left = match left.and_then(|(left, snapshot)| Some((left, snapshot, left.next()?))) {
        None => None,
        Some((left, snapshot, next)) => {
            let right = tree.leaf(session, next)?;
            let of_right = right.snapshot();
            left.is_current(snapshot).then_some((next, right, of_right))
        }
    };
    loop {
        let (id, frame, snapshot) = match (side, right_of_left.take()) {
            (Side::Front, Some(found)) => found,
            (Side::Front, None) => locate_first(session, tree, &bounds.from)?,
            (Side::Back, _) => locate_last(session, tree, &bounds.to)?,
        };
        let high = frame.right().map(|(_, high)| high.to_key(pmem, tree.is_word()));
        // A separator never changes while the node is in use.
        let low =
            (side == Side::Back && id != tree.first).then(|| Verified::load(pmem, frame.node(), tree.id));
        let Some((mut leaf, corrupted)) = read_order(session, tree, (id, snapshot), bounds, high.as_ref())
        else {
            continue;
        };
        leaf.edge = match side {
            Side::Front => high,
            Side::Back => low.transpose()?.map(|node| node.low().to_key(pmem, tree.is_word())),
        };
        return Ok((leaf, corrupted));
    }
}

fn locate_first<'c, P: Pmem>(
    session: &'c Session<P>,
    tree: &Tree,
    from: &Bound<OwnedKey>,
) -> Result<(FrameId, &'c Frame, Snapshot), LeafError> {
    match from {
        Bound::Included(key) | Bound::Excluded(key) => tree.locate(session, &key.as_key()),
        Bound::Unbounded => loop {
            // All leaves to the left of this one are empty.
            let id = tree.ends.first();
            let frame = tree.leaf(session, id)?;
            let snapshot = frame.snapshot();
            // Otherwise the leaf may be unlinked.
            if tree.ends.first() == id {
                return Ok((id, frame, snapshot));
            }
        },
    }
}

/// The last leaf that can hold keys up to this bound.
fn locate_last<'c, P: Pmem>(
    session: &'c Session<P>,
    tree: &Tree,
    to: &Bound<OwnedKey>,
) -> Result<(FrameId, &'c Frame, Snapshot), LeafError> {
    match to {
        Bound::Included(key) => tree.locate(session, &key.as_key()),
        Bound::Excluded(key) => tree.locate_below(session, Some(&key.as_key())),
        Bound::Unbounded => tree.locate_below(session, None),
    }
}

/// The order of the entries of a leaf that are within the bounds and below `high`, and the slots of its corrupted entries. `None` if the leaf has
/// changed since the snapshot.
fn read_order<P: Pmem>(
    session: &Session<P>,
    tree: &Tree,
    (id, snapshot): (FrameId, Snapshot),
    bounds: &Bounds,
    high: Option<&OwnedKey>,
) -> Option<(SortedLeaf, u64)> {
    let pmem = &session.pmem();
    let frame = session.frames.get(id);
    let node = frame.node();
    // The even slots of all lines with a live entry.
    for slot in slots_of((snapshot.live | snapshot.live >> 1) & 0x5555_5555_5555_5555) {
        pmem.prefetch_read(entry_offset(node, slot));
    }
    let mut broken = 0;
    if session.verifies_reads {
        broken = broken_entries(session, tree, frame, snapshot, bounds);
        // A change in progress may have stored a part of an entry.
        if broken != 0 && !snapshot.is_settled() && session.check_not_poisoned().is_ok() {
            return None;
        }
    }
    let mut leaf = SortedLeaf { id, snapshot, order: [0; SLOTS], rest: 0..0, edge: None, prefetched: 0 };
    leaf.rest.end = match tree.is_word() {
        true => sort_words(pmem, node, snapshot.live & !broken, &words_of(bounds, high), &mut leaf.order),
        false => sort_bytes(pmem, node, snapshot.live & !broken, bounds, high, &mut leaf.order),
    };
    let held = frame.held.load(Ordering::Relaxed);
    frame.is_current(snapshot).then_some((leaf, held | broken))
}

/// The live slots of a leaf whose seal is wrong, and those whose record is wrong and that are, or may be, within the bounds.
#[cold]
fn broken_entries<P: Pmem>(
    session: &Session<P>,
    tree: &Tree,
    frame: &Frame,
    snapshot: Snapshot,
    bounds: &Bounds,
) -> u64 {
    let pmem = &session.pmem();
    let words = words_of(bounds, None);
    let is_broken = |slot: &usize| {
        let (entry, seal) = Entry::load(pmem, entry_offset(frame.node(), *slot));
        let may_be_inside = !tree.is_word() || words.contains(&entry.key);
        entry.seal(frame.seed()) != seal || may_be_inside && !entry.is_record_intact(pmem, tree.is_word())
    };
    slots_of(snapshot.live).filter(is_broken).fold(0, |slots, slot| slots | 1 << slot)
}

/// The words within the bounds and below `high`.
fn words_of(bounds: &Bounds, high: Option<&OwnedKey>) -> RangeInclusive<u64> {
    let from = match &bounds.from {
        Bound::Included(key) => Some(key.head),
        Bound::Excluded(key) => key.head.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let to = match &bounds.to {
        Bound::Included(key) => Some(key.head),
        Bound::Excluded(key) => key.head.checked_sub(1),
        Bound::Unbounded => Some(u64::MAX),
    };
    let below = high.map_or(Some(u64::MAX), |high| high.head.checked_sub(1));
    match (from, to, below) {
        (Some(from), Some(to), Some(below)) => from..=to.min(below),
        #[expect(clippy::reversed_empty_ranges, reason = "no word")]
        _ => 1..=0,
    }
}

/// Sorts the slots whose keys are among `words`. Returns their number.
fn sort_words<P: Pmem>(
    pmem: &P,
    node: u64,
    slots: u64,
    words: &RangeInclusive<u64>,
    order: &mut [u8; SLOTS],
) -> usize {
    let mut keys = [(0, 0); SLOTS];
    let mut count = 0;
    let (mut least, mut greatest) = (u64::MAX, 0);
    for slot in slots_of(slots) {
        let key = pmem.load_u64(entry_offset(node, slot));
        if words.contains(&key) {
            #[expect(clippy::cast_possible_truncation, reason = "slots are below 64")]
            let slot = slot as u8;
            keys[count] = (key, slot);
            count += 1;
            (least, greatest) = (key.min(least), key.max(greatest));
        }
    }
    let keys = &mut keys[..count];
    if !sort_by_ranks(keys, least, greatest, order) {
        keys.sort_unstable();
        for (place, (_, slot)) in order.iter_mut().zip(&*keys) {
            *place = *slot;
        }
    }
    count
}

/// Sorts the slots by the leading bits of their keys' distances from the least one: by counting how many are less than each, which has no branch to
/// mispredict. False if these bits do not decide.
fn sort_by_ranks(keys: &[(u64, u8)], least: u64, greatest: u64, order: &mut [u8; SLOTS]) -> bool {
    /// With the bits of a slot they are a positive `i32`, which processors compare several at a time.
    const BITS: u32 = i32::BITS - 1 - SLOTS.trailing_zeros();
    let spread_bits = u64::BITS - greatest.wrapping_sub(least).leading_zeros();
    let shift = spread_bits.saturating_sub(BITS);
    let mut packed = [i32::MAX; SLOTS];
    for (packed, (key, slot)) in packed.iter_mut().zip(keys) {
        #[expect(clippy::cast_possible_truncation, reason = "at most 31 bits")]
        let distance = ((key - least) >> shift) as i32;
        *packed = distance << SLOTS.trailing_zeros() | i32::from(*slot);
    }
    let compared = &packed[..keys.len().next_multiple_of(8)];
    let mut places = [0; SLOTS];
    for (index, ((_, slot), own)) in keys.iter().zip(&packed).enumerate() {
        let rank: i32 = compared.iter().map(|other| i32::from(other < own)).sum();
        let rank = rank.unsigned_abs() as usize % SLOTS;
        order[rank] = *slot;
        places[rank] = index;
    }
    shift == 0 || places[..keys.len()].windows(2).all(|pair| keys[pair[0]].0 < keys[pair[1]].0)
}

/// Sorts the slots whose byte keys are within the bounds and below `high`. Returns their number.
fn sort_bytes<P: Pmem>(
    pmem: &P,
    node: u64,
    slots: u64,
    bounds: &Bounds,
    high: Option<&OwnedKey>,
    order: &mut [u8; SLOTS],
) -> usize {
    let load = |slot| Entry::load(pmem, entry_offset(node, slot)).0;
    slots_of(slots).for_each(|slot| load(slot).prefetch_key(pmem));
    let mut bytes = Vec::new();
    let mut keys: Vec<(u64, Range<usize>, usize)> = Vec::with_capacity(slots.count_ones() as usize);
    for slot in slots_of(slots) {
        let start = bytes.len();
        load(slot).push_key(pmem, &mut bytes);
        let key = SearchKey::unhashed(&bytes[start..]);
        if is_inside(&key, bounds) && high.is_none_or(|high| key.order(&high.as_key()).is_lt()) {
            keys.push((key.head(), start..bytes.len(), slot));
        }
    }
    keys.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| bytes[a.1.clone()].cmp(&bytes[b.1.clone()])));
    for (place, (.., slot)) in order.iter_mut().zip(&keys) {
        *place = u8::try_from(*slot).expect("slots are below 64");
    }
    keys.len()
}

fn is_inside(key: &SearchKey<'_>, bounds: &Bounds) -> bool {
    let is_above = match &bounds.from {
        Bound::Included(from) => key.order(&from.as_key()).is_ge(),
        Bound::Excluded(from) => key.order(&from.as_key()).is_gt(),
        Bound::Unbounded => true,
    };
    is_above
        && match &bounds.to {
            Bound::Included(to) => key.order(&to.as_key()).is_le(),
            Bound::Excluded(to) => key.order(&to.as_key()).is_lt(),
            Bound::Unbounded => true,
        }
}

/// Whether keys from `key` on may be within the upper bound.
pub(super) fn is_below(key: &OwnedKey, to: &Bound<OwnedKey>) -> bool {
    match to {
        Bound::Included(to) => key.as_key().order(&to.as_key()).is_le(),
        Bound::Excluded(to) => key.as_key().order(&to.as_key()).is_lt(),
        Bound::Unbounded => true,
    }
}

/// Whether keys below `key` may be within the lower bound.
pub(super) fn is_above(key: &OwnedKey, from: &Bound<OwnedKey>) -> bool {
    match from {
        Bound::Included(from) | Bound::Excluded(from) => key.as_key().order(&from.as_key()).is_gt(),
        Bound::Unbounded => true,
    }
}
