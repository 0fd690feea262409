//! A repair in progress: what it has found and done so far.

use crate::maintenance::check::CheckReport;
use crate::node::inode::InodeRef;
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

impl<'v, P: Pmem> Repair<'v, P> {
    pub(super) fn new(shared: &'v Shared<P>, blocks: Vec<u64>) -> Self {
        let volume = &shared.volume;
        Self {
            volume,
            root: shared.root.inode,
            orphans: shared.orphans.inode,
            report: RepairReport::default(),
            blocks: blocks.into_iter().collect(),
            used: BTreeSet::new(),
            map: volume.pages.empty_map(),
            inodes: BTreeMap::new(),
        }
    }

    /// Adds a line to the report.
    pub(super) fn note(&mut self, repaired: impl Into<String>) {
        self.report.repaired.push(repaired.into());
    }
}
