//! The steps of a repair.

use super::progress::{Repair, RepairReport};
use super::{contents, names};
use crate::error::FsError;
use crate::format::{ROOT, Superblock};
use crate::maintenance::check;
use crate::session::recovery;
use crate::session::shared::Shared;
use pm_core::Pmem;

/// The most blocks that one transaction frees.
const FREED_MAX: usize = 32;

/// Repairs a file system that nothing else uses.
///
/// # Durability
/// Durable when this returns, with the commit of the last `Heap::transaction`; a crash before that leaves a part of the repairs done.
pub(crate) fn repair<P: Pmem>(shared: &mut Shared<P>) -> Result<RepairReport, FsError> {
    let blocks = blocks(shared)?;
    let repaired = repair_all(shared, blocks);
    // Also after an error: a part may have changed.
    shared.forget_preparation();
    let mut report = repaired?;
    report.left = check::check(shared);
    Ok(report)
}

/// All blocks of the heap, if they are known: what a repair does not know of it would remove or free, although it is in use.
pub(crate) fn blocks<P: Pmem>(shared: &Shared<P>) -> Result<Vec<u64>, FsError> {
    match recovery::blocks(&shared.volume) {
        Err(FsError::Corrupted(corruption)) => Err(FsError::NoRepair(corruption)),
        blocks => blocks,
    }
}

fn repair_all<P: Pmem>(shared: &Shared<P>, blocks: Vec<u64>) -> Result<RepairReport, FsError> {
    let mut repair = Repair::new(shared, blocks);
    forget_saved(&mut repair, shared.saved_at())?;
    contents::verify(&mut repair)?;
    shared.volume.pages.set_map(repair.map.clone());
    names::verify(&mut repair)?;
    free_unused(&mut repair)?;
    Ok(repair.report)
}

/// Forgets what the last close has saved: it is found again.
fn forget_saved<P: Pmem>(repair: &mut Repair<'_, P>, saved_at: u64) -> Result<(), FsError> {
    let superblock = repair.volume.heap.view(|view| {
        let root = view.root::<Superblock>(ROOT)?;
        Ok::<_, FsError>(root.map(|link| link.offset()))
    })?;
    repair.used.extend(superblock);
    repair.used.insert(saved_at);
    let saved =
        recovery::load_saved(repair.volume, saved_at)?.filter(|saved| repair.blocks.remove(&saved.map));
    recovery::forget(repair.volume, saved_at, saved)
}

/// Frees the blocks that nothing uses.
fn free_unused<P: Pmem>(repair: &mut Repair<'_, P>) -> Result<(), FsError> {
    let unused: Vec<u64> = repair.blocks.difference(&repair.used).copied().collect();
    for blocks in unused.chunks(FREED_MAX) {
        repair.volume.transaction(|change| blocks.iter().try_for_each(|block| change.free(*block)))?;
    }
    if !unused.is_empty() {
        repair.note(format!("{} blocks that nothing uses are free", unused.len()));
    }
    Ok(())
}
