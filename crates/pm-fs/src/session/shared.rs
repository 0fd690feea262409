//! What all handles of a file system share.

use crate::error::{Corruption, FsError};
use crate::node::dir::{DirIndex, Found};
use crate::node::inode::{self, FileKind, InodeRef, offset_of_ino};
use crate::session::orphans;
use crate::session::recovery;
use crate::session::table::{Life, State, Table};
use crate::volume::Volume;
use crate::volume::seal::Owner;
use core::sync::atomic::{AtomicBool, Ordering};
use pm_core::Pmem;
use pm_core::line::LINE_BYTES;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An open file system.
///
/// # Locks
/// First the lock of renames between directories, then those of inodes in ascending order of their numbers and births, then that of the orphans, then
/// the table. The lock of the preparation is taken below any of them: preparing takes none.
#[derive(Debug)]
pub(crate) struct Shared<P: Pmem> {
    pub(crate) volume: Volume<P>,
    pub(crate) table: Table,
    pub(crate) root: Arc<State>,
    /// The directory of inodes without a name, whose names there are their numbers.
    pub(crate) orphans: Arc<State>,
    renames: Mutex<()>,
    preparation: Preparation,
    is_read_only: bool,
}

/// What an open leaves to the first change: see [`recovery`].
#[derive(Debug)]
struct Preparation {
    is_done: AtomicBool,
    /// The offset of what the last close has saved.
    saved_at: u64,
    /// Why it cannot be done: then nothing changes.
    failed: Mutex<Option<Corruption>>,
}

impl<P: Pmem> Shared<P> {
    pub(crate) fn new(
        volume: Volume<P>,
        (root, orphans): (InodeRef, InodeRef),
        saved_at: u64,
        is_read_only: bool,
    ) -> Self {
        let table = Table::default();
        let (root, orphans) = (table.open(root), table.open(orphans));
        let preparation = Preparation { is_done: AtomicBool::new(false), saved_at, failed: Mutex::new(None) };
        Self { volume, table, root, orphans, renames: Mutex::new(()), preparation, is_read_only }
    }

    /// The storage for a call that changes something. The first one waits for the preparation.
    pub(crate) fn prepared(&self) -> Result<&Volume<P>, FsError> {
        self.check_writable()?;
        match self.prepare() {
            Err(FsError::Corrupted(corruption)) => Err(FsError::NoChanges(corruption)),
            prepared => prepared,
        }
    }

    /// Checks that the file system was not opened to be read only.
    pub(crate) const fn check_writable(&self) -> Result<(), FsError> {
        if self.is_read_only { Err(FsError::ReadOnly) } else { Ok(()) }
    }

    /// Prepares the storage for changes, once, and returns it. A file system that is read only is prepared, too: then its free pages are known.
    pub(crate) fn prepare(&self) -> Result<&Volume<P>, FsError> {
        let Preparation { is_done, saved_at, failed } = &self.preparation;
        if is_done.load(Ordering::Acquire) {
            return Ok(&self.volume);
        }
        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(corruption) = &*failed {
            return Err(corruption.clone().into());
        }
        if !is_done.load(Ordering::Acquire) {
            match recovery::recover(&self.volume, &self.orphans.inode, *saved_at) {
                Ok(()) => is_done.store(true, Ordering::Release),
                Err(FsError::Corrupted(corruption)) => {
                    *failed = Some(corruption.clone());
                    return Err(corruption.into());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(&self.volume)
    }

    /// Saves what the next open would have to look for. Nothing changes after that.
    pub(crate) fn save(&self) -> Result<(), FsError> {
        match self.preparation.is_done.load(Ordering::Acquire) && !self.is_read_only {
            true => recovery::save(&self.volume, self.preparation.saved_at),
            // What was saved still is.
            false => Ok(()),
        }
    }

    /// Prepares again at the next change, after a repair.
    pub(crate) fn forget_preparation(&mut self) {
        self.preparation.is_done = AtomicBool::new(false);
        self.preparation.failed = Mutex::new(None);
        self.table.forget_indexes();
    }

    /// The offset of what a close saves.
    pub(crate) const fn saved_at(&self) -> u64 {
        self.preparation.saved_at
    }

    /// Keeps directories from getting other parents.
    pub(crate) fn lock_renames(&self) -> MutexGuard<'_, ()> {
        self.renames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the index of a directory, if it has none. It then has one as long as there is a handle to it.
    pub(crate) fn ensure_index(&self, dir: &State) -> Result<(), FsError> {
        if dir.inode.kind != FileKind::Directory {
            return Err(FsError::NotADirectory);
        }
        if dir.read().index.is_some() {
            return Ok(());
        }
        let mut inner = dir.write();
        if inner.index.is_none() {
            inner.index = Some(DirIndex::load(&self.volume, &dir.inode)?);
        }
        Ok(())
    }

    /// A handle to the inode of an entry.
    pub(crate) fn open_found(&self, found: &Found) -> Result<Arc<State>, FsError> {
        if [self.root.inode.ino, self.orphans.inode.ino].contains(&found.ino) {
            return Err(FsError::corrupted(
                offset_of_ino(found.ino),
                "the name of a directory that has none",
            ));
        }
        let birth = inode::load_birth(&self.volume, found.ino)?;
        let mut in_use = self.table.lock();
        let inode = match in_use.find(Owner { ino: found.ino, birth }) {
            Some(inode) => inode,
            None => {
                let inode = InodeRef::find(&self.volume, found.ino)?;
                self.persist_status(&inode)?;
                inode
            }
        };
        let state = in_use.open(inode);
        drop(in_use);
        if state.inode.kind == found.kind {
            return Ok(state);
        }
        self.table.close(&state);
        Err(FsError::corrupted(offset_of_ino(found.ino), "the type of an inode"))
    }

    /// The number of the parent of a directory. Under the lock of renames it stays, but another thread may be changing what else is in its line.
    pub(crate) fn parent_of(&self, ino: u64) -> Result<u64, FsError> {
        let birth = inode::load_birth(&self.volume, ino)?;
        let in_use = self.table.lock();
        match in_use.find(Owner { ino, birth }) {
            // Verified when it was opened.
            Some(_) => inode::load_parent(&self.volume, ino),
            None => inode::load_identity(&self.volume, ino).map(|identity| identity.parent),
        }
    }

    /// Before the preparation, makes what is in an inode besides logged words durable: a killed process may have stored it in place.
    ///
    /// # Durability
    /// Durable when this returns. One fence, and none after the preparation.
    pub(crate) fn persist_status(&self, inode: &InodeRef) -> Result<(), FsError> {
        if !self.preparation.is_done.load(Ordering::Acquire) {
            self.volume.pmem().flush(inode.size_at(), LINE_BYTES);
            // DURABILITY POINT
            self.volume.pmem().fence()?;
        }
        Ok(())
    }

    /// Ends a handle. With the last one, an inode without a name is freed.
    pub(crate) fn release(&self, state: &State) -> Result<(), FsError> {
        match self.table.close(state) && matches!(state.read().life, Life::Orphan | Life::Unnamed) {
            true => self.evict(state),
            false => Ok(()),
        }
    }

    /// Frees an inode that has neither a name nor a handle, in steps. A crash between two of them leaves it an orphan.
    fn evict(&self, state: &State) -> Result<(), FsError> {
        let (volume, inode) = (self.prepared()?, &state.inode);
        orphans::free_contents(volume, inode)?;
        self.ensure_index(&self.orphans)?;
        let mut list = self.orphans.write();
        let freed = orphans::free(volume, inode, list.entries()?)?;
        list.apply(freed);
        state.write().life = Life::Freed;
        self.table.forget(state);
        Ok(())
    }
}
