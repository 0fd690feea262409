//! The inodes in use: their locks, and what is kept of them in DRAM.

use crate::error::FsError;
use crate::node::dir::{DirChange, DirIndex};
use crate::node::inode::{FileKind, InodeRef};
use crate::volume::seal::Owner;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// An inode in use.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) inode: InodeRef,
    /// The handles to it.
    handles: AtomicU64,
    /// Whether a directory was in use again since it was last passed over by [`States::keep_idle`].
    is_recent: AtomicBool,
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

/// The directories without a handle whose indexes are kept, so that the next call need not make them.
const IDLE_MAX: usize = 4096;

/// All inodes in use.
#[derive(Debug, Default)]
pub(crate) struct Table {
    states: Mutex<States>,
}

/// What the lock of the table protects.
#[derive(Debug, Default)]
struct States {
    /// By their numbers.
    all: FxHashMap<u64, Arc<State>>,
    /// Directories that had no handle at some time since; each is here once.
    idle: VecDeque<Owner>,
    /// The same.
    is_idle: FxHashSet<Owner>,
}

impl States {
    /// Keeps a directory that has no handle, and forgets another one if there are too many: one that was not used again.
    fn keep_idle(&mut self, state: &State) {
        let dir = state.inode.owner();
        if self.is_idle.insert(dir) {
            self.idle.push_back(dir);
        } else {
            state.is_recent.store(true, Ordering::Relaxed);
        }
        let mut passed_over = 0;
        while self.idle.len() > IDLE_MAX
            && let Some(dir) = self.idle.pop_front()
        {
            let state = self.all.get(&dir.ino).filter(|state| state.inode.owner() == dir);
            let Some(state) = state.filter(|state| state.handles.load(Ordering::Acquire) == 0) else {
                // It is in use, or was removed.
                self.is_idle.remove(&dir);
                continue;
            };
            if state.is_recent.swap(false, Ordering::Relaxed) && passed_over <= IDLE_MAX {
                passed_over += 1;
                self.idle.push_back(dir);
            } else {
                self.is_idle.remove(&dir);
                self.all.remove(&dir.ino);
            }
        }
    }
}

/// The lock of the table. As long as it is held, an inode that is not in use does not change.
pub(crate) struct InUse<'t> {
    states: MutexGuard<'t, States>,
}

impl InUse<'_> {
    /// The inode with this number and birth, if it is in use.
    pub(crate) fn find(&self, inode: Owner) -> Option<InodeRef> {
        let found = self.states.all.get(&inode.ino).map(|state| state.inode);
        found.filter(|found| found.birth == inode.birth)
    }

    /// A handle to an inode. The caller has the lock of a directory that names it, or another handle.
    pub(crate) fn open(&mut self, inode: InodeRef) -> Arc<State> {
        let new = || {
            let (handles, is_recent) = (AtomicU64::new(0), AtomicBool::new(false));
            Arc::new(State { inode, handles, is_recent, inner: RwLock::default() })
        };
        let state = self.states.all.entry(inode.ino).or_insert_with(new);
        if state.inode != inode {
            // That of an inode whose block is free, and is this one's now, before the thread that freed it has forgotten it.
            *state = new();
        }
        state.handles.fetch_add(1, Ordering::AcqRel);
        Arc::clone(state)
    }

    /// Removes a state, unless the number is another inode's by now.
    fn forget(&mut self, state: &State) {
        let found = self.states.all.get(&state.inode.ino);
        if found.is_some_and(|found| core::ptr::eq(&raw const **found, state)) {
            self.states.all.remove(&state.inode.ino);
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

    /// Ends a handle. The states of directories are kept, with their indexes, up to a number. Returns whether it was the last handle.
    pub(crate) fn close(&self, state: &State) -> bool {
        let mut states = self.lock();
        let is_last = state.handles.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last && state.inode.kind == FileKind::Directory {
            states.states.keep_idle(state);
        } else if is_last {
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
        self.lock().states.all.values().for_each(|state| state.write().index = None);
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
    fn states_of_idle_directories_are_bounded() {
        let table = Table::default();
        let dir = |ino| InodeRef { ino, birth: ino, kind: FileKind::Directory };
        let len = || table.lock().states.all.len();
        let open = table.open(dir(0));
        let favourite = table.open(dir(1));
        table.close(&favourite);
        for ino in 2..20_000 {
            table.close(&table.open(dir(ino)));
            if ino % 1000 == 0 {
                let state = table.open(dir(1));
                assert!(Arc::ptr_eq(&state, &favourite), "what is used is kept");
                table.close(&state);
            }
            // One has a handle.
            assert!(len() <= IDLE_MAX + 1, "{}", len());
        }
        assert!(Arc::ptr_eq(&table.open(dir(0)), &open));
        let states = table.lock();
        assert_eq!(states.states.idle.len(), states.states.is_idle.len());
    }

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
