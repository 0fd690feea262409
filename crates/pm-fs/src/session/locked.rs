//! The locks of several inodes, for calls that change more than one.

use crate::error::FsError;
use crate::node::dir::DirIndex;
use crate::node::inode::InodeRef;
use crate::session::table::{Inner, State};
use std::sync::RwLockWriteGuard;

/// The locks of some inodes, taken in ascending order of their numbers and births. Dropping it unlocks them.
pub(crate) struct Locked<'s>(Vec<Lock<'s>>);

/// The lock of an inode.
struct Lock<'s> {
    inode: InodeRef,
    inner: RwLockWriteGuard<'s, Inner>,
}

impl<'s> Locked<'s> {
    /// Locks these inodes, some of which may be the same.
    pub(crate) fn new(states: &[&'s State]) -> Self {
        let mut states = states.to_vec();
        // Two may have the same number, if one was freed since the caller has found it.
        states.sort_unstable_by_key(|state| (state.inode.ino, state.inode.birth));
        states.dedup_by_key(|state| state.inode);
        Self(states.into_iter().map(|state| Lock { inode: state.inode, inner: state.write() }).collect())
    }

    /// What the lock of an inode protects.
    ///
    /// # Panics
    /// When the inode is none of those that were locked.
    pub(crate) fn get(&self, state: &State) -> &Inner {
        let found = self.0.iter().find(|lock| lock.inode == state.inode);
        &found.expect("the inode is locked").inner
    }

    /// As [`get`](Self::get), for a change.
    ///
    /// # Panics
    /// As for [`get`](Self::get).
    pub(crate) fn get_mut(&mut self, state: &State) -> &mut Inner {
        let found = self.0.iter_mut().find(|lock| lock.inode == state.inode);
        &mut found.expect("the inode is locked").inner
    }

    /// The entries of a directory that has a name.
    ///
    /// # Panics
    /// As for [`get`](Self::get).
    pub(crate) fn entries(&self, dir: &State) -> Result<&DirIndex, FsError> {
        self.get(dir).entries()
    }
}
