//! Checks that every block and every page of a file system is accounted for exactly once.

use crate::error::{Corruption, FsError};
use crate::format::{INLINE_LINK_MAX, SlotKind};
use crate::node::dir::{self, DirIndex, Entry};
use crate::node::inode::{FileKind, InodeRef, load_identity, offset_of_ino};
use crate::node::slot::Slot;
use crate::node::{attribute_block, symlink, walk};
use crate::session::shared::Shared;
use crate::volume::Volume;
use pm_core::Pmem;
use std::collections::{BTreeMap, BTreeSet};

/// What a check has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckReport {
    /// The inodes that have a name, the root among them.
    pub inodes: u64,
    /// The pages in files.
    pub pages: u64,
    /// What is wrong.
    pub problems: Vec<String>,
}

/// A check in progress.
struct Checker<'s, P: Pmem> {
    shared: &'s Shared<P>,
    report: CheckReport,
    blocks: BTreeSet<u64>,
    pages: BTreeSet<u64>,
    /// The names of each inode that is no directory.
    names: BTreeMap<u64, u64>,
    /// The directories that were found: a corrupted one may be below itself.
    directories: BTreeSet<u64>,
    /// Those that were not checked yet.
    left: Vec<Subdirectory>,
}

/// A directory, and the number of the one that names it.
struct Subdirectory {
    dir: InodeRef,
    parent: u64,
}

/// Walks through all directories, and compares what is in use with the heap's blocks and the map of pages. Call this while nothing changes.
pub(crate) fn check<P: Pmem>(shared: &Shared<P>) -> CheckReport {
    let (blocks, pages) = (BTreeSet::new(), BTreeSet::new());
    let report = CheckReport::default();
    let (root, orphans) = (shared.root.inode, shared.orphans.inode);
    let mut checker = Checker {
        shared,
        report,
        blocks,
        pages,
        names: BTreeMap::new(),
        directories: BTreeSet::from([root.ino, orphans.ino]),
        left: vec![Subdirectory { dir: root, parent: root.ino }],
    };
    checker.attempt("preparing", shared.prepare());
    // Not by recursion: a tree may be deeper than the stack.
    while let Some(Subdirectory { dir, parent }) = checker.left.pop() {
        checker.directory(&dir, parent);
    }
    checker.directory_of_orphans();
    checker.compare();
    checker.report
}

/// Collects the slots of a file that are no holes, up to the first that is corrupted.
fn slots_of<P: Pmem>(volume: &Volume<P>, inode: &InodeRef, slots: &mut Vec<Slot>) -> Result<(), FsError> {
    for visited in walk::walk(volume, inode)? {
        slots.push(visited?.slot);
    }
    Ok(())
}

/// The entries of a directory, after checks that none is there twice.
fn entries<P: Pmem>(volume: &Volume<P>, dir: &InodeRef) -> Result<Vec<Entry>, FsError> {
    DirIndex::load(volume, dir)?;
    dir::entries(volume, dir, 0)
}

impl<P: Pmem> Checker<'_, P> {
    fn problem(&mut self, problem: impl Into<String>) {
        self.report.problems.push(problem.into());
    }

    /// Notes a failed step as a problem.
    fn attempt<T>(&mut self, what: &str, result: Result<T, FsError>) -> Option<T> {
        match result {
            Ok(found) => Some(found),
            Err(FsError::Corrupted(Corruption { offset, what: part })) => {
                self.problem(format!("{what}: {part} at offset {offset} is corrupted"));
                None
            }
            Err(error) => {
                self.problem(format!("{what}: {error}"));
                None
            }
        }
    }

    fn block(&mut self, offset: u64, what: &str) {
        if !self.blocks.insert(offset) {
            self.problem(format!("{what}: the block at {offset} is in use twice"));
        }
    }

    /// An inode with its file index.
    fn inode(&mut self, inode: &InodeRef) {
        let name = format!("inode {}", inode.ino);
        self.block(offset_of_ino(inode.ino), &name);
        let mut slots = Vec::new();
        let volume = &self.shared.volume;
        self.attempt(&name, inode.size(volume));
        if inode.kind == FileKind::Symlink {
            self.attempt(&name, symlink::read(volume, inode));
        }
        let visited = match inode.kind {
            FileKind::Symlink if inode.size(volume).is_ok_and(|size| size <= INLINE_LINK_MAX as u64) => {
                Ok(())
            }
            _ => slots_of(volume, inode, &mut slots),
        };
        self.attempt(&name, visited);
        let xattr = self.attempt(&name, inode.xattr(volume)).flatten();
        if let Some(offset) = xattr {
            self.attempt(&name, attribute_block::load(volume, inode));
            self.block(offset, &name);
        }
        for slot in slots {
            let is_dir = inode.kind == FileKind::Directory;
            match slot.kind {
                SlotKind::DirBlock if !is_dir => self.problem(format!("{name}: has a directory block")),
                SlotKind::Page | SlotKind::HugePage if is_dir => {
                    self.problem(format!("{name}: has a page"));
                }
                SlotKind::Page | SlotKind::HugePage => {
                    for page in slot.pages() {
                        if !self.pages.insert(page) {
                            self.problem(format!("{name}: page {page} is in use twice"));
                        }
                    }
                }
                SlotKind::Node | SlotKind::DirBlock => self.block(slot.offset(), &name),
            }
        }
    }

    fn directory(&mut self, dir: &InodeRef, parent: u64) {
        self.report.inodes += 1;
        self.inode(dir);
        let volume = &self.shared.volume;
        let name = format!("directory {}", dir.ino);
        let identity = load_identity(volume, dir.ino);
        if let Some(identity) = self.attempt(&name, identity)
            && identity.parent != parent
        {
            self.problem(format!("{name}: its parent is {} and not {parent}", identity.parent));
        }
        let Some(entries) = self.attempt(&name, entries(volume, dir)) else { return };
        let mut subdirectories = 0;
        for found in entries {
            let inode = InodeRef::find(volume, found.ino);
            let Some(inode) = self.attempt(&name, inode) else { continue };
            if inode.kind != found.kind {
                self.problem(format!("{name}: the type of inode {}", inode.ino));
            } else if inode.kind == FileKind::Directory {
                subdirectories += 1;
                match self.directories.insert(inode.ino) {
                    true => self.left.push(Subdirectory { dir: inode, parent: dir.ino }),
                    false => self.problem(format!("{name}: directory {} has another name", inode.ino)),
                }
            } else {
                let names = self.names.entry(inode.ino).or_insert(0);
                *names += 1;
                if *names == 1 {
                    self.report.inodes += 1;
                    self.inode(&inode);
                }
            }
        }
        if let Some(nlink) = self.attempt(&name, dir.nlink(volume))
            && nlink != 2 + subdirectories
        {
            self.problem(format!("{name}: {nlink} links, and {subdirectories} subdirectories"));
        }
    }

    fn directory_of_orphans(&mut self) {
        let (volume, dir) = (&self.shared.volume, self.shared.orphans.inode);
        self.inode(&dir);
        let Some(entries) = self.attempt("orphans", entries(volume, &dir)) else { return };
        for found in entries {
            let inode = InodeRef::find(volume, found.ino);
            let Some(inode) = self.attempt("orphans", inode) else { continue };
            self.inode(&inode);
            if inode.nlink(volume).ok() != Some(0) || self.names.contains_key(&inode.ino) {
                self.problem(format!("orphan {} has a name", inode.ino));
            }
        }
    }

    fn compare(&mut self) {
        let volume = &self.shared.volume;
        for (ino, names) in core::mem::take(&mut self.names) {
            let nlink = InodeRef::find(volume, ino).and_then(|inode| inode.nlink(volume));
            if nlink.as_ref().ok() != Some(&names) {
                self.problem(format!("inode {ino}: {nlink:?} links, and {names} names"));
            }
        }
        let heap: BTreeSet<u64> = volume.heap.blocks().into_iter().collect();
        let superblock = volume.heap.view(|view| {
            view.root::<crate::format::Superblock>(crate::format::ROOT)
                .ok()
                .flatten()
                .map(|link| link.offset())
        });
        superblock.into_iter().for_each(|block| self.block(block, "the superblock"));
        self.block(self.shared.saved_at(), "what a close saves");
        for block in heap.symmetric_difference(&self.blocks.clone()) {
            let how = if heap.contains(block) { "leaked" } else { "not allocated" };
            self.problem(format!("the block at {block} is {how}"));
        }
        for page in self.pages.clone() {
            if !volume.pages.contains(page) || !volume.pages.is_used(page) {
                self.problem(format!("page {page} is in a file and free"));
            }
        }
        self.report.pages = self.pages.len() as u64;
        let used = volume.pages.count() - volume.pages.free_count();
        if used != self.report.pages {
            self.problem(format!("{used} pages are in use, and {} in files", self.report.pages));
        }
        let heap = volume.heap.check();
        if !heap.is_clean() {
            self.problem(format!("the heap: {:?}", heap.corruptions));
        }
    }
}
