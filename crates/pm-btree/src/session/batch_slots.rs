//! Batch slots: words of the store that say which batches are committed.
//!
//! An entry of a batch names a slot and has an epoch of its own. It counts if the slot's word has that epoch or a later one. A session uses eight of
//! the 64 slots, which its number decides, so that nothing relies on the words that it overwrites but entries of earlier batches that are committed:
//!
//! * A batch that fails before its word is stored, fails by a fence. That poisons the store, so the session commits no later batch in that slot.
//! * Entries that a killed session has not committed are emptied, or turned back, when the frame of their leaf is filled. A session that uses the same slots again
//!   begins at least eight opens later, and before its first batch the sweep, in `maintenance/sweep.rs`, must end that has filled all frames. Frames
//!   are filled with the words that the open has found, and not with later ones.

use crate::error::{Corruption, CorruptionKind};
use crate::format::{BATCH_SLOTS, StoreBlock, checked, unchecked};
use crate::node::{Commit, RecordRef};
use core::mem::offset_of;
use pm_core::Pmem;
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, PoisonError};

/// The number of slots that a session uses.
pub(crate) const SLOTS_PER_SESSION: u64 = 8;

/// The batch slots of an open store.
#[derive(Debug)]
pub(crate) struct BatchSlots {
    /// The offset of the first slot.
    start: u64,
    /// The words that the session has found; `None` for a corrupted one.
    found: Vec<Option<u64>>,
    /// The slots of this session that are in use, as a bitmap.
    busy: Mutex<u8>,
    released: Condvar,
    /// The records of entries that the last batch has replaced, by the node: they are released when the commit words of the entries are durably 0.
    replaced: Mutex<HashMap<u64, Vec<RecordRef>>>,
}

impl BatchSlots {
    /// Loads and flushes the words: a killed process may have stored a word without fencing it. The caller fences before a word is relied on.
    pub(crate) fn open<P: Pmem>(pmem: &P, block: u64) -> Self {
        let start = block + offset_of!(StoreBlock<'_>, batches) as u64;
        pmem.flush(start, BATCH_SLOTS * 64);
        let word = |number: u64| {
            let place = start + number * 64;
            unchecked(pmem.load_u64(place), place)
        };
        Self {
            start,
            found: (0..BATCH_SLOTS).map(word).collect(),
            busy: Mutex::new(0),
            released: Condvar::new(),
            replaced: Mutex::default(),
        }
    }

    /// Checks that no word is corrupted. After a clean close no entry relies on one.
    pub(crate) fn check(&self) -> Result<(), Corruption> {
        match self.found.iter().position(Option::is_none) {
            None => Ok(()),
            Some(number) => Err(Corruption::new(self.start + number as u64 * 64, CorruptionKind::State)),
        }
    }

    /// Whether an entry of an earlier session counts. `durable_epoch`: entries of earlier epochs do.
    pub(crate) fn is_committed(&self, commit: Commit, durable_epoch: u64) -> bool {
        let stamp = commit.stamp();
        let is_batch = commit.kind().is_some_and(|kind| kind.is_batch());
        let committed = || self.found.get(usize::from(stamp.order)).copied().flatten();
        !is_batch || stamp.epoch < durable_epoch || committed().is_some_and(|epoch| stamp.epoch <= epoch)
    }

    /// Waits for one of eight slots, of which `first` is the first.
    pub(crate) fn acquire(&self, first: u64) -> BatchSlot<'_> {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        while *busy == u8::MAX {
            busy = self.released.wait(busy).unwrap_or_else(PoisonError::into_inner);
        }
        let index = u64::from(busy.trailing_ones());
        *busy |= 1 << index;
        BatchSlot { slots: self, index, number: first + index }
    }

    /// Notes the records of entries of a node that a batch has replaced.
    pub(crate) fn put_replaced(&self, node: u64, records: Vec<RecordRef>) {
        self.replaced.lock().unwrap_or_else(PoisonError::into_inner).insert(node, records);
    }

    /// The records that are noted for a node.
    pub(crate) fn replaced(&self, node: u64) -> Vec<RecordRef> {
        let replaced = self.replaced.lock().unwrap_or_else(PoisonError::into_inner);
        replaced.get(&node).cloned().unwrap_or_default()
    }

    /// Takes the records that were noted for a node.
    pub(crate) fn take_replaced(&self, node: u64) -> Vec<RecordRef> {
        self.replaced.lock().unwrap_or_else(PoisonError::into_inner).remove(&node).unwrap_or_default()
    }
}

/// A slot in use, released on drop.
#[derive(Debug)]
pub(crate) struct BatchSlot<'s> {
    slots: &'s BatchSlots,
    index: u64,
    number: u64,
}

impl BatchSlot<'_> {
    /// The number of the slot in the store.
    #[expect(clippy::cast_possible_truncation, reason = "below 64")]
    pub(crate) const fn number(&self) -> u16 {
        self.number as u16
    }

    /// Stores and flushes the epoch of a batch whose entries are durable. The fence of the caller commits it.
    pub(crate) fn store<P: Pmem>(&self, pmem: &P, epoch: u64) {
        let place = self.slots.start + self.number * 64;
        pmem.store_u64(place, checked(epoch, place));
        pmem.flush(place, 8);
    }
}

impl Drop for BatchSlot<'_> {
    fn drop(&mut self) {
        *self.slots.busy.lock().unwrap_or_else(PoisonError::into_inner) &= !(1 << self.index);
        self.slots.released.notify_one();
    }
}
