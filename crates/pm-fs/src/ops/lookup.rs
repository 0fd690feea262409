//! Finding names: the inode of a name, and the entries of a directory.

use crate::error::FsError;
use crate::format::NAME_MAX;
use crate::node::dir::{self, Entry, Found, check_name};
use crate::node::inode::{FileKind, load_identity, offset_of_ino};
use crate::session::locked::Locked;
use crate::session::open::Held;
use crate::session::shared::Shared;
use crate::session::table::{Life, State};
use crate::volume::Volume;
use pm_core::Pmem;
use std::sync::Arc;

/// A name in a directory.
#[derive(Clone, Copy)]
pub(crate) struct DirName<'s> {
    pub(crate) dir: &'s State,
    pub(crate) name: &'s [u8],
}

impl DirName<'_> {
    /// Checks that a file may have the name.
    pub(crate) fn check(&self) -> Result<(), FsError> {
        check_name(self.name)
    }
}

/// The inode with a name.
pub(crate) fn lookup<P: Pmem>(shared: &Shared<P>, at: DirName<'_>) -> Result<Arc<State>, FsError> {
    if at.name.len() > NAME_MAX {
        return Err(FsError::NameTooLong);
    }
    shared.ensure_index(at.dir)?;
    let inner = at.dir.read();
    let found = inner.entries()?.find(&shared.volume, at.name)?.ok_or(FsError::NotFound)?;
    shared.open_found(&found)
}

/// As [`lookup`], for the duration of a call.
pub(crate) fn hold<'s, P: Pmem>(shared: &'s Shared<P>, at: DirName<'_>) -> Result<Held<'s, P>, FsError> {
    lookup(shared, at).map(|state| Held::new(shared, state))
}

/// The entry of a name, under the lock of its directory, after the caller has found and locked the inode `child` that had it. `None` if the name is
/// another inode's by now, or no one's: then the caller looks again.
pub(crate) fn find_again<P: Pmem>(
    volume: &Volume<P>,
    locked: &Locked<'_>,
    at: DirName<'_>,
    child: &State,
) -> Result<Option<Found>, FsError> {
    let found = locked.entries(at.dir)?.find(volume, at.name)?;
    let Some(found) = found.filter(|found| found.ino == child.inode.ino) else { return Ok(None) };
    match locked.get(child).life {
        Life::Named => Ok(Some(found)),
        // The number is another inode's by now.
        Life::Freed => Ok(None),
        Life::Orphan | Life::Unnamed => {
            Err(FsError::corrupted(offset_of_ino(child.inode.ino), "the number of links"))
        }
    }
}

/// Checks that a directory has no entries; other inodes have none.
pub(crate) fn check_empty(locked: &Locked<'_>, state: &State) -> Result<(), FsError> {
    let len = locked.get(state).index.as_ref().map_or(0, dir::DirIndex::len);
    if len == 0 { Ok(()) } else { Err(FsError::NotEmpty) }
}

/// The number of the directory that a directory is in.
pub(crate) fn parent_ino<P: Pmem>(shared: &Shared<P>, dir: &State) -> Result<u64, FsError> {
    if dir.inode.kind != FileKind::Directory {
        return Err(FsError::NotADirectory);
    }
    let inner = dir.read();
    if inner.life != Life::Named {
        return Err(FsError::NotFound);
    }
    load_identity(&shared.volume, dir.inode.ino).map(|identity| identity.parent)
}

/// The entries of a directory behind the one with a cookie.
pub(crate) fn entries<P: Pmem>(shared: &Shared<P>, dir: &State, behind: u64) -> Result<Vec<Entry>, FsError> {
    shared.ensure_index(dir)?;
    let inner = dir.read();
    // Fails if it has no name any more.
    inner.entries()?;
    dir::entries(&shared.volume, &dir.inode, behind)
}
