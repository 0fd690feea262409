//! Checking a store, and its statistics.

use crate::error::{Corruption, CorruptionKind, LeafError};
use crate::node::{Entry, FrameLock, SearchKey, Verified, entry_offset, held_entry, slots_of};
use crate::session::Session;
use crate::tree::Tree;
use core::sync::atomic::Ordering;
use pm_alloc::CheckReport as HeapReport;
use pm_core::Pmem;

/// The result of [`Store::check`](crate::Store::check).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// The number of leaves.
    pub leaves: u64,
    /// The number of entries.
    pub entries: u64,
    /// The corruption that was found, each with the name of its table; with an empty name, that of the table of extents.
    pub corruptions: Vec<(String, Corruption)>,
    /// The check of the heap that holds the store.
    pub heap: HeapReport,
}

impl CheckReport {
    /// Whether no corruption was found.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.corruptions.is_empty() && self.heap.corruptions.is_empty()
    }

    pub(crate) fn push(&mut self, table: &str, corruption: Corruption) {
        self.corruptions.push((table.to_owned(), corruption));
    }
}

/// Statistics of [`Store::stats`](crate::Store::stats).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStats {
    /// The length of the pool.
    pub pool_bytes: u64,
    /// The length of all extents.
    pub extent_bytes: u64,
    /// The length of the nodes and records in use.
    pub used_bytes: u64,
    /// The length of the frames and of the index in DRAM.
    pub dram_bytes: u64,
}

/// Verifies all leaves up to one that cannot be read.
pub(crate) fn check_tree<P: Pmem>(
    session: &Session<P>,
    tree: &Tree,
    name: &str,
    report: &mut CheckReport,
) -> Result<(), LeafError> {
    let pmem = &session.pmem();
    let mut id = Some(tree.first);
    while let Some(leaf) = id {
        let frame = tree.leaf(session, leaf)?.lock();
        report.leaves += 1;
        if let Err(corruption) = Verified::load(pmem, frame.node(), tree.id) {
            report.push(name, corruption);
        }
        for slot in slots_of(frame.held.load(Ordering::Relaxed)) {
            report.push(name, held_entry(frame.node(), 1 << slot));
        }
        for slot in zeroed_slots(session, &frame) {
            report.push(name, held_entry(frame.node(), 1 << slot));
        }
        for slot in slots_of(frame.live.load(Ordering::Relaxed)) {
            report.entries += 1;
            let place = entry_offset(frame.node(), slot);
            let (entry, seal) = Entry::load(pmem, place);
            if entry.seal(frame.seed()) != seal {
                report.push(name, Corruption::new(place, CorruptionKind::Entry));
            } else if !entry.is_record_intact(pmem, tree.is_word()) {
                report.push(name, Corruption::new(place, CorruptionKind::Record));
            } else {
                let mut bytes = Vec::new();
                if !tree.is_word() {
                    entry.push_key(pmem, &mut bytes);
                }
                let key =
                    if tree.is_word() { SearchKey::word(entry.key) } else { SearchKey::bytes_key(&bytes) };
                if frame.next().is_some() && frame.high().is_at_or_below(pmem, &key) {
                    report.push(name, Corruption::new(place, CorruptionKind::Entry));
                }
            }
        }
        id = frame.next();
    }
    Ok(())
}

/// The free slots of a leaf that are zero, although their line was used.
fn zeroed_slots<P: Pmem>(session: &Session<P>, leaf: &FrameLock<'_>) -> impl Iterator<Item = usize> {
    let used = (1 << (2 * leaf.used_lines.load(Ordering::Relaxed))) - 1;
    let free = used & session.all_slots() & !leaf.taken();
    slots_of(free)
        .filter(|slot| Entry::load(&session.pmem(), entry_offset(leaf.node(), *slot)).0.commit.0 == 0)
}
