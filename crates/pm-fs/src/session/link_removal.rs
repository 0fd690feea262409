//! What the removal of a name does to the inode that had it.

use crate::error::FsError;
use crate::format::NO_TREE;
use crate::node::dir::DirChange;
use crate::node::inode::{FileKind, offset_of_ino};
use crate::node::tree;
use crate::session::locked::Locked;
use crate::session::orphans;
use crate::session::shared::Shared;
use crate::session::table::{Inner, Life, State};
use crate::volume::Change;
use pm_core::Pmem;
use std::sync::RwLockWriteGuard;

/// The removal of a name from an inode, which the caller has locked: prepared, then stored in a transaction with the directory's change, then
/// finished.
pub(crate) struct LinkRemoval<'s, P: Pmem> {
    shared: &'s Shared<P>,
    state: &'s State,
    left: Left<'s>,
}

/// What is left of an inode without the name.
enum Left<'s> {
    /// It has so many other names.
    Named(u64),
    /// Nothing: the transaction frees it.
    Freed,
    /// It is an orphan, which is added to this list.
    Orphan(RwLockWriteGuard<'s, Inner>),
}

/// The change of the list of orphans, if the inode has become one.
pub(crate) struct RemovedLink(Option<DirChange>);

impl<'s, P: Pmem> LinkRemoval<'s, P> {
    /// Decides what is left of an inode, and locks the list of orphans if it becomes one.
    pub(crate) fn prepare(shared: &'s Shared<P>, state: &'s State) -> Result<Self, FsError> {
        let nlink = state.inode.nlink(&shared.volume)?;
        let left = if state.inode.kind != FileKind::Directory && nlink > 1 {
            Left::Named(nlink - 1)
        } else if is_freed_at_once(shared, state)? {
            Left::Freed
        } else {
            shared.ensure_index(&shared.orphans)?;
            Left::Orphan(shared.orphans.write())
        };
        Ok(Self { shared, state, left })
    }

    /// Takes the name from the inode, in a transaction.
    pub(crate) fn store(&self, change: &mut Change<'_, '_, P>, now: u64) -> Result<RemovedLink, FsError> {
        let inode = &self.state.inode;
        match &self.left {
            Left::Named(nlink) => {
                inode.set_nlink(change, *nlink)?;
                change.set(inode.ctime_at(), now)?;
                Ok(RemovedLink(None))
            }
            Left::Freed => {
                tree::cut(change, inode, 0)?;
                inode.free_xattr(change)?;
                change.free(offset_of_ino(inode.ino))?;
                Ok(RemovedLink(None))
            }
            Left::Orphan(list) => {
                inode.set_nlink(change, 0)?;
                change.set(inode.ctime_at(), now)?;
                let dir = &self.shared.orphans.inode;
                let added = list.entries()?.add(change, dir, &orphans::name_of(inode.ino), inode)?;
                Ok(RemovedLink(Some(added)))
            }
        }
    }

    /// Notes what a transaction has done.
    pub(crate) fn finish(self, locked: &mut Locked<'_>, RemovedLink(orphaned): RemovedLink) {
        match self.left {
            Left::Named(_) => {}
            Left::Freed => {
                locked.get_mut(self.state).life = Life::Freed;
                self.shared.table.forget(self.state);
            }
            Left::Orphan(mut list) => {
                locked.get_mut(self.state).life = Life::Orphan;
                orphaned.into_iter().for_each(|added| list.apply(added));
            }
        }
    }
}

/// Whether an inode whose last name goes can be freed by the same transaction: the caller has its only handle, and it has few pages.
fn is_freed_at_once<P: Pmem>(shared: &Shared<P>, state: &State) -> Result<bool, FsError> {
    let height = state.inode.height(&shared.volume)?;
    Ok(state.has_one_handle() && matches!(height, 0 | NO_TREE))
}
