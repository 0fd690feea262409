//! The inodes in use: their locks, and what is kept of them in DRAM.

use crate::error::FsError;
use crate::node::dir::{DirChange, DirIndex};
use crate::node::inode::{FileKind, InodeRef};
use crate::volume::seal::Owner;
use core::sync::atomic::{AtomicU64, Ordering};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// An inode in use.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) inode: InodeRef,
    /// The handles to it.
    handles: AtomicU64,
    inner: RwLock<Inner>,
}

/// What the lock of an inode protects, besides the inode itself.
#[derive(Debug, Default)]
pub(crate) struct Inner {
    /// The entries of a directory, once they are needed.
    pub(crate) index: Option<DirIndex>,
    pub(crate) life: Life,
    /// The maps of a file: as long as there are any, its pages stay where they are.
    pub(crate) maps: u64,
}

/// Whether an inode has a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Life {
    #[default]
    Named,
    /// It has no name yet; the first link gives it one. Its block is freed with its last handle.
    Unnamed,
    /// Its block is freed with its last handle.
    Orphan,
    /// Its block is free.
    Freed,
}

impl Inner {
    /// The entries of a directory that has a name, and whose index was made.
    pub(crate) fn entries(&self) -> Result<&DirIndex, FsError> {
        self.index.as_ref().filter(|_| self.life == Life::Named).ok_or(FsError::NotFound)
    }

    /// Does to a directory's index what a transaction has done.
    pub(crate) fn apply(&mut self, change: DirChange) {
        if let Some(index) = &mut self.index {
            index.apply(change);
        }
    }
}

impl State {
    /// A panic under the lock leaves the inode as the last durable transaction has left it.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`read`](Self::read).
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`write`](Self::write), if the inode still exists.
    pub(crate) fn write_existing(&self) -> Result<RwLockWriteGuard<'_, Inner>, FsError> {
        let inner = self.write();
        if inner.life == Life::Freed { Err(FsError::NotFound) } else { Ok(inner) }
    }

    /// Whether this handle, of the caller, is the only one.
    pub(crate) fn has_one_handle(&self) -> bool {
        self.handles.load(Ordering::Acquire) == 1
    }
}

/// All inodes in use.
#[derive(Debug, Default)]
pub(crate) struct Table {
    states: Mutex<FxHashMap<u64, Arc<State>>>,
}

/// The lock of the table. As long as it is held, an inode that is not in use does not change.
pub(crate) struct InUse<'t> {
    states: MutexGuard<'t, FxHashMap<u64, Arc<State>>>,
}

impl InUse<'_> {
    /// The inode with this number and birth, if it is in use.
    pub(crate) fn find(&self, inode: Owner) -> Option<InodeRef> {
        let found = self.states.get(&inode.ino).map(|state| state.inode);
        found.filter(|found| found.birth == inode.birth)
    }

    /// A handle to an inode. The caller has the lock of a directory that names it, or another handle.
    pub(crate) fn open(&mut self, inode: InodeRef) -> Arc<State> {
        let new = || Arc::new(State { inode, handles: AtomicU64::new(0), inner: RwLock::default() });
        let state = self.states.entry(inode.ino).or_insert_with(new);
        if state.inode != inode {
            // That of an inode whose block is free, and is this one's now, before the thread that freed it has forgotten it.
            *state = new();
        }
        state.handles.fetch_add(1, Ordering::AcqRel);
        Arc::clone(state)
    }

    /// Removes a state, unless the number is another inode's by now.
    fn forget(&mut self, state: &State) {
        if self.states.get(&state.inode.ino).is_some_and(|found| core::ptr::eq(&raw const **found, state)) {
            self.states.remove(&state.inode.ino);
        }
    }
}

impl Table {
    /// As [`InUse::open`].
    pub(crate) fn open(&self, inode: InodeRef) -> Arc<State> {
        self.lock().open(inode)
    }

    /// Another handle.
    pub(crate) fn open_again(&self, state: &Arc<State>) -> Arc<State> {
        let _states = self.lock();
        state.handles.fetch_add(1, Ordering::AcqRel);
        Arc::clone(state)
    }

    /// Ends a handle. The states of directories are kept, with their index. Returns whether it was the last handle.
    pub(crate) fn close(&self, state: &State) -> bool {
        let mut states = self.lock();
        let is_last = state.handles.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last && state.inode.kind != FileKind::Directory {
            states.forget(state);
        }
        is_last
    }

    /// Forgets an inode whose block is free.
    pub(crate) fn forget(&self, state: &State) {
        self.lock().forget(state);
    }

    /// Forgets what is known of directories: the medium was changed otherwise.
    pub(crate) fn forget_indexes(&self) {
        self.lock().states.values().for_each(|state| state.write().index = None);
    }

    /// A panic under the lock leaves the map as it was.
    pub(crate) fn lock(&self) -> InUse<'_> {
        InUse { states: self.states.lock().unwrap_or_else(PoisonError::into_inner) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inode_in_the_block_of_a_freed_one_has_its_own_state() {
        let table = Table::default();
        let inode = |birth| InodeRef { ino: 7, birth, kind: FileKind::File };
        let freed = table.open(inode(1));
        let new = table.open(inode(2));
        assert_eq!((new.inode, new.has_one_handle()), (inode(2), true));
        table.forget(&freed);
        assert!(table.close(&freed));
        assert!(Arc::ptr_eq(&table.open(inode(2)), &new));
    }
}
