//! Names: afterwards each inode has as many as it counts, and each directory one.

use super::progress::Repair;
use crate::error::FsError;
use crate::node::dir::{self, DirIndex, Placed};
use crate::node::inode::{FileKind, InodeRef, NewInode, load_identity};
use crate::session::orphans;
use pm_core::Pmem;
use std::collections::{BTreeMap, BTreeSet};

/// The directory for files that have lost their names.
const LOST_AND_FOUND: &[u8] = b"lost+found";

/// The directory for files that have lost their names, with its names.
struct LostAndFound {
    dir: InodeRef,
    names: DirIndex,
}

/// The inodes that a walk has reached, and the number of their names, or of their subdirectories.
#[derive(Default)]
struct Reached {
    names: BTreeMap<u64, u64>,
    directories: BTreeMap<u64, u64>,
}

impl Reached {
    fn has(&self, ino: u64) -> bool {
        self.names.contains_key(&ino) || self.directories.contains_key(&ino)
    }
}

/// Verifies all names.
pub(super) fn verify<P: Pmem>(repair: &mut Repair<'_, P>) -> Result<(), FsError> {
    let mut reached = Reached::default();
    walk(repair, repair.root, repair.root.ino, &mut reached)?;
    let mut lost: Vec<InodeRef> = repair.inodes.values().copied().collect();
    lost.retain(|inode| !reached.has(inode.ino) && inode.ino != repair.orphans.ino);
    let children = children_of(repair, &lost)?;
    let orphans = orphans_left(repair, &reached, &children)?;
    lost.retain(|inode| !orphans.contains(&inode.ino));
    let (dirs, files): (Vec<_>, Vec<_>) =
        lost.into_iter().partition(|inode| inode.kind == FileKind::Directory);
    // Directories that are in none of the others first, and then those of circles.
    let (tops, others): (Vec<_>, Vec<_>) = dirs.into_iter().partition(|dir| !children.contains(&dir.ino));
    let mut lost_and_found = None;
    for inode in tops.into_iter().chain(others).chain(files) {
        if reached.has(inode.ino) {
            continue;
        }
        let place = match &mut lost_and_found {
            Some(place) => place,
            None => lost_and_found.insert(find_lost_and_found(repair, &mut reached)?),
        };
        give_name(repair, inode, place, &mut reached)?;
    }
    for (ino, subdirectories) in &reached.directories {
        set_nlink(repair, *ino, 2 + subdirectories)?;
    }
    for (ino, names) in &reached.names {
        set_nlink(repair, *ino, *names)?;
    }
    Ok(())
}

fn set_nlink<P: Pmem>(repair: &mut Repair<'_, P>, ino: u64, nlink: u64) -> Result<(), FsError> {
    let inode = repair.inodes[&ino];
    if inode.nlink(repair.volume).ok() != Some(nlink) {
        repair.volume.transaction(|change| inode.set_nlink(change, nlink))?;
        repair.note(format!("inode {ino}: its number of links is {nlink}"));
    }
    Ok(())
}

/// Walks through a directory and those below it. Removes names of what is no inode, and second names of directories.
fn walk<P: Pmem>(
    repair: &mut Repair<'_, P>,
    top: InodeRef,
    parent: u64,
    reached: &mut Reached,
) -> Result<(), FsError> {
    let mut left = vec![(top, parent)];
    reached.directories.insert(top.ino, 0);
    while let Some((dir, parent)) = left.pop() {
        set_parent(repair, &dir, parent)?;
        let mut names = BTreeSet::new();
        let mut subdirectories = 0;
        for placed in dir::placed_entries(repair.volume, &dir, 0)? {
            let Some(inode) = inode_of(repair, &dir, &placed, &mut names, reached)? else { continue };
            if inode.kind == FileKind::Directory {
                subdirectories += 1;
                reached.directories.insert(inode.ino, 0);
                left.push((inode, dir.ino));
            } else {
                *reached.names.entry(inode.ino).or_insert(0) += 1;
            }
        }
        reached.directories.insert(dir.ino, subdirectories);
    }
    Ok(())
}

/// The inode of an entry. `None` if there is none that can have this name: then the entry is free now.
fn inode_of<P: Pmem>(
    repair: &mut Repair<'_, P>,
    dir: &InodeRef,
    Placed { entry, place }: &Placed,
    names: &mut BTreeSet<Vec<u8>>,
    reached: &Reached,
) -> Result<Option<InodeRef>, FsError> {
    let is_hidden = [repair.root.ino, repair.orphans.ino].contains(&entry.ino);
    let inode = repair.inodes.get(&entry.ino).copied().filter(|inode| {
        let is_second = inode.kind == FileKind::Directory && reached.directories.contains_key(&inode.ino);
        !is_hidden && !is_second && names.insert(entry.name.clone())
    });
    match inode {
        Some(inode) if inode.kind != entry.kind => {
            repair.volume.transaction(|change| dir::retarget(change, *place, &entry.name, &inode))?;
            repair.note(format!("directory {}: the type of inode {}", dir.ino, inode.ino));
        }
        Some(_) => {}
        None => {
            repair.volume.transaction(|change| dir::free_entry(change, *place))?;
            let name = String::from_utf8_lossy(&entry.name).replace(char::is_control, "?");
            repair.note(format!("directory {}: the name {name} of inode {} was removed", dir.ino, entry.ino));
        }
    }
    Ok(inode)
}

fn set_parent<P: Pmem>(repair: &mut Repair<'_, P>, dir: &InodeRef, parent: u64) -> Result<(), FsError> {
    if load_identity(repair.volume, dir.ino)?.parent != parent {
        repair.volume.transaction(|change| dir.set_parent(change, parent))?;
        repair.note(format!("directory {}: its parent is {parent}", dir.ino));
    }
    Ok(())
}

/// Removes the names of those that are no orphans from the directory of orphans, and returns the others.
fn orphans_left<P: Pmem>(
    repair: &mut Repair<'_, P>,
    reached: &Reached,
    children: &BTreeSet<u64>,
) -> Result<BTreeSet<u64>, FsError> {
    let (volume, dir) = (repair.volume, repair.orphans);
    let mut orphans = BTreeSet::new();
    for Placed { entry, place } in dir::placed_entries(volume, &dir, 0)? {
        let inode = repair.inodes.get(&entry.ino).copied().filter(|inode| {
            let is_right = inode.kind == entry.kind && entry.name == orphans::name_of(inode.ino);
            let has_name = reached.has(inode.ino) || children.contains(&inode.ino);
            is_right && !has_name && inode.nlink(volume).ok() == Some(0)
        });
        let is_right = match inode {
            // A directory is an orphan if it is empty.
            Some(inode) => children_of(repair, &[inode])?.is_empty() && orphans.insert(inode.ino),
            None => false,
        };
        if !is_right {
            volume.transaction(|change| dir::free_entry(change, place))?;
            repair.note(format!("inode {}: is no file without a name", entry.ino));
        }
    }
    set_nlink(repair, dir.ino, 2)?;
    Ok(orphans)
}

/// The inodes that have names in the directories among these inodes.
fn children_of<P: Pmem>(repair: &Repair<'_, P>, inodes: &[InodeRef]) -> Result<BTreeSet<u64>, FsError> {
    let mut children = BTreeSet::new();
    for dir in inodes.iter().filter(|inode| inode.kind == FileKind::Directory) {
        children.extend(dir::entries(repair.volume, dir, 0)?.into_iter().map(|entry| entry.ino));
    }
    Ok(children)
}

/// Gives an inode a name in `lost+found`.
fn give_name<P: Pmem>(
    repair: &mut Repair<'_, P>,
    inode: InodeRef,
    LostAndFound { dir, names }: &mut LostAndFound,
    reached: &mut Reached,
) -> Result<(), FsError> {
    let mut name = format!("#{}", inode.ino).into_bytes();
    // Another file may have been given the name.
    while names.find(repair.volume, &name)?.is_some() {
        name.push(b'+');
    }
    if inode.kind == FileKind::Directory {
        walk(repair, inode, dir.ino, reached)?;
        *reached.directories.entry(dir.ino).or_insert(0) += 1;
    } else {
        reached.names.insert(inode.ino, 1);
    }
    let added = repair.volume.transaction(|change| names.add(change, dir, &name, &inode))?;
    names.apply(added);
    repair.report.found += 1;
    repair.note(format!("inode {}: has a name in lost+found", inode.ino));
    Ok(())
}

/// Finds or makes the directory for files that have lost their names. What it is made of is none of [`Repair::blocks`], which were there before.
fn find_lost_and_found<P: Pmem>(
    repair: &mut Repair<'_, P>,
    reached: &mut Reached,
) -> Result<LostAndFound, FsError> {
    let (volume, root) = (repair.volume, repair.root);
    let names = DirIndex::load(volume, &root)?;
    let mut name = LOST_AND_FOUND.to_vec();
    loop {
        match names.find(volume, &name)? {
            Some(found) if found.kind == FileKind::Directory => {
                let dir = repair.inodes[&found.ino];
                return Ok(LostAndFound { dir, names: DirIndex::load(volume, &dir)? });
            }
            // Another file has the name.
            Some(_) => name.push(b'+'),
            None => break,
        }
    }
    let identity = load_identity(volume, root.ino)?;
    let new = NewInode {
        kind: FileKind::Directory,
        mode: 0o700,
        uid: identity.uid,
        gid: identity.gid,
        rdev: 0,
        parent: root.ino,
        nlink: 2,
    };
    let dir = volume.transaction(|change| {
        let dir = new.create(change, volume.now())?;
        names.add(change, &root, &name, &dir)?;
        Ok(dir)
    })?;
    repair.inodes.insert(dir.ino, dir);
    reached.directories.insert(dir.ino, 0);
    *reached.directories.entry(root.ino).or_insert(0) += 1;
    Ok(LostAndFound { dir, names: DirIndex::default() })
}
