//! Scans: the order of the slots of one leaf after another, and the entries in it, copied a few at a time.
//!
//! # Consistency
//! A scan notes the order of a leaf's slots with a snapshot of its frame. Each time that it copies entries, it checks the snapshot afterwards; if the
//! leaf has changed, it reads the order of the rest again. So the entries of one copy were in the leaf at one moment, and a scan that is not continued
//! for some time returns what is stored then. Where it continues is kept as a key, which is right however leaves were changed in between.

use crate::error::{Corruption, LeafError};
use crate::node::{
    Bytes, Entry, Frame, OwnedKey, SearchKey, Separator, Snapshot, Verified, entry_offset, held_entry,
    slots_of,
};
use crate::session::Session;
use crate::tree::Tree;
use core::ops::{Bound, Range, RangeInclusive};
use core::sync::atomic::Ordering;
use pm_core::Pmem;
use std::sync::Arc;

/// The most entries that are copied at a time: enough that the loads of their records overlap, and few enough that a scan of some entries does not load
/// many more.
const CHUNK_ENTRIES: usize = 8;
/// The entries that the first copy of a scan takes; each later copy takes twice as many as the one before, up to the most.
const FIRST_CHUNK_ENTRIES: usize = 2;
/// The most bytes that are copied at a time, unless one entry has more.
const CHUNK_BYTES: usize = 16 << 10;
/// The most slots of a node.
const SLOTS: usize = 64;
/// The entries of a leaf before the end of which the next leaf is prefetched, some lines with each copy.
const NEXT_LEAF_ENTRIES: usize = 3 * CHUNK_ENTRIES;
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

/// A scan of a tree, from both ends.
#[derive(Debug)]
pub(crate) struct Scan<'c> {
    /// What neither end has copied; `None` if nothing is left.
    bounds: Option<Bounds>,
    front: End<'c>,
    back: End<'c>,
}

/// The state of one end.
#[derive(Debug)]
struct End<'c> {
    /// The leaf with the next entries.
    leaf: Option<Leaf<'c>>,
    /// The leaf before it, whose right sibling it is.
    left: Option<(&'c Frame, Snapshot)>,
    chunk: Chunk,
    chunk_entries: usize,
    /// The node whose corrupted slots were found last, those that are to be delivered as errors, and all that were found.
    node: u64,
    errors: u64,
    reported: u64,
}

/// The entries of a leaf that are within the bounds and not copied yet.
#[derive(Debug)]
pub(crate) struct Leaf<'c> {
    pub(crate) frame: &'c Frame,
    pub(crate) snapshot: Snapshot,
    /// Slots, in the order of their keys.
    pub(crate) order: [u8; SLOTS],
    pub(crate) rest: Range<usize>,
    /// The separator at the far end: the leaf beyond it is the next one. `None` if there is no leaf.
    pub(crate) edge: Option<OwnedKey>,
    /// The lines of the next leaf that were prefetched.
    prefetched: u64,
}

/// Copied entries, in ascending order.
#[derive(Debug, Default)]
struct Chunk {
    bytes: Arc<Vec<u8>>,
    items: [Item; CHUNK_ENTRIES],
    rest: Range<usize>,
}

/// A copied entry: a word key, or the place of a byte key, and that of the value behind it.
#[derive(Clone, Copy, Debug, Default)]
struct Item {
    head: u64,
    key: u32,
    value: u32,
    end: u32,
}

/// An entry that a scan has copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found<'a> {
    bytes: &'a Arc<Vec<u8>>,
    item: Item,
    key_width: Option<usize>,
}

impl Found<'_> {
    #[inline]
    pub(crate) fn key(&self) -> Bytes {
        match self.key_width {
            Some(width) => Bytes::of_word(self.item.head, width),
            None => Bytes::of_buffer(self.bytes, self.item.key, self.item.value - self.item.key),
        }
    }

    #[inline]
    pub(crate) fn value(&self) -> Bytes {
        Bytes::of_buffer(self.bytes, self.item.value, self.item.end - self.item.value)
    }
}

impl End<'_> {
    fn new() -> Self {
        Self {
            leaf: None,
            left: None,
            chunk: Chunk::default(),
            chunk_entries: FIRST_CHUNK_ENTRIES,
            node: 0,
            errors: 0,
            reported: 0,
        }
    }

    /// The index of the next copied entry.
    #[inline]
    fn pop(&mut self, side: Side) -> Option<usize> {
        match side {
            Side::Front => self.chunk.rest.next(),
            Side::Back => self.chunk.rest.next_back(),
        }
    }

    fn pop_error(&mut self) -> Option<Corruption> {
        let first = self.errors & self.errors.wrapping_neg();
        self.errors ^= first;
        (first != 0).then(|| held_entry(self.node, first))
    }
}

impl<'c> Scan<'c> {
    /// A scan of the entries within the bounds; of nothing if there are none.
    pub(crate) fn new(bounds: Option<Bounds>) -> Self {
        Self { bounds, front: End::new(), back: End::new() }
    }

    /// The next entry at one end, or an error for each corrupted entry of a leaf before the other entries of this leaf.
    #[inline]
    pub(crate) fn next<P: Pmem>(
        &mut self,
        session: &'c Session<P>,
        tree: &Tree,
        side: Side,
    ) -> Option<Result<Found<'_>, LeafError>> {
        let own = match side {
            Side::Front => &mut self.front,
            Side::Back => &mut self.back,
        };
        if let Some(at) = own.pop(side) {
            let Chunk { bytes, items, .. } = match side {
                Side::Front => &self.front.chunk,
                Side::Back => &self.back.chunk,
            };
            return Some(Ok(Found { bytes, item: items[at], key_width: tree.key_width }));
        }
        self.next_chunk(session, tree, side)
    }

    /// [`next`](Self::next) when all entries that this end has copied were delivered.
    #[inline(never)]
    fn next_chunk<P: Pmem>(
        &mut self,
        session: &'c Session<P>,
        tree: &Tree,
        side: Side,
    ) -> Option<Result<Found<'_>, LeafError>> {
        let filled = match self.fill(session, tree, side) {
            Ok(filled) => filled,
            Err(error) => {
                self.bounds = None;
                return Some(Err(error));
            }
        };
        let (own, other) = match side {
            Side::Front => (&mut self.front, &mut self.back),
            Side::Back => (&mut self.back, &mut self.front),
        };
        // What the other end has read and not delivered comes last.
        let end = if filled { own } else { other };
        if let Some(corruption) = end.pop_error() {
            return Some(Err(corruption.into()));
        }
        let at = end.pop(side)?;
        Some(Ok(Found { bytes: &end.chunk.bytes, item: end.chunk.items[at], key_width: tree.key_width }))
    }

    /// Copies entries, or finds corrupted ones. False if the bounds have none.
    fn fill<P: Pmem>(&mut self, session: &'c Session<P>, tree: &Tree, side: Side) -> Result<bool, LeafError> {
        let (own, other) = match side {
            Side::Front => (&mut self.front, &mut self.back),
            Side::Back => (&mut self.back, &mut self.front),
        };
        if own.errors != 0 {
            return Ok(true);
        }
        while let Some(bounds) = &mut self.bounds {
            let Some(leaf) = &mut own.leaf else {
                let (leaf, corrupted) = tree.enter(session, bounds, side, own.left.take())?;
                let node = leaf.frame.node();
                let of_other = if other.node == node { other.reported } else { 0 };
                own.reported = if own.node == node { own.reported } else { 0 };
                own.node = node;
                own.errors = corrupted & !(own.reported | of_other);
                own.reported |= corrupted;
                leaf.prefetch_first(session, side);
                own.leaf = Some(leaf);
                if own.errors != 0 {
                    return Ok(true);
                }
                continue;
            };
            // The order of the other end's rest includes the entries that are copied here.
            if other.leaf.as_ref().is_some_and(|other| core::ptr::eq(other.frame, leaf.frame)) {
                other.leaf = None;
            }
            if !leaf.rest.is_empty() {
                let is_unchanged = leaf.copy(session, tree, side, own.chunk_entries, &mut own.chunk);
                if !is_unchanged {
                    own.leaf = None;
                    continue;
                }
                own.chunk_entries = CHUNK_ENTRIES.min(2 * own.chunk_entries);
            }
            if !leaf.rest.is_empty() {
                let chunk = &own.chunk;
                match side {
                    Side::Front => exclude(&mut bounds.from, chunk, chunk.rest.end - 1, tree.is_word()),
                    Side::Back => exclude(&mut bounds.to, chunk, chunk.rest.start, tree.is_word()),
                }
                return Ok(true);
            }
            match (side, leaf.edge.take()) {
                (Side::Front, Some(high)) if is_below(&high, &bounds.to) => {
                    bounds.from = Bound::Included(high);
                    own.left = Some((leaf.frame, leaf.snapshot));
                }
                (Side::Back, Some(low)) if is_above(&low, &bounds.from) => bounds.to = Bound::Excluded(low),
                _ => self.bounds = None,
            }
            own.leaf = None;
            if !own.chunk.rest.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Makes the key of a copied entry an excluded bound.
fn exclude(bound: &mut Bound<OwnedKey>, chunk: &Chunk, at: usize, is_word: bool) {
    let Item { head, key, value, .. } = chunk.items[at];
    let mut bytes = match core::mem::replace(bound, Bound::Unbounded) {
        Bound::Included(key) | Bound::Excluded(key) => key.bytes,
        Bound::Unbounded => Vec::new(),
    };
    bytes.clear();
    if !is_word {
        bytes.extend_from_slice(&chunk.bytes[key as usize..value as usize]);
    }
    *bound = Bound::Excluded(OwnedKey { head, bytes, is_word });
}

impl Leaf<'_> {
    /// Starts to load the records of the first copy.
    fn prefetch_first<P: Pmem>(&self, session: &Session<P>, side: Side) {
        let pmem = &session.pmem();
        let first = match side {
            Side::Front => self.rest.start..self.rest.end.min(CHUNK_ENTRIES),
            Side::Back => self.rest.end.saturating_sub(CHUNK_ENTRIES)..self.rest.end,
        };
        for at in first {
            let place = entry_offset(self.frame.node(), self.order[at].into());
            Entry::load(pmem, place).0.prefetch_record(pmem);
        }
    }

    /// Copies the next entries, at most `count`. False if the leaf has changed since its order was read: then nothing was copied.
    fn copy<P: Pmem>(
        &mut self,
        session: &Session<P>,
        tree: &Tree,
        side: Side,
        count: usize,
        chunk: &mut Chunk,
    ) -> bool {
        let (pmem, is_word) = (&session.pmem(), tree.is_word());
        let node = self.frame.node();
        let load = |at: usize| Entry::load(pmem, entry_offset(node, self.order[at].into())).0;
        let Range { start, end } = self.rest;
        let taken = count.min(end - start);
        // The records of this copy were prefetched with the copy before.
        let ahead = match side {
            Side::Front => start + taken..end.min(start + taken + CHUNK_ENTRIES),
            Side::Back => start.max((end - taken).saturating_sub(CHUNK_ENTRIES))..end - taken,
        };
        ahead.for_each(|at| load(at).prefetch_record(pmem));

        let mut entries = [None; CHUNK_ENTRIES];
        let (mut total, mut taken_entries) = (0, 0);
        for (index, place) in entries.iter_mut().enumerate().take(taken) {
            let entry = load(if side == Side::Front { start + index } else { end - 1 - index });
            let (key_len, value_len) = entry.body_lens(pmem, is_word);
            if index > 0 && total + key_len + value_len > CHUNK_BYTES {
                break;
            }
            total += key_len + value_len;
            *place = Some((entry, key_len, value_len));
            taken_entries = index + 1;
        }
        let entries = &mut entries[..taken_entries];
        if side == Side::Back {
            entries.reverse();
        }
        chunk.fill(pmem, is_word, entries, total);
        if !self.frame.is_current(self.snapshot) {
            chunk.rest = 0..0;
            return false;
        }
        match side {
            Side::Front => self.rest.start += taken_entries,
            Side::Back => self.rest.end -= taken_entries,
        }
        if side == Side::Front && self.rest.len() < NEXT_LEAF_ENTRIES {
            self.prefetch_next(session);
        }
        true
    }

    /// Starts to load some lines of the next leaf.
    pub(crate) fn prefetch_next<P: Pmem>(&mut self, session: &Session<P>) {
        let lines = session.node_bytes() / 64;
        if let Some(next) = self.frame.next()
            && self.prefetched < lines
        {
            let node = session.space.node_offset(next);
            let end = lines.min(self.prefetched + NEXT_LEAF_LINES);
            (self.prefetched..end).for_each(|line| session.pmem().prefetch_read(node + 64 * line));
            self.prefetched = end;
        }
    }
}

impl Chunk {
    /// Copies entries of which keys and values have `total` bytes.
    fn fill<P: Pmem>(
        &mut self,
        pmem: &P,
        is_word: bool,
        entries: &[Option<(Entry, usize, usize)>],
        total: usize,
    ) {
        if Arc::get_mut(&mut self.bytes).is_none() {
            // Guards share the buffer.
            self.bytes = Arc::default();
        }
        let bytes = Arc::get_mut(&mut self.bytes).expect("the buffer is not shared");
        if bytes.len() < total {
            bytes.resize(total, 0);
        }
        let mut key = 0;
        for (item, (entry, key_len, value_len)) in self.items.iter_mut().zip(entries.iter().flatten()) {
            let (value, end) = (key + key_len, key + key_len + value_len);
            entry.load_body(pmem, is_word, *key_len, &mut bytes[key..end]);
            let place = |at: usize| u32::try_from(at).expect("a copy is shorter than 4 GiB");
            *item = Item { head: entry.key, key: place(key), value: place(value), end: place(end) };
            key = end;
        }
        self.rest = 0..entries.len();
    }
}

impl Tree {
    /// The order of the entries within the bounds in the leaf at one end of them, and the slots of corrupted entries.
    pub(crate) fn enter<'c, P: Pmem>(
        &self,
        session: &'c Session<P>,
        bounds: &Bounds,
        side: Side,
        left: Option<(&'c Frame, Snapshot)>,
    ) -> Result<(Leaf<'c>, u64), LeafError> {
        let pmem = &session.pmem();
        let mut right_of_left = match left.and_then(|(left, snapshot)| Some((left, snapshot, left.next()?))) {
            None => None,
            Some((left, snapshot, next)) => {
                let right = self.leaf(session, next)?;
                let of_right = right.snapshot();
                left.is_current(snapshot).then_some((right, of_right))
            }
        };
        loop {
            let (frame, snapshot) = match (side, right_of_left.take()) {
                (Side::Front, Some(found)) => found,
                (Side::Front, None) => self.locate_first(session, &bounds.from)?,
                (Side::Back, _) => self.locate_last(session, &bounds.to)?,
            };
            let high = frame.right().map(|(_, high)| high.to_key(pmem, self.is_word()));
            // A separator never changes while the node is in use.
            let low = (side == Side::Back && !core::ptr::eq(frame, session.frames.get(self.first)))
                .then(|| Verified::load(pmem, frame.node(), self.id));
            let Some((mut leaf, corrupted)) =
                self.read_order(session, frame, snapshot, bounds, high.as_ref())
            else {
                continue;
            };
            leaf.edge = match side {
                Side::Front => high,
                Side::Back => low.transpose()?.map(|node| node.low().to_key(pmem, self.is_word())),
            };
            return Ok((leaf, corrupted));
        }
    }

    fn locate_first<'c, P: Pmem>(
        &self,
        session: &'c Session<P>,
        from: &Bound<OwnedKey>,
    ) -> Result<(&'c Frame, Snapshot), LeafError> {
        let lowest = OwnedKey { head: 0, bytes: Vec::new(), is_word: self.is_word() };
        match from {
            Bound::Included(key) | Bound::Excluded(key) => self.locate(session, &key.as_key()),
            Bound::Unbounded => self.locate(session, &lowest.as_key()),
        }
    }

    /// The last leaf that can hold keys up to this bound.
    fn locate_last<'c, P: Pmem>(
        &self,
        session: &'c Session<P>,
        to: &Bound<OwnedKey>,
    ) -> Result<(&'c Frame, Snapshot), LeafError> {
        let pmem = &session.pmem();
        let key = match to {
            Bound::Included(key) => return self.locate(session, &key.as_key()),
            Bound::Excluded(key) => Some(key.as_key()),
            Bound::Unbounded => None,
        };
        loop {
            let followed = self.index.find_below(session, key.as_ref())?;
            let is_left = |high: &Separator| key.as_ref().is_none_or(|key| high.is_below(pmem, key));
            if let Some(found) = self.move_right(session, &followed, is_left)? {
                return Ok(found);
            }
        }
    }

    /// The order of the entries of a leaf that are within the bounds and below `high`, and the slots of its corrupted entries. `None` if the leaf has
    /// changed since the snapshot.
    fn read_order<'c, P: Pmem>(
        &self,
        session: &Session<P>,
        frame: &'c Frame,
        snapshot: Snapshot,
        bounds: &Bounds,
        high: Option<&OwnedKey>,
    ) -> Option<(Leaf<'c>, u64)> {
        let pmem = &session.pmem();
        let node = frame.node();
        // The even slots of all lines with a live entry.
        for slot in slots_of((snapshot.live | snapshot.live >> 1) & 0x5555_5555_5555_5555) {
            pmem.prefetch_read(entry_offset(node, slot));
        }
        let mut broken = 0;
        if session.verifies_reads {
            broken = self.broken_entries(session, frame, snapshot, bounds);
            // A change in progress may have stored a part of an entry.
            if broken != 0 && !snapshot.is_settled() && session.check_not_poisoned().is_ok() {
                return None;
            }
        }
        let mut leaf = Leaf { frame, snapshot, order: [0; SLOTS], rest: 0..0, edge: None, prefetched: 0 };
        leaf.rest.end = match self.is_word() {
            true => sort_words(pmem, node, snapshot.live & !broken, &words_of(bounds, high), &mut leaf.order),
            false => sort_bytes(pmem, node, snapshot.live & !broken, bounds, high, &mut leaf.order),
        };
        let held = frame.held.load(Ordering::Relaxed);
        frame.is_current(snapshot).then_some((leaf, held | broken))
    }

    /// The live slots of a leaf whose seal is wrong, and those whose record is wrong and that are, or may be, within the bounds.
    #[cold]
    fn broken_entries<P: Pmem>(
        &self,
        session: &Session<P>,
        frame: &Frame,
        snapshot: Snapshot,
        bounds: &Bounds,
    ) -> u64 {
        let pmem = &session.pmem();
        let words = words_of(bounds, None);
        let is_broken = |slot: &usize| {
            let (entry, seal) = Entry::load(pmem, entry_offset(frame.node(), *slot));
            let may_be_inside = !self.is_word() || words.contains(&entry.key);
            entry.seal(frame.seed()) != seal || may_be_inside && !entry.is_record_intact(pmem, self.is_word())
        };
        slots_of(snapshot.live).filter(is_broken).fold(0, |slots, slot| slots | 1 << slot)
    }
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
pub(crate) fn is_below(key: &OwnedKey, to: &Bound<OwnedKey>) -> bool {
    match to {
        Bound::Included(to) => key.as_key().order(&to.as_key()).is_le(),
        Bound::Excluded(to) => key.as_key().order(&to.as_key()).is_lt(),
        Bound::Unbounded => true,
    }
}

/// Whether keys below `key` may be within the lower bound.
fn is_above(key: &OwnedKey, from: &Bound<OwnedKey>) -> bool {
    match from {
        Bound::Included(from) | Bound::Excluded(from) => key.as_key().order(&from.as_key()).is_gt(),
        Bound::Unbounded => true,
    }
}
