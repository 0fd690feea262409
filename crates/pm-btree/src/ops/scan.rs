//! Scans: the entries of one leaf after another, in the order of their keys, copied a few at a time.
//!
//! # Consistency
//! A scan notes the order of a leaf's slots with a snapshot of its frame. Each time that it copies entries, it checks the snapshot afterwards; if the
//! leaf has changed, it reads the order of the rest again. So the entries of one copy were in the leaf at one moment, and a scan that is not
//! continued for some time returns what is stored then. Where it continues is kept as a key, which is right however leaves were changed in between.

use super::order::{Bounds, Side, SortedLeaf, enter, is_above, is_below};
use crate::error::{Corruption, LeafError};
use crate::node::{Bytes, Entry, FrameId, OwnedKey, Snapshot, entry_offset, held_entry};
use crate::session::Session;
use crate::tree::Tree;
use core::ops::{Bound, Range};
use pm_core::Pmem;
use std::sync::Arc;

/// The most entries that are copied at a time: enough that the loads of their records overlap, and few enough that a scan of some entries does not
/// load many more.
const CHUNK_ENTRIES: usize = 8;
/// The entries that the first copy of a scan takes; each later copy takes twice as many as the one before, up to the most.
const FIRST_CHUNK_ENTRIES: usize = 2;
/// The most bytes that are copied at a time, unless one entry has more.
const CHUNK_BYTES: usize = 16 << 10;
/// The entries of a leaf before the end of which the next leaf is prefetched, some lines with each copy.
const NEXT_LEAF_ENTRIES: usize = 3 * CHUNK_ENTRIES;

/// A scan of a tree, from both ends.
#[derive(Debug)]
pub(crate) struct Scan {
    /// What neither end has copied; `None` if nothing is left.
    bounds: Option<Bounds>,
    front: End,
    back: End,
}

/// The state of one end.
#[derive(Debug)]
struct End {
    /// The leaf with the next entries.
    leaf: Option<SortedLeaf>,
    /// The leaf before it, whose right sibling it is.
    left: Option<(FrameId, Snapshot)>,
    chunk: Chunk,
    chunk_entries: usize,
    /// The node whose corrupted slots were found last, those that are to be delivered as errors, and all that were found.
    node: u64,
    errors: u64,
    reported: u64,
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

impl End {
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

impl Scan {
    /// A scan of the entries within the bounds; of nothing if there are none.
    pub(crate) fn new(bounds: Option<Bounds>) -> Self {
        Self { bounds, front: End::new(), back: End::new() }
    }

    /// Whether leaves are read for the [`next`](Self::next) entry at this end: it has not been copied, and may be outside of what either end has copied.
    #[inline]
    pub(crate) fn reads_next(&self, side: Side) -> bool {
        let own = match side {
            Side::Front => &self.front,
            Side::Back => &self.back,
        };
        own.chunk.rest.is_empty() && self.bounds.is_some()
    }

    /// The next entry at one end, or an error for each corrupted entry of a leaf before the other entries of this leaf.
    #[inline]
    pub(crate) fn next<P: Pmem>(
        &mut self,
        session: &Session<P>,
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
        session: &Session<P>,
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
    fn fill<P: Pmem>(&mut self, session: &Session<P>, tree: &Tree, side: Side) -> Result<bool, LeafError> {
        let (own, other) = match side {
            Side::Front => (&mut self.front, &mut self.back),
            Side::Back => (&mut self.back, &mut self.front),
        };
        if own.errors != 0 {
            return Ok(true);
        }
        while let Some(bounds) = &mut self.bounds {
            let Some(leaf) = &mut own.leaf else {
                let (leaf, corrupted) = enter(session, tree, bounds, side, own.left.take())?;
                let node = leaf.frame(session).node();
                let of_other = if other.node == node { other.reported } else { 0 };
                own.reported = if own.node == node { own.reported } else { 0 };
                own.node = node;
                own.errors = corrupted & !(own.reported | of_other);
                own.reported |= corrupted;
                leaf.prefetch_records(session, side, CHUNK_ENTRIES);
                own.leaf = Some(leaf);
                if own.errors != 0 {
                    return Ok(true);
                }
                continue;
            };
            // The order of the other end's rest includes the entries that are copied here.
            if other.leaf.as_ref().is_some_and(|other| other.id == leaf.id) {
                other.leaf = None;
            }
            if !leaf.rest.is_empty() {
                let is_unchanged = own.chunk.copy(session, tree, (leaf, side), own.chunk_entries);
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
                    own.left = Some((leaf.id, leaf.snapshot));
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

impl Chunk {
    /// Copies the next entries at one end of a leaf, at most `count`. False if the leaf has changed since its order was read: then nothing was
    /// copied.
    fn copy<P: Pmem>(
        &mut self,
        session: &Session<P>,
        tree: &Tree,
        (leaf, side): (&mut SortedLeaf, Side),
        count: usize,
    ) -> bool {
        let (pmem, is_word) = (&session.pmem(), tree.is_word());
        let frame = leaf.frame(session);
        let node = frame.node();
        let load = |at: usize| Entry::load(pmem, entry_offset(node, leaf.order[at].into())).0;
        let Range { start, end } = leaf.rest;
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
        self.fill(pmem, is_word, entries, total);
        if !frame.is_current(leaf.snapshot) {
            self.rest = 0..0;
            return false;
        }
        match side {
            Side::Front => leaf.rest.start += taken_entries,
            Side::Back => leaf.rest.end -= taken_entries,
        }
        if side == Side::Front && leaf.rest.len() < NEXT_LEAF_ENTRIES {
            leaf.prefetch_next(session);
        }
        true
    }

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
