//! Scans: the entries of one leaf after another, copied and checked.

use crate::core::Core;
use crate::entry::{Entry, entry_offset};
use crate::error::{Corruption, LeafError};
use crate::frame::{Frame, Snapshot};
use crate::index::Fence;
use crate::key::{OwnedKey, SearchKey};
use crate::leaf::{Tree, held_entry, slots_of};
use crate::recover::Verified;
use core::ops::{Bound, Range};
use core::sync::atomic::Ordering;
use pm_core::Pmem;
use std::sync::Arc;

/// The entries of one leaf within the bounds, in ascending order.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// The bytes of all keys and values.
    pub(crate) bytes: Arc<Vec<u8>>,
    pub(crate) items: Vec<Item>,
}

/// The places of a key and of its value in [`Batch::bytes`].
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) key: Range<usize>,
    pub(crate) value: Range<usize>,
}

/// The bounds of a scan that has not ended.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    pub(crate) from: Bound<OwnedKey>,
    pub(crate) to: Bound<OwnedKey>,
}

/// An entry of a leaf with the place of its key among the loaded keys.
struct Loaded {
    entry: Entry,
    key: Range<usize>,
}

impl Tree {
    /// The entries of the first leaf within the bounds. Sets the lower bound to the first key behind that leaf. `None` if nothing is left.
    pub(crate) fn next_batch<P: Pmem>(
        &self,
        core: &Core<P>,
        bounds: &mut Bounds,
    ) -> Result<Option<Batch>, LeafError> {
        loop {
            let start = match &bounds.from {
                Bound::Included(key) | Bound::Excluded(key) => key.clone(),
                Bound::Unbounded => self.lowest(),
            };
            let (frame, snapshot) = self.locate(core, &start.as_key())?;
            let high = frame.next().map(|_| frame.high().to_key(&core.pmem(), self.is_word()));
            let Some(batch) = self.read_leaf(core, frame, snapshot, bounds, high.as_ref())? else { continue };
            let is_last = high.as_ref().is_none_or(|high| !is_below(high, &bounds.to));
            bounds.from = match high {
                Some(high) if !is_last => Bound::Included(high),
                _ => {
                    // An empty range: nothing is left.
                    bounds.to = Bound::Excluded(self.lowest());
                    Bound::Included(self.lowest())
                }
            };
            if !batch.items.is_empty() {
                return Ok(Some(batch));
            }
            if is_last {
                return Ok(None);
            }
        }
    }

    /// The entries of the last leaf within the bounds. Sets the upper bound to the low fence of that leaf. `None` if nothing is left.
    pub(crate) fn next_batch_back<P: Pmem>(
        &self,
        core: &Core<P>,
        bounds: &mut Bounds,
    ) -> Result<Option<Batch>, LeafError> {
        loop {
            let (frame, snapshot) = self.locate_last(core, &bounds.to)?;
            let high = frame.next().map(|_| frame.high().to_key(&core.pmem(), self.is_word()));
            let is_first = core::ptr::eq(frame, core.frames.get(self.first));
            // A fence never changes while the node is in use.
            let low = Verified::load(&core.pmem(), frame.node(), self.id);
            let Some(batch) = self.read_leaf(core, frame, snapshot, bounds, high.as_ref())? else { continue };
            let low = low?.low().to_key(&core.pmem(), self.is_word());
            let is_last = is_first || !is_above(&low, &bounds.from);
            bounds.to = Bound::Excluded(if is_last { self.lowest() } else { low });
            if !batch.items.is_empty() {
                return Ok(Some(batch));
            }
            if is_last {
                return Ok(None);
            }
        }
    }

    fn lowest(&self) -> OwnedKey {
        OwnedKey { head: 0, bytes: Vec::new(), is_word: self.is_word() }
    }

    /// The last leaf that can hold keys up to this bound.
    fn locate_last<'c, P: Pmem>(
        &self,
        core: &'c Core<P>,
        to: &Bound<OwnedKey>,
    ) -> Result<(&'c Frame, Snapshot), LeafError> {
        let pmem = &core.pmem();
        let key = match to {
            Bound::Included(key) => return self.locate(core, &key.as_key()),
            Bound::Excluded(key) => Some(key.as_key()),
            Bound::Unbounded => None,
        };
        loop {
            let followed = self.index.find_below(core, key.as_ref())?;
            let is_left = |high: &Fence| key.as_ref().is_none_or(|key| high.is_below(pmem, key));
            if let Some(found) = self.move_right(core, &followed, is_left)? {
                return Ok(found);
            }
        }
    }

    /// Copies the entries of a leaf that are within the bounds and below `high`. `None` if the leaf has changed since the snapshot.
    fn read_leaf<P: Pmem>(
        &self,
        core: &Core<P>,
        frame: &Frame,
        snapshot: Snapshot,
        bounds: &Bounds,
        high: Option<&OwnedKey>,
    ) -> Result<Option<Batch>, Corruption> {
        let pmem = &core.pmem();
        let node = frame.node();
        for slot in slots_of(snapshot.live).filter(|slot| slot.is_multiple_of(2)) {
            pmem.prefetch_read(entry_offset(node, slot));
        }
        let mut keys = Vec::new();
        let mut loaded: Vec<Loaded> = Vec::with_capacity(snapshot.live.count_ones() as usize);
        let mut broken = None;
        for slot in slots_of(snapshot.live) {
            let (entry, seal) = Entry::load(pmem, entry_offset(node, slot));
            let start = keys.len();
            if !self.is_word() {
                entry.push_key(pmem, &mut keys);
            }
            if core.verifies_reads
                && (entry.seal(frame.seed()) != seal || !entry.is_record_intact(pmem, self.is_word()))
            {
                broken = Some(held_entry(node, 1 << slot));
            }
            let item = Loaded { entry, key: start..keys.len() };
            let key = self.search_key(&item.entry, &keys[item.key.clone()]);
            if is_inside(&key, bounds) && high.is_none_or(|high| key.order(&high.as_key()).is_lt()) {
                entry.prefetch_record(pmem);
                loaded.push(item);
            }
        }
        match self.is_word() {
            true => loaded.sort_unstable_by_key(|item| item.entry.key),
            false => loaded.sort_unstable_by(|a, b| keys[a.key.clone()].cmp(&keys[b.key.clone()])),
        }
        let batch = self.copy(core, &loaded, &keys);
        let held = frame.held.load(Ordering::Relaxed);
        if !frame.is_current(snapshot) {
            return Ok(None);
        }
        if held != 0 {
            return Err(held_entry(node, held));
        }
        broken.map_or(Ok(Some(batch)), Err)
    }

    /// Copies keys and values into a batch.
    fn copy<P: Pmem>(&self, core: &Core<P>, loaded: &[Loaded], keys: &[u8]) -> Batch {
        let pmem = &core.pmem();
        let lens = loaded.iter().map(|item| item.entry.record().map_or(8, |record| record.len.min(4096)));
        let mut bytes =
            Vec::with_capacity(usize::try_from(lens.sum::<u64>()).unwrap_or_default() + 8 * loaded.len());
        let mut items = Vec::with_capacity(loaded.len());
        for Loaded { entry, key } in loaded {
            let start = bytes.len();
            match self.key_width {
                Some(width) => bytes.extend_from_slice(&entry.key.to_be_bytes()[..width]),
                None => bytes.extend_from_slice(&keys[key.clone()]),
            }
            let middle = bytes.len();
            entry.push_value(pmem, self.is_word(), &mut bytes);
            items.push(Item { key: start..middle, value: middle..bytes.len() });
        }
        Batch { bytes: Arc::new(bytes), items }
    }

    fn search_key<'k>(&self, entry: &Entry, bytes: &'k [u8]) -> SearchKey<'k> {
        if self.is_word() { SearchKey::word(entry.key) } else { SearchKey::unhashed(bytes) }
    }
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
fn is_below(key: &OwnedKey, to: &Bound<OwnedKey>) -> bool {
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
