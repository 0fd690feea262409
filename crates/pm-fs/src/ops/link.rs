//! Gives inodes further names.

use crate::error::FsError;
use crate::node::dir::{DirChange, DirIndex};
use crate::node::inode::FileKind;
use crate::ops::lookup::DirName;
use crate::session::locked::Locked;
use crate::session::orphans;
use crate::session::shared::Shared;
use crate::session::table::{Life, State};
use pm_core::Pmem;

/// The most names of an inode.
const LINKS_MAX: u64 = 65_000;

/// What a transaction has done to the directory, and to the list of inodes without a name.
struct Linked {
    added: DirChange,
    unlisted: Option<DirChange>,
}

/// Gives an inode another name, or its first one.
///
/// # Durability
/// Durable when this returns, with the commit of one `Heap::transaction`; a crash before that leaves the name or not. One fence; two if the directory
/// gets a block.
pub(crate) fn link<P: Pmem>(shared: &Shared<P>, state: &State, at: DirName<'_>) -> Result<(), FsError> {
    at.check()?;
    if state.inode.kind == FileKind::Directory {
        return Err(FsError::NotPermitted);
    }
    let volume = shared.prepared()?;
    let dir = at.dir;
    shared.ensure_index(dir)?;
    let mut locked = Locked::new(&[state, dir]);
    let is_first = match locked.get(state).life {
        Life::Named => false,
        Life::Unnamed => true,
        Life::Orphan | Life::Freed => return Err(FsError::NotFound),
    };
    let entries = locked.entries(dir)?;
    if entries.find(volume, at.name)?.is_some() {
        return Err(FsError::Exists);
    }
    let nlink = state.inode.nlink(volume)?;
    if nlink >= LINKS_MAX {
        return Err(FsError::TooManyLinks);
    }
    let mut list = match is_first {
        true => {
            shared.ensure_index(&shared.orphans)?;
            Some(shared.orphans.write())
        }
        false => None,
    };
    let old_name = match &list {
        Some(list) => list.entries()?.find(volume, &orphans::name_of(state.inode.ino))?,
        None => None,
    };
    let now = volume.now();
    let Linked { added, unlisted } = volume.transaction(|change| {
        state.inode.set_nlink(change, nlink + 1)?;
        change.set(state.inode.ctime_at(), now)?;
        dir.inode.touch(change, now)?;
        let unlisted = old_name.map(|found| DirIndex::remove(change, found)).transpose()?;
        let added = entries.add(change, &dir.inode, at.name, &state.inode)?;
        Ok(Linked { added, unlisted })
    })?;
    locked.get_mut(dir).apply(added);
    locked.get_mut(state).life = Life::Named;
    if let (Some(list), Some(unlisted)) = (&mut list, unlisted) {
        list.apply(unlisted);
    }
    Ok(())
}
