//! The inodes in use: their locks, and what is kept of them in DRAM.

use crate::error::FsError;
use crate::node::dir::DirIndex;
use crate::node::inode::{FileKind, InodeRef};
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

impl State {
    /// A panic under the lock leaves the inode as the last durable transaction has left it.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`read`](Self::read).
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
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

impl Table {
    /// A handle to an inode. The caller has the lock of a directory that names it, or another handle.
    pub(crate) fn open(&self, inode: InodeRef) -> Arc<State> {
        Self::open_in(&mut self.lock(), inode)
    }

    /// As [`open`](Self::open), for the inode with this number and birth, which `verify` verifies if it is not in use yet: then it does not change meanwhile.
    pub(crate) fn open_verified(
        &self,
        (ino, birth): (u64, u64),
        verify: impl FnOnce() -> Result<InodeRef, FsError>,
    ) -> Result<Arc<State>, FsError> {
        let mut states = self.lock();
        let inode = match states.get(&ino).map(|state| state.inode).filter(|inode| inode.birth == birth) {
            Some(inode) => inode,
            None => verify()?,
        };
        Ok(Self::open_in(&mut states, inode))
    }

    /// Calls `call` with whether an inode is in use. If it is not, it does not change meanwhile.
    pub(crate) fn with_use<R>(&self, (ino, birth): (u64, u64), call: impl FnOnce(bool) -> R) -> R {
        let states = self.lock();
        call(states.get(&ino).is_some_and(|state| state.inode.birth == birth))
    }

    fn open_in(states: &mut FxHashMap<u64, Arc<State>>, inode: InodeRef) -> Arc<State> {
        let new = || Arc::new(State { inode, handles: AtomicU64::new(0), inner: RwLock::default() });
        let state = states.entry(inode.ino).or_insert_with(new);
        if state.inode != inode {
            // That of an inode whose block is free, and is this one's now, before the thread that freed it has forgotten it.
            *state = new();
        }
        state.handles.fetch_add(1, Ordering::AcqRel);
        Arc::clone(state)
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
            forget(&mut states, state);
        }
        is_last
    }

    /// Forgets an inode whose block is free.
    pub(crate) fn forget(&self, state: &State) {
        forget(&mut self.lock(), state);
    }

    /// Forgets what is known of directories: the medium was changed otherwise.
    pub(crate) fn forget_indexes(&self) {
        self.lock().values().for_each(|state| state.write().index = None);
    }

    /// A panic under the lock leaves the map as it was.
    fn lock(&self) -> MutexGuard<'_, FxHashMap<u64, Arc<State>>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes a state, unless the number is another inode's by now.
fn forget(states: &mut FxHashMap<u64, Arc<State>>, state: &State) {
    if states.get(&state.inode.ino).is_some_and(|found| core::ptr::eq(&raw const **found, state)) {
        states.remove(&state.inode.ino);
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
