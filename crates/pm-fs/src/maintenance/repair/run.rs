//! The steps of a repair.

use crate::error::FsError;
use crate::format::{ROOT, Superblock};
use crate::maintenance::check::CheckReport;
use crate::node::inode::InodeRef;
use crate::session::recovery;
use crate::session::shared::Shared;
use crate::volume::Volume;
use crate::volume::pages::PageMap;
use pm_core::Pmem;
use std::collections::{BTreeMap, BTreeSet};

/// What a repair has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairReport {
    /// What was changed, a line each.
    pub repaired: Vec<String>,
    /// The files that had lost their names, and have one in `lost+found` now.
    pub found: u64,
    /// What a check finds afterwards.
    pub left: CheckReport,
}

/// A repair in progress.
pub(super) struct Repair<'v, P: Pmem> {
    pub(super) volume: &'v Volume<P>,
    pub(super) root: InodeRef,
    pub(super) orphans: InodeRef,
    pub(super) report: RepairReport,
    /// All blocks of the heap.
    pub(super) blocks: BTreeSet<u64>,
    /// Those that are in use.
    pub(super) used: BTreeSet<u64>,
    /// The pages that are in use.
    pub(super) map: PageMap,
    /// The inodes that are whole, by their numbers.
    pub(super) inodes: BTreeMap<u64, InodeRef>,
}

/// The most blocks that one transaction frees.
const FREED_MAX: usize = 32;

/// Repairs a file system that nothing else uses.
///
/// # Durability
/// Durable when this returns; a crash before that leaves a part of the repairs done.
pub(crate) fn repair<P: Pmem>(shared: &mut Shared<P>) -> Result<RepairReport, FsError> {
    let repaired = repair_all(shared);
    // Also after an error: a part may have changed.
    shared.forget_preparation();
    let mut report = repaired?;
    report.left = crate::maintenance::check::check(shared);
    Ok(report)
}

fn repair_all<P: Pmem>(shared: &Shared<P>) -> Result<RepairReport, FsError> {
    let volume = &shared.volume;
    let mut repair = Repair {
        volume,
        root: shared.root.inode,
        orphans: shared.orphans.inode,
        report: RepairReport::default(),
        blocks: volume.heap.blocks().into_iter().collect(),
        used: BTreeSet::new(),
        map: volume.pages.empty_map(),
        inodes: BTreeMap::new(),
    };
    repair.forget_saved(shared.saved_at())?;
    repair.contents()?;
    volume.pages.set_map(repair.map.clone());
    repair.names()?;
    repair.free_unused()?;
    Ok(repair.report)
}

impl<P: Pmem> Repair<'_, P> {
    pub(super) fn note(&mut self, repaired: impl Into<String>) {
        self.report.repaired.push(repaired.into());
    }

    /// Forgets what the last close has saved: it is found again.
    fn forget_saved(&mut self, saved_at: u64) -> Result<(), FsError> {
        let superblock = self.volume.heap.view(|view| {
            let root = view.root::<Superblock>(ROOT)?;
            Ok::<_, FsError>(root.map(|link| link.offset()))
        })?;
        self.used.extend(superblock);
        self.used.insert(saved_at);
        let saved =
            recovery::load_saved(self.volume, saved_at)?.filter(|saved| self.blocks.remove(&saved.map));
        recovery::forget(self.volume, saved_at, saved)
    }

    /// Frees the blocks that nothing uses.
    fn free_unused(&mut self) -> Result<(), FsError> {
        let unused: Vec<u64> = self.blocks.difference(&self.used).copied().collect();
        for blocks in unused.chunks(FREED_MAX) {
            self.volume.transaction(|change| blocks.iter().try_for_each(|block| change.free(*block)))?;
        }
        if !unused.is_empty() {
            self.note(format!("{} blocks that nothing uses are free", unused.len()));
        }
        Ok(())
    }
}
